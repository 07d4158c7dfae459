"""logit_attribution: what every part of a model adds to one logit (direct logit attribution).

Elhage et al. 2021. In a model with norms before each sublayer the residual stream is a sum: the embedding, the
position, the output of every head through its part of the last projection, and of every MLP. With the scale of the
final norm held fixed, the logit is a linear function of that sum, so that each part has its own share of the logit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...errors import InputError
from ...fast.int8 import Int8
from ...inputs import ModelInput, read_input
from ...inputs.read import Given
from ...layers import Block, Patches
from ...weights import Bundle
from ..capture.addresses import Tree
from ..capture.tape import Tape
from ..structure import Layer, LayerStack, first_tensor, has_matrix, layer_stack
from ..targets import Wanted, answer_logits, answer_of, answer_position
from ..watch import expected_missing, watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The parts that the residual stream of a pre-norm model is the sum of: embedding, positions, heads, MLPs, biases.


EXACT = 1e-3  # relative error of a sum beyond which it is not one

Linear = Callable[[Float[Tensor, "t d"]], Float[Tensor, "t d"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualPart:
    """A part of the residual stream."""

    # "embedding", "positions", "head", "attention bias", "cross head", "cross bias" or "mlp"
    kind: str
    x: Float[Tensor, "t d"]  # in float64
    layer: int | None = None
    head: int | None = None


def part_addresses(given: ModelInput, stack: LayerStack) -> list[str]:
    """The addresses that `residual_parts` needs on its tape."""
    addresses = [f"{stack.layers[0].output}.input", *(layer.output for layer in stack.layers)]
    # Outputs of attention and MLP are added; heads and projection inputs split the former.
    for layer in stack.layers:
        sublayers = ((layer.attention, layer.attends), (layer.cross, layer.cross_attends))
        for module, attends in sublayers:
            # Heads need the inputs of the projection as well: see _projection.
            if module is not None and attends is not None:
                addresses += [module, f"{attends}.heads", *_products(given.model, module)]
        if layer.mlp is not None:
            addresses.append(layer.mlp)
    embed = _embed(given)
    return addresses if embed is None else [*addresses, embed]


def residual_parts(given: ModelInput, stack: LayerStack, tape: Tape) -> Iterator[ResidualPart]:
    """Yield the parts of the residual stream after the last layer.

    Raises if a layer adds something else to its input, as one with norms after its sublayers does.

    Args:
        given: The input of the model.
        stack: The layers of the model.
        tape: The record of a pass over the input, of `part_addresses`.
    """
    modules = dict(Tree(given.model).parts)
    # In float64: the check below subtracts residual streams that are almost equal.
    before = tape[f"{stack.layers[0].output}.input"][0].double()
    for kind, x in _first_parts(given, tape, before).items():
        yield ResidualPart(kind=kind, x=x)
    for i, layer in enumerate(stack.layers):
        after = first_tensor(tape[layer.output])[0].double()
        # A norm after the addition rescales the whole stream: nothing is just added.
        if _is_post(modules[layer.output]):
            parts = []
        else:
            parts = list(_layer_parts(modules, tape, layer))
        added = sum((x for _, _, x in parts), torch.zeros_like(after))
        # The invariant: output - input of a layer is the sum of its parts, checked on this input.
        if not parts or _error(added, after - before) > EXACT:
            raise InputError(
                f"the layers of this {type(given.model).__name__} do not just add the output of {_named(layer)} to the "
                "residual stream. If a norm comes after each addition (order='post'), it rescales all that came "
                "before, and if it comes after each sublayer (order='output' or 'both'), it rescales the heads "
                "together: no part has a share of its own. Expected a model with norms before its sublayers only "
                "(order='pre')"
            )
        for kind, head, x in parts:
            yield ResidualPart(kind=kind, x=x, layer=i, head=head)
        # This layer's output is the next one's input.
        before = after


def _named(layer: Layer) -> str:
    """The submodules of a layer whose outputs should add up, without the layer's own address."""
    parts = [part for part in (layer.attention, layer.cross, layer.mlp) if part is not None]
    return " and ".join(part.removeprefix(f"{layer.output}.") for part in parts)


