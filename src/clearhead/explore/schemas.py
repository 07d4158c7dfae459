"""The bodies of requests and responses, as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Literal

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
LookId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
Candidate = tuple[str, float]  # a token and its probability
# also its probability after temperature, top-k and top-p: 0 if ruled out
Reshaped = tuple[str, float, float]


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


class Share(BaseModel):
    """The part of a link before its fragment."""

    query: str


class Problem(BaseModel):
    """An error, in one sentence."""

    error: str


class ModelLine(BaseModel):
    """A model, and the views of the page that can use it."""

    id: str
    name: str  # what the page calls it
    about: str
    # how it was opened, and what of it is not used, if not as a family of this library
    note: str | None = None
    kinds: list[str]
    trained: bool = False  # whether it is the model of a run
    family: str | None = None
    parameters: int | None = None
    context: int | None = None
    why: str | None = None  # why no view can use it, if none can
    mask: str | None = None  # how a mask is written, if it predicts masked tokens
    chat: bool = False  # whether it has a chat template
    # tokens that answer an example, if all examples have answers of one length
    max_new: int | None = None
    examples: list[str] = []  # texts to try it with, or names of example images
    error: str | None = None  # why it cannot be loaded
    version: str | None = None  # changes when its files do


class TrainedLine(BaseModel):
    """The model of a finished run, without what is known only when it is loaded."""

    id: str
    name: str
    kinds: list[str]
    family: str
    parameters: int
    version: str  # changes when its files do


class ImageShape(BaseModel):
    """An image that is kept under its id, and its size in pixels."""

    id: str
    width: int
    height: int


class AxisShape(BaseModel):
    """The tokens along one side of a map."""

    names: list[str]
    # indices of special tokens: start, end, padding, mask; of an image class token and registers
    special: list[int]
    # height and width, if the other tokens are patches of an image, row by row
    grid: tuple[int, int] | None


class TextShape(BaseModel):
    """The tokens of a single text."""

    names: list[str]
    special: list[int]  # indices of special tokens
    spaces: list[int]  # indices of tokens that follow a space which no token holds


class GroupShape(BaseModel):
    """The attentions of one kind: their number, and the tokens of queries (rows) and keys (columns)."""

    name: str
    about: str
    layers: int
    heads: int
    rows: AxisShape
    columns: AxisShape
    words: bool  # whether maps between words can be requested


class FeaturesShape(BaseModel):
    """The feature maps of a stage of a vision model."""

    name: str
    grid: tuple[int, int]  # height and width
    order: list[int]  # all channels by their mean activation, the strongest first


class InspectionShape(BaseModel):
    """An inspection that is kept under its id: what can be requested about it."""

    id: str
    groups: list[GroupShape]
    text: TextShape | None = None  # of a single text
    lens: bool  # whether it has a logit lens and candidates
    reason: str | None = None  # why there are no groups, of a model whose attention was not seen
    seen: tuple[int, int] | None = None  # of an image: height and width as the model read it
    features: list[FeaturesShape] = []  # of an image: stages in order
    words: list[str] | None = None  # of a caption: those that have a map


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


class WordsShape(BaseModel):
    """The words of a map's queries (rows) and keys (columns); null if it has only tokens."""

    rows: list[str] | None
    columns: list[str] | None


class HeadsOfLayer(BaseModel):
    """A line of the stream of /heads."""

    layer: int
    layers: int
    entropy: list[float | None]
    distance: list[float | None]
    maximum: list[float | None]
    sink: list[float | None]


class EffectsOfLayer(BaseModel):
    """A line of the stream of /effects: the mean change per token when a head is silenced, for each head."""

    layer: int
    layers: int
    effect: list[float | None]
    # change of log-probability in nats; of output vectors, |x' - x| / |x|
    measure: Literal["logprob", "vector"]


class WithoutShape(BaseModel):
    """The log-probability of each token with all heads on, and with some silenced; null for the first token."""

    tokens: list[str]
    before: list[float | None]
    after: list[float | None]


class LensShape(BaseModel):
    """The likeliest next tokens after token `at`, by each layer, and the entropy of each layer's distribution."""

    at: int
    layers: list[list[Candidate]]
    entropy: list[float | None]  # in nats


