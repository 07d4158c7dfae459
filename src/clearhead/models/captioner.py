"""The captioner: an image encoder, and a decoder that writes what the image shows.

    images -> encoder: a grid of features -> memory: one vector per place [-> blocks] -> (b, y x, d)
    ids    -> decoder, which looks at the memory -> head -> logits of each next token    (b, t, v)

The encoder is any model of images with a grid: MobileNetV2 or a ResNet, as in Show, Attend and Tell (Xu et al. 2015),
or a vision transformer, so that no part is a convolution. Its options say at which stride it ends: a ResNet-50 with
depths = [3, 4, 6] has 12 x 12 places for 192 pixels, with depths = [3, 4, 6, 3] it has 6 x 6.

decoder="rnn", attention="none"      one vector for the whole image (Vinyals et al. 2015)
decoder="rnn", "soft" or "hard"      Show, Attend and Tell
decoder="transformer"                cross-attention in every layer (Vaswani et al. 2017); with encoder_depth > 0
                                     a Transformer encoder reads the grid first

The recurrent decoder is that of Show, Attend and Tell (section 3.1.2), with a_i the vector of place i, E y that of the
previous token, and h the state:

    e_i   = w . tanh(W a_i + U h_{t-1} + b)          Eq. 4, the additive score
    alpha = softmax(e)                               Eq. 5
    z     = beta sum_i alpha_i a_i                   Eq. 13; beta = sigmoid(v . h_{t-1} + c), section 4.2.1
    h_t   = cell([E y, z], h_{t-1})                  Eq. 1 to 3
    out   = E y + L_h h_t + L_z z                    Eq. 7, the deep output; the head maps it to logits

attention="hard"  takes the vector of one place instead of the weighted sum: in training a sampled one (section 4.1),
                  else the one with the largest weight
attention="none"  takes the mean of all places, the same at every step: the bottleneck

A vision transformer whose tokens, the class token included, are the memory of a GPT-2 with cross-attention is
special=True, bridge="linear" or "none", places="none", positions="learned", mlp="gelu_tanh", scaled=False.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .. import config as configs
from ..checks import at_least, fraction
from ..errors import InputError, nearest
from ..layers import (
    Additive,
    Attention,
    Block,
    Linear,
    Mask,
    SinCos2d,
    Tokens,
    grid,
    make_norm,
)
from ..layers.choices import MLPKind, Order, Position
from ..layers.recurrent import RecurrentLayers
from . import transformer
from .decoder_state import DecoderState, KVState, SourceMemory
from .model import DecoderStack, Model, check_heads, random_ids
from .rnn_seq2seq import State

# The families that can be the image encoder, and their modules.
ENCODERS = {"mobilenet": "MobileNet", "resnet": "ResNet", "convnext": "ConvNeXt", "vit": "ViT"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes and choices of a captioner."""

    vocab: int  # number of tokens in the vocabulary of captions
    # image encoder: name, its family (mobilenet, resnet, convnext or vit), and the options of that family
    encoder: dict[str, Any] = field(default_factory=lambda: {"name": "mobilenet"})
    decoder: Literal["rnn", "transformer"] = "transformer"  # kind of decoder
    # rnn: one vector for the whole image, a weighted sum of places, or one place
    attention: Literal["none", "soft", "hard"] = "soft"
    context: int = 64  # tokens per caption; learned positions have a table of this size
    # width of the memory, of the embeddings, and of a Transformer's residual stream
    width: int = 256
    # rnn: width of the state, None: 2 x width; transformer: inside the MLP, None: 4 x width
    hidden: int | None = None
    depth: int = 1  # number of recurrent layers, or of decoder blocks
    # number of Transformer blocks that read the grid before the decoder does
    encoder_depth: int = 0
    heads: int = 4  # transformer, encoder_depth: attention heads per block
    # from encoder to memory: a projection and a norm, a projection, or nothing (if the widths are
    # equal)
    bridge: Literal["norm", "linear", "none"] = "norm"
    # vit: the memory also holds the class token and registers, which have no place
    special: bool = False
    places: Literal["none", "sincos2d"] = "sincos2d"  # how the places of the grid are encoded
    positions: Position = "sinusoid"  # transformer: how token order is encoded
    cell: Literal["gru", "lstm"] = "lstm"  # rnn: kind of recurrent cell
    # rnn with attention: what is looked at is scaled by a learned gate (beta of the paper)
    gate: bool = True
    # transformer: norms before each sublayer, after each addition, or of each output
    order: Order = "pre"
    eps: float = 1e-5  # added to the variance in a norm of memory and decoder
    mlp: MLPKind = "gelu"  # transformer: activation of the MLP
    scaled: bool = True  # embeddings are multiplied by sqrt(width)
    tied: bool = True  # the weights of the output layer are the embedding table
    dropout: float = 0.1  # share dropped in training: of memory, embeddings, sublayers and readout
    # transformer: share dropped in training, of attention weights and inside the MLP
    inner_dropout: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, 1, "vocab", "context", "width", "hidden", "depth", "heads")
        at_least(self, 0, "encoder_depth")
        fraction(self, "dropout", "inner_dropout")
        if self.decoder == "transformer" or self.encoder_depth:
            check_heads(self.width, self.heads, positions=self.positions)
        self._check_decoder()
        if self.places == "sincos2d" and self.width % 4:
            # a sine and a cosine of the row, and the same of the column
            raise InputError(f"width={self.width}: expected a multiple of 4 for places='sincos2d'")
        self.encoder_config()
        if self.special and not hasattr(_encoder_class(self.encoder), "parts"):
            raise InputError(
                f"special=True: a {self.encoder['name']} has no tokens without a place: expected a vit"
            )

    def _check_decoder(self) -> None:
        """Raise for an option that only the other decoder has, except `heads`, a size that recipes name for both."""
        if self.decoder == "transformer" and self.attention != "soft":
            raise InputError(
                f"attention={self.attention!r} is for decoder='rnn': a Transformer's is soft"
            )
        other, options = "rnn", ["cell", "gate"]
        if self.decoder == "rnn":
            other, options = "transformer", ["positions"]
            # the blocks that read the grid have these, too
            if not self.encoder_depth:
                options += ["order", "mlp", "inner_dropout"]
        defaults = {field.name: field.default for field in fields(self)}
        for name in options:
            given = getattr(self, name)
            if given != defaults[name]:
                raise InputError(
                    f"{name}={given!r} is for decoder={other!r}: a decoder={self.decoder!r} does not have it"
                )

    @property
    def state_width(self) -> int:
        """The width of the state of a recurrent decoder."""
        return self.hidden or 2 * self.width

    def encoder_config(self) -> Any:
        """The Config of the encoder, which has no output layer unless it says so."""
        options = configs.Table({"classes": 0, **self.encoder}).without("name")
        return configs.read(_encoder_module(self.encoder).Config, options, where="model.encoder")


