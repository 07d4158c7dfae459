"""finetune: a recipe from a checkpoint and a file of data, and the training of it.

What is learned follows from what the model can do and what the data holds (TASKS). The checkpoint gives the model's
options and its tokenizer; the data gives the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import __version__, config
from ... import tokens as text
from ...checks import one_of
from ...data import data_config
from ...data.tables.column_names import language_of
from ...devices import find_device
from ...errors import InputError, InputTypeError
from ...layers.lora import choose_maps
from ...progress import silenced
from ...tokens.chat_template import read_template
from ...weights import Bundle, load
from ...weights.huggingface.tokenizers import write_chat
from ..recipe import read_recipe
from ..run_folder import FolderError, tokenizer_hash
from ..train import Run, run_recipe
from .memory import check_memory
from .new_recipe import (
    DataLike,
    RecipePlan,
    as_file,
    batch_size,
    propose_shorter,
    understood,
    with_steps,
)

EPOCHS = 3.0
RANK = 16  # of low-rank updates
OF = {"images": " of images"}  # how messages name the models of an input: a model of images
CONTEXT = 512  # tokens per window of text, where the model's context is longer


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningMethod:
    """Which weights are trained."""

    about: str
    recipe: Mapping[str, Any]  # keys of the recipe
    rate: float  # factor of the learning rate of full fine-tuning: few weights need larger steps


METHODS = {
    "full": TuningMethod(about="all weights", recipe={}, rate=1.0),
    "lora": TuningMethod(
        about="low-rank updates of the linear maps of all blocks (Hu et al. 2021)",
        recipe={},
        rate=10.0,
    ),
    "head": TuningMethod(
        about="only the head; for classifiers", recipe={"learn": "head"}, rate=20.0
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTask:
    """What a model learns from a kind of data."""

    can: frozenset[str]  # capabilities of the checkpoint, one of which it needs
    reads: str = "tokens"  # input of the checkpoint, a key of models.model.INPUT_KEYS
    kind: str  # what `understand` finds in the data
    about: str
    lr: float  # peak learning rate of full fine-tuning
    rows: int = 16  # rows per step, of a usual length
    best: str = "valid_loss"  # measurement of the best checkpoint
    classifies: bool = False  # whether labels are learned
    data: Callable[[Bundle, dict[str, Any]], dict[str, Any]] = lambda bundle, options: options
    # Config of the checkpoint -> options of the model
    model: Callable[[Any], dict[str, Any]] = lambda c: {}

    def fits(self, bundle: Bundle) -> bool:
        """Whether a checkpoint reads what the task gives it, and can do one of the things that it needs."""
        return self.reads == bundle.reads and bool(self.can & bundle.can)

    @property
    def needs(self) -> str:
        """The models that it is for, in words."""
        return f"a model{OF.get(self.reads, '')} that can {' or '.join(sorted(self.can))}"


def _context(bundle: Bundle) -> int | None:
    """The tokens per row that a model was trained on: with windows in all blocks it could read more."""
    return getattr(bundle.config, "context", None) or bundle.max_tokens


def _text(bundle: Bundle, options: dict[str, Any]) -> dict[str, Any]:
    context = min(_context(bundle) or CONTEXT, CONTEXT)
    # about 4096 tokens per step, whatever the context
    rows = max(4096 // context, 1)
    return {**options, "context": context, "rows": rows, "valid_rows": rows}


def _chats(bundle: Bundle, options: dict[str, Any]) -> dict[str, Any]:
    if bundle.chat is None:
        raise InputError(
            f"this {bundle.name} has no chat template, and the data has chats: expected a chat model, or data with "
            "texts; a template of your own goes into chat_template.jinja in the model's folder"
        )
    return options


def _masked(bundle: Bundle, options: dict[str, Any]) -> dict[str, Any]:
    # options of text that masked data does not have are dropped
    known = {f.name for f in fields(data_config("masked"))}
    kept = {name: value for name, value in options.items() if name in known}
    return {**kept, "name": "masked", "of": options["path"], "batch_tokens": 4096}


def _translations(bundle: Bundle, options: dict[str, Any]) -> dict[str, Any]:
    """The columns in the direction of the model, where both are named after its languages."""
    sides = ("source", "target")
    # the languages of the checkpoint's columns, and of this file's
    known = [language_of(bundle.columns.get(side) or "") for side in sides]
    given = [language_of(options.get(side) or "") for side in sides]
    if None not in known and given == known[::-1]:  # the other direction
        options = options | {"source": options["target"], "target": options["source"]}
    return {**options, "join": False}


def _images(bundle: Bundle, options: dict[str, Any]) -> dict[str, Any]:
    given = bundle.preprocessing
    if given is None:
        return options
    # what the model sees: the crop, or the whole resized image
    size = given.crop or given.resize
    if isinstance(size, tuple):
        # (height, width): the data set crops to squares
        size = size[0]
    return {**options, "size": size, "mean": list(given.mean), "deviation": list(given.deviation)}


def _classifier(c: Any) -> dict[str, Any]:
    """Options of a classifier: one of first tokens gets a pooler, as in transformers, one of means (MiniLM) none."""
    options: dict[str, Any] = {"answer": "class"}
    # a checkpoint without a classifier: the new head gets a pooler below it
    if getattr(c, "answer", "class") != "class" and c.pool == "first":
        options["pooler"] = True
    return options


# By name; the first that fits the checkpoint and the data is chosen.
TASKS = {
    "chat": TuningTask(
        can=frozenset({"generate"}), kind="chats", data=_chats, lr=5e-5, rows=8,
        about="the answers of conversations, token by token; questions do not count",
    ),
    "text": TuningTask(can=frozenset({"generate"}), kind="text", data=_text, lr=5e-5, about="each token of texts"),
    "translation": TuningTask(
        can=frozenset({"translate"}), reads="pairs", kind="pairs", data=_translations, lr=5e-5, rows=64,
        about="the target of each source",
    ),
    "classification": TuningTask(
        can=frozenset({"fill", "classify", "embed", "encode"}), kind="labelled", lr=1e-4, rows=64,
        best="valid_accuracy", classifies=True, model=_classifier, about="the label of each text",
    ),
    "masked": TuningTask(can=frozenset({"fill"}), kind="text", data=_masked, lr=5e-5, about="masked tokens of texts"),
    "images": TuningTask(
        can=frozenset({"classify", "embed"}), reads="images", kind="images", data=_images, lr=1e-4,
        best="valid_accuracy", classifies=True, about="the class of each image",
    ),
}  # fmt: skip


def finetune(
    model: str | Path,
    data: DataLike,
    *overrides: str,
    method: str = "full",
    rank: int = RANK,
    merge: bool = True,
    epochs: float = EPOCHS,
    valid: DataLike | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """Fine-tune a model on a file of data; the same call resumes a training that was stopped.

    The objective follows from both: a chat model learns the answers of chats, a language model texts, a translator
    pairs, an encoder labels or masked words, a vision model the classes of images. `finetune_recipe` gives the recipe
    without training it.

    Args:
        model: What `load` takes: a folder, a GGUF file, a shipped model's name.
        data: A file or folder, as `clearhead data FILE` understands it: .txt, .csv, .tsv, .jsonl, .parquet, images. Or
            rows: a data frame, a list of dictionaries, or a list of texts.
        overrides: Values of the recipe to change: "optim.lr=1e-5", "data.label=stars".
        method: Which weights are trained: "full" (all), "lora" (low-rank updates), or "head".
        rank: The rank of LoRA's updates.
        merge: Add LoRA's updates to the weights in the end; otherwise the result is a small folder in PEFT's layout.
        epochs: The number of times that each example is used; ignored if overrides have steps=N.
        valid: A file for validation; a share of the data if not given.
        out: The run folder; runs/MODEL-DATA if not given.
        root: A folder to search for data files first.
        device: auto, cpu, cuda, cuda:1 or mps.
        quiet: Print nothing but warnings.

    Raises:
        InputError: The model cannot learn from this data, or the training would not fit into memory; the message says
            what would.

    Examples:
        >>> _ = (tmp / "lines.txt").write_text("Tom bought a red car. Mary sold it.\\n" * 60)
        >>> run = finetune("everyday", tmp / "lines.txt", "steps=2", "data.rows=1", out=tmp / "run", quiet=True)
        >>> run.finished, (tmp / "run" / "model").is_dir()
        (True, True)
    """
    place = Path(out) if out is not None else default_folder(model, data)
    where = None if root is None else Path(root)
    wanted = Wanted(method=method, rank=rank, merge=merge, epochs=epochs)
    with silenced(quiet):
        plan = _plan(model, data, overrides, wanted, valid, place, where, device)
    settings = read_recipe(plan.recipe)
    return run_recipe(
        settings,
        out=place,
        root=where,
        device=device,
        quiet=quiet,
        propose=partial(propose_shorter, settings, new=False),
        data=plan.data,
    )


def default_folder(model: str | Path, data: DataLike) -> Path:
    """The run folder of a fine-tuning, if none is given: runs/MODEL-DATA."""
    words = [Path(model).name.split(".")[0] or "model"]
    # only the name up to the first dot: everyday.v2 and lines.txt.gz become everyday and lines
    if isinstance(data, str | Path):
        words.append(Path(data).name.split(".")[0] or "model")
    else:  # rows in memory
        words.append("data")
    return Path("runs") / "-".join(words)


def finetune_recipe(
    model: str | Path,
    data: DataLike,
    *overrides: str,
    method: str = "full",
    rank: int = RANK,
    merge: bool = True,
    epochs: float = EPOCHS,
    valid: DataLike | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    device: str = "auto",
) -> config.Table:
    """The recipe with which `finetune` trains.

    The tokenizer of the checkpoint is written into the run folder, from which the recipe reads it.

    Args:
        model: As in `finetune`.
        data: As in `finetune`.
        overrides: Values of the recipe to change.
        method: Which weights are trained: "full", "lora" or "head".
        rank: The rank of LoRA's updates.
        merge: Add LoRA's updates to the weights in the end.
        epochs: The number of times that each example is used.
        valid: A file for validation; a share of the data if not given.
        out: The run folder; runs/MODEL-DATA if not given.
        root: A folder to search for data files first.
        device: auto, cpu, cuda, cuda:1 or mps.

    Examples:
        >>> _ = (tmp / "lines.txt").write_text("Tom bought a red car. Mary sold it.\\n" * 60)
        >>> recipe = finetune_recipe("everyday", tmp / "lines.txt", "data.rows=1", out=tmp / "run")
        >>> recipe["pretrained"], recipe["optim"]["lr"], recipe["data"]["name"]
        ('everyday', 5e-05, 'text')
    """
    place = Path(out) if out is not None else default_folder(model, data)
    where = None if root is None else Path(root)
    wanted = Wanted(method=method, rank=rank, merge=merge, epochs=epochs)
    return _plan(model, data, overrides, wanted, valid, place, where, device).recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The arguments of `finetune` that say how the model learns."""

    method: str
    rank: int
    merge: bool
    epochs: float


