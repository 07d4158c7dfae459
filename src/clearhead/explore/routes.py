"""The routes of the explorer's API, in groups: models, generation, inspections, build, runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from ..decode import Choice
from ..errors import InputError
from ..tasks import Translation
from ..tasks.translate import translating
from . import schemas
from .attention_groups import CELLS
from .generation import generate_tokens
from .illustrations import memory_decay, position_vectors
from .inspections import Inspection, inspect_text, inspect_translation
from .request_queue import Queue
from .responses import PROBLEMS, STREAM, error_message, json_response, stream_response
from .runs import Runs
from .store import InspectionStore, Model, ModelStore
from .worked import by_hand


@dataclass(frozen=True, eq=False)
class Explorer:
    """What the routes share."""

    models: ModelStore
    inspections: InspectionStore
    queue: Queue
    runs: Runs
    device: str

    def keep(self, inspection: Inspection) -> dict[str, Any]:
        """Keep an inspection; returns its id and what can be requested about it."""
        return {"id": self.inspections.keep(inspection), **inspection.to_dict()}

    def describe(self, model: Model) -> dict[str, Any]:
        """What the page shows of a model, or why it cannot be loaded."""
        try:
            return model.to_dict(self.device)
        except (ValueError, OSError, RuntimeError) as problem:
            message = error_message(problem) or "it cannot be loaded"
            return {"id": model.id, "about": model.about, "kinds": [], "error": message}


async def _explorer(request: Request) -> AsyncIterator[Explorer]:
    """The explorer, with a place in its queue for as long as the request lasts."""
    explorer: Explorer = request.app.state.explorer
    explorer.queue.enter()
    try:
        yield explorer
    finally:
        explorer.queue.leave()


Shared = Annotated[Explorer, Depends(_explorer)]
InspectionId = Annotated[str, Query(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]
GroupName = Annotated[str, Query(pattern="^[a-z]{1,20}$")]
Index = Annotated[int | None, Query(ge=0, le=2**31)]

models = APIRouter(prefix="/api", responses=PROBLEMS)
generation = APIRouter(prefix="/api")
inspections = APIRouter(prefix="/api/looks")
build = APIRouter(prefix="/api", responses=PROBLEMS)
runs = APIRouter(prefix="/api/runs", responses=PROBLEMS)
ROUTERS = (models, generation, inspections, build, runs)


# Models


@models.get("/models", response_model=list[schemas.ModelLine])
async def list_models(explorer: Shared) -> Response:
    """The models that can be used."""
    every = list(explorer.models.models.values())
    return json_response(await explorer.queue.run(lambda: [explorer.describe(model) for model in every]))


@models.get("/models/one", response_model=schemas.ModelLine)
async def show_model(model: schemas.Id, explorer: Shared) -> Response:
    """One model; that of a finished run has the id run-ID."""
    one = explorer.models[model]
    return json_response(await explorer.queue.run(lambda: explorer.describe(one)))


# Generation: translations and continuations, streamed while they are computed


@generation.post("/translate", responses=STREAM, response_class=StreamingResponse)
async def translate(body: schemas.Translate, request: Request, explorer: Shared) -> Response:
    """A translation, as lines of JSON: the beams after every step, then the translations and their inspections."""
    model, queue = explorer.models[body.model], explorer.queue

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        beams: list[Translation] = []
        steps = translating(bundle, body.text, beams=body.beams, penalty=body.penalty)
        async for beams in queue.each(steps, model.lock):
            yield {"beams": [_without_alignment(one) for one in beams]}
        inspected = queue.each((inspect_translation(bundle, one) for one in beams), model.lock)
        kept = [explorer.keep(one) async for one in inspected]
        yield {"translations": [_without_alignment(one) for one in beams], "looks": kept}

    return stream_response(events, queue, request)


@generation.post("/write", responses=STREAM, response_class=StreamingResponse)
async def write(body: schemas.Write, request: Request, explorer: Shared) -> Response:
    """A continuation of a text, as lines of JSON: each token, then the inspection of the whole text."""
    model, queue = explorer.models[body.model], explorer.queue
    off = {int(layer): heads for layer, heads in body.off.items()}

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        ids = await queue.run(lambda: bundle.prompt(body.text))
        if body.max_new:
            steps = generate_tokens(bundle, ids, max_new=body.max_new, choice=_choice(body), seed=body.seed, off=off)
            async for token in queue.each(steps, model.lock):
                ids.append(token["id"])
                yield {"token": token}
        async for item in queue.with_progress(lambda done: inspect_text(bundle, ids, off, done), model.lock):
            yield {"progress": item} if isinstance(item, tuple) else {"look": explorer.keep(item)}

    return stream_response(events, queue, request)


def _choice(body: schemas.Write) -> Choice:
    if not body.temperature:
        return Choice()
    return Choice(sample=True, temperature=body.temperature, top_k=body.top_k, top_p=body.top_p)


def _without_alignment(one: Translation) -> dict[str, Any]:
    """A translation as JSON; its attention is requested by layer and head."""
    return {name: getattr(one, name) for name in ("text", "score", "logprob", "cut", "source", "target")}


# Inspections


@inspections.get("/map", responses=PROBLEMS, response_model=schemas.Tile)
async def attention_map(
    explorer: Shared,
    look: InspectionId,
    group: GroupName,
    layer: Index = None,
    head: Index = None,
    by: Annotated[str, Query(pattern="^(pieces|words)$")] = "pieces",
    row: Index = None,
    rows: Index = None,
    key: Index = None,
    keys: Index = None,
    cells: Annotated[int, Query(ge=1, le=CELLS)] = 256,
) -> Response:
    """Attention weights between words, or between tokens: `rows` rows from `row` on and `keys` keys from `key` on."""
    maps = explorer.inspections[look].group(group)

    def weights() -> dict[str, Any]:
        if by == "words":
            return maps.by_word(layer, head)
        top, left = row or 0, key or 0
        bottom = len(maps.rows) if rows is None else top + rows
        right = len(maps.columns) if keys is None else left + keys
        return maps.tile(layer, head, (top, bottom), (left, right), cells)

    return json_response(await explorer.queue.run(weights))


@inspections.get("/heads", responses=STREAM, response_class=StreamingResponse)
async def head_statistics(look: InspectionId, group: GroupName, request: Request, explorer: Shared) -> Response:
    """The statistics of every head, one line of JSON per layer."""
    maps, queue = explorer.inspections[look].group(group), explorer.queue
    layers = range(len(maps.maps))
    return stream_response(lambda: queue.each(maps.statistics(layer) for layer in layers), queue, request)


@inspections.get("/lens", responses=PROBLEMS, response_model=schemas.LensShape)
async def logit_lens(look: InspectionId, at: Annotated[int, Query(ge=0, le=2**31)], explorer: Shared) -> Response:
    """The likeliest next tokens after a token, by each layer."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.lens(at)))


