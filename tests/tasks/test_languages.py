"""Translators between many languages: the source begins with its language, and the answer with the target's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import clearhead as ch
from clearhead.data.text.parallel import Line
from clearhead.data.text.tokenizers import TranslationConfig, open_pair
from clearhead.data.text.translations import EncodedPairs
from clearhead.errors import InputError
from clearhead.inputs import Inputs
from clearhead.tokens import Pair, Subwords
from clearhead.tokens.decoder_prompt import decoder_prompt
from clearhead.weights import Bundle

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "c", "d", "eng_Latn", "fra_Latn", "__de__"]


def subwords() -> Subwords:
    """As NLLB's: English before a text, and the end after it."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([*WORDS[:4], *WORDS[8:]])
    backend.post_processor = processors.TemplateProcessing(
        single="eng_Latn $A </s>", special_tokens=[("eng_Latn", 8), ("</s>", 2)]
    )
    return Subwords(backend.to_str())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.M2M100Config(
        vocab_size=len(WORDS), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=40, init_std=0.5,
    )  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    model.generation_config.forced_bos_token_id = 9
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(subwords().to_str())
    return tmp_path


def test_the_languages_are_part_of_source_and_prompt(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    bundle = ch.load(folder, device="cpu")
    assert (bundle.special.start, bundle.special.first) == (2, 9)
    for source, target, before, first in ((None, None, 8, 9), ("fra_Latn", "de", 9, 10), (None, "eng_Latn", 8, 8)):
        answer = ch.translate(bundle, "a c d", beams=1, limit=7, source_language=source, target_language=target)
        assert answer.source[0] == WORDS[before]
        ids = torch.tensor([[before, 4, 6, 7, 2]])
        out = theirs.generate(
            ids, num_beams=1, do_sample=False, max_new_tokens=8, forced_bos_token_id=first, bad_words_ids=[[0], [1]]
        )
        out = out[0].tolist()
        assert out[:2] == [2, first]
        assert [WORDS[i] for i in out[2:]] == [piece.strip() for piece in answer.target]
        assert answer.alignment.shape == (len(answer.target), len(answer.source))
        expected = theirs(ids, decoder_input_ids=torch.tensor([out[:-1]]), output_attentions=True).cross_attentions
        weights = expected[0][0].mean(0)[1:]
        torch.testing.assert_close(torch.from_numpy(answer.alignment), weights.detach(), atol=1e-5, rtol=0.0)


def test_an_unknown_language_is_refused_with_the_nearest(folder: Path) -> None:
    bundle = ch.load(folder, device="cpu")
    with pytest.raises(InputError, match=r"language 'fra_Latm': expected a special token .* the nearest is fra_Latn"):
        ch.translate(bundle, "a", target_language="fra_Latm")


@pytest.mark.parametrize("layout", [None, "huggingface", "clearhead"])
@pytest.mark.parametrize("family", ["mbart", "m2m_100"])
def test_no_language_is_refused_where_a_model_has_several(family: str, layout: str | None, tmp_path: Path) -> None:
    bundle = translator(family, tmp_path / "given", forced_bos_token_id=None)
    if layout is not None:
        bundle = ch.load(ch.save(bundle, tmp_path / "saved", layout=layout), device="cpu")
    written = {"target": "b c"}
    calls: list[Callable[[Bundle], Any]] = [
        lambda one: ch.translate(one, "a c", beams=1, limit=3),
        lambda one: ch.score(one, "a c", "b c"),
        lambda one: ch.look.attention(one, "a c", **written),
        lambda one: ch.look.head_effects(one, "a c", **written),
        lambda one: ch.look.logit_lens(one, "a c", written="b c", at=0),
        lambda one: ch.look.saliency(one, ("a c", "b c"), target=4, method="gradient"),
        lambda one: EncodedPairs(
            [Line(source="a", target="b", where="x:1")], one.tokens, TranslationConfig(batch_tokens=32),
            (np.array([0]), np.array([1])), one.special,
        ),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InputError, match=r"target_language=.* with_languages.* eng_Latn, fra_Latn, __de__"):
            call(bundle)
        call(bundle.with_languages(target="de"))
    assert ch.translate(bundle, "a c", beams=1, limit=3, target_language="fra_Latn").source[0] == "eng_Latn"


def test_a_training_on_the_tokens_of_such_a_folder_is_refused_too(tmp_path: Path) -> None:
    translator("mbart", tmp_path, forced_bos_token_id=None)
    pair, special = open_pair(str(tmp_path), None)
    with pytest.raises(InputError, match=r"none is chosen"):
        decoder_prompt(pair, special)


def test_a_decoder_that_starts_with_its_language_needs_no_other(tmp_path: Path) -> None:
    bundle = translator("mbart", tmp_path, forced_bos_token_id=None, decoder_start_token_id=9)
    assert bundle.decoder_prompt() == [9]


def test_the_forced_token_is_saved(folder: Path, tmp_path: Path) -> None:
    bundle = ch.load(folder, device="cpu")
    for layout in ("huggingface", "clearhead"):
        back = ch.load(ch.save(bundle, tmp_path / layout, layout=layout), device="cpu")
        assert back.special == bundle.special


def test_a_source_without_a_template_gets_its_end() -> None:
    tokens = ch.tokens.Words(["a", "b"])
    pair = Pair(tokens, tokens)
    assert pair.read("a b").tolist() == [*tokens.encode("a b"), tokens.end]
    assert replace(pair, before=3).read("a b").tolist() == [3, *tokens.encode("a b"), tokens.end]


SIZES = {
    "vocab_size": len(WORDS), "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 40,
    "init_std": 0.5, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 8, "num_layers": 1, "num_heads": 2, "initializer_factor": 2.0}
# The model type, its options, and the tokens that its decoder reads before a target.
FAMILIES = {
    "bart": ("bart", SIZES | {"decoder_start_token_id": 2, "forced_bos_token_id": 0}, ["</s>", "<s>"]),
    "mbart": ("mbart", SIZES | {"decoder_start_token_id": 2, "forced_bos_token_id": 9}, ["</s>", "fra_Latn"]),
    "m2m_100": ("m2m_100", SIZES | {"decoder_start_token_id": 2, "forced_bos_token_id": 9}, ["</s>", "fra_Latn"]),
    "marian": ("marian", SIZES | {"decoder_start_token_id": 1, "forced_eos_token_id": None}, ["<pad>"]),
    "t5": ("t5", T5 | {"vocab_size": len(WORDS), "decoder_start_token_id": 1, "pad_token_id": 1, "eos_token_id": 2},
           ["<pad>"]),
}  # fmt: skip


def translator(family: str, folder: Path, **changed: Any) -> Bundle:
    """A tiny translator with random weights: ours, or that of a folder of transformers."""
    torch.manual_seed(0)
    if family == "ours":
        words = ch.tokens.Words(["a", "b", "c", "d"])
        sizes = {"vocab": len(words), "context": 40, "width": 16, "depth": 1, "heads": 2}
        return Bundle(ch.build("transformer", **sizes), Pair(words, words))
    transformers = pytest.importorskip("transformers")
    kind, options, _ = FAMILIES[family]
    options = options | changed
    config = transformers.AutoConfig.for_model(kind, **options)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.generation_config.forced_bos_token_id = options.get("forced_bos_token_id")
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(subwords().to_str())
    return ch.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("family", "language"),
    [*((family, None) for family in [*FAMILIES, "ours"]), *((family, "__de__") for family in ("mbart", "m2m_100"))],
)
def test_whatever_looks_inside_reads_the_prompt_of_translate(
    family: str, language: str | None, tmp_path: Path
) -> None:  # fmt: skip
    bundle, text, other = translator(family, tmp_path), "a c d", "a b d"
    prompt = ["<start>"] if family == "ours" else FAMILIES[family][2]
    prompt = prompt if language is None else [prompt[0], language]
    answer = ch.translate(bundle, text, beams=1, limit=3, target_language=language)
    bundle = bundle.with_languages(target=language)
    written = "b d a"
    read = [*prompt, "b", "d", "a"]

    def plain(pieces: list[str]) -> list[str]:
        return [piece.strip() for piece in pieces]

    given = ch.score(bundle, text, written)
    result = ch.look.attention(bundle, text, target=written)
    assert plain(result.decoder_input) == read
    assert plain(result.target) == [*read[1:], *plain(given.target)[-1:]]
    cross = result.maps["cross"][0].dense()[0].mean(0)[len(prompt) - 1 :]
    np.testing.assert_allclose(cross.numpy(), given.alignment, atol=1e-6)
    assert plain(ch.look.head_effects(bundle, text, target=written).tokens) == plain(result.target)

    options = {"written": written, "target": 4}
    assert plain(ch.look.patching(bundle, text, other, stack="decoder", **options).columns) == read
    assert plain(ch.look.logit_lens(bundle, text, written=written, at=0).tokens) == read[:1]
    assert plain(ch.look.attention_effects(bundle, text, **options).tokens)
    found = ch.look.saliency(bundle, (text, written), target=4, method="gradient")
    assert plain(found.tokens)[-len(read) :] == read
    (batch,) = Inputs(bundle, [(text, written), text]).batches(0, 2)
    ids = [
        bundle.tokens.target.pieces(row[:n]) for row, n in zip(batch.named["ids"], batch.target_lengths, strict=True)
    ]
    assert [plain(row) for row in ids] == [read, prompt]

    options = TranslationConfig(batch_tokens=32)
    lines = [Line(source=text, target=written, where="x:1")]
    one = (np.array([0]), np.array([1]))
    rows = EncodedPairs(lines, bundle.tokens, options, one, bundle.special).batch(0, np.array([0]), np.array([0]))
    assert plain(bundle.tokens.target.pieces(rows["ids"][0][: len(read)])) == read

    seen = []
    hook = bundle.model.register_forward_pre_hook(lambda _, args, named: seen.append(args[0]), with_kwargs=True)
    first = answer.forced.watch("**.cross.weights")
    hook.remove()
    assert plain(bundle.tokens.target.pieces(seen[0][0, : len(prompt)].tolist())) == prompt
    assert first.names
