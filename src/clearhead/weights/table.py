"""Tables between our parameter names and those of another library, in both directions.

    Row(("blocks.0.attn.query.weight", ...), ("transformer.h.0.attn.c_attn.weight",), JOINED_TRANSPOSED)

A row may give several names of theirs: the first is the usual one, the others occur in some files. Where a file has
more than one of them, they must be equal.

Layers that only differ in name are written as a dictionary, one line per layer, which `pairs` turns into rows:

    {"blocks.{}.attn.query+key+value": "transformer.h.{}.attn.c_attn"}    {}: number of the block; +: concatenated
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..layers.choices import MLPKind
from ..tokens import Pair, Tokenizer
from ..tokens.special import Special
from .fill import Shapes, Slot, WeightsError, check_dtype, check_shapes, set_tensor, slots
from .tensor_files import Tensors


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one or more tensors of ours are stored as one of theirs."""

    to_theirs: Callable[..., Tensor]  # ours -> theirs
    # theirs, our shapes -> ours
    to_ours: Callable[[Tensor, Sequence[tuple[int, ...]]], Sequence[Tensor]]


SAME = Conversion(lambda x: x, lambda x, _: [x])
TRANSPOSED = Conversion(torch.t, lambda x, _: [x.t()])  # they compute x W, we W x
ROW = Conversion(lambda x: x[None], lambda x, _: [x[0]])  # a vector stored as a matrix of one row
JOINED = Conversion(
    lambda *parts: torch.cat(parts),
    lambda x, shapes: x.split([shape[0] for shape in shapes]),
)
JOINED_TRANSPOSED = Conversion(
    lambda *parts: torch.cat([part.t() for part in parts], dim=1),
    lambda x, shapes: [part.t() for part in x.split([shape[0] for shape in shapes], dim=1)],
)


def _to_table(*parts: Tensor) -> Tensor:
    """Vectors of several tokens and places as one table (1, t, d)."""
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])[None]