def _is_post(block: nn.Module) -> bool:
    return isinstance(block, Block) and block.order == "post"


def _error(x: Tensor, y: Tensor) -> float:
    """The difference of two tensors relative to the second."""
    return float((x - y).norm() / y.norm().clamp(min=1e-30))


def _layer_parts(
    modules: dict[str, nn.Module], tape: Tape, layer: Layer
) -> Iterator[tuple[str, int | None, Tensor]]:
    """Yield the parts that a layer adds: each head, the bias of their projection, and the MLP."""
    # only our blocks scale their sublayers by learned factors
    scales: Any = modules[layer.output]
    ours = isinstance(scales, Block)
    rows = first_tensor(tape[layer.output])[0].shape  # (t, d)
    sublayers = [("head", "attention bias", layer.attention, layer.attends, "attn_scale")]
    sublayers += [("cross head", "cross bias", layer.cross, layer.cross_attends, "cross_scale")]
    for head_kind, bias_kind, module, attends, scale_name in sublayers:
        # A layer may lack one of the two, for example the cross-attention of a GPT.
        if module is None or attends is None:
            continue
        scale = getattr(scales, scale_name) if ours else None
        heads = tape[f"{attends}.heads"][0].double()
        weight, bias = _projection(modules, tape, module, heads)
        # Split by heads, x W is the sum over heads of x_h W_h: (t, e) @ (e, d) for each.
        for i, (x, w) in enumerate(zip(heads, weight, strict=True)):
            yield head_kind, i, _scaled(x @ w, scale)
        # The bias belongs to no head, since it is added once for all.
        if bias is not None:
            yield bias_kind, None, _scaled(bias.expand(rows), scale)
    if layer.mlp is not None:
        # the output of OPT's MLP has the axes of rows and tokens joined
        x = first_tensor(tape[layer.mlp]).double().reshape(rows)
        yield "mlp", None, _scaled(x, scales.mlp_scale if ours else None)


def _scaled(x: Tensor, scale: Any) -> Tensor:
    """The output of a sublayer times its learned factors (layer scale), if it has them."""
    return x if scale is None else x * scale.detach().double()


def _products(model: nn.Module, module: str) -> list[str]:
    """The addresses of the inputs of the matrices inside a module."""
    inside = [(path, part) for path, part in Tree(model).parts if path.startswith(f"{module}.")]
    return [f"{path}.input" for path, part in inside if has_matrix(part)]


def _projection(
    modules: dict[str, nn.Module], tape: Tape, module: str, heads: Float[Tensor, "h t e"]
) -> tuple[Float[Tensor, "h e d"], Float[Tensor, "d"] | None]:
    """The matrix that mixes the heads of an attention, whose input is their concatenated outputs, and its bias."""
    # (h, t, e) -> (t, h e), as the projection receives them.
    joined = heads.transpose(0, 1).flatten(1)
    last = modules[module]
    if isinstance(last, nn.MultiheadAttention):  # whose projection is no call of a module
        return _matrix(last.out_proj, len(heads))
    # The projection is found by its input, not its name, which differs between libraries.
    for address in tape.names:
        if not address.startswith(f"{module}.") or not address.endswith(".input"):
            continue
        given = tape.calls(address)[0]
        # Exactly equal, because both are the same activation, recorded twice.
        if given.shape[1:] == joined.shape and torch.equal(given[0].double(), joined):
            return _matrix(modules[address.removesuffix(".input")], len(heads))
    raise InputError(
        f"no matrix of {module} mixes its heads: expected an attention with an output projection"
    )


