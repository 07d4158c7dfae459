"""Guard: the ASGI middleware that decides which requests reach the explorer.

It refuses pages of other sites (by their Origin, and by host names that were made to resolve to this machine: DNS
rebinding), other machines without the token, and large bodies; its headers let a browser load nothing but the page's
own files.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import msgspec
from starlette.exceptions import HTTPException

from ..errors import InputError
from .server import LOOPBACK

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY = 1 << 18  # largest body of a request, in bytes
# seconds within which a body has to arrive: a slow sender holds one of few connections
BODY_SECONDS = 20
UPLOADS = {"/api/images": 8 << 20}  # largest bodies of requests that send files, by path
COOKIE = "clearhead"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Guard:
    """An ASGI application that passes only allowed requests on to another one."""

    def __init__(
        self, app: Any, *, host: str = "127.0.0.1", token: str | None = None, body: int = BODY
    ) -> None:
        if host not in LOOPBACK and not token:
            raise InputError(
                f"host={host!r} lets other machines in: expected a token that they must send"
            )
        self.app, self.host, self.token, self.body = app, host, token, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # Startup and shutdown of the server concern no client.
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }

        limited = _Limited(receive, self._largest(scope), upload=scope["path"] in UPLOADS)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The server's name and version help only an attacker.
                kept = [(k, v) for k, v in message.get("headers", []) if k.lower() != b"server"]
                # The browser may keep only the page's own files.
                stored = any(k.lower() == b"cache-control" for k, _ in kept)
                cache = [] if stored else [(b"cache-control", b"no-store")]
                # The rest of a late body may still arrive: the connection cannot serve another request.
                close = [(b"connection", b"close")] if limited.late else []
                message = {**message, "headers": [*kept, *HEADERS, *cache, *close]}
            await send(message)

        problem = self.problem(scope, headers)
        if problem is not None:
            await _send_error(send_with_headers, *problem)
        # A token in the address would stay in the history and in copied links, hence the cookie.
        elif self.token is not None and scope["path"] == "/" and _query_token(scope):
            await self._set_cookie(send_with_headers)
        else:
            await self.app(scope, limited, send_with_headers)

    def problem(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """The status and the message that refuse a request; None for a request that is allowed."""
        # DNS rebinding: a page whose name was made to resolve to this machine still sends that name.
        host = headers.get("host", "")
        if not self._is_own_name(host):
            return 421, "this server has another name: open the address that it printed"
        # Browsers add Origin to every POST and to requests across sites; curl and scripts send none.
        origin = headers.get("origin")
        if origin is not None and _network_place(origin) != host.lower():
            return 403, "pages of other sites may not send requests here"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_link(
            scope, headers
        ):
            return 403, "pages of other sites may not send requests here"
        if self.token is not None and not self._has_token(scope, headers):
            return 401, "this server needs its token: open the address that it printed"
        # A declared length is refused before any byte is read; _Limited counts what was not declared.
        size, most = headers.get("content-length", "0"), self._largest(scope)
        if not size.isdigit() or int(size) > most:
            return 413, _too_large(most)
        return None

    def _largest(self, scope: Scope) -> int:
        """The largest body of a request, in bytes."""
        if scope["method"] == "POST":
            return max(self.body, UPLOADS.get(scope["path"], 0))
        return self.body

    def _is_own_name(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        # Malformed, such as an unclosed bracket of an IPv6 address.
        except ValueError:
            return False
        if name in LOOPBACK or name == self.host.lower():
            return True
        if self.token is None:
            return False
        # With a token DNS rebinding gains nothing, but no other names are needed than addresses and our own.
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == socket.gethostname().lower()
        return True

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        tokens = [headers.get("authorization", "").removeprefix("Bearer ")]
        # Only the page itself accepts the token in its address; what it requests comes with the cookie.
        if scope["path"] == "/":
            tokens.append(_query_token(scope))
        # Parsed by hand: the standard parser drops all cookies if one is malformed, and other servers on this machine
        # may set such.
        cookies = (token.strip().partition("=") for token in headers.get("cookie", "").split(";"))
        tokens += [value for name, _, value in cookies if name == COOKIE]
        # Constant time, so that the duration does not reveal how many characters are right.
        return any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens)

    async def _set_cookie(self, send: Send) -> None:
        """Answer a request with the token in its address: keep it in a cookie, and redirect to the plain address."""
        # HttpOnly: scripts cannot read it. SameSite=Strict: requests from other sites do not carry it.
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/".encode()
        headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


class _Limited:
    """Receives the messages of a request; raises if its body is too large or takes too long.

    The bytes are counted while they are received, since a body's length may not have been declared. An upload has a
    time limit of its own, where it is read.
    """

    def __init__(self, receive: Receive, most: int, *, upload: bool) -> None:
        self.receive, self.most = receive, most
        # whether the rest of the body is awaited, with a time limit; later only the end of the connection
        self.waiting = not upload
        # when the body has to be there, on the clock of the event loop
        self.until: float | None = None
        self.received, self.late = 0, False

    async def __call__(self) -> Message:
        message = await (self._in_time() if self.waiting else self.receive())
        self.received += len(message.get("body", b""))
        if self.received > self.most:
            raise HTTPException(413, _too_large(self.most))
        self.waiting = self.waiting and message.get("more_body", False)
        return message

    async def _in_time(self) -> Message:
        # The clock starts with the first read, not when the connection was accepted.
        if self.until is None:
            self.until = anyio.current_time() + BODY_SECONDS
        try:
            with anyio.fail_after(self.until - anyio.current_time()):
                return await self.receive()
        except TimeoutError:
            self.late = True
            raise HTTPException(
                408, f"the request did not arrive within {BODY_SECONDS} seconds: send it again"
            ) from None


def _too_large(most: int) -> str:
    return f"the request is too large: expected at most {most:,} bytes"


def _query_token(scope: Scope) -> str:
    """The token in the address, or ""."""
    return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]


def _is_link(scope: Scope, headers: dict[str, str]) -> bool:
    """True if the browser has followed a link to the page itself."""
    return (
        scope["method"] == "GET"
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
    )


async def _send_error(send: Send, status: int, message: str) -> None:
    body = msgspec.json.encode({"error": message})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _network_place(origin: str) -> str | None:
    """The host and port of an Origin header; None if it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
