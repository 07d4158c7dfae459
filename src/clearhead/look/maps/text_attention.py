"""attention: the attention maps of one text, with the pieces that name their queries and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import draw
from ...data.text.labelled import MASKS, masked_ids, with_special
from ...errors import InputError, InputIndexError, nearest
from ...models import Model
from ...weights import Bundle
from ..capture.addresses import Tree, matching
from ..capture.watch import watch
from ..foreign.foreign_text import foreign_attention
from ..structure import KINDS
from .attention_map import AttentionMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, eq=False)
class TextAttention(draw.Result):
    """The attention maps of one text, layer by layer, and the pieces that name their queries and keys.

    Examples:
        >>> result = attention(clearhead.load("en-de"), "A dog runs.", target="Ein Hund rennt.")
        >>> result.labels("cross")[0]
        ['Ein', ' Hund', ' rennt', '.', '<end>']
        >>> result.maps["cross"][0].shape
        (1, 5, 5, 5)
    """

    # the text of each token, special ones included; for a translator, of the source
    pieces: list[str]
    # one per layer, by kind: "self", or "encoder", "decoder" and "cross"
    maps: dict[str, list[AttentionMap]]
    # the text of each token that a translator writes, the end token included
    target: list[str] | None = None
    # the text of each token that its decoder reads: the start, then the target
    decoder_input: list[str] | None = None
    # of the modules that attend, by kind
    addresses: dict[str, list[str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        maps = ", ".join(f"{kind}={len(layers)}" for kind, layers in self.maps.items())
        return f"TextAttention(tokens={len(self.pieces)}, {maps})"

    def labels(self, kind: str, layer: int | None = None) -> tuple[list[str], list[str]]:
        """The pieces that name the queries and the keys of a kind of attention.

        A decoder's queries are named by the piece that is written there, one after the piece that is read. Queries or
        keys of a layer that are not one per piece, as where Funnel pools them, are named by their numbers.
        """
        self._check(kind)
        if kind in ("self", "encoder"):
            queries, keys = self.pieces, self.pieces
        else:
            assert self.target is not None
            assert self.decoder_input is not None
            queries, keys = self.target, self.pieces if kind == "cross" else self.decoder_input
        if layer is None:
            return queries, keys
        sizes = self.maps[kind][self.layer_number(kind, layer)].shape[2:]
        fitting = [
            x if len(x) == n else [*map(str, range(n))]
            for x, n in zip((queries, keys), sizes, strict=True)
        ]
        return fitting[0], fitting[1]

    def layer_name(self, kind: str, layer: int) -> str:
        """The name of a map: "layer 2", or the address of its module where maps are not one per layer.

        So it is in models in which only some layers attend (Jamba), or attend twice (DiffLlama).
        """
        layer, names = self.layer_number(kind, layer), self.addresses.get(kind, [])
        numbers = [re.search(r"(?<![^.])\d+(?![^.@])", name) for name in names]
        in_order = all(n is not None and int(n[0]) == i for i, n in enumerate(numbers))
        # one module runs for all layers (ALBERT)
        shared = len({name.partition("@")[0] for name in names}) == 1
        if in_order or shared:
            return f"layer {layer}"
        return names[layer]

    def figure(
        self,
        layer: int = -1,
        head: int | None = None,
        *,
        kind: str | None = None,
        most: float | None = 1.0,
    ) -> Figure:
        """Draw one layer and head as a heat map, its rows the queries and its columns the keys.

        Args:
            layer: The number of the map in `maps`, counted from 0, or from the end if negative: the layer, unless only
                some layers attend.
            head: The head, counted from 0; None: the mean over all heads.
            kind: A key of `maps`; if not given, "cross" for a translator and otherwise "self".
            most: The weight at the end of the colours, 1 so that heads can be compared; None: the largest of this map.
        """
        if kind is None:
            kind = self.main
        queries, keys = self.labels(kind, layer)
        one = self.maps[kind][self.layer_number(kind, layer)]
        weights = one.dense() if head is None else one.only(head).dense()
        return draw.heatmap(
            weights[0].mean(0).float().cpu().numpy(),
            rows=queries,
            columns=keys,
            title=f"{_title(kind)}, {self.layer_name(kind, layer)}, "
            + ("mean over heads" if head is None else f"head {head}"),
            most=most,
        )

    def table(
        self, layer: int = -1, head: int | None = None, *, kind: str | None = None
    ) -> draw.Table:
        """The key with the largest weight of each query, for one head or all heads of a layer.

        Args:
            layer: The number of the map in `maps`, as for `figure`.
            head: The head, counted from 0; None: all heads.
            kind: A key of `maps`, as for `figure`.
        """
        if kind is None:
            kind = self.main
        queries, keys = self.labels(kind, layer)
        attention_map = self.maps[kind][self.layer_number(kind, layer)]
        if head is None:
            heads = list(range(attention_map.shape[1]))
        else:
            heads, attention_map = [head], attention_map.only(head)
        weights = attention_map.dense()[0].float().cpu()  # (heads, queries, keys)
        largest, which = weights.max(-1)
        rows = []
        for i, query in enumerate(queries[: draw.MOST_ROWS]):
            best = zip(which[:, i].tolist(), largest[:, i].tolist(), strict=True)
            rows.append([repr(query), *(f"{keys[key]!r} {weight:.2f}" for key, weight in best)])
        return draw.Table(
            columns=["query", *(f"head {number}" for number in heads)],
            rows=rows,
            title=f"{self.layer_name(kind, layer)}, {kind}: the key with the largest weight of each query",
        )

    def heads_figure(self, layer: int = -1, *, kind: str | None = None) -> Figure:
        """Draw all heads of one layer as small heat maps on one colour scale.

        Args:
            layer: The number of the map in `maps`, as for `figure`.
            kind: A key of `maps`, as for `figure`.
        """
        if kind is None:
            kind = self.main
        queries, keys = self.labels(kind, layer)
        weights = self.maps[kind][self.layer_number(kind, layer)].dense()[0].float().cpu().numpy()
        title = f"{_title(kind)}, {self.layer_name(kind, layer)}"
        return draw.heads(weights, rows=queries, columns=keys, title=title)

    @property
    def main(self) -> str:
        """The kind of attention that is drawn if none is given: "cross" of a translator, otherwise "self"."""
        if "cross" in self.maps:
            return "cross"
        return next(iter(self.maps))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the tokens, and the weights (heads, queries, keys) of each layer by kind."""
        maps = {
            kind: [one.dense()[0].float().tolist() for one in layers]
            for kind, layers in self.maps.items()
        }
        return {
            "pieces": self.pieces,
            "target": self.target,
            "decoder_input": self.decoder_input,
            "maps": maps,
        }

    def layer_number(self, kind: str, layer: int) -> int:
        """The number of a layer, counted from 0; raises if it is out of range."""
        count = len(self.maps[kind])
        if not -count <= layer < count:
            raise InputIndexError(f"layer {layer}: there are {count}, counted from 0")
        return layer % count

    def _check(self, kind: str) -> None:
        if kind not in self.maps:
            raise InputError(
                f"kind={kind!r}: expected one of {', '.join(self.maps)}{nearest(kind, self.maps)}"
            )


