"""Weights under the names of torchvision and timm: round trips, and models written out with these names."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import B, close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearhead as ch
from clearhead.weights import WeightsError, certificate

CLASSES = 5
VIT = {"classes": CLASSES, "size": 32, "patch": 16, "width": 192, "depth": 2, "heads": 3, "hidden": 40}
STAGES = {"classes": CLASSES, "width": 8, "depths": (1, 2, 1, 1)}
# The smallest MobileNetV2 of timm.
MOBILENET = {"classes": CLASSES, "width": 16, "widths": (8, 8, 16, 24, 32, 56, 112), "hidden": 24}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit", VIT),
    "vit, layer scale": ("vit", VIT | {"layer_scale": 0.1, "antialias": True}),
    "vit, registers": ("vit", VIT | {"layer_scale": 0.1, "antialias": True, "registers": 3}),
    "vit without an output layer": ("vit", VIT | {"classes": 0, "antialias": True}),
    "resnet, basic": ("resnet", STAGES),
    "resnet, bottleneck": ("resnet", STAGES | {"block": "bottleneck"}),
    "convnext": ("convnext", STAGES),
    "mobilenet": ("mobilenet", MOBILENET),
}
WAYS = [
    (library, case)
    for library in ("torchvision", "timm")
    for case in CASES
    if library == "timm" or case not in ("vit, layer scale", "vit, registers")
]
ways = pytest.mark.parametrize(("library", "case"), WAYS)


def model_of(case: str) -> nn.Module:
    name, options = CASES[case]
    torch.manual_seed(0)
    model = ch.build(name, **options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
        # Statistics of random images: with arbitrary ones the signal of a deep network dies, and nothing is tested.
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        for m in norms:
            m.momentum = 1.0
        if norms:
            model.train()(torch.randn(8, 3, 64, 64))
        for m in norms:
            m.momentum = 0.1
    return model.eval()


def pictures(size: int = 64) -> Tensor:
    return torch.randn(B, 3, size, size, generator=torch.Generator().manual_seed(3))


@ways
@torch.no_grad()
def test_saving_and_loading_gives_the_same_outputs(library: str, case: str, tmp_path: Path) -> None:
    model = model_of(case)
    folder = ch.save(model, tmp_path / "folder", layout=library)
    again = ch.load(folder, device="cpu")
    close(again.model(pictures(32)), model(pictures(32)), "output")
    fixed = {"antialias", "layer_scale", "hidden", "dropout"}
    assert {k for k in CASES[case][1] if getattr(again.config, k) != getattr(model.config, k)} <= fixed
    size = model.config.size if library == "torchvision" and "size" in CASES[case][1] else 224
    assert again.preprocessing.size == (size, size)
    result = certificate(folder)
    assert result.reference is None
    assert "transformers does not read" in result.note
    names = load_file(folder / "model.safetensors")
    assert set(result.used) <= set(names)


@ways
def test_a_missing_or_extra_tensor_is_named(library: str, case: str, tmp_path: Path) -> None:
    folder = ch.save(model_of(case), tmp_path / "folder", layout=library)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    missing = [n for n in tensors if n.endswith(".bias") and any(w in n for w in ("norm", "bn", "ln_1", "features.1"))][
        -1
    ]
    save_file({name: x for name, x in tensors.items() if name != missing}, path)
    with pytest.raises(WeightsError, match=rf"{missing}.* is missing"):
        ch.load(folder, device="cpu")
    save_file({**tensors, "extra.weight": torch.zeros(2)}, path)
    with pytest.raises(WeightsError, match=r"extra\.weight \(2,\) has no place"):
        ch.load(folder, device="cpu")


def norm(w: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{at}.weight"], w[f"{at}.bias"], 1e-6)


def batch_norm(w: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    return F.batch_norm(x, w[f"{at}.running_mean"], w[f"{at}.running_var"], w[f"{at}.weight"], w[f"{at}.bias"])


def linear(w: dict[str, Tensor], at: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{at}.weight"], w[f"{at}.bias"])


def attention(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def vit_torchvision(w: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.conv2d(x, w["conv_proj.weight"], w["conv_proj.bias"], stride=16).flatten(2).mT
    x = torch.cat([w["class_token"].expand(len(x), -1, -1), x], dim=1) + w["encoder.pos_embedding"]
    for i in range(2):
        at = f"encoder.layers.encoder_layer_{i}"
        y = norm(w, f"{at}.ln_1", x)
        y = F.linear(y, w[f"{at}.self_attention.in_proj_weight"], w[f"{at}.self_attention.in_proj_bias"])
        x = x + linear(w, f"{at}.self_attention.out_proj", attention(y, 3))
        y = linear(w, f"{at}.mlp.0", norm(w, f"{at}.ln_2", x))
        x = x + linear(w, f"{at}.mlp.3", F.gelu(y))
    return linear(w, "heads.head", norm(w, "encoder.ln", x)[:, 0])


def vit_timm(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """With registers there is no position for the class token, and the tokens come in front afterwards."""
    x = F.conv2d(x, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=16).flatten(2).mT
    cls = w["cls_token"].expand(len(x), -1, -1)
    if "reg_token" in w:
        x = torch.cat([cls, w["reg_token"].expand(len(x), -1, -1), x + w["pos_embed"]], dim=1)
    else:
        x = torch.cat([cls, x], dim=1) + w["pos_embed"]
    for i in range(2):
        at = f"blocks.{i}"
        y = linear(w, f"{at}.attn.proj", attention(linear(w, f"{at}.attn.qkv", norm(w, f"{at}.norm1", x)), 3))
        x = x + y * w.get(f"{at}.ls1.gamma", torch.ones(()))
        y = linear(w, f"{at}.mlp.fc2", F.gelu(linear(w, f"{at}.mlp.fc1", norm(w, f"{at}.norm2", x))))
        x = x + y * w.get(f"{at}.ls2.gamma", torch.ones(()))
    x = norm(w, "norm", x)[:, 0]
    return linear(w, "head", x) if "head.weight" in w else x


def resnet(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The stride is in the last 3x3 convolution that may have it: the first of a basic block, the second otherwise."""
    x = F.relu(batch_norm(w, "bn1", F.conv2d(x, w["conv1.weight"], stride=2, padding=3)))
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for i, depth in enumerate((1, 2, 1, 1), 1):
        for j in range(depth):
            at, stride = f"layer{i}.{j}", 2 if i > 1 and j == 0 else 1
            bottleneck = f"{at}.conv3.weight" in w
            strides = {1: 1, 2: stride, 3: 1} if bottleneck else {1: stride, 2: 1}
            y = x
            for k, step in strides.items():
                kernel = w[f"{at}.conv{k}.weight"]
                y = batch_norm(w, f"{at}.bn{k}", F.conv2d(y, kernel, stride=step, padding=kernel.shape[-1] // 2))
                y = F.relu(y) if k < len(strides) else y
            if f"{at}.downsample.0.weight" in w:
                x = batch_norm(w, f"{at}.downsample.1", F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=stride))
            x = F.relu(x + y)
    return linear(w, "fc", x.mean((2, 3)))


def convnext(w: dict[str, Tensor], x: Tensor, names: dict[str, Any]) -> Tensor:
    def conv(at: str, x: Tensor, **options: Any) -> Tensor:
        return F.conv2d(x.permute(0, 3, 1, 2), w[f"{at}.weight"], w[f"{at}.bias"], **options).permute(0, 2, 3, 1)

    x = norm(w, names["stem"][1], conv(names["stem"][0], x.permute(0, 2, 3, 1), stride=4))
    for i, depth in enumerate((1, 2, 1, 1)):
        if i:
            first, second = names["halve"](i)
            x = conv(second, norm(w, first, x), stride=2)
        for j in range(depth):
            at, (dw, ln, up, down, scale) = names["block"](i, j), names["parts"]
            y = norm(w, f"{at}.{ln}", conv(f"{at}.{dw}", x, padding=3, groups=x.shape[-1]))
            y = linear(w, f"{at}.{down}", F.gelu(linear(w, f"{at}.{up}", y)))
            x = x + y * w[f"{at}.{scale}"].flatten()
    return linear(w, names["head"], norm(w, names["norm"], x.mean((1, 2))))


CONVNEXT = {
    "torchvision": {
        "stem": ("features.0.0", "features.0.1"), "halve": lambda i: (f"features.{2 * i}.0", f"features.{2 * i}.1"),
        "block": lambda i, j: f"features.{2 * i + 1}.{j}", "norm": "classifier.0", "head": "classifier.2",
        "parts": ("block.0", "block.2", "block.3", "block.5", "layer_scale"),
    },
    "timm": {
        "stem": ("stem.0", "stem.1"), "halve": lambda i: (f"stages.{i}.downsample.0", f"stages.{i}.downsample.1"),
        "block": lambda i, j: f"stages.{i}.blocks.{j}", "norm": "head.norm", "head": "head.fc",
        "parts": ("conv_dw", "norm", "mlp.fc1", "mlp.fc2", "gamma"),
    },
}  # fmt: skip
# The rows t, c, n, s of Table 2 of Sandler et al. 2018, with the channels of a third of the width.
TABLE_2 = [(1, 8, 1, 1), (6, 8, 2, 2), (6, 16, 3, 2), (6, 24, 4, 2), (6, 32, 3, 1), (6, 56, 3, 2), (6, 112, 1, 1)]


def mobilenet(w: dict[str, Tensor], x: Tensor, library: str) -> Tensor:
    def layer(conv: str, bn: str, x: Tensor, *, stride: int = 1, depthwise: bool = False) -> Tensor:
        kernel = w[f"{conv}.weight"]
        groups = x.shape[1] if depthwise else 1
        return batch_norm(w, bn, F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2, groups=groups))

    tv = library == "torchvision"
    x = F.relu6(layer(*(("features.0.0", "features.0.1") if tv else ("conv_stem", "bn1")), x, stride=2))
    number = 1
    for i, (t, c, n, s) in enumerate(TABLE_2):
        for j in range(n):
            at = f"features.{number}.conv" if tv else f"blocks.{i}.{j}"
            names = (
                [(f"{at}.0.0", f"{at}.0.1"), (f"{at}.1.0", f"{at}.1.1"), (f"{at}.2", f"{at}.3")] if tv and t > 1
                else [(f"{at}.0.0", f"{at}.0.1"), (f"{at}.1", f"{at}.2")] if tv
                else [(f"{at}.conv_pw", f"{at}.bn1"), (f"{at}.conv_dw", f"{at}.bn2"), (f"{at}.conv_pwl", f"{at}.bn3")]
                if t > 1 else [(f"{at}.conv_dw", f"{at}.bn1"), (f"{at}.conv_pw", f"{at}.bn2")]
            )  # fmt: skip
            stride = 1 if j else s
            y = F.relu6(layer(*names[0], x)) if t > 1 else x
            y = layer(*names[-1], F.relu6(layer(*names[-2], y, stride=stride, depthwise=True)))
            x = x + y if stride == 1 and x.shape[1] == c else y
            number += 1
    x = F.relu6(layer(*((f"features.{number}.0", f"features.{number}.1") if tv else ("conv_head", "bn2")), x))
    return linear(w, "classifier.1" if tv else "classifier", x.mean((2, 3)))


