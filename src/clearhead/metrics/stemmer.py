"""The Snowball stemmer of English, also called Porter2 (Porter 2001): running -> run, ponies -> poni.

A step looks for the longest of its suffixes at the end of the word and changes it under conditions. R1 is the part of
the word after the first consonant that follows a vowel, R2 is the R1 of R1; a short syllable is a vowel between two
consonants, of which the last is not w, x or y, or a vowel before a consonant at the beginning of the word.
"""

from __future__ import annotations

import re
from functools import lru_cache

# Words with a stem of their own, and words that are already stems.
_IRREGULAR = {
    "skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl", "gently": "gentl",
    "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl",
}  # fmt: skip
_STEMS = frozenset({"sky", "news", "howe", "atlas", "cosmos", "bias", "andes"})
_STEMS_WITHOUT_S = frozenset(
    {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}
)

# A consonant y (at the beginning, or after a vowel) is written as Y, which is no vowel.
_CONSONANT_Y = re.compile("(?:^|(?<=[aeiouy]))y")
_VOWEL = re.compile("[aeiouy]")
_AFTER_SYLLABLE = re.compile("[aeiouy][^aeiouy]")
_R1_PREFIX = re.compile("gener|commun|arsen")
_SHORT_SYLLABLE = re.compile("(?:[^aeiouy][aeiouy][^aeiouywxY]|^[aeiouy][^aeiouy])$")
_DOUBLE = re.compile("(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$")

# Suffixes and what replaces them: in R1 (steps 2 and 3), or in R2 (step 4).
_STEP_2 = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_STEP_3 = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
_STEP_4 = [
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism", "ate", "iti", "ous", "ive",
    "ize", "ion",
]  # fmt: skip
# The letters that must stand before a suffix, and the suffixes of step 3 that must be in R2.
_AFTER = {"ogi": "l", "li": "cdeghkmnrt", "ion": "st"}
_IN_R2 = ("ative",)


def _longest(suffixes: list[str] | dict[str, str]) -> re.Pattern[str]:
    return re.compile(f"(?:{'|'.join(sorted(suffixes, key=len, reverse=True))})$")


_SUFFIX_2, _SUFFIX_3, _SUFFIX_4 = _longest(_STEP_2), _longest(_STEP_3), _longest(_STEP_4)


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem of an English word in lower case."""
    if len(word) <= 2 or word in _STEMS:
        return word
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    word = _CONSONANT_Y.sub("Y", word.removeprefix("'"))
    prefix = _R1_PREFIX.match(word)
    r1 = prefix.end() if prefix else _region(word, 0)
    r2 = _region(word, r1)
    word = _plural(re.sub("(?:'s'|'s|')$", "", word))
    if word not in _STEMS_WITHOUT_S:
        word = _past_and_gerund(word, r1)
        if len(word) > 2 and word[-1] in "yY" and not _VOWEL.match(word[-2]):
            word = word[:-1] + "i"
        word = _replaced(word, _SUFFIX_2, _STEP_2, r1, r2)
        word = _replaced(word, _SUFFIX_3, _STEP_3, r1, r2)
        word = _replaced(word, _SUFFIX_4, {}, r2, r2)
        word = _final(word, r1, r2)
    return word.replace("Y", "y")


def _region(word: str, start: int) -> int:
    """Where the part of a word begins that follows the first consonant after a vowel."""
    found = _AFTER_SYLLABLE.search(word, start)
    return found.end() if found else len(word)


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if (
        word.endswith("s")
        and not word.endswith(("us", "ss"))
        and _VOWEL.search(word, 0, len(word) - 2)
    ):
        return word[:-1]
    return word


def _past_and_gerund(word: str, r1: int) -> str:
    found = re.search("(?:eedly|ingly|edly|eed|ing|ed)$", word)
    if not found:
        return word
    start = found.start()
    if found[0].startswith("ee"):
        return word[: start + 2] if start >= r1 else word
    if not _VOWEL.search(word, 0, start):
        return word
    word = word[:start]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _DOUBLE.search(word):
        return word[:-1]
    if len(word) <= r1 and _SHORT_SYLLABLE.search(word):
        return word + "e"
    return word


def _replaced(
    word: str, suffix: re.Pattern[str], replacements: dict[str, str], region: int, r2: int
) -> str:
    """Replace the longest suffix if it is in the region that it needs and after a letter that it needs."""
    found = suffix.search(word)
    if not found or found.start() < (r2 if found[0] in _IN_R2 else region):
        return word
    before = _AFTER.get(found[0])
    if before and word[found.start() - 1] not in before:
        return word
    return word[: found.start()] + replacements.get(found[0], "")


def _final(word: str, r1: int, r2: int) -> str:
    last = len(word) - 1
    if word.endswith("e") and (
        last >= r2 or (last >= r1 and not _SHORT_SYLLABLE.search(word[:-1]))
    ):
        return word[:-1]
    if word.endswith("ll") and last >= r2:
        return word[:-1]
    return word
