"""Model folders of Hugging Face's libraries, to and from our models.

`model_type` in config.json names the layout, a two-way table of names and options (see gpt2.py); relatives share a
file. To add one, write its Layout, and its name in LAYOUT_FILES and SAVED_AS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from ... import config
from ...atomic_files import atomic_write
from ...errors import nearest
from ...models import Model, family, family_of
from ...tokens import Pair, Tokenizer
from ...tokens.chat_template import read_template
from ...tokens.special import ID_KEYS, Special, special_of_config
from ..bundle import Bundle, Scores, check_tokens
from ..fill import WeightsError, build_empty
from ..table import Layout, UsedTensors, dtype_name, export, fill
from ..tensor_files import Tensors, open_tensors, replace_tensors
from .preprocessor import read_preprocessing, write_preprocessing
from .sentence_transformers import longest_text, sentence_tokens
from .tokenizers import between, remove_tokens, with_mask, write_chat

# model_type: the file of this folder with its Layout, in LAYOUTS.
LAYOUT_FILES = {
    "llama": "llama", "mistral": "llama", "qwen2": "llama", "qwen3": "llama", "phi3": "llama", "olmo2": "llama",
    "gemma2": "gemma", "gemma3_text": "gemma", "gpt2": "gpt2",
    "bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "distilbert": "bert",
    "marian": "marian", "bart": "marian", "mbart": "marian", "m2m_100": "marian", "pegasus": "marian", "t5": "t5",
    "vit": "vit", "deit": "vit", "dinov2": "vit", "dinov2_with_registers": "vit",
    "resnet": "convnets", "convnext": "convnets", "vision-encoder-decoder": "captioner",
}  # fmt: skip
# Our family: the model types to save it as, in order of preference; one of those that share a table stands for all.
SAVED_AS = {
    "transformer": ("marian", "bart", "t5"), "gpt": ("gpt2", "llama", "phi3", "olmo2", "gemma2"),
    "bert": ("bert", "roberta", "distilbert"), "vit": ("vit", "deit", "dinov2", "dinov2_with_registers"),
    "resnet": ("resnet",), "convnext": ("convnext",), "captioner": ("vision-encoder-decoder",),
}  # fmt: skip
# Keys that tell the model type of a config.json that is older than the key model_type.
MARKS = {"gpt2": ("n_embd", "n_head"), "bert": ("type_vocab_size", "hidden_size")}
# How the names of transformers' classes end whose tensors may look like those of a classifier of texts.
UNREAD = {
    "ForTokenClassification": "labels each token",
    "ForQuestionAnswering": "marks the answer in a text",
    "ForMultipleChoice": "chooses one of several texts",
}
# Ours: problem_type of config.json.
PROBLEMS: dict[Scores, str] = {
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "value": "regression",
}
INSTALL = "; with transformers (pip install clearhead[transformers]) other models that read one text open, too"


def get_layout(model_type: str) -> Layout:
    """The Layout of a model type."""
    family_file = import_module(f".{LAYOUT_FILES[model_type]}", __package__)
    layout: Layout = family_file.LAYOUTS[model_type]
    return layout


def model_type(table: config.Table) -> str:
    """The model type of a config.json; raises if it is not one of LAYOUT_FILES."""
    name = table.get("model_type")
    if name is None:
        # the first files have no model type, but keys that no other type has
        marked = [known for known, keys in MARKS.items() if all(key in table for key in keys)]
        name = marked[0] if marked else None
    if not isinstance(name, str) or name not in LAYOUT_FILES:
        place, hint = table.origin.place(("model_type",)), nearest(str(name), LAYOUT_FILES)
        # no use of the hint where transformers is installed and lacks the model, too
        more = "" if find_spec("transformers") else INSTALL
        raise WeightsError(
            f"{place}model_type is {name!r}: expected one of {', '.join(LAYOUT_FILES)}{hint}{more}"
        )
    return name


def check_class(name: Any, where: str) -> None:
    """Raise for a class of transformers whose task no family here has; `where` begins the message."""
    for ending, task in UNREAD.items():
        if isinstance(name, str) and name.endswith(ending):
            raise WeightsError(
                f"{where}: such a model {task}, which no family here does: expected a language model, a translator, or "
                "an encoder that predicts masked tokens, classifies or embeds texts"
            )


def load(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    changed: Mapping[str, Tensor] | None = None,
    words: Mapping[str, Any] | None = None,
) -> tuple[Bundle, UsedTensors]:
    """Load a folder of theirs; returns the bundle, and which tensors it was loaded from.

    Args:
        folder: The folder.
        device: Where to put the model.
        dtype: The dtype of the weights; None: the stored one.
        changed: Tensors, by their names, that replace those of the folder or are added to them.
        words: Keys that replace those of config.json.
    """
    table = config.load(folder / "config.json")
    table = config.Table({**table, **(words or {})}, origin=table.origin)
    own_type = model_type(table)
    layout = get_layout(own_type)
    if not changed:  # else the adapters tell what the model is for
        for name in _listed(table.get("architectures")):
            check_class(name, f"{table.place('architectures')}architectures names {name}")
    # keys from other files, such as the pooling of sentence-transformers
    keys = config.Table({**table, **layout.read_extra(folder)}, origin=table.origin)
    theirs = read_theirs(layout, keys)
    with open_tensors(folder) as tensors:
        where = folder / "config.json"
        model, used = build(layout, theirs, tensors, device, dtype, where, changed or {})
    if dtype is None:
        # with a dtype given, `fill` has converted all of them
        _one_dtype(model, table)
    tokens = None
    if layout.read_tokens is not None:
        # the files of sentence-transformers may ask for lowercase texts
        tokens = sentence_tokens(folder, layout.read_tokens(folder, theirs))
    check_tokens(tokens, model.config, str(folder))
    classes = getattr(model.config, "classes", None)
    labels = None
    # adapters may bring a head for other classes than those that config.json names
    if not changed or len(table.get("id2label", ())) == classes:
        labels = class_names(folder, table, classes)
    reads_images = model.reads in ("images", "captions")
    bundle = Bundle(
        model,
        tokens,
        model.config,
        folder,
        special_of_config(folder, table),
        read_template(folder),
        labels,
        preprocessing=read_preprocessing(folder) if reads_images else None,
        model_type=own_type,
        longest=longest_text(folder, model),
        scores=read_scores(table, classes),
        # the languages name the columns of a translator's data
        columns=_languages(folder) if "translate" in model.can else {},
    )
    return bundle, used


def _languages(folder: Path) -> dict[str, str]:
    """The languages of a translator's source and target, if its folder names them."""
    path = folder / "tokenizer_config.json"
    table = config.load(path) if path.is_file() else config.Table()
    named = {side: table.get(f"{side}_lang") for side in ("source", "target")}
    return {side: name for side, name in named.items() if isinstance(name, str) and name}


