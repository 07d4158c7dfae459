"""Measures of cause on live models of transformers: tokens by their tokenizer, and equal to hooks and to our own."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

import clearhead as ch
from clearhead.errors import InputError
from clearhead.look import attention_effects, head_effects, logit_attribution, logit_lens, patching, silence
from clearhead.look.causes import logit_lens as lens_module

WORDS = ["<pad>", "<unk>", "[MASK]", "a", "dog", "cat", "man", "runs", "sleeps", "here"]
TEXT, OTHER, IDS = "a dog runs here", "a cat runs here", [[3, 4, 7, 9]]
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 30, "vocab_size": 10}


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", mask_token="[MASK]", eos_token="<pad>"
    )


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1)).double().eval()


def test_answers_of_a_language_model_read_as_tokens(llama, tokenizer):
    ids = torch.tensor(IDS)
    for given in (TEXT, ids, {"input_ids": ids}):
        lens = logit_lens(llama, given, tokenizer=tokenizer)
        assert (lens.tokens, lens.rank.shape) == (TEXT.split(), (2, 4))
        assert {name for cells in lens.top for name, _ in cells[0]} <= set(WORDS)
        assert logit_attribution(llama, given, target=("cat", "dog"), tokenizer=tokenizer).answer == "cat against dog"
        effects = attention_effects(llama, given, target="cat", tokenizer=tokenizer)
        assert (effects.answer, effects.tokens) == ("cat", TEXT.split())
    found = patching(llama, TEXT, OTHER, target="cat", tokenizer=tokenizer)
    assert (found.answer, found.columns, found.others) == ("cat", TEXT.split(), OTHER.split())
    plain = patching(llama, ids, torch.tensor([[3, 5, 7, 9]]), target=5)
    torch.testing.assert_close(found.matrix, plain.matrix)
    assert plain.answer == "5"


@pytest.mark.parametrize("build", [
    lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1)),
    lambda: GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=3, vocab_size=10, n_positions=16)),
])  # fmt: skip
@pytest.mark.parametrize("most", [1, 1 << 24], ids=["a position at a time", "all at once"])
def test_the_lens_of_a_language_model_of_transformers_is_its_norm_and_head_at_every_position(
    build, most, tokenizer, monkeypatch
):
    monkeypatch.setattr(lens_module, "LOGITS", most)
    torch.manual_seed(0)
    model = build().double().eval()
    lens = logit_lens(model, TEXT, tokenizer=tokenizer)
    with torch.no_grad():
        out = model(torch.tensor(IDS), output_hidden_states=True)
        body = model.get_decoder() if hasattr(model, "model") else model.transformer
        norm = body.norm if hasattr(body, "norm") else body.ln_f
        first = model.get_output_embeddings()(norm(out.hidden_states[1]))[0].softmax(-1)
        final = out.logits[0].softmax(-1)
    assert lens.tokens == TEXT.split()
    for row, p in zip(lens.top, (first, final), strict=True):
        for t, cell in enumerate(row):
            assert [share for _, share in cell] == pytest.approx(p[t].sort(descending=True).values[:5].tolist())
    kl = torch.nn.functional.kl_div(first.log(), final.log(), reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(lens.divergence[0], kl)
    torch.testing.assert_close(logit_lens(model, TEXT, at=1, tokenizer=tokenizer).entropy[:, 0], lens.entropy[:, 1])


def test_heads_of_a_language_model_are_silenced_one_by_one(llama, tokenizer):
    ids = torch.tensor(IDS)
    found = head_effects(llama, TEXT, tokenizer=tokenizer)
    assert (found.kind, found.tokens, found.change.shape) == ("self", ["dog", "runs", "here"], (2, 3, 3))
    assert head_effects(llama, ids).tokens == ["4", "7", "9"] or head_effects(llama, ids).tokens == ["1", "2", "3"]
    for layer in range(2):
        for head in range(3):
            with torch.no_grad(), ch.edit(llama, {f"model.layers.{layer}.self_attn.heads": silence([head])}):
                logits = llama(ids).logits[0, :-1]
            after = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            torch.testing.assert_close(found.logprobs + found.change[layer, head], after)
    with pytest.raises(InputError, match="one token, whose probability"):
        head_effects(llama, torch.tensor([[3]]))
    with pytest.raises(InputError, match="kind='cross': expected one of self"):
        head_effects(llama, ids, kind="cross")


def test_encoders_are_measured_by_their_mask_their_class_or_their_vectors(tokenizer):
    torch.manual_seed(0)
    filler = BertForMaskedLM(BertConfig(**SIZES)).eval()
    assert logit_lens(filler, "a [MASK] runs here", tokenizer=tokenizer).tokens == ["[MASK]"]
    vectors = head_effects(filler, TEXT, tokenizer=tokenizer)
    assert (vectors.logprobs, vectors.tokens) == (None, TEXT.split())
    labels = {"id2label": {0: "sad", 1: "glad"}, "label2id": {"sad": 0, "glad": 1}}
    classifier = BertForSequenceClassification(BertConfig(**SIZES, **labels)).eval()
    assert head_effects(classifier, TEXT, target="glad", tokenizer=tokenizer).tokens == ["glad"]
    lens = logit_lens(classifier, TEXT, tokenizer=tokenizer)
    assert {name for name, _ in lens.top[-1][0]} == {"sad", "glad"}


def test_a_translator_of_transformers_is_measured_on_what_its_decoder_reads(tokenizer):
    torch.manual_seed(0)
    sizes = {"d_model": 24, "encoder_ffn_dim": 30, "decoder_ffn_dim": 30, "vocab_size": 10, "pad_token_id": 0}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_layers": 3, "decoder_layers": 2}
    config = MarianConfig(**sizes, **heads, decoder_start_token_id=0, eos_token_id=0, max_position_embeddings=16)
    model = MarianMTModel(config).eval()
    # The tokenizer adds no end, so that the last word of the target is what its decoder would write next.
    found = head_effects(model, TEXT, target="man sleeps here", tokenizer=tokenizer)
    assert (found.kind, found.tokens, found.change.shape[:2]) == ("cross", ["man", "sleeps"], (2, 2))
    assert head_effects(model, TEXT, target="man sleeps here", kind="encoder", tokenizer=tokenizer).change.shape == (
        3,
        3,
        2,
    )
    lens = logit_lens(model, TEXT, written="man sleeps here", tokenizer=tokenizer)
    assert lens.tokens == ["sleeps"]
    with torch.no_grad():
        ids = {"input_ids": torch.tensor(IDS), "decoder_input_ids": torch.tensor([[0, 6, 8]])}
        best = int(model(**ids).logits[0, -1].argmax())
    assert lens.top[-1][0][0][0] == WORDS[best]


def test_a_tokenizer_that_does_not_fit_is_a_sentence(llama, tokenizer):
    bundle = ch.load("everyday", device="cpu")
    for measure in (logit_lens, logit_attribution, attention_effects, head_effects):
        with pytest.raises(InputError, match="a Bundle has tokens of its own"):
            measure(bundle, TEXT, tokenizer=tokenizer)
        with pytest.raises(TypeError, match="expected a tokenizer of transformers"):
            measure(llama, TEXT, tokenizer="gpt2")
    with pytest.raises(InputError, match="a text needs its tokenizer, tokenizer="):
        logit_lens(llama, TEXT)


def test_the_parts_of_a_model_with_8_bit_weights_add_up_to_its_logit():
    text = "A man is standing in the"
    found = logit_attribution(ch.load("everyday", device="cpu", dtype="int8"), text)
    exact = logit_attribution(ch.load("everyday", device="cpu"), text)
    assert [part.name for part in found.parts] == [part.name for part in exact.parts]
    assert found.total == pytest.approx(found.logit, abs=1e-4)
    torch.testing.assert_close(found.heads, exact.heads, atol=0.1, rtol=0.1)
