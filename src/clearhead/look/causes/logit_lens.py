"""logit_lens: what a model would answer after each of its layers (nostalgebraist 2020).

The output of a layer is read as if it were that of the last one: the final norm and the output layer turn it into
logits. In a language model this is done at every position, elsewhere for the one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ... import draw
from ...errors import InputError
from ...inputs import ModelInput, read_input
from ...inputs.read import Given
from ...inputs.tensors import is_encoder_decoder
from ...weights import Bundle
from ..structure import first_tensor, layer_stack, view_addresses
from ..targets import (
    LOGITS,
    OutputNames,
    answer_logits,
    answer_position,
    at_least_float32,
    output_names,
    whole_output,
)
from ..watch import watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# for each layer and column the likeliest answers; the rank, the divergence and the entropy, (layers, columns) each
Columns = tuple[list[list[list[tuple[str, float]]]], Tensor, Tensor, Tensor]
ONE = "class"  # the column of a classifier
# columns of a figure that shows the answers; letters of an answer in it
MOST_WORDS, LONGEST = 16, 12


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitLens(draw.Result):
    """The likeliest answers after each layer, and how far they are from the model's own.

    Examples:
        >>> result = logit_lens(clearhead.load("everyday"), "A man is standing in the")
        >>> result.tokens[-1], result.rank.shape
        (' the', torch.Size([5, 6]))
        >>> result.rank[-1].tolist(), bool((result.divergence[-1].abs() < 1e-5).all())  # the last layer is the model
        ([0, 0, 0, 0, 0, 0], True)
    """

    # the token after which each column answers; of a classifier the one name "class"
    tokens: list[str]
    layers: list[str]  # the address of each layer
    # for each layer and column, the likeliest answers with probabilities
    top: list[list[list[tuple[str, float]]]]
    # number of answers that are likelier than the model's own at this layer
    rank: Int[Tensor, "l t"]
    divergence: Float[Tensor, "l t"]  # KL(p of the model || p of the layer), in nats
    entropy: Float[Tensor, "l t"]  # of the layer's distribution, in nats

    def __repr__(self) -> str:
        return f"LogitLens(layers={len(self.layers)}, columns={len(self.tokens)})"

    def figure(self) -> Figure:
        """Draw the likeliest answer in a cell per layer and column, coloured by its divergence from the model's answer.

        A text of more than 16 columns is drawn without the answers.
        """
        rows = [str(i) for i in range(len(self.layers))]
        # The bar of the last layer is labelled, because it is the model's own answer.
        rows[-1] += " (model)"  # its divergence is 0 by definition
        # The first of the likeliest answers of each cell.
        words = [[_short(cell[0][0]) for cell in row] for row in self.top]
        return draw.heatmap(
            self.divergence.clamp(min=0).numpy(),
            rows=rows,
            columns=self.tokens,
            ylabel="layer",
            square=False,
            words=words if len(self.tokens) <= MOST_WORDS else None,
            xlabel="after the token" if self.tokens != [ONE] else "",
            title="Logit lens: the likeliest answer after each layer",
            scale="KL to the model's own answer, in nats",
        )

    def table(self) -> draw.Table:
        """The likeliest answer with its probability, for each layer and for the last columns."""
        rows = []
        for layer, cells in enumerate(self.top):
            # The last columns: in a language model they have read most of the text.
            best = [cell[0] for cell in cells[-draw.MOST_ROWS :]]
            rows.append([layer, *(f"{answer!r} {share:.2f}" for answer, share in best)])
        return draw.Table(
            columns=["layer", *map(repr, self.tokens[-draw.MOST_ROWS :])],
            rows=rows,
            title="the likeliest answer after each layer",
        )


@torch.no_grad()
def logit_lens(
    model: Bundle | nn.Module,
    given: Given,
    *,
    top: int = 5,
    at: int | None = None,
    written: str | None = None,
    tokenizer: Any = None,
) -> LogitLens:
    """Return the likeliest answers after each layer, the rank of the final one, and the divergence from the final.

    Args:
        model: A Bundle of a language model, a classifier, a translator or an encoder with a masked token; or a torch
            module whose output is logits.
        given: A text or an image; for a torch module its first argument with one row, or a dict of its arguments.
        top: The number of answers to name.
        at: The position whose next token is the answer; None: all of a language model (a Bundle, or a module of
            transformers that generates), else the last or the masked one.
        written: What a translator has written so far.
        tokenizer: The tokenizer of a model of transformers, which reads a text and names tokens; a Bundle has its own.

    Examples:
        >>> result = logit_lens(clearhead.load("everyday"), "A man is standing in the", top=2)
        >>> len(result.top), len(result.top[0]), len(result.top[0][0])
        (5, 6, 2)
    """
    if top < 1:
        raise InputError(f"top={top}: expected 1 or more")
    read = read_input(model, given, target=written, tokenizer=tokenizer)
    place = answer_position(read, at)
    # A translator's answers come from its decoder.
    stack = "decoder" if read.decoder_input is not None else None
    layers = view_addresses(layer_stack(read, stack), "residual")
    with watch(read.model, *layers, keep=first_tensor) as tape:
        answer_logits(read, at=place)
    states = torch.cat([tape.calls(address)[0] for address in layers])  # (l, t, d)
    outputs = output_names(read)
    if at is not None or not _continues_text(read):
        # one batch with the output of each layer in a row, where the last layer ends
        changes = {layers[-1]: _replaced(states)}
        logits = answer_logits(read, len(layers), changes, place)
        names = [_answer_name(read, place)]
        columns = _columns(outputs, logits[:, None], top)
    else:
        names = read.names(states.shape[1])
        columns = _all_columns(read, outputs, layers[-1], states, top)
    answers, rank, divergence, entropy = columns
    return LogitLens(
        tokens=names, layers=layers, top=answers, rank=rank, divergence=divergence, entropy=entropy
    )


def _continues_text(read: ModelInput) -> bool:
    """Whether the model answers after every token of the text: a language model, ours or one of transformers."""
    if read.bundle is not None:
        return "predict" in read.can
    # An encoder-decoder generates as well, but only the last token of its decoder has an answer here.
    if is_encoder_decoder(read.model) or read.read_ids is None or read.masks:
        return False
    can_generate: Any = getattr(read.model, "can_generate", None)
    return can_generate is not None and bool(can_generate())


def _answer_name(read: ModelInput, place: int | None) -> str:
    """The token after which the one answer comes; "class" if there is none."""
    names: list[str] = []
    # An image has no token names.
    if read.grid is None:
        names = read.decoder_input or read.pieces or []
    if place is None or place >= len(names):
        return ONE
    return names[place]


def _all_columns(
    read: ModelInput, names: OutputNames, last: str, states: Float[Tensor, "l t d"], top: int
) -> Columns:
    """The columns of all positions, a few at a time to fit memory; `last` is the address of the last layer."""
    if read.bundle is not None and has_lens(read.bundle):
        head: Any = read.model.head
        # Logits of all layers count, hence the division by their number.
        most = max(1, LOGITS // head.out_features // len(states))
        return _joined(
            _columns(names, lens_logits(read.model, x), top) for x in states.split(most, dim=1)
        )
    # Where norm and head lie in another library's model is unknown: it is run once per layer, whose output replaces
    # the last one's.
    final = whole_output(read)
    most = max(1, LOGITS // final.shape[-1])
    rows = []
    for state in states.split(1):
        logits = whole_output(read, changes={last: _replaced(state)})
        # (2, t, v): of this layer, and of the model
        pair = torch.cat([logits, final]).split(most, dim=1)
        rows.append(_joined(_columns(names, part, top) for part in pair))
    return (
        [row[0][0] for row in rows],
        torch.cat([row[1][:1] for row in rows]),
        torch.cat([row[2][:1] for row in rows]),
        torch.cat([row[3][:1] for row in rows]),
    )


def _joined(parts: Iterable[Columns]) -> Columns:
    """The columns of several pieces of a text as those of the whole."""
    cells, ranks, divergences, entropies = zip(*parts, strict=True)
    # Lists are joined along the columns, as the tensors are; each piece is (layers, its columns).
    answers = [list(chain.from_iterable(row)) for row in zip(*cells, strict=True)]
    return answers, torch.cat(ranks, 1), torch.cat(divergences, 1), torch.cat(entropies, 1)


def _short(word: str) -> str:
    """A token as it is written into a cell: without spaces around it, and shortened."""
    text = word.strip() or repr(word)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 1]}\u2026"


def has_lens(bundle: Bundle) -> bool:
    """Whether the logits of every position are the product of a final norm and an output layer."""
    return "predict" in bundle.can and getattr(bundle.model, "norm", None) is not None


def lens_logits(model: nn.Module, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
    """Return the logits of a residual stream: a language model's final norm and output layer applied to it.

    Args:
        model: A language model with `norm` and `head`.
        x: The residual stream after any layer.
    """
    ours: Any = model
    logits: Tensor = ours.head(ours.norm(x))
    return at_least_float32(logits)


def _replaced(states: Float[Tensor, "l t d"]) -> Any:
    """An edit that replaces row i of the last layer's output by the output of layer i."""

    def change(x: Any) -> Any:
        # Foreign layers return a tuple whose first value is the residual stream.
        if isinstance(x, tuple):
            return (states.to(x[0]), *x[1:])
        return states.to(x)

    return change