def build(
    layout: Layout,
    theirs: Any,
    tensors: Tensors,
    device: torch.device,
    dtype: torch.dtype | None,
    where: Path,
    changed: Mapping[str, Tensor] | None = None,
) -> tuple[Model, UsedTensors]:
    """Build our model and fill it with their tensors; `where` is the file with its sizes, for error messages."""
    # names first: what follows knows only today's
    tensors = today(layout, tensors)
    if changed:
        # the tensors of adapters take the place of the base model's
        tensors = tensors.replaced(changed, changed)
    if layout.merge is not None:
        tensors = layout.merge(tensors)
    with naming(where):
        # shapes tell what config.json does not, such as which head there is
        options = layout.to_ours(theirs, tensors.shapes)
    family_class, _ = family(layout.model)
    model = build_empty(family_class, options, tensors.shapes, where, tensors.path)
    rows, ignored = layout.rows(model.config), layout.ignored(model.config)
    used = fill(model, tensors, rows, ignored, device, dtype)
    return model.eval(), used


@contextmanager
def naming(where: Path) -> Iterator[None]:
    """Context in which an error about options becomes a WeightsError that begins with the file."""
    try:
        yield
    except ValueError as cause:
        raise WeightsError(f"{where}: {cause}") from cause


def today(layout: Layout, tensors: Tensors) -> Tensors:
    """The tensors of a file under today's names, with the prefix that a file saved without a head lacks."""
    # the first BERTs say gamma and beta
    if layout.rename is not None:
        tensors = tensors.renamed(layout.rename)
    # saved from the class without a head
    if layout.prefix and not any(name.startswith(layout.prefix) for name in tensors.shapes):
        tensors = tensors.renamed(lambda name: layout.prefix + name)
    return tensors


