"""Generated scenes: one or two coloured shapes, a caption that says which and where, and the box of each.

"a red circle"                              one shape
"a red circle left of a blue square"        two shapes: the first is the larger one, and the relation is that of their
                                            centres along the axis on which they are further apart

Each scene has one right caption, so that captions can be compared exactly, and the box of every shape is known, so that
it can be checked where a captioner looked when it wrote a word. Fresh scenes at every step, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray

from ... import counter_rng
from ...checks import at_least
from ...errors import InputError
from ...tokens import Words
from ..data import IGNORE, Batch, Data, Rows
from ..images.captions import with_inputs
from ..images.preprocessing import Preprocessing

COLOURS = {
    "red": (214, 40, 40), "green": (44, 160, 44), "blue": (40, 80, 220), "yellow": (240, 215, 40),
    "purple": (150, 50, 190), "white": (250, 250, 250),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
# (row, column) of the first
RELATIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}
# radius of the larger and the smaller shape, as a share of the image
LARGE, SMALL = (0.17, 0.21), (0.10, 0.135)
# distance of the centres along the axis of the relation, and at most across it
APART, ASIDE = (0.44, 0.56), 0.14
VALID = 1 << 16  # stream of validation, which has seed 0 whatever the seed of training
DRAWS = 16  # random numbers per scene
WIDTH = 9  # tokens of the longest caption, <end> included


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneConfig:
    """Options of scenes."""

    pixels: int = 48  # height and width of the images
    single: float = 0.2  # share of the scenes with one shape
    noise: float = 12.0  # largest change of a pixel of the background, from 0 to 255
    rows: int = 64  # scenes per step
    valid_rows: int = 250  # scenes per validation batch
    valid_batches: int = 4  # number of validation batches

    def __post_init__(self) -> None:
        at_least(self, 24, "pixels")
        at_least(self, 1, "rows", "valid_rows")
        at_least(self, 0, "valid_batches")
        if not 0.0 <= self.single <= 1.0:
            raise InputError(f"single={self.single}: expected a share from 0 to 1")
        if not 0.0 <= self.noise <= 60.0:
            raise InputError(f"noise={self.noise}: expected a number from 0 to 60")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """A scene with its caption, and the box of the shape that each word belongs to."""

    image: UInt8[np.ndarray, "c y x"]
    caption: str
    # per word (top, left, bottom, right) in pixels; None: no shape
    boxes: tuple[tuple[int, int, int, int] | None, ...]


class Scenes(Data):
    """Scenes with their captions; `scenes` returns those of validation with their boxes.

    Args:
        config: The options.
        seed: The seed of training.
        root: Not used: scenes need no files.

    Examples:
        >>> data = Scenes(SceneConfig(rows=2), seed=0)
        >>> scene = data.scenes(3)[0]
        >>> scene.caption
        'a green cross above a yellow circle'
        >>> len(scene.boxes) == len(scene.caption.split())
        True
    """

    keys = ("images", "ids", "targets")
    unit = "images"
    tokens: Words
    preprocessing: Preprocessing

    def __init__(self, config: SceneConfig, *, seed: int, root: Path | None = None) -> None:
        self.config, self.seed = config, seed
        self.tokens = Words(["a", "of", "left", "right", "above", "below", *COLOURS, *SHAPES])
        self.sizes, self.longest = {"vocab": len(self.tokens)}, WIDTH
        self.preprocessing = Preprocessing(resize=(config.pixels, config.pixels))
        self.valid_batches = config.valid_batches

    def scenes(self, count: int, seed: int = 0) -> list[Scene]:
        """Return scenes that no training sees, with captions and boxes."""
        # step 0 of the stream of validation; the batches of validation begin at step 1
        rows = np.arange(count)
        drawn = [draw_scene(u, self.config) for u in self._uniform(seed, 0, rows, VALID)]
        images = self._images(drawn, seed, 0, rows, VALID)
        return [
            Scene(image=image, caption=drawing.caption, boxes=drawing.boxes)
            for image, drawing in zip(images, drawn, strict=True)
        ]

    def _rows(self, step: int) -> int:
        return self.config.rows

    def _train(self, step: int, rows: Rows) -> Batch:
        return self._batch(self.seed, step, rows, 0)

    def _valid_rows(self, index: int) -> int:
        return self.config.valid_rows

    def _valid(self, index: int, rows: Rows) -> Batch:
        return self._batch(0, 1 + index, rows, VALID)

    def _batch(self, seed: int, step: int, rows: Rows, stream: int) -> Batch:
        drawn = [draw_scene(u, self.config) for u in self._uniform(seed, step, rows, stream)]
        # all rows are as wide as the longest caption, so that shapes never change
        targets = np.full((len(rows), WIDTH), IGNORE, np.int64)
        for row, drawing in zip(targets, drawn, strict=True):
            ids = self.tokens.encode(drawing.caption)
            # <end> follows the words; what comes after is no target
            row[: len(ids)], row[len(ids)] = ids, self.tokens.end
        images = self._images(drawn, seed, step, rows, stream)
        return {"images": images, **with_inputs(targets, self.tokens.pad, self.tokens.start)}

    def _uniform(self, seed: int, step: int, rows: Rows, stream: int) -> NDArray[np.float64]:
        return counter_rng.uniform(seed, step, rows, DRAWS, stream)

    def _images(
        self, drawn: list[Drawing], seed: int, step: int, rows: Rows, stream: int
    ) -> UInt8[np.ndarray, "n c y x"]:
        """The pictures of scenes, on grey backgrounds with noise."""
        n = self.config.pixels
        # a random byte per pixel: 64 bits are eight of them
        bits = counter_rng.bits(seed, step, rows, -(-n * n // 8), stream + 1)
        noise = bits.view(np.uint8)[:, : n * n]
        # the change for each random byte, from -noise to noise
        steps = (self.config.noise * (np.arange(256) / 127.5 - 1)).round().astype(np.int16)
        # stays within 0 to 255
        grey = np.array([int(drawing.grey) for drawing in drawn], np.int16)[:, None] + steps[noise]
        images = np.repeat(grey.astype(np.uint8).reshape(-1, 1, n, n), 3, axis=1)
        # one image (c, n, n) after another: the number of pixels in a shape differs
        for image, drawing in zip(images, drawn, strict=True):
            # in any order: shapes are further apart than their radii together
            for shape in drawing.shapes:
                image[:, shape.inside(n)] = np.array(COLOURS[shape.colour], np.uint8)[:, None]
        return images


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A coloured shape."""

    colour: str
    shape: str
    row: float  # of its centre, in pixels
    column: float
    radius: float  # half its height and width, in pixels

    @property
    def box(self) -> tuple[int, int, int, int]:
        """(top, left, bottom, right) in pixels."""
        top, bottom = round(self.row - self.radius), round(self.row + self.radius)
        left, right = round(self.column - self.radius), round(self.column + self.radius)
        return top, left, bottom, right

    def inside(self, n: int) -> Bool[np.ndarray, "n n"]:
        """Which pixels of an image of n x n lie in it."""
        # centres of pixels, so that a shape is symmetric about its centre
        at = np.arange(n) + 0.5
        y, x = (at[:, None] - self.row) / self.radius, (at[None, :] - self.column) / self.radius
        return INSIDE[self.shape](y, x)


