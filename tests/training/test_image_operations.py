"""Operations on images, compared with PIL's; the strengths of RandAugment; rectangles."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from clearhead.training import augmentation as ops
from clearhead.training.augmentation import rectangle

B, H, W = 4, 14, 22


def images(channels=3):
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (B, channels, 3, 3)).repeat(5, 2).repeat(8, 3)[:, :, :H, :W]
    return np.clip(coarse + random.integers(-30, 30, coarse.shape), 20, 230).astype(np.uint8)


def by_pil(change, x):
    changed = [np.asarray(change(Image.fromarray(one.transpose(1, 2, 0)))) for one in x]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2)


def ours(operation, x, amount=0.0):
    return operation(torch.from_numpy(x).float(), torch.full((B,), float(amount))).round().clamp(0, 255)


EXACT = {
    "posterise": (ops.posterise, 0.5, lambda image: ImageOps.posterize(image, 6)),
    "posterise, strongest": (ops.posterise, -1.0, lambda image: ImageOps.posterize(image, 4)),
    "solarise": (ops.solarise, 0.2, lambda image: ImageOps.solarize(image, 204)),
    "equalise": (ops.equalise, 0.0, ImageOps.equalize),
}
# PIL rounds its results, the grey values or the mean in between, so that values differ by one or two.
ROUNDED = {
    "autocontrast": (ops.autocontrast, 0.0, ImageOps.autocontrast),
    "brighter": (ops.brightness, 0.5, lambda image: ImageEnhance.Brightness(image).enhance(1.45)),
    "darker": (ops.brightness, -0.5, lambda image: ImageEnhance.Brightness(image).enhance(0.55)),
    "more colour": (ops.colour, 0.5, lambda image: ImageEnhance.Color(image).enhance(1.45)),
    "less colour": (ops.colour, -1.0, lambda image: ImageEnhance.Color(image).enhance(0.1)),
    "more contrast": (ops.contrast, 0.5, lambda image: ImageEnhance.Contrast(image).enhance(1.45)),
    "sharper": (ops.sharpness, 0.5, lambda image: ImageEnhance.Sharpness(image).enhance(1.45)),
    "smooth": (lambda x, _: ops.smooth(x), 0.0, lambda image: image.filter(ImageFilter.SMOOTH)),
    "grey": (lambda x, _: ops.grey(x), 0.0, lambda image: image.convert("L").convert("RGB")),
}


@pytest.mark.parametrize("case", EXACT)
def test_an_operation_equals_that_of_pil(case):
    operation, amount, change = EXACT[case]
    x = images()
    assert torch.equal(ours(operation, x, amount).to(torch.uint8), by_pil(change, x))
    assert not torch.equal(by_pil(change, x), torch.from_numpy(x))


@pytest.mark.parametrize("case", ROUNDED)
def test_an_operation_equals_that_of_pil_to_rounding(case):
    operation, amount, change = ROUNDED[case]
    x = images()
    assert (ours(operation, x, amount) - by_pil(change, x)).abs().max() <= 2
    assert not torch.equal(by_pil(change, x), torch.from_numpy(x))


# The map from output to input pixels that PIL takes, (a, b, c, d, e, f): x = a x' + b y' + c, y = d x' + e y' + f,
# around the middle of the image, for an amount of 0.5.
TURN, SHEAR, SHIFT = np.radians(15), 0.15, 0.5 * 150 / 331
MOVED = {
    "rotate": (ops.rotate, [[np.cos(TURN), -np.sin(TURN)], [np.sin(TURN), np.cos(TURN)]], (0, 0)),
    "shear_x": (ops.shear_x, [[1, SHEAR], [0, 1]], (0, 0)),
    "shear_y": (ops.shear_y, [[1, 0], [SHEAR, 1]], (0, 0)),
    "shift_x": (ops.shift_x, [[1, 0], [0, 1]], (SHIFT * W, 0)),
    "shift_y": (ops.shift_y, [[1, 0], [0, 1]], (0, SHIFT * H)),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_movement_equals_that_of_pil(name):
    operation, matrix, shift = MOVED[name]
    middle = np.array([W / 2, H / 2])
    offset = middle - np.array(matrix) @ middle + np.array(shift)
    data = (*matrix[0], offset[0], *matrix[1], offset[1])

    def change(image):
        return image.transform((W, H), Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)

    x = images()
    moved, expected = ours(operation, x, 0.5), by_pil(change, x).float()
    inner = (
        slice(None),
        slice(None),
        slice(4, -4),
        slice(6, -6),
    )  # at the border PIL repeats pixels, we blend with black
    assert (moved - expected)[inner].abs().max() <= 2
    assert (expected - torch.from_numpy(x))[inner].abs().max() > 20


@pytest.mark.parametrize("channels", [1, 3])
def test_an_amount_of_zero_changes_nothing(channels):
    x = images(channels)
    for operation in ops.OPERATIONS:
        if operation not in (ops.autocontrast, ops.equalise, ops.solarise):
            torch.testing.assert_close(ours(operation, x), torch.from_numpy(x).float(), rtol=0, atol=0.01)


def test_each_image_gets_the_operation_that_was_chosen_for_it():
    x = torch.from_numpy(images()).float()
    chosen, amount = torch.tensor([11, 0, 6, 13]), torch.tensor([0.3, 0.5, -0.4, 0.2])
    mixed = ops.apply_chosen(x, chosen, amount, ops.OPERATIONS)
    for i, number in enumerate(chosen.tolist()):
        alone = ops.OPERATIONS[number](x[i : i + 1], amount[i : i + 1])
        torch.testing.assert_close(mixed[i : i + 1], alone)


def test_a_constant_image_survives_stretching_and_equalising():
    flat = torch.full((2, 3, 5, 5), 77.0)
    for operation in (ops.autocontrast, ops.equalise):
        assert torch.equal(operation(flat, torch.zeros(2)), flat)


def test_a_rectangle_has_its_size_and_lies_inside():
    u = torch.tensor([[0.0, 0.0], [0.999, 0.999], [0.5, 0.25]])
    inside = rectangle(u, torch.full((3,), 0.5), torch.tensor([0.25, 1.0, 0.5]), 8, 12)
    assert inside.sum((1, 2)).tolist() == [4 * 3, 4 * 12, 4 * 6]
    assert inside[0, :4, :3].all()
    assert inside[1, 4:].all()
    assert inside[2, 2:6, 1:7].all()
