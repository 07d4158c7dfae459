"""Images: those that are uploaded and the examples, their classes, feature maps and captions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from ...errors import InputError
from ...tasks import Caption
from ...tasks.caption import captioning, given_caption
from .. import answers, requests
from ..explorer import Explorer, Shared
from ..inspections.caption import (
    CaptionInspection,
    caption_dict,
    checked_image,
    inspect_caption,
    own_caption,
)
from ..inspections.image import MOST_CHANNELS, ImageInspection, inspect_image
from ..inspections.text import Inspection
from ..requests import InspectionId
from ..responses import (
    BINARY,
    PROBLEMS,
    STREAM,
    float32_response,
    json_response,
    stream_response,
)

UPLOAD_SECONDS = 30  # for an image to arrive

router = APIRouter(prefix="/api", responses=PROBLEMS)


# Uploads


async def _image_file(request: Request) -> bytes:
    """The body of a request, read before it gets a place in the queue: a slow client holds up nobody else."""
    content_type = request.headers.get("content-type", "")
    # The body is the file itself, not the multipart/form-data of a form.
    if not content_type.lower().startswith("image/"):
        raise InputError(
            f"expected an image file, such as PNG or JPEG, and not {content_type[:80] or 'one of no kind'}"
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


IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/images", response_model=answers.ImageShape, openapi_extra=IMAGE_BODY)
async def upload_image(file: Annotated[bytes, Depends(_image_file)], explorer: Shared) -> Response:
    """Keep an image file, sent as it is; returns its id and the size of the upright image."""
    return json_response(await explorer.queue.run(lambda: explorer.images.keep(file)))


@router.get(
    "/images/one",
    responses={200: {"content": {"image/png": {}, "image/webp": {}}}},
    response_class=Response,
)
async def show_image(id: InspectionId, explorer: Shared) -> Response:
    """An uploaded image by its id, or an example by its name; upright."""
    image = explorer.images[id]
    return Response(image.view, media_type=image.media_type)


# Classes and feature maps


@router.post("/classify", responses=STREAM, response_class=StreamingResponse)
async def classify(body: requests.Classify, request: Request, explorer: Shared) -> Response:
    """What a vision model computes of an image, as lines of JSON: its inspection, and its classes if it has some."""
    model, image = explorer.models[body.model], explorer.images[body.image]

    def events() -> AsyncIterator[Any]:
        return explorer.measure(
            model,
            lambda bundle, done: inspect_image(bundle, image.file, done),
            lambda result: {"look": explorer.keep(result[0], model), "classes": result[1]},
        )

    return stream_response(events, explorer.queue, request)


@router.get("/looks/seen", responses={200: {"content": {"image/png": {}}}}, response_class=Response)
async def seen_image(explorer: Shared, look: InspectionId) -> Response:
    """The image of an inspection as the model read it: resized and cropped."""
    inspection = image_inspection(explorer, look)
    return Response(await explorer.queue.run(inspection.png), media_type="image/png")


@router.get("/looks/features", responses=BINARY, response_class=Response)
async def feature_maps(
    explorer: Shared,
    look: InspectionId,
    stage: Annotated[int, Query(ge=0, le=1000)],
    channels: Annotated[str, Query(pattern=rf"^\d{{1,6}}(,\d{{1,6}}){{0,{MOST_CHANNELS - 1}}}$")],
) -> Response:
    """The feature maps of some channels of a stage, separated by commas, as float32 (channels, rows, columns)."""
    inspection = image_inspection(explorer, look)
    numbers = [int(channel) for channel in channels.split(",")]
    maps = await explorer.queue.run(lambda: inspection.feature_maps(stage, numbers))
    return float32_response(maps)


def image_inspection(explorer: Explorer, look: str) -> ImageInspection:
    """The inspection of an image; raises for that of a text."""
    inspection = explorer.inspections[look]
    if not isinstance(inspection, ImageInspection):
        raise InputError("this is the inspection of a text: expected that of an image")
    return inspection


# Captions


@router.post("/caption", responses=STREAM, response_class=StreamingResponse)
async def write_caption(
    body: requests.CaptionRequest, request: Request, explorer: Shared
) -> Response:
    """Captions of an image, as lines of JSON: the beams after every step, then the captions and their inspections.

    A caption of the user's own comes first, marked as given.
    """
    model, queue = explorer.models[body.model], explorer.queue
    file = explorer.images[body.image].file

    async def events() -> AsyncIterator[Any]:
        bundle = await explorer.bundle(model)
        seen = await queue.run(lambda: checked_image(bundle, file))
        own: list[Caption] = []
        own_lines: list[answers.CaptionShape] = []
        if body.text is not None:
            text = body.text
            # The user's caption first: it is scored quickly, while the search takes a step per token.
            caption, unknown = await queue.run(lambda: own_caption(bundle, file, text), model.lock)
            own, own_lines = [caption], [caption_dict(caption, given=True, unknown=unknown)]
            yield {"captions": own_lines}
        beams: list[Caption] = []
        async for beams in queue.each(captioning(bundle, file, beams=body.beams), model.lock):
            # Every step of the beam search, so that the page shows captions as they grow.
            yield {"captions": [*own_lines, *map(caption_dict, beams)]}
        # The last beams of the search are its results.
        inspected = queue.each(
            (inspect_caption(written, seen) for written in [*own, *beams]), model.lock
        )
        looks = [explorer.keep(inspection, model) async for inspection in inspected]
        yield {"captions": [*own_lines, *map(caption_dict, beams)], "looks": looks}

    return stream_response(events, queue, request)


@router.post("/given-caption", response_model=answers.GivenShape)
async def inspect_given_caption(body: requests.Given, explorer: Shared) -> Response:
    """The score and the inspection of an unfinished caption of an image."""
    model, file = explorer.models[body.model], explorer.images[body.image].file

    def read_and_inspect() -> tuple[Caption, Inspection]:
        bundle = model.bundle(explorer.device)
        seen = checked_image(bundle, file)
        caption = given_caption(bundle, file, body.ids, finished=False)
        return caption, inspect_caption(caption, seen)

    caption, inspection = await explorer.queue.run(read_and_inspect, model.lock)
    look = explorer.keep(inspection, model)
    return json_response({"caption": caption_dict(caption), "look": look})


@router.get("/looks/evidence", responses=BINARY, response_class=Response)
async def evidence_for_words(explorer: Shared, look: InspectionId) -> Response:
    """How likely each word of a caption is where one place is seen alone, as float32 (words, rows, columns)."""
    inspection = explorer.inspections[look]
    if not isinstance(inspection, CaptionInspection):
        raise InputError("this is not the inspection of a caption: expected one")
    return float32_response(await explorer.queue.run(inspection.evidence, inspection.lock))
