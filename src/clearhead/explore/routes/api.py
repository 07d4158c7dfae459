"""The routes of the explorer's API, in groups: models, generation, images, inspections, build, runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from ...errors import InputError
from ...tasks import Caption, Translation
from ...tasks.caption import captioning, given_caption
from ...tasks.translate import translating
from .. import schemas
from ..attention_groups import CELLS, MapTile
from ..build import ALIBI_HEADS, by_hand, memory_decay, position_vectors
from ..candidates import MOST, TOP, choice_of
from ..captions import CaptionInspection, caption_dict, checked_image, inspect_caption, own_caption
from ..image_inspection import MOST_CHANNELS, ImageInspection, inspect_image
from ..images import ImageStore
from ..inspections import Inspection, inspect_text, inspect_translation
from ..queue import Queue
from ..reading import neighbours, read_text, tokens_to_read
from ..responses import (
    BINARY,
    PROBLEMS,
    STREAM,
    error_message,
    float32_response,
    json_response,
    stream_response,
)
from ..runs import Runs
from ..store import InspectionStore, ModelStore, StoredModel
from ..translations import aligned, sentences_of, translation_dict
from ..writing import generate_tokens, prompt_and_written, prompt_text, what_fits


@dataclass(frozen=True, eq=False)
class Explorer:
    """What the routes share."""

    models: ModelStore
    inspections: InspectionStore
    images: ImageStore
    queue: Queue
    runs: Runs
    device: str

    def keep(self, inspection: Inspection, model: StoredModel) -> dict[str, Any]:
        """Keep an inspection of a model; returns its id and what can be requested about it."""
        inspection.lock = model.lock
        return {"id": self.inspections.keep(inspection), **inspection.to_dict()}

    def describe(self, model: StoredModel) -> dict[str, Any]:
        """What the page shows of a model, or why it cannot be loaded."""
        try:
            return model.to_dict(self.device)
        except (ValueError, OSError, RuntimeError) as problem:
            message = error_message(problem) or "it cannot be loaded"
            name, trained = model.name or model.id, model.training is not None
            return {
                "id": model.id,
                "name": name,
                "about": model.about,
                "trained": trained,
                "kinds": [],
                "error": message,
            }


async def _explorer(request: Request) -> AsyncIterator[Explorer]:
    """The explorer, with a place in its queue for as long as the request lasts."""
    explorer: Explorer = request.app.state.explorer
    explorer.queue.enter()
    try:
        yield explorer
    finally:
        explorer.queue.leave()


UPLOAD_SECONDS = 30  # for an image to arrive
Shared = Annotated[Explorer, Depends(_explorer)]
InspectionId = Annotated[str, Query(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]
GroupName = Annotated[str, Query(pattern="^[a-z]{1,20}[0-9]{0,3}$")]
Index = Annotated[int | None, Query(ge=0, le=2**31)]
At = Annotated[int, Query(ge=0, le=2**31)]

models = APIRouter(prefix="/api", responses=PROBLEMS)
generation = APIRouter(prefix="/api")
images = APIRouter(prefix="/api/images", responses=PROBLEMS)
inspections = APIRouter(prefix="/api/looks")
build = APIRouter(prefix="/api", responses=PROBLEMS)
runs = APIRouter(prefix="/api/runs", responses=PROBLEMS)
ROUTERS = (models, generation, images, inspections, build, runs)


# Models


@models.get("/models", response_model=list[schemas.ModelLine])
async def list_models(explorer: Shared) -> Response:
    """The models that can be used."""
    every = list(explorer.models.models.values())
    return json_response(
        await explorer.queue.run(lambda: [explorer.describe(model) for model in every])
    )


@models.get("/models/trained", response_model=list[schemas.TrainedLine])
async def list_trained_models(explorer: Shared) -> Response:
    """The models of finished runs that a view can use, the most recent first; they are not loaded for it."""
    return json_response(await explorer.queue.run(explorer.models.trained))


@models.get("/models/one", response_model=schemas.ModelLine)
async def show_model(model: schemas.Id, explorer: Shared) -> Response:
    """One model; that of a finished run has the id run-ID."""
    one = explorer.models[model]
    return json_response(await explorer.queue.run(lambda: explorer.describe(one)))


@models.get("/share", response_model=schemas.Share)
async def share(request: Request, explorer: Shared) -> Response:
    """What a link for other people needs before its fragment: the token, which whoever asks has sent already."""
    token: str | None = request.app.state.token
    return json_response({"query": f"?token={token}" if token else ""})


# Generation: translations, continuations and readings, streamed while they are computed


@generation.post("/translate", responses=STREAM, response_class=StreamingResponse)
async def translate(body: schemas.Translate, request: Request, explorer: Shared) -> Response:
    """Translations of the sentences of a text, one after another, as lines of JSON.

    The first line has the sentences. For each there are lines with its number and the beams after every step, then one
    with the translations and their inspections.
    """
    model, queue = explorer.models[body.model], explorer.queue
    texts = await queue.run(lambda: sentences_of(body.text))

    async def events() -> AsyncIterator[Any]:
        yield {"sentences": texts}
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        for i, text in enumerate(texts):
            beams: list[Translation] = []
            steps = translating(bundle, text, beams=body.beams, penalty=body.penalty)
            async for beams in queue.each(steps, model.lock):
                yield {"sentence": i, "beams": [translation_dict(one, text) for one in beams]}
            inspected = queue.each((inspect_translation(bundle, one) for one in beams), model.lock)
            kept = [explorer.keep(one, model) async for one in inspected]
            yield {
                "sentence": i,
                "translations": [translation_dict(one, text) for one in beams],
                "looks": kept,
            }

    return stream_response(events, queue, request)


@generation.post("/align", responses=PROBLEMS, response_model=schemas.AlignShape)
async def align(body: schemas.Align, explorer: Shared) -> Response:
    """The score and the inspection of a given translation of a sentence."""
    model, target = explorer.models[body.model], body.ids if body.target is None else body.target
    if target is None or (body.target is not None and body.ids is not None):
        raise InputError("expected the translation as a text (target) or as ids, and not both")

    def both() -> tuple[Translation, Inspection]:
        bundle = model.bundle(explorer.device)
        one = aligned(bundle, body.text, target)
        return one, inspect_translation(bundle, one)

    one, inspection = await explorer.queue.run(both, model.lock)
    return json_response(
        {"translation": translation_dict(one, body.text), "look": explorer.keep(inspection, model)}
    )


@generation.post("/write", responses=STREAM, response_class=StreamingResponse)
async def write(body: schemas.Write, request: Request, explorer: Shared) -> Response:
    """A continuation of a text, as lines of JSON: each token, then the inspection of the whole text.

    With `chat` it is the answer to a message; the first line then has the prompt as the model's template writes it. A
    line {"ended"} names the token by which the model has ended the text. Of a text longer than the model's context a
    part is read; a line {"cut"} says how much.
    """
    model, queue = explorer.models[body.model], explorer.queue
    off, choice = heads_off(body.off), choice_of(body.temperature, body.top_k, body.top_p)

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        ids = await queue.run(
            lambda: prompt_and_written(bundle, body.text, body.written, body.chat)
        )
        prompt = len(ids) - len(body.written)
        if body.chat:
            yield {"prompt": await queue.run(lambda: prompt_text(bundle, ids[:prompt]))}
        if body.max_new:
            cut = what_fits(bundle, ids).cut
            if cut is not None:
                yield {"cut": cut}
            steps = generate_tokens(
                bundle,
                ids,
                max_new=body.max_new,
                choice=choice,
                seed=body.seed,
                drawn=len(body.written),
                off=off,
            )
            async for token in queue.each(steps, model.lock):
                if "ended" in token:
                    yield token
                else:
                    ids.append(token["id"])
                    yield {"token": token}
        part = what_fits(bundle, ids, len(ids) - prompt)
        if part.cut is not None:
            yield {"cut": part.cut}
        async for item in queue.with_progress(
            lambda done: inspect_text(bundle, part.ids, off, done), model.lock
        ):
            yield (
                {"progress": item}
                if isinstance(item, tuple)
                else {"look": explorer.keep(item, model)}
            )

    return stream_response(events, queue, request)


@generation.post("/read", responses=STREAM, response_class=StreamingResponse)
async def read(body: schemas.Read, request: Request, explorer: Shared) -> Response:
    """What an encoder computes of a text, as lines of JSON: its inspection, predictions of masked tokens, classes."""
    model, queue, off = explorer.models[body.model], explorer.queue, heads_off(body.off)

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        reading = await queue.run(lambda: tokens_to_read(bundle, body.text))
        if len(reading.ids) < reading.of:
            yield {
                "cut": {
                    "read": len(reading.ids),
                    "of": reading.of,
                    "first": 0,
                    "most": len(reading.ids),
                }
            }
        async for item in queue.with_progress(
            lambda done: read_text(bundle, reading, off, done), model.lock
        ):
            if isinstance(item[0], Inspection):
                yield {"look": explorer.keep(item[0], model), **item[1]}
            else:
                yield {"progress": item}

    return stream_response(events, queue, request)


@generation.post("/neighbours", responses=PROBLEMS, response_model=schemas.NeighboursShape)
async def compare_texts(body: schemas.Neighbours, explorer: Shared) -> Response:
    """The similarities of texts by their embeddings."""
    model = explorer.models[body.model]
    work = explorer.queue.run(
        lambda: neighbours(model.bundle(explorer.device), body.texts), model.lock
    )
    return json_response(await work)


@generation.post("/classify", responses=STREAM, response_class=StreamingResponse)
async def classify(body: schemas.Classify, request: Request, explorer: Shared) -> Response:
    """What a vision model computes of an image, as lines of JSON: its inspection, and its classes if it has some."""
    model, image, queue = explorer.models[body.model], explorer.images[body.image], explorer.queue

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        async for item in queue.with_progress(
            lambda done: inspect_image(bundle, image.file, done), model.lock
        ):
            if isinstance(item[0], ImageInspection):
                yield {"look": explorer.keep(item[0], model), "classes": item[1]}
            else:
                yield {"progress": item}

    return stream_response(events, queue, request)


@generation.post("/caption", responses=STREAM, response_class=StreamingResponse)
async def write_caption(
    body: schemas.CaptionRequest, request: Request, explorer: Shared
) -> Response:
    """Captions of an image, as lines of JSON: the beams after every step, then the captions and their inspections.

    A caption of the user's own comes first, marked as given.
    """
    model, file, queue = (
        explorer.models[body.model],
        explorer.images[body.image].file,
        explorer.queue,
    )

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        seen = await queue.run(lambda: checked_image(bundle, file))
        own: list[Caption] = []
        own_lines: list[dict[str, Any]] = []
        if body.text is not None:
            text = body.text
            one, unknown = await queue.run(lambda: own_caption(bundle, file, text), model.lock)
            own, own_lines = [one], [caption_dict(one, given=True, unknown=unknown)]
            yield {"captions": own_lines}
        beams: list[Caption] = []
        async for beams in queue.each(captioning(bundle, file, beams=body.beams), model.lock):
            yield {"captions": [*own_lines, *map(caption_dict, beams)]}
        inspected = queue.each((inspect_caption(one, seen) for one in [*own, *beams]), model.lock)
        kept = [explorer.keep(one, model) async for one in inspected]
        yield {"captions": [*own_lines, *map(caption_dict, beams)], "looks": kept}

    return stream_response(events, queue, request)


@generation.post("/given-caption", responses=PROBLEMS, response_model=schemas.GivenShape)
async def inspect_given_caption(body: schemas.Given, explorer: Shared) -> Response:
    """The score and the inspection of an unfinished caption of an image."""
    model, file = explorer.models[body.model], explorer.images[body.image].file

    def both() -> tuple[Caption, Inspection]:
        bundle = model.bundle(explorer.device)
        seen = checked_image(bundle, file)
        one = given_caption(bundle, file, body.ids, finished=False)
        return one, inspect_caption(one, seen)

    one, inspection = await explorer.queue.run(both, model.lock)
    return json_response({"caption": caption_dict(one), "look": explorer.keep(inspection, model)})


def heads_off(off: dict[str, list[int]]) -> dict[int, list[int]]:
    """Heads to silence, by layer."""
    return {int(layer): heads for layer, heads in off.items()}


# Images


async def _image_file(request: Request) -> bytes:
    """The body of a request, read before it gets a place in the queue: a slow client holds up nobody else."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("image/"):
        raise InputError(
            f"expected an image file, such as PNG or JPEG, and not {kind[:80] or 'one of no kind'}"
        )
    try:
        with anyio.fail_after(UPLOAD_SECONDS):
            return await request.body()
    except TimeoutError:
        raise HTTPException(
            408, f"the image did not arrive within {UPLOAD_SECONDS} seconds: send it again"
        ) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed before the image had arrived") from None


