"""What explains an answer or a model: what can be requested about an inspection; saliency, patching, comparisons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from .. import answers, requests
from ..candidates import MOST, TOP, choice_of
from ..comparison import Study, similarity, study
from ..explorer import Done, Shared
from ..inspections.attention_groups import CELLS, MapTile
from ..inspections.image import explain_image
from ..queue import Progress
from ..requests import At, GroupName, Index, InspectionId
from ..responses import (
    BINARY,
    PROBLEMS,
    STREAM,
    float32_response,
    json_response,
    stream_response,
)
from ..store import StoredModel
from ..writing import patch_prompts

router = APIRouter(prefix="/api", responses=PROBLEMS)


# Attention maps


@router.get("/looks/map", responses=BINARY, response_model=answers.Tile)
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

    def make_tile() -> MapTile:
        # Queries and keys of words are few: a range of them cannot be requested.
        if by == "words":
            return maps.by_word(layer, head)
        # A missing range is the whole side.
        top, left = row or 0, key or 0
        bottom = len(maps.rows) if rows is None else top + rows
        right = len(maps.columns) if keys is None else left + keys
        return maps.tile(layer, head, (top, bottom), (left, right), cells)

    tile = await explorer.queue.run(make_tile)
    if format == "float32":
        return float32_response(tile.weights, most=tile.most)
    return json_response(tile.to_dict())


@router.get("/looks/words", response_model=answers.WordsShape)
async def words(look: InspectionId, group: GroupName, explorer: Shared) -> Response:
    """The words that name the rows and columns of maps between words."""
    maps = explorer.inspections[look].group(group)
    if not maps.by_words:
        return json_response({"rows": None, "columns": None})
    return json_response({"rows": maps.rows.word_names, "columns": maps.columns.word_names})


@router.get("/looks/row", responses=BINARY, response_class=Response)
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


@router.get("/looks/query", responses=BINARY, response_class=Response)
async def query_everywhere(
    explorer: Shared, look: InspectionId, group: GroupName, at: At
) -> Response:
    """The weights of query `at` on all keys in every layer and head, as float32 (layers, heads, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(lambda: maps.query(at)))


@router.get("/looks/wordmaps", responses=BINARY, response_class=Response)
async def maps_of_words(explorer: Shared, look: InspectionId, group: GroupName) -> Response:
    """The weights of every query word on all keys in every layer and head, as float32 (layers, heads, words, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(maps.words))


@router.get("/looks/thumbnails", responses=BINARY, response_class=Response)
async def thumbnails(
    explorer: Shared,
    look: InspectionId,
    group: GroupName,
    cells: Annotated[int, Query(ge=1, le=64)] = 24,
) -> Response:
    """The mean weight of each cell of every map, at most `cells` per side, as float32 (layers, heads, rows, keys)."""
    maps = explorer.inspections[look].group(group)
    return float32_response(await explorer.queue.run(lambda: maps.thumbnails(cells)))


# Heads


@router.get("/looks/heads", responses=STREAM, response_class=StreamingResponse)
async def head_statistics(
    look: InspectionId, group: GroupName, request: Request, explorer: Shared
) -> Response:
    """The statistics of every head, one line of JSON per layer."""
    maps, queue = explorer.inspections[look].group(group), explorer.queue
    layers = range(len(maps.maps))
    # A generator, so that each layer is computed in a thread, when its turn comes.
    return stream_response(
        lambda: queue.each(maps.statistics(layer) for layer in layers), queue, request
    )


@router.get("/looks/effects", responses=STREAM, response_class=StreamingResponse)
async def head_effects(
    look: InspectionId, group: GroupName, request: Request, explorer: Shared
) -> Response:
    """The effect of silencing each head by itself, one line of JSON per layer."""
    inspection, queue = explorer.inspections[look], explorer.queue
    # Raises here for a text that is too long: an error status instead of a line in the stream.
    steps = inspection.effects(group)

    async def events() -> AsyncIterator[Any]:
        async for line in queue.each(steps, inspection.lock):
            # None: a part of a layer, after which another request may use the model
            if line is not None:
                yield line

    return stream_response(events, queue, request)


@router.post("/looks/without", response_model=answers.WithoutShape)
async def without_heads(body: requests.Without, explorer: Shared) -> Response:
    """The log-probability of each token of a language model's text, with all heads on and with some silenced."""
    inspection, off = explorer.inspections[body.look], requests.heads_off(body.off)
    return json_response(await explorer.queue.run(lambda: inspection.without(off), inspection.lock))