@inspections.get("/candidates", responses=PROBLEMS, response_model=schemas.CandidatesShape)
async def candidates(
    look: InspectionId,
    first: Annotated[int, Query(ge=1, le=2**31)],
    last: Annotated[int, Query(ge=1, le=2**31)],
    explorer: Shared,
) -> Response:
    """The likeliest tokens in the place of tokens first to last - 1."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.candidates(first, last)))


# Build: small computations with every number shown


@build.post("/build", response_model=schemas.ByHandShape)
async def attention_by_hand(body: schemas.Build, explorer: Shared) -> Response:
    """Self-attention with given matrices: every number of it."""
    return json_response((await explorer.queue.run(lambda: by_hand(**body.model_dump()))).to_dict())


@build.get("/positions", response_model=schemas.PositionsShape)
async def positions(
    explorer: Shared,
    kind: Annotated[str, Query(pattern="^(sinusoid|rotary|alibi|sincos2d)$")] = "sinusoid",
    width: Annotated[int, Query(ge=2, le=256)] = 64,
    length: Annotated[int, Query(ge=2, le=256)] = 64,
    base: Annotated[float, Query(gt=1.0, le=1e6)] = 10_000.0,
) -> Response:
    """Position vectors, and the similarity of any two."""
    if kind == "sincos2d" and length > 16:
        raise InputError(f"an image with {length} patches per side: expected at most 16")
    work = explorer.queue.run(lambda: position_vectors(kind, width=width, length=length, base=base))
    return json_response(await work)


@build.get("/memory", response_model=schemas.MemoryShape)
async def memory(
    explorer: Shared,
    gamma: Annotated[float, Query(gt=0.0, le=1.0)] = 0.9,
    length: Annotated[int, Query(ge=1, le=128)] = 24,
    sharpness: Annotated[float, Query(ge=0.0, le=100.0)] = 6.0,
) -> Response:
    """How much of each input a memory with forgetting holds after each later input."""
    work = explorer.queue.run(lambda: memory_decay(gamma, length=length, sharpness=sharpness))
    return json_response(await work)


# Runs


@runs.get("", response_model=list[schemas.RunLine])
async def list_runs(explorer: Shared) -> Response:
    """The runs in the folder that the server was given."""
    return json_response(await explorer.queue.run(explorer.runs.listed))


@runs.get("/one", response_model=schemas.RunShape)
async def show_run(
    run: schemas.Id, explorer: Shared, since: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> Response:  # fmt: skip
    """The metrics of a run, from record `since` on."""
    return json_response(await explorer.queue.run(lambda: explorer.runs.records(run, since)))