def _plan(
    model: str | Path,
    data: DataLike,
    overrides: Sequence[str],
    wanted: Wanted,
    valid: DataLike | None,
    place: Path,
    root: Path | None,
    device: str,
) -> RecipePlan:
    """Choose the task, write the tokenizer into the run folder, and make the recipe; the data is opened on the way."""
    method = wanted.method
    one_of("method", method, METHODS)
    if isinstance(model, Bundle):
        raise InputTypeError(
            "a Bundle is in memory, and a training must find its weights again: expected the folder or the name of a "
            "model; save(bundle, folder) writes one"
        )
    runs_on = find_device(device)
    if place.exists() and not place.is_dir():
        raise InputError(f"out={str(place)!r} is a file: expected the name of a folder for the run")
    # only the training that follows reads the weights
    bundle = load(model, device="meta")
    if method == "lora":
        choose_maps(bundle.model, "all")  # raises if there are none
    if bundle.tokens is not None:
        # before anything is written: the folder may belong to another model
        _check_folder(bundle, place)
    data = as_file(data, place / "data.jsonl")
    if valid is None:
        held_out = None
    else:
        # rows in memory become a file in the run folder
        held_out = as_file(valid, place / "valid.jsonl")
    # the model and the data decide together what is learned
    kind, options = understood(data, root, overrides)
    task = choose_task(bundle, kind, data)
    if method == "head" and not task.classifies:
        raise InputError(
            f"method='head' trains the output layer of a classifier, and this {bundle.name} learns {task.about}: "
            "expected method 'full' or 'lora'"
        )
    if bundle.tokens is None and task.reads == "tokens":
        raise InputError(
            f"{model} has no tokenizer, so that its ids mean nothing here: expected tokenizer.json, vocab.txt or a "
            "SentencePiece file in the folder"
        )
    # [data]: as the task reads it, with the tokenizer of the checkpoint in the run folder
    section = task.data(bundle, options)
    # data that divides itself, such as images, may have no option for it
    if held_out is not None:
        _check_valid(section["name"], held_out)
        # instead of a share of the data
        section["valid_path"] = str(held_out)
    if bundle.tokens is not None:
        # in the run folder, so that a resumed run reads the same tokenizer
        section["tokens"] = str(write_tokens(bundle, place / "tokens"))
    chosen = config.override(
        config.Table({"data": section}), *(word for word in overrides if word.startswith("data."))
    )
    # the limits of a batch, which follow from the lengths of the rows
    # (`longest` and `batch_tokens`); the opened data is used again to count the steps
    limits, opened = batch_size(chosen["data"], root, task.rows, _context(bundle))
    section |= limits
    how = METHODS[method]
    table: dict[str, Any] = {
        "pretrained": str(model),
        **how.recipe,
        "precision": "bfloat16"
        if runs_on.type == "cuda" and torch.cuda.is_bf16_supported()
        else "float32",
        "data": section,
        "optim": {"lr": task.lr * how.rate, "decay": 0.01, "betas": [0.9, 0.999]},
        "schedule": {"shape": "linear", "final": 0.0},
    }
    # options that the task needs changed, such as the head of a classifier
    if changed := _changed_options(bundle, task):
        table["model"] = changed
    if method == "lora":
        # rank and merge mean nothing to the other methods
        table["lora"] = {"rank": wanted.rank, "merge": wanted.merge}
    plan = with_steps(
        table, overrides, epochs=wanted.epochs, best=task.best, root=root, opened=opened
    )
    # last, because the precision and the sizes of the model are known only now
    check_memory(bundle.model, read_recipe(plan.recipe), method, runs_on)
    return plan