def _one_dtype(model: Model, table: config.Table) -> None:
    """Cast a model whose files mix floating-point types to the one that config.json names, or else the most frequent.

    Transformers does the same; such a model could not be called, because products need one dtype.
    """
    # weighted by size: norms in float32 do not outvote matrices
    counts: Counter[torch.dtype] = Counter()
    for p in model.parameters():
        counts[p.dtype] += p.numel()
    if len(counts) > 1:
        # older files say torch_dtype
        dtype = getattr(torch, str(table.get("dtype") or table.get("torch_dtype")), None)
        if dtype not in counts:
            dtype = counts.most_common(1)[0][0]
        model.to(dtype)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def read_theirs(layout: Layout, table: config.Table) -> Any:
    """The keys of config.json that we read, as the layout's dataclass; raises for what we do not support."""
    if table.get("quantization_config") is not None:
        place = table.place("quantization_config")
        raise WeightsError(
            f"{place}quantization_config: quantised weights are not supported, expected plain ones"
        )
    # variants of a family that ours does not have
    for name, value in layout.fixed.items():
        # a key that is missing has the value that we support
        if table.get(name, value) != value:
            raise WeightsError(
                f"{table.place(name)}{'.'.join((*table.key, name))} is {table[name]}: expected {value}"
            )
    hints = get_type_hints(layout.theirs)
    # A null means the default, unless the field itself may be None.
    nulls = {
        name
        for name, hint in hints.items()
        if table.get(name) is None and type(None) not in get_args(hint)
    }
    # all other keys are for training, for generation, or have no effect here
    given = table.without(*(name for name in table if name not in hints or name in nulls))
    own_type = table.get("model_type")
    defaults = layout.defaults.get(own_type, {}) if isinstance(own_type, str) else {}
    return config.read(layout.theirs, given.with_defaults(defaults))


def class_names(folder: Path, table: config.Table, classes: int | None) -> tuple[str, ...] | None:
    """The names of a classifier's classes, if config.json has any; raises unless it has one for each."""
    names = table.get("id2label")
    if not classes or not isinstance(names, dict):
        return None
    if len(names) != classes == table.get("num_labels"):
        return None  # in old files num_labels is right where both differ
    # labels of another head
    if names.keys() != {str(i) for i in range(classes)}:
        raise WeightsError(
            f"{folder / 'config.json'}: id2label has {len(names)} names, expected one for each of the classes 0 to "
            f"{classes - 1} of the output layer"
        )
    return tuple(str(names[str(i)]) for i in range(classes))


