"""Outline: what a folder that a training saved says about its model, without loading the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import config
from .. import tokens as text
from ..data.preprocessing import Preprocessing
from ..models import family
from ..weights import native, peft
from ..weights.fill import on_meta_device
from ..weights.preprocessor import read_preprocessing


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """The traits of a model that decide which views can use it; named as those of a Bundle."""

    name: str  # class of the model
    parameters: int
    can: frozenset[str]  # capabilities
    reads: str  # its input
    tokens: Path | None  # file of its tokenizer
    preprocessing: Preprocessing | None


def outline(folder: Path) -> Outline:
    """The outline of a model folder in our own layout, or of adapters that we saved; raises for other folders."""
    apart = peft.is_peft(folder)
    table = config.load(folder / (peft.OURS if apart else "config.json"))
    saved = config.read(peft.Saved if apart else native.Saved, table)
    kind, options = family(saved.model)
    chosen = config.read(options, config.Table(saved.options))
    with on_meta_device():
        model = kind(chosen)
    return Outline(
        name=model.name, parameters=sum(p.numel() for p in model.parameters()), can=model.can, reads=model.reads,
        tokens=text.saved(folder), preprocessing=read_preprocessing(folder),
    )  # fmt: skip
