"""Our own model folder.

config.json                {"clearhead": version, "model": family, "options": {...}}: build(family, **options)
model.safetensors          every parameter and every persistent buffer; a shared one once, under its first name
tokens.json                the tokenizer, if the model reads text; or the other files that clearhead.tokens writes
chat_template.jinja        the Jinja template that turns a conversation into one text, for a chat model
preprocessor_config.json   how an image becomes the model's input, if it reads images

Saving and loading returns the same bits, whatever the dtype. The layout "compact" rounds matrices to 8 bits instead,
and may take a part of the model from a folder beside it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__, config
from .. import tokens as text
from ..models import family, family_of
from ..tokens import Pair, Tokenizer
from ..tokens.chat_template import read_template
from ..tokens.special import Special
from .bundle import Bundle, Scores, check_tokens
from .fill import WeightsError, build_empty, check_dtype, check_shapes, set_tensor, slots, state
from .huggingface.preprocessor import read_preprocessing, write_preprocessing
from .huggingface.tokenizers import write_chat
from .table import UsedTensors, dtype_name
from .tensor_files import Tensors, open_file, replace_tensors

# Compact storage in our own folder: matrices in 8 bits, and parts of a model that another folder holds.
#
# model.safetensors   NAME (int8) and NAME.scale: the tensor is their product, with one scale per row
# config.json         "shared": {"encoder": "captioner"}: the tensors encoder.* are those of the folder captioner that
#                     lies beside this one


SCALE = ".scale"  # follows the name of a rounded tensor
MOST = 127  # largest number of a byte
TINY = 1e-30  # the scale of a row of zeros
# scales are stored in bfloat16, which has the range of float32; rounded down they would clip a row
UP = 1 + 2.0**-7


def compress(tensors: Mapping[str, Tensor], buffers: frozenset[str]) -> dict[str, Tensor]:
    """The tensors of a compact file: matrices and kernels in 8 bits, buffers unchanged, others in half precision.

    Args:
        tensors: The tensors of a model.
        buffers: The names of its buffers: the variances of a batch norm may exceed half precision.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        x = tensor.detach().cpu()
        # statistics and counters stay exact
        if name in buffers or not x.is_floating_point():
            stored[name] = x
        # vectors are few: a scale for each would cost more than it saves
        elif x.ndim < 2 or x.shape[0] == 1:
            half = x.half()
            # float16 ends at 65504: a vector with a larger value keeps its dtype
            fits = torch.equal(half.isfinite(), x.isfinite())
            stored[name] = half if fits else x
        else:
            # one scale per row: the largest value of a row becomes 127
            rows = x.float().flatten(1)
            # UP makes up for rounding the scale to bfloat16, so that no quotient exceeds 127
            scale = (rows.abs().amax(1) * UP / MOST).clamp(min=TINY).bfloat16()
            stored[name] = (rows / scale.float()[:, None]).round().to(torch.int8).reshape(x.shape)
            stored[name + SCALE] = scale
    return stored


def without_shared(
    tensors: Mapping[str, Tensor], folder: Path, shared: Mapping[str, str]
) -> dict[str, Tensor]:
    """The tensors that a compact file itself holds; raises unless the shared ones are equal to those of their folder.

    Args:
        tensors: The result of `compress`.
        folder: The folder that is written.
        shared: Part of the model: name of the folder beside `folder` that holds it.
    """
    # equal to the bit, or the parts could not be taken from the other folder later
    kept = dict(tensors)
    for part, other in shared.items():
        with open_file(_file_beside(folder, part, other)) as there:
            own = [name for name in tensors if name.startswith(f"{part}.")]
            for name in own:
                if name not in there.shapes or not torch.equal(there[name], tensors[name]):
                    raise WeightsError(
                        f"{there.path}: the tensor {name} is not that of the model to be saved"
                    )
                # the other folder holds it
                del kept[name]
    return kept


@contextmanager
def open_compact(path: Path, shared: Mapping[str, str]) -> Iterator[Tensors]:
    """Open a safetensors file with the shared parts of its model; one with 8-bit tensors is read as float32."""
    # all files stay open until the tensors have been read
    with ExitStack() as stack:
        tensors = stack.enter_context(open_file(path))
        for part, other in shared.items():
            there = stack.enter_context(open_file(_file_beside(path.parent, part, other)))
            tensors = _joined(tensors, there, f"{part}.")
        yield _expanded(tensors)


def _file_beside(folder: Path, part: str, other: str) -> Path:
    """The weight file of the folder that holds a shared part."""
    # a plain name, so that config.json cannot lead to files elsewhere
    if Path(other).name != other or other in ("", ".", ".."):
        raise WeightsError(
            f"{folder}: {part} is shared with {other!r}: expected the name of a folder beside this one"
        )
    path = folder.absolute().parent / other / "model.safetensors"
    if not path.is_file():
        raise WeightsError(
            f"{folder}: {part} is that of the folder {other} beside it, and there is no {path}"
        )
    return path