def _title(kind: str) -> str:
    if kind in ("self", "cross"):
        return f"{kind}-attention"
    return f"self-attention of the {kind}"


@torch.no_grad()
def attention(
    bundle: Bundle | nn.Module,
    text: str | tuple[str, str],
    *,
    target: str | None = None,
    tokenizer: Any = None,
) -> TextAttention:
    """Return the attention maps of a text, layer by layer, from one forward pass.

    Args:
        bundle: A model with its tokens: a GPT, a BERT, or a translator; or a model of transformers.
        text: The text; for a translator the source. With a tokenizer that reads pairs, as BERT's, also two texts.
        target: The translation, for a translator only: one of its own (`translate(...).text`) or any other.
        tokenizer: The tokenizer of a model of transformers; a Bundle has its own.

    Returns:
        The pieces of the text and an AttentionMap per layer: the self-attention of a GPT or BERT; for a translator that
        of the encoder and of the decoder, and the cross-attention.

    Raises:
        InputError: If the model has no attention or no tokens, or if a target is missing or too much.

    Examples:
        >>> result = attention(clearhead.load("everyday"), "A dog runs.")
        >>> result.pieces
        ['A', ' dog', ' runs', '.']
        >>> result.maps["self"][0]
        AttentionMap(batch=1, heads=5, queries=4, keys=4)
        >>> figure = result.figure(layer=0, head=2)
    """
    if tokenizer is not None:
        if isinstance(bundle, Bundle):
            raise InputError("a Bundle has tokens of its own: expected no tokenizer")
        fields, found = foreign_attention(bundle, tokenizer, text, target)
        return TextAttention(**fields, **named_maps(found))
    if (
        hasattr(bundle, "config")
        and isinstance(bundle, nn.Module)
        and not isinstance(bundle, Model)
    ):
        raise InputError(
            f"this {type(bundle).__name__} has no tokens: expected its tokenizer, as tokenizer=..."
        )
    if not isinstance(text, str):
        raise InputError(
            "two texts are read by the tokenizer of a model of transformers, tokenizer=...: expected one"
        )
    inputs = text_inputs(bundle, text, target)
    assert isinstance(bundle, Bundle)
    with watch(bundle, *inputs.kinds.values()) as tape:
        bundle.model(**inputs.row)
    found = {kind: tape.match(pattern) for kind, pattern in inputs.kinds.items()}
    if not any(found.values()):
        raise InputError(f"no attention was seen in this {bundle.name}: {tape.unseen}")
    return TextAttention(
        pieces=inputs.pieces,
        target=inputs.target,
        decoder_input=inputs.decoder_input,
        **named_maps(found),
    )