@pytest.mark.parametrize(
    ("library", "case"), [way for way in WAYS if way != ("torchvision", "vit without an output layer")]
)
def test_a_model_written_out_with_their_names_gives_our_outputs_and_gradients(
    library: str, case: str, tmp_path: Path
) -> None:
    model, size = model_of(case), 32 if case.startswith("vit") else 64
    w = load_file(ch.save(model, tmp_path, layout=library) / "model.safetensors")
    x, y = pictures(size).requires_grad_(), pictures(size).requires_grad_()
    family = CASES[case][0]
    written = {
        "vit": lambda: (vit_torchvision if library == "torchvision" else vit_timm)(w, y),
        "resnet": lambda: resnet(w, y),
        "convnext": lambda: convnext(w, y, CONVNEXT[library]),
        "mobilenet": lambda: mobilenet(w, y, library),
    }[family]()
    mine = model(x)
    assert float(mine.detach().std(dim=0).max()) > 1e-3  # the images make a difference
    close(mine, written, "output")
    mine.square().sum().backward()
    written.square().sum().backward()
    close(x.grad, y.grad, "gradient of the image")


def test_names_of_old_files(tmp_path: Path) -> None:
    """Old torchvision files have no counters of batches, and other names in the MLP of a vision transformer."""
    path = ch.save(model_of("resnet, basic"), tmp_path / "resnet", layout="torchvision") / "model.safetensors"
    tensors = {name: x for name, x in load_file(path).items() if not name.endswith("num_batches_tracked")}
    torch.save(tensors, tmp_path / "resnet.pth")
    loaded = ch.load(tmp_path / "resnet.pth", device="cpu").model
    close(loaded(pictures()), model_of("resnet, basic")(pictures()), "output")
    path = ch.save(model_of("vit"), tmp_path / "vit", layout="torchvision") / "model.safetensors"
    old = {
        n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): x for n, x in load_file(path).items()
    }
    torch.save(old, tmp_path / "vit.pth")
    loaded = ch.load(tmp_path / "vit.pth", device="cpu")
    assert loaded.config.hidden == VIT["hidden"]
    close(loaded.model(pictures(32)), model_of("vit")(pictures(32)), "output")


