"""head_effects: how much every attention head matters for a text or a class, measured by silencing each in turn.

Michel et al. 2019, section 3.1: a head's output is set to 0 at every token, and what changes at the model's output is
the head's effect. All heads of a layer are silenced in one batch, each in a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ... import draw
from ...checks import one_of
from ...errors import InputError, nearest
from ...inputs import ModelInput, read_input
from ...inputs.read import Given
from ...inputs.tensors import is_encoder_decoder
from ...weights import Bundle
from ..capture.edits import Edit
from ..maps.text_attention import text_and_kinds
from ..structure import attention_layers, layer_stack
from ..targets import (
    LOGITS,
    answer_logits,
    answer_of,
    at_least_float32,
    rows_at_once,
    tokens_at_once,
    whole_output,
)
from ..watch import edit, watch

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
        title = "change of log p without the head, in nats"
        if self.logprobs is None:
            title = "change without the head"
        return draw.matrix(
            self.mean.float().cpu().numpy(),
            rows=[str(i) for i in range(layers)],
            columns=[str(i) for i in range(heads)],
            xlabel="head",
            ylabel="layer",
            title=title,
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
    ablation, layers, kind = _experiment(bundle, text, target, kind, tokenizer)
    change = []
    # One batch per layer: row i of it has head i silenced.
    for i, (layer, heads) in enumerate(layers.items()):
        change.append(torch.cat(list(ablation.effect_parts(f"{layer}.heads", heads))))
        if done is not None:
            done(i + 1, len(layers))
    return HeadEffects(
        tokens=ablation.tokens, logprobs=ablation.logprobs(), change=torch.stack(change), kind=kind
    )


def _experiment(
    bundle: Bundle | nn.Module,
    text: Given,
    target: str | int | None,
    kind: str | None,
    tokenizer: Any,
) -> tuple[Ablation, dict[str, int], str]:
    """Return the measurement, the attention of each layer with its number of heads, and the kind of attention."""
    # A torch module that is no Bundle: its attention is found by running it.
    if not isinstance(bundle, Bundle) and (tokenizer is not None or not isinstance(text, str)):
        written = target if isinstance(target, str) and is_encoder_decoder(bundle) else None
        given = read_input(bundle, text, target=written, tokenizer=tokenizer)
        kind, layers = _attention_of_any(given, kind)
        if given.classifies:
            return class_ablation(given, target), _checked(given, layers, kind), kind
        return foreign_ablation(given), layers, kind
    if tokenizer is not None:
        raise InputError("a Bundle has tokens of its own: expected no tokenizer")
    # A classifier of images is measured by its class; one of texts only if a target is named,
    # otherwise by its vectors.
    classifier = isinstance(bundle, Bundle) and "classify" in bundle.can
    if classifier and (bundle.reads == "images" or target is not None):
        given = read_input(bundle, text)
        layers = attention_layers(given.model)
        kind = kind or "self"
        return class_ablation(given, target), _checked(given, layers, kind), kind
    if not isinstance(text, str):
        raise InputError(
            f"a {type(text).__name__} is no text: expected a string, or a classifier of images"
        )
    kinds, given = text_and_kinds(bundle, text, None if target is None else str(target))
    if kind is None:
        kind = "cross" if "cross" in kinds else next(iter(kinds))
    if kind not in kinds:
        raise InputError(f"kind={kind!r}: expected one of {', '.join(kinds)}{nearest(kind, kinds)}")
    return text_ablation(given), attention_layers(given.model, kind), kind


def _checked(given: ModelInput, layers: dict[str, int], kind: str) -> dict[str, int]:
    """The layers of a classifier; raises if there are none, or if another kind of attention was asked for."""
    if not layers:
        raise InputError(
            f"this {type(given.model).__name__} has no attention in blocks: expected a vision transformer or a BERT"
        )
    if kind != "self":
        raise InputError(f"kind={kind!r}: a classifier has 'self'-attention only")
    return layers


def _attention_of_any(given: ModelInput, kind: str | None) -> tuple[str, dict[str, int]]:
    """The kind of attention, and the attention of each layer of a torch module with its heads, from a forward pass."""
    # The seq2seq stacks are named; all other models have one kind.
    kinds = ["cross", "encoder", "decoder"] if is_encoder_decoder(given.model) else ["self"]
    # Of a translator the cross-attention, which links both texts, is the default.
    if kind is None:
        kind = kinds[0]
    one_of("kind", kind, kinds)
    # the cross-attention is in the layers of the decoder
    stack = {"cross": "decoder", "self": None}.get(kind, kind)
    addresses = []
    for layer in layer_stack(given, stack).layers:
        attends = layer.cross_attends if kind == "cross" else layer.attends
        # Layers without this attention, as those of a hybrid model, are left out.
        if attends is not None:
            addresses.append(f"{attends}.heads")
    # the output of heads is (b, h, t, e)
    with (
        torch.no_grad(),
        watch(given.model, *addresses, keep=lambda record: record.shape[1]) as tape,
    ):
        given.run(given.model)
    # Only the number of heads is kept, not the activations.
    heads = {address.removesuffix(".heads"): tape.calls(address)[0] for address in addresses}
    return kind, heads


# What is measured while heads are silenced: tokens, a class, or vectors.


@dataclass(frozen=True, kw_only=True, eq=False)
class Ablation:
    """What is measured of an input while heads are silenced: log-probabilities of tokens or a class, or vectors."""

    # (rows, edits) -> log-probabilities (rows, t), or vectors (rows, t, d), of copies of the input under edits
    measure: Callable[[int, Mapping[str, Edit]], Float[Tensor, "r t *d"]]
    rows: int  # copies of the input that one forward pass takes
    tokens: list[str]  # the text of each token that is measured, or the class
    vectors: bool = False  # output vectors are compared, and not log-probabilities

    @cached_property
    def before(self) -> Float[Tensor, "1 t *d"]:
        """The measurement with all heads in place."""
        with torch.no_grad():
            return self.measure(1, {})

    def logprobs(self, changes: Mapping[str, Edit] | None = None) -> Float[Tensor, "t"] | None:
        """The log-probability of each token under the edited model; None if output vectors are measured."""
        if self.vectors:
            return None
        # The unedited run is cached: all heads are compared with the same one.
        if not changes:
            return self.before[0]
        with torch.no_grad():
            return self.measure(1, changes)[0]

    def effect_parts(self, address: str, count: int) -> Iterator[Float[Tensor, "n t"]]:
        """Yield the change of what is measured when each head of one attention is silenced.

        A few heads come at a time, as many as fit into one forward pass.

        Args:
            address: The address "...heads" of the attention.
            count: Its number of heads.
        """
        for first in range(0, count, self.rows):
            heads = range(first, min(first + self.rows, count))
            with torch.no_grad():
                after = self.measure(len(heads), {address: silence_one_per_row(heads)})
            # (rows, t), or (rows, t, d) of vectors; `before` has one row and broadcasts.
            change = after - self.before
            if self.vectors:
                # |x' - x| / |x|
                change = change.norm(dim=-1) / self.before.norm(dim=-1)
            yield change


def text_ablation(given: ModelInput) -> Ablation:
    """The measurement of a text by a Bundle; by a language model, of all its tokens but the first."""
    bundle, (ids,) = given.bundle, given.args
    assert bundle is not None
    # A translator: the target ids are what its decoder should predict.
    if given.target_ids is not None:
        inputs = {"ids": ids, **given.named}
        return token_ablation(bundle.model, inputs, given.target_ids, given.target or [])
    pieces = given.pieces or []
    if "predict" in bundle.can:
        return next_token_ablation(bundle.model, ids[0], pieces)
    bundle.require("encode", "a GPT, a BERT or a translator")
    return vector_ablation(bundle.model, ids, pieces)


def next_token_ablation(model: nn.Module, ids: Int[Tensor, "t"], pieces: list[str]) -> Ablation:
    """The measurement of a language model's text: of each token but the first, given those before it."""
    if len(ids) < 2:
        raise InputError(ONE_TOKEN)
    # The last id predicts nothing that is known, and the first is predicted by nothing.
    return token_ablation(model, {"ids": ids[None, :-1]}, ids[1:], pieces[1:])


