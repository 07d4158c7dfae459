"""Model folders that no family of ours can read, opened with Hugging Face's transformers where it is installed.

Only models that read one text are opened: language models and encoders. No code of a folder is run, nothing is
downloaded, and a tensor that is missing is an error, not a random number.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import config
from ..errors import InputError, Notice
from ..tokens import Subwords, Tokenizer
from ..tokens.chat_template import read_template
from ..tokens.special import special_ids
from .bundle import Bundle, check_tokens
from .fill import WeightsError
from .huggingface import LAYOUT_FILES, class_names, read_scores
from .rope import trained_length
from .sentence_folder import longest_text, read_pooling, sentence_tokens
from .table import Used
from .tensor_files import open_tensors
from .tokenizer_files import read_subwords
from .transformers_model import TransformersModel

WRITES, FILLS, SORTS = (
    frozenset({"encode", *more}) for more in (("predict", "generate"), ("fill",), ("classify",))
)  # fmt: skip
# How the class that a folder names ends: the class of transformers that loads it, and what it can do.
ENDINGS = {
    "ForCausalLM": ("AutoModelForCausalLM", WRITES),
    "LMHeadModel": ("AutoModelForCausalLM", WRITES),
    "ForMaskedLM": ("AutoModelForMaskedLM", FILLS),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", SORTS),
}
BARE = ("AutoModel", frozenset({"encode", "embed"}))  # any other: without its head
MOST = 16  # parameters that a config may ask for per number in the files: those of a quantised model are packed
LAYERS = 100  # layers that may share their tensors, as those of ALBERT do
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")  # keys of its length


def knows(table: config.Table) -> bool:
    """Whether transformers is installed and has the model of a config.json, and our families do not have it."""
    model_type = table.get("model_type")
    if not isinstance(model_type, str) or find_spec("transformers") is None:
        return False
    if model_type in LAYOUT_FILES and trained_length(table) is None:
        return False
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def load(folder: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load a folder with transformers; returns the bundle, and which tensors it was loaded from."""
    table = config.load(folder / "config.json")
    theirs, can, used = _pretrained(folder, table, dtype)
    theirs, trained = theirs.to(device).eval(), trained_length(table)
    pool = read_pooling(folder).get("pooling", "mean")
    try:
        model = TransformersModel(theirs, can, context=_context(theirs) if trained is None else trained, pool=pool)
    except InputError as cause:
        raise WeightsError(f"{folder}: {cause}") from cause
    tokens = sentence_tokens(folder, _tokens(folder))
    check_tokens(tokens, model.config, str(folder))
    special, labels = special_ids(folder, table), class_names(folder, table, model.config.classes)
    limit = "" if trained is None else f"; reads {trained} tokens at once, since its angles are others beyond"
    model.note = f"{model.note}{_left_out(table, theirs, used)}{limit}"
    warnings.warn(f"{folder.name}: {model.note}", Notice, stacklevel=2)
    bundle = Bundle(
        model, tokens, model.config, folder, special, read_template(folder), labels,
        longest=longest_text(folder, model), scores=read_scores(table, model.config.classes),
    )  # fmt: skip
    return bundle, used


