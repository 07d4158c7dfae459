"""logit_attribution: what every part of a model adds to one logit (direct logit attribution).

Elhage et al. 2021. In a model with norms before each sublayer the residual stream is a sum: the embedding, the
position, the output of every head through its part of the last projection, and of every MLP. With the scale of the
final norm held fixed, the logit is a linear function of that sum, so that each part has its own share of the logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor, nn

from .. import draw
from ..errors import InputError
from ..weights import Bundle
from .capture import watch
from .layer_stacks import layer_stack
from .measured_input import Given, Target, answer_of, answer_position, model_input
from .missing import expected_missing
from .residual_parts import EXACT, final_norm, fixed_norm, part_addresses, residual_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitPart:
    """A part of a model and what it adds to a logit.

    Examples:
        >>> LogitPart(kind="head", layer=1, head=0, value=0.5).name
        'layer 1, head 0'
    """

    kind: str  # "embedding", "positions", "head", "attention bias", "cross head", "cross bias", "mlp" or "bias"
    value: float  # what it adds to the logit
    layer: int | None = None  # counted from 0; None: it belongs to no layer
    head: int | None = None  # counted from 0; None: it is no head

    @property
    def name(self) -> str:
        """The part in words."""
        if self.layer is None:
            return self.kind
        return f"layer {self.layer}, {self.kind}" + ("" if self.head is None else f" {self.head}")


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitAttribution(draw.Drawn):
    """What every part of a model adds to one logit, or to the difference of two.

    Examples:
        >>> result = logit_attribution(clearhead.load("everyday"), "A man is standing in the", target=" street")
        >>> result.answer, result.heads.shape
        (' street', torch.Size([5, 5]))
        >>> abs(result.total - result.logit) < 1e-4
        True
    """

    parts: list[LogitPart]  # the last is the bias of the final norm and of the output layer
    answer: str  # the answer, or both
    logit: float  # the logit of the answer, or the difference of two

    def __repr__(self) -> str:
        return f"LogitAttribution(answer={self.answer!r}, logit={self.logit:.4g}, parts={len(self.parts)})"

    @property
    def total(self) -> float:
        """The sum of all parts, equal to the logit up to rounding."""
        return sum(part.value for part in self.parts)

    @property
    def heads(self) -> Float[Tensor, "l h"]:
        """What each head of self-attention adds."""
        found = [part for part in self.parts if part.kind == "head"]
        layers = len({part.layer for part in found})
        return torch.tensor([part.value for part in found]).unflatten(0, (layers, -1))

    def of(self, kind: str) -> float:
        """The sum over all parts of one kind."""
        return sum(part.value for part in self.parts if part.kind == kind)

    def top(self, n: int = 10) -> list[LogitPart]:
        """The n parts that add or take away most."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:n]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        parts = [{"kind": p.kind, "layer": p.layer, "head": p.head, "value": p.value} for p in self.parts]
        return {"answer": self.answer, "logit": self.logit, "total": self.total, "parts": parts}

    def __rich__(self) -> Table:
        table = Table("part", "adds", title=f"{self.answer}: {self.logit:.3f}")
        for part in self.top():
            table.add_row(part.name, f"{part.value:+.3f}")
        return table

    def figure(self) -> Figure:
        """Draw what the heads and the MLP of each layer add as one heat map."""
        heads = self.heads
        mlps = torch.zeros(len(heads), 1)
        for part in self.parts:
            if part.kind == "mlp" and part.layer is not None:
                mlps[part.layer, 0] = part.value
        return draw.matrix(
            torch.cat([heads, mlps], dim=1).numpy(), rows=[str(i) for i in range(len(heads))],
            columns=[*(str(i) for i in range(heads.shape[1])), "mlp"], xlabel="head", ylabel="layer",
            title=f"logit of {self.answer.strip()}",
        )  # fmt: skip


def logit_attribution(
    model: Bundle | nn.Module,
    given: Given,
    *,
    target: Target | None = None,
    at: int | None = None,
    written: str | None = None,
    tokenizer: Any = None,
) -> LogitAttribution:
    """Return what the embedding, the position, every head, every MLP and the biases add to one logit.

    The scale of the final norm is held at its value for this input; the parts then sum to the logit. A head has the
    biases of its values, and an MLP its own; the bias of an attention's last projection is a part of its own.

    Args:
        model: A Bundle or a torch module with norms before its sublayers: a language model, a vision transformer.
        given: A text or an image; for a torch module its first argument with one row, or a dict of its arguments.
        target: A class or token, or a pair, whose difference is taken; None: the likeliest.
        at: The position whose next token is the answer; None: the last.
        written: What a translator has written so far.
        tokenizer: The tokenizer of a model of transformers, which reads a text and names tokens; a Bundle has its own.

    Raises:
        InputError: If the parts of the model do not add up: its norms come after the sublayers, or what follows the
            final norm is not linear.

    Examples:
        >>> model = clearhead.build("gpt", vocab=9, context=8, width=8, depth=2, heads=2).eval()
        >>> result = logit_attribution(model, torch.tensor([[1, 2, 3]]), target=(4, 5))
        >>> result.heads.shape
        torch.Size([2, 2])
    """
    one = model_input(model, given, written=written, tokenizer=tokenizer)
    place = answer_position(one, at)
    _ = one.outputs  # a bare module may run to find them, which must not be on the tape below
    stack = layer_stack(one, "decoder" if one.written is not None else None)
    name, norm = final_norm(one, stack)
    leaves: list[Tensor] = []

    def cut(y: Tensor) -> Tensor:
        leaves.append(y.detach().clone().requires_grad_())
        return leaves[-1]

    addresses = [f"{name}.input", *part_addresses(one, stack)]
    with torch.enable_grad(), expected_missing(), watch(one.model, *addresses) as tape:
        logits = one.logits(changes={name: cut}, at=place)[0]
        answer = answer_of(one, int(logits.argmax()) if target is None else target, place)
        chosen = _contrast(logits, answer.ids)
        (slope,) = torch.autograd.grad(chosen, leaves[-1])
    logit, y, slope = float(chosen.detach()), leaves[-1].detach()[0].double(), slope[0].double()
    linear = float((y * slope).sum())
    with torch.no_grad():
        twice = float(_contrast(one.logits(changes={name: lambda y: 2 * y}, at=place)[0], answer.ids))
    if abs(twice - logit - linear) > EXACT * (1 + abs(linear)):
        raise InputError(
            f"what follows {name!r} in this {type(one.model).__name__} is not linear, so that its parts have no shares "
            "of a logit: expected a language model, or a vision transformer with pool 'cls', 'mean' or 'both' and a "
            "linear head"
        )
    fixed, bias = fixed_norm(norm, tape[f"{name}.input"][0], y)
    parts = [
        LogitPart(kind=part.kind, layer=part.layer, head=part.head, value=float((fixed(part.x) * slope).sum()))
        for part in residual_parts(one, stack, tape)
    ]
    rest = logit - linear + float((bias * slope).sum())  # the biases of the output layer and of the final norm
    return LogitAttribution(parts=[*parts, LogitPart(kind="bias", value=rest)], answer=answer.name, logit=logit)


def _contrast(logits: Float[Tensor, "v"], ids: tuple[int, ...]) -> Float[Tensor, ""]:
    """The logit of one answer, or the difference of two, in float64."""
    return logits[ids[0]].double() - (logits[ids[1]].double() if len(ids) == 2 else 0.0)
