"""The bodies of requests and responses, as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,80}$")]
Text = Annotated[str, StringConstraints(max_length=120_000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Matrix = Annotated[list[Annotated[list[Number], Field(max_length=64)]], Field(max_length=64)]
Candidate = tuple[str, float]  # a token and its probability


class RequestBody(BaseModel):
    """The base of all request bodies: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Translate(RequestBody):
    """A translation by beam search."""

    model: Id
    text: Text
    beams: Annotated[int, Field(ge=1, le=10)] = 5
    penalty: Annotated[float, Field(ge=0.0, le=3.0)] = 1.0


class Write(RequestBody):
    """A continuation of a text; temperature 0 takes the likeliest tokens."""

    model: Id
    text: Text
    max_new: Annotated[int, Field(ge=0, le=500)] = 40
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] = 0.0
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    # Heads to silence, by layer.
    off: dict[Annotated[str, StringConstraints(pattern=r"^\d{1,3}$")], Annotated[list[int], Field(max_length=256)]] = {}


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


class Problem(BaseModel):
    """An error, in one sentence."""

    error: str


class ModelLine(BaseModel):
    """A model, and the views of the page that can use it."""

    id: str
    about: str
    kinds: list[str]
    family: str | None = None
    parameters: int | None = None
    context: int | None = None
    error: str | None = None  # why it cannot be loaded


class GroupShape(BaseModel):
    """The attentions of one kind: their number, and the tokens of queries (rows) and keys (columns)."""

    name: str
    about: str
    layers: int
    heads: int
    rows: list[str]
    columns: list[str]
    words: bool  # whether maps between words can be requested


class InspectionShape(BaseModel):
    """An inspection that is kept under its id: what can be requested about it."""

    id: str
    groups: list[GroupShape]
    lens: bool  # whether it has a logit lens and candidates


class Tile(BaseModel):
    """A part of an attention map."""

    layer: int | None
    head: int | None
    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: list[list[float | None]]
    most: float | None
    row_names: list[str] | None = None
    key_names: list[str] | None = None


class HeadsOfLayer(BaseModel):
    """A line of the stream of /heads."""

    layer: int
    layers: int
    entropy: list[float | None]
    distance: list[float | None]
    maximum: list[float | None]
    sink: list[float | None]


class LensShape(BaseModel):
    """The likeliest next tokens after token `at`, by each layer."""

    at: int
    layers: list[list[Candidate]]


class CandidatesShape(BaseModel):
    """For tokens from `first` on: their probabilities, and the likeliest tokens in their place."""

    first: int
    shares: list[float | None]
    candidates: list[list[Candidate]]


class TranslationShape(BaseModel):
    """A translation."""

    text: str
    score: float
    logprob: float
    cut: bool
    source: list[str]
    target: list[str]
    alignment: list[list[float]] = []
    others: list[dict[str, str | float]] = []


class Event(BaseModel):
    """A line of the stream of /translate or /write: each has one of these, or an error."""

    waiting: int | None = None  # requests before this one
    progress: tuple[int, int] | None = None  # blocks done, and all of them
    beams: list[TranslationShape] | None = None  # the hypotheses so far, the best first
    token: dict[str, int | float | str | list[Candidate]] | None = None  # a new token, with its alternatives
    translations: list[TranslationShape] | None = None  # the results
    look: InspectionShape | None = None
    looks: list[InspectionShape] | None = None  # one per translation
    error: str | None = None


class ByHandShape(BaseModel):
    """Every number of attention by hand."""

    x: list[list[float]]
    q: list[list[list[float]]]
    k: list[list[list[float]]]
    v: list[list[list[float]]]
    scores: list[list[list[float | None]]]
    weights: list[list[list[float]]]
    out: list[list[float]]
    moved: float


class PositionsShape(BaseModel):
    """Position vectors, and the similarity of any two."""

    kind: str
    vectors: list[list[float]]
    similarity: list[list[float]]


class MemoryShape(BaseModel):
    """How much of each input a memory with forgetting holds after each later input."""

    gamma: float
    left: list[list[float]]
    share: list[list[float]]
    attention: list[float]


class MeasurementShape(BaseModel):
    """What a validation measures."""

    unit: str
    better: Literal["lower", "higher"]


class RunLine(BaseModel):
    """A run in one line."""

    id: str
    step: int
    steps: int | None
    finished: bool
    model: str | None
    data: str | None
    losses: list[str]  # the names of its losses in the records
    loss: float | None  # the last value of the first of them
    measurements: dict[str, MeasurementShape]  # by their names in the records, valid_NAME
    error: str | None = None  # why it cannot be read


class RunShape(RunLine):
    """A run with its metrics from record `since` on, of `total` records."""

    since: int
    total: int
    records: list[dict[str, object]]
