"""Settings of a tokenizer_config.json that win over the tokenizer.json beside it, as in transformers.

    class of transformers      setting                                              what it changes
    BertTokenizer and others   do_lower_case, strip_accents, tokenize_chinese_chars the normaliser
    GPT2Tokenizer and others   add_prefix_space                                     a space before a text

A class that is named there has its own defaults. Without one only what is given counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Setting: the key of the normaliser, and the default of the class.
NORMALISER = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
SPACE = {"add_prefix_space": ("add_prefix_space", False)}
WORD_PIECES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "MPNetTokenizer",
)
BYTE_PAIRS = (
    "GPT2Tokenizer",
    "RobertaTokenizer",
    "BartTokenizer",
    "LongformerTokenizer",
    "LEDTokenizer",
)
# Part of a tokenizer.json: its type, the settings of it, and the classes that have them.
PARTS: dict[str, tuple[str, Mapping[str, tuple[str, Any]], tuple[str, ...]]] = {
    "normalizer": ("BertNormalizer", NORMALISER, WORD_PIECES),
    "pre_tokenizer": ("ByteLevel", SPACE, BYTE_PAIRS),
}


def with_settings(content: str, settings: Mapping[str, Any]) -> str:
    """The content of a tokenizer.json with the settings of the tokenizer_config.json beside it.

    Args:
        content: The content of the tokenizer.json.
        settings: The keys of the other file.

    Examples:
        >>> tokens = Subwords.of(["a b"], size=260)
        >>> spaced = Subwords(with_settings(tokens.to_str(), {"add_prefix_space": True}))
        >>> spaced.pieces(spaced.encode("a"))
        [' ', 'a']
    """
    named = str(settings.get("tokenizer_class")).removesuffix("Fast")
    changes = {
        part: {
            key: _chosen(settings.get(name), default)
            for name, (key, default) in known.items()
            if name in settings or named in classes
        }
        for part, (_, known, classes) in PARTS.items()
        if named in (*classes, "None")
    }
    if not any(changes.values()):
        return content
    try:
        table = json.loads(content)
    except ValueError:
        return content  # which the tokenizers library refuses
    for part, values in changes.items():
        one = table.get(part) if isinstance(table, dict) else None
        if isinstance(one, dict) and one.get("type") == PARTS[part][0]:
            one |= values
    return json.dumps(table, ensure_ascii=False)


def _chosen(given: Any, default: bool | None) -> bool | None:
    return given if isinstance(given, bool) else default


def lowered(content: str) -> str:
    """The content of a tokenizer.json that lowercases a text first."""
    table = json.loads(content)
    before = [] if table.get("normalizer") is None else [table["normalizer"]]
    return json.dumps(
        table
        | {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *before]}}
    )