class GridMemory(nn.Module):
    """The grid of an encoder as a sequence of places, projected and normalised, read by Transformer blocks.

    Tokens of the encoder that have no place come first.
    """

    def __init__(self, c: Config, channels: int) -> None:
        super().__init__()
        self.dropout = c.dropout
        if c.bridge == "none" and channels != c.width:
            # nothing else could change the number of channels
            raise InputError(
                f"bridge='none': the encoder has {channels} channels, expected width={c.width}"
            )
        self.project: nn.Module = nn.Identity()
        if c.bridge != "none":
            # one map for the places and for the special tokens
            self.project = Linear(channels, c.width)
        self.norm = make_norm("layer" if c.bridge == "norm" else "none", c.width, eps=c.eps)
        self.places = SinCos2d(c.width) if c.places == "sincos2d" else None
        # `hidden` is the width of a recurrent decoder's state: then the blocks have the usual width
        hidden = c.hidden if c.decoder == "transformer" else None
        self.blocks = nn.ModuleList(
            Block(
                c.width,
                c.heads,
                hidden=hidden,
                order=c.order,
                eps=c.eps,
                mlp=c.mlp,
                dropout=c.dropout,
                inner_dropout=c.inner_dropout,
            )
            for _ in range(c.encoder_depth)
        )
        normed = not c.encoder_depth or c.order == "post"  # already, by what comes before
        self.last_norm = make_norm("none" if normed else "layer", c.width, eps=c.eps)

    def forward(
        self, features: Float[Tensor, "b c y x"], special: Float[Tensor, "b s c"] | None = None
    ) -> Float[Tensor, "b k d"]:
        x = self.norm(self.project(features.flatten(2).mT))  # (b, c, y, x) -> (b, y x, d)
        if self.places is not None:
            x = self.places.add(x, grid(features.shape[2], features.shape[3], device=x.device))
        if special is not None:  # tokens that have no place come first
            # (b, s, d) before (b, y x, d); they get no position vectors
            x = torch.cat([self.norm(self.project(special)), x], dim=1)
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)


