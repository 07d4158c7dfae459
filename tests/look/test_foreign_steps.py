"""Decoding steps of foreign models: they join into one text, and have the distances of one pass over it."""

import pytest
import torch
import torch.nn.functional as F
from foreign_models import PAIRS, VOCAB, build, inputs
from torch import Tensor, nn

import clearhead as ch

B, H, E = 2, 2, 4
WIDTH = H * E


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "bloom"])
def test_the_steps_of_an_eager_model_join_and_have_the_distances_of_one_pass(name):
    model, ids = build(name, "eager"), inputs(name)["input_ids"][:, :4]
    with ch.watch(model, "**.weights", "**.distance", "**.rms") as tape:
        written = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
    with ch.watch(model, "**.weights", "**.distance", "**.rms") as whole:
        model(written[:, :-1])
    for address in whole.match("**.weights"):
        assert len(tape.texts(address)) == 1
        for leaf in ("distance", "rms"):
            at = address.removesuffix("weights") + leaf
            torch.testing.assert_close(tape[at], whole[at], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_steps_of_cross_attention_have_the_distances_of_one_pass(name, how):
    model, ids = build(name, how), inputs(name)["input_ids"]
    with ch.watch(model, "**.distance") as tape:
        written = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    with ch.watch(model, "**.distance") as whole:
        model(input_ids=ids, decoder_input_ids=written[:, :-1])
    cross = [at for at in whole.names if "EncDec" in at or "encoder_attn" in at]
    assert len(cross) == 2
    for at in whole.names:
        torch.testing.assert_close(tape[at], whole[at], rtol=1e-4, atol=1e-4)
    with ch.watch(model, cross[1]) as alone:  # self-attention, which tells that these are steps, is not recorded
        model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    torch.testing.assert_close(alone[cross[1]], whole[cross[1]], rtol=1e-4, atol=1e-4)


class Cached(nn.Module):
    """Causal attention written by hand, with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, E)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        n, m = q.shape[2], k.shape[2]
        scores = (q @ k.mT).masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), (k, v)


@torch.no_grad()
def test_attention_by_hand_with_a_cache_counts_positions_from_the_first_key():
    torch.manual_seed(0)
    model, x = Cached(), torch.randn(B, 7, WIDTH)
    with ch.watch(model, "weights", "distance") as whole:
        model(x)
    with ch.watch(model, "weights", "distance") as tape:
        _, cache = model(x[:, :3])
        _, cache = model(x[:, 3:5], cache)
        for i in (5, 6):
            _, cache = model(x[:, i : i + 1], cache)
    torch.testing.assert_close(tape["distance"], whole["distance"])
    torch.testing.assert_close(tape["weights"].dense(), whole["weights"].dense())


@torch.no_grad()
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("lengths", [(8, 5), (5, 8), (5, 5)])
def test_texts_that_are_decoded_in_turn_with_their_own_caches_do_not_join(how, lengths):
    model = build("gpt2", how)
    rows = [torch.randint(5, VOCAB, (1, n)) for n in lengths]
    with ch.watch(model, "transformer.h.0.attn.weights") as tape:
        caches = [model(row, use_cache=True).past_key_values for row in rows]
        for cache in caches:
            model(rows[0][:, :1], past_key_values=cache, use_cache=True)
    found = [map.shape[2:] for map in tape.texts("transformer.h.0.attn.weights")]
    first, second = lengths
    # The second prompt and the step of the first text are neighbours, and so are the two steps.
    assert found == [(first, first), (second, second), (1, first + 1), (1, second + 1)]


class Cross(nn.Module):
    """Cross-attention by hand, of tokens (n, b, d) or (b, n, d), or of an image (b, y, x, d)."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = (z.flatten(1, 2) if z.ndim == 4 else z.transpose(0, 1) if self.first else z for z in (x, y))
        q, k = (z.unflatten(-1, (H, E)).transpose(1, 2) for z in (x, y))
        return F.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("kind", ["batch first", "tokens first", "image"])
def test_keys_that_a_module_was_given_count_from_0_whatever_their_axes(kind):
    model, x, y = Cross(kind == "tokens first"), torch.randn(B, 3, WIDTH), torch.randn(B, 9, WIDTH)
    if kind == "tokens first":
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    if kind == "image":
        y = y.unflatten(1, (3, 3))
    with ch.watch(model, "distance", "weights") as tape:
        model(x, y)
    far = (torch.arange(3)[:, None] - torch.arange(9)).abs()
    torch.testing.assert_close(tape["distance"], (tape["weights"].dense() * far).sum(-1))


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3, 5, 7])  # at some step there are as many keys as rows
def test_rows_are_not_taken_for_tokens(rows):
    model, ids = build("llama"), torch.randint(5, VOCAB, (rows, 3))
    with ch.watch(model, "**.distance") as tape:
        written = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)
    with ch.watch(model, "**.distance") as whole:
        model(written[:, :-1])
    for at in whole.names:
        torch.testing.assert_close(tape[at], whole[at], rtol=1e-4, atol=1e-4)
