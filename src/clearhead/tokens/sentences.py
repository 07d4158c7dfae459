"""sentences: split a text into sentences, by rules that rather leave two sentences together than cut one in two."""

from __future__ import annotations

import re

# Abbreviations that are followed by a capital within a sentence: titles, and German ones before a noun. Those that
# often end a sentence ("etc.") or are also words ("no.") are left out.
ABBREVIATIONS = frozenset({
    "Mr", "Mrs", "Ms", "Mx", "Messrs", "Dr", "Drs", "Prof", "St", "Ste", "Mt", "Ft", "Gen", "Col", "Maj",
    "Capt", "Cmdr", "Lt", "Sgt", "Cpl", "Adm", "Rev", "Hon", "Gov", "Sen", "Rep", "Pres", "Jr", "Sr", "Mme",
    "Mmes", "Mlle", "Mlles", "MM", "Mgr", "Hr", "Hrn", "Fr", "Frl", "Nr", "Str", "Tel", "Dipl", "Ing", "Sra",
    "Srta", "Dott", "Sig", "vs", "approx", "cf", "al", "ca", "bzw", "vgl", "evtl", "ggf", "inkl", "exkl", "sog",
    "bspw", "zzgl", "abzgl", "gegr", "geb", "gest", "dt", "engl", "franz", "lat", "bes", "insb",
})  # fmt: skip
LONGEST = 40  # characters before a full stop that are searched for an abbreviation
# any of them may open or close
_QUOTES = "\"'\u201c\u201d\u201e\u201a\u2018\u2019\u00ab\u00bb\u2039\u203a"
# what may come before the first letter of a sentence
_OPENING = _QUOTES + "([{\u00bf\u00a1\u2014\u2013-"
# full stops and question marks of Chinese, Japanese, Hindi and Arabic
_ALWAYS = "\u3002\uff01\uff1f\u0964\u061f"
# French puts a space before the closing mark: \s\u00bb.
_END = re.compile(
    rf"(?<![.!?\u2026])[.!?\u2026]++(?:[{_QUOTES})\]}}]|\s\u00bb(?=\s|$))*(?=\s)|[{_ALWAYS}]+[{_QUOTES})\]}}\u300d\u300f]*"
)
_LAST_WORD = re.compile(rf"[^\s(\[{{{_QUOTES}]+$")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # z.B, e.g, U.S, or a single letter
_ORDINAL = re.compile(r"\d{1,2}|[IVX]{2,5}")  # am 3. Oktober, Ludwig XIV. von Frankreich


def sentences(text: str) -> list[str]:
    """Split a text into its sentences, without the white space around them.

    A sentence ends at a line break, and at . ! ? or … before white space and a capital, which a quotation mark or
    bracket may precede. A full stop after an abbreviation (Mr., z.B., e.g.), an initial or a one- or two-digit number
    ends none. Scripts without capitals count as capitals; 。！？ । and ؟ always end a sentence.

    Args:
        text: Any text.

    Examples:
        >>> sentences('Mr. Smith has a dog. "Does it bark?" she asked. No, e.g. Rex never did!')
        ['Mr. Smith has a dog.', '"Does it bark?" she asked.', 'No, e.g. Rex never did!']
    """
    found = []
    for line in text.splitlines():
        first = 0
        for match in _END.finditer(line):
            if _ends_sentence(line, match):
                found.append(line[first : match.end()])
                first = match.end()
        found.append(line[first:])
    return [sentence.strip() for sentence in found if sentence.strip()]


def _ends_sentence(line: str, match: re.Match[str]) -> bool:
    if match[0][0] in _ALWAYS:
        # no abbreviation ends with one of these
        return True
    # what follows, without the quotation mark or bracket that opens it
    rest = line[match.end() :].lstrip().lstrip(_OPENING).lstrip()
    if not rest or not rest[0].isalpha() or rest[0].islower():
        return False
    return match[0] != "." or not _is_abbreviation(
        line[max(0, match.start() - LONGEST) : match.start()]
    )


def _is_abbreviation(before: str) -> bool:
    """Whether the full stop after this text belongs to its last word."""
    match = _LAST_WORD.search(before)
    word = "" if match is None else match[0]
    if word == "I":  # the pronoun, far more often than an initial
        return False
    return word in ABBREVIATIONS or any(
        pattern.fullmatch(word) is not None for pattern in (_INITIALS, _ORDINAL)
    )
