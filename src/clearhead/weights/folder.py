"""load and save: between a bundle and a folder (ours, Hugging Face's, timm's) or a file of weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import config
from ..devices import find_device, find_dtype
from ..errors import InputError, nearest
from ..layers.lora import adapters, merge_adapters
from ..tokens import Pair, Tokenizer
from . import gguf, huggingface, keras_resnet, native, peft, peft_save, state_files, timm, transformers_folder
from .bundle import Bundle
from .fill import WeightsError
from .hub import fetch, is_hub_name
from .native import Saved
from .quantised import quantise
from .table import Used
from .zoo import ZOO, in_zoo, shipped


def _load_unfinished(path: Path, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    from .unfinished import load  # which imports this file

    return load(path, device, dtype)


# Layouts that `save` writes.
WRITERS: dict[str, Callable[[Bundle, Path], Path]] = {
    "clearhead": native.save, "compact": native.save_compact, "huggingface": huggingface.save, "timm": timm.save,
    "torchvision": state_files.save_torchvision, "peft": peft_save.save,
}  # fmt: skip
# Layouts that `load` reads, by the first word of what `find` returns.
READERS: dict[str, Callable[[Path, torch.device, torch.dtype | None], tuple[Bundle, Used]]] = {
    "clearhead": native.load, "huggingface": huggingface.load, "gguf": gguf.load, "timm": timm.load,
    "file": state_files.load, "tfjs": keras_resnet.load, "transformers": transformers_folder.load, "peft": peft.load,
    "unfinished": _load_unfinished,
}  # fmt: skip


def load(
    folder: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype | None = None, *,
    merge: bool = True,
) -> Bundle:  # fmt: skip
    """Load a model with its tokenizer or image preprocessing.

    Args:
        folder: A folder that `save` wrote, the folder of a training, a folder of Hugging Face or timm, a GGUF
            file, or a weight file (.pth, .pt, .safetensors) of torchvision, timm or DINOv2. A Hugging Face folder that
            no family here reads, of a language model or an encoder, is opened with transformers if that is installed. A
            name like "en-de" that is not a folder here is a model that ships with the package (see `shipped`); a name
            like "org/name" is downloaded from Hugging Face's hub. A folder of adapters in PEFT's layout is opened
            together with the model that it names. The model of a training that is not finished is
            that of its best checkpoint, if it keeps a best one, or of its last one; a Notice says the step.
        device: Where to put the model; "auto" is the first available of cuda, mps and cpu.
        dtype: The dtype of the weights; None keeps the stored one (for shipped models: float32). "int8" rounds the
            weights of linear maps to 8 bits, for a CPU: see `quantise`.
        merge: Add adapters (LoRA) to the weights; False: keep them apart.

    Raises:
        WeightsError: If files are missing, damaged, or do not fit together.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> folder = save(model, tmp / "model", tokens=clearhead.tokens.Characters("abc"))
        >>> load(folder, device="cpu")("abba").shape
        torch.Size([4, 3])
    """
    if dtype == "int8":
        return quantise(load(folder, "cpu" if device == "auto" else device, "float32"))
    device, dtype = find_device(device), find_dtype(dtype)
    path, layout = find(folder)
    bundle = read(path, layout, device, torch.float32 if dtype is None and path.parent == ZOO else dtype)[0]
    return bundle if not merge else merged(bundle)


def merged(bundle: Bundle) -> Bundle:
    """A bundle whose adapters are added to its weights, in place; the same one if it has none."""
    if not adapters(bundle.model):
        return bundle
    merge_adapters(bundle.model)
    return replace(bundle, base=None)


def read(path: Path, layout: str, device: torch.device, dtype: torch.dtype | None) -> tuple[Bundle, Used]:
    """Load the path and layout that `find` returned; returns the bundle, and which tensors it was loaded from."""
    return READERS[layout.partition(" ")[0]](path, device, dtype)


def read_config(folder: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the family of a folder's model and the options of its Config, as `build` takes them.

    Args:
        folder: What `load` takes.

    Examples:
        >>> folder = save(clearhead.build("deep", width=3, depth=2), tmp / "model")
        >>> family, options = read_config(folder)
        >>> family, options["depth"]
        ('deep', 2)
    """
    settings = read_settings(folder)
    return settings.model, settings.options


def read_settings(folder: str | Path) -> Saved:
    """Everything that a folder says about its model beside its weights and tokenizer."""
    path, layout = find(folder)
    if layout in ("clearhead", "unfinished"):
        return native.read_settings(path)
    return native.settings_of(read(path, layout, torch.device("cpu"), None)[0])


