"""The explorer's server: thin routes around the verbs of the rooms above. `make_app` is the whole of it."""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException as HttpError

from .. import __version__
from ..decode import Choice
from ..errors import InputError
from ..tasks.translate import Translation, translating
from ..training.run_folder import FolderError
from . import schemas
from .guard import BODY, Guard
from .inspections import CELLS, Look, of_text, of_translation, writing
from .request_queue import BusyError, Queue, line
from .runs import Runs
from .store import MEMORY, Looks, Model, Shelf, UnknownError
from .worked_attention import by_hand, fading, places

PAGE = Path(__file__).parent / "page"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Problem} for status in (400, 401, 403, 404, 413, 421, 422, 503)
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/Event"}}}}, **PROBLEMS
}  # fmt: skip
OURS = "the explorer made a mistake of its own: where it was started, it has written down which"
LookId = Annotated[str, Query(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]
GroupName = Annotated[str, Query(pattern="^[a-z]{1,20}$")]
Whole = Annotated[int | None, Query(ge=0, le=2**31)]


def make_app(
    models: Sequence[str | Path] = (),
    *,
    runs: str | Path | None = None,
    device: str = "auto",
    host: str = "127.0.0.1",
    token: str | None = None,
    memory: int = MEMORY,  # bytes of results that are kept
    active: int = 8,  # requests that are worked on at a time
    waiting: int = 56,  # requests that may wait for them
    warm: bool = False,  # load the models at once, not when they are first asked
) -> Any:
    """The explorer as an ASGI application."""
    trainings = Runs(None if runs is None else Path(runs).resolve())
    shelf, looks, queue = Shelf(models, trainings.finished), Looks(memory), Queue(active, waiting)
    files = _files()

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if warm:
            threading.Thread(
                target=lambda: [_told(model, device) for model in shelf.models.values()], daemon=True
            ).start()
        yield

    app = FastAPI(
        title="clearhead explore", version=__version__, docs_url=None, redoc_url=None, lifespan=life,
        openapi_url="/api/openapi.json", description="What feeds the page: the library's own results, as JSON.",
    )  # fmt: skip
    app.state.queue, app.state.looks, app.state.shelf = queue, looks, shelf
    _tell_problems(app)

    async def place() -> AsyncIterator[None]:
        queue.enter()
        try:
            yield
        finally:
            queue.leave()

    queued = [Depends(place)]

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file(files, "index.html")

    @app.get("/page/{name:path}", include_in_schema=False)
    async def part(name: str) -> Response:
        return _file(files, name)

    @app.get("/api/models", responses=PROBLEMS, response_model=list[schemas.ModelLine], dependencies=queued)
    async def models_() -> Response:
        """The models that can be asked."""
        return _json(await queue.run(lambda: [_told(model, device) for model in shelf.models.values()]))

    @app.get("/api/models/one", responses=PROBLEMS, response_model=schemas.ModelLine, dependencies=queued)
    async def model_(model: schemas.Id) -> Response:
        """One model: also that of a finished training, run-ID."""
        one = shelf[model]
        return _json(await queue.run(lambda: _told(one, device)))

    @app.post("/api/translate", responses=STREAM, response_class=StreamingResponse, dependencies=queued)
    async def translate(asked: schemas.Translate, request: Request) -> Response:
        """A translation as it is written, line by line of JSON: the beams after every step, then the answers."""
        model = shelf[asked.model]

        async def work() -> AsyncIterator[Any]:
            bundle = await queue.run(lambda: model.bundle(device))
            last: list[Translation] = []
            steps = translating(bundle, asked.text, beams=asked.beams, penalty=asked.penalty)
            async for last in queue.each(steps, model.turn):
                yield {"beams": [_plain(one) for one in last]}
            found = [one async for one in queue.each((of_translation(bundle, one) for one in last), model.turn)]
            yield {"translations": [_plain(one) for one in last], "looks": [_kept(looks, look) for look in found]}

        return _stream(work, queue, request)

    @app.post("/api/write", responses=STREAM, response_class=StreamingResponse, dependencies=queued)
    async def write(asked: schemas.Write, request: Request) -> Response:
        """How a text goes on, token by token, and then what every token of it looked at."""
        model = shelf[asked.model]
        off = {int(layer): heads for layer, heads in asked.off.items()}

        async def work() -> AsyncIterator[Any]:
            bundle = await queue.run(lambda: model.bundle(device))
            ids = await queue.run(lambda: bundle.prompt(asked.text))
            if asked.max_new:
                heat = asked.temperature
                drawn = Choice(sample=True, temperature=heat or 1.0, top_k=asked.top_k, top_p=asked.top_p)
                choice = drawn if heat else Choice()
                steps = writing(bundle, ids, max_new=asked.max_new, choice=choice, seed=asked.seed, off=off)
                async for token in queue.each(steps, model.turn):
                    ids.append(token["id"])
                    yield {"token": token}
            async for found in queue.told(lambda done: of_text(bundle, ids, off, done), model.turn):
                yield {"progress": found} if isinstance(found, tuple) else {"look": _kept(looks, found)}

        return _stream(work, queue, request)

    @app.get("/api/looks/map", responses=PROBLEMS, response_model=schemas.Tile, dependencies=queued)
    async def map_(
        look: LookId,
        group: GroupName,
        layer: Whole = None,
        head: Whole = None,
        by: Annotated[str, Query(pattern="^(pieces|words)$")] = "pieces",
        row: Whole = None,
        rows: Whole = None,
        key: Whole = None,
        keys: Whole = None,
        cells: Annotated[int, Query(ge=1, le=CELLS)] = 256,
    ) -> Response:
        """Weights between tokens (from row and key on, so many of each; all, if not said), or between words."""
        one = looks[look].group(group)

        def ask() -> dict[str, Any]:
            if by == "words":
                return one.by_word(layer, head)
            low, left = row or 0, key or 0
            high = len(one.rows) if rows is None else low + rows
            right = len(one.columns) if keys is None else left + keys
            return one.tile(layer, head, (low, high), (left, right), cells)

        return _json(await queue.run(ask))

    @app.get("/api/looks/heads", responses=STREAM, response_class=StreamingResponse, dependencies=queued)
    async def heads(look: LookId, group: GroupName, request: Request) -> Response:
        """What tells the heads of each layer apart, a layer a line."""
        one = looks[look].group(group)

        async def work() -> AsyncIterator[Any]:
            async for told in queue.each(one.statistics(layer) for layer in range(len(one.maps))):
                yield told

        return _stream(work, queue, request)

    @app.get("/api/looks/lens", responses=PROBLEMS, response_model=schemas.LensShape, dependencies=queued)
    async def lens(look: LookId, at: Annotated[int, Query(ge=0, le=2**31)]) -> Response:
        """What the model would say after a token if it stopped at each layer."""
        kept = looks[look]
        return _json(await queue.run(lambda: kept.lens(at)))

    @app.get("/api/looks/candidates", responses=PROBLEMS, response_model=schemas.CandidatesShape, dependencies=queued)
    async def candidates(
        look: LookId, first: Annotated[int, Query(ge=1, le=2**31)], last: Annotated[int, Query(ge=1, le=2**31)]
    ) -> Response:
        """The likeliest tokens at some places of a text."""
        kept = looks[look]
        return _json(await queue.run(lambda: kept.candidates(first, last)))

    @app.post("/api/build", responses=PROBLEMS, response_model=schemas.ByHandShape, dependencies=queued)
    async def build(asked: schemas.Build) -> Response:
        """Attention by hand: every number of it."""
        return _json((await queue.run(lambda: by_hand(**asked.model_dump()))).to_dict())

    @app.get("/api/positions", responses=PROBLEMS, response_model=schemas.PlacesShape, dependencies=queued)
    async def positions(
        kind: Annotated[str, Query(pattern="^(sinusoid|rotary|alibi|sincos2d)$")] = "sinusoid",
        width: Annotated[int, Query(ge=2, le=256)] = 64,
        length: Annotated[int, Query(ge=2, le=256)] = 64,
        base: Annotated[float, Query(gt=1.0, le=1e6)] = 10_000.0,
    ) -> Response:
        """The vectors that tell positions, and how alike any two are."""
        if kind == "sincos2d" and length > 16:
            raise InputError(f"a picture of {length} patches a side: expected at most 16")
        return _json(await queue.run(lambda: places(kind, width=width, length=length, base=base)))

    @app.get("/api/memory", responses=PROBLEMS, response_model=schemas.FadingShape, dependencies=queued)
    async def memory_(
        gamma: Annotated[float, Query(gt=0.0, le=1.0)] = 0.9,
        length: Annotated[int, Query(ge=1, le=128)] = 24,
        sharpness: Annotated[float, Query(ge=0.0, le=100.0)] = 6.0,
    ) -> Response:
        """How much of each guest a memory that forgets has left."""
        return _json(await queue.run(lambda: fading(gamma, length=length, sharpness=sharpness)))

    @app.get("/api/runs", responses=PROBLEMS, response_model=list[schemas.RunLine], dependencies=queued)
    async def runs_() -> Response:
        """The trainings in the folder that the server was given."""
        return _json(await queue.run(trainings.listed))

    @app.get("/api/runs/one", responses=PROBLEMS, response_model=schemas.RunShape, dependencies=queued)
    async def run_(run: schemas.Id, since: Annotated[int, Query(ge=0, le=2**31)] = 0) -> Response:
        """What a training has measured, from record `since` on."""
        return _json(await queue.run(lambda: trainings.records(run, since)))

    _describe(app)
    return Guard(app, host=host, token=token, body=BODY)


def _stream(work: Callable[[], AsyncIterator[Any]], queue: Queue, request: Request) -> StreamingResponse:
    """The events of some work, as lines of JSON; it stops when the client has gone, and a mistake is a sentence."""

    async def lines() -> AsyncIterator[bytes]:
        if queue.inside > 1:
            yield line({"waiting": queue.inside - 1})
        try:
            async with queue.turn():
                async for event in work():
                    yield line(event)
                    if await request.is_disconnected():
                        return
        except Exception as problem:
            sentence = _sentence(problem)
            yield line({"error": sentence or OURS})
            if sentence is None:
                raise

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _kept(looks: Looks, look: Look) -> dict[str, Any]:
    return {"id": looks.keep(look), **look.to_dict()}


def _plain(found: Translation) -> dict[str, Any]:
    """A translation without its alignment, which is asked for by layer and head."""
    return {
        "text": found.text, "score": found.score, "logprob": found.logprob, "cut": found.cut, "source": found.source,
        "target": found.target,
    }  # fmt: skip


def _told(model: Model, device: str) -> dict[str, Any]:
    try:
        return model.to_dict(device)
    except (ValueError, OSError, RuntimeError) as problem:
        return {"id": model.id, "about": model.about, "kinds": [], "error": _sentence(problem) or "it cannot be read"}


def _files() -> dict[str, tuple[bytes, str]]:
    """The page's own files, read once: nothing that is asked for ever becomes a path."""
    found = {}
    for path in sorted(PAGE.rglob("*")):
        if path.is_file() and path.suffix in (".html", ".css", ".js", ".svg"):
            kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0] or "text/plain"
            found[path.relative_to(PAGE).as_posix()] = path.read_bytes(), f"{kind}; charset=utf-8"
    return found


