"""head_effects: how much every attention head matters for a text or a class, measured by silencing each in turn.

Michel et al. 2019, section 3.1: a head's output is set to 0 at every token, and what changes at the model's output is
the head's effect. All heads of a layer are silenced in one batch, each in a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ... import draw
from ...checks import one_of
from ...errors import InputError, nearest
from ...weights import Bundle
from ..capture.edits import Edit
from ..capture.watch import edit, watch
from ..maps.text_attention import TextInputs, text_inputs
from ..measured_input import (
    LOGITS,
    ROW_TOKENS,
    ROW_TOKENS_CUDA,
    Given,
    ModelInput,
    answer_of,
    model_input,
)
from ..structure import attention_layers, layer_stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE_TOKEN = (
    "the text has one token, whose probability depends on nothing: expected two tokens or more"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadEffects(draw.Result):
    """The effect of every head of a model on each token of a text, or on the class of an input.

    Examples:
        >>> effects = head_effects(clearhead.load("everyday"), "A man is standing in the street.")
        >>> effects.tokens[:3], effects.change.shape
        ([' man', ' is', ' standing'], torch.Size([5, 5, 7]))
        >>> layer, head = divmod(int(effects.mean.argmin()), 5)  # the head that the text needs most
    """

    in_json = "kind tokens logprobs mean"

    # the text of each token that is measured: of a language model all but the first; or the class
    tokens: list[str]
    # Log-probability of each token with all heads; None: `change` is of vectors
    logprobs: Float[Tensor, "t"] | None
    # log p without the head - log p with it, in nats; or |x' - x| / |x| of vectors
    change: Float[Tensor, "l h t"]
    kind: str  # the kind of attention, a key of TextAttention.maps

    def __repr__(self) -> str:
        layers, heads, tokens = self.change.shape
        return f"HeadEffects(kind={self.kind!r}, layers={layers}, heads={heads}, tokens={tokens})"

    @property
    def total(self) -> Float[Tensor, "l h"]:
        """The sum of the changes over all tokens, for each head."""
        return self.change.sum(-1)

    @property
    def mean(self) -> Float[Tensor, "l h"]:
        """The mean change per token, for each head."""
        return self.change.mean(-1)

    def figure(self) -> Figure:
        """Draw the mean change of each head as one heat map."""
        layers, heads, _ = self.change.shape
        return draw.matrix(
            self.mean.float().cpu().numpy(),
            rows=[str(i) for i in range(layers)],
            columns=[str(i) for i in range(heads)],
            xlabel="head",
            ylabel="layer",
            title="change without the head"
            if self.logprobs is None
            else "change of log p without the head, in nats",
        )

    def table(self) -> draw.Table:
        """The mean change without each head: a row per layer."""
        return draw.Table.of_heads(self.mean, "+.3f", title="mean change without the head")


def head_effects(
    bundle: Bundle | nn.Module,
    text: Given,
    *,
    target: str | int | None = None,
    kind: str | None = None,
    tokenizer: Any = None,
    done: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """Return the change of each token's log-probability when a head is silenced, for every head by itself.

    A negative change means that the token is less likely without the head. Of a classifier it is the log-probability of
    one class. An encoder such as BERT has no probability of a text: there the change is that of each token's output
    vector x, |x' - x| / |x|.

    Args:
        bundle: A model with its tokens: a GPT, a BERT, a translator; or a classifier of images with attention; or any
            torch module, such as a model of transformers.
        text: The text, or the image; for a translator the source. For a torch module a text with `tokenizer`, or its
            first argument with one row, or a dict of its arguments; of an encoder-decoder the tokens that its decoder
            reads are measured, from the second on.
        target: The translation whose tokens are measured; for a classifier the class, or its number (None: of an image,
            the likeliest; of a text, its vectors are measured).
        kind: The attention whose heads are silenced: "self"; of a translator "cross" (if not given), "encoder" or
            "decoder".
        tokenizer: The tokenizer of a model of transformers, which reads a text and names tokens; a Bundle has its own.
        done: Called with the number of layers done and the number of all.

    Raises:
        InputError: If the model has no attention or no tokens, or if the text is empty or too long.

    Examples:
        >>> effects = head_effects(clearhead.load("en-de"), "A dog runs.", target="Ein Hund rennt.")
        >>> effects.kind, effects.tokens
        ('cross', ['Ein', ' Hund', ' rennt', '.', '<end>'])
        >>> effects.total.shape
        torch.Size([3, 5])
    """
    if not isinstance(bundle, Bundle) and (tokenizer is not None or not isinstance(text, str)):
        if isinstance(target, str) and is_encoder_decoder(bundle):
            written = target
        else:
            written = None
        one = model_input(bundle, text, written=written, tokenizer=tokenizer)
        if one.classifies():
            return _class_effects(one, _attention_addresses(one, kind), target, kind, done)
        return _foreign_effects(one, kind, done)
    if tokenizer is not None:
        raise InputError("a Bundle has tokens of its own: expected no tokenizer")
    if (
        isinstance(bundle, Bundle)
        and "classify" in bundle.can
        and (bundle.reads == "images" or target is not None)
    ):
        return _class_effects(
            model_input(bundle, text), attention_layers(bundle.model), target, kind, done
        )
    if not isinstance(text, str):
        raise InputError(
            f"a {type(text).__name__} is no text: expected a string, or a classifier of images"
        )
    inputs = text_inputs(bundle, text, None if target is None else str(target))
    assert isinstance(bundle, Bundle)
    kinds = list(inputs.kinds)
    if kind is None:
        if "cross" in kinds:
            kind = "cross"
        else:
            kind = kinds[0]
    else:
        kind = kind
    if kind not in kinds:
        raise InputError(f"kind={kind!r}: expected one of {', '.join(kinds)}{nearest(kind, kinds)}")
    ablation = Ablation.of_text(bundle, inputs)
    layers = attention_layers(bundle.model, kind)
    change = []
    for i, (layer, heads) in enumerate(layers.items()):
        change.append(torch.cat(list(ablation.effect_parts(f"{layer}.heads", heads))))
        if done is not None:
            done(i + 1, len(layers))
    return HeadEffects(
        tokens=ablation.tokens, logprobs=ablation.logprobs(), change=torch.stack(change), kind=kind
    )


@torch.no_grad()
def _class_effects(
    one: ModelInput,
    layers: Mapping[str, int],
    target: str | int | None,
    kind: str | None,
    done: Callable[[int, int], None] | None,
) -> HeadEffects:
    """The change of a class's log-probability when each head of some layers is silenced."""
    if not layers:
        name = type(one.model).__name__
        raise InputError(
            f"this {name} has no attention in blocks: expected a vision transformer or a BERT"
        )
    if kind not in (None, "self"):
        raise InputError(f"kind={kind!r}: a classifier has 'self'-attention only")
    logits = one.logits()
    answer = answer_of(one, int(logits[0].argmax()) if target is None else target, None)
    before, change, step = answer.measure(logits), [], one.room(logits.shape[-1])
    for i, (layer, heads) in enumerate(layers.items()):
        after = [
            one.logits(len(some), {f"{layer}.heads": silence_one_per_row(some)})
            for some in (range(first, min(first + step, heads)) for first in range(0, heads, step))
        ]
        change.append(answer.measure(torch.cat(after))[:, None] - before)
        if done is not None:
            done(i + 1, len(layers))
    return HeadEffects(
        tokens=[answer.name], logprobs=before, change=torch.stack(change), kind="self"
    )


