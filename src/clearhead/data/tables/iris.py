"""Iris: 150 flowers of three species with four lengths each (Fisher 1936), as scikit-learn has them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from jaxtyping import Float

FILE = Path(__file__).with_name("iris.csv")


def read_iris() -> tuple[Float[np.ndarray, "150 4"], list[str], list[str]]:
    """Return the measurements in centimetres, the species of each flower, and the names of the four measurements.

    Examples:
        >>> values, species, names = read_iris()
        >>> values.shape, sorted(set(species)), names[0]
        ((150, 4), ['setosa', 'versicolor', 'virginica'], 'sepal length')
    """
    with FILE.open(newline="") as file:
        head, *rows = list(csv.reader(file))
    return np.array([row[:4] for row in rows], dtype=float), [row[4] for row in rows], head[:4]
