"""Translators between many languages: the source begins with its language, and the answer with the target's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import clearhead as ch
from clearhead.errors import InputError
from clearhead.tokens import Pair, Subwords

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
