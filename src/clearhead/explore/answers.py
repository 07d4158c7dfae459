"""The JSON that the explorer sends: what the functions behind its routes return, and what OpenAPI describes."""

from collections.abc import Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

Numbers = Sequence[float | None]  # null: a number that is missing or not finite
Candidate = tuple[str, float]  # a token and its probability
# also its probability after temperature, top-k and top-p: 0 if ruled out
Reshaped = tuple[str, float, float]


class Share(TypedDict):
    """The part of a link before its fragment."""

    query: str


class Problem(TypedDict):
    """An error, in one sentence."""

    error: str


class ModelLine(TypedDict):
    """A model, and the views of the page that can use it."""

    id: str
    name: str  # what the page calls it
    about: str
    # how it was opened, and what of it is not used, if not as a family of this library
    note: NotRequired[str | None]
    kinds: list[str]
    trained: NotRequired[bool]  # whether it is the model of a run
    family: NotRequired[str | None]
    parameters: NotRequired[int | None]
    context: NotRequired[int | None]
    why: NotRequired[str | None]  # why no view can use it, if none can
    mask: NotRequired[str | None]  # how a mask is written, if it predicts masked tokens
    chat: NotRequired[bool]  # whether it has a chat template
    # tokens that answer an example, if all examples have answers of one length
    max_new: NotRequired[int | None]
    examples: NotRequired[list[str]]  # texts to try it with, or names of example images
    error: NotRequired[str | None]  # why it cannot be loaded
    version: NotRequired[str | None]  # changes when its files do


class TrainedLine(TypedDict):
    """The model of a finished run, without what is known only when it is loaded."""

    id: str
    name: str
    kinds: list[str]
    family: str
    parameters: int
    version: str  # changes when its files do


class ImageShape(TypedDict):
    """An image that is kept under its id, and its size in pixels."""

    id: str
    width: int
    height: int


class AxisShape(TypedDict):
    """The tokens along one side of a map."""

    names: list[str]
    # indices of special tokens: start, end, padding, mask; of an image class token and registers
    special: list[int]
    # height and width, if the other tokens are patches of an image, row by row
    grid: tuple[int, int] | None


class TextShape(TypedDict):
    """The tokens of a single text."""

    names: list[str]
    special: list[int]  # indices of special tokens
    spaces: list[int]  # indices of tokens that follow a space which no token holds


class GroupShape(TypedDict):
    """The attentions of one kind: their number, and the tokens of queries (rows) and keys (columns)."""

    name: str
    about: str
    layers: int
    heads: int
    rows: AxisShape
    columns: AxisShape
    words: bool  # whether maps between words can be requested


class FeaturesShape(TypedDict):
    """The feature maps of a stage of a vision model."""

    name: str
    grid: tuple[int, int]  # height and width
    order: list[int]  # all channels by their mean activation, the strongest first


class InspectionShape(TypedDict):
    """An inspection that is kept under its id: what can be requested about it."""

    id: str
    groups: list[GroupShape]
    text: NotRequired[TextShape | None]  # of a single text
    lens: bool  # whether it has a logit lens and candidates
    # why there are no groups, of a model whose attention was not seen
    reason: NotRequired[str | None]
    seen: NotRequired[tuple[int, int] | None]  # of an image: height and width as the model read it
    features: NotRequired[list[FeaturesShape]]  # of an image: stages in order
    words: NotRequired[list[str] | None]  # of a caption: those that have a map


class Tile(TypedDict):
    """A part of an attention map."""

    layer: int | None
    head: int | None
    rows: tuple[int, int]
    keys: tuple[int, int]
    weights: list[Numbers]
    most: float | None
    row_names: NotRequired[list[str] | None]
    key_names: NotRequired[list[str] | None]


class WordsShape(TypedDict):
    """The words of a map's queries (rows) and keys (columns); null if it has only tokens."""

    rows: list[str] | None
    columns: list[str] | None


class HeadsOfLayer(TypedDict):
    """A line of the stream of /heads."""

    layer: int
    layers: int
    entropy: Numbers
    distance: Numbers
    maximum: Numbers
    sink: Numbers


class EffectsOfLayer(TypedDict):
    """A line of the stream of /effects: the mean change per token when a head is silenced, for each head."""

    layer: int
    layers: int
    effect: Numbers
    # change of log-probability in nats; of output vectors, |x' - x| / |x|
    measure: Literal["logprob", "vector"]


class WithoutShape(TypedDict):
    """The log-probability of each token with all heads on, and with some silenced; null for the first token."""

    tokens: list[str]
    before: Numbers
    after: Numbers


class LensShape(TypedDict):
    """The likeliest next tokens after token `at`, by each layer, and the entropy of each layer's distribution."""

    at: int
    layers: list[list[Candidate]]
    entropy: Numbers  # in nats


class CandidatesShape(TypedDict):
    """For tokens from `first` on: their probabilities, and the likeliest tokens in their place."""

    first: int
    shares: Numbers
    logprobs: Numbers
    candidates: list[list[Reshaped]]


class SimilarShape(TypedDict):
    """The cosine similarity of token `at`'s final vector with that of every token."""

    at: int
    similarity: Numbers


