"""attention_effects: does a head's attention to a token say how much that token matters to the head?

Jain and Wallace 2019, section 4.1, asked this of the one attention of a recurrent model, by leaving out tokens. Here a
token is removed from the keys of one head, the head's other weights are renormalised, and the change of the answer is
compared with the weight that the token had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ... import draw
from ...errors import InputError
from ...inputs import ModelInput, read_input
from ...inputs.read import Given
from ...progress import Done
from ...weights import Bundle
from ..capture.edits import Edit
from ..structure import layer_stack, view_addresses
from ..targets import Answer, Wanted, answer_logits, answer_of, answer_position, rows_at_once
from ..watch import watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONE_LEFT = 1e-12  # weight of all other keys below which a head without its key has no output


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionEffects(draw.Result):
    """The weight of each key in every head, and the change of the answer when the head may not attend to that key.

    Examples:
        >>> result = attention_effects(clearhead.load("everyday"), "A man is standing in the", target=" street")
        >>> result.pearson.shape, result.change.shape
        (torch.Size([5, 5]), torch.Size([5, 5, 6]))
    """

    in_json = "answer query tokens weights change pearson spearman"

    tokens: list[str]  # the name of each key
    weights: Float[Tensor, "l h k"]  # weight of the query; of several queries the mean
    change: Float[Tensor, "l h k"]  # what is measured of the answer without the key, minus with it
    allowed: Int[Tensor, "n"]  # the keys that the query may attend to
    answer: str  # what is measured: the log-probability of an answer, or the difference of two
    query: int | None  # the position of the query; None: all

    def __repr__(self) -> str:
        layers, heads, keys = self.weights.shape
        return (
            f"AttentionEffects(answer={self.answer!r}, layers={layers}, heads={heads}, keys={keys})"
        )

    @property
    def pearson(self) -> Float[Tensor, "l h"]:
        """The correlation of weight and absolute change over the allowed keys; 0 where one of them is constant."""
        # The absolute change: a key matters whether its removal raises or lowers the answer.
        return correlation(self.weights[..., self.allowed], self.change[..., self.allowed].abs())

    @property
    def spearman(self) -> Float[Tensor, "l h"]:
        """Spearman's rank correlation of weight and absolute change."""
        weights, change = self.weights[..., self.allowed], self.change[..., self.allowed].abs()
        return correlation(ranks(weights), ranks(change))

    def figure(self) -> Figure:
        """Draw both correlations of each head side by side."""
        layers, heads = self.pearson.shape
        return draw.grids(
            {"Pearson": self.pearson.numpy(), "Spearman": self.spearman.numpy()},
            signed=True,
            most=1.0,
            rows=[str(i) for i in range(layers)],
            columns=[str(i) for i in range(heads)],
            xlabel="head",
            ylabel="layer",
            title=f"weight of a key and effect of its removal on {self.answer.strip()}",
        )

    def table(self) -> draw.Table:
        """Pearson's correlation of each head: a row per layer."""
        return draw.Table.of_heads(self.pearson, "+.2f", title="correlation of weight and effect")


@torch.no_grad()
def attention_effects(
    model: Bundle | nn.Module,
    given: Given,
    *,
    target: Wanted | None = None,
    at: int | None = None,
    query: int | None = None,
    stack: str | None = None,
    written: str | None = None,
    tokenizer: Any = None,
    done: Done | None = None,
) -> AttentionEffects:
    """Return how every head's attention to each token compares with the effect of removing that token from its keys.

    The key is removed from one head at a time; the weights of its other keys are divided by their sum, and a head
    without other keys has the output 0. The effect is the change of the answer's log-probability, or of the
    difference of two. It takes one row of a batch for each layer, head and key.

    Where a head puts most of its weight on one token, as on the first of a text, that token alone decides Pearson's
    correlation; Spearman's counts all keys alike.

    Args:
        model: A Bundle of a language model, a classifier, a translator or an encoder with a masked token; or a torch
            module whose output is logits.
        given: A text or an image; for a torch module its first argument with one row, or a dict of its arguments.
        target: A class or token, or a pair, whose difference is measured; None: the likeliest.
        at: The position whose next token is the answer; None: the last, or the masked token.
        query: The query whose keys are removed; None: the position of the answer or of the class token, and all
            queries of a model that has neither.
        stack: "encoder" or "decoder", for a model that has both; None: the decoder.
        written: What a translator has written so far.
        tokenizer: The tokenizer of a model of transformers, which reads a text and names tokens; a Bundle has its own.
        done: Called with the number of keys just finished, and of all.

    Examples:
        >>> model = clearhead.build("gpt", vocab=9, context=8, width=8, depth=2, heads=2).eval()
        >>> result = attention_effects(model, torch.tensor([[1, 2, 3]]), target=4, query=2)
        >>> result.weights.shape, result.allowed.tolist()
        (torch.Size([2, 2, 3]), [0, 1, 2])
    """
    read = read_input(model, given, target=written, tokenizer=tokenizer)
    place = answer_position(read, at)
    # A translator's answer is read from its decoder, whose attention is the default.
    if stack is None and read.decoder_input is not None:
        stack = "decoder"
    heads = view_addresses(layer_stack(read, stack), "heads")
    paths = [address.removesuffix(".heads") for address in heads]
    names = [f"{path}.{leaf}" for path in paths for leaf in ("weights", "v")]
    with watch(read.model, *names) as tape:
        logits = answer_logits(read, at=place)
    # A recurrent decoder calls its attention once per step, so one call has no map of all queries.
    if any(len(tape.calls(name)) > 1 for name in names):
        raise InputError(
            f"this {type(read.model).__name__} attends step by step: expected one that reads all at once"
        )
    answer = answer_of(read, target, place, logits[0])
    # per layer, in float64: weights (h, q, k) and values (h, k, e)
    maps = [tape[f"{path}.weights"].dense()[0].double() for path in paths]
    values = [_per_head(tape[f"{path}.v"][0].double(), len(maps[0])) for path in paths]
    queries, keys = maps[0].shape[1:]
    if query is None:
        query = _query(read, place, queries)
    if query is not None and not 0 <= query < queries:
        raise InputError(f"query={query}: there are {queries} queries, counted from 0")
    rows = slice(None) if query is None else slice(query, query + 1)
    # The mean over the queries from which the key is removed: (l, h, k).
    weights = torch.stack([x[:, rows].mean(1) for x in maps])
    # Masked keys have exact zeros. A window may hide a key in some layers only: it counts if any layer reaches it.
    reached = weights.amax(dim=(0, 1)) > 0
    change = _changes(read, answer, heads, maps, values, rows, reached, logits, done)
    return AttentionEffects(
        tokens=read.names(keys, decoder=heads[0].split(".")[0] == "decoder"),
        weights=weights.float().cpu(),
        change=change.float().cpu(),
        allowed=reached.nonzero()[:, 0].cpu(),
        answer=answer.name,
        query=query,
    )


