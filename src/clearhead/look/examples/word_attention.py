"""word_attention: which heads attend from one word to another, over a set of sentences, compared with chance.

A single sentence shows little: among hundreds of heads some attends to any word. A head that does so in most sentences
of a set, and also in those by which it was not chosen, has learned something.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ... import draw
from ...errors import InputError, nearest
from ...inputs import read_input
from ...tokens import Pair, Tokenizer
from ...weights import Bundle
from ..maps.text_attention import TextAttention, attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETWEEN = "|||"  # stands between a source and its translation
SETS = {  # the sentences that come with the package
    "names": "she or he -> the person's name, with a second name as a distractor",
    "objects": "it -> the one thing that was named before",
    "things": "it -> one of two nouns; only the end of the sentence tells which, so that no causal model can know",
    "banks": "bank -> the word before it that tells which of its two senses is meant",
    "verbs": "made, making -> the adjective after more, later in the sentence, so that no causal model can look at it",
    "verbs-french": "French: rend (makes) -> the adjective after plus (more)",
    "adjectives": "French: an adjective -> the noun before it",
    "order": "French to English: the noun that is written -> the French noun, whose adjective follows it",
}


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A text with a query word and the answer word that it should attend to.

    Examples:
        >>> sentence = Sentence.parse("The [cat] slept because {it} was tired.")
        >>> sentence.text, sentence.query, sentence.answer
        ('The cat slept because it was tired.', (22, 24), (4, 7))
    """

    text: str  # without brackets; for a translator the source
    # first and last + 1 character of the query word, in the target if there is one
    query: tuple[int, int]
    answer: tuple[int, int]  # the same of the answer word, in the text
    target: str | None = None  # the translation

    @staticmethod
    def parse(line: str) -> Sentence:
        """Read a sentence in which the query is written {so} and the answer [so]; a translation follows after |||.

        Args:
            line: The sentence.
        """
        text, _, target = (part.strip() for part in line.partition(BETWEEN))
        # Without a translation, query and answer are in the same text.
        if not target:
            bare, marks = _unmarked(text, "{}[]")
            return Sentence(text=bare, query=marks["{}"], answer=marks["[]"])
        source, answer = _unmarked(text, "[]")
        written, query = _unmarked(target, "{}")
        return Sentence(text=source, query=query["{}"], answer=answer["[]"], target=written)