def save(
    model: Bundle | nn.Module,
    folder: str | Path,
    *,
    tokens: Tokenizer | Pair | None = None,
    layout: str = "clearhead",
) -> Path:
    """Write a model with its tokenizer or image preprocessing into a folder; returns the folder.

    Files of another model in the folder are replaced or removed. Each file is written whole or not at all.

    Args:
        model: A bundle, or a model of a registered family.
        folder: The folder; it is created if needed.
        tokens: The tokenizer to save; None: that of the bundle.
        layout: "clearhead"; "compact", the same with matrices rounded to 8 bits; "huggingface", which from_pretrained
            of their libraries reads (`export` writes a new folder of it); "timm", for its create_model; "torchvision":
            the weights alone, for load_state_dict; or "peft": only the adapters, and what else differs from the model
            that they belong to. In all other layouts adapters are added to the weights.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> folder = save(model, tmp / "model", tokens=clearhead.tokens.Characters("abc"))
        >>> sorted(path.name for path in folder.iterdir())
        ['config.json', 'model.safetensors', 'tokens.json']
    """
    if layout not in WRITERS:
        raise InputError(f"layout={layout!r}: expected one of {', '.join(WRITERS)}{nearest(layout, WRITERS)}")
    bare = model.model if isinstance(model, Bundle) else model
    bare = getattr(bare, "_orig_mod", bare)  # torch.compile wraps the model
    training = bare.training
    if layout != "peft" and adapters(bare):
        bare = merge_adapters(deepcopy(bare))
    if isinstance(model, Bundle):
        same = tokens is None or tokens == model.tokens
        bundle = replace(
            model, model=bare, tokens=model.tokens if tokens is None else tokens,
            special=model.special if same else None,
        )  # fmt: skip
    else:
        bundle = Bundle(bare, tokens)
    try:
        return WRITERS[layout](bundle, Path(folder))
    finally:
        bare.train(training)  # a Bundle puts its model into evaluation mode


WEIGHTS = (".gguf", *state_files.SUFFIXES)  # endings of files that hold a model


def find(folder: str | Path) -> tuple[Path, str]:
    """The path of a model and its layout: a key of READERS; "huggingface" is followed by its model type."""
    path = Path(folder)
    if is_hub_name(str(folder)):
        path = fetch(str(folder))
    if path.is_file() and path.suffix == ".gguf":
        return path, "gguf"
    if path.is_file() and path.suffix in state_files.SUFFIXES:
        return path, "file"
    if not path.exists():
        path = in_zoo(str(folder)) or path
    if path.is_file():
        raise WeightsError(f"{path}: is a file, not a folder")
    if not path.is_dir() and path.suffix in WEIGHTS:
        files = [file.name for file in path.parent.iterdir() if file.suffix in WEIGHTS] if path.parent.is_dir() else []
        raise WeightsError(f"{path}: there is no such file{nearest(path.name, files)}")
    if not path.is_dir():
        raise WeightsError(f"{path}: there is no such folder{_suggestion(path)}")
    if peft.is_peft(path):
        return path, "peft"
    if (path / "config.json").is_file():
        return path, _layout(path)
    if (path / "recipe.toml").exists():
        return _find_in_run(path)
    if keras_resnet.is_tfjs(path):
        return path, "tfjs"
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors", "file"
    ggufs = list(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0], "gguf"
    if ggufs:
        names = ", ".join(sorted(file.name for file in ggufs))
        raise WeightsError(f"{path}: this folder has {len(ggufs)} GGUF files, expected the path of one: {names}")
    raise WeightsError(f"{path}: there is no config.json in this folder")


def _find_in_run(run: Path) -> tuple[Path, str]:
    """The model of a training; of one that is not finished that of a checkpoint."""
    if (run / "model" / "config.json").is_file() or peft.is_peft(run / "model"):
        return find(run / "model")
    if not any((run / "checkpoints").glob("step-*")):
        raise WeightsError(f"{run}: this run has no model/ yet, and no checkpoint that could be used instead")
    if not (run / "unfinished" / "config.json").is_file():
        raise WeightsError(
            f"{run}: this run has no model/ yet, which is written when its training ends; it began with a version of "
            "clearhead whose checkpoints are not used instead: resume it"
        )
    return find(run / "unfinished")


def _suggestion(path: Path) -> str:
    """The folders beside it and shipped models with a similar name, or else all shipped models."""
    zoo = shipped()
    folders = [p.name for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
    return nearest(path.name, [*folders, *zoo]) or f"; the models that ship with the package are {', '.join(zoo)}"


def _layout(folder: Path) -> str:
    """The layout of a folder with a config.json: ours has none of the keys that Hugging Face's has."""
    if (folder / "training.json").is_file():
        return "unfinished"
    table = config.load(folder / "config.json")
    if "architecture" in table and "clearhead" not in table and "model_type" not in table:
        return "timm"
    keys = [("model_type",), *huggingface.MARKS.values()]
    if "clearhead" in table or not any(all(key in table for key in marks) for marks in keys):
        return "clearhead"
    if transformers_folder.knows(table):
        return "transformers"
    return f"huggingface {huggingface.model_type(table)}"
