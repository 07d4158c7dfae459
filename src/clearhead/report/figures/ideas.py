"""Figures of one idea, without a trained model: schedules, positions, Iris, rotated representations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ... import draw
from ...data import read_iris
from ...layers import Sinusoid
from ...look import cka_of_features, features, position_similarity, project
from ...training.optim.schedule import SHAPES, ScheduleConfig, scale
from ..example_inputs import TEXTS
from .registry import figure_of, model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure_of(
    "schedule", "Vaswani et al. 2017, Eq. 3; Loshchilov and Hutter 2017: warm-up, then decay."
)
def schedule() -> Figure:
    """Learning-rate schedules: a linear warm-up, then one of several decays."""
    steps = np.arange(1000)
    lines = {
        shape: (
            steps,
            np.array([scale(ScheduleConfig(shape=shape, warmup=100), int(i), 1000) for i in steps]),
        )
        for shape in SHAPES
    }
    return draw.curves(
        lines, xlabel="step", ylabel="share of the peak", title="Learning rate", zero=True
    )


@figure_of("sinusoids", "Vaswani et al. 2017, section 3.5: sines and cosines of falling frequency.")
def sinusoids() -> Figure:
    """Sinusoidal position embeddings: a row per position, a column per dimension."""
    vectors = Sinusoid(64).vectors(torch.arange(64)).float().numpy()
    return draw.matrix(
        vectors, xlabel="dimension", ylabel="position", title="Sinusoidal positions", most=1.0
    )


@figure_of("positions", "Dosovitskiy et al. 2021, Fig. 7: near positions have similar embeddings.")
def positions() -> Figure:
    """Similarity of the position embeddings of an encoder."""
    return position_similarity(model("cloze")).figure()


@figure_of(
    "iris", "Fisher 1936: four lengths of 150 flowers, whose species a projection separates."
)
def iris() -> Figure:
    """Principal components of the Iris flowers."""
    values, species, _ = read_iris()
    return project(values, labels=species).figure(title="Iris")


@figure_of(
    "rotation", "Kornblith et al. 2019: CKA does not change if features are rotated or scaled."
)
def rotation() -> Figure:
    """Two representations that are effectively the same: one is the other, rotated."""
    x, later = (
        np.asarray(features(model("everyday"), list(TEXTS), f"blocks.{i}"), dtype=float)
        for i in (2, 4)
    )
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(x.shape[1], x.shape[1])))[0]
    every = {
        "layer 2": x,
        "rotated": 3 * x @ turn,
        "layer 4": later,
        "noise": random.normal(size=x.shape),
    }
    return cka_of_features(every).figure(title="CKA: rotated features are effectively the same")
