"""What the server answers: JSON, streams of JSON lines, and errors as sentences."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException as HttpError

from ..errors import UserError
from ..training.run_folder import FolderError
from . import answers
from .queue import BusyError, Queue
from .store import UnknownError

BUG = "the explorer has a bug: the terminal where it was started shows the details"
# What OpenAPI says about the responses of every route, of one that sends an array, and of one that streams.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Problem} for status in (400, 401, 403, 404, 413, 421, 422, 503)
}
BINARY: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    },
    **PROBLEMS,
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/Event"}}}},
    **PROBLEMS,
}


def json_response(value: Any, status: int = 200) -> Response:
    """A response with a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def float32_response(x: np.ndarray, **headers: float) -> Response:
    """A response with an array as little-endian float32, row by row; the header x-shape has its sizes.

    Other numbers become headers of their own: most=0.5 is x-most.
    """
    named = {
        "x-shape": ",".join(map(str, x.shape)),
        **{f"x-{name}": repr(value) for name, value in headers.items()},
    }
    return Response(
        np.ascontiguousarray(x, "<f4").tobytes(),
        headers=named,
        media_type="application/octet-stream",
    )


def stream_response(
    events: Callable[[], AsyncIterator[Any]], queue: Queue, request: Request
) -> StreamingResponse:
    """A response with each event as a line of JSON; it ends when the client disconnects, or with a line {"error"}."""

    async def lines() -> AsyncIterator[bytes]:
        # Counted with this request, which is in the queue already.
        if queue.inside > 1:
            yield _line({"waiting": queue.inside - 1})
        try:
            async with queue.slot():
                async for event in events():
                    yield _line(event)
                    # The client has closed the page: leaving the loop stops the work and frees the slot.
                    if await request.is_disconnected():
                        return
        except Exception as problem:
            # The status 200 has been sent with the first line, so an error can only be another line.
            message = error_message(problem)
            yield _line({"error": message or BUG})
            # A bug is raised again, so that the terminal shows its traceback.
            if message is None:
                raise

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def error_message(problem: BaseException) -> str | None:
    """The sentence for an error that the request or a file caused; None for a bug."""
    if isinstance(problem, OSError):
        # Without the path, which other machines should not learn.
        return f"a file cannot be read: {problem.strerror or 'it does not exist'}"
    if isinstance(problem, UserError | ValueError | LookupError | FolderError):
        # Messages that span several lines become one.
        return " ".join(str(problem.args[0] if problem.args else problem).split())
    return None


def add_error_handlers(app: FastAPI) -> None:
    """Let every error of a route become a response {"error": sentence} with a fitting status."""

    async def malformed(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        details = [
            # The first part of the location is only where the value came from, such as "body" or "query".
            f"{'.'.join(map(str, error['loc'][1:])) or 'the request'}: {error['msg']}"
            for error in problem.errors()[:3]
        ]
        return json_response({"error": "; ".join(details)}, 422)

    async def http(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, HttpError)
        return json_response({"error": str(problem.detail)}, problem.status_code)

    async def bug(_: Request, problem: Exception) -> Response:
        return json_response({"error": BUG}, 500)

    async def busy(_: Request, problem: Exception) -> Response:
        response = json_response({"error": error_message(problem)}, 503)
        response.headers["retry-after"] = "1"
        return response

    async def unknown(_: Request, problem: Exception) -> Response:
        return json_response({"error": error_message(problem)}, 404)

    async def wrong(_: Request, problem: Exception) -> Response:
        return json_response({"error": error_message(problem)}, 400)

    app.add_exception_handler(Exception, bug)
    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(UnknownError, unknown)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HttpError, http)
    app.add_exception_handler(HTTPException, http)
    for kind in (UserError, ValueError, IndexError, FolderError, OSError):
        app.add_exception_handler(kind, wrong)


def describe_streams(app: FastAPI) -> None:
    """Add the lines of streams to the OpenAPI description, which FastAPI leaves out."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        description = plain()
        # FastAPI caches the description, so this changes the same dict each time, to the same values.
        known: dict[str, Any] = description["components"]["schemas"]
        for line in (answers.Event, answers.HeadsOfLayer, answers.EffectsOfLayer):
            # Nested types come along under $defs: move them to where the references point.
            schema = TypeAdapter(line).json_schema(ref_template="#/components/schemas/{model}")
            known |= schema.pop("$defs", {})
            known[line.__name__] = schema
        return description

    app.openapi = described  # type: ignore[method-assign]


def _line(event: Any) -> bytes:
    return msgspec.json.encode(event) + b"\n"
