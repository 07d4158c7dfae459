"""Which heads attend from one word to another, and where in a model the two senses of a word part."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from clearhead.inputs import read_input
from clearhead.look import Sentence, read_sentences, word_attention
from clearhead.look.examples.word_attention import word_tokens

from .sources import checkpoint

# The sets that each model can read: a causal model looks back only, and each translator's encoder has one language.
SETS = {
    "smollm2": ("names", "objects", "things", "banks"),
    "minilm": ("names", "objects", "things", "banks", "verbs"),
    "opus-mt-fr-en": ("order", "adjectives", "verbs-french"),
    "fr-en": ("order", "adjectives", "verbs-french"),
    "en-de": ("names", "objects", "things", "banks", "verbs"),
}
KINDS = {"order": "cross"}  # the others: self-attention, of a translator that of its encoder
AGREEMENT = (
    "L'accord sur la zone économique européenne a été signé en août 1992.",
    "The agreement on the European Economic Area was signed in August 1992.",
)
OTHER = {"she": "he", "he": "she"}


def word_before(sentence: Sentence) -> Sentence:
    """The same sentence with the word before the query as the query."""
    *_, last = (m for m in re.finditer(r"\w+", sentence.text) if m.end() <= sentence.query[0])
    return replace(sentence, query=last.span())


def other_pronoun(sentence: Sentence) -> Sentence:
    """The same sentence with he for she, or she for he: now the other name is the answer."""
    (first, last), text = sentence.query, sentence.text
    names = [m.span() for m in re.finditer(r"(?<=\s)(?!Monday)[A-Z][a-z]+", text)]
    word = OTHER[text[first:last]]
    other = next(span for span in names if span != sentence.answer)
    return replace(
        sentence,
        text=text[:first] + word + text[last:],
        query=(first, first + len(word)),
        answer=other,
    )


def previous_word(sentence: Sentence) -> Sentence:
    """The noun asks for the word before it: only a head that always attends one word back answers so."""
    return replace(
        sentence,
        query=sentence.answer,
        answer=word_before(replace(sentence, query=sentence.answer)).query,
    )


# What a head must not do as often, if it has learned the relation and not a place: a changed sentence for each.
CONTROLS: dict[str, Callable[[Sentence], Sentence]] = {
    "names": other_pronoun, "objects": word_before, "banks": word_before, "verbs": word_before,
    "verbs-french": word_before, "adjectives": previous_word,
}  # fmt: skip


def heads_of(name: str, bundle: ch.Bundle) -> dict[str, Any]:
    """The scores of a model's heads on each of its sets."""
    found = {}
    for which in SETS[name]:
        kind = KINDS.get(which, "encoder") if "translate" in bundle.can else None
        given = read_sentences(which)
        result = word_attention(bundle, given, kind=kind)
        layer, head = result.best
        found[which] = {
            "sentences": len(result.hits), "chance": result.chance, "held_out": result.held_out,
            "best": float(result.share[layer, head]), "layer": layer, "head": head,
            "weight": float(result.weight[layer, head]), "heads": result.share.numel(),
            "mean_of_heads": float(result.share.mean()),
        }  # fmt: skip
        if which in CONTROLS:
            control = word_attention(
                bundle, [CONTROLS[which](sentence) for sentence in given], kind=kind
            )
            found[which]["control"] = float(control.share[layer, head])
        if which == "things":
            found[which] |= pairs(bundle, given, result.weights, kind)
    return found


def pairs(
    bundle: ch.Bundle, given: list[Sentence], weights: Tensor, kind: str | None
) -> dict[str, float]:
    """How often the weight moves towards the right noun when only the end of the sentence changes; chance is 0.5.

    Sentences 2 i and 2 i + 1 begin alike and have each other's noun as the wrong answer. The best head of one half of
    the pairs is scored on the other half.
    """
    swapped = [replace(one, answer=given[i ^ 1].answer) for i, one in enumerate(given)]
    # right noun / wrong noun
    ratio = weights / word_attention(bundle, swapped, kind=kind).weights.clamp(min=1e-9)
    moved = (ratio[0::2] * ratio[1::2] > 1 + 1e-4).float()  # (pairs, layers, heads)
    half, scores = len(moved) // 2, []
    for chosen, other in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        best = moved[chosen].mean(0).flatten().argmax()
        scores.append(moved[other].flatten(1)[:, best])
    return {
        "moved_held_out": float(torch.cat(scores).mean()),
        "moved_best": float(moved.mean(0).max()),
        "moved_mean_of_heads": float(moved.mean()),
    }