@images.post(
    "",
    response_model=schemas.ImageShape,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "image/png": {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def upload_image(file: Annotated[bytes, Depends(_image_file)], explorer: Shared) -> Response:
    """Keep an image file, sent as it is; returns its id and the size of the upright image."""
    return json_response(await explorer.queue.run(lambda: explorer.images.keep(file)))


@images.get(
    "/one",
    responses={200: {"content": {"image/png": {}, "image/webp": {}}}},
    response_class=Response,
)
async def show_image(id: InspectionId, explorer: Shared) -> Response:
    """An uploaded image by its id, or an example by its name; upright."""
    image = explorer.images[id]
    return Response(image.view, media_type=image.media_type)


# Inspections


@inspections.get("/map", responses=BINARY, response_model=schemas.Tile)
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
    format: Annotated[str, Query(pattern="^(json|float32)$")] = "json",
) -> Response:
    """Attention weights between words, or between tokens: `rows` rows from `row` on and `keys` keys from `key` on.

    As float32 the weights are not rounded: little-endian, row by row, with their sizes in the header x-shape and the
    largest weight in x-most; a missing value is NaN.
    """
    maps = explorer.inspections[look].group(group)

    def tile() -> MapTile:
        if by == "words":
            return maps.by_word(layer, head)
        top, left = row or 0, key or 0
        bottom = len(maps.rows) if rows is None else top + rows
        right = len(maps.columns) if keys is None else left + keys
        return maps.tile(layer, head, (top, bottom), (left, right), cells)

    found = await explorer.queue.run(tile)
    if format == "float32":
        return float32_response(found.weights, most=found.most)
    return json_response(found.to_dict())


@inspections.get("/words", responses=PROBLEMS, response_model=schemas.WordsShape)
async def words(look: InspectionId, group: GroupName, explorer: Shared) -> Response:
    """The words that name the rows and columns of maps between words."""
    maps = explorer.inspections[look].group(group)
    named = maps.by_words
    return json_response(
        {
            "rows": maps.rows.word_names if named else None,
            "columns": maps.columns.word_names if named else None,
        }
    )


@inspections.get("/row", responses=BINARY, response_class=Response)
async def attention_row(
    explorer: Shared,
    look: InspectionId,
    group: GroupName,
    at: At,
    layer: Index = None,
    head: Index = None,
) -> Response:
    """The weights of query `at` on all keys, as float32."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(lambda: maps.row(layer, head, at)))


@inspections.get("/query", responses=BINARY, response_class=Response)
async def query_everywhere(
    explorer: Shared, look: InspectionId, group: GroupName, at: At
) -> Response:
    """The weights of query `at` on all keys in every layer and head, as float32 (layers, heads, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(lambda: maps.query(at)))


@inspections.get("/wordmaps", responses=BINARY, response_class=Response)
async def maps_of_words(explorer: Shared, look: InspectionId, group: GroupName) -> Response:
    """The weights of every query word on all keys in every layer and head, as float32 (layers, heads, words, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(maps.words))


@inspections.get("/evidence", responses=BINARY, response_class=Response)
async def evidence_for_words(explorer: Shared, look: InspectionId) -> Response:
    """How likely each word of a caption is where one place is seen alone, as float32 (words, rows, columns)."""
    inspection = explorer.inspections[look]
    if not isinstance(inspection, CaptionInspection):
        raise InputError("this is not the inspection of a caption: expected one")
    return float32_response(await explorer.queue.run(inspection.evidence, inspection.lock))


@inspections.get(
    "/seen", responses={200: {"content": {"image/png": {}}}, **PROBLEMS}, response_class=Response
)
async def seen_image(explorer: Shared, look: InspectionId) -> Response:
    """The image of an inspection as the model read it: resized and cropped."""
    inspection = image_inspection(explorer, look)
    return Response(await explorer.queue.run(inspection.png), media_type="image/png")


@inspections.get("/features", responses=BINARY, response_class=Response)
async def feature_maps(
    explorer: Shared,
    look: InspectionId,
    stage: Annotated[int, Query(ge=0, le=1000)],
    channels: Annotated[str, Query(pattern=rf"^\d{{1,6}}(,\d{{1,6}}){{0,{MOST_CHANNELS - 1}}}$")],
) -> Response:
    """The feature maps of some channels of a stage, separated by commas, as float32 (channels, rows, columns)."""
    inspection, wanted = (
        image_inspection(explorer, look),
        [int(channel) for channel in channels.split(",")],
    )
    return float32_response(
        await explorer.queue.run(lambda: inspection.feature_maps(stage, wanted))
    )


def image_inspection(explorer: Explorer, look: str) -> ImageInspection:
    """The inspection of an image; raises for that of a text."""
    inspection = explorer.inspections[look]
    if not isinstance(inspection, ImageInspection):
        raise InputError("this is the inspection of a text: expected that of an image")
    return inspection


@inspections.get("/thumbnails", responses=BINARY, response_class=Response)
async def thumbnails(
    explorer: Shared,
    look: InspectionId,
    group: GroupName,
    cells: Annotated[int, Query(ge=1, le=64)] = 24,
) -> Response:
    """The mean weight of each cell of every map, at most `cells` per side, as float32 (layers, heads, rows, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(lambda: maps.thumbnails(cells)))


@inspections.get("/heads", responses=STREAM, response_class=StreamingResponse)
async def head_statistics(
    look: InspectionId, group: GroupName, request: Request, explorer: Shared
) -> Response:
    """The statistics of every head, one line of JSON per layer."""
    maps, queue = explorer.inspections[look].group(group), explorer.queue
    layers = range(len(maps.maps))
    return stream_response(
        lambda: queue.each(maps.statistics(layer) for layer in layers), queue, request
    )


@inspections.get("/effects", responses=STREAM, response_class=StreamingResponse)
async def head_effects(
    look: InspectionId, group: GroupName, request: Request, explorer: Shared
) -> Response:
    """The effect of silencing each head by itself, one line of JSON per layer."""
    inspection, queue = explorer.inspections[look], explorer.queue
    steps = inspection.effects(group)

    async def events() -> AsyncIterator[Any]:
        async for item in queue.each(steps, inspection.lock):
            if item is not None:
                yield item

    return stream_response(events, queue, request)


@inspections.post("/without", responses=PROBLEMS, response_model=schemas.WithoutShape)
async def without_heads(body: schemas.Without, explorer: Shared) -> Response:
    """The log-probability of each token of a language model's text, with all heads on and with some silenced."""
    inspection, off = explorer.inspections[body.look], heads_off(body.off)
    return json_response(await explorer.queue.run(lambda: inspection.without(off), inspection.lock))


@inspections.get("/lens", responses=PROBLEMS, response_model=schemas.LensShape)
async def logit_lens(look: InspectionId, at: At, explorer: Shared) -> Response:
    """The likeliest next tokens after a token, by each layer."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.lens(at)))


@inspections.get("/candidates", responses=PROBLEMS, response_model=schemas.CandidatesShape)
async def candidates(
    look: InspectionId,
    first: Annotated[int, Query(ge=1, le=2**31)],
    last: Annotated[int, Query(ge=1, le=2**31)],
    explorer: Shared,
    temperature: Annotated[schemas.Temperature, Query()] = 1.0,
    top_k: Annotated[schemas.TopK | None, Query()] = None,
    top_p: Annotated[schemas.TopP | None, Query()] = None,
    top: Annotated[int, Query(ge=1, le=MOST)] = TOP,
) -> Response:
    """The likeliest tokens in the place of tokens first to last - 1, by the model and after temperature and top-k/p."""
    inspection, choice = explorer.inspections[look], choice_of(temperature, top_k, top_p)
    return json_response(
        await explorer.queue.run(lambda: inspection.candidates(first, last, choice, top))
    )


@inspections.get("/similar", responses=PROBLEMS, response_model=schemas.SimilarShape)
async def similar_tokens(look: InspectionId, at: At, explorer: Shared) -> Response:
    """The cosine similarity of a token's final vector with that of every token of the text."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.similar(at)))


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
    head: Annotated[int, Query(ge=0, lt=ALIBI_HEADS)] = 0,
) -> Response:
    """Position vectors, and the similarity of any two."""
    if kind == "sincos2d" and length > 16:
        raise InputError(f"an image with {length} patches per side: expected at most 16")
    work = explorer.queue.run(
        lambda: position_vectors(kind, width=width, length=length, base=base, head=head)
    )
    return json_response(await work)


@build.get("/memory", response_model=schemas.MemoryShape)
async def memory(
    explorer: Shared,
    gamma: Annotated[float, Query(gt=0.0, le=1.0)] = 0.9,
    length: Annotated[int, Query(ge=1, le=128)] = 24,
    sharpness: Annotated[float, Query(ge=0.0, le=100.0)] = 6.0,
) -> Response:
    """The weight of each input in a recurrent memory with decay, after each later input."""
    work = explorer.queue.run(lambda: memory_decay(gamma, length=length, sharpness=sharpness))
    return json_response(await work)


# Runs


@runs.get("", response_model=list[schemas.RunLine])
async def list_runs(explorer: Shared) -> Response:
    """The runs in the folder that the server was given; without one, the example that ships."""
    return json_response(await explorer.queue.run(explorer.runs.listed))


@runs.get("/one", response_model=schemas.RunShape)
async def show_run(
    run: schemas.Id, explorer: Shared, since: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> Response:
    """The metrics of a run, from record `since` on."""
    return json_response(await explorer.queue.run(lambda: explorer.runs.records(run, since)))
