"""Special ids of a model, and the files of a folder that name special tokens."""

from __future__ import annotations

import re
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
# __fr__ of M2M-100, fr_XX of mBART, fra_Latn of NLLB
LANGUAGE = re.compile(r"__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
SHOWN = 8  # languages that a message lists


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


def decoder_prompt(tokens: Pair, special: Special | None) -> list[int]:
    """What the decoder of a translator reads before a target: BOS, or else padding, and the forced first token if any.

    The forced token is the target's language in mBART, M2M-100 and NLLB.

    Raises:
        InputError: The model writes several languages, and none is chosen.
    """
    given = special or Special()
    # Marian and T5 start with padding
    start = _first(given.start, tokens.target.start, tokens.target.pad)
    assert start is not None  # a Pair has padding
    if given.first is not None:
        return [start, given.first]
    known = tokens.target.special_names if given.languages else {}
    # the tokens of a vocabulary that are written like a language
    codes = {name: i for name, i in known.items() if LANGUAGE.fullmatch(name)}
    if len(codes) > 1 and start not in codes.values():
        more = f" and {len(codes) - SHOWN} more" if len(codes) > SHOWN else ""
        raise InputError(
            "this translator writes several languages, and none is chosen: expected target_language='...', or a bundle "
            f"from with_languages(target='...'), with one of {', '.join(list(codes)[:SHOWN])}{more}"
        )
    return [start]


def special_ids(folder: Path, table: config.Table) -> Special:
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
    given, settings = special_ids(folder, table), tokenizer_settings(folder)
    named: dict[str, int | None] = {}
    for key in ("pad_token", "bos_token", "eos_token"):
        token = settings.get(key)
        # the text of a token that the vocabulary lacks gives no id
        named[key] = tokens.special_names.get(token) if isinstance(token, str) else None
    ends = dict.fromkeys(i for i in (named["eos_token"], *given.ends) if i is not None)
    return Special(
        pad=_first(given.pad, named["pad_token"], own.pad),
        start=_first(given.start, named["bos_token"], own.start),
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


def _first(*values: int | None) -> int | None:
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