class Trace(NamedTuple):
    """The attention weights and sampled places of a forward pass, one tensor per step, for training objectives.

    Examples:
        >>> trace = Trace([], [])
        >>> len(trace.weights)
        0
    """

    weights: list[Tensor]  # (b, k) the weights of all places
    places: list[Tensor]  # (b,) the number of the sampled place; hard attention only


class LookLayer(nn.Module):
    """The recurrent cell, and its attention to the places of an image: decoder.blocks.0."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.hard = c.attention == "hard"
        self.cell = RecurrentLayers(
            2 * c.width, c.state_width, cell=c.cell, depth=c.depth, dropout=c.dropout
        )
        self.cross: Attention | None = None
        self.gate: nn.Linear | None = None
        if c.attention != "none":
            # Eq. 4: W a_i and U h are the keys and the queries; the values are the a_i themselves
            self.cross = Attention(
                c.state_width,
                head=c.state_width,
                value=c.width,
                context=c.width,
                project="qk",
                out=False,
                score=Additive(c.state_width),
            )
            if c.gate:
                # one number per state: how much the next word depends on the image
                self.gate = nn.Linear(c.state_width, 1)  # beta, section 4.2.1

    def remember(self, memory: Float[Tensor, "b k d"]) -> tuple[Tensor, ...]:
        """Return what all decoding steps read of an image: keys and values, or the mean of its places."""
        if self.cross is None:
            # (b, k, d) -> (b, d), in a tuple as keys and values are
            return (memory.mean(1),)
        return self.cross.remember(memory)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: State,
        draws: Float[Tensor, "b t"] | None,
        trace: Trace | None,
    ) -> Float[Tensor, "b t o"]:
        """Return the cell's states h and the contexts z, concatenated per token; `state` is advanced."""
        # without attention every token sees the same vector: all steps in one call
        if self.cross is None:
            ((mean,),), fold = state.source.memory, state.source.fold
            if fold != 1:
                # the beams of an image share its mean: (b, d) -> (b n, d)
                mean = mean.repeat_interleave(fold, dim=0)
            # (b, d) -> (b, t, d): the same vector at every token
            looked = mean[:, None].expand(-1, x.shape[1], -1)
            out = self.cell(torch.cat([x, looked], dim=-1), state.cell)
            return torch.cat([out, looked], dim=-1)

        # else a step needs z, which depends on the state of the step before; what depends on the tokens is computed
        # before for all of them
        gates, weight = self.cell.input_gates(x)
        top = self.cell.cell.num_layers - 1
        outs, contexts = [], []
        for i, token in enumerate(gates.unbind(1)):
            draw = None if draws is None else draws[:, i]
            # Eq. 4: attention depends on h_{t-1}, the state before this token is read
            z = self._look(state.cell[top], state.source, draw, trace)
            # W [E y, z]: the part of E y was computed for all tokens at once, that of z is added
            # here
            token_gates = torch.addmm(token, z, weight.T).unsqueeze(1)  # (b, 1, g)
            outs.append(self.cell(token_gates, state.cell, gates=True))
            contexts.append(z)
        return torch.cat([torch.cat(outs, dim=1), torch.stack(contexts, dim=1)], dim=-1)

    def _look(
        self,
        h: Float[Tensor, "b o"],
        source: SourceMemory,
        draws: Float[Tensor, "b"] | None,
        trace: Trace | None,
    ) -> Float[Tensor, "b d"]:
        """Return the gated context z of a state (Eq. 13); rows that share an image are the queries of one call."""
        assert self.cross is not None
        queries = h.reshape(-1, source.fold, h.shape[1])  # (b n, o) -> (b, n, o)
        z = self.cross(queries, source.memory[0], choose=self._choice(draws, trace))
        z = z.reshape(h.shape[0], -1)
        if self.gate is None:
            return z
        return torch.sigmoid(self.gate(h)) * z

    def _choice(
        self, draws: Tensor | None, trace: Trace | None
    ) -> Callable[[Tensor], Tensor] | None:
        """Return a function that maps attention weights (b, 1, q, k) to those that are used; None: they stay."""
        # in training without draws hard attention is the weighted sum, which has a gradient
        sampled = self.hard and draws is not None
        greedy = self.hard and not self.training
        if trace is None and not sampled and not greedy:
            return None

        def choose(weights: Tensor) -> Tensor:
            if trace is not None:
                # for the doubly stochastic penalty (Eq. 14) and for REINFORCE (Eq. 11 and 12)
                trace.weights.append(weights[:, 0, 0])
            if not sampled and not greedy:
                return weights
            # evaluation: all the weight on the place where it is largest
            if not sampled:
                return one_hot(weights.argmax(-1), weights)
            assert draws is not None
            places = sample_places(weights[:, 0, 0], draws)
            if trace is not None:
                # REINFORCE rewards the log-weight of the place that was sampled
                trace.places.append(places)
            # a negative draw asks for the weighted sum
            soft = (draws < 0)[:, None, None, None]
            return torch.where(soft, weights, one_hot(places[:, None, None], weights))

        return choose


