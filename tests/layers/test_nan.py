"""A NaN is never hidden: it reaches the outputs and statistics that depend on it, and no others."""

from itertools import product

import pytest
import torch

from clearhead.layers import Mask, Tap, attend
from clearhead.look import MEANING, AttentionMap
from clearhead.look.maps.call import DenseCall, LazyCall

B, H, T, E = 2, 3, 7, 4


class Recorder(Tap):
    """Keeps what an attention map is made of, on either path."""

    def __init__(self, explicit: bool) -> None:
        self.explicit = explicit

    def seen(self, q, k, mask, bias, scale, lse) -> None:
        self.source = LazyCall(q=q, k=k, mask=mask, bias=bias, scale=scale, given=lse)

    def weights(self, weights, mask):
        self.source = DenseCall(weights=weights)
        return weights


MASKS = {
    "free": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(causal=True, window=3),
    "lengths": Mask(lengths=[5, 6]),
    "documents": Mask(documents=torch.tensor([[0, 0, 0, 1, 1, 1, 1]])),
    "allow": Mask(allow=torch.eye(T, dtype=torch.bool).roll(1, 0) | (torch.arange(T) != 4)),
}
# Key heads, whether scores are computed explicitly, and the dtype.
PATHS = {
    "fused": (H, False, torch.float32),
    "fused, double": (H, False, torch.float64),
    "grouped": (1, False, torch.float32),
    "explicit": (H, True, torch.float64),
}
cases = pytest.mark.parametrize(("mask", "biased", "path"), list(product(MASKS, ("", "biased"), PATHS)))


def with_nan(which: str, mask: str, biased: str, path: str):
    """Attend without and with a NaN in row 1, head 0, token 3 of q, k or v.

    Returns the outputs, the maps, the dense mask, and which queries depend on the NaN.
    """
    groups, explicit, dtype = PATHS[path]
    torch.manual_seed(0)
    parts = {"q": torch.randn(B, H, T, E, dtype=dtype)}
    parts |= {name: torch.randn(B, groups, T, E, dtype=dtype) for name in ("k", "v")}
    more = {"mask": MASKS[mask], "bias": torch.randn(H, T, T, dtype=dtype) if biased else None}
    outs, maps = [], []
    for value in (0.5, float("nan")):
        parts[which] = parts[which].clone()
        parts[which][1, 0, 3, 2] = value
        tap = Recorder(explicit)
        outs.append(attend(**parts, **more, tap=tap))
        maps.append(AttentionMap([tap.source]))
    allowed = MASKS[mask].dense(T, T).expand(B, H, T, T)
    nan = torch.zeros(B, H, T, dtype=torch.bool)
    if which == "q":
        nan[1, 0, 3] = True
    else:
        nan[1, : H // groups] = allowed[1, : H // groups, :, 3]
    return outs, maps, allowed, nan


@cases
def test_a_nan_query_makes_its_own_output_nan_and_no_other(mask, biased, path):
    (clean, out), _, _, nan = with_nan("q", mask, biased, path)
    assert out[nan].isnan().all()
    torch.testing.assert_close(out[~nan], clean[~nan])


@cases
@pytest.mark.parametrize("which", ["k", "v"])
def test_a_nan_key_or_value_reaches_every_query_that_may_attend_to_it_and_no_other_row_or_head(
    which, mask, biased, path
):
    (clean, out), _, _, nan = with_nan(which, mask, biased, path)
    assert out[nan].isnan().any(-1).all()
    others = ~nan.any(-1)  # rows and heads
    torch.testing.assert_close(out[others], clean[others])


@cases
@pytest.mark.parametrize("which", ["q", "k"])
def test_statistics_of_a_query_with_nan_scores_are_nan(which, mask, biased, path):
    _, maps, allowed, nan = with_nan(which, mask, biased, path)
    names = [name for name in MEANING if name not in ("peak", "received")]  # peak is an index; received is per key
    clean, now = (each.statistics(*names) for each in maps)
    for name in names:
        sure = nan & allowed[..., 0] if name == "sink" else nan  # the first key, if the query may attend to it
        assert now[name][sure].isnan().all(), name
        torch.testing.assert_close(now[name][~nan], clean[name][~nan])


@pytest.mark.parametrize("path", ["fused", "explicit"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("which", ["q", "k"])
def test_a_query_with_nan_scores_reaches_the_keys_it_may_attend_to_and_no_other(which, mask, path):
    """Received attention and the pooled map are sums of the weights that `dense` returns."""
    _, maps, allowed, nan = with_nan(which, mask, "", path)
    weights = maps[1].dense()
    assert torch.equal(weights.isnan(), allowed & nan[..., None])
    torch.testing.assert_close(maps[1].received(), weights.sum(-2), equal_nan=True)
    torch.testing.assert_close(maps[1].pool(T), weights, equal_nan=True)
