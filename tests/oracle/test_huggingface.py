"""Our layers against those of transformers: tiny random modules, nothing is downloaded."""

import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from compare import CAUSAL, HIDDEN, B, D, E, H, T, Table, adopt, both, close, layers, match, noise, vit_block, whole
from torch import Tensor, nn

from clearhead.layers import Alibi, Attention, Block, Mask, Patches, Positions, Relative, Rotary
from support.float64_torch import Float64Torch

Find = Callable[[str], ModuleType]


@pytest.fixture
def hf(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Import the modeling file of a model; in a float64 test its casts to float32 are switched off."""

    def find(name: str) -> ModuleType:
        module = pytest.importorskip(name if "." in name else f"transformers.models.{name}.modeling_{name}")
        if dtype == torch.float64:
            monkeypatch.setattr(module, "torch", Float64Torch())
            monkeypatch.setattr(Tensor, "float", Tensor.double)
        return module

    return find


def forbid(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask with an axis of rows and one of heads: 0 where attention is allowed, else -inf."""
    allowed = allowed.expand(B, 1, T, T)
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, float("-inf"))


AT = {
    "from 0": torch.arange(T),
    "from 90": torch.arange(90, 90 + T),
    "per row": torch.tensor([[0], [55]]) + 3 * torch.arange(T),
}
places = pytest.mark.parametrize("at", AT.values(), ids=AT)


def llama_rotary(hf: Find, head: int, *, context: int = 2048, **scaling: Any) -> nn.Module:
    hf("transformers.modeling_rope_utils")
    rope = {"rope_type": "default", "rope_theta": 10_000.0} | scaling
    llama = hf("llama")
    config = llama.LlamaConfig(head_dim=head, rope_parameters=rope, max_position_embeddings=context)
    return llama.LlamaRotaryEmbedding(config)


def check_rotation(hf: Find, mine: Rotary, oracle: nn.Module, at: Tensor, dtype: torch.dtype) -> None:
    """Four query heads and two key heads, rotated by their positions."""
    theirs = at.reshape(-1, T).to(dtype)  # given integers, the dynamic kind would compute the length in float32
    match(
        lambda q, k: mine.turn(q, k, at),
        lambda q, k: hf("llama").apply_rotary_pos_emb(q, k, *oracle(q, theirs)),
        noise(dtype, (B, 4, T, mine.head), (B, 2, T, mine.head)),
    )


@both
@places
def test_rotary(at: Tensor, dtype: torch.dtype, hf: Find) -> None:
    check_rotation(hf, Rotary(6), llama_rotary(hf, 6), at, dtype)


