"""Initialisation of weights. Each parameter has its own random generator, so that none depends on the others.

default    the layers' own initialisation
xavier     uniform, variance 2 / (fan in + fan out)          Glorot and Bengio 2010, Eq. 16
kaiming    normal, variance 2 / fan in                       He et al. 2015, Eq. 10
normal     normal, deviation 0.02; projections into the residual stream are divided by
           sqrt(2 x depth), so that its initial size does not depend on the depth     Radford et al. 2019, 2.3

All but "default" set biases to 0. Parameters that are not matrices, embeddings or biases, such as the scales of norms,
keep their layers' initialisation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...layers import Additive, Bilinear, Block, Learned, Patches, Tokens

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
WORDS = ("default", "xavier", "kaiming", "normal")
Fans = tuple[int, int]  # (fan in, fan out): inputs per output, and outputs per input


@torch.no_grad()
def initialise(model: nn.Module, word: str, seed: int, *, prefix: str = "") -> None:
    """Initialise a model's weights in place, with the same numbers on every device and in every dtype, to rounding.

    `prefix` is added to the names of its parameters, so that two networks of one training get different numbers.
    """
    if word not in WORDS:
        raise InputError(f"initial={word!r}: expected one of {', '.join(WORDS)}")
    if word == "default":
        return
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    # compared by identity: a tied weight is the same object under several names
    writers = {id(last.weight) for block in blocks for last in _writers(block)}
    seen: set[int] = set()
    for path, module in model.named_modules():
        for leaf, parameter, fans in _parameters(module):
            if id(parameter) in seen:  # tied weights are drawn once, under their first name
                continue
            seen.add(id(parameter))
            if fans is None:
                # biases start at 0
                parameter.zero_()
                continue
            # drawn on the CPU in float32, so that no device or dtype changes the numbers
            draw = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
            key = _generator(seed, prefix + (f"{path}.{leaf}" if path else leaf))
            if word == "xavier":
                # uniform on (-a, a) has variance a^2 / 3: a = sqrt(6 / (in + out))
                bound = math.sqrt(6 / sum(fans))
                draw.uniform_(-bound, bound, generator=key)
            else:
                if word == "kaiming":
                    deviation = math.sqrt(2 / fans[0])
                else:
                    deviation = 0.02
                # 2 x depth additions to the residual stream, whose variances sum up
                if word == "normal" and id(parameter) in writers:
                    deviation /= math.sqrt(2 * len(blocks))
                draw.normal_(0.0, deviation, generator=key)
            parameter.copy_(draw)


def _generator(seed: int, name: str) -> torch.Generator:
    # a digest instead of hash(): the latter differs from process to process
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    # 63 bits: a valid seed, signed or not
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "big") >> 1)


def _writers(block: Block) -> Iterator[nn.Linear]:
    """The projections of a block that write to the residual stream."""
    for attention in (block.attn, block.cross):
        if attention is not None and attention.out is not None:
            yield attention.out
    yield block.mlp.down


def _parameters(module: nn.Module) -> Iterator[tuple[str, Tensor, Fans | None]]:
    """The parameters of a module, without submodules, that are initialised, with their fans; None for a bias."""
    for name, p in module.named_parameters(recurse=False):
        if isinstance(module, (nn.Linear, nn.RNNBase, *CONVOLUTIONS)) and name.startswith("bias"):
            yield name, p, None
        elif isinstance(module, nn.RNNBase):  # gates are stacked, and each is a matrix
            yield name, p, (p.shape[1], module.hidden_size)
        elif isinstance(module, Bilinear):  # q W: a matrix per head, inputs first
            yield name, p, (p.shape[1], p.shape[2])
        elif isinstance(module, Additive):  # a matrix of one row per head
            yield name, p, (p.shape[1], 1)
        elif isinstance(module, CONVOLUTIONS):
            # each fan is the number of channels times the places of the kernel
            inside = math.prod(p.shape[2:])
            yield name, p, (p.shape[1] * inside, p.shape[0] * inside)
        elif isinstance(module, nn.Linear | nn.Embedding | Tokens | Learned | Patches):
            # stored as (out, in); an embedding as (vocab, width), whose fan in is the width
            yield name, p, (p.shape[-1], p.shape[-2])
