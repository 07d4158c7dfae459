"""Model: the base class of all families. It declares what a model reads and can do, so that no other code guesses.

A family is one file with a frozen dataclass `Config` and a subclass of Model, and one line in FAMILIES. A vision
transformer that classifies, for instance, declares

    class ViT(Model):
        reads = "images"                     # the bundle then has image preprocessing instead of a tokenizer
        can = frozenset({"classify"})        # forward returns the logits of classes
        may_differ = frozenset({"dropout", "classes", "grid"})   # may differ from the options of pretrained weights
        config: Config

        def __init__(self, config): ...
        # where it reads other than tokens, pairs or square images of any size: the arguments of forward, by name
        def example_inputs(self, rows, size, generator): ...
        def forward(self, images): ...

and `clearhead.build`, training, saving, loading, `watch` and the command line work with it. The names of its submodules
become the addresses of `watch` (embed, blocks.*, norm, head) and the names of its weights. Recomputation, sharding and
probes find its layers by the names blocks.N and stages.N.N; a grid of learned positions is the parameter `places` of
layers.Patches, which pretrained weights of another grid are interpolated to. A model that decodes also has `start` and
`step` (see decoder_state.py) and, to be decoded fast, `decoder_stack`. A model of images that can be the encoder of a
captioner has `grid(images)` and `grid_channels`. tests/models checks every registered family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..errors import InputError, InputTypeError
from ..layers import Positions, Tokens

# What a model may read, and the batch key (the argument of forward) that it comes in.
INPUT_KEYS = {
    "tokens": "ids",
    "pairs": "source",
    "images": "images",
    "captions": "images",
    "vectors": "x",
}

# What a model may be able to do, and the methods that it must have for it. tasks/ and training/ rely on these names.
CAPABILITIES = {
    "predict": "states(ids) and head: the logits of each next token",
    "generate": "start, read and step: continue a prompt token by token",
    "translate": "forward(ids, source=...), start and step: write a target for a source",
    "caption": "forward(ids, images=...), start and step: write a caption for an image",
    "fill": "states(ids, lengths=...) and head: the logits of masked tokens",
    "classify": "forward: the logits of classes",
    "encode": "encode(ids, lengths=...): a vector per token",
    "embed": "forward: one vector per input",
    "project": "project(images): outputs of a projection head, which self-supervised objectives compare",
    "map": "forward(x): vectors to vectors",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderStack:
    """The parts of a decoder by their roles, for a faster implementation of its steps.

    A step is head(norm(blocks(embed_norm(positions.add(embed(ids), at))))), each block with a KV cache.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=2, heads=2)
        >>> len(model.decoder_stack.blocks)
        2
    """

    embed: Tokens  # token embedding
    positions: Positions  # added to the embeddings, or used inside attention
    blocks: nn.ModuleList  # layers.Block each
    norm: nn.Module  # after the last block; nn.Identity if there is none
    head: nn.Module  # linear map to the logits
    # keys that a query may attend to, itself included; None: all before it
    window: int | None = None
    cross: bool = False  # blocks also attend to a source
    # of the embeddings with their positions; None or nn.Identity if there is none
    embed_norm: nn.Module | None = None
    # the module that returns the output of `norm`, if it is not the model itself
    owner: nn.Module | None = None


class Model(nn.Module):
    """The base class of all models: a network with its config, which declares what it reads and can do.

    A subclass sets the attributes below, builds its modules from its Config in `__init__`, and defines `forward`,
    which returns one tensor.

    Attributes:
        config: The Config of the family that it was built from.
        reads: Its input, a key of INPUT_KEYS: "tokens", "pairs" (a source and a target), "images",
            "captions" (an image and its caption) or "vectors".
        can: What it can do, keys of CAPABILITIES. If it depends on the config, `__init__` sets it.
        head_parts: Submodules that compute its output; initialised anew when it is fine-tuned for another task.
        may_differ: Config options that may differ from a checkpoint's, because its weights do not depend on them.
        spare_parts: Weights of a checkpoint that a model with other such options does not need.
        methods: Methods other than `forward` that use parameters; sharded training (FSDP) must register them.
        note: How it was opened, and what of its folder is not used, if not as a family of this library.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2)
        >>> isinstance(model, Model), model.reads, sorted(model.can)
        (True, 'tokens', ['encode', 'generate', 'predict'])
    """

    config: Any
    reads: ClassVar[str] = "tokens"
    can: frozenset[str] = frozenset()
    head_parts: ClassVar[tuple[str, ...]] = ("head",)
    may_differ: ClassVar[frozenset[str]] = frozenset({"dropout", "inner_dropout"})
    spare_parts: ClassVar[frozenset[str]] = frozenset()
    methods: ClassVar[tuple[str, ...]] = ()
    note: str | None = None

    @property
    def name(self) -> str:
        """Its class, for messages."""
        return type(self).__name__

    @property
    def max_tokens(self) -> int | None:
        """The number of tokens per row that it can read at once, prompt and answer together; None: any number."""
        return getattr(self.config, "context", None)

    @property
    def decoder_stack(self) -> DecoderStack | None:
        """The parts of its decoder if that is a stack of layers.Block; None otherwise."""
        return None

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Random arguments of `forward` by name: `rows` rows of `size` tokens or pixels, if the model allows any."""
        c = self.config
        if self.reads == "images":
            return {"images": torch.randn(rows, c.channels, size, size, generator=generator)}
        size = min(size, c.context)
        if self.reads == "pairs":
            ids = random_ids(c.target_vocab or c.vocab, rows, size, generator)
            return {"ids": ids, "source": random_ids(c.vocab, rows, size, generator)}
        return {"ids": random_ids(c.vocab, rows, size, generator)}


