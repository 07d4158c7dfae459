"""Real checkpoints of images: logits of their own libraries, and top-1 on images of ImageNet's validation part.

benchmarks/fetch_checkpoints.py fetches them; $CLEARHEAD_CHECKPOINTS is their folder, $CLEARHEAD_DATA that of
Imagenette.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoints import TOLERANCE, checkpoint

import clearhead as ch
from clearhead.data.images.files import find_images, read_image
from clearhead.weights import certificate

# The classes of Imagenette, and their numbers among the 1,000 of ImageNet.
IMAGENETTE = {
    "n01440764": 0, "n02102040": 217, "n02979186": 482, "n03000684": 491, "n03028079": 497, "n03394916": 566,
    "n03417042": 569, "n03425413": 571, "n03445777": 574, "n03888257": 701,
}  # fmt: skip
LOGITS = Path(__file__).with_name("keras_resnet_logits.json")


def picture(kind: int) -> np.ndarray:
    """Blue, green and red of a made-up picture of stripes or rings, the same as in keras_resnet_logits.js."""
    c, y, x = np.meshgrid(np.arange(3), np.arange(224), np.arange(224), indexing="ij")
    if kind == 0:
        return (7 * y + 13 * x + 29 * c + 5 * ((x * y) % 17)) % 256
    return ((y - 100) ** 2 + (x - 120) ** 2) // (40 + 10 * c) * 11 % 256


@torch.no_grad()
def test_keras_resnet_logits_equal_those_of_tensorflow_js() -> None:
    bundle = ch.load(checkpoint("keras-resnet50"), device="cpu")
    expected = torch.tensor(json.loads(LOGITS.read_text())["logits"])
    images = np.stack([picture(kind) for kind in range(2)]).astype(np.uint8)
    assert bundle.preprocessing.channels == "bgr"
    logits = bundle.model(torch.from_numpy(bundle.preprocessing.normalise(images)))
    assert float(expected.std()) > 1.0
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=TOLERANCE)


def test_vit_s14_equals_transformers() -> None:
    result = certificate(checkpoint("vit-s14"))
    assert result.reference.startswith("transformers")
    assert result.difference < TOLERANCE
    assert result.ignored == {"dinov2.embeddings.mask_token": (1, 384)}


@torch.no_grad()
@pytest.mark.parametrize("size", [(518, 518), (224, 224), (140, 252)], ids=str)
def test_dinov2_with_registers_equals_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    """The native file is loaded, saved in Hugging Face's layout, and read by transformers."""
    transformers = pytest.importorskip("transformers")
    bundle = ch.load(next(checkpoint("dinov2-registers").glob("*.pt")), device="cpu")
    assert (bundle.config.registers, bundle.config.pool, bundle.can) == (4, "cls", {"embed"})
    ch.save(bundle, tmp_path, layout="huggingface")
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    states = theirs(images).last_hidden_state
    torch.testing.assert_close(bundle.model.encode(images), states, rtol=0.0, atol=TOLERANCE)
    torch.testing.assert_close(bundle.model(images), states[:, 0], rtol=0.0, atol=TOLERANCE)


@torch.no_grad()
def test_mobilenet_equals_transformers() -> None:
    """transformers' MobileNetV2, filled with the same weights under its own names."""
    mobilenet = pytest.importorskip("transformers.models.mobilenet_v2.modeling_mobilenet_v2")
    ours = ch.load(next(checkpoint("mobilenet-v2").glob("*.pth")), device="cpu").model
    config = mobilenet.MobileNetV2Config(num_labels=1000, tf_padding=False, layer_norm_eps=1e-5)
    theirs = mobilenet.MobileNetV2ForImageClassification(config).eval()
    names = {"stem": "conv_stem.first_conv", "last": "conv_1x1"}
    parts = {"widen": "expand_1x1", "filter": "conv_3x3", "narrow": "reduce_1x1"}
    blocks = [f"stages.{i}.{j}" for i, stage in enumerate(ours.stages) for j in range(len(stage))]
    for i, block in enumerate(blocks):
        at = f"layer.{i - 1}" if i else "conv_stem"
        names |= {f"{block}.{a}": f"{at}.{b}" for a, b in parts.items() if i or a != "widen"}
    state = {f"classifier.{leaf}": x for leaf, x in ours.head.state_dict().items()}
    for name, at in names.items():
        for leaf, x in ours.get_submodule(name).state_dict().items():
            part, _, rest = leaf.partition(".")
            state[f"mobilenet_v2.{at}.{'convolution' if part == 'conv' else 'normalization'}.{rest}"] = x
    theirs.load_state_dict(state)
    images = torch.randn(2, 3, 224, 160, generator=torch.Generator().manual_seed(0))
    logits = theirs(images).logits
    torch.testing.assert_close(ours(images), logits, rtol=0.0, atol=TOLERANCE)


def imagenette() -> Path:
    root = os.environ.get("CLEARHEAD_DATA")
    path = Path(root or "", "imagenette-128.zip")
    if not root or not path.is_file():
        pytest.skip("CLEARHEAD_DATA has no imagenette-128.zip")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("mobilenet-v2", 0.60), ("keras-resnet50", 0.63)])
def test_top_1_on_images_of_imagenets_validation_part(name: str, least: float) -> None:
    """500 images of ten classes, with the 1,000 classes of ImageNet to choose from.

    The bounds lie just below what was measured with the preprocessing of each model, 61.0% and 64.0%; they are no
    published numbers, which are for images of full size and all classes. These are of 128 x 128 pixels. Among the ten
    classes alone the same outputs are right for at least 94% of the images.
    """
    path, place = imagenette(), checkpoint(name)
    bundle = ch.load(next(place.glob("*.pth"), place), device="cpu")
    files = [file for part in find_images(path) for file in part if "ILSVRC2012_val_" in file.name]
    assert len(files) == 500
    ten, right, among = {str(number) for number in IMAGENETTE.values()}, 0, 0
    for first in range(0, len(files), 50):
        some = files[first : first + 50]
        results = ch.classify(bundle, [read_image(str(path), file.name) for file in some])
        for classes, file in zip(results, some, strict=True):
            wanted = str(IMAGENETTE[file.label])
            right += classes[0][0] == wanted
            among += next(label for label, _ in classes if label in ten) == wanted
    assert right / len(files) >= least, right / len(files)
    assert among / len(files) >= 0.94, among / len(files)
