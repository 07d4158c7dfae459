"""Sanity checks that can fail: a planted patch, random weights, and curves of better and worse maps."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import clearhead as ch
from clearhead.look import perturbation_curves, saliency

SIZE, PATCH = 32, (6, 18)  # edge of the images; the planted patch is at rows and columns 6..17: 14 % of the image
GRADIENTS = ["gradient", "input-gradient", "smoothgrad", "integrated"]
INSIDE = slice(*PATCH)
BOX = (PATCH[0], PATCH[0], PATCH[1], PATCH[1])


def planted(count, generator):
    """Images of noise in which only the direction of the stripes inside the patch tells the class."""
    x = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    y = torch.randint(2, (count,), generator=generator)
    side = PATCH[1] - PATCH[0]
    stripes = ((torch.arange(side) // 2) % 2 * 2 - 1).float()
    flat, upright = stripes[:, None].expand(side, side), stripes[None].expand(side, side)
    sign = torch.randint(2, (count, 1, 1), generator=generator) * 2 - 1
    x[:, :, INSIDE, INSIDE] = (
        0.5 * x[:, :, INSIDE, INSIDE] + (torch.where(y[:, None, None] == 1, flat, upright) * sign)[:, None]
    )
    return x, y


class Small(nn.Module):
    """A convolutional network that can tell places apart, since its last layer reads all of them."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.GELU(), nn.Conv2d(12, 16, 3, 2, 1), nn.GELU())
        self.head = nn.Linear(16 * 64, 2)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Small()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
    for _ in range(250):
        x, y = planted(64, generator)
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    x, y = planted(200, generator)
    assert (model(x).argmax(1) == y).float().mean() > 0.97
    return model.eval()


def top_inside(values, share=0.01):
    """The part of the largest values that lies inside of the patch."""
    mask = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    mask[INSIDE, INSIDE] = True
    best = values.flatten().abs().topk(round(share * values.numel())).indices
    return mask.flatten()[best].float().mean().item()


@pytest.mark.parametrize("method", [*GRADIENTS, "grad-cam", "occlusion"])
def test_the_strongest_pixels_lie_in_the_planted_patch(trained, method):
    x, _ = planted(8, torch.Generator().manual_seed(5))
    shares = torch.tensor([top_inside(saliency(trained, one, method=method).values) for one in x])
    assert shares.mean() >= 0.9
    inside = [saliency(trained, one, method=method).share(BOX) for one in x]
    assert sum(inside) / len(inside) > 2.5 * (PATCH[1] - PATCH[0]) ** 2 / SIZE**2
    torch.manual_seed(0)
    untrained = torch.tensor([top_inside(saliency(Small().eval(), one, method=method).values) for one in x])
    assert untrained.mean() < 0.5  # the check can fail


def rank_correlation(a, b):
    """Spearman's rank correlation of two maps."""
    ranks = [x.flatten().abs().argsort().argsort().double() for x in (a, b)]
    return torch.corrcoef(torch.stack(ranks))[0, 1].item()


@pytest.mark.parametrize("method", [*GRADIENTS, "grad-cam", "occlusion"])
def test_random_parameters_change_the_saliency(trained, method):
    """Adebayo et al. 2018, section 3: the map of a model without its learned weights is another one."""
    x, _ = planted(4, torch.Generator().manual_seed(6))
    torch.manual_seed(1)
    other = Small().eval()
    found, again, random = [], [], []
    for one in x:
        first = saliency(trained, one, method=method, target=0).values
        found.append(first)
        again.append(rank_correlation(first, saliency(trained, one, method=method, target=0).values))
        random.append(rank_correlation(first, saliency(other, one, method=method, target=0).values))
    assert min(again) == pytest.approx(1)
    assert sum(random) / len(random) < 0.5


@pytest.mark.filterwarnings("ignore:gradients of scores")
@pytest.mark.filterwarnings("ignore:integrated gradients")  # 8 steps are few
@pytest.mark.parametrize("method", ["gradient", "integrated", "grad-cam", "gradient-rollout"])
def test_random_parameters_change_the_saliency_of_a_vision_transformer(method):
    vit = ch.load("vit-cifar10", device="cpu")
    image = vit.pixels(Path(ch.__file__).parent / "explore" / "example_images" / "cat.webp")
    first = saliency(vit.model, image, method=method, target=3, **({"steps": 8} if method == "integrated" else {}))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in vit.model.parameters():
            parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    second = saliency(vit.model, image, method=method, target=3, **({"steps": 8} if method == "integrated" else {}))
    assert rank_correlation(first.values, second.values) < 0.5