CONTEXT, FACTOR = 2048, 4.0
SCALINGS = {
    "linear": {},
    "yarn": {"original_max_position_embeddings": CONTEXT},
    "llama3": {"original_max_position_embeddings": CONTEXT, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@both
@places
@pytest.mark.parametrize("scaling", SCALINGS)
def test_rotary_scaling(scaling: str, at: Tensor, dtype: torch.dtype, hf: Find) -> None:
    """With 12 columns per head, yarn and llama3 keep some frequencies, slow some down, and interpolate some."""
    mine = Rotary(12, scaling=scaling, factor=FACTOR, context=CONTEXT)
    how = {"rope_type": scaling, "factor": FACTOR} | SCALINGS[scaling]
    oracle = llama_rotary(hf, 12, context=int(FACTOR * CONTEXT), **how)
    close(mine.speed.to(dtype), oracle.inv_freq, "speed")
    assert mine.attention_factor == pytest.approx(oracle.attention_scaling, rel=1e-12)
    check_rotation(hf, mine, oracle, at, dtype)


@both
@pytest.mark.parametrize("head", [6, 12])
def test_rotary_ntk(head: int, dtype: torch.dtype, hf: Find) -> None:
    """base f^(d/(d-2)); in the "dynamic" kind f = L / context grows with the current length L."""
    mine = Rotary(head, scaling="ntk", factor=FACTOR)
    base = 10_000.0 * FACTOR ** (head / (head - 2))
    written = torch.tensor([base ** (-2 * i / head) for i in range(head // 2)], dtype=torch.float64)
    close(mine.speed, written, "speed")
    context, length = 5, int(5 * FACTOR)
    oracle = llama_rotary(hf, head, context=context, rope_type="dynamic", factor=1.0)
    check_rotation(hf, mine, oracle, torch.arange(length - T, length), dtype)


class AttentionWithPositions(nn.Module):
    """An attention and its positions, whose parameters are compared too."""

    def __init__(self, attn: Attention, positions: Positions) -> None:
        super().__init__()
        self.attn, self.positions = attn, positions

    def forward(self, x: Tensor, mask: Mask | None) -> Tensor:
        return self.attn(x, mask=mask, positions=self.positions)


# Our module, the oracle, the table between their parameters, and the further inputs of each beside x.
Case = tuple[nn.Module, nn.Module, Table, dict[str, Any], dict[str, Any]]


def llama(hf: Find, dtype: torch.dtype, at: Tensor) -> Case:
    """Fifteen query heads over three key heads, with a head width that is not width / heads."""
    config = hf("llama").LlamaConfig(
        hidden_size=D, num_attention_heads=15, num_key_value_heads=3, head_dim=6, intermediate_size=HIDDEN,
        rms_norm_eps=1e-3, attn_implementation="eager",
    )  # fmt: skip
    names = {
        "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj",
        "attn.value": "self_attn.v_proj", "attn.out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    }  # fmt: skip
    cos_sin = llama_rotary(hf, 6)(torch.empty(0, dtype=dtype), at.reshape(-1, T))
    return (
        Block(D, 15, kv_heads=3, head=6, hidden=HIDDEN, norm="rms", mlp="swiglu", bias=False, eps=1e-3),
        hf("llama").LlamaDecoderLayer(config, 0),
        layers(names, bias=False),
        {"mask": Mask(causal=True), "positions": Rotary(6), "at": at},
        {"attention_mask": forbid(CAUSAL, dtype), "position_embeddings": cos_sin},
    )


def gpt2(hf: Find, dtype: torch.dtype) -> Case:
    """Its linear layers store transposed matrices, one of them q, k and v together."""
    config = hf("gpt2").GPT2Config(n_embd=D, n_head=H, n_inner=HIDDEN, attn_implementation="eager")
    table = layers({"attn_norm": "ln_1", "mlp_norm": "ln_2"})
    table |= layers({"attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}, torch.t)
    for i, name in enumerate(("query", "key", "value")):
        third = partial(lambda i, w: w.chunk(3, -1)[i].t(), i)
        table |= layers({f"attn.{name}": "attn.c_attn"}, third)
    return (
        Block(D, H, hidden=HIDDEN, order="pre", mlp="gelu_tanh"),
        hf("gpt2").GPT2Block(config, 0),
        table,
        {"mask": Mask(causal=True)},
        {"attention_mask": forbid(CAUSAL, dtype)},
    )


def bert(hf: Find, dtype: torch.dtype) -> Case:
    config = hf("bert").BertConfig(
        hidden_size=D, num_attention_heads=H, intermediate_size=HIDDEN, attn_implementation="eager"
    )
    names = {
        "attn.query": "attention.self.query", "attn.key": "attention.self.key",
        "attn.value": "attention.self.value", "attn.out": "attention.output.dense",
        "attn_norm": "attention.output.LayerNorm", "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense", "mlp_norm": "output.LayerNorm",
    }  # fmt: skip
    lengths = torch.tensor([3, 6])
    return (
        Block(D, H, hidden=HIDDEN, order="post", mlp="gelu", eps=1e-12),
        hf("bert").BertLayer(config),
        layers(names),
        {"mask": Mask(lengths=lengths)},
        {"attention_mask": forbid(torch.arange(T) < lengths[:, None, None, None], dtype)},
    )


def vit(hf: Find, dtype: torch.dtype) -> Case:
    config = hf("vit").ViTConfig(
        hidden_size=D, num_attention_heads=H, intermediate_size=HIDDEN, attn_implementation="eager"
    )
    mine, oracle = Block(D, H, hidden=HIDDEN, order="pre", mlp="gelu", eps=1e-12), hf("vit").ViTLayer(config)
    return mine, oracle, layers(vit_block(oracle)), {}, {}


def bloom(hf: Find, dtype: torch.dtype) -> Case:
    """Its bias is relative to the first key and ours to the query; the softmax cancels the difference."""
    config = hf("bloom").BloomConfig(hidden_size=D, n_head=H)
    table = layers({"attn.out": "dense"})
    for i, name in enumerate(("query", "key", "value")):
        third = partial(lambda i, w: w.unflatten(0, (H, 3, E))[:, i].flatten(0, 1), i)
        table |= layers({f"attn.{name}": "query_key_value"}, third)
    alibi = hf("bloom").build_alibi_tensor(torch.ones(B, T), H, dtype)
    return (
        AttentionWithPositions(Attention(D, H), Alibi(H)),
        hf("bloom").BloomAttention(config, 0),
        table,
        {"mask": Mask(causal=True)},
        {
            "attention_mask": forbid(CAUSAL, dtype),
            "alibi": alibi,
            "residual": torch.zeros(B, T, D, dtype=dtype),
        },
    )


def t5_attention(hf: Find, buckets: int, reach: int, causal: bool) -> nn.Module:
    config = hf("t5").T5Config(
        d_model=D, d_kv=E, num_heads=H, is_decoder=causal, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=reach, attn_implementation="eager",
    )  # fmt: skip
    return hf("t5").T5Attention(config, has_relative_attention_bias=True, layer_idx=0)


def after(method: Callable[..., Any], first: int, count: int) -> dict[str, Any]:
    """How a release of T5 is told that its queries are `count` ones from place `first` on."""
    if "cache_position" in inspect.signature(method).parameters:
        return {"cache_position": torch.arange(first, first + count)}
    return {"past_seen_tokens": first} if first else {}


def t5(hf: Find, dtype: torch.dtype, causal: bool) -> Case:
    """Scores are not scaled, linear layers have no bias, and some distances are beyond the last bucket."""
    names = {"query": "q", "key": "k", "value": "v", "out": "o"}
    table = layers({f"attn.{mine}": theirs for mine, theirs in names.items()}, bias=False)
    relative, oracle = Relative(H, buckets=7, reach=5, causal=causal), t5_attention(hf, 7, 5, causal)
    return (
        AttentionWithPositions(Attention(D, H, score="dot", bias=False), relative),
        oracle,
        table | {"positions.table": ("relative_attention_bias.weight", whole)},
        {"mask": Mask(causal=True) if causal else None},
        {"mask": forbid(CAUSAL, dtype) if causal else None, **after(oracle.forward, 0, T)},
    )


CASES: dict[str, Callable[[Find, torch.dtype], Case]] = {
    **{f"llama {name}": partial(llama, at=at) for name, at in AT.items()},
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "bloom": bloom,
    "t5 encoder": partial(t5, causal=False),
    "t5 decoder": partial(t5, causal=True),
}


@both
@pytest.mark.parametrize("case", CASES)
def test_layer(case: str, dtype: torch.dtype, hf: Find) -> None:
    mine, oracle, table, ours, theirs = CASES[case](hf, dtype)

    def output(x: Tensor) -> Tensor:
        out = oracle(x, **theirs)
        return out[0] if isinstance(out, tuple) else out  # some return attention weights too

    pairs = adopt(mine, oracle, table, dtype)
    match(lambda x: mine(x, **ours), output, noise(dtype, (B, T, D)), pairs)


@pytest.mark.parametrize("dtype", [torch.float32])  # the dtype of the slopes on both sides
@pytest.mark.parametrize("heads", [1, 3, 4, 5, 8, 12])
def test_alibi_slopes(heads: int, dtype: torch.dtype, hf: Find) -> None:
    theirs = hf("bloom").build_alibi_tensor(torch.ones(1, T), heads, dtype)  # (h, 1, k)
    mine = Alibi(heads).bias(torch.tensor([0]), torch.arange(T)).tile((0, 1), (0, T))[0]
    close(-mine, theirs, "bias of a query at the first key")


@both
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 20), (7, 20), (9, 11), (6, 100), (4, 3)])
def test_relative(buckets: int, reach: int, causal: bool, dtype: torch.dtype, hf: Find) -> None:
    """Five queries in the middle of keys that extend far beyond `reach` on both sides."""
    mine = Relative(H, buckets=buckets, reach=reach, causal=causal)
    oracle = t5_attention(hf, buckets, reach, causal)
    table = {"table": ("relative_attention_bias.weight", whole)}
    bias = nn.ModuleDict(
        {"relative_attention_bias": oracle.relative_attention_bias}
    )  # the only part that compute_bias uses
    first, keys = 150, 301
    match(
        lambda: mine.bias(torch.arange(first, first + 5), torch.arange(keys)).tile((0, 5), (0, keys)),
        lambda: oracle.compute_bias(5, keys, **after(oracle.compute_bias, first, 5)),
        [],
        adopt(mine, bias, table, dtype),
    )


@both
@pytest.mark.parametrize(
    "size", [(12, 12), (9, 15), (6, 24)], ids=["same grid", "other grid", "same number, not square"]
)
def test_patches(size: tuple[int, int], dtype: torch.dtype, hf: Find) -> None:
    """Positions of a 4 x 4 grid of 3 x 3 patches, interpolated for images that are not square."""
    config = hf("vit").ViTConfig(hidden_size=D, image_size=12, patch_size=3, num_channels=2)
    mine, oracle = Patches(D, patch=3, channels=2, grid=4), hf("vit").ViTEmbeddings(config)
    table = layers({"project": "patch_embeddings.projection"}) | {
        "cls": ("cls_token", whole),
        "cls_place": ("position_embeddings", lambda w: w[0, :1]),
        "places": ("position_embeddings", lambda w: w[0, 1:]),
    }
    match(
        mine,
        lambda image: oracle(image, interpolate_pos_encoding=True),
        noise(dtype, (B, 2, *size)),
        adopt(mine, oracle, table, dtype),
    )
