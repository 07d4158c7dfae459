"""LoRA: a frozen linear map with a trained low-rank update, x W' + s (x A') B' (Hu et al. 2021, Eq. 3).

A has `rank` rows and B has `rank` columns; B is 0 at the start, so that the update begins as nothing. s = alpha / rank.
Adapters are added to a model from outside, and merged into its weights when it is trained: models do not know of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import InputError, nearest
from .block import Block
from .linear import Linear

# The linear maps of a block. Word in a recipe: name of the module.
MAPS = {
    "q": "query",
    "k": "key",
    "v": "value",
    "o": "out",
    "gate": "gate",
    "up": "up",
    "down": "down",
}
GROUPS = {"attention": ("q", "k", "v", "o"), "mlp": ("gate", "up", "down"), "all": tuple(MAPS)}


class LoraLinear(Linear):
    """A frozen linear map with a low-rank update: x W' + b + s (x A') B'.

    `convert` turns a Linear into one in place, so that its name and its place in the model stay the same. No gradient
    of the frozen weight is computed.

    Examples:
        >>> layer = Linear(4, 3)
        >>> x, before = torch.ones(2, 4), layer(torch.ones(2, 4))
        >>> lora = LoraLinear.convert(layer, rank=2)
        >>> torch.equal(layer(x), before)  # B is 0
        True
        >>> [name for name, p in layer.named_parameters() if p.requires_grad]
        ['lora_a', 'lora_b']
        >>> torch.nn.init.ones_(lora.lora_b).shape
        torch.Size([3, 2])
        >>> unmerged = layer(x)
        >>> torch.allclose(lora.merge()(x), unmerged, atol=1e-6), type(layer) is Linear
        (True, True)
    """

    lora_a: nn.Parameter  # (rank, in)
    lora_b: nn.Parameter  # (out, rank)
    lora_scale: float
    lora_dropout: float

    @staticmethod
    def convert(
        module: Linear,
        *,
        rank: int,
        scale: float = 2.0,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> LoraLinear:
        """Freeze a Linear and add adapters to it, in place; A is drawn as in Kaiming-uniform layers, and B is 0.

        Args:
            module: The map; it becomes a LoraLinear.
            rank: Rank of the update.
            scale: Factor of the update: alpha / rank.
            dropout: Share of the update's input that is dropped in training.
            generator: Random numbers of A.
        """
        if type(module) is not Linear:
            raise InputError(f"{type(module).__name__}: expected a Linear without adapters")
        if rank < 1 or not 0.0 <= dropout < 1.0:
            raise InputError(
                f"rank={rank}, dropout={dropout}: expected a rank of 1 or more, dropout in [0, 1)"
            )
        module.requires_grad_(False)
        module.__class__ = LoraLinear  # in place: who holds the module holds the adapted one
        lora: Any = module
        like, (out, width) = module.weight, module.weight.shape
        # drawn on the CPU, so that A is the same on every device; a meta tensor has no numbers
        if like.is_meta:
            a = torch.empty(rank, width, device="meta", dtype=torch.float32)
        else:
            bound = 1 / math.sqrt(width)
            a = torch.empty(rank, width, device="cpu", dtype=torch.float32)
            a.uniform_(-bound, bound, generator=generator)
        lora.lora_a = nn.Parameter(a.to(like))
        lora.lora_b = nn.Parameter(like.new_zeros(out, rank))
        lora.lora_scale, lora.lora_dropout = float(scale), float(dropout)
        return lora

    @property
    def rank(self) -> int:
        """The rank of the update."""
        return self.lora_a.shape[0]

    def update(self) -> Float[Tensor, "o i"]:
        """The update of the weight, s B A, in float32 or better."""
        wide = torch.promote_types(self.lora_a.dtype, torch.float32)
        return self.lora_scale * (self.lora_b.to(wide) @ self.lora_a.to(wide))

    @torch.no_grad()
    def merge(self) -> Linear:
        """Add the update to the weight, in place; the module is a Linear again."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        self.weight.copy_(self.weight.to(wide) + self.update())
        return self.drop()

    def drop(self) -> Linear:
        """Remove the adapters; the module is the Linear that it was before."""
        for name in ("lora_a", "lora_b", "lora_scale", "lora_dropout"):
            delattr(self, name)
        self.__class__ = Linear  # type: ignore[assignment]
        return self

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        drops, scale = self.training and self.lora_dropout > 0.0, self.lora_scale
        a, b = self.lora_a.to(self.weight.dtype), self.lora_b.to(self.weight.dtype)
        trained = self.weight.requires_grad or (self.bias is not None and self.bias.requires_grad)
        # Eq. 3 as it is written, for the cases that the faster ways below do not cover
        if drops or trained or torch.is_autocast_enabled(x.device.type) or _transformed():
            inner = F.linear(F.dropout(x, self.lora_dropout, drops), a)  # (..., rank)
            return self.product(x, self.weight, self.bias) + F.linear(inner, scale * b)
        if not torch.is_grad_enabled():
            # in place: nothing is kept for a backward pass
            return _added(self.product(x, self.weight, self.bias), F.linear(x, a), b, scale)
        out: Tensor = _LowRank.apply(x, self.weight, self.bias, a, b, scale)
        return out


def _transformed() -> bool:
    """True inside torch.func's transforms (grad, vmap, jvp), which `_LowRank` has no rules for."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


def _added(out: Tensor, inner: Tensor, b: Tensor, scale: float) -> Tensor:
    """out + scale * inner b', in place."""
    out.view(-1, out.shape[-1]).addmm_(inner.reshape(-1, inner.shape[-1]), b.t(), alpha=scale)
    return out