def test_deleting_the_patch_first_is_better_than_deleting_it_last(trained):
    x, y = planted(1, torch.Generator().manual_seed(7))
    found = saliency(trained, x[0], method="integrated")
    assert found.index == int(y)
    best, worst = torch.zeros(SIZE, SIZE), torch.ones(SIZE, SIZE)
    best[INSIDE, INSIDE], worst[INSIDE, INSIDE] = 1, 0
    maps = {"found": found} | {name: replaced(found, values) for name, values in (("best", best), ("worst", worst))}
    curves = perturbation_curves(trained, x[0], maps, steps=20)
    assert curves.deletion_area["best"] < curves.deletion_area["worst"] - 0.2
    assert curves.deletion_area["found"] < curves.deletion_area["worst"] - 0.2
    assert curves.insertion_area["best"] > curves.insertion_area["worst"] + 0.2
    assert curves.insertion_area["found"] > curves.insertion_area["worst"] + 0.2


def replaced(found, values):
    import dataclasses

    return dataclasses.replace(found, values=values)


def test_curves_are_the_probabilities_of_images_with_the_first_pixels_replaced(trained):
    x, _ = planted(1, torch.Generator().manual_seed(7))
    found = saliency(trained, x[0], method="gradient", target=1)
    calls = []
    options = {"steps": 4, "deleted": 0.5, "empty": torch.full_like(x[0], -1.0)}
    curves = perturbation_curves(trained, x[0], found, **options, done=lambda n, every: calls.append((n, every)))
    order = found.values.flatten().argsort(descending=True, stable=True)
    assert curves.share.tolist() == [0, 0.25, 0.5, 0.75, 1]
    for i, count in enumerate([0, 256, 512, 768, 1024]):
        gone, come = x[0].flatten(1).clone(), torch.full((3, SIZE * SIZE), -1.0)
        gone[:, order[:count]] = 0.5
        come[:, order[:count]] = x[0].flatten(1)[:, order[:count]]
        for curve, picture in ((curves.deletion, gone), (curves.insertion, come)):
            with torch.no_grad():
                want = trained(picture.view(1, 3, SIZE, SIZE)).softmax(-1)[0, 1].item()
            assert curve["gradient"][i].item() == pytest.approx(want, abs=1e-6)
    line = curves.deletion["gradient"]
    want = sum((a + b) / 8 for a, b in zip(line[:-1].tolist(), line[1:].tolist(), strict=True))
    assert curves.deletion_area["gradient"] == pytest.approx(want)
    assert sum(n for n, _ in calls) == calls[0][1] == 10
    assert curves.to_dict()["insertion_area"] == curves.insertion_area
    assert [axes.get_title() for axes in curves.figure().axes] == ["deletion", "insertion"]


def test_curves_of_a_text_delete_its_tokens():
    bundle = ch.load("everyday", device="cpu")
    text = "A man is standing in the"
    found = saliency(bundle, text, method="occlusion")
    curves = perturbation_curves(bundle, text, found)
    assert len(curves.share) == 7
    assert curves.deletion["occlusion"][0].item() == pytest.approx(found.probability, abs=1e-6)
    assert curves.insertion["occlusion"][-1].item() == pytest.approx(found.probability, abs=1e-6)


def test_curves_that_cannot_be_drawn_are_refused(trained):
    x, _ = planted(1, torch.Generator().manual_seed(7))
    zero, one = (saliency(trained, x[0], method="gradient", target=t) for t in (0, 1))
    function = saliency(trained, x[0], method="gradient", target=lambda logits: logits[:, 0])
    for maps, options, message in (
        ({}, {}, "no saliency maps"),
        ({"a": zero, "b": one}, {}, "maps of several targets, 0, 1"),
        (function, {}, "expected target=the function"),
        (zero, {"steps": 0}, "steps=0"),
        (replaced(zero, torch.zeros(3, 3)), {}, r"has shape \(3, 3\): the input has \(32, 32\)"),
    ):
        with pytest.raises(ValueError, match=message):
            perturbation_curves(trained, x[0], maps, **options)
    curves = perturbation_curves(trained, x[0], function, target=lambda logits: logits[:, 0], steps=2)
    assert curves.deletion["gradient"][0].item() == pytest.approx(function.score, abs=1e-5)
