"""Model folders that no family of ours can read, opened with Hugging Face's transformers where it is installed.

Only models that read one text are opened: language models and encoders. No code of a folder is run, nothing is
downloaded, and a tensor that is missing is an error, not a random number.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ... import config
from ...errors import InputError, Notice
from ...layers import mean_of_tokens
from ...models import Model
from ...models.hooks import Session, call_after, call_before
from ...models.model import random_ids
from ...tokens import Subwords, Tokenizer
from ...tokens.chat_template import read_template
from ...tokens.special import special_of_config
from ..bundle import Bundle, check_tokens
from ..fill import WeightsError
from ..table import UsedTensors
from ..tensor_files import open_tensors
from .folder import LAYOUT_FILES, class_names, read_scores
from .llama import trained_length
from .sentence_transformers import longest_text, read_pooling, sentence_tokens
from .tokenizers import read_subwords

# A text model of transformers behind the interface of our own models, so that every task and view can use it.
#
#     theirs.base_model   ids -> ... -> blocks -> norm -> a vector per token, `encode`
#     theirs              the same, and a head: next tokens, masked tokens or classes
#
# Its layers are `blocks`, as in our own models; what attends in them is found by watching (look/foreign/intercept.py).


PROBE = [0, 1]  # ids of the text by which the parts of a model are found


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes of a model of transformers, as far as they are known."""

    architecture: str  # its class
    vocab: int  # number of embeddings
    width: int  # width of the vectors that its layers return
    depth: int  # number of layers
    context: int | None = None  # tokens per row that it has positions for; None: any number
    classes: int | None = None  # number of classes of a classifier
    pool: Literal["mean", "first"] = "mean"  # how the vectors of a text's tokens become one


class Logits(nn.Identity):
    """The head of a model whose `states` are its logits already.

    Args:
        size: Number of logits.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size


class TransformersState:
    """What a language model of transformers keeps between steps: the tokens of each row, and its own cache.

    Prompts of different lengths are padded on the left, as its `generate` does.
    """

    def __init__(self, ids: Int[Tensor, "b t"]) -> None:
        self.ids = ids
        self.mask: Bool[Tensor, "b t"] | None = None  # False for padding; None: there is none
        self.cache: Any = None

    def append(self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> None:
        """Append tokens to every row."""
        if mask is not None or self.mask is not None:
            # one that has been without padding until now gets a mask, too
            before, after = self.mask, mask
            if before is None:
                before = torch.ones_like(self.ids, dtype=torch.bool)
            if after is None:
                after = torch.ones_like(ids, dtype=torch.bool)
            self.mask = torch.cat([before, after], dim=1)
        self.ids = torch.cat([self.ids, ids], dim=1)

    def expand(self, n: int) -> None:
        """Repeat every row n times."""
        self.ids = self.ids.repeat_interleave(n, dim=0)
        self.mask = None if self.mask is None else self.mask.repeat_interleave(n, dim=0)
        if self.cache is not None:
            self.cache.batch_repeat_interleave(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Reorder the rows: row i becomes the old row index[i]."""
        self.ids = self.ids[index]
        self.mask = None if self.mask is None else self.mask[index]
        if self.cache is not None:
            self.cache.reorder_cache(index)


