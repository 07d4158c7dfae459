"""What a batch costs: against torch's own losses, and the same whatever fills a batch up."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import Config, Normed, Pixels

from clearhead import build
from clearhead.data import make_data
from clearhead.training.objective import Objective, count

pytestmark = pytest.mark.usefixtures("own_models")


def gpt():
    torch.manual_seed(0)
    return build("gpt", vocab=6, context=9, width=12, depth=1, heads=3)


def batch(part=0, parts=1, **options):
    data = make_data("reverse", {"symbols": 5, "length": (1, 4), "rows": 5, **options}, seed=1)
    return data.batch(0, part, parts)


def tensors(arrays):
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_sequences_are_the_cross_entropy_of_what_counts(smoothing):
    model, given = gpt(), tensors(batch())
    loss = Objective(model, "sequences", smoothing)(given)
    wanted = F.cross_entropy(
        model(given["ids"]).flatten(0, 1), given["targets"].flatten(), reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(loss, wanted)
    mine = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(mine, torch.autograd.grad(wanted, list(model.parameters())))


def test_measuring_smooths_nothing_and_counts_what_is_right():
    model, given = gpt(), tensors(batch())
    loss, right = Objective(model, "sequences", 0.3).measure(given)
    logits = model(given["ids"])
    plain = F.cross_entropy(logits.flatten(0, 1), given["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, plain.detach())
    assert right == (logits.argmax(-1) == given["targets"]).sum()
    assert not loss.requires_grad


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_the_parts_of_a_batch_sum_to_the_whole(parts):
    objective, arrays = Objective(gpt(), "sequences", 0.1), batch()
    pieces = [batch(part, parts) for part in range(parts)]
    assert sum(map(count, pieces)) == count(arrays)
    torch.testing.assert_close(sum(objective(tensors(piece)) for piece in pieces), objective(tensors(arrays)))
    measured = sum(objective.measure(tensors(piece)) for piece in pieces)
    torch.testing.assert_close(measured, objective.measure(tensors(arrays)))


def test_documents_in_one_row_cost_what_they_cost_alone():
    torch.manual_seed(0)
    model = build("gpt", vocab=6, context=9, width=12, depth=2, heads=3, positions="rotary")
    ids, targets = torch.randint(6, (1, 7)), torch.randint(6, (1, 7))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    at = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    objective = Objective(model, "sequences")
    packed = objective({"ids": ids, "targets": targets, "documents": documents, "at": at})
    alone = sum(objective({"ids": ids[:, cut], "targets": targets[:, cut]}) for cut in (slice(0, 3), slice(3, 7)))
    torch.testing.assert_close(packed, alone)


def test_vectors_are_a_mean_square_a_row():
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    x, y = torch.randn(2, 5, 4).unbind()
    wanted = F.mse_loss(model(x), y, reduction="none").mean(-1)
    torch.testing.assert_close(Objective(model, "vectors")({"x": x, "y": y}), wanted.sum())
    weight = torch.tensor([1.0, 1, 0, 1, 0])
    given = {"x": x, "y": y, "weight": weight}
    torch.testing.assert_close(Objective(model, "vectors")(given), (wanted * weight).sum())
    loss, right = Objective(model, "vectors").measure(given)
    torch.testing.assert_close(loss, (wanted * weight).sum().detach())
    assert right == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_images_are_a_cross_entropy_a_row(smoothing):
    torch.manual_seed(0)
    model = Pixels(Config(classes=3)).eval()
    images, labels, weight = torch.randn(5, 3, 6, 7), torch.randint(3, (5,)), torch.tensor([1.0, 1, 1, 1, 0])
    objective = Objective(model, "images", smoothing)
    each = F.cross_entropy(model(images), labels, reduction="none", label_smoothing=smoothing)
    given = {"images": images, "labels": labels}
    torch.testing.assert_close(objective(given), each.sum())
    torch.testing.assert_close(objective({**given, "weight": weight}), each[:4].sum())
    hits = model(images).argmax(-1) == labels
    assert objective.measure(given)[1] == hits.sum()
    assert objective.measure({**given, "weight": weight})[1] == hits[:4].sum()


def test_a_narrow_model_is_given_narrow_numbers():
    from clearhead.training.distributed import narrow

    torch.manual_seed(0)
    for model, kind, given in (
        (Normed(Config()), "vectors", {"x": torch.randn(5, 4), "y": torch.randn(5, 4)}),
        (Pixels(Config()), "images", {"images": torch.randn(5, 3, 6, 6), "labels": torch.ones(5, dtype=torch.long)}),
        (gpt(), "sequences", tensors(batch())),
    ):
        wide = Objective(model, kind)(given)
        narrow(model)
        close = Objective(model, kind)(given)
        assert close.dtype == torch.float32
        torch.testing.assert_close(close, wide, rtol=0.05, atol=0.05)
        close.backward()
        kinds = {p.dtype for name, p in model.named_parameters() if not name.startswith("norm") or kind == "sequences"}
        assert kinds == {torch.bfloat16}
        assert {b.dtype for b in model.buffers()} <= {torch.float32, torch.int64}


def test_what_counts():
    assert count({"ids": np.zeros((2, 3)), "targets": np.array([[1, -100, 2], [-100, -100, 0]])}) == 3
    assert count({"x": np.zeros((4, 2)), "y": np.zeros((4, 2))}) == 4
    assert count({"x": np.zeros((4, 2)), "weight": np.array([1.0, 1, 1, 0])}) == 3


def test_a_model_of_another_kind_is_told():
    with pytest.raises(ValueError, match="Normed does not read tokens, and the data are sequences"):
        Objective(Normed(Config()), "sequences")
    with pytest.raises(ValueError, match="GPT reads tokens, and the data are images"):
        Objective(gpt(), "images")
    with pytest.raises(ValueError, match="GPT reads tokens, and the data are translations"):
        Objective(gpt(), "translations")
    with pytest.raises(ValueError, match="Transformer translates, and the data are sequences"):
        Objective(build("transformer", vocab=7, width=6, depth=1, heads=2), "sequences")


@pytest.mark.parametrize("readout_bias", [False, True])
def test_translations_are_the_cross_entropy_of_what_is_written(readout_bias):
    torch.manual_seed(0)
    model = build(
        "transformer", vocab=7, target_vocab=9, width=6, depth=1, heads=2, dropout=0.0, readout_bias=readout_bias
    )
    for weight in model.parameters():  # a bias that begins at 0 would be no test
        nn.init.normal_(weight, std=0.3)
    given = {
        "source": torch.tensor([[4, 5, 2], [6, 2, 0]]),
        "lengths": torch.tensor([3, 2]),
        "ids": torch.tensor([[1, 8, 4, 0], [1, 5, 7, 6]]),
        "targets": torch.tensor([[8, 4, 2, -100], [5, 7, 6, 2]]),
    }
    objective = Objective(model, "translations", 0.1)
    loss = objective(given)
    logits = model(given["ids"], source=given["source"], lengths=given["lengths"])
    wanted = F.cross_entropy(logits.flatten(0, 1), given["targets"].flatten(), reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss, wanted)
    mine = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(mine, torch.autograd.grad(wanted, list(model.parameters())))
    assert objective.measure(given)[1] == (logits.argmax(-1) == given["targets"]).sum()