def _columns(names: OutputNames, logits: Float[Tensor, "l t v"], top: int) -> Columns:
    """The likeliest answers, the rank of the model's own, the divergence from the last layer, and the entropy."""
    logp = logits.log_softmax(-1)
    # The last layer's distribution is the model's own, in nats as natural logarithms give them.
    p, final = logp.exp(), logp[-1]
    best = final.argmax(-1).expand(len(logp), -1)[..., None]  # (l, t, 1)
    # How many answers this layer finds likelier than the model's own: 0 if both agree.
    rank = (logp > logp.gather(-1, best)).sum(-1)
    # KL(final || layer); a probability of 0 adds nothing, and 0 * -inf is not a number
    divergence = (final.exp() * (final - logp)).nan_to_num(0.0).sum(-1)
    entropy = -(p * logp).nan_to_num(0.0).sum(-1)
    shares, ids = p.topk(min(top, p.shape[-1]), dim=-1)
    # Each id is turned into a name once, although it may appear in many cells.
    name_of = {i: names.name(i) for i in ids.flatten().unique().tolist()}
    answers = []
    for layer_ids, layer_shares in zip(ids.tolist(), shares.tolist(), strict=True):
        row = []
        for cell_ids, cell_shares in zip(layer_ids, layer_shares, strict=True):
            words = [name_of[i] for i in cell_ids]
            row.append(list(zip(words, cell_shares, strict=True)))
        answers.append(row)
    return answers, rank.cpu(), divergence.cpu(), entropy.cpu()