def named_maps(found: Mapping[str, Mapping[str, AttentionMap]]) -> dict[str, Any]:
    """The fields `maps` and `addresses` of a TextAttention, from maps by kind and address."""
    return {
        "maps": {kind: list(maps.values()) for kind, maps in found.items()},
        "addresses": {
            kind: [name.removesuffix(".weights") for name in maps] for kind, maps in found.items()
        },
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class TextInputs:
    """The inputs of a model for one text, and the text of their tokens."""

    # the arguments of forward, a batch of one row: ids, and the source of a translator
    row: dict[str, Tensor]
    # the kinds of attention that the model has, and the addresses of their weights
    kinds: dict[str, str]
    pieces: list[str]  # the text of each token; for a translator, of the source
    # the text of each token that a translator writes, the end token included
    target: list[str] | None = None
    # the text of each token that its decoder reads: the start, then the target
    decoder_input: list[str] | None = None
    written: Tensor | None = None  # (t,) the ids of `target`


def text_inputs(bundle: Bundle | nn.Module, text: str, target: str | None = None) -> TextInputs:
    """The inputs of a model with attention for a text, or for a text and its translation; raises for other models."""
    model: Any = bundle.model if isinstance(bundle, Bundle) else bundle
    name, tree = type(model).__name__, Tree(model)
    if not isinstance(model, Model) and hasattr(model, "save_pretrained"):
        raise InputError(
            f"this {name} is a model of transformers without its tokens: `load` opens a folder of transformers"
        )
    known = tree.possible | tree.known
    kinds = {kind: pattern for kind, pattern in KINDS.items() if matching(pattern, known)}
    if not kinds:
        raise InputError(
            f"this {name} has no attention to show: expected a gpt, a bert, a transformer, or an rnn-seq2seq whose "
            "attention is not 'none'; `load` opens a folder of transformers, and `watch` records any activation"
        )
    if not isinstance(bundle, Bundle) or bundle.tokens is None:
        raise InputError(
            f"this {name} has no tokens: expected a Bundle with tokens, from `load` or as Bundle(model, tokens); for a "
            f"batch of ids use watch(model, {next(iter(kinds.values()))!r})"
        )
    if "translate" in bundle.can:
        return translation_inputs(bundle, text, target, kinds)
    if target is not None:
        raise InputError(f"this {name} is no translator: expected a text without a target")
    ids, _ = read_ids(bundle, text)
    return TextInputs(
        row={"ids": id_row(bundle, ids, "text")}, kinds=kinds, pieces=pieces_of(bundle, ids)
    )


def read_ids(bundle: Bundle, text: str) -> tuple[np.ndarray, list[int]]:
    """The ids of a text as a model reads it, and the positions of its masks.

    A model that predicts masked tokens reads "[MASK]" as its mask token, as `fill` does.
    """
    tokens = bundle.tokenizer()
    if "fill" in bundle.can:
        return masked_ids(tokens, text)
    return tokens.wrapped(text) if "predict" in bundle.can else with_special(
        tokens, tokens.encode(text)
    ), []


def pieces_of(bundle: Bundle, ids: np.ndarray) -> list[str]:
    """The text of each id; a mask may come after the ids of the tokenizer."""
    tokens = bundle.tokenizer()
    known = tokens.pieces(ids[ids < len(tokens)])
    return [known.pop(0) if i < len(tokens) else MASKS[0] for i in ids.tolist()]


def translation_inputs(
    bundle: Bundle, text: str, target: str | None, kinds: dict[str, str]
) -> TextInputs:
    """The inputs of a translator, with the target given to its decoder."""
    pair = bundle.pair()
    if target is None:
        raise InputError(
            f"this {bundle.name} is a translator: expected a text and its translation, target='...'; `translate` "
            "writes one"
        )
    source = pair.read(text)
    start, *first = bundle.decoder_prompt()
    # a forced first token is written, too
    written = np.array([*first, *pair.written(target)], np.int64)
    read = np.append(np.int64(start), written[:-1])
    row = {"ids": id_row(bundle, read, "target"), "source": id_row(bundle, source, "text")}
    return TextInputs(
        row=row,
        kinds=kinds,
        pieces=pair.source.pieces(source),
        target=pair.target.pieces(written),
        decoder_input=pair.target.pieces(read),
        written=id_row(bundle, written, "target")[0],
    )


def id_row(bundle: Bundle, ids: np.ndarray, what: str) -> Tensor:
    """A batch of one row on the model's device; raises if it is empty or too long."""
    if not len(ids):
        raise InputError(f"the {what} is empty: expected a token or more")
    if bundle.max_tokens is not None and len(ids) > bundle.max_tokens:
        raise InputError(
            f"the {what} has {len(ids)} tokens: this model reads {bundle.max_tokens} at once"
        )
    return torch.from_numpy(ids)[None].to(bundle.device)
