"""Small image classifiers, registered as families for tests, and random pictures.

Pictured is one convolution. Patched is a vision transformer of one block, with a layout of transformers' ViT.
"""

import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from clearhead.layers import Block, Patches
from clearhead.models import FAMILIES, Model
from clearhead.weights.huggingface import folder as huggingface
from clearhead.weights.table import Conversion, Layout, Row, pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Sizes of the classifier."""

    classes: int = 2


def processor_class(name):
    """The image processor of transformers that works on Pillow images; version 5.0 names it without Pil."""
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{name}ImageProcessorPil", None) or getattr(transformers, f"{name}ImageProcessor")


class Pictured(Model):
    """Images -> class logits, by one convolution."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.first, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, config.classes)

    def example_inputs(self, rows, size, generator):
        return {"images": torch.randn(rows, 3, size, size, generator=generator)}

    def forward(self, images):
        return self.head(self.first(images).relu().mean((2, 3)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedConfig:
    """Sizes of the vision transformer."""

    classes: int = 2
    width: int = 12
    heads: int = 3
    patch: int = 4
    grid: int = 2


class Patched(Model):
    """Images -> class logits, by a vision transformer of one block."""

    reads, can = "images", frozenset({"classify"})

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed = Patches(c.width, patch=c.patch, grid=c.grid)
        self.blocks = nn.ModuleList([Block(c.width, c.heads, eps=1e-12)])
        self.norm, self.head = nn.LayerNorm(c.width, eps=1e-12), nn.Linear(c.width, c.classes)

    def example_inputs(self, rows, size, generator):
        size = self.config.patch * self.config.grid
        return {"images": torch.randn(rows, 3, size, size, generator=generator)}

    def forward(self, images):
        return self.head(self.norm(self.blocks[0](self.embed(images)))[:, 0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Theirs:
    """The keys of a ViT's config.json that are read."""

    hidden_size: int
    num_attention_heads: int
    image_size: int
    patch_size: int

    def to_ours(self, shapes):
        return PatchedConfig(
            classes=shapes["classifier.weight"][0], width=self.hidden_size, heads=self.num_attention_heads,
            patch=self.patch_size, grid=self.image_size // self.patch_size,
        )  # fmt: skip


def to_theirs(c, special):
    theirs = Theirs(
        hidden_size=c.width, num_attention_heads=c.heads, image_size=c.patch * c.grid, patch_size=c.patch
    )  # fmt: skip
    kind = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_hidden_layers": 1}
    return {**kind, **asdict(theirs), "intermediate_size": 4 * c.width}


POSITIONS = Conversion(lambda first, rest: torch.cat([first, rest])[None], lambda x, _: [x[0, :1], x[0, 1:]])
BLOCK = {
    "attn.query": "attention.attention.query", "attn.key": "attention.attention.key",
    "attn.value": "attention.attention.value", "attn.out": "attention.output.dense", "attn_norm": "layernorm_before",
    "mlp.up": "intermediate.dense", "mlp.down": "output.dense", "mlp_norm": "layernorm_after",
}  # fmt: skip


def rows(c):
    yield Row(("embed.cls",), ("vit.embeddings.cls_token",))
    yield Row(("embed.cls_place", "embed.places"), ("vit.embeddings.position_embeddings",), POSITIONS)
    yield from pairs({"embed.project": "vit.embeddings.patch_embeddings.projection"})
    yield from pairs({f"blocks.0.{ours}": f"vit.encoder.layer.0.{theirs}" for ours, theirs in BLOCK.items()})
    yield from pairs({"norm": "vit.layernorm", "head": "classifier"})


def reference(pretrained, inputs, c):
    return pretrained("AutoModelForImageClassification")(inputs["images"]).logits


LAYOUT = Layout(
    model="patched", theirs=Theirs, to_ours=Theirs.to_ours, to_theirs=to_theirs, rows=rows, prefix="vit.",
    reference=reference, fixed={"num_hidden_layers": 1, "hidden_act": "gelu"},
)  # fmt: skip
Pictured.__module__, Patched.__module__ = "clearhead.models.pictured", "clearhead.models.patched"


def pixels_model():
    torch.manual_seed(0)
    return Pictured(Config())


def patched_model(**options):
    torch.manual_seed(0)
    return Patched(PatchedConfig(**options))


@contextmanager
def registered():
    """Register the families "pictured" and "patched", and the layout "vit" of the second, inside the block."""
    layout = "clearhead.weights.huggingface.patched"
    modules = {name: ModuleType(name) for name in (Pictured.__module__, Patched.__module__, layout)}
    vars(modules[Pictured.__module__]).update(Pictured=Pictured, Config=Config)
    vars(modules[Patched.__module__]).update(Patched=Patched, Config=PatchedConfig)
    vars(modules[layout]).update(LAYOUTS={"vit": LAYOUT})
    names = {"pictured": ("pictured", "Pictured", ""), "patched": ("patched", "Patched", "")}
    with ExitStack() as stack:
        sys.modules.update(modules)  # not patch.dict, which would also remove modules that are imported meanwhile
        for name in modules:
            stack.callback(sys.modules.pop, name)
        stack.enter_context(patch.dict(FAMILIES, names))
        stack.enter_context(patch.dict(huggingface.LAYOUT_FILES, {"vit": "patched"}))
        stack.enter_context(patch.dict(huggingface.SAVED_AS, {"patched": ("vit",)}))
        yield


def picture(height=37, width=53, seed=0):
    """Random noise, smoothed a little so that interpolation methods differ but do not saturate."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8))
    fine = rng.integers(-20, 20, (height, width, 3))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(smooth + fine, 0, 255).astype(np.uint8))