def _changes(
    read: ModelInput,
    answer: Answer,
    heads: list[str],
    maps: list[Tensor],
    values: list[Tensor],
    rows: slice,
    reached: Bool[Tensor, "k"],
    logits: Float[Tensor, "1 v"],
    done: Done | None,
) -> Float[Tensor, "l h k"]:
    """The change of the answer when each key that is reached is removed from each head.

    Args:
        read: The input.
        answer: What is measured.
        heads: The address of the outputs of each layer's heads.
        maps: The weights of each layer.
        values: The values of each layer.
        rows: The queries whose keys are removed.
        reached: The keys that these queries attend to.
        logits: Those of the answer with all keys.
        done: Called with the number of keys just finished, and of all.
    """
    before = answer.measure(logits)
    layers = range(len(maps))
    # Keys that no query reaches are left at 0: removing them changes nothing.
    some_keys = reached.nonzero()[:, 0].tolist()
    cells = [(i, h, k) for i in layers for h in range(len(maps[i])) for k in some_keys]
    change = maps[0].new_zeros(len(maps), len(maps[0]), len(reached))
    step = rows_at_once(read, logits.shape[-1])
    for first in range(0, len(cells), step):
        # each cell is a row of one batch, and each layer one edit of its rows
        some = cells[first : first + step]
        rows_of: dict[int, list[tuple[int, int, int]]] = {}
        for row, (layer, head, key) in enumerate(some):
            rows_of.setdefault(layer, []).append((row, head, key))
        edits = {
            heads[layer]: _without_key(maps[layer], values[layer], removed, rows)
            for layer, removed in rows_of.items()
        }
        after = answer.measure(answer_logits(read, len(some), edits, answer.at)) - before
        # zip(*...) turns the (layer, head, key) triples into three index lists.
        change[tuple(zip(*some, strict=True))] = after.double()
        if done is not None:
            done(len(some), len(cells))
    return change


def _query(read: ModelInput, place: int | None, length: int) -> int | None:
    """The query that the answer is read from: its position, or the class token of an image; None: it is not known."""
    if place is not None and not read.classifies:
        # The place may lie outside these queries, for example in the other stack of a translator.
        if place < length:
            return place
        return None
    # One of our encoders may pool its first token, which then has the answer.
    if getattr(getattr(read.model, "config", None), "pool", None) in ("cls", "first"):
        return 0
    return None


def _per_head(v: Float[Tensor, "g k e"], heads: int) -> Float[Tensor, "h k e"]:
    """The values of each query head, where several share them."""
    # Grouped-query attention: neighbouring query heads share a key/value head.
    return v.repeat_interleave(heads // len(v), dim=0)


def _without_key(
    weights: Float[Tensor, "h q k"],
    v: Float[Tensor, "h k e"],
    cells: list[tuple[int, int, int]],
    rows: slice,
) -> Edit:
    """An edit of the output of heads: in row r, head h does not attend to key k, for each (r, h, k)."""
    row, head, key = (list(x) for x in zip(*cells, strict=True))
    # the other weights are divided by their sum; a head without other keys has the output 0
    w = weights[head][:, rows].clone()  # (n, q, k)
    w[range(len(cells)), :, key] = 0.0
    left = w.sum(-1, keepdim=True)
    out = (w @ v[head] / left.clamp(min=NONE_LEFT)).masked_fill(left < NONE_LEFT, 0.0)

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        # Indexing by two lists copies, so the new rows have to be written back.
        new = x[row, head]
        new[:, rows] = out.to(x)
        x[row, head] = new
        return x

    return change


def correlation(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Pearson's correlation over the last axis; 0 where one of the two is constant."""
    # Centred, in float64: the weights of a long text are small.
    x, y = (a.double() - a.double().mean(-1, keepdim=True) for a in (x, y))
    size = x.norm(dim=-1) * y.norm(dim=-1)
    r = (x * y).sum(-1) / size.clamp(min=1e-300)
    return torch.where(size > 0, r, torch.zeros_like(r)).float()


def ranks(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """The rank of each number along the last axis; equal numbers have the mean of their ranks."""
    # Compare each number with every other: (n, n) per row, affordable for the keys of one text.
    less = (x[..., None, :] < x[..., None]).sum(-1)
    equal = (x[..., None, :] == x[..., None]).sum(-1)
    # Equal numbers hold the ranks less + 1 to less + equal, whose mean is this.
    return less + (equal + 1) / 2
