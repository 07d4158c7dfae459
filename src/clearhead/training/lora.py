"""The options of LoRA in a recipe (see layers/lora.py)."""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import at_least, fraction
from ..errors import InputError
from ..layers.lora import as_words


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Low-rank updates of pretrained weights, which are trained instead of them (Hu et al. 2021)."""

    rank: int = 16  # rank of each update
    alpha: float | None = None  # updates are scaled by alpha / rank; None: 2 x rank
    maps: str | tuple[str, ...] = "all"  # maps of blocks: q, k, v, o, gate, up, down; or attention, mlp, all
    dropout: float = 0.0  # share of the updates' input that is dropped in training
    merge: bool = True  # add the updates to the weights of the result; false: a small folder in PEFT's layout

    def __post_init__(self) -> None:
        at_least(self, 1, "rank")
        fraction(self, "dropout")
        as_words(self.maps)
        if self.alpha is not None and not 0.0 < self.alpha < float("inf"):
            raise InputError(f"alpha={self.alpha}: expected a number above 0")
