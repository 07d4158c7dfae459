"""Our layers against torch.nn, and against the formulas of the papers written out."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from compare import (
    CAUSAL,
    HIDDEN,
    B,
    D,
    E,
    H,
    T,
    Table,
    adopt,
    adopt_twin,
    both,
    close,
    layers,
    match,
    noise,
    whole,
)
from torch import Tensor, nn

import clearhead
from clearhead.layers import (
    MLP,
    Additive,
    Attention,
    Bilinear,
    Block,
    Mask,
    Recurrent,
    Rotary,
    attend,
    make_norm,
)

S, C = 4, 11  # tokens and width of another sequence that is attended to
LENGTHS = {T: (3, 6), S: (4, 2)}  # real tokens of each row, by the length it is padded to


def padding(tokens: int) -> Tensor:
    """True for padding, which torch must not attend to (our masks are True where attention is allowed)."""
    return torch.arange(tokens) >= torch.tensor(LENGTHS[tokens])[:, None]


def some(*shape: int) -> Tensor:
    """A random mask in which every query may attend to the first key."""
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    allowed[..., 0] = True
    return allowed


def multihead(mine: str, theirs: str, *, fused: bool = True) -> Table:
    """nn.MultiheadAttention holds q, k and v in one matrix, unless the keys have another width."""
    table = layers({f"{mine}out": f"{theirs}out_proj"})
    for i, name in enumerate(("query", "key", "value")):
        third = partial(lambda i, w: w.chunk(3)[i], i)
        alone = (f"{theirs}{name[0]}_proj_weight", whole)
        table[f"{mine}{name}.weight"] = (f"{theirs}in_proj_weight", third) if fused else alone
        table[f"{mine}{name}.bias"] = (f"{theirs}in_proj_bias", third)
    return table


MASKS = {  # our mask, and torch's arguments for the same
    "free": (None, {}),
    "causal": (Mask(causal=True), {"attn_mask": ~CAUSAL}),
    "lengths": (Mask(lengths=LENGTHS[T]), {"key_padding_mask": padding(T)}),
    "causal, lengths": (
        Mask(causal=True, lengths=LENGTHS[T]),
        {"attn_mask": ~CAUSAL, "key_padding_mask": padding(T)},
    ),
    "allow": (Mask(allow=some(T, T)), {"attn_mask": ~some(T, T)}),
    "allow per head": (Mask(allow=some(B, H, T, T)), {"attn_mask": ~some(B, H, T, T).flatten(0, 1)}),
}
CROSS_MASKS = {
    "cross": (None, {}),
    "cross lengths": (Mask(lengths=LENGTHS[S]), {"key_padding_mask": padding(S)}),
    "cross allow": (Mask(allow=some(T, S)), {"attn_mask": ~some(T, S)}),
}
CASES = [(case, None) for case in MASKS] + list(product(CROSS_MASKS, (D, C)))


@both
@pytest.mark.parametrize(("case", "context"), CASES)
def test_attention_equals_multihead_attention(case: str, context: int | None, dtype: torch.dtype) -> None:
    """nn.MultiheadAttention: outputs, gradients, and the weights that `watch` records."""
    mask, theirs = (MASKS | CROSS_MASKS)[case]
    mine = Attention(D, H, context=context)
    oracle = nn.MultiheadAttention(D, H, kdim=context, vdim=context, batch_first=True)
    pairs = adopt(mine, oracle, multihead("", "", fused=context != C), dtype)
    inputs = noise(dtype, (B, T, D), *([(B, S, context)] if context else []))

    def ours(x: Tensor, *y: Tensor) -> Tensor:
        return mine(x, *y, mask=mask)

    def torchs(x: Tensor, y: Tensor | None = None, **how: bool) -> tuple[Tensor, Tensor | None]:
        y = x if y is None else y
        return oracle(x, y, y, need_weights=bool(how), **how, **theirs)

    match(ours, lambda *x: torchs(*x)[0], inputs, pairs)
    with torch.no_grad(), clearhead.watch(mine, "weights") as tape:
        ours(*inputs)
    weights = tape["weights"].dense()
    for recorded, average in ((weights, False), (weights.mean(1), True)):
        expected = torchs(*inputs, average_attn_weights=average)[1]
        close(recorded, expected, f"weights, {average=}")


@both
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("cross", [False, True], ids=["encoder", "decoder"])
def test_a_block_equals_an_encoder_or_decoder_layer(
    cross: bool, order: str, activation: str, dtype: torch.dtype
) -> None:
    """nn.TransformerEncoderLayer under two masks, and nn.TransformerDecoderLayer over a padded memory."""
    mine = Block(D, H, hidden=HIDDEN, order=order, mlp=activation, cross=cross)
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    oracle = kind(D, H, HIDDEN, 0.0, activation, batch_first=True, norm_first=order == "pre")
    names = {"attn_norm": "norm1", "mlp.up": "linear1", "mlp.down": "linear2"}
    table = multihead("attn.", "self_attn.")
    if cross:
        names |= {"cross_norm": "norm2", "mlp_norm": "norm3"}
        table |= multihead("cross.", "multihead_attn.")
        ours = {"mask": Mask(causal=True), "context_mask": Mask(lengths=LENGTHS[S])}
        theirs = {"tgt_mask": ~CAUSAL, "memory_key_padding_mask": padding(S)}
    else:
        names |= {"mlp_norm": "norm2"}
        ours = {"mask": Mask(causal=True, lengths=LENGTHS[T])}
        theirs = {"src_mask": ~CAUSAL, "src_key_padding_mask": padding(T)}
    match(
        lambda *x: mine(*x, **ours),
        lambda *x: oracle(*x, **theirs),
        noise(dtype, (B, T, D), *([(B, S, D)] if cross else [])),
        adopt(mine, oracle, table | layers(names), dtype),
    )


CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def flat(out: Tensor, state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return out, *(state if isinstance(state, tuple) else (state,))


@both
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_padded_rows_of_a_recurrent_network_equal_rows_read_alone(
    cell: str, depth: int, bidirectional: bool, dtype: torch.dtype
) -> None:
    """Each row of a padded batch equals torch's result for that row alone, whatever is in the padding."""
    mine = Recurrent(D, C, cell=cell, depth=depth, bidirectional=bidirectional)
    oracle = CELLS[cell](D, C, depth, batch_first=True, bidirectional=bidirectional)
    table = {f"cell.{name}": (name, whole) for name, _ in oracle.named_parameters()}
    start = (depth * (1 + bidirectional), B, C)
    x, *state = noise(dtype, (B, T, D), *([start] * (2 if cell == "lstm" else 1)))
    x.data[padding(T)] = float("nan")

    def one(state: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        return tuple(state) if cell == "lstm" else state[0]

    def together(x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return flat(*mine.run(x, one(state), lengths=LENGTHS[T]))

    def alone(x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        rows = [
            flat(*oracle(x[i : i + 1, :n], one([s[:, i : i + 1].contiguous() for s in state])))
            for i, n in enumerate(LENGTHS[T])
        ]
        outs, *states = zip(*rows, strict=True)
        padded = torch.cat([F.pad(out, (0, 0, 0, T - out.shape[1])) for out in outs])
        return padded, *(torch.cat(s, dim=1) for s in states)

    match(together, alone, [x, *state], adopt(mine, oracle, table, dtype))


def rnn_step(x: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x + u), c


def gru_step(x: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    (xr, xz, xn), (ur, uz, un) = x.chunk(3, -1), u.chunk(3, -1)
    r, z = torch.sigmoid(xr + ur), torch.sigmoid(xz + uz)
    return (1 - z) * torch.tanh(xn + r * un) + z * h, c


def lstm_step(x: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x + u).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.parametrize(("cell", "step"), [("rnn", rnn_step), ("gru", gru_step), ("lstm", lstm_step)])
def test_recurrent_cells_equal_their_equations(cell: str, step: Callable) -> None:
    mine = Recurrent(D, C, cell=cell)
    written = deepcopy(mine)

    def write(x: Tensor) -> tuple[Tensor, ...]:
        w, outs = written.cell, []
        h = c = x.new_zeros(B, C)
        for token in x.unbind(1):
            h, c = step(token @ w.weight_ih_l0.T + w.bias_ih_l0, h @ w.weight_hh_l0.T + w.bias_hh_l0, h, c)
            outs.append(h)
        return torch.stack(outs, 1), h[None], *([c[None]] if cell == "lstm" else [])

    pairs = adopt_twin(mine, written, torch.float64)
    match(lambda x: flat(*mine.run(x)), write, noise(torch.float64, (B, T, D)), pairs)


@both
@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_equal_their_formulas(kind: str, eps: float, dtype: torch.dtype) -> None:
    """Mean and variance are sums over the width divided by the width, not by the width less one."""
    mine = make_norm(kind, D, eps=eps)
    written = deepcopy(mine)

    def write(x: Tensor) -> Tensor:
        if kind == "layer":
            x = x - x.sum(-1, keepdim=True) / D
        x = x / torch.sqrt((x * x).sum(-1, keepdim=True) / D + eps) * written.weight
        return x + written.bias if kind == "layer" else x

    match(mine, write, noise(dtype, (B, T, D)), adopt_twin(mine, written, dtype))


FORMULAS = {
    "relu": lambda x: x * (x > 0),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
}


@both
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [*FORMULAS, "swiglu"])
def test_an_mlp_equals_its_formula(kind: str, bias: bool, dtype: torch.dtype) -> None:
    mine = MLP(D, HIDDEN, kind=kind, bias=bias)
    written = deepcopy(mine)

    def write(x: Tensor) -> Tensor:
        if kind == "swiglu":
            return written.down(FORMULAS["silu"](written.gate(x)) * written.up(x))
        return written.down(FORMULAS[kind](written.up(x)))

    match(mine, write, noise(dtype, (B, T, D)), adopt_twin(mine, written, dtype))


def looped(score: Callable[[int, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eq. 1 one query, one key at a time; each key head serves neighbouring query heads."""
    group, rows = q.shape[1] // k.shape[1], []
    for b, h, i in product(*map(range, q.shape[:3])):
        keys, values = k[b, h // group], v[b, h // group]
        weights = torch.stack([score(h, q[b, h, i], key) for key in keys]).exp()
        rows.append(sum(w * value for w, value in zip(weights / weights.sum(), values, strict=True)))
    return torch.stack(rows).reshape(*q.shape[:3], -1)


# v . tanh(q + k) and q W k, for the score of head h
WRITTEN = {
    Additive: lambda w: lambda h, q, k: sum(w.v[h, e] * torch.tanh(q[e] + k[e]) for e in range(E)),
    Bilinear: lambda w: (
        lambda h, q, k: sum(q[e] * w.weight[h, e, f] * k[f] for e, f in product(*map(range, w.weight.shape[1:])))
    ),
}


@pytest.mark.parametrize(("kind", "key"), [(Additive, None), (Bilinear, None), (Bilinear, 2)])
def test_learned_scores_equal_their_formulas(kind: type[nn.Module], key: int | None) -> None:
    """Six query heads over three key heads; keys of a bilinear score may have another head dimension."""
    mine = kind(E, 2 * H) if key is None else kind(E, 2 * H, key=key)
    written = deepcopy(mine)
    match(
        lambda q, k, v: attend(q, k, v, score=mine),
        lambda q, k, v: looped(WRITTEN[kind](written), q, k, v),
        noise(torch.float64, (B, 2 * H, 3, E), (B, H, S, key or E), (B, H, S, 2)),
        adopt_twin(mine, written, torch.float64),
    )


@both
def test_cosine_attention_equals_its_formula(dtype: torch.dtype) -> None:
    mine = Attention(D, H, score="cosine")
    written = deepcopy(mine)

    def write(x: Tensor) -> Tensor:
        parts = (written.query, written.key, written.value)
        q, k, v = (part(x).unflatten(-1, (H, E)).transpose(1, 2) for part in parts)
        scores = written.sharpness * F.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
        return written.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    match(mine, write, noise(dtype, (B, T, D)), adopt_twin(mine, written, dtype))


@both
def test_a_linear_score_ignores_the_query(dtype: torch.dtype) -> None:
    """In w . [s; h] the query adds the same number to all its scores, which the softmax ignores.

    So the query has no effect and gets no gradient; the tanh of Bahdanau's score is what lets it matter.
    """
    inputs = noise(dtype, (B, H, T, E), (B, H, S, E), (B, H, S, 2), (2 * E,))

    def linear(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attend(q, k, v, score=lambda q, k: (q @ w[:E])[..., None] + (k @ w[E:])[..., None, :])

    def without_query(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return ((k @ w[E:]).softmax(-1)[..., None, :] @ v).expand(-1, -1, T, -1)

    match(linear, without_query, inputs)
    q, k, v, _ = inputs
    torch.manual_seed(0)
    additive = attend(q, k, v, score=Additive(E, H).to(dtype))
    assert (additive - additive[:, :, :1]).abs().amax((0, 1, 3))[1:].min() > 1e-2


def rotated(x: Tensor, at: Tensor) -> Tensor:
    """Eq. 13 of Su et al. 2021: neighbouring columns are a complex number, times e^(i m theta)."""
    pairs = x.shape[-1] // 2
    theta = torch.tensor([10_000.0 ** (-i / pairs) for i in range(pairs)], dtype=torch.float64)
    angle = (at[..., None] * theta).reshape(-1, 1, x.shape[2], pairs)
    number = torch.view_as_complex(x.double().unflatten(-1, (pairs, 2)))
    return torch.view_as_real(number * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


@both
@pytest.mark.parametrize("at", [torch.arange(90, 90 + T), torch.arange(B * T).reshape(B, T)], ids=["shared", "per row"])
def test_rotary_positions_equal_products_of_complex_numbers(at: Tensor, dtype: torch.dtype) -> None:
    match(
        lambda q, k: Rotary(6, pairs="neighbours").turn(q, k, at),
        lambda q, k: (rotated(q, at), rotated(k, at)),
        noise(dtype, (B, 4, T, 6), (B, 2, T, 6)),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_rotary_angles_are_exact_in_half_precision(dtype: torch.dtype) -> None:
    """A module in half precision keeps its exact angles: only the rotated vectors are rounded."""
    at = torch.tensor([4097])
    x = noise(torch.float64, (B, H, 1, 6))[0].detach().to(dtype)
    exact = rotated(x.double(), at)
    mine, _ = Rotary(6, pairs="neighbours").to(dtype).turn(x, x, at)
    room = torch.finfo(dtype).eps * float(exact.abs().max())  # the one rounding of the result
    torch.testing.assert_close(mine.double(), exact, rtol=0.0, atol=room)