def choose_task(bundle: Bundle, kind: str, data: str | Path) -> TuningTask:
    """The task that fits a checkpoint and a kind of data; raises with what each of them would need."""
    for task in TASKS.values():
        # the tasks are ordered: a chat model that could also learn texts learns chats
        if task.kind == kind and task.fits(bundle):
            return task
    # nothing fits: the message has what the model can learn and what the data would need
    fits = [f"{task.kind} ({task.about})" for task in TASKS.values() if task.fits(bundle)]
    needs = [task.needs for task in TASKS.values() if task.kind == kind]
    if needs:
        # other models could learn from this data
        wants = " or ".join(needs)
    else:
        # no task reads this kind of data
        wants = f"data with {', '.join(task.kind for task in TASKS.values())}"
    if fits:
        learns = f"This {bundle.name} can learn from {'; '.join(fits)}"
    else:
        learns = f"This {bundle.name} cannot be fine-tuned"
    raise InputError(
        f"{data} holds {kind}, which needs {wants}. {learns}. `clearhead data {data}` shows how it is read"
    )


def write_tokens(bundle: Bundle, folder: Path) -> Path:
    """Write the tokenizer, the chat template and the special ids of a checkpoint into a folder; returns the folder."""
    assert bundle.tokens is not None
    text.save(bundle.tokens, folder)
    write_chat(bundle.chat, folder)
    config.write(
        {"clearhead": __version__, "special": config.dump(bundle.special)}, folder / "config.json"
    )
    return folder


