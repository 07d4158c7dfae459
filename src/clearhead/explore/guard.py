"""The door: who may ask, how much, and what a browser may do with the answer.

A page of another site cannot ask (its Origin, or a name that was made to point here, gives it away), nothing can be
asked from another machine without the token, and nothing but the page's own files is ever run or shown by it.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.exceptions import HTTPException

from ..errors import InputError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY = 1 << 18  # bytes of a request
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
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Guard:
    """An ASGI application around another, which it lets only the right requests into."""

    def __init__(self, app: Any, *, host: str = "127.0.0.1", token: str | None = None, body: int = BODY) -> None:
        if host not in LOOPBACK and not token:
            raise InputError(f"host={host!r} lets other machines in: expected a token that they must know")
        self.app, self.host, self.token, self.body = app, host, token, body

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", []) if k.lower() != b"server"]
                message = {**message, "headers": [*kept, *HEADERS, (b"cache-control", b"no-store")]}
            await send(message)

        problem = self.problem(scope, headers)
        if problem is not None:
            await _say(guarded, *problem)
            return
        if self.token is not None and scope["path"] == "/" and self._asked(scope):
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/".encode()
            there = [(b"location", b"/"), (b"set-cookie", cookie), (b"content-length", b"0")]
            await guarded({"type": "http.response.start", "status": 303, "headers": there})
            await guarded({"type": "http.response.body", "body": b""})
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.body:
                raise HTTPException(413, self._too_much())
            return message

        await self.app(scope, counted, guarded)

    def problem(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None if it is not."""
        named = headers.get("host", "")
        if not self._known(named):
            return 421, "this server goes by another name: open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != named.lower():
            return 403, "pages of other sites may not ask here"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _opened(scope, headers):
            return 403, "pages of other sites may not ask here"
        if self.token is not None and not self._told(scope, headers):
            return 401, "this server asks for its token: open the address that it printed"
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > self.body:
            return 413, self._too_much()
        return None

    def _known(self, named: str) -> bool:
        try:
            name = (urlsplit(f"//{named}").hostname or "").lower()
        except ValueError:
            return False
        if name in LOOPBACK or name == self.host.lower():
            return True
        if self.token is None:
            return False
        # With a token, a name that was made to point here is of no use to whoever made it: but addresses are enough.
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == socket.gethostname().lower()
        return True

    def _asked(self, scope: MutableMapping[str, Any]) -> str | None:
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        return given or None

    def _told(self, scope: MutableMapping[str, Any], headers: dict[str, str]) -> bool:
        assert self.token is not None
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        if scope["path"] == "/":
            given.append(self._asked(scope) or "")
        # By hand: the standard parser drops them all for an odd one, and other servers of this machine may set such.
        cookies = (one.strip().partition("=") for one in headers.get("cookie", "").split(";"))
        given += [value for name, _, value in cookies if name == COOKIE]
        return any(secrets.compare_digest(one.encode(), self.token.encode()) for one in given)

    def _too_much(self) -> str:
        return f"the request is too large: expected at most {self.body:,} bytes"


def _opened(scope: MutableMapping[str, Any], headers: dict[str, str]) -> bool:
    """Whether somebody has followed a link to the page itself."""
    return scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"


async def _say(send: Send, status: int, sentence: str) -> None:
    body = msgspec.json.encode({"error": sentence})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