def _matrix(part: Any, heads: int) -> tuple[Float[Tensor, "h e d"], Float[Tensor, "d"] | None]:
    """The weights of a linear map, divided by heads, and its bias."""
    # An 8-bit matrix: integers times one scale per output row.
    if isinstance(part, Int8):
        weight = part.numbers().double() * part.scale.double()[:, None]
    else:
        weight = part.weight.detach().double()
    # of transformers: (inputs, outputs)
    if type(part).__name__ != "Conv1D":
        weight = weight.T
    bias = None if part.bias is None else part.bias.detach().double()
    # (h e, d) -> (h, e, d)
    return weight.unflatten(0, (heads, -1)), bias


def _embed(given: ModelInput) -> str | None:
    """The address of the token embedding of our own models, whose output has no positions yet."""
    # A translator's embedding is shared, or belongs to its decoder.
    names = ["decoder.embed", "embed"] if given.decoder_input is not None else ["embed"]
    known = Tree(given.model).known
    return next((name for name in names if name in known), None)


def _first_parts(given: ModelInput, tape: Tape, x: Float[Tensor, "t d"]) -> dict[str, Tensor]:
    """The first parts of the residual stream: the embedding, and position vectors if they are added to it."""
    embed: Any = getattr(given.model, "embed", None)
    name = _embed(given)
    # A ViT adds its positions inside of `embed`, whose content is computed again without them.
    if isinstance(embed, Patches):
        content = _patches(embed, given.args[0]).double()
    elif name is not None and tape[name].shape[1:] == x.shape:
        content = tape[name][0].double()
    else:
        # Elsewhere, as in foreign models, content and positions cannot be told apart.
        return {"embedding": x}
    # Rotary or no positions: the stream begins with the embedding alone.
    if bool((x == content).all()):
        return {"embedding": content}
    return {"embedding": content, "positions": x - content}


@torch.no_grad()
def _patches(embed: Patches, images: Float[Tensor, "1 c height width"]) -> Float[Tensor, "t d"]:
    """The class token, the registers and the patches of an image, without their positions."""
    # (1, d, y, x) -> (t, d): the patches row by row.
    x = embed.project(images).flatten(2).mT[0]
    before = [t[0] for t in (embed.cls, embed.registers) if t is not None]
    widths = [t.shape[1] for t in (x, *before)]
    if embed.join == "concatenate":
        widths.append(2 * x.shape[1])
    # concatenated positions are the last columns, which are 0 here
    width = max(widths)
    return torch.cat([*before, F.pad(x, (0, width - x.shape[1]))])


def final_norm(given: ModelInput, stack: LayerStack) -> tuple[str, nn.Module]:
    """The address of the norm that reads the output of the last layer, and the norm; raises if there is none."""
    last = stack.layers[-1].output
    norms: dict[str, nn.Module] = {}
    for path, module in Tree(given.model).parts:
        # By name, since libraries have norms of their own; leaves only, outside of the layers.
        called_norm = "norm" in f"{path} {type(module).__name__}".lower()
        in_a_layer = path.startswith(f"{stack.name}.")
        if path and called_norm and not in_a_layer and not list(module.children()):
            norms[path] = module
    addresses = [last, *(f"{path}.input" for path in norms)]
    with torch.no_grad(), expected_missing(), watch(given.model, *addresses) as tape:
        given.run(given.model)
    out = first_tensor(tape.calls(last)[-1])
    # The norm that reads exactly what the last layer returned, among all that were called.
    for path, module in norms.items():
        calls = tape.calls(f"{path}.input") if f"{path}.input" in tape else []
        if calls and torch.equal(calls[-1], out):
            return path, module
    raise InputError(
        f"no norm reads the output of {last}, the last layer of this {type(given.model).__name__}: expected a "
        "model with norms before its sublayers (order='pre'), which ends with one more"
    )


