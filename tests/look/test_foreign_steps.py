"""Decoding steps of foreign models: they join into one text, and have the distances of one pass over it."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from torch import Tensor, nn

import clearhead as ch
from support.foreign_models import PAIRS, VOCAB, build, inputs

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


# Steps that do not follow one another


def llama_text(tokens: int) -> tuple[nn.Module, Tensor]:
    return build("llama"), torch.randint(5, VOCAB, (1, tokens), generator=torch.Generator().manual_seed(tokens))


LEAVES = ("weights", "heads", "entropy", "distance", "position", "sink", "peak")


def same_as_one_pass(tape, model: nn.Module, text: Tensor, leaves=LEAVES) -> None:
    with ch.watch(model, *(f"**.{leaf}" for leaf in leaves)) as whole:
        model(text)
    assert whole.names
    for name in whole.names:
        got, want = (x[name].dense() if name.endswith("weights") else x[name] for x in (tape, whole))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


DRAFTS = {"prompt lookup": {"prompt_lookup_num_tokens": 3}, "an assistant": {}}


@torch.no_grad()
@pytest.mark.parametrize("kind", DRAFTS)
def test_rows_of_rejected_drafts_are_replaced(kind):
    model = build("llama")
    model.generation_config.eos_token_id = VOCAB  # which is never written
    ids = torch.tensor([[7, 8, 9, 10, 7, 8, 9, 10, 7, 8, 9]])
    how = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, **DRAFTS[kind]}
    if kind == "an assistant":
        how["assistant_model"] = type(model)(model.config).eval()
    with ch.watch(model, *(f"**.{leaf}" for leaf in LEAVES), "**.received") as tape:
        written = model.generate(ids, **how)
    name = "model.layers.0.self_attn.weights"
    assert sum(call.shape[2] for call in tape.calls(name)) > written.shape[1] - 1  # some drafts were rejected
    same_as_one_pass(tape, model, written[:, :-1])
    with pytest.raises(ValueError, match=r"rejected drafts: .* or watch weights"):
        tape["model.layers.0.self_attn.received"]
    torch.testing.assert_close(tape[name].received(), tape[name].dense().sum(-2))


@torch.no_grad()
def test_a_cropped_cache_rewinds_the_text():
    model, text = llama_text(9)
    cache = tf.DynamicCache(config=model.config)
    with ch.watch(model, *(f"**.{leaf}" for leaf in LEAVES)) as tape:
        model(text[:, :4], past_key_values=cache)
        model(text[:, 2:6].flip(1), past_key_values=cache)
        model(text[:, :1], past_key_values=cache)
        cache.crop(-3)
        model(text[:, 5:8], past_key_values=cache)
    same_as_one_pass(tape, model, torch.cat([text[:, :4], text[:, 2:6].flip(1)[:, :2], text[:, 5:8]], dim=1))


ALTERNATIVES = {
    "copies": lambda model, cache, ids: model(ids, past_key_values=copy.deepcopy(cache)),
    "crop": lambda model, cache, ids: (model(ids, past_key_values=cache), cache.crop(-ids.shape[1])),
}


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("kind", ALTERNATIVES)
def test_alternatives_after_a_shared_prefix_are_texts_of_their_own(kind, tokens):
    model, text = llama_text(7)
    cache = tf.DynamicCache(config=model.config)
    model(text, past_key_values=cache)
    with ch.watch(model, "model.layers.0.self_attn.weights") as tape:
        for i in range(3):
            ALTERNATIVES[kind](model, cache, text[:, i : i + tokens])
    found = [map.shape[2:] for map in tape.texts("model.layers.0.self_attn.weights")]
    assert found == [(tokens, 7 + tokens)] * 3


class Core(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Pool(nn.Module):
    """Attention pooling with one learned query; `core` calls attention in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.kv, self.core = nn.Parameter(torch.randn(1, H, 1, E)), nn.Linear(WIDTH, 2 * WIDTH), Core()

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).unflatten(-1, (2, H, E)).permute(2, 0, 3, 1, 4)
        return self.core(self.query.expand(len(x), -1, -1, -1), k, v)


@torch.no_grad()
def test_pooling_with_one_query_is_no_decoding_step():
    model = Pool()
    with ch.watch(model, "core.weights", "core.distance") as tape:
        for _ in range(3):
            model(torch.randn(B, 5, WIDTH))
    assert [map.shape for map in tape.texts("core.weights")] == [(B, H, 1, 5)] * 3
    for map, distance in zip(tape.texts("core.weights"), tape.texts("core.distance"), strict=True):
        torch.testing.assert_close(
            distance, map.dense() @ torch.arange(5.0)
        )  # keys count from 0, and so does the query