class RNNCaptionDecoder(nn.Module):
    """Writes a caption with a recurrent network, which looks at the image before every token."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        super().__init__()
        self.embed, self.dropout = embed, c.dropout
        self.blocks = nn.ModuleList([LookLayer(c)])
        self.states = 2 * c.depth if c.cell == "lstm" else c.depth
        # f_init of section 3.1.2: one map for the hidden and cell states of all layers
        self.first = nn.Linear(c.width, self.states * c.state_width)
        self.readout = nn.Linear(c.state_width + c.width, c.width)

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        state: State,
        draws: Float[Tensor, "b t"] | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "b t d"]:
        x = F.dropout(self.embed(ids), self.dropout, self.training)
        looked = self.blocks[0](x, state, draws, trace)
        state.at = state.at + ids.shape[1]
        # Eq. 7: E y + L [h, z], one map for L_h and L_z
        return F.dropout(x + self.readout(looked), self.dropout, self.training)

    def read(
        self, ids: Tensor, memory: Tensor, draws: Tensor | None, trace: Trace | None
    ) -> Tensor:
        return cast(Tensor, self(ids, self.begin(memory, ids.shape[0], 0), draws, trace))

    def begin(self, memory: Float[Tensor, "b k d"], rows: int, limit: int) -> State:
        """The state before the first token, computed from the mean of all places (section 3.1.2)."""
        # (b, states o) -> one (b, o) per hidden or cell state
        cell = torch.tanh(self.first(memory.mean(1))).chunk(self.states, dim=-1)
        at = torch.zeros(memory.shape[0], dtype=torch.long, device=memory.device)
        remembered = cast(LookLayer, self.blocks[0]).remember(memory)
        return State(list(cell), SourceMemory([remembered], None), at)

    def advance(self, ids: Tensor, state: State | DecoderState) -> Tensor:
        assert isinstance(state, State)
        return cast(Tensor, self(ids, state))


class TransformerCaptionDecoder(transformer.TransformerDecoder):
    """Writes a caption with the decoder of a Transformer, every layer of which attends to the image."""

    def __init__(self, c: Config, embed: Tokens) -> None:
        sizes = transformer.Config(
            vocab=c.vocab,
            context=c.context,
            width=c.width,
            depth=c.depth,
            heads=c.heads,
            hidden=c.hidden,
            positions=c.positions,
            order=c.order,
            eps=c.eps,
            mlp=c.mlp,
            dropout=c.dropout,
            inner_dropout=c.inner_dropout,
        )
        super().__init__(sizes, embed)
        self.sizes = sizes

    def read(
        self, ids: Tensor, memory: Tensor, draws: Tensor | None, trace: Trace | None
    ) -> Tensor:
        return cast(Tensor, self(ids, memory, Mask()))

    def begin(self, memory: Float[Tensor, "b k d"], rows: int, limit: int) -> DecoderState:
        # keys and values of the image, once for all steps
        context = [cast(Block, block).cross.remember(memory) for block in self.blocks]  # type: ignore[union-attr]
        c, like = self.sizes, context[0][0]
        kv = KVState(
            len(context),
            rows,
            c.heads,
            limit,
            c.width // c.heads,
            dtype=like.dtype,
            device=like.device,
        )
        return DecoderState(kv, SourceMemory(context, None))

    def advance(self, ids: Tensor, state: State | DecoderState) -> Tensor:
        assert isinstance(state, DecoderState)
        assert state.source is not None
        x: Tensor = self(ids, state.source.memory, state.source.mask, kv=state.kv)
        state.kv.advance(ids.shape[1])
        return x


DECODERS: dict[str, type[RNNCaptionDecoder] | type[TransformerCaptionDecoder]] = {
    "rnn": RNNCaptionDecoder,
    "transformer": TransformerCaptionDecoder,
}


def sample_places(weights: Float[Tensor, "b k"], draws: Float[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Sample one place per row with the attention weights as probabilities, by inverting their cumulative sum."""
    cumulative = weights.detach().float().cumsum(-1)  # (b, k)
    # compared with a share of the last sum, which is 1 up to rounding
    passed = (cumulative <= draws[:, None] * cumulative[:, -1:]).sum(-1)
    return passed.clamp(max=weights.shape[-1] - 1)


