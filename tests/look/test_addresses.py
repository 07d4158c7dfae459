"""The names that watch and edit understand: modules, activations inside attention, and patterns of them."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from clearhead import edit, watch
from clearhead.layers import Attention
from clearhead.look import AttentionMap
from support.two_blocks import LEAVES, WIDTH, B, H, T, inputs

pytestmark = pytest.mark.filterwarnings("ignore:nothing was recorded:clearhead.look.Notice")
PARTS = ("query", "key", "value", "out")  # modules of an attention


def inside(path: str) -> list[str]:
    """The address of an attention and all addresses inside it."""
    return [path, *(f"{path}.{part}" for part in (*LEAVES, *PARTS))]


SELF = ["blocks.0.attn", "blocks.1.attn"]
ALL = [*SELF, "blocks.1.cross"]
NAMED = {
    "norm": ["norm"],
    "blocks.1": ["blocks.1"],
    "blocks.*": ["blocks.0", "blocks.1"],
    "*": ["blocks", "norm"],
    "*.*.mlp": ["blocks.0.mlp", "blocks.1.mlp"],
    "blocks.*.cross": ["blocks.1.cross"],
    "**.cross": ["blocks.1.cross"],
    "blocks.**.up": ["blocks.0.mlp.up", "blocks.1.mlp.up"],
    "**.1.**.up": ["blocks.1.mlp.up"],
    **{f"blocks.*.attn.{leaf}": [f"{path}.{leaf}" for path in SELF] for leaf in LEAVES},
    **{f"**.{leaf}": [f"{path}.{leaf}" for path in ALL] for leaf in (*LEAVES, "query")},
    "blocks.0.attn.*": inside("blocks.0.attn")[1:],
    "blocks.1.cross.**": inside("blocks.1.cross")[1:],
}


@pytest.mark.parametrize("pattern", NAMED)
def test_one_star_matches_one_part_of_a_name_and_two_any_number(model, pattern):
    with watch(model, pattern) as tape:
        assert tape.names == NAMED[pattern]


def test_two_stars_alone_match_all_addresses(model):
    with watch(model, "**") as tape:
        modules = [name for name, _ in model.named_modules() if name]
        assert set(tape.names) == {*modules, *(f"{path}.{leaf}" for path in ALL for leaf in LEAVES)}


def test_a_tape_has_each_name_once_and_in_the_order_of_the_model(model):
    names = ["norm", "blocks.*.mlp", "**.entropy", "blocks.1.attn.q", "blocks.1.mlp", "blocks.0"]
    with watch(model, *names) as tape:
        assert tape.names == [
            "blocks.0", "blocks.0.attn.entropy", "blocks.0.mlp", "blocks.1.attn.q", "blocks.1.attn.entropy",
            "blocks.1.cross.entropy", "blocks.1.mlp", "norm",
        ]  # fmt: skip
        model(inputs())
    assert list(tape.match("blocks.*.mlp")) == ["blocks.0.mlp", "blocks.1.mlp"]
    assert torch.equal(tape.match("norm")["norm"], tape["norm"])


def test_a_bare_attention_has_addresses_without_dots():
    attention = Attention(WIDTH, H)
    with watch(attention, "**.heads", "weights", "out") as tape:
        attention(inputs())
    assert tape.names == ["weights", "heads", "out"]
    assert tape["weights"].shape == (B, H, T, T)


class Odd(nn.Module):
    """Attention in a dictionary and in a sequence, the same one twice, and modules named like activations."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shared = Attention(WIDTH, H)
        self.eyes = nn.ModuleDict({"left eye": nn.Sequential(nn.LayerNorm(WIDTH), shared), "weights": shared})
        self.q, self.k, self.heads, self.entropy = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.model = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.entropy(self.heads(self.k(self.q(self.model(self.eyes["left eye"](x))))))


def test_attention_is_found_anywhere_in_a_model():
    odd = Odd()
    with watch(odd, "eyes.left eye.1.weights", "model", "**.heads") as tape:
        odd(inputs())
    assert tape.names == ["eyes.left eye.1.weights", "eyes.left eye.1.heads", "heads", "model"]
    assert isinstance(tape["eyes.left eye.1.weights"], AttentionMap)
    assert tape["heads"].shape == (B, T, WIDTH)


@pytest.mark.parametrize("name", ["q", "k", "heads", "entropy", "model"])
def test_outputs_of_a_module_named_like_an_activation_join_along_tokens(name):
    odd, x = Odd(), inputs()
    with watch(odd, name, grad=True) as tape:
        for part in x.split([T - 1, 1], dim=1):
            odd(part).sum().backward()
    calls = tape.calls(name)
    assert torch.equal(tape[name], torch.cat(calls, dim=1))
    assert torch.equal(tape.gradient(name), torch.cat([call.grad for call in calls], dim=1))


def test_an_object_with_a_model_is_watched_as_its_model(model):
    bundle = SimpleNamespace(model=model, tokens=None)
    with watch(bundle, "norm") as tape, edit(bundle, {"norm": torch.zeros_like}):
        assert not model(inputs()).any()
    assert torch.equal(tape["norm"], model(inputs()))