def _from_table(x: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    # (1, t, d) -> one block of rows per parameter, whose leading axes are then restored
    parts = x[0].split([math.prod(shape[:-1]) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


TABLE = Conversion(_to_table, _from_table)
# tensors of a batch norm
BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of theirs: the parameters of ours that it holds, usually one, and how."""

    ours: tuple[str, ...]  # names of our parameters
    theirs: tuple[str, ...]  # names of the one tensor of theirs, the usual one first
    conversion: Conversion = SAME


# Hugging Face's words for the activation of an MLP without a gate: ours. Of several equal ones the first is written.
Activation = Literal[
    "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu", "swish", "tanh"
]
ACTIVATIONS: dict[Activation, MLPKind] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Patterns (with *) of tensors that our model does not need, each with a check of the values or None.
Ignored = Mapping[str, Callable[[Tensor, Any], bool] | None]
# (loads a class of transformers by name, inputs of our forward, our Config) -> the output of transformers.
Reference = Callable[[Callable[[str], Any], dict[str, Tensor], Any], Tensor]


def causal_lm_logits(pretrained: Callable[[str], Any], inputs: dict[str, Tensor], c: Any) -> Tensor:
    """The logits of transformers for a language model."""
    logits: Tensor = pretrained("AutoModelForCausalLM")(inputs["ids"]).logits
    return logits


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Everything that `huggingface` needs to read and write the folders of one model type."""

    model: str  # our family
    theirs: type[Any]  # dataclass of the keys of config.json that we read
    # an instance of `theirs`, shapes of the file's tensors -> our Config
    to_ours: Callable[[Any, Shapes], Any]
    # our Config -> config.json; raises if theirs cannot express it
    to_theirs: Callable[[Any, Special], dict[str, Any]]
    rows: Callable[[Any], Iterable[Row]]  # our Config -> the table
    reference: Reference  # the output of transformers, for parity certificates
    # Folder, an instance of `theirs` -> tokenizer. None: the model has none, because it reads images or vectors.
    read_tokens: Callable[[Path, Any], Tokenizer | Pair | None] | None = None
    # None: as read_tokens
    write_tokens: Callable[[Tokenizer | Pair, Path, Special], None] | None = None
    # keys of config.json that must have this value, if present
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Model type: values of keys that config.json lacks, where they differ from the defaults of `theirs`.
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prefix: str = ""  # of tensor names in a file with a head; a file without a head lacks it
    # Keys of config.json with which embedding and output layer have a table each; None: there is no such model.
    untied: Mapping[str, Any] | None = None
    # our Config -> tensors that our model does not need
    ignored: Callable[[Any], Ignored] = lambda c: {}
    rename: Callable[[str], str] | None = None  # tensor names of old files -> today's
    # where several tensors of theirs become one row of the table
    merge: Callable[[Tensors], Tensors] | None = None
    split: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None  # the inverse, for saving
    # keys from files beside config.json
    read_extra: Callable[[Path], dict[str, Any]] = lambda folder: {}
    # Our Config, folder, tokens at which texts are cut or None: writes or removes those files.
    write_extra: Callable[[Any, Path, int | None], None] = lambda c, folder, longest: None
    # tensors that they expect and we do not have
    extra_tensors: Callable[[Any], dict[str, Tensor]] = lambda model: {}


def special_keys(special: Special) -> dict[str, Any]:
    """The keys of config.json for the special ids of a language model."""
    # a number for one end, a list for several, null for none
    ends = special.ends[0] if len(special.ends) == 1 else list(special.ends) or None
    return {"pad_token_id": special.pad, "bos_token_id": special.start, "eos_token_id": ends}


def read_options(theirs: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Options of our Config that config.json has under another name; `names` is {theirs: ours}."""
    return {ours: getattr(theirs, key) for key, ours in names.items()}


def write_options(c: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Keys of config.json for options of our Config: the inverse of `read_options`."""
    return {key: getattr(c, ours) for key, ours in names.items()}


def class_keys(classes: int | None) -> dict[str, Any]:
    """The keys of config.json for the number of classes; the labels of a bundle replace the names."""
    if not classes:
        return {}
    names = {str(i): f"LABEL_{i}" for i in range(classes)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}


def their_activation(mlp: str, owner: str) -> Activation:
    """Their word for an activation of ours; raises if they have none; `owner` is who has it, for the message."""
    for theirs, ours in ACTIVATIONS.items():
        if ours == mlp:
            return theirs
    raise WeightsError(
        f"mlp={mlp!r}: {owner} has one of {', '.join(dict.fromkeys(ACTIVATIONS.values()))}"
    )


def require(c: Any, owner: str, values: Mapping[str, Any]) -> None:
    """Raise if an option of our Config has another value than the only one that `owner` can express."""
    for name, value in values.items():
        if getattr(c, name) != value:
            raise WeightsError(f"{name}={getattr(c, name)!r}: {owner} has {name}={value!r}")


def check_options(c: Any, name: str, free: Iterable[str], fixed: Mapping[str, Any]) -> None:
    """Raise unless a Config of ours has these fixed values and, where an option is not free either, its default.

    Args:
        c: Our Config.
        name: What the layout's model is called, for the message.
        free: Options that the layout can express.
        fixed: Options that are always the same in this layout.
    """
    # an option that neither side mentions must have its default, or the file could not tell
    for option in fields(c):
        value = getattr(c, option.name)
        expected = fixed.get(option.name, option.default)
        if option.name not in free and value != expected:
            raise WeightsError(f"{option.name}={value!r}: {name} has {option.name}={expected!r}")


def pairs(
    names: Mapping[str, str],
    leaves: Sequence[str] = ("weight", "bias"),
    conversion: Conversion | None = None,
) -> Iterator[Row]:
    """Rows for layers that only differ in name: one for the weight and one for the bias of each.

    Args:
        names: Ours: theirs. "attn.query+key" are the layers attn.query and attn.key, concatenated in one of theirs.
        leaves: The tensors of each layer.
        conversion: How the weights are stored; None: as ours. Biases always are.
    """
    for ours, theirs in names.items():
        # blocks.0.attn.query+key -> blocks.0.attn, [query, key]
        module, dot, last = ours.rpartition(".")
        layers = [f"{module}{dot}{name}" for name in last.split("+")]
        plain = SAME if len(layers) == 1 else JOINED
        for leaf in leaves:
            # a conversion, such as a transposition, is one of matrices: biases are only joined
            how = conversion if leaf == "weight" and conversion is not None else plain
            yield Row(tuple(f"{layer}.{leaf}" for layer in layers), (f"{theirs}.{leaf}",), how)


def blocks(
    names: Mapping[str, str],
    depth: int,
    leaves: Sequence[str] = ("weight", "bias"),
    conversion: Conversion | None = None,
) -> Iterator[Row]:
    """Rows for the layers of all blocks: `pairs` with the number of the block in place of {}."""
    for i in range(depth):
        numbered = {ours.format(i): theirs.format(i) for ours, theirs in names.items()}
        yield from pairs(numbered, leaves, conversion)


def embeddings(c: Any, table: str, head: str = "lm_head.weight") -> Iterator[Row]:
    """Rows for the embeddings of a language model and its output layer, which are one table if they are tied."""
    # some files store a tied table twice, once as the output layer
    if c.tied:
        yield Row(("embed.table",), (table, head))
    else:
        yield Row(("embed.table",), (table,))
        yield Row(("head.weight",), (head,))


def conv_norms(names: Mapping[str, tuple[str, str]]) -> Iterator[Row]:
    """Rows for our ConvNorms: for each the names of their convolution and of their batch norm."""
    for ours, (conv, norm) in names.items():
        # a convolution has no bias if a batch norm follows, which would subtract it
        yield Row((f"{ours}.conv.weight",), (f"{conv}.weight",))
        yield from pairs({f"{ours}.norm": norm}, BATCH_NORM)


def with_counters(tensors: Tensors) -> Tensors:
    """The same tensors, with the counter of batches of each batch norm, which old files lack, as 0."""
    missing = {}
    for name in tensors.shapes:
        if name.endswith("running_mean"):
            counter = f"{name.removesuffix('running_mean')}num_batches_tracked"
            if counter not in tensors.shapes:
                # only training counts batches
                missing[counter] = torch.tensor(0)
    return tensors.replaced((), missing)


@dataclass(frozen=True, slots=True)
class UsedTensors:
    """Which tensors of a folder a model was loaded from."""

    used: dict[str, tuple[int, ...]]  # name: shape
    ignored: dict[str, tuple[int, ...]]  # name: shape
    types: dict[str, int]  # stored format: number of values
    files: tuple[str, ...]  # names of the weight files


@torch.no_grad()
def fill(
    model: nn.Module,
    tensors: Tensors,
    rows: Iterable[Row],
    ignored: Ignored,
    device: torch.device,
    dtype: torch.dtype | None,
) -> UsedTensors:
    """Give a model from `build_empty` the tensors of another library's files; returns which were used.

    On the meta device names and shapes are checked, and no tensor is read.
    """
    reads = device.type != "meta"
    # the table must name every parameter once: this is a mistake of ours, not of the file
    places, rows = slots(model), list(rows)
    names = [name for row in rows for name in row.ours]
    assert sorted(names) == sorted(places), (
        f"in the table or the model, not in both: {set(names) ^ set(places)}"
    )
    # constants and heads of other tasks first: they are not in the table
    left_out = _ignored(model, tensors, ignored, check_values=reads)
    used = {name: shape for name, shape in tensors.shapes.items() if name not in left_out}
    remaining = dict(used)
    sources = _sources(rows, remaining, tensors, check_values=reads)
    _check_shapes(remaining, rows, sources, places, tensors)
    types: Counter[str] = Counter()
    # one tensor after the other, so that few are in memory beside the model
    for row, name in zip(rows, sources, strict=True) if reads else ():
        tensor = tensors[name]
        check_dtype(name, tensor, places[row.ours[0]][0], tensors.files[name])
        types[tensors.types.get(name) or dtype_name(tensor)] += tensor.numel()
        shapes = [tuple(places[ours][0].shape) for ours in row.ours]
        # one of our parameters, or the parts of a joined matrix
        for ours, part in zip(row.ours, row.conversion.to_ours(tensor, shapes), strict=True):
            set_tensor(places[ours], part, device, dtype)
    model.to(device)  # constants, which are not in the state
    files = sorted({path.name for path in tensors.files.values()})
    return UsedTensors(used, left_out, dict(types), tuple(files))


def export(model: nn.Module, rows: Iterable[Row]) -> dict[str, Tensor]:
    """The parameters of a model under the names and in the layout of another library, on the CPU."""
    places, tensors = slots(model), dict[str, Tensor]()
    for row in rows:
        if all(ours in places for ours in row.ours):
            parts = (places[ours][0].detach().cpu() for ours in row.ours)
            tensors[row.theirs[0]] = row.conversion.to_theirs(*parts).contiguous()
    return tensors


def dtype_name(tensor: Tensor) -> str:
    """The name of a tensor's dtype, as in "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def _ignored(
    model: nn.Module, tensors: Tensors, ignored: Ignored, *, check_values: bool
) -> dict[str, tuple[int, ...]]:
    """The tensors that the model does not need; raises if a constant has other values than the model computes."""
    matched = {}
    for name, shape in tensors.shapes.items():
        patterns = [pattern for pattern in ignored if fnmatchcase(name, pattern)]
        if not patterns:
            continue
        # the first pattern that matches decides
        check = ignored[patterns[0]]
        if check_values and check is not None and not check(tensors[name], model.config):
            raise WeightsError(
                f"{tensors.files[name]}: {name} is not the constant that such a model has"
            )
        matched[name] = shape
    return matched


def _sources(
    rows: Iterable[Row],
    shapes: dict[str, tuple[int, ...]],
    tensors: Tensors,
    *,
    check_values: bool,
) -> list[str]:
    """The tensor that each row is read from; a second, equal one is taken out of `shapes`."""
    sources = []
    for row in rows:
        # a tied table may be in a file under several names
        present = [name for name in row.theirs if name in shapes]
        for other in present[1:]:
            differ = shapes[other] != shapes[present[0]]
            if not differ and check_values:
                differ = not torch.equal(tensors[present[0]], tensors[other])
            if differ:
                raise WeightsError(
                    f"{tensors.files[other]}: {present[0]} and {other} differ, and the model has one table for both"
                )
            del shapes[other]
        # a missing one is reported under its usual name
        sources.append(present[0] if present else row.theirs[0])
    return sources


def _check_shapes(
    shapes: Shapes,
    rows: Sequence[Row],
    sources: Sequence[str],
    places: Mapping[str, Slot],
    tensors: Tensors,
) -> None:
    """Raise unless there are exactly the tensors of the model; the message names the file of a wrong one."""
    expected = {}
    for row, name in zip(rows, sources, strict=True):
        ours = (places[part][0] for part in row.ours)  # on the meta device
        # on the meta device their shape follows without computing a value
        expected[name] = tuple(row.conversion.to_theirs(*ours).shape)
    # wrong shapes before missing tensors, because their message can name the file
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            check_shapes({name: shapes[name]}, {name: shape}, tensors.files[name])
    check_shapes(shapes, expected, tensors.path)
