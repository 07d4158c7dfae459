"""Receptive fields against brute force: perturbed pixels, and finite differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clearhead as ch
from clearhead.errors import InputError, Notice
from clearhead.look import Fields, receptive_fields


class Odd(nn.Module):
    """Kernels of different heights and widths, a gap, a maximum, and branches of different depth."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 3, (3, 5), padding=(1, 2))
        self.gaps = nn.Conv2d(3, 3, 3, padding=2, dilation=2)
        self.beside = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Conv2d(3, 2, (2, 1))

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        return self.last(F.gelu(self.gaps(x)) + self.beside(x))


def perturbed(model, layer, size):
    """The rows and columns of pixels that change the centre unit of a layer when they change, over many images."""
    model, found = model.double(), np.zeros(size, bool)
    random = torch.Generator().manual_seed(0)
    for _ in range(6):
        image = torch.randn(1, 1, *size, generator=random, dtype=torch.float64)
        changed = image.repeat(size[0] * size[1], 1, 1, 1)
        changed.view(len(changed), -1).diagonal().add_(3.0)
        with torch.no_grad(), ch.watch(model, layer) as tape:
            model(torch.cat([image, changed]))
        x = tape[layer]
        unit = x[:, :, x.shape[2] // 2, x.shape[3] // 2]
        found |= (unit[1:] != unit[:1]).any(1).view(size).numpy()
    rows, columns = np.flatnonzero(found.any(1)), np.flatnonzero(found.any(0))
    return rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1


@pytest.mark.parametrize("layer", ["first", "beside", "gaps", "last"])
def test_the_theoretical_field_is_that_of_perturbed_pixels(layer):
    torch.manual_seed(0)
    model, size = Odd().eval(), (30, 34)
    expected = perturbed(model, layer, size)
    for seen in (size, (6, 8)):  # in an image smaller than the field, too
        assert receptive_fields(model.float(), torch.randn(1, 1, *seen), layer).theoretical == [expected]


def test_published_theoretical_fields():
    """435 of the last block of ResNet-18 (Araujo et al. 2019, Computing receptive fields, by their formula)."""
    model = ch.build("resnet", classes=2, width=2).eval()
    fields = receptive_fields(model, torch.randn(1, 3, 32, 32))
    assert fields.theoretical[0] == (11, 11)
    assert fields.theoretical[-1] == (435, 435)
    assert [size[0] for size in fields.theoretical] == sorted(size[0] for size in fields.theoretical)


def test_one_channel_is_the_finite_difference():
    torch.manual_seed(0)
    model = Odd().eval().double()
    image = torch.randn(1, 1, 10, 12, dtype=torch.float64)
    found = receptive_fields(model, image, "last", unit=(2, 3), channel=1, theoretical=False).maps[0]
    step = 1e-6
    both = [image.repeat(120, 1, 1, 1), image.repeat(120, 1, 1, 1)]
    for sign, x in zip((1, -1), both, strict=True):
        x.view(120, -1).diagonal().add_(sign * step)
    with torch.no_grad():
        slope = (model(both[0])[:, 1, 2, 3] - model(both[1])[:, 1, 2, 3]).abs().view(10, 12) / (2 * step)
    np.testing.assert_allclose(found, slope / slope.sum(), atol=1e-6)


def test_the_field_of_a_vit_is_the_whole_image_from_its_first_block_on():
    torch.manual_seed(0)
    vit = ch.build("vit", classes=3, size=16, patch=4, width=8, depth=2, heads=2, registers=1).eval()
    fields = receptive_fields(vit, torch.randn(3, 3, 16, 16), ["embed", "blocks.*"])
    assert fields.theoretical == [(4, 4), None, None]
    inside = np.zeros((16, 16), bool)
    inside[8:12, 8:12] = True
    assert fields.maps[0][~inside].sum() == 0  # the patch in row 2 and column 2
    assert (fields.maps[1] > 0).all()
    np.testing.assert_allclose(fields.maps.sum((1, 2)), 1)
    assert (receptive_fields(vit, torch.randn(1, 3, 16, 16), "blocks.0", unit="cls").maps > 0).all()


def test_places_after_attention_in_a_cnn_depend_on_everything():
    model = ch.build("resnet", classes=3, stem="small", width=8, depths=(1, 1, 1), attention=(1,)).eval()
    fields = receptive_fields(model, torch.randn(1, 3, 8, 8))
    assert dict(zip(fields.names, fields.theoretical, strict=True)) == {
        "stem": (3, 3), "stages.0.0": (7, 7), "stages.1.0": (13, 13), "stages.1.1": None, "stages.2.0": None,
    }  # fmt: skip


def test_sizes_of_maps_that_are_known():
    maps = np.zeros((3, 9, 9))
    maps[0, 4, 4] = 1
    maps[1, 2:7, 2:7] = 1 / 25  # a square of 5
    maps[2, 4, [2, 6]] = 0.5
    fields = Fields(names=["a", "b", "c"], maps=maps, theoretical=[None] * 3)
    np.testing.assert_allclose(fields.sides(1.0), [1, 5, 5])
    np.testing.assert_allclose(fields.sides(0.3), [1, 3, 5])
    np.testing.assert_allclose(fields.radii(), [0, 2, 2])
    assert fields.to_dict()["sides"] == fields.sides().tolist()
    with pytest.raises(InputError, match="above 0 and up to 1"):
        fields.sides(0.0)


def test_models_are_drawn_side_by_side_and_the_theoretical_field_beside_one_alone():
    maps = np.full((2, 4, 4), 1 / 16)
    first, second = (Fields(names=["a", "b"], maps=maps, theoretical=[(3, 3), None], title=t) for t in ("vit", "cnn"))
    (axes,) = first.figure().axes
    assert [line.get_label() for line in axes.get_lines()] == ["90 % of the gradient", "theoretical", "image"]
    assert axes.get_lines()[2].get_ydata().tolist() == [4, 4]  # the height of the image
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    alone = Fields(names=["a", "b"], maps=maps, theoretical=[None, None]).figure()
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["90 % of the gradient", "image"]
    lines = first.figure(second).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["vit", "cnn"]
    np.testing.assert_allclose(lines[0].get_data(), [[0, 1], [4, 4]])
    assert len(first.pictures().axes) == 2


def test_maps_show_the_root_of_the_gradient_and_the_square_of_90_percent():
    """A strong centre above a faint field: the square is wide, and the field is seen."""
    maps = np.full((1, 9, 9), 0.5 / 80)
    maps[0, 4, 4] = 0.5
    fields = Fields(names=["a"], maps=maps, theoretical=[None], title="vit")
    (axes,) = fields.pictures(title="vit").axes
    np.testing.assert_allclose(axes.get_images()[0].get_array(), np.sqrt(maps[0]))
    (square,) = axes.patches
    assert fields.sides() == [9]
    np.testing.assert_allclose((square.get_x(), square.get_y(), square.get_width()), (-0.5, -0.5, 9.0))
    three = Fields(names=["a", "b", "c"], maps=np.tile(maps, (3, 1, 1)), theoretical=[None] * 3)
    assert [axes.get_title() for axes in three.pictures(layers=[0, 2]).axes] == ["a", "c"]
    assert repr(fields) == "Fields(layers=1, pixels=9 x 9, title='vit')"


def test_a_model_of_transformers():
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    vit = ViTModel(ViTConfig(image_size=16, patch_size=4, **sizes)).eval()
    blocks = "layers.*" if hasattr(vit, "layers") else "encoder.layer.*"  # as transformers 5.0 has it
    fields = receptive_fields(vit, torch.randn(2, 3, 16, 16), ["embeddings", blocks])
    assert fields.theoretical == [(4, 4), None, None]
    assert (fields.maps[1] > 0).all()


def test_a_unit_without_a_gradient_has_an_empty_map_and_a_notice():
    model = ch.build("resnet", classes=3, stem="small", width=4, depths=(1,)).eval()
    for p in model.parameters():
        p.data.zero_()
    with pytest.warns(Notice, match="stem: the gradient of the unit is 0 everywhere"):
        assert receptive_fields(model, torch.randn(1, 3, 8, 8), "stem").sides()[0] == 0
