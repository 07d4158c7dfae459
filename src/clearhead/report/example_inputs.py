"""The images and texts that ship, for a command that was given no input or data."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from ..data.images.files import SCENES, example_images, open_image
from ..data.text.labelled import MASKS
from ..errors import InputError
from ..tasks.translate import translate
from ..weights import Bundle, shipped

TEXTS = (
    "A man is standing in the street.", "Two dogs run across the green field.", "She told me that she was happy.",
    "I do not know where he lives.", "A woman is playing the guitar.", "The children play in the garden.",
    "It was raining when we left the house.", "He bought a new car last year.", "Could you please open the window?",
    "A boy is riding a bike.", "They have lived here for ten years.", "My brother likes to read books.",
    "The train leaves at eight in the evening.", "A girl in a red dress is smiling.", "We should go home now.",
    "The old man sat on a bench.",
)  # fmt: skip
CROPS = 8  # of each image, as inputs of their own


def example_input(bundle: Bundle) -> str:
    """An input of a model: an image that it has a class for, or a text of its card.

    Args:
        bundle: The model.
    """
    images = example_images()
    if bundle.reads == "captions":
        # A captioner describes scenes, not single objects.
        return str(images[SCENES[0]])
    if bundle.reads == "images":
        # An image of a class that the model knows makes the better example.
        known = {label.lower() for label in bundle.labels or ()}
        return str(
            next(
                (path for name, path in images.items() if name.replace("-", " ") in known),
                images["cat"],
            )
        )
    if bundle.tokens is None:
        raise InputError(
            f"this {bundle.name} reads {bundle.reads}: expected an input, of which none ships"
        )
    # A shipped model has texts in the language that it was trained on.
    if bundle.folder is not None:
        card = shipped().get(bundle.folder.name)
    else:
        card = None
    if card is not None and card.examples:
        return card.examples[-1]
    if "fill" in bundle.can:
        # A masked model needs a gap to fill.
        return f"A dog is {MASKS[0]} in the park."
    return TEXTS[0]


def own_translation(bundle: Bundle, text: str) -> str:
    """What a translator writes for a text."""
    found: Any = translate(bundle, text)
    return str(found.text)


def example_crops() -> list[Image.Image]:
    """The images that ship, and several crops of each: more inputs of the same kind, always the same ones."""
    # A fixed seed: two comparisons measure on the same crops.
    random, found = np.random.default_rng(0), list[Image.Image]()
    for path in example_images().values():
        image = open_image(path).convert("RGB")
        width, height = image.size
        found.append(image)
        for _ in range(CROPS - 1):
            # 40 to 90 % of the shorter side, so that crops differ in scale.
            side = int(min(width, height) * random.uniform(0.4, 0.9))
            left, top = (
                int(random.integers(0, width - side + 1)),
                int(random.integers(0, height - side + 1)),
            )
            # left and top are uniform over all places where the crop fits.
            found.append(image.crop((left, top, left + side, top + side)))
    return found