@pytest.mark.parametrize("kind", ["without a class position", "with positions of registers"])
def test_positions_of_timm_without_the_class_token_or_with_registers(kind: str, tmp_path: Path) -> None:
    model = model_of("vit, registers")
    with torch.no_grad():
        model.embed.cls_place.zero_()
    tensors = load_file(ch.save(model, tmp_path / "a", layout="timm") / "model.safetensors")
    if kind.startswith("with "):
        extra = torch.randn(1, 4, VIT["width"], generator=torch.Generator().manual_seed(1))
        tensors["pos_embed"] = torch.cat([extra, tensors["pos_embed"]], dim=1)
        tensors["cls_token"], tensors["reg_token"] = (
            tensors["cls_token"] - extra[:, :1],
            tensors["reg_token"] - extra[:, 1:],
        )
    save_file(tensors, tmp_path / "vit.safetensors")
    loaded = ch.load(tmp_path / "vit.safetensors", device="cpu").model
    close(loaded(pictures(32)), model(pictures(32)), "output")


def test_a_timm_folder_brings_labels_preprocessing_and_heads(tmp_path: Path) -> None:
    model = ch.build("vit", **VIT | {"width": 24, "heads": 2})
    prepare = ch.data.Preprocessing(resize=40, crop=(32, 32), interpolation="bicubic", mean=(0.1, 0.2, 0.3))
    bundle = ch.Bundle(model, labels=("a", "b", "c", "d", "e"), preprocessing=prepare)
    again = ch.load(ch.save(bundle, tmp_path, layout="timm"), device="cpu")
    assert (again.config.heads, again.labels, again.preprocessing) == (2, bundle.labels, prepare)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        WeightsError, match="the number of heads of a vision transformer of width 24 is not in the file"
    ):
        ch.load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "vit_base_patch16_clip_224"}, "architecture is 'vit_base_patch16_clip_224': expected a vit_"),
        ({"architecture": "resnet50d"}, "architecture is 'resnet50d'"),
        ({"architecture": "resnet50"}, r"there is no conv1\.weight, which every resnet50 has"),
        ({"global_pool": "avg"}, "global_pool is 'avg': expected 'token'"),
        ({"pretrained_cfg": {"crop_mode": "border"}}, "crop_mode is 'border'"),
    ],
)
def test_a_timm_folder_that_computes_otherwise_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    folder = ch.save(model_of("vit"), tmp_path, layout="timm")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(WeightsError, match=message):
        ch.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("library", "family", "options", "message"),
    [
        ("torchvision", "vit", VIT | {"registers": 1}, "registers=1: torchvision's model has registers=0"),
        ("timm", "vit", VIT | {"eps": 1e-5}, "eps=1e-05: timm's model has eps=1e-06"),
        ("torchvision", "resnet", STAGES | {"shrink": "first"}, "shrink='first': torchvision's"),
        ("timm", "mobilenet", MOBILENET | {"widths": (8, 8, 16, 24, 32, 56, 120)}, "timm has them for"),
        ("timm", "mlp", {"inputs": 2, "outputs": 2}, "mlp: timm has no such model: expected one of vit, resnet"),
    ],
)
def test_options_that_they_do_not_have_are_refused(
    library: str, family: str, options: dict, message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        ch.save(ch.build(family, **options), tmp_path / "folder", layout=library)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="its tensors are those of no known model: expected vit of torchvision"):
        ch.load(tmp_path / "other.safetensors", device="cpu")


