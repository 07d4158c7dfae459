"""Open the explorer: find a port, say where it is, and serve it until it is told to stop."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError, MissingPackageError
from .guard import LOOPBACK

NEEDED = ("fastapi", "uvicorn")


def serve(
    models: Sequence[str | Path] = (),
    *,
    runs: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,  # what other machines must know; made up if they are let in and none is given
    device: str = "auto",
    browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the explorer of the models that ship, and of these folders, until it is interrupted."""
    missing = [name for name in NEEDED if not _there(name)]
    if missing:
        raise MissingPackageError(f"the explorer needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded: a browser needs the cores too
    import uvicorn

    from ..errors import Notice
    from ..weights import shipped
    from ..weights.folder import find
    from .server import make_app

    for model in models:
        if str(model) not in shipped():
            find(model)  # a mistake is told now, not in the page
    if runs is not None and not Path(runs).is_dir():
        raise InputError(f"--runs {runs}: there is no such folder")
    if host not in LOOPBACK and token is None:
        token = secrets.token_urlsafe(16)
    warnings.simplefilter("ignore", Notice)  # the page says them
    app = make_app(models, runs=runs, device=device, host=host, token=token, warm=True)
    listening = _listen(host, port)
    taken = listening.getsockname()[1]
    shown = host if host not in ("0.0.0.0", "::") else socket.gethostname()
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{taken}/" + (f"?token={token}" if token else "")
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            timeout_keep_alive=30, limit_concurrency=512, h11_max_incomplete_event_size=1 << 16, ws="none",
        )
    )  # fmt: skip
    say(address)
    print("Ctrl-C stops the explorer.", file=sys.stderr, flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # how it is stopped
        return


def _listen(host: str, port: int) -> socket.socket:
    """A socket at this port, or at the next free one; port 0 is any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in range(port, port + 20) if port else [0]:
        found = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, wanted))
            found.listen(256)
        except OSError as problem:
            found.close()
            last = problem
            continue
        return found
    raise InputError(f"no free port from {port} on at {host}: {last.strerror}; give another with --port") from last


def _there(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
