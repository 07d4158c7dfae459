"""The files of the sentence-transformers library beside a model of Hugging Face (Reimers and Gurevych 2019).

modules.json                  what follows the model: Pooling, perhaps Normalize, perhaps others that are not read here
1_Pooling/config.json         how the vectors of a text's tokens become one
sentence_bert_config.json     max_seq_length: texts are cut there, even if the model has more positions; do_lower_case
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ... import config
from ...atomic_files import atomic_write
from ...models import Model
from ...models.bert import Config
from ...tokens import Pair, Subwords, Tokenizer
from ...tokens.special import tokenizer_settings
from ...tokens.subwords import lowered
from ..fill import WeightsError

MODULES = "modules.json"
POOLING = Path("1_Pooling") / "config.json"
LIMITS = "sentence_bert_config.json"
# theirs: ours
KINDS: dict[str, Literal["first", "mean"]] = {"cls_token": "first", "mean_tokens": "mean"}
READ = ("Transformer", "Pooling", "Normalize")  # their modules; `embed` normalises anyway


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The keys of sentence_bert_config.json that we read."""

    max_seq_length: int | None = None
    do_lower_case: bool = False


def is_sentence_folder(folder: Path) -> bool:
    """True if a folder has files of sentence-transformers."""
    return (folder / MODULES).is_file() or (folder / POOLING).is_file()


def read_pooling(folder: Path) -> dict[str, Any]:
    """The pooling as a key of config.json; empty if the folder is none of sentence-transformers.

    Raises for a module that is not read here, because vectors without it would be others.
    """
    if not is_sentence_folder(folder):
        return {}
    path = folder / POOLING
    # a later Pooling module replaces the file's usual place
    for module, place in _modules(folder):
        if module not in READ:
            raise WeightsError(
                f"{folder / MODULES}: the module {module} is not read here, and vectors without it would be others: "
                f"expected {', '.join(READ)}"
            )
        if module == "Pooling":
            # modules may be in folders of any name
            path = folder / place / "config.json"
            if not path.is_file():
                raise WeightsError(
                    f"{folder / MODULES} names the pooling in {place!r}, and there is no {path}: without it the "
                    "vectors would be others"
                )
    if not path.is_file():
        return {}
    table = config.load(path)
    modes = set()
    for name, value in table.items():
        if name.startswith("pooling_mode_") and value is True:
            # older files have one switch for each mode, as in pooling_mode_mean_tokens
            modes.add(name.removeprefix("pooling_mode_"))
    mode = table.get("pooling_mode")  # newer files have one word
    if isinstance(mode, str):
        # the newer words cls and mean are the older cls_token and mean_tokens
        modes.add("cls_token" if mode == "cls" else f"{mode}_tokens")
    if len(modes) != 1 or not modes <= KINDS.keys():
        given = ", ".join(sorted(modes)) or "nothing"
        raise WeightsError(f"{path}: pooling by {given}: expected one of {', '.join(KINDS)}")
    return {"pooling": KINDS[modes.pop()]}


def read_limits(folder: Path) -> Limits:
    """The longest text in tokens, and whether texts are lowercased, of a folder of sentence-transformers."""
    if not is_sentence_folder(folder):
        return Limits()
    # older ones are named by the model
    file = next(iter(sorted(folder.glob("sentence_*_config.json"))), None)
    table = config.Table() if file is None else config.load(file)
    names = ("max_seq_length", "do_lower_case")
    known = {name: table[name] for name in names if table.get(name) is not None}
    limits = config.read(Limits, config.Table(known, origin=table.origin))
    if limits.max_seq_length is None:  # the library then asks the tokenizer
        longest = tokenizer_settings(folder).get("model_max_length")
        if type(longest) is int:
            limits = replace(limits, max_seq_length=longest)
    if limits.max_seq_length is not None and limits.max_seq_length < 1:
        raise WeightsError(
            f"{file or folder}: max_seq_length={limits.max_seq_length}: expected 1 or more"
        )
    return limits


def sentence_tokens(folder: Path, tokens: Tokenizer | Pair | None) -> Tokenizer | Pair | None:
    """The tokenizer of a folder, which lowercases texts if the files of sentence-transformers say so."""
    if isinstance(tokens, Subwords) and read_limits(folder).do_lower_case:
        # this setting is not in tokenizer.json
        return Subwords(lowered(tokens.to_str()))
    return tokens


def longest_text(folder: Path, model: Model) -> int | None:
    """The number of tokens at which a model's texts are cut, if its folder says fewer than it can read."""
    if "embed" not in model.can:
        return None
    longest = read_limits(folder).max_seq_length
    # a model without a context is only bounded by this number
    if longest is None or longest >= (model.max_tokens or longest + 1):
        return None
    return longest


def write_sentences(c: Config, folder: Path, longest: int | None) -> None:
    """Write the files of a model that embeds texts; remove them if the model is not of that module.

    Args:
        c: Its Config.
        folder: The folder.
        longest: Tokens of a text at which it is cut; None: at the model's context.
    """
    # a pooler is part of the model itself, not of their modules
    if c.answer != "sentence" or c.pooler:
        # left by another model, they would change how this one pools
        for name in (MODULES, POOLING, LIMITS):
            (folder / name).unlink(missing_ok=True)
        return
    (folder / POOLING).parent.mkdir(exist_ok=True)
    modes = {f"pooling_mode_{theirs}": c.pool == ours for theirs, ours in KINDS.items()}
    config.write({"word_embedding_dimension": c.width, **modes}, folder / POOLING)
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{module}"}
        for i, (module, place) in enumerate(places.items())
    ]
    atomic_write(folder / MODULES, (json.dumps(modules, indent=2) + "\n").encode())
    limit = {} if longest is None else {"max_seq_length": longest}
    config.write({**limit, "do_lower_case": False}, folder / LIMITS)


def _modules(folder: Path) -> Iterator[tuple[str, str]]:
    """The last word of the class of each module, and its folder."""
    path = folder / MODULES
    if not path.is_file():
        return
    try:
        for module in json.loads(path.read_bytes()):
            yield str(module["type"]).rpartition(".")[2], str(module.get("path", ""))
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise WeightsError(
            f"{path}: expected a list of modules, each with a type and a path ({cause})"
        ) from cause
