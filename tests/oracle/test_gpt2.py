"""Our GPT against GPT-2, Llama, Mistral and Qwen2 of transformers: logits and all gradients."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from compare import HIDDEN, B, D, H, T, Table, adopt, both, layers, match, whole
from torch import Tensor, nn

import clearhead as ch
from clearhead.training.objectives.cross_entropy import linear_cross_entropy
from support.float64_torch import Float64Torch

V, CONTEXT, DEPTH = 11, 9, 2
Case = tuple[nn.Module, nn.Module, Table]


def modeling(name: str) -> ModuleType:
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}")


def gpt2() -> Case:
    """Its linear layers store transposed matrices, one of them q, k and v together; the output matrix is tied."""
    config = modeling("gpt2").GPT2Config(
        vocab_size=V, n_positions=CONTEXT, n_embd=D, n_layer=DEPTH, n_head=H, n_inner=HIDDEN,
        attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    table: Table = {
        "embed.table": ("transformer.wte.weight", whole),
        "positions.table": ("transformer.wpe.weight", whole),
        **layers({"norm": "transformer.ln_f"}),
    }
    for i in range(DEPTH):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        table |= layers({f"{ours}.attn_norm": f"{theirs}.ln_1", f"{ours}.mlp_norm": f"{theirs}.ln_2"})
        linear = {"attn.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
        table |= layers({f"{ours}.{a}": f"{theirs}.{b}" for a, b in linear.items()}, torch.t)
        for part, name in enumerate(("query", "key", "value")):
            third = partial(lambda part, w: w.chunk(3, -1)[part].t(), part)
            table |= layers({f"{ours}.attn.{name}": f"{theirs}.attn.c_attn"}, third)
    mine = ch.build("gpt", vocab=V, context=CONTEXT, width=D, depth=DEPTH, heads=H, hidden=HIDDEN)
    return mine, modeling("gpt2").GPT2LMHeadModel(config), table


WIDTH, HEADS = 24, 4  # rotary positions rotate pairs of columns, so the head width is even


def like_llama(name: str, kind: str, head: int = WIDTH // HEADS, bias: bool = False, **ours: Any) -> Case:
    """Llama, and variants of it: another head width, biases of q, k and v, a window, another base."""
    sizes: dict[str, Any] = {
        "vocab_size": V, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-3, "tie_word_embeddings": False, "attn_implementation": "eager", "pad_token_id": None,
        "bos_token_id": 0, "eos_token_id": 0, "head_dim": head,
        "rope_parameters": {"rope_type": "default", "rope_theta": ours.get("base", 10_000.0)},
    }  # fmt: skip
    if "window" in ours:
        sizes |= {"sliding_window": ours["window"]}
        if name == "qwen2":
            sizes |= {"use_sliding_window": True, "max_window_layers": 0}
    config = getattr(modeling(name), f"{kind}Config")(**sizes)
    names = {
        "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "attn.out": "self_attn.o_proj",
        "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    }  # fmt: skip
    qkv = {"attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj"}
    table: Table = {"embed.table": ("model.embed_tokens.weight", whole)}
    table |= layers({"norm": "model.norm", "head": "lm_head"}, bias=False)
    for i in range(DEPTH):
        table |= layers({f"blocks.{i}.{a}": f"model.layers.{i}.{b}" for a, b in names.items()}, bias=False)
        table |= layers({f"blocks.{i}.{a}": f"model.layers.{i}.{b}" for a, b in qkv.items()}, bias=bias)
    mine = ch.build(
        "gpt", vocab=V, context=CONTEXT, width=WIDTH, depth=DEPTH, heads=HEADS, kv_heads=2, head=head, hidden=HIDDEN,
        positions="rotary", norm="rms", eps=1e-3, mlp="swiglu", bias="qkv" if bias else False, tied=False, **ours,
    )  # fmt: skip
    return mine, getattr(modeling(name), f"{kind}ForCausalLM")(config), table


CASES: dict[str, Callable[[], Case]] = {
    "gpt2": gpt2,
    "llama": partial(like_llama, "llama", "Llama"),
    "llama, wide heads, another base": partial(like_llama, "llama", "Llama", head=10, base=500.0),
    "mistral, a window": partial(like_llama, "mistral", "Mistral", window=3, base=1e6),
    "qwen2": partial(like_llama, "qwen2", "Qwen2", bias=True),
    "qwen2, a window": partial(like_llama, "qwen2", "Qwen2", bias=True, window=4),
}
models = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def in_float64(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.callspec.params["dtype"] == torch.float64:
        for name in ("llama", "mistral", "qwen2"):
            monkeypatch.setattr(modeling(name), "torch", Float64Torch())
        monkeypatch.setattr(pytest.importorskip("transformers.modeling_rope_utils"), "torch", Float64Torch())
        monkeypatch.setattr(Tensor, "float", Tensor.double)


def ids(rows: int = B, tokens: int = T) -> Tensor:
    return torch.randint(0, V, (rows, tokens), generator=torch.Generator().manual_seed(3))


@both
@models
@pytest.mark.parametrize("tokens", [1, T, CONTEXT])
def test_logits_and_all_gradients(case: str, tokens: int, dtype: torch.dtype) -> None:
    mine, theirs, table = CASES[case]()
    pairs = adopt(mine, theirs, table, dtype)
    x = ids(tokens=tokens)
    match(lambda: mine(x), lambda: theirs(x).logits, [], pairs)


@both
@models
def test_packed_documents_equal_separate_ones(case: str, dtype: torch.dtype) -> None:
    mine, theirs, table = CASES[case]()
    pairs = adopt(mine, theirs, table, dtype)
    lengths = (3, 4, 2)
    x = ids(rows=1, tokens=sum(lengths))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    at = torch.cat([torch.arange(n) for n in lengths])[None]
    match(
        lambda: mine(x, documents=documents, at=at),
        lambda: torch.cat([theirs(part).logits for part in x.split(lengths, dim=1)], dim=1),
        [],
        pairs,
    )


@pytest.mark.parametrize("dtype", [torch.float32])  # theirs computes the loss in float32, whatever the model's dtype
@models
def test_next_token_loss(case: str, dtype: torch.dtype) -> None:
    """Their mean over shifted labels is our sum over targets, divided by the number of targets that count."""
    mine, theirs, table = CASES[case]()
    pairs = adopt(mine, theirs, table, dtype)
    x = ids(tokens=T + 1)
    labels = x.masked_fill(torch.rand(x.shape, generator=torch.Generator().manual_seed(4)) < 0.3, -100)
    counted = int((labels[:, 1:] != -100).sum())
    match(
        lambda: linear_cross_entropy(mine.states(x[:, :-1]), mine.head.weight, labels[:, 1:]) / counted,
        lambda: theirs(x, labels=labels).loss,
        [],
        pairs,
    )
