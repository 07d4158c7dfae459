"""The words of a caption as captioning scores count them: Penn Treebank tokens in lower case, without punctuation.

The published scores of captions (coco-caption, Chen et al. 2015) come from the tokens of Stanford's PTBTokenizer, of
which the marks . , ? ! : ; - -- ... and quotes are removed. Contractions are separated (do n't, dog 's), compounds are
not (t-shirt), brackets become -lrb- and -rrb-.
"""

from __future__ import annotations

import re

# Abbreviations that keep their dot; some do only with a capital, or before a number.
_ABBREVIATIONS = (
    "adj|adm|adv|al|ala|alex|apr|ariz|assn|assoc|asst|attys?|aug|ave|bancorp|bhd|bldg|blvd|brig|bros|calif|capt|cf|cie|"
    "cmdr|col?|colo|comdr|conn|corp|cos|cpl|ct|dak|dec|dept|det|drs?|ens|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|govs?|"
    "hon|inc|ind|insp|intl|jan|jos|jr|jul|jun|kan|ky|lieut|lt|ltd|maj|mar|md|messrs|mfg|mich|minn|mlle|mme|mo|mon|mont|"
    "mr|mrs|ms|msgr|mt|mtg|natl|neb|nev|nov|oct|okla|penn|pfc|ph|ph[.]d|plc|pres|profs?|pte|pty|pvt|rd|reps?|rev|rt|"
    "sens?|sep|sept|seq|sfc|sgt|spc|sq|sr|ste?|supts?|sys|tel|tenn|thu|thurs|tues?|univ|va|vs|vt|wed|wis|wm|wyo"
)
_WITH_CAPITAL = "Ark|Az|Del|Ill|L[aA]|Mass|Miss|Ore|P[aA]|Tex|Wash"
_BEFORE_NUMBER = "art|ca|fig|nos?|op|pp|prop"
# Words that begin a sentence: the dot of a letter before one of them ends the sentence before.
_BEGINNINGS = (
    "A|About|According|Additionally|After|An|As|At|But|Earlier|He|Her|Here|However|If|In|It|Last|Many|More|M[rs][.]|"
    "Now|Once|One|Other|Our|She|Since|So|Some|Such|That|The|Their|Then|There|These|They|This|We|What|When|While|Yet|You"
)
# Words that are split, and after how many letters.
_TWO_WORDS = {
    "cannot": 3, "gonna": 3, "gotta": 3, "lemme": 3, "gimme": 3, "wanna": 3, "'tis": 2, "'twas": 2,
}  # fmt: skip

_L, _A = r"[^\W\d_]", r"[^\W_]"  # a letter; a letter or a digit
_END = rf"(?!{_A})"
_CONTRACTION = rf"(?i:'(?:s|m|d|re|ve|ll)){_END}"
_HYPHENS = rf"(?:-(?:{_L}(?:\.{_L})*\.|{_A}+))*"  # -based, and the second initial of J.-Y.
_PART = rf"(?:(?i:[dlno])(?!{_CONTRACTION})'(?={_A}{_A}))?{_A}+"  # d'Artagnan, o'clock

# The first alternative that fits is the token.
_TOKEN = re.compile(
    "|".join(
        (
            "[A-Za-z]+(?=[ ,])",  # most words: no other alternative fits them
            r"(?:https?|ftp)://[^\s<>\"]*[^\s<>\".,;:?!')]",
            rf"{_A}[\w.]*@{_A}+(?:\.{_A}+)*",  # an address of e-mail
            rf"[@#]{_L}\w*",  # a name or a topic
            rf"(?i:'tis|'twas){_END}",
            rf"(?i:n't){_END}|{_L}+?(?=(?i:n't){_END})",
            _CONTRACTION,
            rf"(?i:'n'|(?:'n|'em|'cause|'till?|c'mon|ma'am){_END}|y'(?={_L}))|'[2-9]0s{_END}",
            rf"(?:{_L}\.)+{_L}\.{_HYPHENS}",  # u.s., U.K.-based
            # an initial: J. Smith
            rf"(?<!{_A})[A-Za-z]\.(?!{_L})(?!\s+(?:{_BEGINNINGS})(?:\s|$)){_HYPHENS}",
            rf"(?:(?i:{_ABBREVIATIONS})|{_WITH_CAPITAL})\.{_END}",
            rf"(?i:{_BEFORE_NUMBER})\.(?=\s?\d)",
            r"[A-Z]+(?:[+&][A-Z]+)+|(?<!\w)[Cc]\+\+",
            rf"{_L}{_A}*(?:[.!?]{_L}{_A}*)+",  # two sentences without a space
            rf"{_A}+(?:-{_L}+){{0,2}}(?:/{_A}+(?:-{_L}+){{0,2}}){{1,2}}",  # and/or, 24/7
            rf"[+-]?\d*(?:[.,:]\d+)+(?:-{_A}+)*",  # 1,000, 10:30, 3.5-mile
            r"(?:\+|(?<!\w)-)\d+(?![\w-])",
            rf"{_PART}(?:[-_]{_PART})*",
            r"\.(?:\s?\.){2,}|-+|[?!]+|_+|\*+|<<|>>|US\$|C\$",
            r"\S",
        )
    )
)
_PLAIN = {
    "\u2018": "'",
    "\u2019": "'",
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&apos;": "'",
}
_OTHER = re.compile("|".join(_PLAIN))
_WRITTEN = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "£": "#", "€": "$",
    "¢": "cents",
}  # fmt: skip
_PUNCTUATION = frozenset(".?!,:;-…—'\"`«»\u2013\u201c\u201d")


def caption_words(text: str) -> list[str]:
    """Return the words of a caption in lower case and without punctuation, as published scores count them.

    Args:
        text: An English text.

    Examples:
        >>> caption_words("A dog doesn't stop (it runs), says the man's T-shirt.")
        ['a', 'dog', 'does', "n't", 'stop', '-lrb-', 'it', 'runs', '-rrb-', 'says', 'the', 'man', "'s", 't-shirt']
    """
    words = []
    # typographic apostrophes and entities first: the pattern knows plain ones only
    text = _OTHER.sub(lambda match: _PLAIN[match[0]], text)
    for token in _TOKEN.findall(text):
        # a cheap test first: few tokens begin with a mark
        if token[0] in _PUNCTUATION and _is_punctuation(token):
            continue
        token = token.lower()
        # cannot -> can not, as the treebank splits it
        if token in _TWO_WORDS:
            first = _TWO_WORDS[token]
            words += [token[:first], token[first:]]
        else:
            words.append(_WRITTEN.get(token, token))
    return words


def _is_punctuation(token: str) -> bool:
    # one mark, a dash of several hyphens, or an ellipsis, but not 's, -lrb- or .5
    return len(token) == 1 or set(token) <= {"-"} or token[0] == "." == token[-1]