@torch.no_grad()
def _foreign_effects(
    one: ModelInput, kind: str | None, done: Callable[[int, int], None] | None
) -> HeadEffects:
    """The effects of the heads of any torch module: on the next tokens if it is causal, otherwise on its vectors."""
    layers = _attention_addresses(one, kind)
    ids = one.read_ids
    if ids is None or ids.is_floating_point():
        raise InputError(
            f"this {type(one.model).__name__} was given no ids of tokens: expected ids (1, t)"
        )
    plain = one.whole_output()
    next_ids = ids[0, 1:] if _is_causal(one, ids, plain) else None
    if next_ids is not None and not len(next_ids):
        raise InputError(ONE_TOKEN)

    def measured(out: Float[Tensor, "r t v"]) -> Tensor:
        if next_ids is None:
            return out
        return (
            out[:, :-1].log_softmax(-1).gather(2, next_ids.expand(len(out), -1)[..., None])[..., 0]
        )

    before, change, step = measured(plain), [], one.room(plain.shape[-1])
    for i, (layer, heads) in enumerate(layers.items()):
        parts = []
        for first in range(0, heads, step):
            some = range(first, min(first + step, heads))
            after = measured(
                one.whole_output(len(some), {f"{layer}.heads": silence_one_per_row(some)})
            )
            parts.append(after - before if next_ids is not None else _relative(after, before))
        change.append(torch.cat(parts))
        if done is not None:
            done(i + 1, len(layers))
    names = one.names(ids.shape[1], decoder="decoder_input_ids" in one.row)
    return HeadEffects(
        tokens=names if next_ids is None else names[1:],
        logprobs=None if next_ids is None else before[0],
        change=torch.stack(change),
        kind=kind or ("cross" if is_encoder_decoder(one.model) else "self"),
    )


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether a model of transformers reads one text and writes another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _attention_addresses(one: ModelInput, kind: str | None) -> dict[str, int]:
    """The attention of each layer of a torch module, and its number of heads, from a forward pass."""
    if is_encoder_decoder(one.model):
        kinds = ["cross", "encoder", "decoder"]
    else:
        kinds = ["self"]
    if kind is None:
        kind = kinds[0]
    one_of("kind", kind, kinds)
    layers = layer_stack(one, {"cross": "decoder", "self": None}.get(kind, kind)).layers
    places = [layer.cross_attends if kind == "cross" else layer.attends for layer in layers]
    addresses = [f"{place}.heads" for place in places if place is not None]
    with torch.no_grad(), watch(one.model, *addresses, keep=lambda record: record.shape[1]) as tape:
        one.model(*one.args, **one.row)
    return {address.removesuffix(".heads"): tape.calls(address)[0] for address in addresses}


