"""The reader, a model with one of three memories: each remembers what it should, and loses what it must."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import clearhead as ch
from clearhead.data import make_data
from clearhead.layers import Memory

V = 7


def ids(tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, V, (2, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mix", ["sum", "forget"])
def test_the_memory_is_the_fading_sum_of_the_tokens(mix):
    torch.manual_seed(0)
    model, x = ch.build("reader", vocab=V, width=6, mix=mix, gamma=0.8).double(), ids(5)
    with ch.watch(model, "blocks.0.memory") as tape:
        model(x)
    value = model.blocks[0].memory.value
    gamma = 1.0 if mix == "sum" else 0.8
    held = torch.zeros(2, 6, dtype=torch.float64)
    for t in range(5):
        token = model.embed.table[x[:, t]] + (model.before.table[x[:, t - 1]] if t else 0.0)
        held = gamma * held + value(token)
        torch.testing.assert_close(tape["blocks.0.memory"][:, t], held.detach())


def test_a_sum_loses_the_order_and_forgetting_does_not():
    torch.manual_seed(0)
    for mix, ordered in (("sum", False), ("forget", True)):
        model = ch.build("reader", vocab=V, mix=mix).eval()
        torch.nn.init.zeros_(model.before.table)
        one, other = (model(torch.tensor([order]))[:, -1] for order in ([0, 1, 2, 3, 6], [2, 0, 3, 1, 6]))
        assert torch.allclose(one, other, atol=1e-5) != ordered


def test_each_head_has_its_own_gamma():
    model = ch.build("reader", vocab=V, width=6, mix="forget", heads=2, gamma=(0.9, 0.5))
    torch.testing.assert_close(model.blocks[0].memory.gamma, torch.tensor([0.9, 0.5]))
    learns = ch.build("reader", vocab=V, width=6, mix="forget", heads=2, gamma=(0.9, 0.5), learned=True)
    torch.testing.assert_close(learns.blocks[0].memory.gamma.detach(), torch.tensor([0.9, 0.5]))
    assert learns.blocks[0].memory.rate.requires_grad


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("chunk", [1, 3, 4, 128])
def test_the_memory_starts_empty_with_each_document(gamma, chunk):
    """Documents end within a chunk, at its end and beyond; a number that occurs twice is two documents."""
    torch.manual_seed(0)
    memory, x = Memory(4, heads=2, gamma=gamma).double(), torch.randn(2, 11, 4, dtype=torch.float64)
    lengths = ((4, 2, 5), (1, 9, 1))
    documents = torch.stack([torch.repeat_interleave(torch.tensor([3, 8, 3]), torch.tensor(n)) for n in lengths])
    state = torch.randn(2, 4, dtype=torch.float64)
    together = memory(x, state, documents=documents, chunk=chunk)
    for row, sizes in enumerate(lengths):
        parts, before = [], state[row : row + 1]
        for part in x[row : row + 1].split(sizes, dim=1):
            parts.append(memory(part, before))
            before = None
        torch.testing.assert_close(together[row : row + 1], torch.cat(parts, dim=1))


def test_a_single_document_changes_nothing():
    torch.manual_seed(0)
    for mix in ("sum", "forget", "attention"):
        model, x = ch.build("reader", vocab=V, mix=mix).double().eval(), ids(150)
        torch.testing.assert_close(model(x, documents=torch.full_like(x, 4)), model(x))


def accuracy(mix: str, steps: int = 250, **options) -> list[float]:
    """The accuracy of naming the important guest if it came last, third from last, or first of eight."""
    torch.manual_seed(0)
    party = {"symbols": 6, "length": 8, "rows": 32, "valid_rows": 256, "valid_batches": 1}
    data = make_data("recall", party, seed=1)
    model = ch.build("reader", vocab=data.sizes["vocab"], width=32, mix=mix, **options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = {name: torch.from_numpy(x) for name, x in data.batch(step).items()}
        optimiser.zero_grad()
        F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["targets"].flatten()).backward()
        optimiser.step()
    right = []
    for age in (0, 2, 7):
        batch = make_data("recall", party | {"valid_age": age}, seed=1).valid(0)
        answers = model(torch.from_numpy(batch["ids"])).argmax(-1).numpy()
        right.append(float((answers == batch["targets"])[batch["targets"] >= 0].mean()))
    return right


def test_only_attention_remembers_the_important_guest_at_any_age():
    assert min(accuracy("attention")) > 0.99
    last, third, first = accuracy("forget", gamma=0.5)
    assert last > 0.9  # the newest is remembered,
    assert max(third, first) < 0.5  # and older ones fade, however important
    assert max(accuracy("sum")) < 0.6  # all guests are remembered equally
