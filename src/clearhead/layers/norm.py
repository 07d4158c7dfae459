"""Normalisation: keep the size of what a layer says from growing or fading with depth."""

from __future__ import annotations

from torch import nn

# "layer": (x - mean) / deviation over the width, then a learned scale and shift (Ba et al. 2016, Eq. 4).
# "rms": x / root mean square, then a learned scale: no centring, no shift (Zhang and Sennrich 2019, Eq. 4).
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": nn.Identity}


def make_norm(kind: str, width: int, *, eps: float = 1e-5) -> nn.Module:
    """The normalisation a word names."""
    if kind not in NORMS:
        raise ValueError(f"norm={kind!r}: expected one of {', '.join(NORMS)}")
    return nn.Identity() if kind == "none" else NORMS[kind](width, eps=eps)
