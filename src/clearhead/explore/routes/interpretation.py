"""The routes of measures that explain an answer or a model: saliency, patching, and the comparison of two models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from .. import schemas
from ..comparison import Study, similarity, study
from ..image_inspection import explain_image
from ..responses import PROBLEMS, STREAM, json_response, stream_response
from ..store import StoredModel
from ..writing import patch_prompts, prompt_tokens
from .api import Explorer, Shared

interpretation = APIRouter(prefix="/api")


@interpretation.post("/saliency", responses=STREAM, response_class=StreamingResponse)
async def image_saliency(
    body: schemas.SaliencyRequest, request: Request, explorer: Shared
) -> Response:
    """How much each pixel of an image counts for the score of a class, as lines of JSON: progress, then the values."""
    model, image, queue = explorer.models[body.model], explorer.images[body.image], explorer.queue

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        work = queue.with_progress(
            lambda done: explain_image(bundle, image.file, body.method, body.target, done),
            model.lock,
        )
        async for item in work:
            yield {"progress": item} if isinstance(item, tuple) else {"saliency": item}

    return stream_response(events, queue, request)


@interpretation.post("/compare", responses=STREAM, response_class=StreamingResponse)
async def compare_models(body: schemas.Compare, request: Request, explorer: Shared) -> Response:
    """Two models of images on the photographs that ship, as lines of JSON: each model's study, then the similarity.

    What is measured of a model is kept with it.
    """
    both = [explorer.models[body.model], explorer.models[body.other]]

    async def events() -> AsyncIterator[Any]:
        found = []
        for model in both:
            async for item in studied(model, explorer):
                if isinstance(item, Study):
                    found.append(item)
                    yield {"model": model.id, "study": item.to_dict()}
                else:
                    yield {"model": model.id, "progress": item}
        yield {"similarity": await explorer.queue.run(lambda: similarity(*found))}

    return stream_response(events, explorer.queue, request)


async def studied(model: StoredModel, explorer: Explorer) -> AsyncIterator[Study | tuple[int, int]]:
    """Progress, then what was measured of a model: computed once, as two that ask for it wait for one another."""
    queue = explorer.queue
    bundle = await queue.run(lambda: model.bundle(explorer.device))

    def work(done: Any) -> Study:
        if model.study is None:
            model.study = study(bundle, done)
        return model.study

    async for item in queue.with_progress(work, model.lock):
        yield item


@interpretation.post("/tokens", responses=PROBLEMS, response_model=schemas.TokensShape)
async def tokens_of_prompts(body: schemas.TokensRequest, explorer: Shared) -> Response:
    """The tokens of prompts, as a language model reads them."""
    model = explorer.models[body.model]
    found = await explorer.queue.run(
        lambda: prompt_tokens(model.bundle(explorer.device), body.texts)
    )
    return json_response({"tokens": found})


@interpretation.post("/patching", responses=STREAM, response_class=StreamingResponse)
async def activation_patching(body: schemas.Patch, request: Request, explorer: Shared) -> Response:
    """Which layer and token carry the difference between two prompts, as lines of JSON: progress, then the effects."""
    model, queue = explorer.models[body.model], explorer.queue

    async def events() -> AsyncIterator[Any]:
        bundle = await queue.run(lambda: model.bundle(explorer.device))
        work = queue.with_progress(
            lambda done: patch_prompts(
                bundle, body.clean, body.corrupted, body.answers, body.what, done
            ),
            model.lock,
        )
        async for item in work:
            yield {"progress": item} if isinstance(item, tuple) else {"patching": item}

    return stream_response(events, queue, request)
