"""Whether a very deep network can learn the identity: plain, dense, residual, residual with layer norm.

    python benchmarks/depth.py

Each network at each depth is trained with the best of three learning rates, chosen on seed 0, and with two more seeds.
The validation vectors are new, so that the loss measures generalisation; an output of zeros has a loss of 1.
Also measured: whether the outputs of layer norms are normally distributed. These are the shares beyond 3, 4 and 5
standard deviations, before gain and shift, in a trained deep network that is wide enough to have such outliers, and in
the Shakespeare GPT of configs/shakespeare-cpu.toml (trained first if runs/shakespeare-cpu has no model). Runs are kept
in runs/depth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from results import CONFIGS, keep
from torch import Tensor, nn

from clearhead.data import make_data
from clearhead.training import TrainingError, train

KINDS = {
    "plain": ("plain",),
    "plain, kaiming start": ("plain", "initial=kaiming"),
    "dense": ("dense",),
    "residual": ("residual",),
    "residual, layer norm": ("residual-norm",),
}
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
RATES = (3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2)


def learn(kind: str, depth: int, rate: float, seed: int) -> tuple[float, int]:
    """Train one network; return its validation loss (infinite if training diverged) and its number of parameters."""
    file, *words = KINDS[kind]
    words += [f"model.depth={depth}", f"optim.lr={rate}", f"seed={seed}"]
    out = f"runs/depth/{'-'.join(KINDS[kind])}-{depth}-{rate:g}-{seed}".replace("initial=", "")
    try:
        run = train(CONFIGS / f"identity-{file}.toml", *words, out=out, quiet=True)
    except TrainingError:
        return float("inf"), 0
    assert run.model is not None
    return run.metrics[-1]["valid_loss"], sum(p.numel() for p in run.model.model.parameters())


@torch.no_grad()
def shares(model: nn.Module, *inputs: Tensor) -> dict[str, float]:
    """The share of all layer norm outputs beyond 3, 4 and 5 standard deviations, and the largest of all."""
    outputs: list[Tensor] = []

    def record(norm: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        outputs.append(F.layer_norm(args[0], args[0].shape[-1:]).abs().flatten())

    hooks = [
        m.register_forward_hook(record) for m in model.modules() if isinstance(m, nn.LayerNorm)
    ]
    model.eval()(*inputs)
    for hook in hooks:
        hook.remove()
    z = torch.cat(outputs)
    return {str(n): (z > n).double().mean().item() for n in (3, 4, 5)} | {
        "furthest": z.max().item()
    }


def main() -> None:
    results: dict[str, dict[int, dict[str, object]]] = {}
    for kind in KINDS:
        results[kind] = {}
        for depth in DEPTHS:
            first = {rate: learn(kind, depth, rate, SEEDS[0]) for rate in RATES}
            rate = min(first, key=lambda r: first[r][0])
            losses = [first[rate][0], *(learn(kind, depth, rate, seed)[0] for seed in SEEDS[1:])]
            results[kind][depth] = {"parameters": first[rate][1], "lr": rate, "valid_loss": losses}
            print(
                f"{kind:20} {depth:3} layers {first[rate][1]:8,} parameters  lr {rate:g}  {losses}",
                flush=True,
            )
    wide = train(
        CONFIGS / "identity-residual-norm.toml",
        "data.width=64",
        "model.depth=32",
        out="runs/depth/wide",
        quiet=True,
    )
    gpt = train(CONFIGS / "shakespeare-cpu.toml", out="runs/shakespeare-cpu", quiet=True)
    assert wide.model is not None
    assert gpt.model is not None
    x = torch.from_numpy(
        make_data("identity", {"width": 64, "valid_rows": 4096}, seed=0).valid(0)["x"]
    )
    text = make_data("shakespeare", {"context": 64, "valid_rows": 256}, seed=0).valid(0)["ids"]
    keep(
        "depth",
        depth=results,
        outside={
            "normal distribution": {
                str(n): torch.erfc(torch.tensor(n / 2**0.5).double()).item() for n in (3, 4, 5)
            },
            "deep network, width 64": shares(wide.model.model, x),
            "Shakespeare GPT, width 128": shares(gpt.model.model, torch.from_numpy(text)),
        },
    )


if __name__ == "__main__":
    main()