class _LowRank(torch.autograd.Function):
    """x W' + bias + s (x A') B', with gradients of x, A and B only.

    The update is added to the frozen map's output by the product itself (and, backward, to the gradient of x), where
    autograd would write each product, its scaled copy and their sum to memory.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        inner = F.linear(x, a)
        ctx.save_for_backward(x, weight, a, b, inner)
        ctx.scale = scale
        return _added(F.linear(x, weight, bias), inner, b, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, inner = ctx.saved_tensors
        # for second derivatives, which the saved product has no graph for
        if torch.is_grad_enabled():
            inner = F.linear(x, a)
        # all rows of the batch side by side: g (n, out), rows (n, in)
        g, rows = grads[0].reshape(-1, b.shape[0]), x.reshape(-1, x.shape[-1])
        back = (g @ b).mul_(ctx.scale)  # (n, rank): the gradient of x A'
        dx = da = db = None
        if ctx.needs_input_grad[0]:
            # the update's share is added by the second product: g W + s g B A
            dx = (g @ weight).addmm_(back, a).view_as(x)
        if ctx.needs_input_grad[3]:
            # s (g B)' x
            da = back.t() @ rows
        if ctx.needs_input_grad[4]:
            # (inner' g)', which is faster than g' inner, since its result has few and long rows
            db = (inner.reshape(-1, inner.shape[-1]).t() @ g).mul_(ctx.scale).t()
        return dx, None, None, da, db, None


def choose_maps(
    model: nn.Module, maps: str | Sequence[str], skip: Collection[str] = ()
) -> dict[str, Linear]:
    """Return the linear maps of a model's blocks that some words choose, by name.

    Args:
        model: The model.
        maps: Words of MAPS and GROUPS: ("q", "v"), "attention", "all".
        skip: Submodules without adapters.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> list(choose_maps(model, ("q", "v")))
        ['blocks.0.attn.query', 'blocks.0.attn.value']
    """
    leaves: set[str] = set()
    for word in as_words(maps):
        leaves.update(MAPS[leaf] for leaf in GROUPS.get(word, (word,)))
    skipped = tuple(f"{part}." for part in skip)
    chosen: dict[str, Linear] = {}
    for path, block in model.named_modules():
        if not isinstance(block, Block):
            # embeddings and the output layer are not in a block, and get no adapters
            continue
        for name, module in block.named_modules():
            full_name = f"{path}.{name}"
            is_chosen = type(module) is Linear and name.rpartition(".")[2] in leaves
            if is_chosen and not full_name.startswith(skipped):
                chosen[full_name] = module
    if not chosen:
        raise InputError(
            f"maps={maps!r}: a {type(model).__name__} has no such linear maps in Transformer blocks, which LoRA adapts"
            ": expected another model, or to train all its weights, or its head"
        )
    return chosen


def as_words(maps: str | Sequence[str]) -> tuple[str, ...]:
    """The words of `maps`; raises for an unknown one."""
    words = (maps,) if isinstance(maps, str) else tuple(maps)
    known = (*MAPS, *GROUPS)
    for word in words:
        if word not in known:
            raise InputError(
                f"maps={maps!r}: expected some of {', '.join(known)}{nearest(word, known)}"
            )
    if not words:
        raise InputError(f"maps={maps!r}: expected one or more of {', '.join(known)}")
    return words


def add_adapters(
    model: nn.Module,
    maps: str | Sequence[str] = "all",
    *,
    rank: int = 16,
    alpha: float | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    skip: Collection[str] = (),
) -> dict[str, LoraLinear]:
    """Freeze a model and add adapters to some of its linear maps, in place; returns these maps by name.

    Args:
        model: The model.
        maps: Which maps: words of MAPS and GROUPS.
        rank: Rank of each update.
        alpha: Scale of the updates times `rank`; 2 x rank if not given.
        dropout: Share of the updates' input that is dropped in training.
        seed: Seed of the initial A; each map has its own random generator, keyed by its name.
        skip: Submodules without adapters.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> list(add_adapters(model, "attention", rank=2))[-1]
        'blocks.0.attn.out'
        >>> sum(p.numel() for p in model.parameters() if p.requires_grad)  # 4 x (2 x 8 + 8 x 2)
        128
    """
    chosen = choose_maps(model, maps, skip)
    scale = 2.0 if alpha is None else alpha / rank
    model.requires_grad_(False)
    added = {}
    for name, module in chosen.items():
        # keyed by the name: choosing more maps does not change the others' start
        generator = _generator(seed, name)
        added[name] = LoraLinear.convert(
            module, rank=rank, scale=scale, dropout=dropout, generator=generator
        )
    return added


def _generator(seed: int, name: str) -> torch.Generator:
    """Random numbers that depend on the seed and the name of a map, and not on which other maps have adapters."""
    digest = hashlib.blake2b(f"{seed} {name}.lora_a".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)


def adapters(model: nn.Module) -> dict[str, LoraLinear]:
    """The maps of a model that have adapters, by name."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)
    }


def merge_adapters(model: nn.Module) -> nn.Module:
    """Add the updates of all adapters to the weights that they belong to, in place; returns the model.

    Examples:
        >>> model = clearhead.build("gpt", vocab=3, context=8, width=8, depth=1, heads=2)
        >>> _ = add_adapters(model, rank=2)
        >>> adapters(merge_adapters(model))
        {}
    """
    for module in adapters(model).values():
        module.merge()
    return model