def fixed_norm(
    norm: nn.Module, x: Float[Tensor, "t d"], y: Float[Tensor, "t d"]
) -> tuple[Linear, Tensor]:
    """A norm as a linear map, its scale held at the value for an input, and the bias that it adds, (d,) or (t, d).

    Args:
        norm: A layer norm, an RMS norm, or the identity.
        x: Its input.
        y: Its output for this input.
    """
    x, y = x.double(), y.double()
    weight = getattr(norm, "weight", None)
    # Llama of transformers has variance_epsilon, and RMSNorm of torch may have eps=None
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None)) or 0.0
    if weight is None:
        gain = torch.ones(x.shape[-1], dtype=x.dtype)
    else:
        gain = weight.detach().double()
    bias = getattr(norm, "bias", None)
    bias = torch.zeros_like(gain) if bias is None else bias.detach().double()
    # Layer norm divides by the deviation of x, RMS norm by its root mean square.
    centred = ((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + eps).sqrt()
    rms = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    # whichever of these gives the output of the norm is what it computes
    # Identity, layer norm, RMS norm, RMS norm with a gain stored as its difference from 1.
    forms: list[Linear] = [
        lambda part: part,
        lambda part: (part - part.mean(-1, keepdim=True)) / centred * gain,
        lambda part: part / rms * gain,
        lambda part: part / rms * (1 + gain),  # as Gemma has it
    ]
    for form in forms:
        # The first form that reproduces y at x; the bias is in y but in no part.
        if _error(form(x) + bias, y) < EXACT:
            return form, bias
    raise InputError(
        f"a {type(norm).__name__} is neither a layer norm nor an RMS norm: expected one of them"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitPart:
    """A part of a model and what it adds to a logit.

    Examples:
        >>> LogitPart(kind="head", layer=1, head=0, value=0.5).name
        'layer 1, head 0'
    """

    # "embedding", "positions", "head", "attention bias", "cross head", "cross bias", "mlp" or "bias"
    kind: str
    value: float  # what it adds to the logit
    layer: int | None = None  # counted from 0; None: it belongs to no layer
    head: int | None = None  # counted from 0; None: it is no head

    @property
    def name(self) -> str:
        """The part in words."""
        if self.layer is None:
            return self.kind
        name = f"layer {self.layer}, {self.kind}"
        return name if self.head is None else f"{name} {self.head}"


@dataclass(frozen=True, kw_only=True, eq=False)
class LogitAttribution(draw.Result):
    """What every part of a model adds to one logit, or to the difference of two.

    Examples:
        >>> result = logit_attribution(clearhead.load("everyday"), "A man is standing in the", target=" street")
        >>> result.answer, result.heads.shape
        (' street', torch.Size([5, 5]))
        >>> abs(result.total - result.logit) < 1e-4
        True
    """

    in_json = "answer logit total parts"

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
        """The contribution of each self-attention head to the logit."""
        head_parts = [part for part in self.parts if part.kind == "head"]
        layers = len({part.layer for part in head_parts})
        # Equal numbers of heads in every layer, so that the list has a row per layer.
        return torch.tensor([part.value for part in head_parts]).unflatten(0, (layers, -1))

    def of(self, kind: str) -> float:
        """The sum over all parts of one kind."""
        return sum(part.value for part in self.parts if part.kind == kind)

    def top(self, n: int = 10) -> list[LogitPart]:
        """The n parts that add or take away most."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:n]

    def figure(self) -> Figure:
        """Draw what the heads and the MLP of each layer add as one heat map."""
        heads = self.heads
        mlps = torch.zeros(len(heads), 1)
        for part in self.parts:
            # A layer without an MLP keeps a column of 0.
            if part.kind == "mlp" and part.layer is not None:
                mlps[part.layer, 0] = part.value
        return draw.matrix(
            torch.cat([heads, mlps], dim=1).numpy(),
            rows=[str(i) for i in range(len(heads))],
            columns=[*(str(i) for i in range(heads.shape[1])), "mlp"],
            xlabel="head",
            ylabel="layer",
            title=f"logit of {self.answer.strip()}",
        )

    def table(self) -> draw.Table:
        """The ten parts that add or take away most."""
        return draw.Table(
            columns=("part", "adds"),
            rows=[(part.name, f"{part.value:+.3f}") for part in self.top()],
            title=f"{self.answer}: {self.logit:.3f}",
        )


def logit_attribution(
    model: Bundle | nn.Module,
    given: Given,
    *,
    target: Wanted | None = None,
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
    read = read_input(model, given, target=written, tokenizer=tokenizer)
    place = answer_position(read, at)
    _ = read.classifies  # a bare module runs to find it out, which must not be on the tape below
    stack = layer_stack(read, "decoder" if read.decoder_input is not None else None)
    name, norm = final_norm(read, stack)
    leaves: list[Tensor] = []

    # Cut the graph at the output of the final norm: it becomes a leaf, so that the gradient of the
    # logit stops there and no layer needs a backward pass.
    def cut(y: Tensor) -> Tensor:
        leaves.append(y.detach().clone().requires_grad_())
        return leaves[-1]

    addresses = [f"{name}.input", *part_addresses(read, stack)]
    # autograd is needed although callers may have switched it off.
    with torch.enable_grad(), expected_missing(), watch(read.model, *addresses) as tape:
        logits = answer_logits(read, changes={name: cut}, at=place)[0]
        answer = answer_of(read, target, place, logits)
        # Of a pair the difference of logits, of one answer its logit.
        chosen = _contrast(logits, answer.ids)
        (slope,) = torch.autograd.grad(chosen, leaves[-1])
    # the logit is y . slope + rest, if what follows the final norm is linear
    logit = float(chosen.detach())
    y, slope = leaves[-1].detach()[0].double(), slope[0].double()
    # y . slope is the logit up to the output layer's bias, which _check_linear confirms.
    linear = float((y * slope).sum())
    _check_linear(read, name, place, answer.ids, logit, linear)
    # fixed(x) + bias = y, and `fixed` is linear: the parts of x add up to y - bias.
    fixed, bias = fixed_norm(norm, tape[f"{name}.input"][0], y)
    parts = []
    for part in residual_parts(read, stack, tape):
        # The share of a part: through the final norm at its fixed scale, then along the slope.
        value = float((fixed(part.x) * slope).sum())
        parts.append(LogitPart(kind=part.kind, layer=part.layer, head=part.head, value=value))
    # the biases of the output layer and of the final norm
    rest = logit - linear + float((bias * slope).sum())
    return LogitAttribution(
        parts=[*parts, LogitPart(kind="bias", value=rest)], answer=answer.name, logit=logit
    )


@torch.no_grad()
def _check_linear(
    read: ModelInput,
    name: str,
    place: int | None,
    ids: tuple[int, ...],
    logit: float,
    linear: float,
) -> None:
    """Raise if the linear part of a logit does not double with the output of the final norm, whose address is given."""
    # Linear: doubling y adds y . slope once more.
    doubled = answer_logits(read, changes={name: lambda y: 2 * y}, at=place)[0]
    # The constant output layer bias cancels in the difference to `logit`.
    if abs(float(_contrast(doubled, ids)) - logit - linear) > EXACT * (1 + abs(linear)):
        raise InputError(
            f"what follows {name!r} in this {type(read.model).__name__} is not linear, so that its parts have no "
            "shares of a logit: expected a language model, or a vision transformer with pool 'cls', 'mean' or 'both' "
            "and a linear head"
        )


def _contrast(logits: Float[Tensor, "v"], ids: tuple[int, ...]) -> Float[Tensor, ""]:
    """The logit of one answer, or the difference of two, in float64."""
    logit = logits[ids[0]].double()
    if len(ids) == 2:
        return logit - logits[ids[1]].double()
    return logit