@pytest.mark.parametrize(("patch", "size"), [(16, 224), (14, 28), (2, 32)])
def test_a_vit_of_any_patch_is_saved_under_an_architecture_that_timm_has(patch: int, size: int, tmp_path: Path) -> None:
    model = ch.build("vit", classes=3, size=size, patch=patch, width=16, depth=1, heads=2)
    table = json.loads((ch.save(model, tmp_path, layout="timm") / "config.json").read_text())
    assert table["architecture"] == "vit_base_patch16_224"
    assert (table["model_args"]["patch_size"], table["model_args"]["img_size"]) == (patch, size)


@pytest.mark.parametrize("wrap", [lambda x: {"model": x, "epoch": 3}, lambda x: {"state_dict": x}])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_checkpoints_of_training_scripts(wrap, prefix: str, tmp_path: Path) -> None:
    model = ch.build("resnet", classes=3, width=8, depths=(1, 1)).eval()
    tensors = load_file(ch.save(model, tmp_path / "a", layout="torchvision") / "model.safetensors")
    torch.save(wrap({prefix + name: x for name, x in tensors.items()}), tmp_path / "last.pth")
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(ch.load(tmp_path / "last.pth", device="cpu").model(images), model(images))


def test_a_file_without_weights_says_what_it_has(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "last.pth")
    with pytest.raises(WeightsError, match=r"does not hold a dictionary of tensors.*it has 'epoch', 'loss'"):
        ch.load(tmp_path / "last.pth", device="cpu")


@pytest.mark.parametrize(("size", "expected"), [(224, 224), (32, 32), (384, 384), (512, 224)])
def test_images_get_the_size_of_the_grid_unless_that_is_larger_than_usual(size: int, expected: int, tmp_path: Path):
    model = ch.build("vit", classes=3, size=size, patch=16, width=192, depth=1, heads=3)
    path = ch.save(model, tmp_path, layout="timm") / "model.safetensors"
    assert ch.load(path, device="cpu").preprocessing.size == (expected, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"width": 768, "heads": 8},
            "heads=8, width=768: a file of torchvision .* of this width has 12",
        ),
        ({"width": 64, "heads": 2}, "heads=2, width=64: .* of this width does not exist"),
        ({"width": 192, "heads": 3, "size": (16, 64)}, r"size=\(16, 64\): torchvision's model has a square grid"),
    ],
)
def test_what_a_torchvision_file_cannot_hold_is_not_saved(options: dict, message: str, tmp_path: Path) -> None:
    model = ch.build("vit", **{"classes": 3, "size": 16, "patch": 8, "depth": 1, **options})
    with pytest.raises(WeightsError, match=message):
        ch.save(model, tmp_path / "folder", layout="torchvision")
