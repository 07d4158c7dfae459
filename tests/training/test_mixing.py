"""Mixup and cutmix: images, shares, and the loss of mixed labels."""

import pytest
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.data import make_data
from clearhead.training.objectives import DeviceRng, Moment, objective_class
from clearhead.training.objectives.classification import beta_quantiles, mix

ROWS = 64


def images(rows=ROWS):
    return torch.randn(rows, 3, 10, 8, generator=torch.Generator().manual_seed(0))


def rng(rows=range(ROWS), step=3):
    return DeviceRng(1, step, torch.tensor(list(rows)), 5)


@pytest.mark.parametrize("parameter", [0.1, 0.3, 0.8, 1.0, 2.5])
def test_quantiles_are_those_of_the_beta_distribution(parameter):
    """Against torch's sampler: the share of draws below a quantile is its level; and the moments are exact."""
    torch.manual_seed(0)
    table = beta_quantiles(parameter)
    draws = torch.distributions.Beta(parameter, parameter).sample((200_000,))
    for level in (64, 256, 512, 900):
        assert float((draws < table[level]).float().mean()) == pytest.approx(level / 1024, abs=0.005)
    assert float(table.mean()) == pytest.approx(0.5, abs=1e-4)
    assert float(table.var()) == pytest.approx(1 / (4 * (2 * parameter + 1)), rel=0.01)
    assert float((table * (1 - table)).mean()) == pytest.approx(parameter / (4 * parameter + 2), rel=0.01)


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        (0.1, (6.996629e-28, 0.0008452555, 0.9999994)), (1.5, (0.00692634, 0.2980136, 0.8213395)),
        (50.0, (0.3484197, 0.4662297, 0.5584221)), (1100.0, (0.4670152, 0.4928095, 0.5124668)),
        (1e6, (0.498905, 0.4997615, 0.5004135)),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_scipy(parameter, expected):
    """By scipy.stats.beta.ppf(level / 1024, parameter, parameter)."""
    table = beta_quantiles(parameter)
    assert table[[1, 256, 900]].tolist() == pytest.approx(expected, rel=1e-5)
    assert (float(table[0]), float(table[-1])) == (0.0, 1.0)


def test_mixup_blends_each_image_with_the_one_half_a_batch_further():
    x = images()
    out, share = mix(x, rng(), beta_quantiles(0.8), None)
    weight = share[:, None, None, None]
    torch.testing.assert_close(out, weight * x + (1 - weight) * x.roll(ROWS // 2, 0))
    assert len(set(share.tolist())) > ROWS // 2
    assert 0 <= float(share.min()) < 0.2 < 0.8 < float(share.max()) <= 1


def test_cutmix_replaces_a_rectangle_and_its_share_is_the_area_that_is_left():
    x = images()
    out, share = mix(x, rng(), None, beta_quantiles(1.0))
    other = x.roll(ROWS // 2, 0)
    own = (out == x).all(1)
    assert ((out == other).all(1) | own).all()
    torch.testing.assert_close(own.float().mean((1, 2)), share)
    for one in ~own:  # a full rectangle
        rows, columns = one.any(1), one.any(0)
        assert int(one.sum()) == int(rows.sum()) * int(columns.sum())


def test_both_methods_mix_half_of_the_rows_each_and_the_rest_stays():
    x = images()
    out, share = mix(x, rng(), beta_quantiles(1.0), beta_quantiles(1.0), mixed=0.5)
    kept, cut = (out == x).flatten(1), (out == x).flatten(1).any(1)
    unchanged = kept.all(1)
    assert torch.equal(unchanged, share == 1) or int((unchanged ^ (share == 1)).sum()) <= 2  # an empty rectangle
    assert 15 <= int(unchanged.sum()) <= 49
    assert 5 <= int((cut & ~unchanged).sum()) <= 27
    assert 5 <= int((~cut).sum()) <= 27


def test_pairs_do_not_depend_on_the_number_of_workers():
    x, both = images(), (beta_quantiles(0.8), beta_quantiles(1.0))
    whole, shares = mix(x, rng(), *both)
    for parts in (2, 4):
        for part in range(parts):
            out, share = mix(x[part::parts], rng(range(part, ROWS, parts)), *both)
            assert torch.equal(out, whole[part::parts])
            assert torch.equal(share, shares[part::parts])
    assert not torch.equal(whole, mix(x, rng(step=4), *both)[0])


class Given(torch.nn.Module):
    """A model whose logits are the first values of an image."""

    def forward(self, images):
        return images[:, 0, 0, :5]

    def parameters(self, recurse=True):
        return iter([torch.zeros(2, 2)])


class Pictured:
    keys, sizes = ("images", "labels"), {"classes": 5}


def objective(data=Pictured, **options):
    kind = objective_class("classification")
    return kind(kind.Config(**options), {"model": Given()}, data)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_loss_is_that_of_the_mixed_target(loss):
    made = objective(loss=loss, smoothing=0.1, mixup=0.8, cutmix=1.0)
    batch = {"images": images(8), "labels": torch.arange(8) % 5}
    mixed = made.prepare(batch, Moment(seed=1, step=0, steps=2, rows=torch.arange(8)))
    share = mixed["share"][:, None]
    first, second = (F.one_hot(x, 5).float() for x in (batch["labels"], batch["labels"].roll(4)))
    target = (share * first + (1 - share) * second) * 0.9 + 0.1 / 5
    logits = mixed["images"][:, 0, 0, :5]
    if loss == "softmax":
        expected = -(target * logits.log_softmax(-1)).sum()
    else:
        expected = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    torch.testing.assert_close(made.loss(mixed), expected)


def test_validation_is_not_mixed():
    made = objective(mixup=0.8).eval()
    batch = {"images": images(8), "labels": torch.arange(8) % 5}
    assert made.prepare(batch, Moment(seed=1, step=0, steps=2, rows=torch.arange(8))) is batch
    logits = batch["images"][:, 0, 0, :5]
    torch.testing.assert_close(made.measure(batch)["loss"], F.cross_entropy(logits, batch["labels"], reduction="sum"))


def test_text_cannot_be_mixed():
    model = ch.build("bert", vocab=9, width=8, depth=1, heads=2, answer="class", classes=5)
    kind, data = objective_class("classification"), make_data("most", {"symbols": 5}, seed=0)
    with pytest.raises(ValueError, match=r"mixup=0.5 mixes images, and this data gives ids"):
        kind(kind.Config(mixup=0.5), {"model": model}, data)