# Whether a place lies in a shape whose centre is (0, 0) and whose radius is 1.
INSIDE = {
    "circle": lambda y, x: y**2 + x**2 <= 1,
    "square": lambda y, x: np.maximum(abs(y), abs(x)) <= 0.9,
    "triangle": lambda y, x: (abs(y) <= 1) & (abs(x) <= (y + 1) / 2),
    "cross": lambda y, x: (np.minimum(abs(y), abs(x)) <= 0.34) & (np.maximum(abs(y), abs(x)) <= 1),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """What a scene shows."""

    shapes: tuple[Shape, ...]
    relation: str  # of the first to the second; "" for a single shape
    grey: float  # of the background

    @property
    def caption(self) -> str:
        """The words of the scene."""
        named = [f"a {one.colour} {one.shape}" for one in self.shapes]
        return f" {self.relation} ".join(named)

    @property
    def boxes(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        """The box of each word's shape; None for the words of the relation."""
        # "a red circle": all three words belong to the shape
        first = (self.shapes[0].box,) * 3
        if len(self.shapes) == 1:
            return first
        # then the words of the relation, then the three of the second shape
        return (*first, *(None,) * len(self.relation.split()), *(self.shapes[1].box,) * 3)


def draw_scene(u: Float[np.ndarray, "draws"], config: SceneConfig) -> Drawing:
    """Return the scene of some uniform random numbers."""
    n, colours = config.pixels, list(COLOURS)
    large = n * (LARGE[0] + (LARGE[1] - LARGE[0]) * u[0])  # radius of the first shape
    small = n * (SMALL[0] + (SMALL[1] - SMALL[0]) * u[1])  # of the second
    # a colour by its number; each random number in [0, 1) is scaled to a choice
    first = int(u[2] * len(colours))
    second = (first + 1 + int(u[3] * (len(colours) - 1))) % len(colours)  # another colour
    kinds = [SHAPES[int(x * len(SHAPES))] for x in u[4:6]]
    grey = 60 + 110 * u[6]
    # a single shape anywhere, as long as it lies in the image as a whole
    if u[7] < config.single:
        row, column = (large + (n - 2 * large) * x for x in u[8:10])
        single = Shape(colour=colours[first], shape=kinds[0], row=row, column=column, radius=large)
        return Drawing(shapes=(single,), relation="", grey=grey)
    # the later digits of u[7], which has already decided that there are two shapes
    relation = list(RELATIONS)[int(u[7] * 997) % len(RELATIONS)]
    direction = np.array(RELATIONS[relation], float)
    apart = n * (APART[0] + (APART[1] - APART[0]) * u[8])  # along the relation
    aside = n * ASIDE * (2 * u[9] - 1)  # across it
    # (row, column): `abs(direction[::-1])` is the other axis
    offset = apart * direction + aside * abs(direction[::-1])  # from the second to the first
    low = np.maximum(small, large - offset)  # of the second's centre, so that both lie in the image
    high = np.minimum(n - small, n - large - offset)
    centre = low + (high - low) * u[10:12]
    # the first shape's centre follows from the second's
    ends = centre + offset
    shapes = (
        Shape(colour=colours[first], shape=kinds[0], row=ends[0], column=ends[1], radius=large),
        Shape(
            colour=colours[second], shape=kinds[1], row=centre[0], column=centre[1], radius=small
        ),
    )
    return Drawing(shapes=shapes, relation=relation, grey=grey)
