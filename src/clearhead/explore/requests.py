"""The bodies and parameters of requests, which are checked before a route runs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,80}$")]
Text = Annotated[str, StringConstraints(max_length=120_000)]
Prompt = Annotated[str, StringConstraints(max_length=2000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Matrix = Annotated[list[Annotated[list[Number], Field(max_length=64)]], Field(max_length=64)]
# 0 takes the likeliest token
Temperature = Annotated[float, Field(ge=0.0, le=5.0, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=1, le=1000)]
TopP = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
# Heads to silence, by layer.
Off = dict[
    Annotated[str, StringConstraints(pattern=r"^\d{1,3}$")],
    Annotated[list[int], Field(max_length=256)],
]
# Parameters of addresses: which inspection, which of its groups, which layer, head, query or key.
InspectionId = Annotated[str, Query(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9_-]+$")]
GroupName = Annotated[str, Query(pattern="^[a-z]{1,20}[0-9]{0,3}$")]
Index = Annotated[int | None, Query(ge=0, le=2**31)]
At = Annotated[int, Query(ge=0, le=2**31)]
LookId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


class RequestBody(BaseModel):
    """The base of all request bodies: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Translate(RequestBody):
    """A translation by beam search, sentence by sentence."""

    model: Id
    text: Text
    beams: Annotated[int, Field(ge=1, le=10)] = 5
    penalty: Annotated[float, Field(ge=0.0, le=3.0)] = 1.0


class Align(RequestBody):
    """A text and its translation, given either as a text or as ids, which may be unfinished."""

    model: Id
    text: Text
    target: Text | None = None
    ids: Annotated[list[TokenId], Field(max_length=10_000)] | None = None


class Write(RequestBody):
    """A continuation of a text; temperature 0 takes the likeliest tokens."""

    model: Id
    text: Text
    # the text is the user's message of a conversation, written with the model's chat template
    chat: bool = False
    # ids that were written after the text already
    written: Annotated[list[TokenId], Field(max_length=500)] = []
    max_new: Annotated[int, Field(ge=0, le=500)] = 40
    temperature: Temperature = 0.0
    top_k: TopK | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    off: Off = {}


class Read(RequestBody):
    """A text for an encoder; masks are written as its model line says."""

    model: Id
    text: Text
    off: Off = {}


class Classify(RequestBody):
    """An image for a vision model: the id of an uploaded one, or the name of an example."""

    model: Id
    image: LookId


class CaptionRequest(RequestBody):
    """Captions of an image by beam search; `text` is one of the user's own, to be scored and mapped as well."""

    model: Id
    image: LookId
    beams: Annotated[int, Field(ge=1, le=10)] = 5
    text: Text | None = None


class Given(RequestBody):
    """A caption of an image as ids of tokens: what a search that was stopped had written."""

    model: Id
    image: LookId
    ids: Annotated[list[TokenId], Field(max_length=10_000)]


class Neighbours(RequestBody):
    """Texts to compare."""

    model: Id
    texts: Annotated[
        list[Annotated[str, StringConstraints(max_length=4000)]], Field(min_length=1, max_length=64)
    ]


class SaliencyRequest(RequestBody):
    """Which pixels of an image the score of a class depends on; without a target, of the likeliest class."""

    model: Id
    image: LookId
    method: Annotated[str, StringConstraints(pattern=r"^[a-z-]{1,40}$")] = "grad-cam"
    target: Annotated[str, StringConstraints(max_length=400)] | None = None


class Compare(RequestBody):
    """Two models of images."""

    model: Id
    other: Id


class TokensRequest(RequestBody):
    """Prompts whose tokens are asked for."""

    model: Id
    texts: Annotated[list[Prompt], Field(min_length=1, max_length=4)]


class Patch(RequestBody):
    """Activation patching: two prompts with the same number of tokens, and the answer, or two to be told apart."""

    model: Id
    clean: Prompt
    corrupted: Prompt
    answers: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=60)]], Field(max_length=2)
    ] = []
    what: Literal["residual", "attention", "mlp", "heads"] = "residual"


class Without(RequestBody):
    """Heads to silence, for the text of an inspection."""

    look: LookId
    off: Off


class Build(RequestBody):
    """The matrices and options of attention by hand."""

    x: Matrix
    wq: Matrix
    wk: Matrix
    wv: Matrix
    score: Literal["dot", "scaled", "cosine", "additive"] = "dot"
    sharpness: Annotated[float, Field(ge=0.0, le=1e4)] = 1.0
    causal: bool = False
    window: Annotated[int, Field(ge=1, le=64)] | None = None
    heads: Annotated[int, Field(ge=1, le=8)] = 1
    positions: Literal["none", "sinusoid", "rotary", "alibi"] = "none"
    order: Annotated[list[int], Field(max_length=64)] | None = None


def heads_off(off: dict[str, list[int]]) -> dict[int, list[int]]:
    """Heads to silence, by layer."""
    return {int(layer): heads for layer, heads in off.items()}
