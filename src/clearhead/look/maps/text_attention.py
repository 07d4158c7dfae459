"""attention: the attention maps of one text, with the pieces that name their queries and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ... import draw
from ...errors import InputError, InputIndexError, nearest
from ...inputs import ModelInput, read_input
from ...inputs.tensors import check_tokenizer, is_encoder_decoder
from ...models import Model
from ...models.model import network
from ...weights import Bundle
from ..capture.addresses import Tree, matching
from ..structure import KINDS
from ..watch import watch
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
            # A decoder's query at place i writes target i, after it has read decoder_input i.
            queries, keys = self.target, self.decoder_input
            if kind == "cross":
                keys = self.pieces
        if layer is None:
            return queries, keys
        sizes = self.maps[kind][self.layer_number(kind, layer)].shape[2:]
        # Pieces name the axes only where there are as many of them.
        if len(queries) != sizes[0]:
            queries = [str(i) for i in range(sizes[0])]
        if len(keys) != sizes[1]:
            keys = [str(i) for i in range(sizes[1])]
        return queries, keys

    def layer_name(self, kind: str, layer: int) -> str:
        """The name of a map: "layer 2", or the address of its module where maps are not one per layer.

        So it is in models in which only some layers attend (Jamba), or attend twice (DiffLlama).
        """
        layer, names = self.layer_number(kind, layer), self.addresses.get(kind, [])
        # The number of a layer is a part of its address: "blocks.2.attn" has 2.
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
        attention_map = self.maps[kind][self.layer_number(kind, layer)]
        weights = attention_map.dense() if head is None else attention_map.only(head).dense()
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
        # (heads, queries)
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
            kind: [attention_map.dense()[0].float().tolist() for attention_map in layers]
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
        return _foreign_attention(bundle, tokenizer, text, target)
    opened_by_transformers = hasattr(bundle, "config") and not isinstance(bundle, Model)
    # A model of transformers cannot name its tokens without a tokenizer.
    if isinstance(bundle, nn.Module) and opened_by_transformers:
        raise InputError(
            f"this {type(bundle).__name__} has no tokens: expected its tokenizer, as tokenizer=..."
        )
    if not isinstance(text, str):
        raise InputError(
            "two texts are read by the tokenizer of a model of transformers, tokenizer=...: expected one"
        )
    kinds, given = text_and_kinds(bundle, text, target)
    # All kinds of attention that the model has, from the same pass.
    with watch(bundle, *kinds.values()) as tape:
        given.run(given.model)
    maps = {kind: tape.match(pattern) for kind, pattern in kinds.items()}
    if not any(maps.values()):
        raise InputError(
            f"no attention was seen in this {type(given.model).__name__}: {tape.unseen}"
        )
    return _text_attention(given, maps)


def _text_attention(
    given: ModelInput, maps: Mapping[str, Mapping[str, AttentionMap]]
) -> TextAttention:
    """The maps of a text, by kind and by the address of their weights, with the names of its tokens."""
    addresses = {
        kind: [name.removesuffix(".weights") for name in layers] for kind, layers in maps.items()
    }
    return TextAttention(
        pieces=given.pieces or [],
        target=given.target,
        decoder_input=given.decoder_input,
        maps={kind: list(layers.values()) for kind, layers in maps.items()},
        addresses=addresses,
    )


def text_and_kinds(
    bundle: Bundle | nn.Module, text: str, target: str | None = None
) -> tuple[dict[str, str], ModelInput]:
    """The kinds of attention that a model has, with the addresses of their weights, and its input for a text.

    Raises for a model without attention or tokens, and for a translator without a translation.
    """
    model = network(bundle)
    name = type(model).__name__
    if not isinstance(model, Model) and hasattr(model, "save_pretrained"):
        raise InputError(
            f"this {name} is a model of transformers without its tokens: `load` opens a folder of transformers"
        )
    tree = Tree(model)
    addresses = tree.possible | tree.known
    kinds = {kind: pattern for kind, pattern in KINDS.items() if matching(pattern, addresses)}
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
    if "translate" in bundle.can and target is None:
        raise InputError(
            f"this {bundle.name} is a translator: expected a text and its translation, target='...'; `translate` "
            "writes one"
        )
    return kinds, read_input(bundle, text, target=target)


# Models of transformers, whose tokenizer reads the text.


def _foreign_attention(
    model: Bundle | nn.Module, tokenizer: Any, text: str | tuple[str, str], target: str | None
) -> TextAttention:
    """The maps of a text in a model of transformers; an encoder-decoder needs what its decoder writes, the target."""
    check_tokenizer(tokenizer)
    if isinstance(model, nn.Module) and is_encoder_decoder(model) and target is None:
        raise InputError(
            f"this {type(model).__name__} reads a text and writes another: expected target='...'"
        )
    given = read_input(model, text, target=target, tokenizer=tokenizer)
    with watch(given.model, "**.weights") as tape:
        _run(given)
    maps = tape.match("**.weights")
    if not maps:
        raise InputError(f"no attention was seen in this {type(model).__name__}: {tape.unseen}")
    if given.target is None:
        return _text_attention(given, {"self": maps})
    # An encoder-decoder's maps are told apart by their addresses.
    return _text_attention(given, _by_kind(maps))


def _run(given: ModelInput) -> None:
    """Run a model; a text that is longer than its table of positions is the user's mistake."""
    try:
        given.run(given.model)
    except IndexError as cause:
        tokens = given.named["input_ids"].shape[1]
        most = getattr(given.model.config, "max_position_embeddings", None)
        # Other errors of an index are no matter of length.
        if not isinstance(most, int) or tokens <= most:
            raise
        raise InputError(
            f"the text has {tokens} tokens: this model reads {most} at once"
        ) from cause


def _by_kind(maps: dict[str, AttentionMap]) -> dict[str, dict[str, AttentionMap]]:
    """The maps of an encoder-decoder: in each layer of a decoder self-attention comes before cross-attention."""
    kinds: dict[str, dict[str, AttentionMap]] = {"encoder": {}, "decoder": {}, "cross": {}}
    kind_of: dict[str, str] = {}  # by the address without its numbers
    for name, layer_map in maps.items():
        if "decoder" not in name.split("."):
            kinds["encoder"][name] = layer_map
            continue
        # "decoder.layers.3.self_attn" and "decoder.layers.4.self_attn" are one family.
        family = re.sub(r"\d+", "", name)
        if family not in kind_of:
            # the first family of a decoder attends to the decoder itself, the second one to the encoder
            kind_of[family] = "cross" if "decoder" in kind_of.values() else "decoder"
        kinds[kind_of[family]][name] = layer_map
    return {kind: layers for kind, layers in kinds.items() if layers}
