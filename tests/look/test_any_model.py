"""watch and edit on models of transformers, unconverted: the same bits, and the numbers of their eager attention."""

import warnings
from contextlib import nullcontext

import pytest
import torch
import transformers as tf

import clearhead as ch
from clearhead.look import AttentionMap, Notice
from support.foreign_models import (
    BART,
    EAGER,
    IMAGES,
    LLAMA,
    PAIRS,
    SDPA,
    SMALL,
    SOUNDS,
    SPECIAL,
    VOCAB,
    WRITERS,
    B,
    T,
    build,
    eager_maps,
    inputs,
    outputs,
)  # fmt: skip

LEAVES = ("weights", "entropy", "distance", "received")
LENGTHS = {"padded": True, "full": False}


def watched(model, given, *leaves):
    with ch.watch(model, *(f"**.{leaf}" for leaf in leaves)) as tape:
        out = outputs(model, given)
    return out, tape


def in_order(names: list[str]) -> list[str]:
    """Addresses as transformers orders its weights: encoder, decoder, cross-attention."""
    cross = [name for name in names if "EncDec" in name or "encoder_attn" in name]
    return [name for name in names if name not in cross] + cross


PRECISIONS = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "float64": (torch.float64, False),
    "autocast": (torch.float32, True),
}


@torch.no_grad()
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SDPA)
def test_watching_changes_no_bit(name, precision):
    dtype, auto = PRECISIONS[precision]
    model = build(name).to(dtype)
    for padded in (False, True):
        given = inputs(name, padded=padded)
        given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in given.items()}
        with torch.autocast("cpu", torch.bfloat16) if auto else nullcontext():
            before = outputs(model, given)
            after, tape = watched(model, given, *LEAVES, "heads")
            again = outputs(model, given)
        assert torch.equal(before, after)
        assert torch.equal(before, again)
        assert len(tape.match("**.weights")) >= 2


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in SDPA if name != "swin"])  # whose eager output is another
@pytest.mark.parametrize("length", LENGTHS)
def test_statistics_equal_those_of_eager_attention_in_float64(name, length):
    # On the right: in float64 transformers' own eager attention gives NaN for rows that are padded on the left.
    given = inputs(name, padded=LENGTHS[length], left=False)
    _, tape = watched(build(name), given, *LEAVES)
    wide = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
    expected = eager_maps(build(name, "eager").double(), wide)
    found = in_order(list(tape.match("**.weights")))
    assert len(found) == len(expected)
    for address, p in zip(found, expected, strict=True):
        path = address.removesuffix("weights")
        real = given["attention_mask"].bool() if "attention_mask" in given and p.shape[2] == T else None
        q, k = p.shape[2:]
        far = (torch.arange(q)[:, None] - torch.arange(k)).abs()
        numbers = {
            "weights": (p, tape[address].dense()),
            "entropy": (torch.special.entr(p).sum(-1), tape[path + "entropy"]),
            "distance": ((p * far).sum(-1), tape[path + "distance"]),
        }
        for leaf, (want, got) in numbers.items():
            if real is not None:  # transformers lets padding tokens attend to anything
                want, got = (x.transpose(1, 2)[real] for x in (want, got))
            torch.testing.assert_close(
                got.double(), want, rtol=1e-4, atol=1e-4, msg=lambda m, leaf=leaf: f"{leaf}: {m}"
            )
        if real is None:
            torch.testing.assert_close(tape[path + "received"].double(), p.sum(-2), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float32", "autocast"])
@pytest.mark.parametrize("name", SDPA)
def test_the_recorded_weights_and_values_give_the_heads(name, precision):
    """Also where transformers returns no weights, or others."""
    model, auto = build(name), precision == "autocast"
    with torch.autocast("cpu", torch.bfloat16) if auto else nullcontext():
        _, tape = watched(model, inputs(name, padded=True), "weights", "heads")
    with torch.autocast("cpu", torch.bfloat16) if auto else nullcontext(), ch.watch(model, "**") as everything:
        outputs(model, inputs(name, padded=True))
    for address in tape.match("**.weights"):
        path = address.removesuffix("weights")
        weights, heads = tape[address].dense(), tape[path + "heads"].float()
        assert weights.dtype == torch.float32
        if path + "v" not in everything or not isinstance(everything[path + "v"], torch.Tensor):
            continue
        v = everything[path + "v"].float()
        if v.ndim != 4:  # T5's module v has this address
            continue
        v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
        real = weights.sum(-1) > 0.5
        v = v.bfloat16().float() if auto else v
        tolerance = 2e-2 if auto else 1e-5
        torch.testing.assert_close((weights @ v)[real], heads[real], rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("name", EAGER)
def test_models_that_refuse_sdpa_show_the_weights_that_they_return(name):
    model, given = build(name, "eager"), inputs(name, padded=True)
    before = outputs(model, given)
    after, tape = watched(model, given, "weights", "entropy")
    assert torch.equal(before, after)
    for map, expected in zip(tape.match("**.weights").values(), eager_maps(model, given), strict=True):
        torch.testing.assert_close(map.dense(), expected)
    with (
        warnings.catch_warnings(action="ignore", category=Notice),
        pytest.raises(ValueError, match=r"cannot be edited"),
        ch.edit(model, {"**.scores": lambda x: 2 * x}),
    ):
        outputs(model, given)
    with ch.edit(model, {"**.heads": lambda x: 2 * x}):
        assert not torch.equal(outputs(model, given), before)


# Decoding

CACHES = {"dynamic": {}, "static": {"cache_implementation": "static"}, "beams": {"num_beams": 3}}


@torch.no_grad()
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", [*WRITERS, *PAIRS])
def test_generate_writes_the_same_and_its_steps_join(name, cache):
    model, ids = build(name), inputs(name)["input_ids"]
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **CACHES[cache]}
    with torch.compiler.set_stance("force_eager"):
        before = model.generate(ids, **how)
    with ch.watch(model, "**.weights", "**.distance") as tape:
        after = model.generate(ids, **how)
    assert torch.equal(before, after)
    for address in tape.match("**.weights"):
        assert len(tape.texts(address)) == 1, address
    if name not in WRITERS or cache == "beams":
        return
    with ch.watch(model, "**.weights", "**.distance") as whole:
        model(after[:, :-1])
    for address, map in whole.match("**.weights").items():
        steps, n = tape[address], map.shape[2]
        assert steps.shape[2] == n
        torch.testing.assert_close(steps.tile((0, n), (0, n)), map.dense(), rtol=1e-4, atol=1e-5)
        distance = address.removesuffix("weights") + "distance"
        torch.testing.assert_close(tape[distance], whole[distance], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_two_texts_of_generate_are_taken_apart():
    model = build("llama")
    with ch.watch(model, "**.weights") as tape:
        for length in (3, 5):
            model.generate(inputs("llama")["input_ids"][:, :length], max_new_tokens=2, min_new_tokens=2, pad_token_id=0)
    assert [map.shape[2] for map in tape.texts("model.layers.0.self_attn.weights")] == [4, 6]


@torch.no_grad()
def test_unused_keys_of_a_static_cache_have_no_weight():
    model, ids = build("llama"), inputs("llama")["input_ids"]
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=20)
    with ch.watch(model, "**.weights", "**.distance") as tape:
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
    name = "model.layers.1.self_attn.weights"
    assert tape[name].shape == (B, 4, T + 1, 20)
    assert not tape[name].tile((0, T + 1), (T + 1, 20)).any()
    with ch.watch(model, "**.distance") as whole:
        model(torch.cat([ids, ids[:, :1]], dim=1))
    torch.testing.assert_close(tape["model.layers.1.self_attn.distance"], whole["model.layers.1.self_attn.distance"])


# Edits

PROJECTIONS = {  # the module that mixes the heads, and the address of its attention
    "gpt2": ("transformer.h.{}.attn.c_proj", "transformer.h.{}.attn"),
    "llama": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.self_attn"),
    "qwen3": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.self_attn"),
    "gemma3": ("model.layers.{}.self_attn.o_proj", "model.layers.{}.self_attn"),
    "bert": ("encoder.layer.{}.attention.output.dense", "encoder.layer.{}.attention.self"),
    "t5": ("decoder.block.{}.layer.1.EncDecAttention.o", "decoder.block.{}.layer.1.EncDecAttention"),
    "bart": ("model.decoder.layers.{}.encoder_attn.out_proj", "model.decoder.layers.{}.encoder_attn"),
    "whisper": ("model.encoder.layers.{}.self_attn.out_proj", "model.encoder.layers.{}.self_attn"),
}


def zeroing(model, name: str, head: int):
    """A hook that sets the slice of one head to 0 where the heads are mixed."""

    def hook(module, args):
        x = args[0].clone()
        heads = getattr(model.config, "num_attention_heads", None) or model.config.num_heads
        x.unflatten(-1, (heads, -1))[..., head, :] = 0.0
        return (x,)

    return model.get_submodule(name).register_forward_pre_hook(hook)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_silencing_a_head_equals_zeroing_its_slice_to_the_bit(name):
    model, given = build(name), inputs(name, padded=True)
    projection, path = (text.format(1) for text in PROJECTIONS[name])
    before = outputs(model, given)  # with gradients: for T5's learned bias torch chooses another kernel then
    hook = zeroing(model, projection, 1)
    expected = outputs(model, given)
    hook.remove()
    with ch.edit(model, {f"{path}.heads": ch.look.silence([1])}):
        edited = outputs(model, given)
    assert torch.equal(edited, expected)
    assert not torch.equal(edited, before)
    edited.sum().backward()  # gradients too
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    hook = zeroing(model, projection, 1)
    outputs(model, given).sum().backward()
    hook.remove()
    for got, want in zip(grads, [p.grad for p in model.parameters() if p.grad is not None], strict=True):
        assert torch.equal(got, want)
    assert torch.equal(outputs(model, given), before)


@torch.no_grad()
def test_patch_scale_and_edits_of_inputs():
    model, given = build("llama"), inputs("llama")
    other = {"input_ids": given["input_ids"].flip(1)}
    name = "model.layers.0.self_attn.heads"
    with ch.watch(model, name) as tape:
        outputs(model, other)
    with ch.edit(model, {name: ch.look.patch([0, 2], tape[name])}), ch.watch(model, name) as after:
        outputs(model, given)
    assert torch.equal(after[name][:, [0, 2]], tape[name][:, [0, 2]])
    assert not torch.equal(after[name][:, 1], tape[name][:, 1])
    with ch.watch(model, name) as order, ch.edit(model, {name: ch.look.scale({1: 0.0})}):  # the edit comes first
        outputs(model, given)
    assert not order[name][:, 1].any()
    with ch.edit(model, {"**.q": torch.zeros_like}), ch.watch(model, "**.weights") as tape:
        outputs(model, given)
    even = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(tape["model.layers.1.self_attn.weights"].dense(), even.expand(B, 4, T, T))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert"])
def test_edits_of_weights_are_explicit_and_see_what_eager_attention_returns(name):
    model, given, seen = build(name), inputs(name, padded=True), []

    def keep(weights):
        seen.append(weights.clone())
        return weights

    before = outputs(model, given)
    with pytest.warns(Notice, match="explicitly"), ch.edit(model, {"**.weights": keep}):
        after = outputs(model, given)
    real = given["attention_mask"].bool() if name != "t5" else torch.ones(B, T - 2, dtype=torch.bool)
    torch.testing.assert_close(after[real], before[real], rtol=1e-4, atol=1e-5)
    assert len(seen) == len(watched(model, given, "weights")[1].match("**.weights"))
    with pytest.warns(Notice), ch.edit(model, {"**.weights": torch.zeros_like}):
        assert not torch.equal(outputs(model, given), before)


@pytest.mark.filterwarnings("ignore::clearhead.look.Notice")
def test_gradients_of_weights_equal_those_of_the_eager_model():
    given, model, eager = inputs("gpt2"), build("gpt2"), build("gpt2", "eager")
    with ch.watch(model, "**.weights", "**.heads", grad=True) as tape:
        outputs(model, given).square().sum().backward()
    out = eager(**given, output_attentions=True)
    grads = torch.autograd.grad(out.logits.square().sum(), out.attentions)
    for i, grad in enumerate(grads):
        got = tape.gradient(f"transformer.h.{i}.attn.weights")
        allowed = torch.ones(T, T, dtype=torch.bool).tril()
        torch.testing.assert_close(got[..., allowed], grad[..., allowed], rtol=1e-3, atol=1e-3)
    with ch.watch(model, "**.heads", grad=True) as tape:
        outputs(model, given).square().sum().backward()
    assert tape.gradient("transformer.h.0.attn.heads").any()


# Rules


@torch.no_grad()
def test_a_module_that_runs_for_several_layers_has_an_address_per_call():
    model, given = build("albert"), inputs("albert")
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    _, tape = watched(model, given, "entropy")
    assert tape.names == [f"{path}.entropy", f"{path}@1.entropy"]
    assert ch.look.entropy(tape).shape == (2, B, 3, T)
    with ch.watch(model, f"{path}@1.weights") as second:
        outputs(model, given)
    assert second.names == [f"{path}@1.weights"]
    with ch.watch(model, f"{path}@0.weights") as first:
        outputs(model, given)
    assert first.names == [f"{path}.weights"]
    for call, count in (("", 2), ("@0", 1), ("@1", 1)):
        seen = []
        with ch.edit(model, {f"{path}{call}.heads": lambda x, seen=seen: seen.append(0) or x}):
            outputs(model, given)
        assert len(seen) == count


@torch.no_grad()
def test_an_address_of_a_module_is_not_taken_over():
    model, given = build("t5"), inputs("t5")
    name = "encoder.block.0.layer.0.SelfAttention"
    with ch.watch(model, f"{name}.q", f"{name}.weights", "encoder.block.0") as tape:
        outputs(model, given)
    assert tape[f"{name}.q"].shape == (B, T, 24)  # the output of the module q
    assert tape.names == ["encoder.block.0", f"{name}.q", f"{name}.weights"] or tape.names[0] == "encoder.block.0"


@torch.no_grad()
def test_layers_share_one_copy_of_their_mask():
    model = build("bert")
    given = {"input_ids": torch.randint(5, VOCAB, (B, 40)), "attention_mask": torch.ones(B, 40, dtype=torch.long)}
    given["attention_mask"][1, 30:] = 0
    _, tape = watched(model, given, "weights")
    masks = [calls[0].mask.allow for calls in tape._calls.values()]
    assert masks[0] is not None
    assert masks[0] is masks[1]


@torch.no_grad()
def test_inputs_of_modules_are_addresses_in_any_model():
    model, given = build("gpt2"), inputs("gpt2")
    with ch.watch(model, "transformer.h.*.ln_2.input", "transformer.h.*.mlp", "transformer.h.0") as tape:
        before = outputs(model, given)
    middle = tape["transformer.h.0.ln_2.input"]
    torch.testing.assert_close(middle + tape["transformer.h.0.mlp"], tape["transformer.h.0"])
    with ch.edit(model, {"transformer.h.0.ln_2.input": torch.clone}):
        assert torch.equal(outputs(model, given), before)
    with ch.edit(model, {"transformer.h.0.ln_2.input": torch.zeros_like}):
        assert not torch.equal(outputs(model, given), before)


@torch.no_grad()
def test_no_attention_is_said_with_what_to_do():
    model, given = build("llama"), inputs("llama")
    expected = r"no attention call at 'model\.layers\.0\.mlp\.weights': the attention of this model is in"
    with pytest.warns(Notice, match=expected), ch.watch(model, "model.layers.0.mlp.weights") as tape:
        outputs(model, given)
    with pytest.raises(KeyError, match=r"the attention of this model is in 'model\.layers\.0\.self_attn'"):
        tape["model.layers.0.mlp.weights"]
    with pytest.raises(ValueError, match="changed nothing"), ch.edit(model, {"model.layers.0.mlp.heads": torch.neg}):
        outputs(model, given)
    with (
        pytest.raises(KeyError, match=r"no address 'model\.layers\.0\.attn\.weights'.*nearest"),
        ch.watch(model, "model.layers.0.attn.weights"),
    ):
        pass


# Our own reader of the same folder

FOLDERS = ["gpt2", "llama", "bert"]


@torch.no_grad()
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_read_by_us_and_by_transformers_has_the_same_statistics(name, tmp_path):
    theirs, given = build(name), inputs(name)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu", dtype="float32").model
    _, tape = watched(theirs, given, *LEAVES)
    with ch.watch(ours, *(f"blocks.*.attn.{leaf}" for leaf in LEAVES)) as mine:
        ours(given["input_ids"])
    for leaf in LEAVES:
        for a, b in zip(tape.match(f"**.{leaf}").values(), mine.match(f"**.{leaf}").values(), strict=True):
            a, b = (x.dense() if isinstance(x, AttentionMap) else x for x in (a, b))
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
def test_maps_of_images_and_sounds(name):
    _, tape = watched(build(name), inputs(name), "weights")
    for map in tape.match("**.weights").values():
        torch.testing.assert_close(map.dense().sum(-1), torch.ones(map.shape[:3]))


# The maps of a text


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<s>", "</s>", "<unk>", "a", "dog", "runs", "ein", "hund", "rennt"]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>")