def _unmarked(text: str, brackets: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """The text without its brackets, and the place of what was between each pair of them."""
    bare = "".join(c for c in text if c not in brackets)
    places = {}
    # "{" and "}" or "[" and "]", two characters of `brackets` at a time.
    for pair in (brackets[i : i + 2] for i in range(0, len(brackets), 2)):
        if text.count(pair[0]) != 1 or text.count(pair[1]) != 1:
            raise InputError(f"{text!r}: expected one word between {pair[0]} and {pair[1]}")
        # Places are counted in the text without its brackets.
        first, last = (sum(c not in brackets for c in text[: text.index(mark)]) for mark in pair)
        places[pair] = (first, last)
    return bare, places


def read_sentences(name: str | Path) -> list[Sentence]:
    """Return a set of sentences that comes with the package, or those of a file, one per line.

    Args:
        name: "names", "objects", "things", "banks", "verbs", "verbs-french", "adjectives" or "order"; or a file.

    Examples:
        >>> sentence = read_sentences("verbs")[0]
        >>> sentence.text[slice(*sentence.query)], sentence.text[slice(*sentence.answer)]
        ('making', 'difficult')
    """
    # Sets of the package have names; anything else is a path.
    if str(name) in SETS:
        content = (files(__package__) / "sentences" / f"{name}.txt").read_text(encoding="utf-8")
    elif Path(name).is_file():
        content = Path(name).read_text(encoding="utf-8")
    else:
        raise InputError(
            f"no sentences {str(name)!r}: expected a file or one of {', '.join(SETS)}{nearest(str(name), SETS)}"
        )
    return [Sentence.parse(line) for line in content.splitlines() if line.strip()]


@dataclass(frozen=True, kw_only=True, eq=False)
class WordAttention(draw.Result):
    """How often each head attends most to the answer word, and with which weight, over a set of sentences.

    Examples:
        >>> result = word_attention(clearhead.load("everyday"), read_sentences("things")[:6])
        >>> result.share.shape, result.weights.shape
        (torch.Size([5, 5]), torch.Size([6, 5, 5]))
    """

    in_json = "kind sentences chance best held_out share weight"

    kind: str  # the kind of attention, a key of TextAttention.maps
    hits: Bool[Tensor, "n l h"]  # whether the largest weight is on the answer
    weights: Float[Tensor, "n l h"]  # the answer's part of the weight on all words that count
    # what both would be on average if all words that count had the same weight
    chances: Float[Tensor, "n"]

    def __repr__(self) -> str:
        layer, head = self.best
        return (
            f"WordAttention(kind={self.kind!r}, sentences={self.sentences}, best=layer {layer} head {head}, "
            f"share={float(self.share[layer, head]):.2f}, chance={self.chance:.2f})"
        )

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(self.hits)

    @property
    def share(self) -> Float[Tensor, "l h"]:
        """The share of the sentences in which each head attends most to the answer."""
        return self.hits.float().mean(0)

    @property
    def weight(self) -> Float[Tensor, "l h"]:
        """The mean weight of the answer in each head."""
        return self.weights.mean(0)

    @property
    def chance(self) -> float:
        """The share, and the weight, of a head that attends to all words alike."""
        return float(self.chances.mean())

    @property
    def best(self) -> tuple[int, int]:
        """The layer and head with the largest share, among equal ones the largest weight."""
        return _best(self.hits, self.weights)

    @property
    def held_out(self) -> float:
        """The share of a best head in sentences that it was not chosen by: one half chooses, the other scores."""
        half, hits = len(self.hits) // 2, []
        if not half:
            raise InputError("one sentence has no halves: expected two or more")
        # The chosen head of one half is scored on the other half, and the other way round.
        for chosen, other in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
            layer, head = _best(self.hits[chosen], self.weights[chosen])
            hits.append(self.hits[other, layer, head])
        return float(torch.cat(hits).float().mean())

    def figure(self) -> Figure:
        """Draw the share of each head as one heat map."""
        layers, heads = self.share.shape
        return draw.heatmap(
            self.share.numpy(),
            rows=[str(i) for i in range(layers)],
            columns=[str(i) for i in range(heads)],
            xlabel="head",
            ylabel="layer",
            most=1.0,
            title=f"share of {len(self.hits)} sentences; chance {self.chance:.2f}",
        )

    def table(self) -> draw.Table:
        """The share of sentences of each head: a row per layer."""
        return draw.Table.of_heads(
            self.share, ".0%", title=f"share of sentences; chance {self.chance:.0%}"
        )


def _best(hits: Tensor, weights: Tensor) -> tuple[int, int]:
    # a thousandth decides between equal shares only
    score = hits.float().mean(0) + 1e-3 * weights.mean(0)
    layer, head = divmod(int(score.argmax()), score.shape[1])
    return layer, head


@torch.no_grad()
def word_attention(
    bundle: Bundle,
    sentences: Sequence[Sentence],
    *,
    kind: str | None = None,
    sinks: bool = False,
    done: Callable[[int, int], None] | None = None,
) -> WordAttention:
    """Return how often every head attends from the query word most to the answer word, compared with chance.

    A word of several tokens has the mean attention of its queries and the sum of the weights on its keys. Special
    tokens do not count, nor does the first token of a causal model, on which many heads put weight that they do not
    need (Xiao et al. 2023).

    Args:
        bundle: A GPT, a BERT or a translator; or a model of transformers, as `load` opens it.
        sentences: Sentences with a query and an answer each: see `read_sentences`.
        kind: "self"; of a translator "encoder", "decoder" or "cross"; None: "cross" if sentences have translations.
        sinks: Count special tokens and the first token too.
        done: Called with the number of sentences just finished, and of all.

    Raises:
        InputError: If a sentence has no such words in the model's tokens, or its answer does not count.

    Examples:
        >>> result = word_attention(clearhead.load("fr-en"), read_sentences("order")[:4])
        >>> result.kind, result.share.shape
        ('cross', torch.Size([3, 5]))
    """
    if not sentences:
        raise InputError("there are no sentences: expected one or more")
    hits, weights, chances = [], [], []
    for sentence in sentences:
        # The kind of the first sentence is used for all.
        kind, hit, weight, chance = _scores(bundle, sentence, kind, sinks)
        hits.append(hit)
        weights.append(weight)
        chances.append(chance)
        if done is not None:
            done(1, len(sentences))
    # (sentences, layers, heads)
    return WordAttention(
        kind=kind or "self",
        hits=torch.stack(hits),
        weights=torch.stack(weights),
        chances=torch.tensor(chances),
    )


def _scores(
    bundle: Bundle, sentence: Sentence, kind: str | None, sinks: bool
) -> tuple[str, Bool[Tensor, "l h"], Float[Tensor, "l h"], float]:
    """The kind of attention, whether each head attends most to the answer, its weight there, and both by chance."""
    target = sentence.target
    if isinstance(bundle.tokens, Pair) and target is None:
        target = sentence.text  # the encoder does not depend on it
    result = attention(bundle, sentence.text, target=target)
    # Cross-attention for a translation, otherwise the model's first kind.
    if kind is None:
        if sentence.target is not None:
            kind = "cross"
        else:
            kind = next(iter(result.maps))
    if kind not in result.maps:
        raise InputError(
            f"kind={kind!r}: expected one of {', '.join(result.maps)}{nearest(kind, result.maps)}"
        )
    written = sentence.target is not None
    # Only the maps of a decoder have their queries in a translation.
    if written == (kind in ("self", "encoder")):
        raise InputError(
            f"kind={kind!r} with {sentence.text!r}: expected a translation for 'cross' only, after |||"
        )
    given = read_input(bundle, sentence.text, target=target)
    (ids,) = given.args
    # The special tokens of the text with the keys: for a translator, of its source.
    special = _special(bundle, given.named.get("source", ids)[0])
    answer = word_tokens(result.pieces, special, sentence.text, sentence.answer)
    # The query of cross-attention is a word of the target, its keys are those of the source.
    if written:
        query = word_tokens(
            result.target or [],
            _special(bundle, given.target_ids, True),
            target or "",
            sentence.query,
        )
    else:
        # Without a translation, query and answer are words of the same text.
        query = word_tokens(result.pieces, special, sentence.text, sentence.query)
    causal = "predict" in bundle.can
    # Special tokens do not count, nor does the first token of a causal model, which is a sink.
    counts = torch.tensor([sinks or not (x or (causal and i == 0)) for i, x in enumerate(special)])
    # A causal model cannot attend to keys after the query.
    if causal:
        counts[max(query) + 1 :] = False
    # The answer must be among the keys, or every head would miss it.
    if not counts[answer].all():
        raise InputError(
            f"{sentence.text!r}: the answer is the first token, or comes after the query in a model that looks back "
            "only; expected another sentence, or sinks=True"
        )
    # Chance: the answer's share of the keys that count.
    return kind, *_measured(result, kind, query, answer, counts), len(answer) / int(counts.sum())


def _measured(
    result: TextAttention, kind: str, query: list[int], answer: list[int], counts: Bool[Tensor, "k"]
) -> tuple[Bool[Tensor, "l h"], Float[Tensor, "l h"]]:
    """Whether each head attends most to the answer, and its part of the weight that counts."""
    # The mean over the tokens of the query word: (l, h, k).
    rows = (
        torch.stack([torch.stack([x.row(i)[0] for i in query]).mean(0) for x in result.maps[kind]])
        .float()
        .cpu()
    )
    # Keys that do not count have no weight.
    rows = rows * counts
    # The answer's keys against all other keys.
    on, others = rows[..., answer], rows.clone()
    others[..., answer] = 0.0
    # a head that attends to several words alike has chosen none
    hit = on.amax(-1) > others.amax(-1)
    # A head whose weight is all on keys that do not count has no hit and the weight 0.
    total = rows.sum(-1)
    return hit & (total > 0), on.sum(-1) / total.clamp(min=1e-30)


def _special(bundle: Bundle, ids: Any, target: bool = False) -> list[bool]:
    """Whether each id is a special token, but for an unknown word."""
    both = bundle.tokens
    tokens: Tokenizer
    if isinstance(both, Pair):
        tokens = both.target if target else both.source
    else:
        tokens = bundle.tokenizer()
    # An unknown word is a word of the text, unlike padding or the end.
    named = {tokens.pad, tokens.start, tokens.end, *tokens.special_names.values()} - {
        tokens.unknown,
        None,
    }
    return [i in named for i in ids.tolist()]


def word_tokens(
    pieces: Sequence[str], special: Sequence[bool], text: str, span: tuple[int, int]
) -> list[int]:
    """The tokens of a word of a text.

    Args:
        pieces: The text of each token. Spaces, capitals and accents may differ from those of the text.
        special: Whether each token is a special one, which has no place in the text.
        text: The text.
        span: First and last + 1 character of the word.
    """
    # The span in letters without spaces, as tokens are compared.
    first, last = len(_plain(text[: span[0]])), len(_plain(text[: span[1]]))
    covering, at, whole = [], 0, _plain(text)
    for i, piece in enumerate(pieces):
        # Special tokens have no letters in the text.
        if special[i]:
            continue
        # The letters that this token covers, without the marks of its tokenizer.
        letters = _plain(piece)
        # WordPiece marks the inside of a word with ##, which is not in the text.
        if whole[at : at + len(letters)] != letters:
            letters = _plain(piece.removeprefix("##"))
        if whole[at : at + len(letters)] != letters:
            raise InputError(
                f"the token {piece!r} is not in {text!r} after {whole[:at]!r}: expected words that the model knows"
            )
        # The token overlaps the word.
        if at < last and at + len(letters) > first:
            covering.append(i)
        # Letters are consumed in order, so that a word that occurs twice is found at its own place.
        at += len(letters)
    if not covering:
        raise InputError(f"{text[span[0] : span[1]]!r} has no token in {text!r}")
    return covering


def _plain(text: str) -> str:
    """The text without spaces, capitals and accents, by which tokens and text are compared."""
    # NFKD takes letters and accents apart, and the accents are then left out.
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(
        c for c in decomposed if not c.isspace() and not unicodedata.combining(c) and c != "▁"
    )
