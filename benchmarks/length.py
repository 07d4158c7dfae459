"""Length generalisation: every kind of positions, trained on 64 characters and measured on up to 512.

    python benchmarks/length.py

The loss on the whole validation text, cut into windows of each length: the mean over all characters, and over those
after the 64th of their window. Two seeds. Runs are kept in runs/length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from results import CONFIGS, keep

from clearhead.data import IGNORE, make_data
from clearhead.training import train

KINDS = ("none", "sinusoid", "learned", "rotary", "alibi", "relative")
TRAINED = 64
LENGTHS = (64, 128, 256, 512)
SEEDS = (0, 1)


@torch.no_grad()
def mean_losses(model: torch.nn.Module, length: int) -> tuple[float, float | None]:
    """The mean loss of all characters, and of those after the trained length (None if there are none)."""
    data = make_data("shakespeare", {"context": length, "valid_rows": 8192 // length}, seed=0)
    loss, counted = (
        torch.zeros(length, dtype=torch.float64),
        torch.zeros(length, dtype=torch.float64),
    )
    for i in range(data.valid_batches):
        ids, targets = (torch.from_numpy(data.valid(i)[name]) for name in ("ids", "targets"))
        loss += (
            F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none").sum(0).double()
        )
        counted += (targets != IGNORE).sum(0)
    past = (loss[TRAINED:].sum() / counted[TRAINED:].sum()).item() if length > TRAINED else None
    return (loss.sum() / counted.sum()).item(), past


def main() -> None:
    losses: dict[str, dict[str, list[list[float | None]]]] = {}
    for kind in KINDS:
        losses[kind] = {"all": [], "past": []}
        for seed in SEEDS:
            words = f"model.positions={kind}", f"seed={seed}"
            run = train(
                CONFIGS / "shakespeare-length.toml",
                *words,
                out=f"runs/length/{kind}-{seed}",
                quiet=True,
            )
            assert run.model is not None
            model = run.model.model.eval()
            # A learned table has no rows past the trained length, and the model refuses such inputs.
            each = [
                (None, None) if kind == "learned" and n > TRAINED else mean_losses(model, n)
                for n in LENGTHS
            ]
            for name, values in zip(("all", "past"), zip(*each, strict=True), strict=True):
                losses[kind][name].append(list(values))
            print(
                f"{kind:9} seed {seed}  {losses[kind]['all'][-1]}  past {losses[kind]['past'][-1]}",
                flush=True,
            )
    keep("length", trained=TRAINED, lengths=list(LENGTHS), valid_loss=losses)


if __name__ == "__main__":
    main()
