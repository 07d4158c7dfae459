"""The explorer's server: `make_app` puts the routes, the page's files and the guard together."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response

from .. import __version__
from .explorer import Explorer
from .guard import BODY, Guard
from .images import ImageStore
from .queue import Queue
from .responses import add_error_handlers, describe_streams
from .routes import build, images, interpretation, text
from .routes import models as models_routes
from .routes import runs as runs_routes
from .runs import Runs
from .store import MEMORY, InspectionStore, ModelStore, UnknownError

PAGE = Path(__file__).parent / "page"
TYPES = {  # the files of the page that are sent
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".webp": "image/webp",
}

# headers of files whose address changes with their content
KEPT = {"cache-control": "private, max-age=31536000, immutable"}


def make_app(
    models: Sequence[str | Path] = (),
    *,
    runs: str | Path | None = None,
    device: str = "auto",
    host: str = "127.0.0.1",
    token: str | None = None,
    memory: int = MEMORY,  # bytes of inspections to keep
    active: int = 8,  # requests that run at a time
    waiting: int = 56,  # requests that may wait
    warm: bool = False,  # load the models at the start, not when they are first used
    # called with a sentence about each loaded model that no view can use
    report: Callable[[str], None] = lambda problem: None,
) -> Any:
    """The explorer as an ASGI application."""
    trainings = Runs(None if runs is None else Path(runs).resolve())
    explorer = Explorer(
        models=ModelStore(models, trainings.trained),
        inspections=InspectionStore(memory),
        images=ImageStore(),
        queue=Queue(active, waiting),
        runs=trainings,
        device=device,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # A daemon, so that loading does not delay Ctrl-C.
        if warm:
            threading.Thread(target=_load_all, args=(explorer, report), daemon=True).start()
        yield

    app = FastAPI(
        title="clearhead explore",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        description="What feeds the page: the library's own results, as JSON.",
    )
    app.state.explorer, app.state.token = explorer, token
    add_error_handlers(app)
    app.include_router(_page_routes())
    for routes in (models_routes, text, images, interpretation, build, runs_routes):
        app.include_router(routes.router)
    describe_streams(app)
    return Guard(app, host=host, token=token, body=BODY)


def _load_all(explorer: Explorer, report: Callable[[str], None]) -> None:
    for model in explorer.models.models.values():
        # Loads the model as a side effect.
        line = explorer.describe(model)
        if not line["kinds"]:
            report(f"no view shows the model {model.id}: {line.get('error') or line.get('why')}")


def _page_routes() -> APIRouter:
    """The routes of the page's own files, which are read once: no request ever becomes a path.

    Their addresses have a hash of all of them, so that a browser may keep them: page/HASH/app.js.
    """
    paths = [path for path in sorted(PAGE.rglob("*")) if path.is_file() and path.suffix in TYPES]
    files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in paths}
    # All files have one hash: modules import one another by relative addresses.
    digest = hashlib.sha256(
        b"".join(name.encode() + content for name, content in files.items())
    ).hexdigest()[:16]
    page = (
        files.pop("index.html")
        .replace(b"{version}", __version__.encode())
        .replace(b"{hash}", digest.encode())
    )
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return Response(page, media_type=TYPES[".html"])

    @router.get("/page/{name:path}")
    async def file_of_page(name: str) -> Response:
        # An address with an old hash is not found; one without a hash is answered but not kept by the browser.
        kept, short = name.startswith(f"{digest}/"), name.removeprefix(f"{digest}/")
        if short not in files:
            raise UnknownError("there is no such page here")
        return Response(
            files[short],
            media_type=TYPES[PurePosixPath(short).suffix],
            headers=KEPT if kept else None,
        )

    return router
