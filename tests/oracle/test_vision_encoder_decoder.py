"""Hugging Face folders of a ViT with a GPT-2, read and written: equal logits, gradients, captions and maps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare import HIDDEN, B, D, H, T, close
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import clearhead as ch
from clearhead.decode import Plan, search
from clearhead.weights import certificate
from support.command_line import call

END, V, CONTEXT, PIXELS, PATCH = 256, 260, 24, 12, 4
LAST = {"bos_token_id": END, "eos_token_id": END}
VIT = {
    "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": H, "intermediate_size": HIDDEN,
    "image_size": PIXELS, "patch_size": PATCH, "layer_norm_eps": 1e-3,
}  # fmt: skip
GPT2 = {"vocab_size": V, "n_positions": CONTEXT, "n_layer": 2, "layer_norm_epsilon": 1e-3, **LAST}
WIDER = GPT2 | {"n_embd": 16, "n_head": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "widths differ": (VIT, WIDER),
    "equal widths, untied": (VIT, GPT2 | {"n_embd": D, "n_head": 5, "n_inner": 21, "tie_word_embeddings": False}),
    "not square, other activations": (
        VIT | {"image_size": (8, 12), "hidden_act": "relu"}, WIDER | {"activation_function": "gelu"}
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)


def oracle(case: str = "widths differ") -> nn.Module:
    """A random model of odd sizes; norms and biases are random too, so that none can be lost unnoticed."""
    transformers = pytest.importorskip("transformers")
    encoder, decoder = CASES[case]
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**encoder), transformers.GPT2Config(**decoder), decoder_start_token_id=END,
        pad_token_id=END, eos_token_id=END,
    )  # fmt: skip
    for part in (config, config.encoder, config.decoder):
        part._attn_implementation = "eager"
    model = transformers.VisionEncoderDecoderModel(config)
    torch.manual_seed(22)  # with which the tokens vary
    with torch.no_grad():
        # Releases of transformers have norms at different places among the others: in this order all draw the same.
        for name, p in sorted(model.named_parameters(), key=lambda named: "norm" in named[0]):
            p.normal_(float(p.ndim == 1 and name.endswith("weight")), 0.3)
        for block in model.decoder.transformer.h:  # larger MLPs let the tokens vary
            block.mlp.c_fc.weight.mul_(3.0)
            block.mlp.c_proj.weight.mul_(3.0)
    return model.eval()


def folder_of(model: nn.Module, folder: Path) -> Path:
    """Write a model with image preprocessing and a tokenizer of bytes, which has one special token, as GPT-2's."""
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    assert backend.token_to_id("<|endoftext|>") == END
    backend.save(str(folder / "tokenizer.json"))
    preprocessor = {
        "feature_extractor_type": "ViTFeatureExtractor", "do_resize": True, "size": PIXELS, "resample": 2,
        "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    theirs = oracle()
    return theirs, folder_of(theirs, tmp_path_factory.mktemp("captioner"))


def inputs(case: str = "widths differ") -> tuple[Tensor, Tensor]:
    size = CASES[case][0]["image_size"]
    generator = torch.Generator().manual_seed(3)
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randn(B, 3, height, width, generator=generator)
    return torch.randint(0, V, (B, T), generator=generator), images


def logits(model: nn.Module, ids: Tensor, images: Tensor) -> Tensor:
    return model(pixel_values=images, decoder_input_ids=ids).logits


@cases
def test_a_loaded_folder_gives_their_logits_and_gradients(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    ids, images = inputs(case)
    x, y = images.clone().requires_grad_(), images.clone().requires_grad_()
    mine, other = ours(ids, images=x), logits(theirs, ids, y)
    torch.testing.assert_close(mine, other, rtol=0.0, atol=1e-5)
    probe = torch.randn(mine.shape, generator=torch.Generator().manual_seed(4))
    (mine * probe).sum().backward()
    (other * probe).sum().backward()
    close(x.grad, y.grad, "gradient of the images")
    norms = [
        torch.stack([p.grad.square().sum() for p in model.parameters() if p.grad is not None]).sum().sqrt()
        for model in (ours, theirs)
    ]
    close(*norms, "norm of the gradients of all weights")


@cases
def test_a_saved_folder_has_the_same_bits_and_is_read_by_transformers(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    folder_of(theirs, tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    ch.save(bundle, tmp_path / "ours", layout="huggingface")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert after.keys() == {name for name in before if "pooler" not in name}
    assert all(torch.equal(x, before[name]) for name, x in after.items())
    again, loading = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not loading["unexpected_keys"]
    assert all("pooler" in name for name in loading["missing_keys"])
    with torch.no_grad():
        assert torch.equal(logits(again.eval(), *inputs(case)), logits(theirs, *inputs(case)))
    generation = again.generation_config
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (END, END, END)
    back = ch.load(tmp_path / "ours", device="cpu")
    assert (back.config, back.special, back.tokens) == (bundle.config, bundle.special, bundle.tokens)
    assert back.preprocessing == bundle.preprocessing


def test_our_own_layout_keeps_the_special_ids_of_the_folder(saved: tuple[nn.Module, Path], tmp_path: Path) -> None:
    bundle = ch.load(saved[1], device="cpu")
    back = ch.load(ch.save(bundle, tmp_path / "ours"), device="cpu")
    image = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    one, other = (ch.caption(model, image, limit=8) for model in (bundle, back))
    assert (one.text, one.score) == (other.text, other.score)


def test_the_certificate_compares_with_transformers(saved: tuple[nn.Module, Path]) -> None:
    result = certificate(saved[1])
    assert result.reference is not None, result.note
    assert result.difference < 1e-5
    assert all("pooler" in name for name in result.ignored)


def test_an_old_file_with_masks_and_both_names_of_the_table(saved: tuple[nn.Module, Path], tmp_path: Path) -> None:
    theirs, folder = saved
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    table = tensors["decoder.transformer.wte.weight"]
    mask = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
    more = {"decoder.lm_head.weight": table}
    for part in ("attn", "crossattention"):
        more |= {f"decoder.transformer.h.{i}.{part}.bias": mask for i in range(2)}
        more |= {f"decoder.transformer.h.{i}.{part}.masked_bias": torch.tensor(-1e4) for i in range(2)}
    torch.save(tensors | more, tmp_path / "pytorch_model.bin")
    ids, images = inputs()
    with torch.no_grad():
        mine, expected = ch.load(tmp_path, device="cpu").model(ids, images=images), logits(theirs, ids, images)
    torch.testing.assert_close(mine, expected, rtol=0.0, atol=1e-5)
    torch.save(tensors | more | {"decoder.lm_head.weight": table + 1}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"wte\.weight and decoder\.lm_head\.weight differ"):
        ch.load(tmp_path, device="cpu")


@torch.no_grad()
@pytest.mark.parametrize("end", [END, 59], ids=["cut", "ended"])
@pytest.mark.parametrize("beams", [1, 5])
def test_greedy_and_beam_search_give_their_ids(beams: int, end: int, saved: tuple[nn.Module, Path]) -> None:
    theirs, folder = saved
    bundle, (_, images) = ch.load(folder, device="cpu"), inputs()
    plan = Plan(start=END, end=end, beams=beams, limit=16)
    ours = [row[0] for row in search(bundle.model, {"images": images}, plan)]
    rows = theirs.generate(
        pixel_values=images, num_beams=beams, do_sample=False, max_new_tokens=16, length_penalty=1.0,
        early_stopping=False, eos_token_id=end,
    )  # fmt: skip
    assert [h.ids for h in ours] == [tuple(i for i in row[1:] if i not in (END, end)) for row in rows.tolist()]
    assert [h.finished for h in ours] == [end != END] * B
    assert end != END or len({i for h in ours for i in h.ids}) > 4  # not one token again and again


@torch.no_grad()
def test_a_caption_is_theirs_and_each_token_has_their_map(saved: tuple[nn.Module, Path]) -> None:
    """The mean over layers and heads of their cross-attention, without the class token, which has no place."""
    theirs, folder = saved
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    bundle = ch.load(folder, device="cpu")
    result = ch.caption(bundle, image, beams=5, limit=12)
    pixels = bundle.pixels(image)[None]
    resized = np.asarray(Image.fromarray(image).resize((PIXELS, PIXELS), Image.Resampling.BILINEAR)) / 255
    np.testing.assert_allclose(pixels[0].numpy(), (resized.transpose(2, 0, 1) - 0.5) / 0.5, atol=1e-6)
    row = theirs.generate(pixel_values=pixels, num_beams=5, max_new_tokens=12, early_stopping=False)[0].tolist()
    written = [i for i in row if i != END]
    assert result.text == bundle.tokens.decode(written).strip()
    before = torch.tensor([[END, *written]])[:, : len(result.pieces)]
    out = theirs(pixel_values=pixels, decoder_input_ids=before, output_attentions=True)
    weights = torch.stack(out.cross_attentions).mean((0, 1, 2))[:, 1:]  # (t, places)
    expected = (weights / weights.sum(1, keepdim=True)).reshape(-1, 3, 3).numpy()
    np.testing.assert_allclose(result.piece_maps(), expected, atol=1e-5)
    one = out.cross_attentions[1][0, 1, :, 1:]
    expected = (one / one.sum(1, keepdim=True)).reshape(-1, 3, 3).numpy()
    np.testing.assert_allclose(result.piece_maps(layer=1, head=1), expected, atol=1e-5)


@torch.no_grad()
def test_the_evidence_of_a_word_leaves_the_class_token_out(saved: tuple[nn.Module, Path]) -> None:
    bundle = ch.load(saved[1], device="cpu")
    image = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    result = ch.caption(bundle, image, text="x")
    memory, (first,) = bundle.model.look(bundle.pixels(image)[None])[0], bundle.tokens.encode("x").tolist()
    assert len(memory) == 10
    alone = [bundle.model.decoder.read(torch.tensor([[END]]), one[None, None], None, None) for one in memory[1:]]
    p = torch.stack([bundle.model.head(x)[0, 0].softmax(-1)[first] for x in alone])
    np.testing.assert_allclose(result.evidence()[0], (p / p.sum()).reshape(3, 3).numpy(), atol=1e-6)


def test_the_command_captions_with_such_a_folder(saved: tuple[nn.Module, Path], tmp_path: Path) -> None:
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(path)
    done = call("caption", saved[1], path, "limit=8", "--maps", tmp_path / "maps")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == ch.caption(ch.load(saved[1], device="cpu"), path, limit=8).text
    assert (tmp_path / "maps" / "noise.png").is_file()


KINDS = r"of vision-encoder-decoder models, those with a ViT \(vit\) and a GPT-2 \(gpt2\) are supported"


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("encoder", {"model_type": "swin"}, rf"json:\d+: encoder\.model_type is 'swin', expected 'vit': {KINDS}"),
        ("decoder", {"model_type": "bert"}, rf"json:\d+: decoder\.model_type is 'bert', expected 'gpt2': {KINDS}"),
        ("encoder", {"qkv_bias": False}, r"config\.json:\d+: encoder\.qkv_bias is False: expected True"),
        ("decoder", {"add_cross_attention": False}, r"decoder\.add_cross_attention is False: expected True"),
        ("decoder", {"cross_attention_hidden_size": D}, rf"decoder\.cross_attention_hidden_size is {D}: expected None"),
        ("decoder", {"n_layer": "two"}, r"decoder\.n_layer = 'two': expected a whole number"),
        ("decoder", {"n_layer": 3}, r"the tensor decoder\.transformer\.h\.2\.attn\.c_attn\.weight .* is missing"),
        ("decoder", {"n_layer": 1}, r"decoder\.transformer\.h\.1\..* has no place in this model"),
        ("encoder", {"num_hidden_layers": 10**9}, r"depth=1000000000, but model\.safetensors has only"),
        ("encoder", {"hidden_size": 16, "num_attention_heads": 2}, r"the shape \(1, 1, 15\), expected \(1, 1, 16\)"),
    ],
    ids=str,
)  # fmt: skip
def test_a_config_that_does_not_fit_is_refused(
    section: str, changes: dict[str, Any], message: str, saved: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    config = json.loads((saved[1] / "config.json").read_text())
    config[section] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config, indent=1))
    save_file(load_file(saved[1] / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": "sincos2d"}, "places='sincos2d': a ViT and GPT-2 captioner has places='none'"),
        ({"special": False}, "special=False: a ViT and GPT-2 captioner has special=True"),
        ({"positions": "sinusoid"}, "positions='sinusoid': a ViT and GPT-2 captioner has positions='learned'"),
        ({"bridge": "norm"}, "bridge='norm': a ViT and GPT-2 captioner of widths 12 and 12 has bridge='none'"),
        ({"mlp": "swiglu"}, "mlp='swiglu': a GPT-2 has one of"),
        ({"encoder": {"name": "resnet", "width": 12, "depths": [1]}, "special": False}, "special=False"),
        ({"encoder": {"name": "vit", "registers": 1}}, "registers=1: a ViT folder has registers=0"),
    ],
    ids=str,
)
def test_options_that_they_do_not_have_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    encoder = {"name": "vit", "width": 12, "depth": 1, "heads": 2, "size": 8, "patch": 4}
    options = {
        "vocab": V, "width": 12, "heads": 2, "bridge": "none", "special": True, "places": "none",
        "positions": "learned", "mlp": "gelu_tanh", "scaled": False, **changes,
    }  # fmt: skip
    encoder |= changes.get("encoder", {})
    options["encoder"] = changes["encoder"] if encoder["name"] != "vit" else encoder
    with pytest.raises(ValueError, match=message):
        ch.save(ch.build("captioner", **options), tmp_path, layout="huggingface")
