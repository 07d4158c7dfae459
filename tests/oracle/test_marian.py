"""Hugging Face folders of Marian: read and written, with equal states, logits, gradients and translations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import HIDDEN, B, D, H, T, close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.layers import Mask, Sinusoid
from clearhead.weights import Bundle, Special, WeightsError
from clearhead.weights.huggingface import marian

S, V, W, PAD, END = 6, 17, 19, 16, 0  # source length, vocabulary sizes of source and target, and two token ids
LENGTHS = torch.tensor([S, 4])
KINDS: dict[str, dict[str, Any]] = {
    "opus-mt": {"activation_function": "swish", "scale_embedding": True},
    "one table per side": {
        "activation_function": "relu", "share_encoder_decoder_embeddings": False, "decoder_vocab_size": W,
    },
    "untied": {
        "activation_function": "gelu", "tie_word_embeddings": False, "scale_embedding": True,
        "share_encoder_decoder_embeddings": False, "decoder_vocab_size": W,
    },
    "even width": {"d_model": 12, "encoder_layers": 1, "decoder_layers": 3, "activation_function": "gelu_new"},
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


def oracle(kind: str, seed: int = 0) -> nn.Module:
    """A random float64 model of odd sizes; norms and biases are random too, so that a lost one changes the output."""
    transformers_marian = pytest.importorskip("transformers.models.marian")
    options = {
        "vocab_size": V, "d_model": D, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": H,
        "decoder_attention_heads": H, "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN, "pad_token_id": PAD,
        "decoder_start_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": None,
        "max_position_embeddings": 32,
    }  # fmt: skip
    torch.manual_seed(seed)
    config = transformers_marian.MarianConfig(**options | KINDS[kind], attn_implementation="eager")
    model = transformers_marian.MarianMTModel(config).double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                p += 0.3 * torch.randn_like(p)
        model.final_logits_bias += torch.randn_like(model.final_logits_bias)
    return model


def exact_positions(model: nn.Module) -> nn.Module:
    """Replace their sinusoids, which are rounded to float32, by exact ones."""
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions.weight
        waves = Sinusoid(table.shape[1], pairs="halves").vectors(torch.arange(len(table)).double())
        torch.testing.assert_close(waves.to(table.dtype), table.data, rtol=0.0, atol=1e-7)
        table.data = waves.to(table.dtype)
    return model


def inputs(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Source, its mask, and target ids; without the padding token, whose row gets no gradient from them."""
    dice = torch.Generator().manual_seed(1)
    source = torch.randint(0, V - 1, (B, S), generator=dice)
    ids = torch.randint(0, PAD, (B, T), generator=dice)
    mask = (torch.arange(S) < LENGTHS[:, None]).long()
    return source, mask, ids


def their_outputs(model: nn.Module) -> tuple[Tensor, Tensor]:
    source, mask, ids = inputs(model)
    out = model(input_ids=source, attention_mask=mask, decoder_input_ids=ids, use_cache=False)
    return out.encoder_last_hidden_state, out.logits


def our_outputs(model: nn.Module) -> tuple[Tensor, Tensor]:
    source, _, ids = inputs(model)
    return model.encoder(source, Mask(lengths=LENGTHS)), model(ids, source=source, lengths=LENGTHS)


def without_padding(x: Tensor) -> Tensor:
    """The states of tokens that are not padding."""
    return torch.cat([row[:n] for row, n in zip(x, LENGTHS, strict=True)])


