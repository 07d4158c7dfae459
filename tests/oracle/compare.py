"""Comparison with an oracle, a trusted implementation: copy its weights, run both, compare outputs and gradients."""

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

B, T, H, E = 2, 7, 3, 5  # rows, tokens, heads, head dimension: all different, so that a swapped axis fails
D, HIDDEN = H * E, 13  # width, and width inside an MLP
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()  # True where attention is allowed

# Both sides add the same few hundred terms in another order, so they differ by some roundings of the largest:
# hence a bound relative to the largest entry of a tensor, not to each. float64 rounds at 1e-16 and float32 at
# 6e-8, which allows a hundred roundings in float32 and a million in float64; a wrong term differs by far more.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))

# For each parameter of ours, its name in the oracle, and how to take it out of that one where it is fused or
# transposed. A gradient has the shape of its parameter, so it is taken in the same way.
Take = Callable[[Tensor], Tensor]
Table = dict[str, tuple[str, Take]]
Pair = tuple[str, Tensor, Tensor, Take]  # our name, our parameter, theirs, and how ours is taken out of it


def whole(w: Tensor) -> Tensor:
    return w


def layers(names: Mapping[str, str], take: Take = whole, *, bias: bool = True) -> Table:
    """The table of layers that have other names in the oracle, with their weights and biases."""
    parts = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{part}": (f"{at}.{part}", take) for ours, at in names.items() for part in parts}


def vit_block(oracle: nn.Module) -> dict[str, str]:
    """The layers of a block of transformers' ViT by our names; version 5.0 has other names for most."""
    new = {"attn.query": "attention.q_proj", "attn.key": "attention.k_proj", "attn.value": "attention.v_proj",
           "attn.out": "attention.o_proj", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}  # fmt: skip
    old = {"attn.query": "attention.attention.query", "attn.key": "attention.attention.key",
           "attn.value": "attention.attention.value", "attn.out": "attention.output.dense",
           "mlp.up": "intermediate.dense", "mlp.down": "output.dense"}  # fmt: skip
    return {"attn_norm": "layernorm_before", "mlp_norm": "layernorm_after", **(new if hasattr(oracle, "mlp") else old)}


def noise(dtype: torch.dtype, *shapes: tuple[int, ...], seed: int = 1) -> list[Tensor]:
    """Random inputs that require a gradient; the same numbers in every dtype."""
    random = torch.Generator().manual_seed(seed)
    draws = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    return [x.to(dtype).requires_grad_() for x in draws]


def adopt(mine: nn.Module, theirs: nn.Module, table: Table, dtype: torch.dtype) -> list[Pair]:
    """Give ours the oracle's weights, and check that no parameter of either side is left out.

    All are drawn at random first: ones and zeros, as in new norms and biases, would hide that one is missing.
    """
    mine.to(dtype).eval(), theirs.to(dtype).eval()
    ours, oracle = dict(mine.named_parameters()), dict(theirs.named_parameters())
    assert table.keys() == ours.keys(), f"in the table or in ours, not in both: {table.keys() ^ ours.keys()}"
    left = oracle.keys() - {at for at, _ in table.values()}
    assert not left, f"parameters of the oracle that are not used: {left}"
    assert sum(w.numel() for w in ours.values()) == sum(w.numel() for w in oracle.values())
    draws = noise(dtype, *(w.shape for w in oracle.values()), seed=0)
    for w, draw in zip(oracle.values(), draws, strict=True):
        w.data = 0.5 * draw.detach()
    pairs = [(name, ours[name], oracle[at], take) for name, (at, take) in table.items()]
    for name, w, source, take in pairs:
        assert w.shape == take(source).shape, f"{name}: {w.shape}, in the oracle {take(source).shape}"
        w.data = take(source).detach().clone()
    return pairs


def adopt_twin(mine: nn.Module, twin: nn.Module, dtype: torch.dtype) -> list[Pair]:
    """The same for a copy of ours, whose weights are used in a written-out formula."""
    return adopt(mine, twin, {name: (name, whole) for name, _ in mine.named_parameters()}, dtype)


def close(mine: Tensor, theirs: Tensor, name: str) -> None:
    """Check for equal shapes and dtypes, and equal numbers within the tolerance of the dtype."""
    room = TOLERANCE[theirs.dtype] * max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(mine, theirs, rtol=0.0, atol=room, msg=lambda why: f"{name}: {why}")


def match(
    mine: Callable[..., Tensor | tuple[Tensor, ...]],
    theirs: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    pairs: Sequence[Pair] = (),
) -> None:
    """Check that outputs are equal, and gradients in every input and every parameter."""
    named = [(f"input {i}", x, x, whole) for i, x in enumerate(inputs)] + list(pairs)
    sides = []
    for run, leaves in ((mine, [w for _, w, _, _ in named]), (theirs, [w for _, _, w, _ in named])):
        outs = run(*inputs)
        outs = outs if isinstance(outs, tuple) else (outs,)
        probes = noise(outs[0].dtype, *(out.shape for out in outs), seed=2)
        aim = sum((out * probe.detach()).sum() for out, probe in zip(outs, probes, strict=True))
        # What one side does not use has gradient zero there, and must have it on the other.
        sides.append((outs, torch.autograd.grad(aim, leaves, allow_unused=True, materialize_grads=True)))
    (outs, grads), (their_outs, their_grads) = sides
    for i, (out, their) in enumerate(zip(outs, their_outs, strict=True)):
        close(out, their, f"output {i}")
    for (name, _, _, take), grad, their in zip(named, grads, their_grads, strict=True):
        close(grad, take(their), f"gradient of {name}")