def _check_folder(bundle: Bundle, folder: Path) -> None:
    """Raise if a run folder has the tokenizer or the chat template of another model, before anything is written to it.

    A run that failed before its first step may be replaced.
    """
    assert bundle.tokens is not None
    place = folder / "tokens"
    # no tokenizer there yet: a new run folder
    if text.saved(place) is None:
        return
    # metrics or checkpoints exist: the run has learned something worth keeping
    has_begun = any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints"))
    if (folder / "recipe.toml").is_file() and not has_begun:
        return
    # line ends may differ where the template went through a text file on another system
    same_chat = (read_template(place) or "").splitlines() == (bundle.chat or "").splitlines()
    if tokenizer_hash(text.load(place)) != tokenizer_hash(bundle.tokens) or not same_chat:
        raise FolderError(
            f"{place} has the tokenizer of another model: expected another run folder, which out (--out) names, or "
            "remove this one"
        )


def _check_valid(name: str, valid: str | Path) -> None:
    """Raise unless data of this name can have a file of its own for validation."""
    if "valid_path" not in {f.name for f in fields(data_config(name))}:
        raise InputError(
            f"valid={str(valid)!r}: {name} have no other file for validation: expected a folder with train/ and val/ "
            "inside, or leave it out"
        )


def _changed_options(bundle: Bundle, task: TuningTask) -> dict[str, Any]:
    """The options of a task that differ from those of the checkpoint; options that its family lacks are left out."""
    if bundle.config is not None:
        known = {f.name for f in fields(bundle.config)}
    else:
        known = set()
    wanted = task.model(bundle.config)
    return {
        name: x for name, x in wanted.items() if name in known and getattr(bundle.config, name) != x
    }
