"""load and save: between a bundle and a folder (ours, Hugging Face's, timm's) or a file of weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import config
from ..devices import find_device, find_dtype
from ..errors import InputError, InputTypeError, nearest
from ..layers.lora import adapters, merge_adapters
from ..tokens import Pair, Tokenizer
from . import native
from .bundle import Bundle, quantise
from .fill import WeightsError
from .gguf import model as gguf
from .huggingface import folder as huggingface
from .huggingface import transformers_model
from .image_libraries import keras_resnet, state_files, timm
from .native import FolderSettings
from .peft import load as peft
from .peft import save as peft_save
from .table import UsedTensors

# The models that ship with the package: small, each with the recipe that trained it.
#
# zoo/en-de/config.json, model.safetensors, tokens   a folder as `save` writes it, in half precision
# zoo/en-de/recipe.toml                              the recipe that trained it
# zoo/en-de/card.toml                                data, licence, command, minutes and scores


ZOO = Path(__file__).parent.parent / "zoo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The model card of a shipped model: what it does, how it was trained, its scores and its limits.

    Examples:
        >>> card = shipped()["en-de"]
        >>> card.example, card.parameters
        ('clearhead translate en-de "A dog runs." beams=5', 2756608)
    """

    does: str  # what it does, in one line
    example: str  # command that shows it
    examples: tuple[str, ...]  # texts to try it with
    data: str  # training data
    licence: str  # licence of the weights, and of the data behind them
    command: str  # command that trained it
    machine: str  # machine that trained it
    minutes: float  # training time
    parameters: int  # number of parameters
    scores: dict[str, float]  # score by data set and metric
    measured: str  # how the scores were measured: command and signature
    half: str  # what storing it in half precision costs
    limits: str  # what it cannot do


def shipped() -> dict[str, Card]:
    """Return the models that ship with the package: the names that `load` takes, each with its card.

    Examples:
        >>> "en-de" in shipped()
        True
    """
    # a folder without a card is not finished
    folders = sorted(path.parent for path in ZOO.glob("*/card.toml"))
    return {folder.name: config.read(Card, config.load(folder / "card.toml")) for folder in folders}


def in_zoo(name: str) -> Path | None:
    """The folder of a shipped model; None if there is none of that name."""
    if not name or Path(name).name != name:  # a name, never a path
        return None
    folder = ZOO / name
    return folder if (folder / "card.toml").is_file() else None


# Models of Hugging Face's hub, by name: load("org/name") downloads them with huggingface_hub into its cache.


NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
SMALL = (".json", ".txt", ".model", ".spm", ".jinja")


def is_hub_name(text: str) -> bool:
    """Whether a text could name a model of the hub, and not a local folder: "runs/a" is local if runs/ exists."""
    if NAME.fullmatch(text) is None or text.endswith(".gguf"):
        return False
    return not Path(text).exists() and not Path(text.split("/")[0]).is_dir()


def fetch(name: str) -> Path:
    """Download a model of the hub, unless the cache has it; returns its folder. Without a network the cache is used."""
    try:
        import huggingface_hub as hub
    except ImportError as cause:
        raise WeightsError(
            f"{name}: there is no such folder; to download a model of that name from the hub, "
            "pip install clearhead[hub]"
        ) from cause
    try:
        # weights in other formats, such as ONNX or TensorFlow, are not downloaded
        files = needed_files(file.rfilename for file in hub.HfApi().model_info(name).siblings or ())
        return Path(hub.snapshot_download(name, allow_patterns=files))
    except Exception as cause:  # the network, the server and the library can raise anything
        # without a network: what the cache has
        with suppress(Exception):
            return Path(hub.snapshot_download(name, local_files_only=True))
        # the server's messages have many lines
        reason = " ".join(str(cause).split())[:300]
        raise WeightsError(
            f"{name}: there is no such folder, and the hub has no such model ({reason})"
        ) from cause


def needed_files(files: Iterable[str]) -> list[str]:
    """The files of a model that we read: its small files, and its weights, as safetensors if it has them."""
    files = list(files)
    top = [file for file in files if "/" not in file]
    small = [file for file in top if file.endswith(SMALL)]
    # the same weights are often there in both formats
    safe = [file for file in top if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", file)]
    pickled = [file for file in top if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file)]
    # The modules of sentence-transformers have a folder each, as 1_Pooling/config.json.
    modules = [file for file in files if re.fullmatch(r"[^/]+/config\.json", file)]
    return small + modules + (safe or pickled)


