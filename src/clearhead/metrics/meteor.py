"""METEOR 1.5 for English (Denkowski & Lavie 2014) with two of its four ways to match words: exact and stem.

A caption and a reference are aligned word by word. Precision P and recall R count the matched words, each with the
weight of its match (exact 1, stem 0.6) and of its kind (content word δ, function word 1 - δ); chunks are runs of
matches that follow one another in both texts:

    score = P R / (α P + (1 - α) R) · (1 - γ (chunks / matches)^β)      α 0.85, β 0.2, γ 0.6, δ 0.75

The score of a caption is that of its best reference. The score of a corpus is computed from the summed counts of all
captions. Synonyms (WordNet) and paraphrases need tables of 70 MB, which are not part of the package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from .stemmer import stem

# of METEOR 1.5, tuned on rankings of English translations
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
EXACT, STEM = 1.0, 0.6  # weights of a match
BEAM = 40  # alignments that the search keeps

# METEOR's list of the most frequent words and marks of English, as its normaliser writes them.
FUNCTION_WORDS = frozenset({
    "the", ",", ".", "to", "of", "and", "a", "in", "that", "for", '"', "is", "on", "'s", "it", "with", "was", "as",
    "said", "at", "he", "by", "be", "from", "have", "has", "are", "his", "but", "an", "this", "not", "i", "will",
    "they", ")", "-rrb-", "(", "-lrb-", "who", "their", "had", "we", "which", "were", "been", "more", "or", "s", "its",
    "would", "about", "new", "one", "after", "you", ":", "also", "up", "when", "there", "than", "$", "all", "out",
    "her", "people", "she", "year", "two", "-", "can", "if", "last", "first", "over", "other", "into", "some", "what",
    "so", "no", "time", "years", "could", "?", "'t", "—", "'",
})  # fmt: skip


@dataclass(slots=True)
class Counts:
    """The counts of an alignment, or of several alignments summed, from which the score is computed."""

    caption: float = 0.0  # words of the caption, each with the weight of its kind
    reference: float = 0.0
    caption_matches: float = 0.0  # matched words, each with the weights of its kind and its match
    reference_matches: float = 0.0
    matches: int = 0
    chunks: int = 0

    def add(self, other: Counts) -> None:
        self.caption += other.caption
        self.reference += other.reference
        self.caption_matches += other.caption_matches
        self.reference_matches += other.reference_matches
        self.matches += other.matches
        self.chunks += other.chunks

    def score(self) -> float:
        if not self.matches:
            return 0.0
        precision, recall = (
            self.caption_matches / self.caption,
            self.reference_matches / self.reference,
        )
        mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
        return mean * (1 - GAMMA * (self.chunks / self.matches) ** BETA)


def meteor(
    captions: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> tuple[float, list[float]]:
    """Return METEOR of a corpus and of each caption, from 0 to 1; all words are in lower case."""
    total, each = Counts(), []
    for caption, several in zip(captions, references, strict=True):
        words = _text(caption)
        best = max((_counts(words, _text(one)) for one in several), key=Counts.score)
        total.add(best)
        each.append(best.score())
    return total.score(), each


class _Text(NamedTuple):
    words: list[str]
    stems: list[str]
    weights: list[float]  # by the kind of each word


# An alignment of the first words of the reference. The search prefers the smallest first three fields:
#   minus the number of exact matches (stem matches do not count in the search), chunks that have ended, distance,
#   position in the caption after the last match or -1 if the last word of the reference has none,
#   the words of the caption that are matched, one bit each,
#   their positions in the caption and in the reference: ((((), i, j), i, j), ...)
_Path = tuple[int, int, int, int, int, tuple]
_rank = itemgetter(0, 1, 2)


def _text(words: Sequence[str]) -> _Text:
    words = normalise(words)
    return _Text(
        words,
        [stem(w) for w in words],
        [1 - DELTA if w in FUNCTION_WORDS else DELTA for w in words],
    )


def _counts(caption: _Text, reference: _Text) -> Counts:
    """Align a caption with a reference, and count."""
    counts = Counts(sum(caption.weights, 0.0), sum(reference.weights, 0.0))
    chunks, pairs = _align(caption, reference)
    while pairs:
        pairs, i, j = pairs
        weight = EXACT if caption.words[i] == reference.words[j] else STEM
        counts.caption_matches += weight * caption.weights[i]
        counts.reference_matches += weight * reference.weights[j]
        counts.matches += 1
    whole = chunks == 1 and counts.matches == len(caption.words) == len(reference.words)
    counts.chunks = 0 if whole else chunks  # a caption that is matched as a whole has no penalty
    return counts


def _align(caption: _Text, reference: _Text) -> tuple[int, tuple]:
    """Search for the alignment with most exact matches, then with fewest chunks, then with the shortest distances.

    METEOR's program adds the distance of a match that is open to choice to the alternatives that are tried after it,
    which decides some ties; the same is done here, so that the scores are the same.
    """
    words = caption.words
    same = words == reference.words
    if same:
        keys, wanted = (words, reference.words)
    else:
        keys, wanted = (caption.stems, reference.stems)
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    paths: list[_Path] = [(0, 0, 0, -1, 0, ())]
    for j, (key, word) in enumerate(zip(wanted, reference.words, strict=True)):
        options = places.get(key, [])
        if len(options) == 1 and wanted.count(key) == 1:
            paths = _matched(paths, options[0], j, words[options[0]] == word)
        elif options:
            exact = [i for i in options if words[i] == word]
            paths = _branched(
                paths, [*exact, *(i for i in options if words[i] != word)], len(exact), j
            )
        else:
            paths = [_ended(path) for path in paths]
        paths.sort(key=_rank)
        del paths[BEAM:]
    _, chunks, _, _, _, pairs = min(map(_ended, paths), key=_rank)
    return chunks, pairs


def _ended(path: _Path) -> _Path:
    """The same path without a match for the next word."""
    inexact, chunks, distance, end, used, pairs = path
    if end == -1:
        return path
    return (inexact, chunks + 1, distance, -1, used, pairs)


def _matched(paths: list[_Path], i: int, j: int, exact: bool) -> list[_Path]:
    """The paths with a match that no other can replace."""
    return [
        (
            inexact - exact,
            chunks + (end not in (-1, i)),
            distance + abs(i - j),
            i + 1,
            used,
            (pairs, i, j),
        )
        for inexact, chunks, distance, end, used, pairs in paths
    ]


def _branched(paths: list[_Path], options: list[int], exact: int, j: int) -> list[_Path]:
    """The paths with each possible match, of which the first `exact` are exact, and without."""
    longer: list[_Path] = []
    for inexact, chunks, distance, end, used, pairs in paths:
        ended = chunks + (end != -1)
        for k, i in enumerate(options):
            if not used >> i & 1:
                now = chunks if end == i else ended
                longer.append(
                    (inexact - (k < exact), now, distance, i + 1, used | 1 << i, (pairs, i, j))
                )
                distance += abs(i - j)
        longer.append((inexact, ended, distance, -1, used, pairs))
    return longer


# What METEOR's normaliser does to the words of a caption: it separates marks and the parts of compounds and
# contractions (t-shirt, dog's), and removes the dots of abbreviations (u.s.).
_LETTERS = "A-Za-zŠŽšžŸÀ-ÖØ-öø-žЀ-ӿԀ-ԧꙀ-ꙮ꙾-ꚗᴀ-ᵿ"
_PLAIN = re.compile("[0-9a-z ]*")
_RULES = [
    (re.compile(rf"([^0-9{_LETTERS}\s.'`,\-\u2018\u2019])"), r" \1 "),
    (re.compile(r"\.{2,}"), r" … "),
    (re.compile(r"([^0-9]),([^0-9])"), r"\1 , \2"),
    (re.compile(r"([0-9]),([^0-9])"), r"\1 , \2"),
    (re.compile(r"([^0-9]),([0-9])"), r"\1 , \2"),
    (re.compile("[`\u2018\u2019]"), "'"),
    (re.compile("[\u201c\u201d]|''"), ' " '),
    (re.compile("\u2013"), "-"),
    (re.compile("--"), "-"),
    (re.compile(rf"([0-9{_LETTERS}.])-([0-9{_LETTERS}])"), r"\1 \2"),
    (re.compile(rf"([^{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([^0-9{_LETTERS}])'([{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([{_LETTERS}])'([^{_LETTERS}])"), r"\1 ' \2"),
    (re.compile(rf"([{_LETTERS}])'([{_LETTERS}])"), r"\1 '\2"),
    (re.compile(r"([0-9])'(s)"), r"\1 '\2"),
]
_DOT_STAYS = re.compile(r"(?:.* [a-z]|(?:v|vs|rev)\. |pp\. [0-9]).*")  # after an abbreviation


def normalise(words: Sequence[str]) -> list[str]:
    """Return the words that METEOR compares, as its normaliser of English makes them of words in lower case."""
    text = " ".join(words)
    if _PLAIN.fullmatch(text):
        return text.split()
    text = f" {text} "
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    found = text.split()
    result = []
    for word, following in zip(found, [*found[1:], ""], strict=True):
        if len(word) == 1 or word[-1] != ".":
            result.append(word)
        elif "." in word[:-1] and re.search(f"[{_LETTERS}]", word):
            result.append(word.replace(".", ""))
        elif _DOT_STAYS.fullmatch(f"{word} {following}"):
            result.append(word)
        else:
            result += [word[:-1], "."]
    return result