def _pretrained(folder: Path, table: config.Table, dtype: torch.dtype | None) -> tuple[Any, frozenset[str], Used]:
    """The model of a folder, what it can do, and the tensors that it was loaded from."""
    import transformers

    named = next(iter(table.get("architectures") or ()), "")
    auto, can = next((found for end, found in ENDINGS.items() if str(named).endswith(end)), BARE)
    with _explained(folder, auto):
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
        kind = getattr(transformers, auto)
        settings = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _torch_kernels_only(settings)
        _check_size(folder, kind, settings, shapes)
        model, report = kind.from_pretrained(
            folder, config=settings, dtype="auto" if dtype is None else dtype, local_files_only=True,
            trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    if model.main_input_name != "input_ids":
        raise WeightsError(f"{folder}: {type(model).__name__} reads {model.main_input_name}: expected a model of text")
    for name, stored, expected in sorted(report.get("mismatched_keys") or ()):
        raise WeightsError(f"{folder}: {name} has the shape {tuple(stored)}, expected {tuple(expected)}")
    missing = sorted(report["missing_keys"])
    missing = [name for name in missing if auto != BARE[0] or "pooler" not in name]  # `encode` does not need it
    if missing:
        raise WeightsError(
            f"{folder}: {len(missing)} tensors of {type(model).__name__} are missing, such as {missing[0]}"
        )
    unused = set(report["unexpected_keys"])
    return model, can, Used(
        {name: shape for name, shape in shapes.items() if name not in unused},
        {name: shape for name, shape in shapes.items() if name in unused}, {}, files,
    )  # fmt: skip


@contextmanager
def _explained(folder: Path, auto: str) -> Iterator[None]:
    """Raise what transformers raises as a WeightsError."""
    from huggingface_hub import errors

    invalid = getattr(errors, "StrictDataclassError", ValueError)  # of a config whose values do not fit together
    try:
        yield
    except WeightsError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, invalid) as cause:
        reason = " ".join(str(cause).split())[:300]
        raise WeightsError(f"{folder}: transformers cannot open it as {auto} ({reason})") from cause


def _torch_kernels_only(settings: Any) -> None:
    """Let transformers choose torch's attention or its own, whatever a config names: a kernel may be a download."""
    for part in (settings, *(getattr(settings, name, None) for name in getattr(settings, "sub_configs", ()))):
        if part is not None:
            part._attn_implementation = None


def _check_size(folder: Path, kind: Any, settings: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a config that asks for a model much larger than the files, before any memory is taken for it."""
    text = settings.get_text_config()
    width, depth = (getattr(text, key, None) for key in ("hidden_size", "num_hidden_layers"))
    if isinstance(width, int) and not any(width in shape for shape in shapes.values()):
        raise WeightsError(f"{folder}: hidden_size={width}, but no tensor has an axis of this size")
    if isinstance(depth, int) and depth > len(shapes) + LAYERS:
        raise WeightsError(f"{folder}: num_hidden_layers={depth}, but there are only {len(shapes)} tensors")
    stored = sum(prod(shape) for shape in shapes.values())
    with torch.device("meta"):
        asked = sum(p.numel() for p in kind.from_config(settings, trust_remote_code=False).parameters())
    if asked > MOST * stored:
        raise WeightsError(f"{folder}: its config asks for {asked:,} parameters, and its files have {stored:,}")


def _left_out(table: config.Table, theirs: Any, used: Used) -> str:
    """What a model does not read of its folder, for the notice about it."""
    named = next(iter(table.get("architectures") or ()), type(theirs).__name__)
    head = "" if named == type(theirs).__name__ else f"; read as {type(theirs).__name__}, without the head of {named}"
    names = sorted(used.ignored)
    if len(names) == 1:
        return f"{head}; 1 tensor is not used: {names[0]}"
    return head + (f"; {len(names)} tensors are not used, such as {names[0]}" if names else "")


def _context(theirs: Any) -> int | None:
    """The number of tokens per row that a model has positions for; None: any number."""
    sizes = [getattr(theirs.config, key, None) for key in CONTEXT]
    size = next((size for size in sizes if isinstance(size, int) and size > 0), None)
    for name, part in theirs.named_modules():  # RoBERTa and MPNet count positions from the padding id on
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return part.num_embeddings - part.padding_idx - 1
    return size


def _tokens(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder, from files that we read or else from transformers; None if it has none."""
    tokens = read_subwords(folder)
    if tokens is not None:
        return tokens
    from transformers import AutoTokenizer

    try:
        with quiet():
            theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None or backend.get_vocab_size(with_added_tokens=False) == 0:  # made up, for a folder without files
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
        with redirect_stderr(StringIO()):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
