"""Usual names of columns, by which a header is recognised and columns that the user does not name are chosen."""

from __future__ import annotations

import re

TEXTS = (
    "text", "sentence", "review", "content", "document", "body", "comment", "message", "utterance", "phrase", "tweet",
    "question", "title",
)  # fmt: skip
LABELS = (
    "label", "class", "category", "sentiment", "labels", "target_class", "polarity", "intent", "emotion", "topic",
    "rating", "stars",
)  # fmt: skip
SOURCES = ("source", "src", "source_text", "original", "input")
TARGETS = ("target", "tgt", "target_text", "translation", "output")
CHATS = ("messages", "conversations", "prompt", "instruction", "answer", "response", "completion")
OTHERS = ("id", "idx", "index", "split", "name")
USUAL = frozenset((*TEXTS, *LABELS, *SOURCES, *TARGETS, *CHATS, *OTHERS))
NAMED_LANGUAGES = {
    "english": "en", "german": "de", "french": "fr", "italian": "it", "spanish": "es", "portuguese": "pt",
    "dutch": "nl", "polish": "pl", "russian": "ru", "turkish": "tr", "chinese": "zh", "japanese": "ja",
    "korean": "ko", "arabic": "ar",
}  # fmt: skip
LANGUAGES = {
    "ar", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "ga", "gu", "he", "hi",
    "hr", "hu", "is", "it", "ja", "kn", "ko", "lt", "lv", "mk", "ml", "mr", "ms", "nl", "no", "pa", "pl",
    "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "zh",
    *NAMED_LANGUAGES,
}  # fmt: skip


def is_language(name: str) -> bool:
    """Return whether a column is named after a language, such as en, de_DE, target_fr or text-it."""
    parts = re.split(r"[_-]", name.lower())
    known = [part in LANGUAGES for part in parts]
    others = [part for part, yes in zip(parts, known, strict=True) if not yes]
    # en, target_fr and de_DE, but not is_in_it: at most two parts, of which one is a language
    return (
        len(parts) <= 2 and any(known) and all(part in USUAL or len(part) == 2 for part in others)
    )


def language_of(name: str) -> str | None:
    """Return the code of the language that a column is named after, such as "fr" of target_fr and French."""
    if not is_language(name):
        return None
    code = next(part for part in re.split(r"[_-]", name.lower()) if part in LANGUAGES)
    return NAMED_LANGUAGES.get(code, code)


def may_be_language(word: str) -> bool:
    """Return whether a word is a language, or looks like the code of one that is not listed, such as eo or gsw_CH."""
    return is_language(word) or re.fullmatch(r"[A-Za-z]{2,3}([_-][A-Za-z]{2,4})?", word) is not None