def _file(files: dict[str, tuple[bytes, str]], name: str) -> Response:
    if name not in files:
        raise UnknownError("there is no such page here")
    content, kind = files[name]
    return Response(content, media_type=kind)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


# Problems are told in sentences


def _sentence(problem: BaseException) -> str | None:
    """What to tell of a problem: a mistake in what was asked, in the words of the house; None for one of ours."""
    if isinstance(problem, OSError):
        return f"a file cannot be read: {problem.strerror or 'it is not there'}"
    if isinstance(problem, ValueError | LookupError | FolderError | BusyError | UnknownError):
        return " ".join(str(problem.args[0] if problem.args else problem).split())
    return None


def _tell_problems(app: FastAPI) -> None:
    async def busy(_: Request, problem: Exception) -> Response:
        answer = _json({"error": _sentence(problem)}, 503)
        answer.headers["retry-after"] = "1"
        return answer

    async def unknown(_: Request, problem: Exception) -> Response:
        return _json({"error": _sentence(problem)}, 404)

    async def wrong(_: Request, problem: Exception) -> Response:
        return _json({"error": _sentence(problem)}, 400)

    async def malformed(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        told = [f"{'.'.join(map(str, one['loc'][1:])) or 'the request'}: {one['msg']}" for one in problem.errors()[:3]]
        return _json({"error": "; ".join(told)}, 422)

    async def http(_: Request, problem: Exception) -> Response:
        assert isinstance(problem, HttpError)
        return _json({"error": str(problem.detail)}, problem.status_code)

    async def ours(_: Request, problem: Exception) -> Response:
        return _json({"error": OURS}, 500)

    app.add_exception_handler(Exception, ours)
    app.add_exception_handler(BusyError, busy)
    app.add_exception_handler(UnknownError, unknown)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HttpError, http)
    app.add_exception_handler(HTTPException, http)
    for kind in (ValueError, IndexError, FolderError, OSError):
        app.add_exception_handler(kind, wrong)


def _describe(app: FastAPI) -> None:
    """Put the lines of streams into the description too."""
    whole = app.openapi

    def described() -> dict[str, Any]:
        found = whole()
        for kind in (schemas.Event, schemas.HeadsOfLayer):
            schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
            found["components"]["schemas"] |= {**schema.pop("$defs", {}), kind.__name__: schema}
        return found

    app.openapi = described  # type: ignore[method-assign]
