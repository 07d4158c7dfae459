"""The evaluation of captioners: the scores of captioning papers; on generated scenes, exact captions and pointing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ...data.generated.scenes import COLOURS, SHAPES, Scene, SceneConfig, Scenes
from ...data.images.captions import read_flickr8k
from ...data.images.files import ImageLike, read_image
from ...draw.result import PlainValues
from ...errors import InputError, nearest
from ...metrics import Score, caption_scores
from ...weights import Bundle
from ..caption import PENALTY, Caption, caption
from ..translate import NoAttentionError
from .text import Done, Place, score_rows, table

SETS = ("flickr8k", "scenes")
SCENES = 500  # scenes that are captioned
IMAGES = 64  # images that are captioned between two reports of progress


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionEvaluationOptions:
    """The options for captioners."""

    split: str | None = None  # part of flickr8k: train, valid or test; None: test
    beams: int = 5  # hypotheses of the beam search; 1 is greedy
    penalty: float = PENALTY  # the search ranks by log-probability / length^penalty
    limit: int | None = None  # largest number of tokens of a caption; None: as in `caption`


@dataclass(frozen=True, kw_only=True)
class CaptionScores(PlainValues):
    """The scores of a captioner, and its captions."""

    in_json = "data images scores seconds hypotheses"

    data: str  # the name of the data
    # as captioning papers report them, or the shares of `scenes`, in percent
    scores: tuple[Score, ...]
    seconds: float  # time that captioning took
    hypotheses: list[str]  # the captions
    references: list[list[str]] = field(repr=False)  # of each image

    def __getitem__(self, name: str) -> float:
        """The value of a score by its name, like "BLEU-4"."""
        values = {score.name: score.value for score in self.scores}
        if name not in values:
            raise InputError(
                f"no score {name!r}: there are {', '.join(values)}{nearest(name, values)}"
            )
        return values[name]

    @property
    def images(self) -> int:
        """The number of images."""
        return len(self.hypotheses)

    def __rich__(self) -> Table:
        speed = f"{self.seconds:.1f} s, {self.images / self.seconds:.1f} per second"
        return table(
            ("data", self.data, ""),
            *score_rows(self.scores),
            ("images", str(self.images), speed),
        )


def measure_captions(
    bundle: Bundle,
    data: Place | Sequence[Place],
    chosen: CaptionEvaluationOptions,
    root: Path | None,
    done: Done | None,
) -> CaptionScores:
    """Caption the images of a set, and compute the scores."""
    if data not in SETS:
        raise InputError(
            f"{data!r}: a captioner is evaluated on {' or '.join(SETS)}{nearest(str(data), SETS)}"
        )
    if data == "scenes":
        return _scene_scores(bundle, chosen, done)
    # Flickr8k's own division into train, valid and test
    part = chosen.split or "test"
    files = read_flickr8k(part, root)
    start = time.perf_counter()
    results: list[Caption] = []
    # some images at a time are read and captioned, so that memory stays small
    for i in range(0, len(files.names), IMAGES):
        results += _captions(
            bundle,
            [read_image(str(files.root), name) for name in files.names[i : i + IMAGES]],
            chosen,
        )
        if done is not None:
            # the last group may be smaller
            done(min(IMAGES, len(files.names) - i), len(files.names))
    seconds = time.perf_counter() - start
    # captions and references are compared after the same tokenisation, in caption_scores
    texts = [answer.text for answer in results]
    scores = tuple(caption_scores(texts, files.captions).values())
    return CaptionScores(
        data=f"flickr8k {part}",
        scores=scores,
        seconds=seconds,
        hypotheses=texts,
        references=files.captions,
    )


def pointing(results: Sequence[Caption], scenes: Sequence[Scene]) -> tuple[float, float]:
    """The share of colour and object words whose map is largest in the right box, and the share expected by chance.

    The captions must be those of the scenes, word by word: exact ones, or given ones.
    """
    hits, chances = list[bool](), list[float]()
    for answer, scene in zip(results, scenes, strict=True):
        height, width = scene.image.shape[1:]
        for word, box, weights in zip(scene.caption.split(), scene.boxes, answer.maps, strict=True):
            # words such as "a" and "left" name nothing that could be pointed at
            if box is None or word not in (*COLOURS, *SHAPES):
                continue
            # the centre of each cell of the map, in pixels
            rows = (np.arange(weights.shape[0]) + 0.5) * height / weights.shape[0]
            columns = (np.arange(weights.shape[1]) + 0.5) * width / weights.shape[1]
            top, left, bottom, right = box
            # (y, x): the cells whose centre lies in the box
            inside = ((rows >= top) & (rows < bottom))[:, None] & (
                (columns >= left) & (columns < right)
            )
            # the pointing game of Zhang et al. 2016; chance is the share of cells inside the box
            hits.append(bool(inside.flat[int(weights.argmax())]))
            chances.append(float(inside.mean()))
    if not hits:
        raise InputError("none of these captions has a word with a box: expected scenes")
    return float(np.mean(hits)), float(np.mean(chances))


def _scene_scores(
    bundle: Bundle, chosen: CaptionEvaluationOptions, done: Done | None
) -> CaptionScores:
    if chosen.split is not None:
        raise InputError(f"split={chosen.split!r} is for flickr8k: scenes are generated")
    config = SceneConfig()
    # scenes of the size that the model was built for
    if bundle.preprocessing is not None and bundle.preprocessing.size is not None:
        config = SceneConfig(pixels=bundle.preprocessing.size[0])
    scenes = Scenes(config, seed=0).scenes(SCENES)
    start = time.perf_counter()
    # (c, y, x) -> (y, x, c)
    results = _captions(bundle, [scene.image.transpose(1, 2, 0) for scene in scenes], chosen)
    seconds = time.perf_counter() - start
    if done is not None:
        done(len(scenes), len(scenes))
    exact = [answer.text == scene.caption for answer, scene in zip(results, scenes, strict=True)]
    scores = [
        Score(
            "exact", 100 * float(np.mean(exact)), "captions that are equal word by word, in percent"
        )
    ]
    # only in an exact caption does word i belong to box i
    right = [
        (answer, scene) for answer, scene, same in zip(results, scenes, exact, strict=True) if same
    ]
    try:
        if right:
            share, chance = pointing(*zip(*right, strict=True))
        else:
            share, chance = (0.0, 0.0)
        about = "colour and object words of exact captions whose map is largest in the right box, in percent"
        scores += [
            Score("pointing", 100 * share, about),
            Score("chance", 100 * chance, "the same for a random place"),
        ]
    except NoAttentionError:  # one vector for the whole image points nowhere
        pass
    return CaptionScores(
        data=f"scenes, {len(scenes)}",
        scores=tuple(scores),
        seconds=seconds,
        hypotheses=[answer.text for answer in results],
        references=[[scene.caption] for scene in scenes],
    )


def _captions(
    bundle: Bundle, images: list[ImageLike], chosen: CaptionEvaluationOptions
) -> list[Caption]:
    results: Any = caption(
        bundle, images, beams=chosen.beams, penalty=chosen.penalty, limit=chosen.limit
    )
    return list(results)