class NeighboursShape(TypedDict):
    """The cosine similarities of the embeddings of texts, and their places in two dimensions (PCA)."""

    texts: list[str]
    similarity: list[Numbers]
    places: list[tuple[float | None, float | None]]


class CutShape(TypedDict):
    """Which tokens of a text the model reads, if it is too long."""

    read: int
    of: int
    first: int  # the index of the first of them
    most: int  # the number of tokens that the model reads at once


class TokenShape(TypedDict):
    """A new token, its probability by the model, and the likeliest tokens in its place."""

    id: int
    piece: str
    text: str  # the piece, with the space before it that no token holds
    share: float
    candidates: list[Reshaped]


class TranslationCut(TypedDict):
    """What was left out of a translation."""

    source: tuple[int, int] | None  # tokens of the source that were read, and all of them
    # whether the translation has no end token: it has reached the limit, or is unfinished
    target: bool


class TranslationShape(TypedDict):
    """A translation."""

    text: str
    score: float
    logprob: float
    cut: TranslationCut | None
    source: list[str]
    target: list[str]
    ids: list[int]  # of `target`


class CaptionShape(TypedDict):
    """A caption of an image."""

    text: str
    score: float
    logprob: float
    words: list[str]
    ids: list[int]  # of its tokens, without the end token
    cut: bool  # whether it has no end token: it has reached the limit, or is unfinished
    given: bool  # whether it is the user's own
    unknown: list[str]  # words of the user's own that the model does not know


class GivenShape(TypedDict):
    """A given caption, and its inspection."""

    caption: CaptionShape
    look: InspectionShape


class AlignShape(TypedDict):
    """A given translation, and its inspection."""

    translation: TranslationShape
    look: InspectionShape


class SaliencyShape(TypedDict):
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


class StudyShape(TypedDict):
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


class CkaShape(TypedDict):
    """The similarity of each pair of layers."""

    cka: list[list[float]]
    error: list[list[float]]  # standard error over photographs (jackknife)


class SimilarityShape(TypedDict):
    """CKA of the layers of two models (debiased estimate)."""

    rows: list[str]  # the layers of the first model
    columns: list[str]  # the layers of the second
    photographs: int
    views: int  # inputs: each photograph, whole and in quarters
    first: CkaShape  # within the first model
    between: CkaShape
    second: CkaShape  # within the second model


class TokensShape(TypedDict):
    """The tokens of each text."""

    tokens: list[list[str]]


class PatchingShape(TypedDict):
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


class Event(TypedDict, total=False):
    """A line of the stream of a route that works for longer: each has some of these, or an error."""

    waiting: int  # requests before this one
    progress: tuple[int, int]  # blocks or layers done, and all of them
    sentences: list[str]  # of the text to translate
    # the number of the sentence that the other values belong to, from 0
    sentence: int
    beams: list[TranslationShape]  # the hypotheses so far, the best first
    prompt: TextShape  # the prompt of a conversation, as its template writes it
    token: TokenShape
    ended: str  # the end token, if the model has ended the text
    cut: CutShape  # the text is longer than the model reads at once
    translations: list[TranslationShape]  # the results
    look: InspectionShape
    # the user's own first, then the hypotheses or results, the best first
    captions: list[CaptionShape]
    looks: list[InspectionShape]  # one per translation or caption
    fill: list[list[Candidate]] | None  # the likeliest tokens for each mask
    classes: list[Candidate] | None  # the classes of the text or image, the likeliest first
    masks: list[int]  # the index of each masked token
    saliency: SaliencyShape
    model: str  # of a comparison: the model that the progress or the study is of
    study: StudyShape
    similarity: SimilarityShape
    patching: PatchingShape
    error: str


class ByHandShape(TypedDict):
    """Every number of attention by hand: the fields of build.ByHand, arrays as lists."""

    x: list[list[float]]
    projected_q: list[list[list[float]]]
    projected_k: list[list[list[float]]]
    q: list[list[list[float]]]
    k: list[list[list[float]]]
    v: list[list[list[float]]]
    scores: list[list[list[float]]]
    masked: list[list[bool]]
    weights: list[list[list[float]]]
    out: list[list[float]]
    moved: float
    angles: list[list[float]] | None
    slopes: list[float] | None


class PositionsShape(TypedDict):
    """Position vectors, and the similarity of any two."""

    kind: str
    vectors: list[list[float]]
    similarity: list[list[float]]


class MemoryShape(TypedDict):
    """The weight of each input in a recurrent memory with decay, after each later input."""

    gamma: float
    left: list[list[float]]
    share: list[list[float]]
    attention: list[float]


class MeasurementShape(TypedDict):
    """What a validation measures."""

    unit: str
    better: Literal["lower", "higher"]


class TokensOfRun(TypedDict):
    """What is known of the tokens that the losses of a run are counted in."""

    files: str | None  # the same for the same files of a tokenizer; null before they are saved
    vocab: int | None  # number of tokens
    kind: str | None  # as the recipe says: words, characters, a folder


class RunLine(TypedDict):
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
    example: NotRequired[str | None]  # the recipe of the example that ships
    error: NotRequired[str | None]  # why it cannot be read


class RunShape(RunLine):
    """A run with its metrics from record `since` on, of `total` records."""

    since: int
    total: int
    records: list[dict[str, object]]
