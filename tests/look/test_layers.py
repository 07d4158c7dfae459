"""Which attention of a layer is self-attention and which is cross-attention, in models that are not ours."""

import pytest
import torch
from torch import nn

from clearhead.errors import Notice
from clearhead.inputs import read_input
from clearhead.look.structure.layers import layer_stack

WIDTH, HEADS, TARGET, SOURCE = 12, 3, 5, 7


class Decoder(nn.Module):
    """Two layers with cross-attention, under two names and in either order."""

    def __init__(self, names, cross_first):
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(names, cross_first) for _ in range(2))

    def forward(self, x, source):
        for layer in self.layers:
            x = layer(x, source)
        return x


class DecoderLayer(nn.Module):
    def __init__(self, names, cross_first):
        super().__init__()
        self.own, self.other = names
        for name in names[::-1] if cross_first else names:
            self.add_module(name, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))

    def forward(self, x, source):
        x = x + self.get_submodule(self.own)(x, x, x)[0]
        return x + self.get_submodule(self.other)(x, source, source)[0]


def stack_of(names, cross_first, source):
    torch.manual_seed(0)
    model = Decoder(names, cross_first).eval()
    return layer_stack(read_input(model, {"x": torch.randn(1, TARGET, WIDTH), "source": torch.randn(1, source, WIDTH)}))


@pytest.mark.parametrize("cross_first", [True, False])
@pytest.mark.parametrize(
    ("names", "source"),
    [
        (("one", "two"), SOURCE),
        (("cross_b", "a"), SOURCE),  # what it attends to decides before its name
        (("attn", "cross_attn"), TARGET),
        (("attention", "encoder_attn"), TARGET),
        (("SelfAttention", "EncDecAttention"), TARGET),
        (("self_attn", "multihead_attn"), TARGET),
    ],
    ids=str,
)
def test_the_order_of_the_modules_does_not_decide(names, source, cross_first):
    for i, layer in enumerate(stack_of(names, cross_first, source).layers):
        assert (layer.attends, layer.cross_attends) == tuple(f"layers.{i}.{name}" for name in names)
        assert (layer.attention, layer.cross, layer.heads) == (layer.attends, layer.cross_attends, HEADS)


def test_where_nothing_else_tells_the_order_decides_with_a_notice():
    message = "layers.0.one is taken for self-attention and layers.0.two for cross-attention, in the order"
    with pytest.warns(Notice, match=message) as caught:
        layers = stack_of(("one", "two"), False, TARGET).layers
    assert len(caught) == 1
    assert layers[1].cross == "layers.1.two"