def as_bin(model: nn.Module, folder: Path) -> None:
    """As in old folders: all names of a shared table, and the sinusoids."""
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def as_safetensors(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


@kinds
@pytest.mark.parametrize("write", [as_safetensors, as_bin])
def test_a_loaded_folder_gives_their_outputs_and_gradients(kind, write, tmp_path):
    theirs = oracle(kind)
    write(theirs, tmp_path)
    bundle = ch.load(tmp_path, device="cpu")
    ours = bundle.model
    assert bundle.special == Special(pad=PAD, start=PAD, ends=(END,))
    assert bundle.tokens is None  # the folder has none
    assert not ours.training
    exact_positions(theirs)
    (memory, logits), (their_memory, their_logits) = our_outputs(ours), their_outputs(theirs)
    close(without_padding(memory), without_padding(their_memory), "encoder")
    close(logits, their_logits, "logits")

    probe = torch.randn(logits.shape, dtype=logits.dtype, generator=torch.Generator().manual_seed(2))
    (logits * probe).sum().backward()
    (their_logits * probe).sum().backward()
    mine, expected = dict(ours.named_parameters()), dict(theirs.named_parameters(remove_duplicate=False))
    names = {row.ours[0]: row.theirs[0] for row in marian.marian_rows(ours.config) if row.ours[0] != "head.bias"}
    assert mine.keys() == {*names, "head.bias"}
    for name, their_name in names.items():
        close(mine[name].grad, expected[their_name].grad, f"gradient of {name}")
    close(mine["head.bias"].grad, probe.sum((0, 1)), "gradient of head.bias")  # a constant in theirs


@kinds
def test_a_saved_folder_is_read_by_transformers(kind, tmp_path):
    transformers_marian = pytest.importorskip("transformers.models.marian")
    oracle(kind).save_pretrained(tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    ours = bundle.model
    assert ch.save(bundle, tmp_path / "ours", layout="huggingface") == tmp_path / "ours"
    again = transformers_marian.MarianMTModel.from_pretrained(
        tmp_path / "ours", dtype=torch.float64, attn_implementation="eager", local_files_only=True
    ).eval()
    exact_positions(again)
    (memory, logits), (their_memory, their_logits) = our_outputs(ours), their_outputs(again)
    close(without_padding(memory), without_padding(their_memory), "encoder")
    close(logits, their_logits, "logits")
    assert again.config.pad_token_id == again.config.decoder_start_token_id == PAD
    one, other = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    back = ch.load(tmp_path / "ours", device="cpu")
    assert (back.config, back.special) == (bundle.config, bundle.special)
    kept = ch.load(ch.save(bundle, tmp_path / "native"), device="cpu")
    assert (kept.config, kept.special) == (bundle.config, bundle.special)
    assert all(torch.equal(a, b) for a, b in zip(kept.model.parameters(), ours.parameters(), strict=True))


def test_a_model_built_here_is_saved_as_marian(tmp_path):
    """It has no output bias, and half-precision weights."""
    transformers_marian = pytest.importorskip("transformers.models.marian")
    torch.manual_seed(0)
    model = ch.build(
        "transformer", vocab=V, target_vocab=W, width=12, depth=1, heads=3, pairs="halves", tied=False, dropout=0.3
    ).eval()
    bundle = Bundle(model.bfloat16(), None, model.config, special=Special(pad=3, start=1, ends=(2,)))
    again = transformers_marian.MarianMTModel.from_pretrained(
        ch.save(bundle, tmp_path, layout="huggingface"), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    torch.testing.assert_close(their_outputs(again)[1], our_outputs(model.float())[1], rtol=0.0, atol=1e-5)
    assert again.config.decoder_start_token_id == again.generation_config.decoder_start_token_id == 1
    assert again.config.dropout == again.config.attention_dropout == again.config.activation_dropout == 0.3
    back = ch.load(tmp_path, device="cpu", dtype="float32")
    assert back.special == bundle.special
    assert float(back.model.head.bias.detach().abs().max()) == 0.0
    torch.testing.assert_close(our_outputs(back.model)[1], our_outputs(model)[1])


@kinds
@pytest.mark.parametrize("seed", [0, 1, 2])
@torch.no_grad()
def test_greedy_search_writes_the_same_tokens(kind, seed, tmp_path):
    theirs = oracle(kind, seed)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    exact_positions(theirs)
    source, mask, _ = inputs(theirs)
    written = theirs.generate(
        source, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=12, bad_words_ids=[[PAD]]
    )
    answers = search(ours, {"source": source, "lengths": LENGTHS}, Plan(start=PAD, end=END, limit=12, banned=[PAD]))
    for row, (answer,) in zip(written.tolist(), answers, strict=True):
        expected = [token for token in row[1:] if token != PAD]
        assert [*answer.ids, *([END] if answer.finished else [])] == expected
    assert max(answer.tokens for (answer,) in answers) > 3  # the answers are not trivial


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    oracle("opus-mt").save_pretrained(tmp_path)
    keys = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(keys | changes, indent=1))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "led"}, r"reads a text and writes another, which is not opened here"),
        ({"normalize_before": True}, r"config.json:\d+: normalize_before is True: expected False"),
        ({"activation_function": "swich"}, r"config.json:\d+: .*the nearest is swish"),
        ({"decoder_attention_heads": 5}, r"encoder_attention_heads=3 and decoder_attention_heads=5"),
        ({"d_model": "15"}, r"expected a whole number"),
        ({"vocab_size": 18}, r"model.shared.weight has the shape \(17, 15\), expected \(18, 15\)"),
        ({"pad_token_id": 17}, r"pad_token_id=17: there is no such token"),
        (
            {"decoder_layers": 10**9},
            r"config.json: decoder_depth=1000000000, but model.safetensors has only \d+ tensors",
        ),
        (
            {"encoder_attention_heads": 0, "decoder_attention_heads": 0},
            r"encoder_attention_heads=0: expected 1 or more",
        ),
        ({"encoder_layers": 3}, r"the tensor model.encoder.layers.2.self_attn.q_proj.weight .* is missing"),
        ({"encoder_layers": 1}, r"model.encoder.layers.1.* has no place in this model"),
        ({"tie_word_embeddings": False}, r"with tie_word_embeddings=False: versions of transformers disagree"),
        (
            {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
            r"the tensor model.encoder.embed_tokens.weight \(17, 15\) is missing",
        ),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        ch.load(folder_of(tmp_path, **changes), device="cpu")


def test_tensors_are_read_strictly(tmp_path):
    path = folder_of(tmp_path) / "model.safetensors"
    tensors = load_file(path)

    def check(message: str, **changes: Tensor) -> None:
        save_file(tensors | {name.replace("__", "."): x for name, x in changes.items()}, path)
        with pytest.raises(WeightsError, match=message):
            ch.load(tmp_path, device="cpu")

    check(r"lm_head.weight differ, and the model has one table", lm_head__weight=tensors["model.shared.weight"] + 1)
    check("is not the constant that such a model has", model__encoder__embed_positions__weight=torch.randn(32, D))
    check("extra.weight .* has no place in this model", extra__weight=torch.zeros(2))
    check("expected one like", model__decoder__layers__0__fc1__bias=torch.zeros(HIDDEN, dtype=torch.long))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="is not a whole safetensors file"):
        ch.load(tmp_path, device="cpu")
    path.unlink()
    with pytest.raises(WeightsError, match=r"no model.safetensors and no pytorch_model.bin"):
        ch.load(tmp_path, device="cpu")
    del tensors["final_logits_bias"]  # optional
    save_file(tensors, path)
    assert ch.load(tmp_path, device="cpu").model.head.bias is None


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_code_in_a_pickle_is_not_run(tmp_path, capsys):
    (folder_of(tmp_path) / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model.bin: asks to run .*print, .*; nothing was run"):
        ch.load(tmp_path, device="cpu")
    assert "executed" not in capsys.readouterr().out
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="does not hold a dictionary of tensors"):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pairs=None: a Marian model has pairs='halves'"),
        ({"pairs": "halves", "positions": "learned"}, "positions='learned'"),
        ({"pairs": "halves", "kv_heads": 1}, "kv_heads=1: a Marian model has as many as heads=3"),
        ({"pairs": "halves", "tied": False}, "expected both, or share_encoder_decoder_embeddings=False"),
        ({"pairs": "halves", "mlp": "swiglu"}, "mlp='swiglu': a Marian model has one of"),
    ],
)
def test_options_that_they_do_not_have_are_refused(options, message, tmp_path):
    model = ch.build("transformer", vocab=V, width=12, depth=1, heads=3, **options)
    bundle = Bundle(model, None, model.config, special=Special(pad=0, start=0, ends=(1,)))
    with pytest.raises(ValueError, match=message):
        ch.save(bundle, tmp_path / "model", layout="huggingface")
    assert not (tmp_path / "model").exists()
