"""Initialisation: the deviations of the papers, and weights that depend only on seed and name."""

import math

import pytest
import torch
from torch import nn

from clearhead.layers import Additive, Bilinear, Block, Learned, Patches, Recurrent, Relative, Tokens
from clearhead.training.start.initialisation import initialise


class Model(nn.Module):
    def __init__(self, depth=3, width=60, norm="layer", **options):
        super().__init__()
        self.tokens = Tokens(97, width)
        self.positions = Learned(width, 50)
        self.blocks = nn.ModuleList(Block(width, 3, norm=norm, **options) for _ in range(depth))
        self.head = nn.Linear(width, 97)


def state(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def drawn(word, seed=0, **options):
    model = Model(**options)
    initialise(model, word, seed)
    return state(model)


def test_default_changes_nothing():
    model = Model()
    before = state(model)
    initialise(model, "default", 0)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


@pytest.mark.parametrize("word", ["xavier", "kaiming", "normal"])
def test_biases_become_zero_and_norms_do_not_change(word):
    for name, p in drawn(word).items():
        if "norm" in name:
            assert torch.equal(p, torch.ones_like(p) if name.endswith("weight") else torch.zeros_like(p))
        elif name.endswith("bias"):
            assert not p.any(), name
        else:
            assert p.std() > 0, name


def test_deviations_are_those_of_torch():
    """Deviation and range of the same matrices as torch.nn.init draws them; 6% is 5 sigma for 3,000 numbers."""
    torch.manual_seed(0)
    theirs = {"xavier": nn.init.xavier_uniform_, "kaiming": nn.init.kaiming_normal_}
    for word, fill in theirs.items():
        for name, p in drawn(word).items():
            if p.ndim == 2:
                many = torch.stack([fill(torch.empty_like(p)) for _ in range(20)])
                assert p.std() == pytest.approx(many.std().item(), rel=0.06), (word, name)
                assert word == "kaiming" or p.abs().max() == pytest.approx(many.abs().max().item(), rel=0.02)
    conv = nn.Sequential(nn.Conv2d(6, 40, (3, 5), groups=2))
    initialise(conv, "kaiming", 0)
    many = nn.init.kaiming_normal_(torch.empty(400, 3, 3, 5))
    assert conv[0].weight.std().item() == pytest.approx(many.std().item(), rel=0.1)
    initialise(conv, "xavier", 0)
    assert conv[0].weight.abs().max() <= nn.init.xavier_uniform_(torch.empty(40, 3, 3, 5)).abs().max() * 1.02


@pytest.mark.parametrize("cross", [False, True])
def test_normal_is_the_initialisation_of_gpt2(cross):
    for name, p in drawn("normal", depth=4, cross=cross).items():
        writes = name.endswith(("attn.out.weight", "cross.out.weight", "mlp.down.weight"))
        if p.ndim == 2:
            assert p.std() == pytest.approx(0.02 / math.sqrt(8) if writes else 0.02, rel=0.06), name


def test_weights_depend_only_on_seed_and_name():
    small, large = drawn("normal", norm="rms"), drawn("normal", cross=True)
    same = [n for n in small if n in large and small[n].ndim == 2]
    assert len(same) > 15
    assert all(torch.equal(small[n], large[n]) for n in same)
    other = drawn("normal", seed=1)
    assert not any(torch.equal(small[n], other[n]) for n in same)
    assert len({round(small[n].flatten()[0].item(), 9) for n in same}) == len(same)  # all names differ
    before = torch.get_rng_state()
    drawn_again = Model().bfloat16()
    torch.set_rng_state(before)
    initialise(drawn_again, "normal", 0)
    assert torch.equal(torch.get_rng_state(), before)  # torch's global generator is not used
    assert all(torch.equal(small[n].bfloat16(), drawn_again.get_parameter(n)) for n in same)


def test_a_tied_embedding_is_drawn_once():
    model = Model()
    model.head.weight = model.tokens.table
    initialise(model, "normal", 0)
    assert torch.equal(model.head.weight, drawn("normal")["tokens.table"])


def test_every_kind_of_layer_is_initialised():
    model = nn.ModuleDict({
        "patches": Patches(48, patch=4, registers=9), "cell": Recurrent(48), "far": Relative(3),
        "additive": Additive(400, 4), "bilinear": Bilinear(50, 4, key=20), "cosine": Block(48, 3, score="cosine"),
    })  # fmt: skip
    initialise(model, "kaiming", 0)
    p = state(model)
    assert p["additive.v"].std() == pytest.approx(math.sqrt(2 / 400), rel=0.1)
    assert p["bilinear.weight"].std() == pytest.approx(math.sqrt(2 / 50), rel=0.06)
    assert p["cell.cell.weight_ih_l0"].std() == pytest.approx(math.sqrt(2 / 48), rel=0.06)
    assert not p["cell.cell.bias_hh_l0"].any()
    assert not p["far.table"].any()  # no distance is preferred at first
    assert torch.equal(p["cosine.attn.sharpness"], torch.full((3, 1, 1), 10.0))
    assert p["patches.project.weight"].std() == pytest.approx(math.sqrt(2 / 48), rel=0.1)
    initialise(model, "xavier", 0)
    gate = state(model)["cell.cell.weight_ih_l0"]  # three gates, each a 48 x 48 matrix
    assert gate.abs().max() == pytest.approx(math.sqrt(6 / 96), rel=0.02)
    initialise(model, "normal", 0)
    for name in ("cls", "registers", "places", "cls_place", "project.weight"):
        assert state(model)[f"patches.{name}"].std() == pytest.approx(0.02, rel=0.3), name


def test_an_unknown_initialisation_is_refused():
    with pytest.raises(ValueError, match=r"'glorot'.*xavier, kaiming"):
        initialise(Model(), "glorot", 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_weights_on_a_gpu_equal_those_on_the_cpu():
    model = Model().cuda()
    initialise(model, "xavier", 3)
    here = drawn("xavier", seed=3)
    assert all(torch.equal(here[n], p.cpu()) for n, p in model.named_parameters())
