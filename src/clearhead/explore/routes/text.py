"""Texts: translations, continuations and readings, streamed while they are computed; similarities of texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from ...errors import InputError
from ...tasks import Translation
from ...tasks.translate import translating
from .. import answers, requests
from ..candidates import choice_of
from ..explorer import Shared
from ..inspections.text import Inspection, inspect_text, inspect_translation
from ..reading import neighbours, read_text, tokens_to_read
from ..responses import PROBLEMS, STREAM, json_response, stream_response
from ..translations import aligned, sentences_of, translation_dict
from ..writing import generate_tokens, prompt_and_written, prompt_text, prompt_tokens, what_fits

router = APIRouter(prefix="/api", responses=PROBLEMS)


@router.post("/translate", responses=STREAM, response_class=StreamingResponse)
async def translate(body: requests.Translate, request: Request, explorer: Shared) -> Response:
    """Translations of the sentences of a text, one after another, as lines of JSON.

    The first line has the sentences. For each there are lines with its number and the beams after every step, then one
    with the translations and their inspections.
    """
    model, queue = explorer.models[body.model], explorer.queue
    texts = await queue.run(lambda: sentences_of(body.text))

    async def events() -> AsyncIterator[Any]:
        yield {"sentences": texts}
        bundle = await explorer.bundle(model)
        for i, text in enumerate(texts):
            beams: list[Translation] = []
            # Sentences are translated one by one, so that other requests get the model between two steps.
            steps = translating(bundle, text, beams=body.beams, penalty=body.penalty)
            async for beams in queue.each(steps, model.lock):
                yield {"sentence": i, "beams": [translation_dict(beam, text) for beam in beams]}
            # The last beams of the search are the translations.
            inspected = queue.each(
                (inspect_translation(bundle, translation) for translation in beams), model.lock
            )
            looks = [explorer.keep(inspection, model) async for inspection in inspected]
            translations = [translation_dict(translation, text) for translation in beams]
            yield {"sentence": i, "translations": translations, "looks": looks}

    return stream_response(events, queue, request)


@router.post("/align", response_model=answers.AlignShape)
async def align(body: requests.Align, explorer: Shared) -> Response:
    """The score and the inspection of a given translation of a sentence."""
    model = explorer.models[body.model]
    target = body.ids if body.target is None else body.target
    if target is None or (body.target is not None and body.ids is not None):
        raise InputError("expected the translation as a text (target) or as ids, and not both")

    def align_and_inspect() -> tuple[Translation, Inspection]:
        bundle = model.bundle(explorer.device)
        # Both in one thread and under one lock: the inspection needs the forced pass of the translation.
        translation = aligned(bundle, body.text, target)
        return translation, inspect_translation(bundle, translation)

    translation, inspection = await explorer.queue.run(align_and_inspect, model.lock)
    look = explorer.keep(inspection, model)
    return json_response({"translation": translation_dict(translation, body.text), "look": look})


@router.post("/write", responses=STREAM, response_class=StreamingResponse)
async def write(body: requests.Write, request: Request, explorer: Shared) -> Response:
    """A continuation of a text, as lines of JSON: each token, then the inspection of the whole text.

    With `chat` it is the answer to a message; the first line then has the prompt as the model's template writes it. A
    line {"ended"} names the token by which the model has ended the text. Of a text longer than the model's context a
    part is read; a line {"cut"} says how much.
    """
    model, queue = explorer.models[body.model], explorer.queue
    off = requests.heads_off(body.off)
    choice = choice_of(body.temperature, body.top_k, body.top_p)

    async def events() -> AsyncIterator[Any]:
        bundle = await explorer.bundle(model)
        ids = await queue.run(
            lambda: prompt_and_written(bundle, body.text, body.written, body.chat)
        )
        prompt = len(ids) - len(body.written)  # tokens of the prompt
        # Only the template's own tokens and the message, not the answer so far.
        if body.chat:
            yield {"prompt": await queue.run(lambda: prompt_text(bundle, ids[:prompt]))}
        # With max_new=0 the text is only inspected, as after a stop.
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
                # Tokens that were sampled before a stop have used up as many random numbers.
                drawn=len(body.written),
                off=off,
            )
            async for token in queue.each(steps, model.lock):
                # The end token is no part of the text.
                if "ended" in token:
                    yield token
                else:
                    ids.append(token["id"])
                    yield {"token": token}
        # The inspection covers what the model read for its last token, with the same heads silenced.
        part = what_fits(bundle, ids, len(ids) - prompt)
        if part.cut is not None:
            yield {"cut": part.cut}
        inspecting = explorer.measure(
            model,
            lambda bundle, done: inspect_text(bundle, part.ids, off, done),
            lambda inspection: {"look": explorer.keep(inspection, model)},
        )
        async for event in inspecting:
            yield event

    return stream_response(events, queue, request)


@router.post("/read", responses=STREAM, response_class=StreamingResponse)
async def read(body: requests.Read, request: Request, explorer: Shared) -> Response:
    """What an encoder computes of a text, as lines of JSON: its inspection, predictions of masked tokens, classes."""
    model, queue = explorer.models[body.model], explorer.queue
    off = requests.heads_off(body.off)

    async def events() -> AsyncIterator[Any]:
        bundle = await explorer.bundle(model)
        reading = await queue.run(lambda: tokens_to_read(bundle, body.text))
        count = len(reading.ids)
        if count < reading.of:
            # An encoder reads the beginning of a long text.
            yield {"cut": {"read": count, "of": reading.of, "first": 0, "most": count}}
        inspecting = explorer.measure(
            model,
            lambda bundle, done: read_text(bundle, reading, off, done),
            lambda result: {"look": explorer.keep(result[0], model), **result[1]},
        )
        async for event in inspecting:
            yield event

    return stream_response(events, queue, request)


@router.post("/neighbours", response_model=answers.NeighboursShape)
async def compare_texts(body: requests.Neighbours, explorer: Shared) -> Response:
    """The similarities of texts by their embeddings."""
    model = explorer.models[body.model]
    result = await explorer.queue.run(
        lambda: neighbours(model.bundle(explorer.device), body.texts), model.lock
    )
    return json_response(result)


@router.post("/tokens", response_model=answers.TokensShape)
async def tokens_of_prompts(body: requests.TokensRequest, explorer: Shared) -> Response:
    """The tokens of prompts, as a language model reads them."""
    model = explorer.models[body.model]
    tokens = await explorer.queue.run(
        lambda: prompt_tokens(model.bundle(explorer.device), body.texts)
    )
    return json_response({"tokens": tokens})