# Tokens


@router.get("/looks/lens", response_model=answers.LensShape)
async def logit_lens(look: InspectionId, at: At, explorer: Shared) -> Response:
    """The likeliest next tokens after a token, by each layer."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.lens(at)))


@router.get("/looks/candidates", response_model=answers.CandidatesShape)
async def candidates(
    look: InspectionId,
    first: Annotated[int, Query(ge=1, le=2**31)],
    last: Annotated[int, Query(ge=1, le=2**31)],
    explorer: Shared,
    temperature: Annotated[requests.Temperature, Query()] = 1.0,
    top_k: Annotated[requests.TopK | None, Query()] = None,
    top_p: Annotated[requests.TopP | None, Query()] = None,
    top: Annotated[int, Query(ge=1, le=MOST)] = TOP,
) -> Response:
    """The likeliest tokens in the place of tokens first to last - 1, by the model and after temperature and top-k/p."""
    inspection, choice = explorer.inspections[look], choice_of(temperature, top_k, top_p)
    result = await explorer.queue.run(lambda: inspection.candidates(first, last, choice, top))
    return json_response(result)


@router.get("/looks/similar", response_model=answers.SimilarShape)
async def similar_tokens(look: InspectionId, at: At, explorer: Shared) -> Response:
    """The cosine similarity of a token's final vector with that of every token of the text."""
    inspection = explorer.inspections[look]
    return json_response(await explorer.queue.run(lambda: inspection.similar(at)))


# Saliency and patching


@router.post("/saliency", responses=STREAM, response_class=StreamingResponse)
async def image_saliency(
    body: requests.SaliencyRequest, request: Request, explorer: Shared
) -> Response:
    """How much each pixel of an image counts for the score of a class, as lines of JSON: progress, then the values."""
    model, image = explorer.models[body.model], explorer.images[body.image]

    def events() -> AsyncIterator[Any]:
        return explorer.measure(
            model,
            lambda bundle, done: explain_image(bundle, image.file, body.method, body.target, done),
            lambda values: {"saliency": values},
        )

    return stream_response(events, explorer.queue, request)


@router.post("/patching", responses=STREAM, response_class=StreamingResponse)
async def activation_patching(body: requests.Patch, request: Request, explorer: Shared) -> Response:
    """Which layer and token carry the difference between two prompts, as lines of JSON: progress, then the effects."""
    model = explorer.models[body.model]

    def events() -> AsyncIterator[Any]:
        return explorer.measure(
            model,
            lambda bundle, done: patch_prompts(
                bundle, body.clean, body.corrupted, body.answers, body.what, done
            ),
            lambda effects: {"patching": effects},
        )

    return stream_response(events, explorer.queue, request)


# Comparisons of two models


@router.post("/compare", responses=STREAM, response_class=StreamingResponse)
async def compare_models(body: requests.Compare, request: Request, explorer: Shared) -> Response:
    """Two models of images on the photographs that ship, as lines of JSON: each model's study, then the similarity.

    What is measured of a model is kept with it.
    """
    models = [explorer.models[body.model], explorer.models[body.other]]
    queue = explorer.queue

    async def events() -> AsyncIterator[Any]:
        studies = []
        # One model after the other: each holds only its own lock.
        for model in models:
            bundle = await explorer.bundle(model)

            # Defaults bind the model of this turn of the loop, which the thread would otherwise
            # look up later.
            def measure(done: Done, model: StoredModel = model, bundle: Any = bundle) -> Study:
                # computed once: two requests for it wait for one another by the model's lock
                if model.study is None:
                    model.study = study(bundle, done)
                return model.study

            async for item in queue.with_progress(measure, model.lock):
                if isinstance(item, Progress):
                    # If several requests measure one model, only the first one has progress.
                    yield {"model": model.id, "progress": item}
                else:
                    studies.append(item)
                    yield {"model": model.id, "study": item.to_dict()}
        yield {"similarity": await queue.run(lambda: similarity(*studies))}

    return stream_response(events, queue, request)