def _joined(own: Tensors, there: Tensors, prefix: str) -> Tensors:
    """The tensors of a file, and those of another file whose names begin with a prefix."""
    # the other folder may hold more than the shared part
    names = {name for name in there.shapes if name.startswith(prefix)}
    for name in sorted(names & own.shapes.keys()):
        raise WeightsError(
            f"{own.path}: the tensor {name} is also in {there.path}, which it is shared with"
        )
    shapes = {**own.shapes, **{name: there.shapes[name] for name in names}}
    files = {**own.files, **{name: there.files[name] for name in names}}

    def read(name: str) -> Tensor:
        return there.read(name) if name in names else own.read(name)

    return Tensors(own.path, shapes, files, read)


def _expanded(tensors: Tensors) -> Tensors:
    """The same tensors, each int8 one multiplied by its scale, and then all in float32."""
    rounded = {name for name in tensors.shapes if name + SCALE in tensors.shapes}
    if not rounded:
        return tensors
    for name in rounded:
        if tensors.shapes[name + SCALE] != tensors.shapes[name][:1]:
            raise WeightsError(
                f"{tensors.files[name]}: the tensor {name + SCALE} has the shape {tensors.shapes[name + SCALE]}, "
                f"expected {tensors.shapes[name][:1]}"
            )

    def read(name: str) -> Tensor:
        x = tensors.read(name)
        # vectors are stored in half precision, counters and statistics as they were
        if name not in rounded:
            return x.float() if x.is_floating_point() else x
        if x.dtype != torch.int8:
            raise WeightsError(
                f"{tensors.files[name]}: the tensor {name} is {x.dtype}, expected int8, for its scale"
            )
        scale = tensors.read(name + SCALE).float()
        # (rows) -> (rows, 1, ...): one scale for each row of a matrix or kernel
        return x.float() * scale.reshape(-1, *[1] * (x.ndim - 1))

    # scales are not tensors of the model
    scales = {name + SCALE for name in rounded}
    kept = [name for name in tensors.shapes if name not in scales]
    return Tensors(
        tensors.path,
        {name: tensors.shapes[name] for name in kept},
        {name: tensors.files[name] for name in kept},
        read,
        dict.fromkeys(rounded, "int8"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderSettings:
    """The contents of config.json."""

    clearhead: str  # version that wrote it
    model: str  # family
    options: dict[str, Any]  # fields of the family's Config
    special: Special | None = None  # special ids, where they differ from the tokenizer's
    labels: tuple[str, ...] | None = None  # names of the classes
    # columns it was trained on, by what they are for
    columns: dict[str, str] = field(default_factory=dict)
    # part of the model: folder beside this one that holds it
    shared: dict[str, str] = field(default_factory=dict)
    chat: str | None = None  # the chat template, which is in a file of its own
    # how the logits of a classifier become scores, where not by a softmax
    scores: Scores | None = None
    # tokens at which a text is cut, where these are fewer than the model can read
    longest: int | None = None


def save(bundle: Bundle, folder: Path) -> Path:
    """Write a bundle into a folder, each file whole or not at all; returns the folder."""
    return _write(bundle, folder, state(bundle.model), {})


def save_compact(bundle: Bundle, folder: Path, shared: Mapping[str, str] | None = None) -> Path:
    """Write a bundle with matrices in 8 bits; `shared` names parts of the model, and the folders that hold them."""
    names = frozenset(name for name, _ in bundle.model.named_buffers())
    tensors = without_shared(compress(state(bundle.model), names), folder, shared or {})
    return _write(bundle, folder, tensors, shared or {})


def _write(
    bundle: Bundle, folder: Path, tensors: Mapping[str, Tensor], shared: Mapping[str, str]
) -> Path:
    settings = _checked_settings(bundle, shared)
    folder.mkdir(parents=True, exist_ok=True)
    # The largest file first: if the disk is full, the other files are still those of the old model.
    replace_tensors(folder / "model.safetensors", tensors)
    return _write_settings(bundle, folder, settings)


def write_without_weights(bundle: Bundle, folder: Path) -> Path:
    """Write everything of a bundle but its weights into a folder; returns the folder."""
    settings = _checked_settings(bundle, {})
    folder.mkdir(parents=True, exist_ok=True)
    return _write_settings(bundle, folder, settings)


def _checked_settings(bundle: Bundle, shared: Mapping[str, str]) -> dict[str, Any]:
    """The content of config.json; raises for a model that could not be loaded again."""
    settings = config.dump(replace(settings_of(bundle), shared=dict(shared), chat=None))
    # before anything is written
    check_tokens(bundle.tokens, bundle.config, "cannot be saved")
    # what has no value is left out of the file
    return {name: value for name, value in settings.items() if value is not None and value != {}}


def _write_settings(bundle: Bundle, folder: Path, settings: Mapping[str, Any]) -> Path:
    if bundle.tokens is None:
        text.remove(folder)  # of the model that was here before
    else:
        text.save(bundle.tokens, folder)
    write_chat(bundle.chat, folder)
    write_preprocessing(bundle.preprocessing, folder)
    config.write(settings, folder / "config.json")  # last: without it a new folder is not a model
    return folder


def read_settings(folder: Path) -> FolderSettings:
    """The contents of config.json, with the chat template beside it."""
    saved = config.read(FolderSettings, config.load(folder / "config.json"))
    return replace(saved, chat=read_template(folder))


def settings_of(bundle: Bundle) -> FolderSettings:
    """The settings of a bundle, as its folder would have them."""
    return FolderSettings(
        clearhead=__version__,
        model=family_of(bundle.model),
        options=config.dump(bundle.config),
        special=None if bundle.special == Special.of(bundle.tokens) else bundle.special,
        labels=bundle.labels,
        chat=bundle.chat,
        columns=dict(bundle.columns),
        longest=bundle.longest,
        scores=None if bundle.scores == "softmax" else bundle.scores,
    )


def load(
    folder: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    """Load a folder that `save` wrote; returns the bundle, and which tensors it was loaded from."""
    table = config.load(folder / "config.json")
    saved = config.read(FolderSettings, table)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise WeightsError(f"{folder}: there is no model.safetensors in this folder")
    try:
        family_class, options_class = family(saved.model)
    except ValueError as cause:
        raise WeightsError(f"{table.origin.place(('model',))}{cause}") from cause
    options = config.read(options_class, table["options"])
    tokens_file = text.saved(folder)
    tokens = None if tokens_file is None else text.load(folder)
    check_tokens(tokens, options, str(tokens_file))
    with open_compact(path, saved.shared) as tensors:
        where = folder / "config.json"
        # the sizes are checked against the header of the file before any tensor is read
        model = build_empty(family_class, options, tensors.shapes, where, path)
        used = fill_model(model, tensors, device, dtype)
    return make_bundle(folder, saved, model, tokens), used


def make_bundle(
    folder: Path,
    saved: FolderSettings,
    model: nn.Module,
    tokens: Tokenizer | Pair | None,
    *,
    base: str | None = None,
) -> Bundle:
    """The bundle of a model, with everything that its folder says beside the weights."""
    return Bundle(
        model,
        tokens,
        # None: model.config
        None,
        folder,
        saved.special,
        read_template(folder),
        saved.labels,
        preprocessing=read_preprocessing(folder),
        columns=saved.columns,
        longest=saved.longest,
        scores=saved.scores or "softmax",
        base=base,
    )


@torch.no_grad()
def fill_model(
    model: nn.Module, tensors: Tensors, device: torch.device, dtype: torch.dtype | None
) -> UsedTensors:
    """Give a model from `build_empty` the tensors of its folder; on the meta device only their shapes are checked."""
    expected = {name: tuple(x.shape) for name, x in state(model).items()}
    check_shapes(tensors.shapes, expected, tensors.path)
    types: Counter[str] = Counter()
    reads_values = device.type != "meta"
    for name, slot in slots(model).items() if reads_values else ():
        tensor = tensors[name]
        check_dtype(name, tensor, slot[0], tensors.files[name])
        # counted in the stored format: a rounded tensor is int8, though it was read as float32
        types[tensors.types.get(name) or dtype_name(tensor)] += tensor.numel()
        set_tensor(slot, tensor, device, dtype)
    model.to(device)  # constants, which are not in the state
    files = dict.fromkeys(file.name for file in tensors.files.values())
    return UsedTensors(dict(tensors.shapes), {}, dict(types), tuple(files))


# fingerprint: a short text by which a change of a model's weights is noticed.


# bytes of a number: the type with its bits
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the names, the dtypes, the shapes, and the sums of the bits of tensors: one pass over their memory.

    Args:
        tensors: The tensors by name, on any device.
    """
    # a sum of bits is one pass over the memory, and much faster than a hash of all bytes
    digest = hashlib.blake2b(digest_size=12)
    # sorted, because the order of the modules is not part of the weights
    for name, x in sorted(tensors.items()):
        numbers = x.detach().contiguous().reshape(-1).view(BITS[x.element_size()])
        bits = numbers.sum(dtype=torch.int64)
        digest.update(f"{name} {x.dtype} {tuple(x.shape)} {int(bits)}\n".encode())
    return digest.hexdigest()