class ImageModel(Model):
    """The base class of models that make one vector of an image: `states`, which an output layer may follow.

    With a projection head it can also be trained without labels: the outputs of the head are compared (`project`).
    """

    reads: ClassVar[str] = "images"
    head_parts: ClassVar[tuple[str, ...]] = ("head", "projection")
    projection: nn.Module | None

    def states(self, images: Tensor) -> Tensor:
        """One vector per image: the input of the output layer and of the projection head."""
        raise NotImplementedError

    def project(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b outputs"]:
        """The outputs of the projection head."""
        if self.projection is None:
            raise InputError(
                f"this {self.name} has no projection head: expected projection=4096 or so in its options"
            )
        out: Tensor = self.projection(self.states(images))
        return out


def image_abilities(classes: int, projection: int) -> frozenset[str]:
    """What an image model can do, by the numbers of its classes and of the outputs of its projection head."""
    can = {"classify" if classes else "embed"}
    if projection:
        can.add("project")
    return frozenset(can)


def random_ids(vocab: int, rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "b t"]:
    """Random token ids, `rows` rows of `size`."""
    return torch.randint(0, vocab, (rows, size), generator=generator)


def check_heads(
    width: int,
    heads: int,
    *,
    positions: str = "none",
    head: int | None = None,
    kv_heads: int | None = None,
) -> None:
    """Raise unless these sizes fit together; `head` is the width of a head if it is not width / heads."""
    if head is None and width % heads:
        raise InputError(f"width={width} does not divide into heads={heads}: expected a multiple")
    if kv_heads is not None and heads % kv_heads:
        raise InputError(f"kv_heads={kv_heads} does not divide heads={heads}")
    if head is None:
        head = width // heads
    if positions == "rotary" and head % 2:
        raise InputError(
            f"positions='rotary' rotates pairs of columns: the head width {head} is not even"
        )


def network(model: Any) -> nn.Module:
    """Return the torch module of a Bundle, or the module itself.

    Args:
        model: A torch module, or something that holds one as `.model`.

    Examples:
        >>> bundle = clearhead.load("everyday")
        >>> network(bundle) is network(bundle.model)
        True
    """
    # A module may have an attribute of that name, too.
    if not isinstance(model, nn.Module):
        model = getattr(model, "model", model)
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"a {type(model).__name__} is not a model: expected what clearhead.load returns, or a torch module"
        )
    return model