def read_scores(table: config.Table, classes: int | None) -> Scores:
    """How the logits of a classifier become scores, as in the pipelines of transformers: one output has a sigmoid."""
    problem = table.get("problem_type")
    if problem is not None and problem not in PROBLEMS.values():
        place, known = table.place("problem_type"), ", ".join(PROBLEMS.values())
        raise WeightsError(f"{place}problem_type is {problem!r}: expected one of {known}")
    scores: Scores = "softmax"
    for ours, theirs in PROBLEMS.items():
        if theirs == problem:
            scores = ours
    if classes == 1 and scores != "value":
        # the softmax of a single output would always be 1
        return "sigmoid"
    return scores


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder of theirs has for a bundle, beside its weights."""

    layout: Layout
    config: dict[str, Any]  # config.json
    tokens: dict[str, bytes]  # files of the tokenizer, by name


def contents(bundle: Bundle) -> Contents:
    """What a folder of theirs would have for a bundle; raises WeightsError if it cannot express the bundle.

    The weights are not looked at: they may be on the meta device.
    """
    special = bundle.special or Special()
    # the first model type whose options can express the model
    layout, theirs = _their_config(bundle, special)
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    if bundle.preprocessing is not None and bundle.preprocessing.channels != "rgb":
        # their image processors have no key for another order of channels
        raise WeightsError(
            f"channels={bundle.preprocessing.channels!r}: a Hugging Face folder has channels='rgb'"
        )
    return Contents(layout, theirs, token_files(bundle, layout, special))


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle as a folder that from_pretrained reads; returns the folder."""
    planned, special = contents(bundle), bundle.special or Special()
    layout, theirs = planned.layout, planned.config
    # weights first: if the disk is full, the other files are still those of the old model
    tensors = export(bundle.model, layout.rows(bundle.config)) | layout.extra_tensors(bundle.model)
    if layout.split is not None:
        tensors = layout.split(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    replace_tensors(folder / "model.safetensors", tensors)
    remove_tokens(folder)  # of the model that was here before
    for name, content in planned.tokens.items():
        atomic_write(folder / name, content)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    layout.write_extra(bundle.config, folder, bundle.longest)
    if layout.write_tokens is None:
        # no tokenizer, and so no special ids
        (folder / "generation_config.json").unlink(missing_ok=True)
    else:
        config.write(_generation_keys(theirs, special), folder / "generation_config.json")
    # in place of LABEL_0 and so on
    if bundle.labels is not None:
        theirs["id2label"] = {str(i): label for i, label in enumerate(bundle.labels)}
        theirs["label2id"] = {label: i for i, label in enumerate(bundle.labels)}
    if bundle.scores != "softmax":
        theirs["problem_type"] = PROBLEMS[bundle.scores]
    dtype = dtype_name(next(bundle.model.parameters()))
    config.write({**theirs, "dtype": dtype}, folder / "config.json")
    return folder


def _generation_keys(theirs: Mapping[str, Any], special: Special) -> dict[str, Any]:
    """The keys of generation_config.json: special ids, of which config.json may have no place for some."""
    keys = {key: theirs[key] for key in ID_KEYS if theirs.get(key) is not None}
    if len(special.ends) > 1:
        # most model types write only the first into config.json
        keys["eos_token_id"] = list(special.ends)
    if special.pad is not None:
        keys["pad_token_id"] = special.pad
    if special.last is not None:
        keys["forced_eos_token_id"] = special.last
    # a decoder that starts with padding must not write it
    is_translator = "decoder_start_token_id" in theirs
    if is_translator and special.pad is not None and special.pad not in special.ends:
        keys["bad_words_ids"] = [[special.pad]]
    return keys


def token_files(bundle: Bundle, layout: Layout, special: Special) -> dict[str, bytes]:
    """The files of the tokenizer, by name; raises if the layout has no format for it."""
    if bundle.tokens is None:
        return {}
    # check_tokens refuses tokens for a model that reads none
    assert layout.write_tokens is not None
    # Write the tokens to a scratch folder first: if the format cannot express them, nothing has changed.
    with TemporaryDirectory() as scratch:
        layout.write_tokens(_tokens_as_read(bundle), Path(scratch), special)
        # every writer of tokenizers leaves this file, to which the model adds what it knows
        settings = Path(scratch) / "tokenizer_config.json"
        config.write({**config.load(settings), **_input_settings(bundle)}, settings)
        return {path.name: path.read_bytes() for path in Path(scratch).iterdir()}


def _tokens_as_read(bundle: Bundle) -> Tokenizer | Pair:
    """The tokenizer as the model uses it: that of an encoder with BOS, EOS and the mask token."""
    assert bundle.tokens is not None
    # a decoder's texts begin and end as its own tokenizer has it
    if isinstance(bundle.tokens, Pair) or bundle.reads != "tokens" or "predict" in bundle.can:
        return bundle.tokens
    tokens = bundle.tokens
    if "fill" in bundle.can:
        # some models have an id for a mask token that their tokenizer lacks
        tokens = with_mask(tokens, bundle.config.vocab)
    return between(tokens)


def _input_settings(bundle: Bundle) -> dict[str, Any]:
    """Keys of tokenizer_config.json that follow from the model: where texts are cut, and which inputs it has."""
    settings: dict[str, Any] = {}
    longest = bundle.longest or bundle.max_tokens
    if longest is not None:
        settings["model_max_length"] = longest
    types = getattr(bundle.config, "types", None) or 0
    if types > 1:  # else a second text would have the type of the first
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return settings


def _their_config(bundle: Bundle, special: Special) -> tuple[Layout, dict[str, Any]]:
    """The first model type that can express a model, and its config.json; that of its own folder comes first."""
    name = family_of(bundle.model)
    if name not in SAVED_AS:
        known = ", ".join(SAVED_AS)
        raise WeightsError(
            f"{name}: there is no Hugging Face layout for such a model here: expected one of {known}"
        )
    reasons = []
    candidates = list(SAVED_AS[name])
    if bundle.model_type is not None:
        # its own type first, so that a folder is saved as what it was
        candidates.insert(0, bundle.model_type)
    # without repetition: its own type may also be one of the usual ones
    for candidate in dict.fromkeys(candidates):
        layout = get_layout(candidate)
        try:
            return layout, layout.to_theirs(bundle.config, special)
        except WeightsError as problem:
            reasons.append(str(problem))
    raise WeightsError("; or ".join(reasons))