def test_the_maps_of_a_text_have_its_tokens_and_are_drawn(tokenizer):
    result = ch.look.attention(build("llama"), "a dog runs", tokenizer=tokenizer)
    assert result.pieces == ["a", "dog", "runs"]
    assert [map.shape for map in result.maps["self"]] == [(1, 4, 3, 3)] * 2
    figure = result.figure(layer=1, head=2)
    assert "layer 1, head 2" in figure.axes[0].get_title()


@pytest.mark.parametrize("name", PAIRS)
def test_the_maps_of_a_text_and_its_target(name, tokenizer):
    model = build(name)
    result = ch.look.attention(model, "a dog runs a", target="ein hund rennt", tokenizer=tokenizer)
    assert {kind: [map.shape[2:] for map in maps] for kind, maps in result.maps.items()} == {
        "encoder": [(4, 4)] * 2, "decoder": [(3, 3)] * 2, "cross": [(3, 4)] * 2,
    }  # fmt: skip
    assert result.labels("cross") == (["ein", "hund", "rennt"], ["a", "dog", "runs", "a"])
    with pytest.raises(ValueError, match="expected target="):
        ch.look.attention(model, "a dog runs", tokenizer=tokenizer)


def titles(result) -> list[str]:
    return [result.figure(i, 0).axes[0].get_title() for i in range(len(result.maps["self"]))]


