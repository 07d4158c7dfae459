"""The numbers of the worked examples in the lectures."""

import subprocess
import sys

import pytest
import torch

import clearhead as ch
from clearhead.explore.build import X, example, tell
from clearhead.layers import attend

EXACT = torch.tensor([[1.9366, 6.6831, 1.5951], [2.0000, 7.9640, 0.0540], [1.9997, 7.7599, 0.3584]])


def test_the_worked_example():
    attention = example()
    with ch.watch(attention, "q", "scores", "weights") as tape:
        y = attention(X[None])[0]
    assert tape["q"][0, 0, 0].tolist() == [1, 0, 2]
    assert tape["scores"][0, 0].tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    torch.testing.assert_close(y, EXACT, atol=5e-5, rtol=0)
    # The slide rounds the first row of weights to [0, .5, .5]: the weight of the first key is really 0.06.
    torch.testing.assert_close(tape["weights"].row(0)[0, 0], torch.tensor([0.0634, 0.4683, 0.4683]), atol=5e-5, rtol=0)


def test_the_worked_example_is_not_scaled():
    """The scaled score gives other numbers: the slide uses the plain dot product."""
    q, k, v = (X @ w.weight.T for w in (example().query, example().key, example().value))
    y = attend(*(x[None, None] for x in (q, k, v)), score="scaled")[0, 0]
    assert (y - EXACT).abs().max() > 0.05


def test_the_text_of_the_worked_example_has_its_numbers():
    text = tell()
    for part in ("1.9366   6.6831   1.5951", "4   16   12", "Input 1 looks most at input 2 and input 3."):
        assert part in text


def test_the_module_prints_the_worked_example():
    out = subprocess.run([sys.executable, "-m", "clearhead.explore"], capture_output=True, text=True, check=True)
    assert "1.9366" in out.stdout
    assert out.stdout.endswith("clearhead explore opens a page that changes these numbers: its Build view.\n")
    assert out.stderr == ""
    words = [sys.executable, "-m", "clearhead.explore", "runs/a", "--no-browser"]
    wrong = subprocess.run(words, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "expected no arguments" in wrong.stderr
    assert wrong.stderr.endswith("the page is opened by: clearhead explore runs/a --no-browser\n")


@pytest.mark.parametrize(("sharpness", "answer"), [(0.0, 6.0), (1000.0, 7.0)])
def test_sharpness_goes_from_the_mean_to_a_lookup(sharpness, answer):
    """With sharpness 0 attention averages its values; with a large one it looks up the best key."""
    q = torch.tensor([[[[0.0, 1.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [0.0, 0.9], [0.3, 0.4]]]])
    v = torch.tensor([[[[1.0], [7.0], [10.0]]]])
    assert attend(q, k, v, sharpness=sharpness).item() == pytest.approx(answer)
