"""What is asked and what is answered, as OpenAPI describes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,80}$")]
Text = Annotated[str, StringConstraints(max_length=120_000)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Matrix = Annotated[list[Annotated[list[Number], Field(max_length=64)]], Field(max_length=64)]
Candidate = tuple[str, float]


class Asked(BaseModel):
    """A request: a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Translate(Asked):
    model: Id
    text: Text
    beams: Annotated[int, Field(ge=1, le=10)] = 5
    penalty: Annotated[float, Field(ge=0.0, le=3.0)] = 1.0


class Write(Asked):
    model: Id
    text: Text
    max_new: Annotated[int, Field(ge=0, le=500)] = 40
    temperature: Annotated[float, Field(ge=0.0, le=5.0)] = 0.0
    top_k: Annotated[int, Field(ge=1, le=1000)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    off: dict[Annotated[str, StringConstraints(pattern=r"^\d{1,3}$")], Annotated[list[int], Field(max_length=256)]] = {}


class Build(Asked):
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
    error: str


class ModelLine(BaseModel):
    id: str
    about: str
    kinds: list[str]
    family: str | None = None
    parameters: int | None = None
    context: int | None = None
    error: str | None = None


class GroupShape(BaseModel):
    name: str
    about: str
    layers: int
    heads: int
    rows: list[str]
    columns: list[str]
    words: bool


class LookShape(BaseModel):
    """What can be asked about a result, under its id."""

    id: str
    groups: list[GroupShape]
    lens: bool


class Tile(BaseModel):
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
    at: int
    layers: list[list[Candidate]]


class CandidatesShape(BaseModel):
    first: int
    shares: list[float | None]
    candidates: list[list[Candidate]]


class TranslationShape(BaseModel):
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
    progress: tuple[int, int] | None = None  # done, of how many
    beams: list[TranslationShape] | None = None  # what is written so far, the best first
    token: dict[str, int | float | str | list[Candidate]] | None = None  # one more, with the likeliest in its place
    translations: list[TranslationShape] | None = None  # the answers
    look: LookShape | None = None
    looks: list[LookShape] | None = None  # one an answer
    error: str | None = None


class ByHandShape(BaseModel):
    x: list[list[float]]
    q: list[list[list[float]]]
    k: list[list[list[float]]]
    v: list[list[list[float]]]
    scores: list[list[list[float | None]]]
    weights: list[list[list[float]]]
    out: list[list[float]]
    moved: float


class PlacesShape(BaseModel):
    kind: str
    vectors: list[list[float]]
    similarity: list[list[float]]


class FadingShape(BaseModel):
    gamma: float
    left: list[list[float]]
    share: list[list[float]]
    attention: list[float]


class RunLine(BaseModel):
    id: str
    step: int
    steps: int | None
    finished: bool
    model: str | None
    data: str | None
    loss: float | None
    error: str | None = None  # why it cannot be read


class RunShape(RunLine):
    since: int
    total: int
    records: list[dict[str, object]]