def sentences() -> dict[str, Any]:
    """The best head of each set, scored on the half of the sentences that did not choose it."""
    found = {}
    for name in SETS:
        bundle = checkpoint(name)
        found[name] = heads_of(name, bundle)
        if name == "opus-mt-fr-en":
            best = found[name]["order"]
            zone = agreement(bundle, best["layer"], best["head"])
    return {"models": found, "agreement": zone}


def agreement(bundle: ch.Bundle, layer: int, head: int) -> dict[str, Any]:
    """The French word that each English word attends to most, for the sentence of Bahdanau et al. 2015."""
    source, target = AGREEMENT
    result = ch.look.attention(bundle, source, target=target)
    # (layers, heads, queries, keys)
    every = torch.stack([one.dense()[0] for one in result.maps["cross"]])
    queries, keys = ([piece.strip() for piece in pieces] for pieces in result.labels("cross"))
    pairs = {"European": "européenne", "Economic": "économique", "Area": "zone"}
    right = torch.stack(
        [every[:, :, queries.index(a)].argmax(-1) == keys.index(b) for a, b in pairs.items()]
    )
    return {
        "words": {
            word: keys[int(every[layer, head, queries.index(word)].argmax())] for word in pairs
        },
        "layer": layer,
        "head": head,
        "queries": queries,
        "keys": keys,
        "heads_right": {word: int(one.sum()) for word, one in zip(pairs, right, strict=True)},
        "heads_all_right": right.all(0).nonzero().tolist(),
        "mean_of_layers": {
            word: [keys[i] for i in every.mean(1)[:, queries.index(word)].argmax(-1).tolist()]
            for word in pairs
        },
    }


@torch.no_grad()
def word_vectors(bundle: ch.Bundle, sentence: Sentence) -> Tensor:
    """The vector of the query word after the embedding and after every block: (layers, width)."""
    pair = "translate" in bundle.can
    inputs = read_input(bundle, sentence.text, target=sentence.text if pair else None)
    stack = bundle.model.encoder if pair else bundle.model
    names = ["blocks.0.input", *(f"blocks.{i}" for i in range(len(stack.blocks)))]
    prefix = "encoder." if pair else ""
    with ch.watch(bundle.model, *(prefix + name for name in names)) as tape:
        inputs.run(bundle.model)
    letters = ["".join(piece.split()) for piece in inputs.pieces]
    special = [piece.startswith(("[", "<")) for piece in letters]
    at = word_tokens(inputs.pieces, special, sentence.text, sentence.query)
    return torch.stack([tape[prefix + name][0, at].mean(0) for name in names])


def banks() -> dict[str, Any]:
    """How often the nearest other "bank" by cosine has the same sense, after each layer."""
    given = read_sentences("banks")
    senses = torch.arange(len(given)) % 2  # rivers and money by turns
    found = {}
    for name in ("smollm2", "minilm", "en-de"):
        bundle = checkpoint(name)
        # (layers, n, width)
        every = torch.stack([word_vectors(bundle, sentence) for sentence in given], 1).float()
        cosines = F.normalize(every - every.mean(1, keepdim=True), dim=-1)
        cosines = cosines @ cosines.mT
        cosines.diagonal(dim1=1, dim2=2).fill_(-2)
        same = senses[:, None] == senses
        own = torch.eye(len(given), dtype=torch.bool)
        found[name] = {
            "right": (senses[cosines.argmax(-1)] == senses).float().mean(-1).tolist(),
            "same_sense": cosines[:, same & ~own].mean(-1).tolist(),
            "other_sense": cosines[:, ~same].mean(-1).tolist(),
        }
    return {
        "sentences": len(given),
        "chance": (len(given) // 2 - 1) / (len(given) - 1),
        "models": found,
    }


FACTS = {"sentences": sentences, "banks": banks}