def _load_unfinished(
    path: Path, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
    from .checkpoints.unfinished import load

    return load(path, device, dtype)


# Layouts that `save` writes.
WRITERS: dict[str, Callable[[Bundle, Path], Path]] = {
    "clearhead": native.save, "compact": native.save_compact, "huggingface": huggingface.save, "timm": timm.save,
    "torchvision": state_files.save_torchvision, "peft": peft_save.save,
}  # fmt: skip
# Layouts that `load` reads, by the first word of what `find` returns.
READERS: dict[str, Callable[[Path, torch.device, torch.dtype | None], tuple[Bundle, UsedTensors]]] = {
    "clearhead": native.load, "huggingface": huggingface.load, "gguf": gguf.load, "timm": timm.load,
    "file": state_files.load, "tfjs": keras_resnet.load, "transformers": transformers_model.load, "peft": peft.load,
    "unfinished": _load_unfinished,
}  # fmt: skip


def load(
    folder: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
    *,
    merge: bool = True,
) -> Bundle:
    """Load a model with its tokenizer or image preprocessing.

    Args:
        folder: A folder that `save` wrote, the folder of a training, a folder of Hugging Face or timm, a GGUF
            file, or a weight file (.pth, .pt, .safetensors) of torchvision, timm or DINOv2. A Hugging Face folder that
            no family here reads, of a language model or an encoder, is opened with transformers if that is installed. A
            name like "en-de" that is not a folder here is a model that ships with the package (see `shipped`); a name
            like "org/name" is downloaded from Hugging Face's hub. A folder of adapters in PEFT's layout is opened
            together with the model that it names. The model of a training that is not finished is
            that of its best checkpoint, if it keeps a best one, or of its last one; a Notice says the step.
        device: Where to put the model; "auto" is the first available of cuda, mps and cpu. "meta" reads everything but
            the weights: options, tokenizer, labels, chat template, in a fraction of the time.
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
    # 8 bits are rounded from float32, whatever is stored
    if dtype == "int8":
        return quantise(load(folder, "cpu" if device == "auto" else device, "float32"))
    device, dtype = find_device(device), find_dtype(dtype)
    path, layout = find(folder)
    if dtype is None and path.parent == ZOO:
        dtype = torch.float32  # shipped models are stored in fewer bits
    bundle, _ = read(path, layout, device, dtype)
    return merged(bundle) if merge else bundle


ModelLike = Bundle | str | Path  # a model, or what `load` takes


def opened(model: ModelLike) -> Bundle:
    """Return a Bundle as it is, and load the model of a name or a path; anything else is refused.

    Args:
        model: A Bundle, or what `load` takes.

    Examples:
        >>> bundle = load("everyday")
        >>> opened(bundle) is bundle, opened("everyday").name == bundle.name
        (True, True)
    """
    if isinstance(model, Bundle):
        return model
    if not isinstance(model, str | Path):
        raise InputTypeError(
            f"a {type(model).__name__} is not a model: expected what clearhead.load returns, or its name or folder"
        )
    return load(model)


def merged(bundle: Bundle) -> Bundle:
    """A bundle whose adapters are added to its weights, in place; the same one if it has none."""
    if not adapters(bundle.model):
        return bundle
    merge_adapters(bundle.model)
    return replace(bundle, base=None)


def read(
    path: Path, layout: str, device: torch.device, dtype: torch.dtype | None
) -> tuple[Bundle, UsedTensors]:
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


def read_settings(folder: str | Path) -> FolderSettings:
    """Everything that a folder says about its model beside its weights and tokenizer; no weight is read."""
    path, layout = find(folder)
    # our own config.json has everything: no model needs to be built
    if layout in ("clearhead", "unfinished"):
        return native.read_settings(path)
    # other layouts are translated while loading, on the meta device, which reads no weights
    bundle, _ = read(path, layout, torch.device("meta"), None)
    return native.settings_of(bundle)


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
        raise InputError(
            f"layout={layout!r}: expected one of {', '.join(WRITERS)}{nearest(layout, WRITERS)}"
        )
    network = model.model if isinstance(model, Bundle) else model
    network = getattr(network, "_orig_mod", network)  # torch.compile wraps the model
    is_training = network.training
    # only PEFT's layout keeps adapters apart; a copy, since merging would change the caller's model
    if layout != "peft" and adapters(network):
        network = merge_adapters(deepcopy(network))
    if not isinstance(model, Bundle):
        bundle = Bundle(network, tokens)
    elif tokens is None or tokens == model.tokens:
        bundle = replace(model, model=network)
    else:  # other tokens have other special ids
        bundle = replace(model, model=network, tokens=tokens, special=None)
    try:
        return WRITERS[layout](bundle, Path(folder))
    finally:
        network.train(is_training)  # a Bundle puts its model into evaluation mode


WEIGHTS = (".gguf", *state_files.SUFFIXES)  # endings of files that hold a model


def find(folder: str | Path) -> tuple[Path, str]:
    """The path of a model and its layout: a key of READERS; "huggingface" is followed by its model type."""
    path = Path(folder)
    if is_hub_name(str(folder)):
        # a name with a slash, and no such folder here
        path = fetch(str(folder))
    # what is here counts before what ships, and the layouts that say what they are before those that do not
    if path.is_file() and path.suffix == ".gguf":
        return path, "gguf"
    if path.is_file() and path.suffix in state_files.SUFFIXES:
        return path, "file"
    if not path.exists():
        # a name without a folder may be one of the shipped models
        path = in_zoo(str(folder)) or path
    if path.is_file():
        raise WeightsError(f"{path}: is a file, not a folder")
    if not path.is_dir() and path.suffix in WEIGHTS:
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        files = [file.name for file in siblings if file.suffix in WEIGHTS]
        raise WeightsError(f"{path}: there is no such file{nearest(path.name, files)}")
    if not path.is_dir():
        raise WeightsError(f"{path}: there is no such folder{_suggestion(path)}")
    # before config.json, which may be that of the base model
    if peft.is_peft(path):
        return path, "peft"
    if (path / "config.json").is_file():
        return path, _layout(path)
    # the run folder of a training
    if (path / "recipe.toml").exists():
        return _find_in_run(path)
    # folders without a config.json say what they are by their files
    if keras_resnet.is_tfjs(path):
        return path, "tfjs"
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors", "file"
    # a folder of the hub often has one GGUF file per quantisation, and the choice is the user's
    ggufs = list(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0], "gguf"
    if ggufs:
        names = ", ".join(sorted(file.name for file in ggufs))
        raise WeightsError(
            f"{path}: this folder has {len(ggufs)} GGUF files, expected the path of one: {names}"
        )
    raise WeightsError(f"{path}: there is no config.json in this folder")


def _find_in_run(run: Path) -> tuple[Path, str]:
    """The model of a training; of one that is not finished that of a checkpoint."""
    # a finished training has written its result
    if (run / "model" / "config.json").is_file() or peft.is_peft(run / "model"):
        return find(run / "model")
    # stopped before its first checkpoint
    if not any((run / "checkpoints").glob("step-*")):
        raise WeightsError(
            f"{run}: this run has no model/ yet, and no checkpoint that could be used instead"
        )
    if not (run / "unfinished" / "config.json").is_file():
        raise WeightsError(
            f"{run}: this run has no model/ yet, which is written when its training ends; it began with a version of "
            "clearhead whose checkpoints are not used instead: resume it"
        )
    return find(run / "unfinished")


def _suggestion(path: Path) -> str:
    """The folders beside it and shipped models with a similar name, or else all shipped models."""
    zoo = shipped()
    siblings = path.parent.iterdir() if path.parent.is_dir() else ()
    folders = [sibling.name for sibling in siblings if sibling.is_dir()]
    hint = nearest(path.name, [*folders, *zoo])
    return hint or f"; the models that ship with the package are {', '.join(zoo)}"


def _layout(folder: Path) -> str:
    """The layout of a folder with a config.json: ours has none of the keys that Hugging Face's has."""
    # which also has our config.json
    if (folder / "training.json").is_file():
        return "unfinished"
    table = config.load(folder / "config.json")
    # timm's own key; a folder of transformers may have it too, beside a model_type
    if "architecture" in table and "clearhead" not in table and "model_type" not in table:
        return "timm"
    keys = [("model_type",), *huggingface.MARKS.values()]
    is_theirs = any(all(key in table for key in marks) for marks in keys)
    if "clearhead" in table or not is_theirs:
        return "clearhead"
    # only what none of our families reads
    if transformers_model.knows(table):
        return "transformers"
    return f"huggingface {huggingface.model_type(table)}"


# describe: what a model is and can do, as plain values.


def describe(folder: str | Path) -> dict[str, Any]:
    """Return the family, size, capabilities and inputs of a model as plain values, for printing and for JSON.

    Args:
        folder: What `load` takes: a folder, a GGUF file, or the name of a model.

    Returns:
        family, parameters, can (its capabilities) and options (of its Config), and those of note, tokens,
        preprocessing, labels and chat that it has.

    Examples:
        >>> folder = clearhead.save(clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2), tmp)
        >>> describe(folder)["parameters"]
        976
    """
    # on the meta device a model of any size opens at once, without reading its weights
    bundle = load(folder, device="meta")
    about: dict[str, Any] = {
        "family": bundle.name,
        "parameters": sum(p.numel() for p in bundle.model.parameters()),
        "can": sorted(bundle.can),
        # as `build` takes them
        "options": config.dump(bundle.config),
    }
    if bundle.note is not None:
        about["note"] = bundle.note
    if bundle.tokens is not None:
        about["tokens"] = repr(bundle.tokens)
    if bundle.preprocessing is not None:
        about["preprocessing"] = config.dump(bundle.preprocessing)
    if bundle.labels is not None:
        about["labels"] = list(bundle.labels)
    if bundle.chat is not None:
        about["chat"] = "it has a chat template"
    return about