def test_a_map_is_named_by_its_module_where_maps_are_not_one_per_layer(tokenizer):
    sizes = {**LLAMA, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 32}
    mamba = {"use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts": 2}
    jamba = tf.JambaForCausalLM(tf.JambaConfig(**sizes, **mamba, attn_layer_period=2, attn_layer_offset=1)).eval()
    result = ch.look.attention(jamba, "a dog runs", tokenizer=tokenizer)
    assert result.addresses["self"] == ["model.layers.1.self_attn", "model.layers.3.self_attn"]
    assert titles(result)[1] == "self-attention, model.layers.3.self_attn, head 0"
    albert = ch.look.attention(build("albert"), "a dog runs", tokenizer=tokenizer)  # whose layers are one module
    assert titles(albert)[1] == "self-attention, layer 1, head 0"


def test_queries_that_are_not_one_per_token_are_named_by_numbers(tokenizer):
    config = tf.FunnelConfig(
        vocab_size=VOCAB, block_sizes=[1, 1], d_model=24, n_head=3, d_head=8, d_inner=30, num_decoder_layers=1
    )
    result = ch.look.attention(tf.FunnelModel(config).eval(), "a dog runs a dog", tokenizer=tokenizer)
    shapes = [map.shape[2:] for map in result.maps["self"]]
    assert (3, 5) in shapes
    assert len(titles(result)) == len(shapes)
    pooled = shapes.index((3, 5))
    assert result.labels("self", pooled) == (["0", "1", "2"], ["a", "dog", "runs", "a", "dog"])
    assert result.heads_figure(pooled)