class CandidatesShape(BaseModel):
    """For tokens from `first` on: their probabilities, and the likeliest tokens in their place."""

    first: int
    shares: list[float | None]
    logprobs: list[float | None]
    candidates: list[list[Reshaped]]


class SimilarShape(BaseModel):
    """The cosine similarity of token `at`'s final vector with that of every token."""

    at: int
    similarity: list[float | None]


class NeighboursShape(BaseModel):
    """The cosine similarities of the embeddings of texts, and their places in two dimensions (PCA)."""

    texts: list[str]
    similarity: list[list[float | None]]
    places: list[tuple[float | None, float | None]]


class CutShape(BaseModel):
    """Which tokens of a text the model reads, if it is too long."""

    read: int
    of: int
    first: int  # the index of the first of them
    most: int  # the number of tokens that the model reads at once


class TokenShape(BaseModel):
    """A new token, its probability by the model, and the likeliest tokens in its place."""

    id: int
    piece: str
    text: str  # the piece, with the space before it that no token holds
    share: float
    candidates: list[Reshaped]


class TranslationCut(BaseModel):
    """What was left out of a translation."""

    source: tuple[int, int] | None  # tokens of the source that were read, and all of them
    # whether the translation has no end token: it has reached the limit, or is unfinished
    target: bool


class TranslationShape(BaseModel):
    """A translation."""

    text: str
    score: float
    logprob: float
    cut: TranslationCut | None
    source: list[str]
    target: list[str]
    ids: list[int]  # of `target`


class CaptionShape(BaseModel):
    """A caption of an image."""

    text: str
    score: float
    logprob: float
    words: list[str]
    ids: list[int]  # of its tokens, without the end token
    cut: bool  # whether it has no end token: it has reached the limit, or is unfinished
    given: bool  # whether it is the user's own
    unknown: list[str]  # words of the user's own that the model does not know


class GivenShape(BaseModel):
    """A given caption, and its inspection."""

    caption: CaptionShape
    look: InspectionShape


class AlignShape(BaseModel):
    """A given translation, and its inspection."""

    translation: TranslationShape
    look: InspectionShape


class SaliencyShape(BaseModel):
    """How much each pixel of an image counts for the score of a class."""

    method: str
    target: str  # the class
    score: float  # its logit
    probability: float | None
    signed: bool  # negative values speak against the class
    layer: str | None  # grad-cam: the layer
    # integrated: the sum of all values - the change of the score from the baseline
    completeness: float | None
    change: float | None  # integrated: the change of the score from the baseline
    options: dict[str, int]  # of the method: steps, samples, or patch and stride in pixels
    values: list[list[float]]  # a number per pixel of the image as the model read it


class StudyShape(BaseModel):
    """What was measured of a model of images."""

    layers: list[str]
    # attention distance by layer and head, as a share of the image's width
    distances: list[list[float]] | None
    width: int  # of the image that the model reads, in pixels
    # by layer: side in pixels of the square that holds 90 % of the receptive field
    sides: list[float]
    # by layer: side of all that a unit can depend on; null: the whole image
    theoretical: list[int | None]
    # by layer: the receptive field of the unit in the middle; each sums to 1
    fields: list[list[list[float]]]


class CkaShape(BaseModel):
    """The similarity of each pair of layers."""

    cka: list[list[float]]
    error: list[list[float]]  # standard error over photographs (jackknife)


class SimilarityShape(BaseModel):
    """CKA of the layers of two models (debiased estimate)."""

    rows: list[str]  # the layers of the first model
    columns: list[str]  # the layers of the second
    photographs: int
    views: int  # inputs: each photograph, whole and in quarters
    first: CkaShape  # within the first model
    between: CkaShape
    second: CkaShape  # within the second model


class TokensShape(BaseModel):
    """The tokens of each text."""

    tokens: list[list[str]]


class PatchingShape(BaseModel):
    """The share of the clean answer that comes back when one activation of the clean prompt is put into the other."""

    what: str  # what is exchanged
    answers: list[str]  # the answer, or two whose difference is measured
    clean: float  # its log-probability after the clean prompt, or the difference of two
    corrupted: float
    layers: int
    tokens: list[str]  # of the clean prompt
    other_tokens: list[str]  # of the corrupted one
    columns: list[str]  # names of the columns: tokens, or numbers of heads
    # layers x columns; 0: as after the corrupted prompt, 1: as after the clean one
    effects: list[list[float]]


