"""Special ids of a model, and the files of a folder that name special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import config
from ..errors import InputError
from .pair import Pair
from .tokenizer import Tokenizer

# Special ids in config.json and generation_config.json of Hugging Face folders.
ID_KEYS = (
    "pad_token_id", "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
    "forced_eos_token_id",
)  # fmt: skip
# model types whose answers begin with their language, if the vocabulary has several
LANGUAGES = ("m2m_100", "mbart")


@dataclass(frozen=True, kw_only=True, slots=True)
class Special:
    """The special token ids of a model, as its folder gives them.

    Examples:
        >>> Special(pad=0, start=1, ends=(2, 5)).ends
        (2, 5)
    """

    pad: int | None = None  # padding of short rows
    start: int | None = None  # BOS: the first input of a decoder, and the prompt for an empty text
    ends: tuple[int, ...] = ()  # EOS: each of them ends an answer
    # the token that every answer begins with after `start`, such as the target's language
    first: int | None = None
    # the token that transformers ends an answer with at its limit; not used here, but kept
    last: int | None = None
    # whether an answer begins with its language: `first`, or else one that must be chosen
    languages: bool = False

    @property
    def end(self) -> int | None:
        """The first of `ends`, for formats that have only one."""
        return next(iter(self.ends), None)

    @staticmethod
    def of(tokens: Tokenizer | Pair | None) -> Special:
        """The special ids of a tokenizer; for a pair, of its target."""
        target = tokens.target if isinstance(tokens, Pair) else tokens
        if target is None:
            return Special()
        ends = () if target.end is None else (target.end,)
        return Special(pad=target.pad, start=target.start, ends=ends)


def special_of_config(folder: Path, table: config.Table) -> Special:
    """The special ids of generation_config.json, or else of config.json, or else of its decoder's section."""
    path = folder / "generation_config.json"
    generation = config.load(path) if path.is_file() else config.Table()
    decoder = table.get("decoder")
    if not isinstance(decoder, config.Table):
        decoder = config.Table()
    ids: dict[str, tuple[int, ...]] = {}
    for keys in (decoder, table, generation):  # the last one counts
        ids |= {name: _ids(keys, name) for name in ID_KEYS if keys.get(name) is not None}
    # a translator's decoder begins with a token of its own, others with BOS
    start = ids.get("decoder_start_token_id", ids.get("bos_token_id", ()))
    pad = ids.get("pad_token_id", ())
    first, last = (ids.get(f"forced_{name}_token_id", ()) for name in ("bos", "eos"))
    return Special(
        pad=next(iter(pad), None),
        start=next(iter(start), None),
        ends=ids.get("eos_token_id", ()),
        first=next(iter(first), None),
        last=next(iter(last), None),
        languages=table.get("model_type") in LANGUAGES,
    )


def read_special(folder: Path, tokens: Tokenizer) -> Special:
    """The special ids of the model in a folder; where its files have none, those of the tokenizer.

    The end token that tokenizer_config.json names comes first in `ends`: it is the `eos_token` of a chat template.
    """
    path, own = folder / "config.json", Special.of(tokens)
    table = config.load(path) if path.is_file() else config.Table()
    # a folder of ours says everything about its special ids
    if "clearhead" in table:
        if "special" in table:
            return config.read(Special, table["special"])
        # the folder only lists special ids that differ from the tokenizer's
        return own
    given, settings = special_of_config(folder, table), tokenizer_settings(folder)
    named: dict[str, int | None] = {}
    for key in ("pad_token", "bos_token", "eos_token"):
        token = settings.get(key)
        # the text of a token that the vocabulary lacks gives no id
        named[key] = tokens.special_names.get(token) if isinstance(token, str) else None
    ends = dict.fromkeys(i for i in (named["eos_token"], *given.ends) if i is not None)
    return Special(
        pad=first_known(given.pad, named["pad_token"], own.pad),
        start=first_known(given.start, named["bos_token"], own.start),
        ends=tuple(ends) or own.ends,
        first=given.first,
        last=given.last,
        languages=given.languages,
    )


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The keys of tokenizer_config.json and special_tokens_map.json; a special token is given as its text."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            # tokenizer_config.json counts where both name a token
            settings |= config.load(folder / name)
    for name, value in settings.items():
        if isinstance(value, dict) and isinstance(value.get("content"), str):
            # a token with its options, of which only the text counts
            settings[name] = value["content"]
    return settings


def first_known(*values: int | None) -> int | None:
    """The first of these ids that is known."""
    return next((value for value in values if value is not None), None)


def _ids(table: config.Table, name: str) -> tuple[int, ...]:
    """The token ids of a key: one number, or a list of them. A number below 0 stands for no token (old Llamas)."""
    ids = table[name] if isinstance(table[name], list) else [table[name]]
    if not all(type(i) is int for i in ids):
        place = table.origin.place((name,))
        raise InputError(
            f"{place}{name} is {table[name]!r}: expected a token id, or a list of them"
        )
    return tuple(i for i in ids if i >= 0)
