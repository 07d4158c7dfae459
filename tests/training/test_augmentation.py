"""Augmentation and random numbers on the device, which depend only on seed, step and row."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearhead import counter_rng
from clearhead.data.images.preprocessing import Preprocessing
from clearhead.training.augmentation import AUGMENTATIONS, augment, make_augmentations, normalise
from clearhead.training.objectives import DeviceRng, Moment
from clearhead.training.recipe import named_options, read_recipe

B, C, H, W = 5, 3, 7, 9


def images():
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (B, C, H, W), dtype=np.uint8))


def moment(rows=range(B), step=4, seed=11):
    return Moment(seed=seed, step=step, steps=10, rows=torch.tensor(list(rows)))


def built(*tables):
    return make_augmentations([named_options(one, "augment") for one in tables])


@pytest.mark.parametrize(("seed", "step", "stream"), [(0, 0, 0), (3, 17, 1), (2**63 - 1, 10**9, 1 << 20)])
def test_device_random_numbers_equal_those_of_the_host(seed, step, stream):
    rows = np.array([0, 1, 5, 1000003])
    ours = DeviceRng(seed, step, torch.from_numpy(rows), stream).bits(6).numpy().view(np.uint64)
    assert np.array_equal(ours, counter_rng.bits(seed, step, rows, 6, stream=stream))


def test_uniform_and_normal_numbers_have_their_distributions():
    rng = DeviceRng(1, 2, torch.arange(2000), 3)
    u, z = rng.uniform(50).double(), rng.normal(25, 2).double()
    assert z.shape == (2000, 25, 2)
    assert float(u.min()) >= 0.0
    assert float(u.max()) < 1.0
    assert float(u.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(u.var()) == pytest.approx(1 / 12, abs=0.002)
    assert float(z.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(z.std()) == pytest.approx(1.0, abs=0.02)
    assert float((z.abs() < 1.959964).double().mean()) == pytest.approx(0.95, abs=0.005)
    assert torch.unique(u).numel() > 0.99 * u.numel()


def test_a_flip_mirrors_the_given_share_of_images():
    x = images()
    assert torch.equal(augment(x, built({"name": "flip", "chance": 1.0}), moment()), x.flip(-1))
    assert torch.equal(augment(x, built({"name": "flip", "chance": 0.0}), moment()), x)
    many = torch.arange(4000, dtype=torch.long)
    row = torch.tensor([[[[0, 1]]]], dtype=torch.uint8).expand(4000, 1, 1, 2)
    flipped = augment(row, built({"name": "flip"}), moment(many.tolist()))[:, 0, 0, 0]
    assert float(flipped.float().mean()) == pytest.approx(0.5, abs=0.03)


def test_a_shift_cuts_a_window_out_of_the_padded_image():
    x, n = images(), 2
    shifted = augment(x, built({"name": "shift", "pixels": n}), moment())
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (n, n), (n, n)))
    corners = []
    for i in range(B):
        places = [
            (y, z)
            for y in range(2 * n + 1)
            for z in range(2 * n + 1)
            if np.array_equal(padded[i, :, y : y + H, z : z + W], shifted[i].numpy())
        ]
        assert len(places) == 1
        corners += places
    assert len(set(corners)) > 1
    assert torch.equal(augment(x, built({"name": "shift", "pixels": 0}), moment()), x)


def test_a_shift_reaches_every_corner_of_the_padded_image_equally_often():
    n, rows = 2, 5000
    x = torch.zeros(rows, 1, 5, 5, dtype=torch.uint8)
    x[:, :, n, n] = 1  # its place in the result shows the shift
    place = augment(x, built({"name": "shift", "pixels": n}), moment(list(range(rows)))).flatten(1).argmax(1)
    share = torch.bincount(place, minlength=25) / rows
    torch.testing.assert_close(share, torch.full((25,), 1 / 25), rtol=0.0, atol=0.015)


def test_a_crop_is_a_part_of_the_image_at_the_size_of_the_whole():
    ramp = torch.arange(W, dtype=torch.uint8).expand(50, C, H, W) * 20
    out = augment(ramp, built({"name": "crop", "least": 0.2}), moment(range(50))).float()
    slope = out[..., 2:-2].diff(dim=-1).mean((1, 2, 3))  # 20 times the share of the width that was kept
    assert 4 <= float(slope.min()) < 14 < float(slope.max()) <= 20.5
    assert out.shape == ramp.shape
    x = images()
    assert (
        augment(x, built({"name": "crop", "least": 1.0, "stretch": 1.0}), moment()).int() - x.int()
    ).abs().max() <= 1


def test_a_crop_shows_nothing_from_outside_the_image():
    white = torch.full((500, C, H, W), 255, dtype=torch.uint8)
    assert int(augment(white, built({"name": "crop", "least": 0.08}), moment(range(500))).min()) == 255


def test_a_crop_keeps_the_least_share_of_the_area():
    ramp = torch.stack([torch.arange(40.0).expand(40, 40), torch.arange(40.0)[:, None].expand(40, 40)])
    ramp = (ramp * 6).round().to(torch.uint8).expand(500, 2, 40, 40)
    out = augment(ramp, built({"name": "crop", "least": 0.9}), moment(range(500))).float()
    sides = [out[:, axis].diff(dim=2 - axis)[:, 2:-2, 2:-2].mean((1, 2)) / 6 for axis in (0, 1)]
    assert 0.88 < float((sides[0] * sides[1]).min()) < 0.93


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("size", [1, 2])
def test_tiny_images_can_be_augmented(name, size):
    tiny = torch.full((200, C, size, size), 100, dtype=torch.uint8)
    assert augment(tiny, built({"name": name}), moment(range(200))).shape == tiny.shape


def test_three_augment_removes_colour_solarises_or_blurs_each_image():
    """Without jitter, each image is one of three: its grey values, values from 128 on inverted, or neighbours' mean."""
    x = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (1, C, H, W), dtype=np.uint8))
    out = augment(x.expand(300, -1, -1, -1), built({"name": "three-augment", "jitter": 0.0}), moment(range(300)))
    images = x.float()
    luminance = (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13  # PIL's SMOOTH
    blurred = images.clone()  # the edge stays
    blurred[..., 1:-1, 1:-1] = F.conv2d(images, kernel.expand(C, 1, 3, 3), groups=C)
    solarised = torch.where(images >= 128, 255 - images, images)
    three = torch.cat([luminance.expand(-1, C, -1, -1), solarised, blurred])
    distance = (out.float()[:, None] - three).abs().amax((2, 3, 4))  # (300, 3)
    assert (distance.amin(1) <= 1).all()  # rounding
    shares = torch.bincount(distance.argmin(1), minlength=3) / 300
    assert ((shares - 1 / 3).abs() < 0.1).all()


def test_three_augment_changes_brightness_contrast_and_colour_by_the_given_share_at_most():
    grey = torch.full((400, C, H, W), 100, dtype=torch.uint8)  # contrast and colour cannot change it
    out = augment(grey, built({"name": "three-augment", "jitter": 0.2}), moment(range(400))).float()
    assert float((out - out[..., :1, :1]).abs().max()) == 0.0
    factors = out[:, 0, 0, 0] / 100
    assert 0.795 <= float(factors.min()) < 0.82
    assert 1.18 < float(factors.max()) <= 1.205


def test_erasing_replaces_a_rectangle_by_one_colour():
    x = torch.full((200, C, 16, 16), 7, dtype=torch.uint8)
    out = augment(x, built({"name": "erase", "chance": 0.5, "most": 0.3}), moment(range(200)))
    changed = (out != 7).any(1)
    areas = changed.float().mean((1, 2))
    assert 70 <= int((areas > 0).sum()) <= 130
    assert 0.2 < float(areas.max()) < 0.4
    for one, where in zip(out, changed, strict=True):
        assert len({tuple(pixel) for pixel in one[:, where].T.tolist()}) <= 1


def test_a_strength_of_zero_leaves_only_what_has_no_strength():
    """Without shifts, colours and the like, RandAugment still stretches and equalises."""
    x = images().clamp(max=254)
    many = x[:1].repeat(1, 1, 3, 3).expand(300, -1, -1, -1)
    out = augment(many, built({"name": "randaugment", "count": 1, "strength": 0.0}), moment(range(300)))
    same = (out == many).flatten(1).all(1).float().mean()
    assert float(same) == pytest.approx(12 / 14, abs=0.06)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_depends_on_step_and_row_and_not_on_the_worker(name):
    x, one = images(), built({"name": "shift", "pixels": 3}, {"name": name})
    whole = augment(x, one, moment())
    parts = torch.cat([augment(x[a:b], one, moment(range(a, b))) for a, b in ((0, 2), (2, 5))])
    assert torch.equal(whole, parts)
    assert whole.dtype == torch.uint8
    assert torch.equal(whole, augment(x, one, moment()))
    assert not torch.equal(whole, augment(x, one, moment(step=5)))
    assert not torch.equal(whole, augment(x, one, moment(seed=12)))


def test_pixels_are_normalised_like_the_model_s_preprocessing():
    kept = Preprocessing(mean=(0.1, 0.2, 0.3), deviation=(0.5, 0.6, 0.7))
    x = images()
    expected = (x.double() / 255 - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([0.5, 0.6, 0.7])[
        :, None, None
    ]
    torch.testing.assert_close(normalise(x, kept, torch.float32).double(), expected, rtol=1e-6, atol=1e-6)
    assert normalise(x, kept, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "flop"}, r"augment.*'flop': expected one of flip, shift, .*erase; the nearest is flip"),
        ({"name": "flip", "chance": 2.0}, r"chance=2.0: expected a share from 0 to 1"),
        ({"name": "shift", "pixel": 2}, r"unknown key .*pixel; the nearest is pixels"),
    ],
)
def test_a_mistake_in_an_augmentation_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        read_recipe({"steps": 1, "data": {"name": "reverse"}, "model": {"name": "gpt"}, "augment": [table]})