def test_two_texts_of_a_pair_are_one_row(tokenizer):
    result = ch.look.attention(build("bert"), ("a dog", "runs"), tokenizer=tokenizer)
    assert result.pieces == ["a", "dog", "runs"]


# Attention in forms of its own

WINDOWED = {
    "longformer": (tf.LongformerModel, {**SMALL, **SPECIAL, "attention_window": 4}),
    "led": (tf.LEDModel, {**BART, "attention_window": 4, "max_encoder_position_embeddings": 64,
                          "max_decoder_position_embeddings": 64}),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("name", WINDOWED)
def test_returned_weights_whose_axes_are_not_tokens_are_not_recorded(name):
    kind, options = WINDOWED[name]
    options = {key: x for key, x in options.items() if name == "longformer" or key != "max_position_embeddings"}
    model, ids = kind(kind.config_class(**options)).eval(), torch.randint(5, VOCAB, (B, 8))
    reason = r"weights of shape \(2, 8, 3, 5\) were returned in '.*their queries are not the tokens"
    with pytest.warns(Notice, match=reason), ch.watch(model, "**.weights") as tape:
        model(ids, output_attentions=True)
    assert not [at for at in tape if "encoder" in at and "decoder" not in at]


@torch.no_grad()
@pytest.mark.parametrize("tokens", [2, 3, 4])  # 3 heads
def test_heads_are_not_rows_where_there_are_as_many_as_tokens(tokens):
    options = {key: x for key, x in BART.items() if key not in ("vocab_size", "forced_eos_token_id")}
    config = tf.FSMTConfig(**options, src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, langs=["a", "b"])
    model = tf.FSMTModel(config).eval()
    given = {"input_ids": torch.randint(5, VOCAB, (B, tokens)), "decoder_input_ids": torch.randint(5, VOCAB, (B, 3))}
    with ch.watch(model, "**.weights") as tape:
        model(**given)
    expected = eager_maps(model, given)
    for address, weights in zip(in_order(tape.names), expected, strict=True):
        torch.testing.assert_close(tape[address].dense(), weights)


@torch.no_grad()
def test_weights_beside_a_sink_are_those_that_the_model_returns():
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1}
    config = tf.GptOssConfig(**{**LLAMA, **sizes, "max_position_embeddings": 131072, "sliding_window": 4})
    model, given = tf.GptOssForCausalLM(config).eval(), inputs("llama")
    expected = eager_maps(model, given)
    with ch.watch(model, "**.weights") as tape:
        model(**given)
    for map, weights in zip(tape.match("**.weights").values(), expected, strict=True):
        torch.testing.assert_close(map.dense(), weights)
        assert (map.dense().sum(-1) < 0.99).all()


@torch.no_grad()
def test_a_model_without_attention_is_not_said_to_hide_it():
    config = tf.MambaConfig(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=1, state_size=4)
    model = tf.MambaForCausalLM(config).eval()
    with pytest.warns(Notice, match="took no softmax") as said, ch.watch(model, "**.weights"):
        model(**inputs("llama"))
    assert "output_attentions" not in str(said[0].message)
