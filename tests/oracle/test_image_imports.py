"""Hugging Face folders of ViT, DeiT, DINOv2, ResNet and ConvNeXt, read and written: equal outputs and gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compare import HIDDEN, B, D, H, both, close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.weights import WeightsError, certificate
from clearhead.weights.huggingface import folder as huggingface

CLASSES = 4
VIT = {
    "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": H, "image_size": 12, "patch_size": 4,
    "layer_norm_eps": 1e-3, "num_labels": CLASSES,
}  # fmt: skip
STAGES = {"hidden_sizes": [6, 12, 24], "depths": [1, 2, 1], "num_labels": CLASSES}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # model type, class of transformers, options
    "vit": ("vit", "ViTForImageClassification", VIT | {"intermediate_size": HIDDEN}),
    "vit, not square, relu": ("vit", "ViTForImageClassification", VIT | {
        "intermediate_size": HIDDEN, "image_size": (8, 12), "hidden_act": "relu"}),
    "vit without an output layer": ("vit", "ViTModel", VIT | {"intermediate_size": HIDDEN}),
    "deit": ("deit", "DeiTForImageClassification", VIT | {"intermediate_size": HIDDEN}),
    "deit, distilled": ("deit", "DeiTForImageClassificationWithTeacher", VIT | {"intermediate_size": HIDDEN}),
    "dinov2": ("dinov2", "Dinov2ForImageClassification", VIT | {"mlp_ratio": 2}),
    "dinov2 without an output layer": ("dinov2", "Dinov2Model", VIT | {"mlp_ratio": 3}),
    "dinov2, swiglu": ("dinov2", "Dinov2ForImageClassification", VIT | {"mlp_ratio": 2, "use_swiglu_ffn": True}),
    "dinov2 with registers": ("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", VIT | {
        "mlp_ratio": 2, "num_register_tokens": 3}),
    "resnet, basic": ("resnet", "ResNetForImageClassification", STAGES | {"embedding_size": 6, "layer_type": "basic"}),
    "resnet, bottleneck": ("resnet", "ResNetForImageClassification", STAGES | {
        "embedding_size": 6, "hidden_sizes": [24, 48, 96], "downsample_in_bottleneck": True}),
    "resnet without an output layer": ("resnet", "ResNetModel", STAGES | {"embedding_size": 6, "layer_type": "basic"}),
    "convnext": ("convnext", "ConvNextForImageClassification", STAGES | {"num_stages": 3}),
    "convnext without layer scale": ("convnext", "ConvNextForImageClassification", STAGES | {
        "num_stages": 3, "layer_scale_init_value": 0.0}),
    "convnext without an output layer": ("convnext", "ConvNextModel", STAGES | {"num_stages": 3}),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)
MERGED = ("distillation", "classifier", "position_embeddings")  # tensors of a DeiT that are not written as they were


def oracle(case: str) -> nn.Module:
    """A random model of odd sizes; norms, biases and statistics are random too, so that none can be lost unnoticed."""
    transformers = pytest.importorskip("transformers")
    kind, name, words = CASES[case]
    torch.manual_seed(0)
    # their eager attention computes its softmax in float32
    attention = "eager" if kind in ("resnet", "convnext") else "sdpa"
    model = getattr(transformers, name)(transformers.AutoConfig.for_model(kind, attn_implementation=attention, **words))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
        for buffer_name, x in model.named_buffers():
            if buffer_name.endswith(("running_mean", "running_var")):
                x.add_(torch.rand_like(x))
    return model.eval()


def output(model: nn.Module, x: Tensor) -> Tensor:
    kind = type(model).__name__
    more = {"interpolate_pos_encoding": model.config.image_size == 12} if kind.startswith(("ViT", "DeiT")) else {}
    out = model(x, **more)
    if hasattr(out, "logits"):
        return out.logits
    convolutional = type(model).__name__.startswith(("ResNet", "ConvNext"))
    return out.pooler_output.flatten(1) if convolutional else out.last_hidden_state[:, 0]


def pictures(height: int, width: int) -> Tensor:
    return torch.randn(B, 3, height, width, generator=torch.Generator().manual_seed(3))


@both
@cases
def test_a_loaded_folder_gives_their_outputs_and_gradients(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = oracle(case).to(dtype)
    theirs.save_pretrained(tmp_path)
    ours = ch.load(tmp_path, device="cpu").model
    sizes = [(37, 52)] if case.startswith(("resnet", "convnext")) else [(8, 12), (36, 20)]
    sizes = [(8, 12)] if "not square" in case else sizes  # which transformers cannot interpolate
    if case.startswith("dinov2") and dtype == torch.float64:
        sizes = [(12, 12)]  # whose positions they interpolate in float32
    for size in sizes:  # the second grid is larger than that of training on one side
        x, y = (pictures(*size).to(dtype).requires_grad_() for _ in range(2))
        mine, other = ours(x), output(theirs, y)
        close(mine, other, "output")
        probe = torch.randn(mine.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
        (mine * probe).sum().backward()
        (other * probe).sum().backward()
        close(x.grad, y.grad, "gradient of the image")
    if "deit" in case:
        return  # two of their tensors are one of ours
    layout = huggingface.get_layout(CASES[case][0])
    mine, expected = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for row in layout.rows(ours.config):
        name = row.theirs[0] if row.theirs[0] in expected else row.theirs[0].removeprefix(layout.prefix)
        if name in expected:  # and no statistic of a batch norm
            gradient = row.conversion.to_theirs(*(mine[part].grad for part in row.ours))
            close(gradient, expected[name].grad, f"gradient of {name}")


@both
@pytest.mark.parametrize("case", ["resnet, basic", "resnet, bottleneck"])
def test_batch_norms_in_training_are_theirs(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = oracle(case).to(dtype)
    theirs.save_pretrained(tmp_path)
    ours, x = ch.load(tmp_path, device="cpu").model.train(), pictures(37, 45).to(dtype)
    close(ours(x), output(theirs.train(), x), "output")


@cases
def test_the_certificate_compares_with_transformers(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path)
    result = certificate(tmp_path)
    assert result.reference is not None, result.note
    assert result.difference < 1e-5 * max(1.0, result.largest)
    assert all("pooler" in name or "mask_token" in name for name in result.ignored)


@cases
def test_a_saved_folder_is_read_by_transformers(case: str, tmp_path: Path) -> None:
    theirs = oracle(case)
    theirs.save_pretrained(tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    ch.save(bundle, tmp_path / "ours", layout="huggingface")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    prefix = CASES[case][0] + "."
    if "without" in case and "output" in case:
        before = {prefix + name: x for name, x in before.items()}
    before = {name: x for name, x in before.items() if "pooler" not in name}
    assert after.keys() == before.keys()
    for name, x in before.items():
        if "mask_token" not in name and not ("deit" in case and any(part in name for part in MERGED)):
            assert torch.equal(x, after[name]), name
    again, loading = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not loading["unexpected_keys"]
    assert all("pooler" in name for name in loading["missing_keys"])
    size = (37, 52) if case.startswith(("resnet", "convnext")) else (8, 12)
    with torch.no_grad():
        close(output(again.eval(), pictures(*size)), output(theirs, pictures(*size)), "output")
    assert ch.load(tmp_path / "ours", device="cpu").config == bundle.config


@cases
def test_a_missing_or_extra_tensor_is_named(case: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    missing = next(name for name in reversed(tensors) if name.endswith(("norm1.bias", "layernorm.bias", "ion.bias")))
    kept = {name: x for name, x in tensors.items() if name != missing}
    save_file(kept, path, {"format": "pt"})
    with pytest.raises(WeightsError, match=rf"{missing}.*is missing"):
        ch.load(tmp_path, device="cpu")
    save_file({**tensors, "extra.weight": torch.zeros(2)}, path, {"format": "pt"})
    with pytest.raises(WeightsError, match=r"extra\.weight \(2,\) has no place"):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("vit", {"qkv_bias": False}, "qkv_bias is False: expected True"),
        ("vit", {"num_attention_heads": 4}, "width=15 does not divide into heads=4"),
        ("vit", {"image_size": 13}, "size=13 does not divide into patches"),
        ("vit", {"image_size": 16}, r"position_embeddings has the shape \(1, 10, 15\), expected \(1, 17, 15\)"),
        ("resnet, basic", {"hidden_act": "gelu"}, "hidden_act is gelu: expected relu"),
        ("resnet, basic", {"hidden_sizes": [6, 12, 25]}, r"hidden_sizes=\(6, 12, 25\): expected \(6, 12, 24\)"),
        ("convnext", {"num_stages": 4}, "num_stages=4: there are 3 depths"),
        ("dinov2", {"layer_norm_eps": "small"}, "layer_norm_eps"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(case: str, changes: dict, message: str, tmp_path: Path) -> None:
    oracle(case).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        ch.load(tmp_path, device="cpu")


PLAIN = {"classes": 3, "size": 8, "patch": 4, "width": 12, "depth": 1, "heads": 3}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("vit", PLAIN | {"positions": "rotary"}, "positions='rotary': a ViT folder has positions='learned'"),
        ("vit", PLAIN | {"pool": "mean"}, "pool='mean': a ViT folder has pool='cls'"),
        ("vit", PLAIN | {"registers": 2, "layer_scale": 0.1}, "antialias=False: a DINOv2 with registers folder has"),
        ("vit", PLAIN | {"layer_scale": 0.1, "pool": "both", "hidden": 13}, "hidden=13: a DINOv2 folder has a whole"),
        ("resnet", {"width": 4, "depths": (1,), "stem": "small"}, "stem='small': a ResNet folder has stem='large'"),
        ("resnet", {"width": 4, "depths": (1,), "attention": (0,)}, "attention="),
        ("convnext", {"width": 4, "depths": (1,), "kernel": 3}, "kernel=3: a ConvNeXt folder has kernel=7"),
        ("mobilenet", {}, "mobilenet: there is no Hugging Face layout"),
    ],
)
def test_options_that_they_do_not_have_are_refused(family: str, options: dict, message: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = ch.build(family, **options)
    with pytest.raises(WeightsError, match=message):
        ch.save(model, tmp_path / "folder", layout="huggingface")
    assert not (tmp_path / "folder").exists()


def test_labels_and_preprocessing_travel_with_the_weights(tmp_path: Path) -> None:
    theirs = oracle("vit")
    theirs.config.id2label = dict(enumerate(("cat", "dog", "fox", "owl")))
    theirs.save_pretrained(tmp_path / "theirs")
    transformers = pytest.importorskip("transformers")
    transformers.ViTImageProcessor(size={"height": 12, "width": 12}).save_pretrained(tmp_path / "theirs")
    bundle = ch.load(tmp_path / "theirs", device="cpu")
    assert bundle.labels == ("cat", "dog", "fox", "owl")
    assert bundle.preprocessing.size == (12, 12)
    again = ch.load(ch.save(bundle, tmp_path / "ours", layout="huggingface"), device="cpu")
    assert (again.labels, again.preprocessing) == (bundle.labels, bundle.preprocessing)


def test_other_labels_than_classes_are_refused(tmp_path: Path) -> None:
    oracle("vit").save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    table["id2label"] = dict(enumerate("abcdef"))
    (tmp_path / "config.json").write_text(json.dumps(table))
    with pytest.raises(WeightsError, match=r"id2label has 6 names, expected one for each of the classes 0 to 3"):
        ch.load(tmp_path, device="cpu")