def one_hot(places: Tensor, like: Tensor) -> Tensor:
    """Return attention weights that are 1 at the given places and 0 elsewhere, without a gradient."""
    return F.one_hot(places, like.shape[-1]).to(like.dtype)


class Captioner(Model):
    """Images (b, c, height, width) and caption ids (b, t) -> logits of each next token (b, t, v)."""

    reads: ClassVar[str] = "captions"
    can = frozenset({"caption"})
    methods: ClassVar[tuple[str, ...]] = ("states",)
    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = self.config = config
        self.encoder = _encoder_class(c.encoder)(c.encoder_config())
        self.memory = GridMemory(c, self.encoder.grid_channels)
        embed = Tokens(c.vocab, c.width, scale=c.scaled)
        self.decoder = DECODERS[c.decoder](c, embed)
        self.head = Linear(c.width, c.vocab, bias=False)
        if c.tied:
            self.head.weight = embed.table

    @property
    def decoder_stack(self) -> DecoderStack | None:
        d = self.decoder
        if not isinstance(d, TransformerCaptionDecoder):
            # a recurrent decoder has no blocks: it decodes by its own `step`
            return None
        return DecoderStack(
            embed=d.embed,
            positions=d.positions,
            blocks=d.blocks,
            norm=d.norm,
            head=self.head,
            cross=True,
            owner=d,
        )

    def train(self, mode: bool = True) -> Captioner:
        """Switch to training mode; an encoder without trained weights stays in evaluation mode, its batch norms too."""
        super().train(mode)
        # a batch norm would change its statistics in training mode, though its weights are frozen
        if not any(p.requires_grad for p in self.encoder.parameters()):
            self.encoder.eval()
        return self

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        ids = random_ids(self.config.vocab, rows, min(size, self.config.context), generator)
        return {"ids": ids, **self.encoder.example_inputs(rows, size, generator)}

    def look(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k d"]:
        """Return the memory of images: the vectors of special tokens, then one vector per place, row by row."""
        # any image model has a grid; only a vit has tokens without a place
        if not self.config.special:
            return cast(Tensor, self.memory(self.encoder.grid(images)))
        special, places = self.encoder.parts(images)
        return cast(Tensor, self.memory(places, special))

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        images: Float[Tensor, "b c height width"],
        draws: Float[Tensor, "b t"] | None = None,
        trace: Trace | None = None,
    ) -> Float[Tensor, "b t d"]:
        """The decoder's output: the input of `head`.

        Args:
            ids: Tokens of captions.
            images: The images.
            draws: attention="hard": a uniform random number per token, with which its place is sampled; a negative one
                takes the weighted sum. If not given, the weighted sum in training, and else the likeliest place.
            trace: rnn with attention: the lists that the weights, and the sampled places, are appended to.
        """
        return self.decoder.read(ids, self.look(images), draws, trace)

    def forward(
        self, ids: Int[Tensor, "b t"], *, images: Float[Tensor, "b c height width"]
    ) -> Float[Tensor, "b t v"]:
        return self.head(self.states(ids, images=images))

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> State | DecoderState:
        """Encode the images (`images`), and make room for `limit` tokens."""
        return self.decoder.begin(self.look(inputs["images"]), rows, limit)

    def step(
        self, ids: Int[Tensor, "b t"], state: State | DecoderState
    ) -> tuple[Float[Tensor, "b t v"], State | DecoderState]:
        """Append tokens to every row, and return the logits after each of them."""
        return self.head(self.decoder.advance(ids, state)), state


def _encoder_module(options: Mapping[str, Any]) -> Any:
    name = options.get("name")
    if name not in ENCODERS:
        # a recipe may give anything as the name, a number too
        hint = nearest(name, ENCODERS) if isinstance(name, str) else ""
        raise InputError(
            f"encoder.name={name!r}: expected a family of image models, one of {', '.join(ENCODERS)}{hint}"
        )
    return import_module(f".{name}", __package__)


def _encoder_class(options: Mapping[str, Any]) -> Any:
    return getattr(_encoder_module(options), ENCODERS[options["name"]])
