"""serve: open the explorer in a browser and serve it until Ctrl-C."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InputError, MissingPackageError

NEEDED = ("fastapi", "uvicorn")
HEAD_SECONDS = 20  # within which the first line and the headers of a request have to arrive
LOOPBACK = ("127.0.0.1", "localhost", "::1")  # addresses that only this machine reaches
PORTS = 20  # ports to try, from the first one on


def serve(
    models: Sequence[str | Path] = (),
    *,
    runs: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    device: str = "auto",
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the explorer, with the models that ship and any others, until it is interrupted.

    Args:
        models: Names of shipped models to list first, and folders of other models.
        runs: A folder of runs for the Train view.
        host: The address to listen on; any but this machine's own lets other machines in, with a token.
        port: The first port to try; 0 for any free one.
        token: What other machines must send; a random one if they are let in and none is given.
        device: Where the models run: auto, cpu, cuda, cuda:1, mps.
        browser: Open the page in a browser.
        say: Called with the address as soon as the server listens.

    Raises:
        InputError: A folder does not exist, or no port is free.
        MissingPackageError: FastAPI or uvicorn is not installed.

    Examples:
        >>> serve(["en-de"], browser=False)  # doctest: +SKIP
        http://127.0.0.1:8000/
        >>> serve(runs="no/such/folder")
        Traceback (most recent call last):
        clearhead.errors.InputError: runs=no/such/folder: there is no such folder
    """
    if missing := [name for name in NEEDED if not _installed(name)]:
        raise MissingPackageError(
            f"the explorer needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )
    if runs is not None and not Path(runs).is_dir():
        raise InputError(f"runs={runs}: there is no such folder")
    # Imported only now: the message above is for an installation without them.
    import uvicorn

    from ..errors import Notice
    from ..weights import shipped
    from ..weights.folder import find
    from .app import make_app

    for model in models:
        # A folder that cannot be opened is an error at the start.
        if str(model) not in shipped():
            find(model)  # raises now, not in the page
    # Another machine must not get in without a token, so one is made.
    if host not in LOOPBACK and token is None:
        token = secrets.token_urlsafe(16)
    warnings.simplefilter("ignore", Notice)  # the page shows them
    tell = partial(print, file=sys.stderr, flush=True)
    app = make_app(models, runs=runs, device=device, host=host, token=token, warm=True, report=tell)
    # Bound before the server starts, so that the printed port is the actual one.
    listening = _listen(host, port)
    address = _address(host, listening.getsockname()[1], token)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=30,
            limit_concurrency=512,
            h11_max_incomplete_event_size=1 << 16,
            ws="none",
            http=request_protocol(HEAD_SECONDS),
        )
    )
    say(address)
    tell("Ctrl-C stops the explorer.")
    if browser:
        # A little later, when the server answers.
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # Ctrl-C
        return


def request_protocol(seconds: float) -> Any:
    """Uvicorn's HTTP protocol, which also closes connections whose request does not begin in time.

    Uvicorn waits for the headers of a request without an end, and counts such a connection as one of its clients.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        late: asyncio.TimerHandle | None = None  # closes the connection

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Start the clock if no request is being answered; stop it otherwise."""
            # A long answer may take its time: the clock is for the client's part only.
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            # It is not restarted while it runs: bytes that trickle in would prolong it without end.
            elif self.late is None:
                self.late = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Protocol


def _listen(host: str, port: int) -> socket.socket:
    """A socket at this port, or at the next free one; port 0 is any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in range(port, port + PORTS) if port else [0]:
        listening = socket.socket(family, socket.SOCK_STREAM)
        # A server that was stopped a moment ago leaves the port in TIME_WAIT; on Windows the option
        # lets two share a port.
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, wanted))
            listening.listen(256)
        except OSError as problem:
            listening.close()
            # The name of an except clause is deleted at its end; the error is needed after the loop.
            last = problem
            continue
        return listening
    raise InputError(
        f"no free port from {port} on at {host}: {last.strerror}; give another with --port"
    ) from last


def _address(host: str, port: int, token: str | None) -> str:
    # 0.0.0.0 means all interfaces and is no address to open: the name of this machine is one.
    name = host if host not in ("0.0.0.0", "::") else socket.gethostname()
    if ":" in name:  # an address of IPv6
        name = f"[{name}]"
    address = f"http://{name}:{port}/"
    return f"{address}?token={token}" if token else address


def _installed(name: str) -> bool:
    return find_spec(name) is not None
