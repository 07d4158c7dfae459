"""How well frozen features tell classes apart: nearest neighbours, and a linear probe; no weight changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError

ROWS = 1024  # features that are compared with all training features at a time


@torch.no_grad()
def nearest_neighbours(
    train: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    test: Float[Tensor, "m d"],
    *,
    neighbours: int = 20,
    temperature: float = 0.07,
) -> Int[Tensor, "m"]:
    """Return the class of each test feature by a vote of its nearest training features.

    Each neighbour votes with the weight exp(cosine / temperature): Wu et al. 2018, section 3.4.

    Args:
        train: training features.
        labels: their classes.
        test: test features.
        neighbours: number of neighbours that vote; at most all of them.
        temperature: the smaller, the more the nearest count.

    Examples:
        >>> train = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
        >>> nearest_neighbours(train, torch.tensor([0, 0, 1]), torch.tensor([[0.2, 3.0], [5.0, 1.0]]), neighbours=1)
        tensor([1, 0])
    """
    if neighbours < 1 or temperature <= 0 or not len(train):
        raise InputError(
            f"neighbours={neighbours}, temperature={temperature}, {len(train)} features: expected 1 neighbour or more, "
            "a temperature above 0, and training features"
        )
    if not train.isfinite().all() or not test.isfinite().all():  # NaN would be the nearest of all
        raise InputError("some features are not finite: expected a model without NaN and infinity")
    # of unit vectors the dot product is the cosine
    train, classes = F.normalize(train, dim=-1), int(labels.max()) + 1
    found = []
    for some in F.normalize(test, dim=-1).split(ROWS):
        # (rows, neighbours); `some` bounds the memory of the matrix of cosines
        cosine, index = (some @ train.T).topk(min(neighbours, len(train)), dim=-1)
        votes = torch.zeros(len(some), classes, dtype=cosine.dtype, device=cosine.device)
        # the nearest neighbour has the weight 1, so that exp does not overflow
        votes.scatter_add_(1, labels[index], ((cosine - cosine[:, :1]) / temperature).exp())
        found.append(votes.argmax(-1))
    return torch.cat(found) if found else labels[:0]


def linear_probe(
    train: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    test: Float[Tensor, "m d"],
    *,
    penalty: float = 1e-4,
    steps: int = 100,
) -> Int[Tensor, "m"]:
    """Return the class of each test feature by a linear classifier that is fitted to the training features.

    Args:
        train: training features.
        labels: their classes.
        test: test features.
        penalty: weight of the squared weights.
        steps: largest number of steps.

    Examples:
        >>> train = torch.tensor([[1.0, 0.0], [2.0, 0.5], [-1.0, 0.2], [-2.0, 0.0]])
        >>> linear_probe(train, torch.tensor([0, 0, 1, 1]), torch.tensor([[-3.0, 0.0], [3.0, 0.0]]))
        tensor([1, 0])
    """
    return fit_linear_probe(train, labels, penalty=penalty, steps=steps)(test)


def fit_linear_probe(
    train: Float[Tensor, "n d"],
    labels: Int[Tensor, "n"],
    *,
    penalty: float = 1e-4,
    steps: int = 100,
) -> Callable[[Tensor], Tensor]:
    """Return a linear classifier of training features, as a function of features (m, d) that returns classes (m,).

    Multinomial logistic regression on standardised features: the mean cross-entropy plus penalty x |W|^2, which is
    convex, minimised by L-BFGS.

    Args:
        train: training features.
        labels: their classes.
        penalty: weight of the squared weights.
        steps: largest number of steps.

    Examples:
        >>> classify = fit_linear_probe(torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([0, 0, 1]))
        >>> classify(torch.tensor([[3.0], [-2.0]]))
        tensor([0, 1])
    """
    if penalty < 0 or steps < 1 or not len(train):
        raise InputError(
            f"penalty={penalty}, steps={steps}, {len(train)} features: expected a penalty of 0 or more, 1 step or "
            "more, and training features"
        )
    # statistics of the training features alone; a constant feature must not divide by 0
    mean, deviation = train.mean(0), train.std(0, correction=0).clamp(min=1e-6)
    x = (train - mean) / deviation
    classes = int(labels.max()) + 1
    weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
    bias = torch.zeros(classes, dtype=x.dtype, device=x.device, requires_grad=True)
    # full-batch: one call of step runs all iterations
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        # L-BFGS calls the closure several times per step, for its line search
        optimiser.zero_grad()
        # the bias is not penalised
        loss = F.cross_entropy(F.linear(x, weight, bias), labels) + penalty * weight.square().sum()
        loss.backward()
        return loss

    # the caller may be inside torch.no_grad
    with torch.enable_grad():
        optimiser.step(closure)

    @torch.no_grad()
    def classify(test: Tensor) -> Tensor:
        return F.linear((test - mean) / deviation, weight, bias).argmax(-1)

    return classify