class Event(BaseModel):
    """A line of the stream of a route that works for longer: each has some of these, or an error."""

    waiting: int | None = None  # requests before this one
    progress: tuple[int, int] | None = None  # blocks or layers done, and all of them
    sentences: list[str] | None = None  # of the text to translate
    # the number of the sentence that the other values belong to, from 0
    sentence: int | None = None
    beams: list[TranslationShape] | None = None  # the hypotheses so far, the best first
    prompt: TextShape | None = None  # the prompt of a conversation, as its template writes it
    token: TokenShape | None = None
    ended: str | None = None  # the end token, if the model has ended the text
    cut: CutShape | None = None  # the text is longer than the model reads at once
    translations: list[TranslationShape] | None = None  # the results
    look: InspectionShape | None = None
    # the user's own first, then the hypotheses or results, the best first
    captions: list[CaptionShape] | None = None
    looks: list[InspectionShape] | None = None  # one per translation or caption
    fill: list[list[Candidate]] | None = None  # the likeliest tokens for each mask
    classes: list[Candidate] | None = None  # the classes of the text or image, the likeliest first
    masks: list[int] | None = None  # the index of each masked token
    saliency: SaliencyShape | None = None
    model: str | None = None  # of a comparison: the model that the progress or the study is of
    study: StudyShape | None = None
    similarity: SimilarityShape | None = None
    patching: PatchingShape | None = None
    error: str | None = None


class ByHandShape(BaseModel):
    """Every number of attention by hand."""

    x: list[list[float]]  # with positions, if they are added
    projected_q: list[list[list[float]]]  # per head: X Wq
    projected_k: list[list[list[float]]]
    q: list[list[list[float]]]  # per head: X Wq, rotated if the positions are rotary
    k: list[list[list[float]]]
    v: list[list[list[float]]]
    scores: list[list[list[float]]]  # before the mask
    masked: list[list[bool]]  # true where the query (row) may not attend to the key (column)
    weights: list[list[list[float]]]
    out: list[list[float]]
    moved: float  # largest change of an output because of the order of the inputs
    angles: list[list[float]] | None = None  # rotary: angle of each pair of columns, in radians
    slopes: list[float] | None = None  # alibi: what the scores lose per position of distance


class PositionsShape(BaseModel):
    """Position vectors, and the similarity of any two."""

    kind: str
    vectors: list[list[float]]
    similarity: list[list[float]]


class MemoryShape(BaseModel):
    """The weight of each input in a recurrent memory with decay, after each later input."""

    gamma: float
    left: list[list[float]]
    share: list[list[float]]
    attention: list[float]


class MeasurementShape(BaseModel):
    """What a validation measures."""

    unit: str
    better: Literal["lower", "higher"]


class TokensOfRun(BaseModel):
    """What is known of the tokens that the losses of a run are counted in."""

    files: str | None  # the same for the same files of a tokenizer; null before they are saved
    vocab: int | None  # number of tokens
    kind: str | None  # as the recipe says: words, characters, a folder


class RunLine(BaseModel):
    """A run in one line."""

    id: str
    name: str  # its path below the folder of all runs
    step: int
    steps: int | None
    finished: bool  # whether it has saved its model
    state: Literal["running", "stopped", "failed", "finished"]
    problem: str | None  # why it has failed
    model_step: int | None  # the step that its model is of
    best: str | None  # the measurement by which that step was chosen
    tokens: TokensOfRun | None  # what its losses are counted in
    model: str | None
    data: str | None
    objective: str | None
    # if there are several: the networks by name, each with its model's family
    players: dict[str, str | None]
    losses: list[str]  # the names of its losses in the records
    loss: float | None  # the last value of the first of them
    measurements: dict[str, MeasurementShape]  # by their names in the records, valid_NAME
    example: str | None = None  # the recipe of the example that ships
    error: str | None = None  # why it cannot be read


class RunShape(RunLine):
    """A run with its metrics from record `since` on, of `total` records."""

    since: int
    total: int
    records: list[dict[str, object]]