class TransformersModel(Model):
    """A text model of transformers: it predicts next or masked tokens, classifies, or encodes.

    Args:
        theirs: The model.
        can: What it can do, keys of CAPABILITIES.
        context: Tokens per row that it has positions for; None: any number.
        pool: How the vectors of a text's tokens become one, if it embeds texts.
    """

    config: Config
    note = "opened with transformers, watched by interception"

    def __init__(
        self,
        theirs: Any,
        can: frozenset[str],
        *,
        context: int | None = None,
        pool: Literal["mean", "first"] = "mean",
    ) -> None:
        super().__init__()
        self.can = can
        self.theirs: Any
        ids = torch.tensor([PROBE], device=next(theirs.parameters()).device)
        table = theirs.get_input_embeddings()
        # These names come before `theirs`, so that the addresses of `watch` begin with them.
        self.blocks = find_blocks(theirs.base_model)
        self.norm, vectors = final_norm(theirs.base_model, self.blocks, ids)
        self.head = self._find_head(theirs, ids, vectors)
        # then `states` runs all of theirs, and not its base model
        self._whole = isinstance(self.head, Logits)
        if self._whole and "predict" in can:
            self.norm = None  # head(norm(x)) would not be logits
        self.theirs = theirs
        arguments = inspect.signature(theirs.forward).parameters
        self._caches = "past_key_values" in arguments
        self._places = "position_ids" in arguments
        self.config = Config(
            architecture=type(theirs).__name__,
            vocab=table.num_embeddings,
            width=vectors.shape[-1],
            depth=len(self.blocks),
            context=context,
            pool=pool,
            classes=theirs.config.num_labels if "classify" in can else None,
        )

    @torch.no_grad()
    def _find_head(self, theirs: Any, ids: Tensor, vectors: Tensor) -> nn.Module:
        """The module that turns the output of `encode` into logits; Logits if one module alone does not."""
        if "embed" in self.can:
            # its vectors are the output
            return nn.Identity()
        logits, head = theirs(input_ids=ids).logits, theirs.get_output_embeddings()
        if head is None or "predict" not in self.can:
            return Logits(logits.shape[-1])
        # caps, scales and biases behind the head make them differ
        if torch.equal(head(vectors).float(), logits.float()):
            return head
        return Logits(logits.shape[-1])

    @property
    def name(self) -> str:
        return type(self.theirs).__name__

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        size = min(size, self.config.context or size)
        return {"ids": random_ids(self.config.vocab, rows, size, generator)}

    def encode(
        self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b t d"]:
        """A vector per token: the output of the last layer, after the final norm."""
        return _vectors(self.theirs.base_model(input_ids=ids, attention_mask=_inside(ids, lengths)))

    def states(
        self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b *t d"]:
        """The input of `head`: a vector per token, or the logits themselves."""
        if not self._whole:
            return self.encode(ids, lengths=lengths)
        logits: Tensor = self.theirs(input_ids=ids, attention_mask=_inside(ids, lengths)).logits
        return logits

    def forward(
        self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None
    ) -> Float[Tensor, "b *o"]:
        x = self.states(ids, lengths=lengths)
        if "embed" in self.can:
            if self.config.pool == "first":
                return x[:, 0]
            return mean_of_tokens(x, lengths)
        return self.head(x)

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> TransformersState:
        """The state of `rows` empty texts, which grows as they do. `inputs` is empty."""
        if self.max_tokens is not None and limit > self.max_tokens:
            raise InputError(
                f"{limit} tokens, prompt and answer together: this model reads {self.max_tokens} at once"
            )
        return TransformersState(
            torch.zeros(rows, 0, dtype=torch.long, device=next(self.parameters()).device)
        )

    def read(
        self,
        ids: Int[Tensor, "b t"],
        state: TransformersState,
        counts: Int[Tensor, "b"] | None = None,
    ) -> TransformersState:
        """Append prompt tokens without computing logits: the first `counts[i]` of row i, or all of them."""
        mask = None
        if counts is not None:
            # from padding on the right to padding on the left
            # (b, t): the column whose token moves to this place; below 0 is padding
            place = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - counts[:, None])
            mask, ids = place >= 0, ids.gather(1, place.clamp(min=0))
        self._append(ids, state, mask)
        return state

    def step(
        self, ids: Int[Tensor, "b t"], state: TransformersState
    ) -> tuple[Float[Tensor, "b t v"], TransformersState]:
        """Append tokens to every row, and return the logits after each of them."""
        return self.head(self._append(ids, state)), state

    def _append(self, ids: Tensor, state: TransformersState, mask: Tensor | None = None) -> Tensor:
        """Append tokens to the state, and return the input of `head` for them; without a cache all is read again."""
        state.append(ids, mask)
        given, more = state.ids, dict[str, Any]()
        if self._caches:
            # the cache has the rest: only the new tokens are given
            given, more = ids, {"past_key_values": state.cache, "use_cache": True}
        if state.mask is not None:
            mask = state.mask.long()
            more["attention_mask"] = mask
            if self._places:
                # padding does not count, so that a row's positions do not depend on the others
                places = (mask.cumsum(1) - 1).clamp(min=0)
                more["position_ids"] = places[:, -given.shape[1] :]
        network = self.theirs if self._whole else self.theirs.base_model
        out = network(input_ids=given, **more)
        if self._caches:
            # some models return a new cache instead of changing the old one
            state.cache = out.past_key_values
        x: Tensor = out.logits if self._whole else _vectors(out)
        return x[:, -ids.shape[1] :]


def find_blocks(base: nn.Module) -> nn.ModuleList:
    """The layers of a model: the longest list of modules of one class, the outermost if several are as long."""
    lists = []
    for part in base.modules():
        # layers are of one class; a list of several kinds is something else
        if isinstance(part, nn.ModuleList) and len({*map(type, part)}) == 1:
            lists.append(part)
    if not lists:
        raise InputError(
            f"a {type(base).__name__} has no list of layers: expected a model with layers of one class"
        )
    return max(lists, key=len)


@torch.no_grad()
def final_norm(
    base: nn.Module, blocks: nn.ModuleList, ids: Int[Tensor, "1 t"]
) -> tuple[nn.Module | None, Float[Tensor, "1 t d"]]:
    """Find the final norm: the module that turns the last layer's output into the model's; return also the latter.

    nn.Identity if there is none, and None if the output is made by more than one module.
    """
    last: list[Tensor] = []
    given: list[nn.Module] = []  # modules that were called with the output of the last layer
    inside = {part for block in blocks for part in block.modules()} | {blocks, base}

    # the last layer's output is followed through the modules that read it
    def after_last(_: nn.Module, __: Any, out: Any) -> None:
        last[:] = [_first(out)]
        given.clear()

    def before_other(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        # by identity: a module may also read an equal tensor of another layer
        if last and any(x is last[0] for x in (*args, *kwargs.values())):
            given.append(module)

    with Session(base) as session, session:
        call_after(session, [blocks[-1]], after_last)
        # modules inside a layer come before the output of the last one
        call_before(session, [part for part in base.modules() if part not in inside], before_other)
        vectors = _vectors(base(input_ids=ids))
    if not last:
        return None, vectors
    # a model without a final norm returns the output of its last layer; inner modules come before those around them
    for module in (nn.Identity(), *reversed(given)):
        out = module(last[0])
        # the final norm is the module that gives what the model returns
        if isinstance(out, Tensor) and torch.equal(out, vectors):
            return module, vectors
    return None, vectors


def _vectors(out: Any) -> Tensor:
    """The output of a base model: a vector per token."""
    vectors: Tensor = out.last_hidden_state
    return vectors


def _first(out: Any) -> Any:
    """The first output of a layer, which may return several."""
    return out[0] if isinstance(out, tuple) else out


def _inside(ids: Tensor, lengths: Tensor | None) -> Tensor | None:
    """The attention mask: True for tokens that are not padding; None if there is no padding."""
    if lengths is None or bool((lengths == ids.shape[1]).all()):
        return None
    return torch.arange(ids.shape[1], device=ids.device) < lengths.to(ids.device)[:, None]


WRITES = frozenset({"encode", "predict", "generate"})
FILLS = frozenset({"encode", "fill"})
SORTS = frozenset({"encode", "classify"})
# How the class that a folder names ends: the class of transformers that loads it, and what it can do.
ENDINGS = {
    "ForCausalLM": ("AutoModelForCausalLM", WRITES),
    "LMHeadModel": ("AutoModelForCausalLM", WRITES),
    "ForMaskedLM": ("AutoModelForMaskedLM", FILLS),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", SORTS),
}
BARE = ("AutoModel", frozenset({"encode", "embed"}))  # any other: without its head
# parameters that a config may ask for per number in the files: those of a quantised model are packed
MOST = 16
LAYERS = 100  # layers that may share their tensors, as those of ALBERT do
# What transformers raises for folders that it cannot open.
RAISED = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError)
# keys of its length
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")


def knows(table: config.Table) -> bool:
    """Whether transformers is installed and has the model of a config.json, and our families do not have it."""
    model_type = table.get("model_type")
    if not isinstance(model_type, str) or find_spec("transformers") is None:
        return False
    # our families read it, unless its angles change with the length of the text
    if model_type in LAYOUT_FILES and trained_length(table) is None:
        return False
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load a folder with transformers; returns the bundle, and which tensors it was loaded from."""
    table = config.load(folder / "config.json")
    theirs, can, used = _pretrained(folder, table, dtype)
    trained = trained_length(table)
    pool = read_pooling(folder).get("pooling", "mean")
    # longer texts would have other angles
    context = _context(theirs) if trained is None else trained
    try:
        model = TransformersModel(theirs.eval(), can, context=context, pool=pool)
    except InputError as cause:
        raise WeightsError(f"{folder}: {cause}") from cause
    model.to(device)
    tokens = sentence_tokens(folder, _tokens(folder))
    check_tokens(tokens, model.config, str(folder))
    special, labels = (
        special_of_config(folder, table),
        class_names(folder, table, model.config.classes),
    )
    limit = ""
    if trained is not None:
        limit = f"; reads {trained} tokens at once, since its angles are others beyond"
    model.note = f"{model.note}{_left_out(table, theirs, used)}{limit}"
    warnings.warn(f"{folder.name}: {model.note}", Notice, stacklevel=2)
    bundle = Bundle(
        model,
        tokens,
        model.config,
        folder,
        special,
        read_template(folder),
        labels,
        longest=longest_text(folder, model),
        scores=read_scores(table, model.config.classes),
    )
    return bundle, used


def _pretrained(
    folder: Path, table: config.Table, dtype: torch.dtype | None
) -> tuple[Any, frozenset[str], UsedTensors]:
    """The model of a folder, what it can do, and the tensors that it was loaded from."""
    import transformers

    named = next(iter(table.get("architectures") or ()), "")
    auto, can = BARE
    for ending, known in ENDINGS.items():
        if str(named).endswith(ending):
            auto, can = known
            break
    with _explained(folder, auto):
        # read from the class, before anything is built
        reads = getattr(getattr(transformers, str(named), None), "main_input_name", "input_ids")
    if reads != "input_ids":  # of speech, or of images
        raise WeightsError(f"{folder}: {named} reads {reads}: expected a model of text")
    if table.get("is_encoder_decoder"):
        raise WeightsError(
            f"{folder}: {named or table['model_type']} reads a text and writes another, which is not opened here: "
            "expected a language model or an encoder; for its maps, load it with transformers and call "
            "look.attention(model, text, target=..., tokenizer=...)"
        )
    with open_tensors(folder) as tensors:  # raises for a damaged file
        shapes = {name: tuple(shape) for name, shape in tensors.shapes.items()}
        files = tuple(sorted({path.name for path in tensors.files.values()}))
    with _explained(folder, auto), quiet():
        auto_class = getattr(transformers, auto)
        # checked before the weights are read, and without any code of the folder
        settings = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        _torch_kernels_only(settings)
        _check_size(folder, auto_class, settings, shapes)
        # mismatches are reported, not raised, so that the message can name the tensor
        model, report = auto_class.from_pretrained(
            folder,
            config=settings,
            dtype="auto" if dtype is None else dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    if model.main_input_name != "input_ids":
        raise WeightsError(
            f"{folder}: {type(model).__name__} reads {model.main_input_name}: expected a model of text"
        )
    for name, stored, expected in sorted(report.get("mismatched_keys") or ()):
        raise WeightsError(
            f"{folder}: {name} has the shape {tuple(stored)}, expected {tuple(expected)}"
        )
    missing = sorted(report["missing_keys"])
    if auto == BARE[0]:  # `encode` does not need the pooler
        missing = [name for name in missing if "pooler" not in name]
    if missing:
        raise WeightsError(
            f"{folder}: {len(missing)} tensors of {type(model).__name__} are missing, such as {missing[0]}"
        )
    unused = set(report["unexpected_keys"])
    used = {name: shape for name, shape in shapes.items() if name not in unused}
    ignored = {name: shape for name, shape in shapes.items() if name in unused}
    return model, can, UsedTensors(used, ignored, {}, files)


@contextmanager
def _explained(folder: Path, auto: str) -> Iterator[None]:
    """Context in which exceptions of transformers become a WeightsError that names the folder."""
    from huggingface_hub import errors

    # of a config whose values do not fit together
    invalid = getattr(errors, "StrictDataclassError", ValueError)
    try:
        yield
    except WeightsError:
        raise
    except (*RAISED, invalid) as cause:
        # their messages have many lines
        reason = " ".join(str(cause).split())[:300]
        raise WeightsError(f"{folder}: transformers cannot open it as {auto} ({reason})") from cause


def _torch_kernels_only(settings: Any) -> None:
    """Let transformers choose torch's attention or its own, whatever a config names: a kernel may be a download."""
    names = getattr(settings, "sub_configs", ())
    for part in (settings, *(getattr(settings, name, None) for name in names)):
        if part is not None:
            # None leaves the choice to from_pretrained
            part._attn_implementation = None


def _check_size(
    folder: Path, auto_class: Any, settings: Any, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Refuse a config that asks for a model much larger than the files, before any memory is taken for it."""
    text = settings.get_text_config()
    width, depth = (getattr(text, key, None) for key in ("hidden_size", "num_hidden_layers"))
    if isinstance(width, int) and not any(width in shape for shape in shapes.values()):
        raise WeightsError(f"{folder}: hidden_size={width}, but no tensor has an axis of this size")
    # building a hundred million layers would take hours even on the meta device
    if isinstance(depth, int) and depth > len(shapes) + LAYERS:
        raise WeightsError(
            f"{folder}: num_hidden_layers={depth}, but there are only {len(shapes)} tensors"
        )
    # quantised files have fewer numbers than weights
    stored = sum(prod(shape) for shape in shapes.values())
    with torch.device("meta"):
        empty = auto_class.from_config(settings, trust_remote_code=False)
    asked = sum(p.numel() for p in empty.parameters())
    if asked > MOST * stored:
        raise WeightsError(
            f"{folder}: its config asks for {asked:,} parameters, and its files have {stored:,}"
        )


def _left_out(table: config.Table, theirs: Any, used: UsedTensors) -> str:
    """What a model does not read of its folder, for the notice about it."""
    own = type(theirs).__name__
    named = next(iter(table.get("architectures") or ()), own)
    head = "" if named == own else f"; read as {own}, without the head of {named}"
    names = sorted(used.ignored)
    if not names:
        return head
    if len(names) == 1:
        return f"{head}; 1 tensor is not used: {names[0]}"
    return f"{head}; {len(names)} tensors are not used, such as {names[0]}"


def _context(theirs: Any) -> int | None:
    """The number of tokens per row that a model has positions for; None: any number."""
    # RoBERTa and MPNet count positions from the padding id on
    for name, part in theirs.named_modules():
        is_table = name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
        if is_table and part.padding_idx is not None:
            # the rows up to that of padding are not used
            return part.num_embeddings - part.padding_idx - 1
    for key in CONTEXT:
        size = getattr(theirs.config, key, None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def _tokens(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, from files that we read or else from transformers; None if it has none."""
    tokens = read_subwords(folder)
    if tokens is not None:
        return tokens
    from transformers import AutoTokenizer

    try:
        with quiet():
            theirs = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None
    backend = getattr(theirs, "backend_tokenizer", None)
    # made up, for a folder without files
    if backend is None or backend.get_vocab_size(with_added_tokens=False) == 0:
        return None
    return Subwords(backend.to_str())


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log messages and progress bars of transformers."""
    import transformers

    log, level = transformers.utils.logging, transformers.utils.logging.get_verbosity()
    bars = log.is_progress_bar_enabled()
    log.set_verbosity(logging.ERROR)
    log.disable_progress_bar()
    try:
        # whatever is still printed, such as bars of other libraries
        with redirect_stderr(StringIO()):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