def token_ablation(
    model: nn.Module,
    inputs: Mapping[str, Int[Tensor, "1 t"]],
    targets: Int[Tensor, "t"],
    tokens: list[str],
) -> Ablation:
    """The measurement of the log-probability of a target after each id.

    Args:
        model: A model of ours with `states` and `head`.
        inputs: The arguments of `states`, one row each.
        targets: The id that is to follow each id.
        tokens: The text of each target.
    """
    ours: Any = model

    def measure(rows: int, changes: Mapping[str, Edit]) -> Float[Tensor, "r t"]:
        named = {name: x.expand(rows, -1) for name, x in inputs.items()}
        ids = named.pop("ids")
        # The pass up to the output layer runs under the edits; the output layer has no heads.
        with edit(model, changes):
            x = ours.states(ids, **named)
        wanted = targets.repeat(rows)[:, None]
        # the logits of a few tokens at a time: all of them may not fit into memory
        most = max(1, LOGITS // ours.head.out_features)
        parts = []
        # (rows x t, d) in pieces of at most LOGITS numbers of logits
        for states, following in zip(x.flatten(0, 1).split(most), wanted.split(most), strict=True):
            logp = at_least_float32(ours.head(states)).log_softmax(-1)
            # The log-probability of the id that really follows.
            parts.append(logp.gather(1, following)[:, 0])
        return torch.cat(parts).unflatten(0, (rows, -1))

    return Ablation(measure=measure, rows=_rows(model, inputs), tokens=tokens)


def vector_ablation(model: nn.Module, ids: Int[Tensor, "1 t"], tokens: list[str]) -> Ablation:
    """The measurement of an encoder's output vectors."""
    ours: Any = model

    def measure(rows: int, changes: Mapping[str, Edit]) -> Float[Tensor, "r t d"]:
        with edit(model, changes):
            # (rows, t, d): the vectors of every token, in float32 to be compared.
            return at_least_float32(ours.encode(ids.expand(rows, -1)))

    return Ablation(measure=measure, rows=_rows(model, {"": ids}), tokens=tokens, vectors=True)


def _rows(model: nn.Module, inputs: Mapping[str, Tensor]) -> int:
    # Source and target of a translator both count, as both are read.
    tokens = sum(x.shape[1] for x in inputs.values())
    return max(1, tokens_at_once(model) // tokens)


def class_ablation(given: ModelInput, target: str | int | None) -> Ablation:
    """The measurement of a class's log-probability; None: the likeliest class."""
    with torch.no_grad():
        logits = answer_logits(given)
    answer = answer_of(given, target, None, logits[0])

    def measure(rows: int, changes: Mapping[str, Edit]) -> Float[Tensor, "r 1"]:
        # One column: the class is measured as if it were the only token.
        return answer.measure(answer_logits(given, rows, changes))[:, None]

    return Ablation(
        measure=measure, rows=rows_at_once(given, logits.shape[-1]), tokens=[answer.name]
    )


def foreign_ablation(given: ModelInput) -> Ablation:
    """The measurement of any torch module: of the next tokens if it is causal, otherwise of its vectors."""
    ids = given.read_ids
    if ids is None or ids.is_floating_point():
        raise InputError(
            f"this {type(given.model).__name__} was given no ids of tokens: expected ids (1, t)"
        )
    with torch.no_grad():
        out = whole_output(given)
        # A module outside of the library has no declared task: whether it is causal is tested.
        causal = _is_causal(given, ids, out)
    rows = rows_at_once(given, out.shape[-1])
    names = given.names(ids.shape[1], decoder="decoder_input_ids" in given.named)
    # Not causal, such as an encoder: its outputs see the whole text, so no token is predicted.
    if not causal:
        return Ablation(
            measure=lambda rows, changes: whole_output(given, rows, changes),
            rows=rows,
            tokens=names,
            vectors=True,
        )
    following = ids[0, 1:]
    if not len(following):
        raise InputError(ONE_TOKEN)

    def measure(rows: int, changes: Mapping[str, Edit]) -> Float[Tensor, "r t"]:
        # Logits at position i predict token i + 1, so that the last ones are left out.
        logp = whole_output(given, rows, changes)[:, :-1].log_softmax(-1)
        return logp.gather(2, following.expand(rows, -1)[..., None])[..., 0]

    return Ablation(measure=measure, rows=rows, tokens=names[1:])


def _is_causal(given: ModelInput, ids: Int[Tensor, "1 t"], out: Tensor) -> bool:
    """Whether the answers at earlier tokens stay as they are when the last one is replaced."""
    if out.ndim != 3 or out.shape[1] != ids.shape[1]:
        raise InputError(
            f"this {type(given.model).__name__} returns {tuple(out.shape)} for {ids.shape[1]} tokens: expected logits "
            "or a vector per token"
        )
    # The decoder of a translator is causal by construction.
    if is_encoder_decoder(given.model) or ids.shape[1] < 2:
        return True
    other = ids.clone()
    # the first token in place of the last, or some other one if both are the same
    other[0, -1] = ids[0, 0]
    if ids[0, 0] == ids[0, -1]:
        other[0, -1] = (ids[0, -1] + 1) % 2
    changed = whole_output(given.exchanged(ids, other))
    # Relative to the largest output: half precision and other kernels cause small differences.
    tolerance = 1e-3 * float(out.abs().max())
    return torch.allclose(changed[:, :-1], out[:, :-1], rtol=1e-3, atol=tolerance)


def silence_one_per_row(heads: Sequence[int]) -> Edit:
    """Return an edit that sets the output of head heads[i] to 0 in row i of the batch."""

    def change(x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        # Row i is True at head heads[i] only, so that each row loses one head.
        numbers = torch.arange(x.shape[1], device=x.device)
        silent = torch.as_tensor(heads, device=x.device)[:, None] == numbers  # (b, h)
        return x.masked_fill(silent[:, :, None, None], 0.0)

    return change