@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_keys_of_a_sliding_window_are_placed_in_the_text(name, cache):
    model, ids = build(name), inputs(name)["input_ids"]
    leaves = (*LEAVES, "rms", "maximum", "received")
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    if cache == "static":
        how["cache_implementation"] = "static"
    with ch.watch(model, *(f"**.{leaf}" for leaf in leaves)) as tape:
        written = model.generate(ids, **how)
    if cache == "dynamic":
        same_as_one_pass(tape, model, written[:, :-1], leaves)
    with ch.watch(model, "**.weights") as whole:
        model(written[:, :-1])
    for at, map in whole.match("**.weights").items():
        n, dense, steps = written.shape[1] - 1, map.dense(), tape[at]
        torch.testing.assert_close(steps.dense()[..., :n], dense, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.tile((6, 12), (5, 9)), dense[:, :, 6:12, 5:9], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.mass([2, 9, 11]), dense[..., [2, 9, 11]].sum(-1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.top(3)[0], dense.topk(3)[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(steps.pool(4).sum(-1), torch.ones(2, 4, 4))
        assert torch.equal(steps.top(1)[1][..., 0], dense.argmax(-1))
        torch.testing.assert_close(steps.received()[..., :n], dense.sum(-2), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_part_of_a_model_is_placed_by_its_own_layer_of_the_cache():
    model, text = llama_text(6)
    part, cache = model.model.layers[1], tf.DynamicCache(config=model.config)
    with ch.watch(part, "**.weights", "**.distance") as tape:
        model(text[:, :4], past_key_values=cache)
        for i in (4, 5):
            model(text[:, i : i + 1], past_key_values=cache)
    with ch.watch(part, "**.weights", "**.distance") as whole:
        model(text)
    torch.testing.assert_close(tape["self_attn.distance"], whole["self_attn.distance"], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_steps_of_which_a_function_keeps_less_do_not_join():
    model, text = llama_text(4)
    name = "model.layers.0.self_attn.entropy"
    with ch.watch(model, name, keep=lambda entropy: entropy.mean(-1)) as tape:
        model.generate(text, max_new_tokens=3, min_new_tokens=3, pad_token_id=0)
    with pytest.raises(ValueError, match=r"do not join: take them apart with tape\.calls"):
        tape[name]


# Grouped heads, beside hooks on the projection that mixes the heads

STEPS = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
STATIC, BEAMS, SAMPLES = {"cache_implementation": "static"}, {"num_beams": 3}, {"do_sample": True}
DECODING = {  # the model, its implementation, on which side its second row is padded, how it is decoded
    "left padding": ("llama", "sdpa", "left", {}),
    "right padding": ("llama", "sdpa", "right", {}),
    "static cache": ("llama", "sdpa", "", STATIC),
    "static cache, left padding": ("llama", "sdpa", "left", STATIC),
    "beams": ("llama", "sdpa", "left", BEAMS),
    "beams, static cache": ("llama", "sdpa", "", {**BEAMS, **STATIC}),
    "samples": ("llama", "sdpa", "left", SAMPLES),
    "no cache": ("llama", "sdpa", "left", {"use_cache": False}),
    "repeated keys": ("llama", "eager", "left", {}),
    "repeated keys, static cache": ("llama", "eager", "", STATIC),
    "one key head": ("llama, 1 key head", "sdpa", "left", {}),
    "three heads per key head": ("llama, 6 heads", "sdpa", "left", {}),
    "window": ("mistral", "sdpa", "", {}),
    "window, left padding": ("mistral", "sdpa", "left", {}),
    "window, static cache": ("mistral", "sdpa", "", STATIC),
    "window, beams": ("mistral", "sdpa", "", BEAMS),
    "window, repeated keys": ("mistral", "eager", "left", {}),
    "norms of queries": ("qwen3", "sdpa", "left", {}),
    "biases": ("qwen2", "sdpa", "left", STATIC),
    "windows in some layers": ("gemma3", "sdpa", "left", {}),
    "windows in some layers, static cache": ("gemma3", "sdpa", "", STATIC),
    "soft caps": ("gemma2", "eager", "left", {}),
    "sinks": ("gpt-oss", "eager", "left", {}),
    "multi-query": ("falcon", "sdpa", "left", {}),
}
MIXERS = {"falcon": ("transformer.h.1.self_attention", "dense")}


class Decoding:
    """One model that continues two rows of ids in one of these ways."""

    def __init__(self, name: str, how: str, side: str, options: dict) -> None:
        self.model, self.options = build(name, how), {**STEPS, **options}
        self.given = inputs(name, padded=bool(side), left=side == "left")
        self.path, mixer = MIXERS.get(name, ("model.layers.1.self_attn", "o_proj"))
        self.mixer = self.model.get_submodule(f"{self.path}.{mixer}")

    @torch.no_grad()
    def write(self, model: nn.Module | None = None, **more) -> Tensor:
        torch.manual_seed(3)
        with torch.compiler.set_stance("force_eager"):
            return (model or self.model).generate(**self.given, **self.options, **more)

    def write_without(self, head: int) -> Tensor:
        """What is written if a hook sets the slice of one head to 0 before the heads are mixed."""

        def zero(_, args):
            x = args[0].clone()
            x.unflatten(-1, (self.model.config.num_attention_heads, -1))[..., head, :] = 0.0
            return (x,)

        hook = self.mixer.register_forward_pre_hook(zero)
        written = self.write()
        hook.remove()
        return written


@pytest.mark.parametrize("case", DECODING)
def test_silencing_a_head_while_decoding_writes_what_a_hook_writes(case):
    decoding = Decoding(*DECODING[case])
    for head in (1, 3):
        expected = decoding.write_without(head)
        with ch.edit(decoding.model, {f"{decoding.path}.heads": ch.look.silence([head])}):
            assert torch.equal(decoding.write(), expected)
    assert not torch.equal(expected, decoding.write())


@pytest.mark.parametrize("case", DECODING)
def test_the_maps_of_decoding_steps_are_those_of_eager_attention(case):
    name, how, side, options = DECODING[case]
    decoding, eager = Decoding(name, how, side, options), build(name, "eager")
    with ch.watch(decoding.model, "**.weights", "**.entropy", "**.heads") as tape:
        written = decoding.write()
    assert torch.equal(written, decoding.write())
    kept = decoding.write(eager, output_attentions=True, return_dict_in_generate=True)
    assert torch.equal(kept.sequences, written)
    for layer, at in enumerate(name for name in tape if name.endswith("weights")):
        if "use_cache" not in options:
            assert len(tape.texts(at)) == 1
        calls = tape.calls(at)
        assert len(calls) == len(kept.attentions) == STEPS["max_new_tokens"]
        for step, (map, expected) in enumerate(zip(calls, kept.attentions, strict=True)):
            expected = in_the_text(expected[layer], map.shape[3])
            assert map.shape == expected.shape
            assert map.shape[1] == decoding.model.config.num_attention_heads
            assert step == 0 or "use_cache" in options or map.shape[2] == 1
            real = real_queries(decoding.given, expected)
            torch.testing.assert_close(map.dense()[real], expected[real], rtol=1e-4, atol=1e-5)
            entropy = tape.calls(at.removesuffix("weights") + "entropy")[step]
            torch.testing.assert_close(entropy[real], torch.special.entr(expected).sum(-1)[real], rtol=1e-4, atol=1e-4)


def in_the_text(weights: Tensor, keys: int) -> Tensor:
    """Weights over as many keys of a text: a window forgets the first, and a static cache has places for later ones."""
    more = keys - weights.shape[3]
    assert more >= 0 or not weights[..., more:].any()
    return F.pad(weights, (more, 0)) if more > 0 else weights[..., :keys]


def real_queries(given: dict, weights: Tensor) -> Tensor:
    """Which queries (b, h, q) of a step are those of tokens: padding tokens attend to anything."""
    rows, heads, queries, _ = weights.shape
    real = torch.ones(rows, queries, dtype=torch.bool)
    if "attention_mask" in given and queries > 1:
        mask = given["attention_mask"].bool()
        real[:, : mask.shape[1]] = mask.repeat_interleave(rows // len(mask), 0)
    return real[:, None].expand(-1, heads, -1)


def spread(x: Tensor) -> Tensor:
    """Every number times another one, so that numbers in another place come out differently."""
    return x * torch.linspace(0.5, 2, x.numel()).view(x.shape)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
@pytest.mark.parametrize("leaf", ["q", "k", "v", "scores", "weights", "heads"])
def test_edits_of_a_step_are_those_of_repeated_keys(leaf, monkeypatch):
    """`transformers` repeats the keys where a call has several queries, so that the last of two has the same edit."""
    outs = {}
    for name in ("llama", "llama, 1 key head"):
        for force in ("0", "1"):  # the second: torch repeats the keys, instead of transformers packing the heads
            monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", force)
            model, given = build(name), inputs(name, padded=True)
            cache = model(**given).past_key_values
            mask = F.pad(given["attention_mask"], (0, 1), value=1)
            step = {"input_ids": given["input_ids"][:, :1], "attention_mask": mask, "past_key_values": cache}
            with ch.edit(model, {f"model.layers.0.self_attn.{leaf}": spread}), ch.watch(model, "**.heads") as tape:
                outs[force] = model(**step).logits
            assert tape["model.layers.0.self_attn.heads"].shape == (2, 4, 1, 6)
        torch.testing.assert_close(outs["0"], outs["1"])


def test_gradients_of_a_decoding_step_have_the_heads_of_the_module():
    model, given = build("llama"), inputs("llama", padded=True)
    with torch.no_grad():
        cache = model(**given).past_key_values
    mask = F.pad(given["attention_mask"], (0, 1), value=1)
    with ch.watch(model, "**.q", "**.heads", grad=True) as tape:
        out = model(input_ids=given["input_ids"][:, :1], attention_mask=mask, past_key_values=cache)
        out.logits.square().sum().backward()
    for leaf in ("q", "heads"):
        gradient = tape.gradient(f"model.layers.0.self_attn.{leaf}")
        assert gradient.shape == (2, 4, 1, 6)
        assert gradient.any()