def _is_causal(one: ModelInput, ids: Int[Tensor, "1 t"], out: Tensor) -> bool:
    """Whether the answers at earlier tokens stay as they are when the last one is replaced."""
    if out.ndim != 3 or out.shape[1] != ids.shape[1]:
        raise InputError(
            f"this {type(one.model).__name__} returns {tuple(out.shape)} for {ids.shape[1]} tokens: expected logits or "
            "a vector per token"
        )
    if is_encoder_decoder(one.model) or ids.shape[1] < 2:
        return True
    other = ids.clone()
    other[0, -1] = ids[0, 0] if ids[0, 0] != ids[0, -1] else (ids[0, -1] + 1) % 2
    args = tuple(other if x is ids else x for x in one.args)
    row = {name: other if x is ids else x for name, x in one.row.items()}
    changed = replace(one, args=args, row=row).whole_output()
    return torch.allclose(
        changed[:, :-1], out[:, :-1], rtol=1e-3, atol=1e-3 * float(out.abs().max())
    )


def _relative(
    after: Float[Tensor, "r t d"], before: Float[Tensor, "1 t d"]
) -> Float[Tensor, "r t"]:
    """The change of vectors relative to their lengths."""
    return (after - before).norm(dim=-1) / before.norm(dim=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ablation:
    """A text for a model, and what is measured of it: log-probabilities of tokens, or output vectors."""

    model: nn.Module
    inputs: Mapping[str, Int[Tensor, "1 t"]]  # the arguments of `states` or `encode`, one row each
    # the token after each id; None: the vectors of an encoder are compared
    targets: Int[Tensor, "t"] | None
    tokens: list[str]  # the text of each token that is measured

    @staticmethod
    def of_text(bundle: Bundle, inputs: TextInputs) -> Ablation:
        """The measurement of a text; of a language model, of all its tokens but the first."""
        ids, pieces = inputs.row["ids"], inputs.pieces
        if inputs.written is not None:
            tokens = inputs.target or []
            return Ablation(
                model=bundle.model, inputs=inputs.row, targets=inputs.written, tokens=tokens
            )
        if "predict" not in bundle.can:
            bundle.require("encode", "a GPT, a BERT or a translator")
            return Ablation(model=bundle.model, inputs=inputs.row, targets=None, tokens=pieces)
        return Ablation.of_ids(bundle.model, ids[0], pieces)

    @staticmethod
    def of_ids(model: nn.Module, ids: Int[Tensor, "t"], pieces: list[str]) -> Ablation:
        """The measurement of a language model's text."""
        if len(ids) < 2:
            raise InputError(ONE_TOKEN)
        return Ablation(
            model=model, inputs={"ids": ids[None, :-1]}, targets=ids[1:], tokens=pieces[1:]
        )

    def logprobs(self, changes: Mapping[str, Edit] | None = None) -> Float[Tensor, "t"] | None:
        """The log-probability of each token under the edited model; None if output vectors are measured."""
        if self.targets is None:
            return None
        return self._measured(1, changes or {})[0]

    def effect_parts(self, address: str, count: int) -> Iterator[Float[Tensor, "n t"]]:
        """Yield the change of what is measured when each head of one attention is silenced.

        A few heads come at a time, as many as fit into one forward pass.

        Args:
            address: The address "...heads" of the attention.
            count: Its number of heads.
        """
        tokens = sum(x.shape[1] for x in self.inputs.values())
        if next(self.model.parameters()).is_cuda:
            room = ROW_TOKENS_CUDA
        else:
            room = ROW_TOKENS
        step = max(1, room // tokens)
        before = self._measured(1, {})
        for first in range(0, count, step):
            heads = range(first, min(first + step, count))
            change = self._measured(len(heads), {address: silence_one_per_row(heads)}) - before
            yield change if self.targets is not None else change.norm(dim=-1) / before.norm(dim=-1)

    @torch.no_grad()
    def _measured(self, rows: int, changes: Mapping[str, Edit]) -> Float[Tensor, "r t *d"]:
        """The log-probabilities (r, t) or the vectors (r, t, d) of `rows` copies of the text."""
        model: Any = self.model
        inputs = {name: x.expand(rows, -1) for name, x in self.inputs.items()}
        ids = inputs.pop("ids")
        with edit(model, changes):
            if self.targets is None:
                return _wide(model.encode(ids, **inputs))
            x = model.states(ids, **inputs)
        targets = self.targets.repeat(rows)[:, None]
        most = max(1, LOGITS // model.head.out_features)
        parts = [
            _wide(model.head(part)).log_softmax(-1).gather(1, wanted)[:, 0]
            for part, wanted in zip(x.flatten(0, 1).split(most), targets.split(most), strict=True)
        ]
        return torch.cat(parts).unflatten(0, (rows, -1))


def silence_one_per_row(heads: Sequence[int]) -> Edit:
    """Return an edit that sets the output of head heads[i] to 0 in row i of the batch."""

    def change(x: Tensor) -> Tensor:
        one = torch.as_tensor(heads, device=x.device)[:, None] == torch.arange(
            x.shape[1], device=x.device
        )
        return x.masked_fill(one[:, :, None, None], 0.0)

    return change


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
