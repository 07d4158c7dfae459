"""saliency: which pixels or tokens a model's answer depends on, by one of several methods.

To add a method, write a dataclass of its options, a function that returns an Attribution, and a line in
SALIENCY_METHODS.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ... import draw
from ...checks import one_of
from ...errors import InputError, Notice
from ...inputs.read import Given
from ...progress import Done
from ...weights import Bundle
from ..maps.rollout import Fusion
from ..targets import Chosen, Target, at_least_float32, choose_target
from .attributions import Attribution
from .float_input import FloatInput, float_input
from .grad_cam import LayerOptions, grad_cam
from .gradients import (
    START,
    Baseline,
    GradientOptions,
    IncompleteError,
    NoiseOptions,
    PathOptions,
    gradient,
    input_gradient,
    integrated_gradients,
    smooth_gradient,
)
from .occlusion import PatchOptions, occlusion
from .rollout import RelevanceOptions, RolloutOptions, attention_rollout, gradient_weighted_rollout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARKER = "important, the darker the more"  # the legend of values without a sign
# of an image a box (left, top, right, bottom) or booleans (height, width); of a text numbers of tokens
Region = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A way to compute saliency."""

    name: str  # what people call it
    compute: Callable[..., Attribution]
    options: type  # the dataclass of its options
    signed: bool = False  # negative values speak against the target
    kinds: tuple[str, ...] = ("image", "text")  # what it is for


SALIENCY_METHODS = {  # how saliency can be computed, by its name
    "gradient": Method(name="gradient", compute=gradient, options=GradientOptions),
    "input-gradient": Method(
        name="input x gradient", compute=input_gradient, options=GradientOptions, signed=True
    ),
    "smoothgrad": Method(name="SmoothGrad", compute=smooth_gradient, options=NoiseOptions),
    "integrated": Method(
        name="integrated gradients", compute=integrated_gradients, options=PathOptions, signed=True
    ),
    "grad-cam": Method(name="Grad-CAM", compute=grad_cam, options=LayerOptions, kinds=("image",)),
    "occlusion": Method(name="occlusion", compute=occlusion, options=PatchOptions, signed=True),
    "rollout": Method(name="attention rollout", compute=attention_rollout, options=RolloutOptions),
    "gradient-rollout": Method(
        name="gradient-weighted rollout",
        compute=gradient_weighted_rollout,
        options=RelevanceOptions,
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Saliency(draw.Result):
    """How much each pixel of an image, or each token of a text, counts for one output of a model.

    Examples:
        >>> result = saliency(clearhead.load("everyday"), "A man is standing in the", method="input-gradient")
        >>> result.tokens, result.values.shape
        (['A', ' man', ' is', ' standing', ' in', ' the'], torch.Size([6]))
        >>> round(sum(result.share([i]) for i in range(6)), 6)
        1.0
    """

    in_json = (
        "method target index score probability signed tokens at layer layers completeness values"
    )

    values: Float[Tensor, "*n"]  # (height, width) of the model's input, or (t,), one per token
    method: str  # a key of SALIENCY_METHODS
    signed: bool  # negative values speak against the target; otherwise all are 0 or more
    target: str  # the name of the class or token that is explained
    index: int | None  # its number among the model's outputs; None: a function of the logits
    score: float  # its logit
    probability: float | None  # the softmax of its logit; None for a function
    # before reduction: (c, height, width) or (t, d), (y, x) of a layer's grid, or (t, t) of a rollout
    whole: Tensor
    tokens: list[str] | None = None  # the text of each token; None: an image
    # the token whose prediction is explained, if there are logits for every token
    at: int | None = None
    layer: str | None = None  # grad-cam: the layer
    layers: list[str] | None = None  # rollout: the layers whose attention was multiplied
    # integrated: the sum of all values - the change of the score from the baseline
    completeness: float | None = None
    # whether that is at most a tenth of the change; other values are not drawn
    complete: bool = True
    picture: np.ndarray | None = None  # (height, width, 3) uint8, the image as the model saw it

    def __repr__(self) -> str:
        size = " x ".join(str(n) for n in self.values.shape)
        return f"Saliency(method={self.method!r}, target={self.target!r}, score={self.score:.3f}, size={size})"

    def share(self, region: Region, *, positive: bool = False) -> float:
        """The part of the saliency that is inside of a region, from 0 to 1; NaN if there is none at all.

        Args:
            region: A box (left, top, right, bottom) in pixels of the model's input, right and bottom excluded; booleans
                of the shape of `values`; or the numbers of tokens.
            positive: Count what speaks for the target only; otherwise absolute values.
        """
        # A map has as many places as tokens, or as pixels in both directions.
        inside = region_mask(region, tuple(self.values.shape))
        weights = self.values.clamp(min=0) if positive else self.values.abs()
        total = weights.double().sum()
        # Without values, as of a gradient that is 0 everywhere, there is no share.
        if total <= 0:
            return float("nan")
        return float(weights.double()[inside].sum() / total)

    def check_complete(self) -> None:
        """Raise if integrated gradients do not add up to the change of the score."""
        if not self.complete:
            # completeness = sum - change, so that the change is the sum less the error.
            error = float(self.completeness or 0.0)
            total = float(self.values.double().sum())
            raise InputError(
                f"the values add up to {total:.3g}, and the score changes by {total - error:.3g}: expected more steps, "
                "another baseline, or method='occlusion'"
            )

    def figure(self) -> Figure:
        """Draw the values over the image, or as colours of the tokens; a legend says what the colours mean.

        Raises:
            InputError: If integrated gradients do not add up to the change of the score, so that they explain nothing.
        """
        self.check_complete()
        answer = self.target.strip() or repr(self.target)
        above, below = DARKER, ""
        # An unsigned map has one legend; a signed one names both directions.
        if self.signed:
            above, below = f"for {answer}", f"against {answer}"
        values = self.values.numpy()
        if self.tokens is not None:
            return draw.coloured_tokens(
                self.tokens, values, title=self.title, above=above, below=below
            )
        return draw.signed_overlay(values, self.picture, title=self.title, above=above, below=below)

    def table(self) -> draw.Table:
        """The value of each token; of an image the shares of absolute values in 4 x 4 parts of it.

        Raises:
            InputError: If integrated gradients do not add up to the change of the score.
        """
        self.check_complete()
        if self.tokens is not None:
            pairs = zip(self.tokens, self.values.tolist(), strict=True)
            rows: list[Any] = [(repr(token), value) for token, value in pairs]
            return draw.Table(
                columns=("token", "value"), rows=rows[: draw.MOST_ROWS], title=self.title
            )
        sizes = self.values.abs().numpy()
        total = float(sizes.sum()) or 1.0
        # 4 x 4 parts, also of sizes that 4 does not divide.
        down, across = (np.array_split(np.arange(n), 4) for n in sizes.shape)
        rows = []
        for y in down:
            shares = [f"{sizes[np.ix_(y, x)].sum() / total:.1%}" for x in across]
            rows.append((f"rows {y[0]} to {y[-1]}", *shares))
        columns = ["share of", *(f"columns {x[0]} to {x[-1]}" for x in across)]
        return draw.Table(columns=columns, rows=rows, title=self.title)

    @property
    def title(self) -> str:
        """The method, the answer that is explained, and its probability."""
        share = "" if self.probability is None else f", probability {self.probability:.1%}"
        return f"{SALIENCY_METHODS[self.method].name}: {self.target.strip() or repr(self.target)}{share}"


def saliency(
    model: Bundle | nn.Module,
    given: Given,
    *,
    method: str | None = None,
    target: Chosen = None,
    at: int | None = None,
    tokenizer: Any = None,
    layer: str | int | None = None,
    baseline: Baseline | None = None,
    steps: int | None = None,
    samples: int | None = None,
    noise: float | None = None,
    seed: int | None = None,
    patch: int | None = None,
    stride: int | None = None,
    residual: float | None = None,
    fusion: Fusion | None = None,
    done: Done | None = None,
) -> Saliency:
    """Return how much each pixel of an image, or each token of a text, counts for one output of a model.

    Args:
        model: A Bundle, or any torch module in evaluation mode.
        given: What a Bundle takes: an image or a text; for a translator (source, target so far), or the source alone;
            for a BERT a text with [MASK]. Of a bare module the tensors that it is called with, one row: pixels, ids, or
            a mapping of its arguments; or a text with `tokenizer`.
        method: A key of SALIENCY_METHODS: gradient, input-gradient, smoothgrad, integrated (gradients), grad-cam,
            occlusion, rollout or gradient-rollout. If not given, integrated; where 64 points of its path do not add up
            to the change of the score, as in deep language models, occlusion, with a Notice.
        target: The output to explain: the name of a class, a word, the number of a class or token, or a function of the
            logits (rows, outputs) that returns a number per row. None: the likeliest output.
        at: The token whose prediction is explained, where there are logits for every token; the last token, or the
            first mask, if not given.
        tokenizer: The tokenizer of a model of transformers, if a text is given; a Bundle has its own.
        layer: grad-cam: a stage ("stages.2"), a block, any module, or its number; the last one that has a gradient if
            not given.
        baseline: integrated, occlusion: what stands for nothing: "zero" (the mean colour), "black", "white" or "blur"
            for images, "zero" or "mean" (the mean embedding of the vocabulary) for texts; a number or a tensor like the
            input. If not given, zero; of integrated gradients of texts, the mean, as of the occlusion that takes its
            place.
        steps: integrated: points at which the gradient is taken; if not given 64, and up to 512 where these do not
            add up to the change of the score.
        samples: smoothgrad: noisy inputs; 25 if not given.
        noise: smoothgrad: standard deviation, as a share of the range of the input; 0.15 if not given.
        seed: smoothgrad: seed of the noise; 0 if not given.
        patch: occlusion: edge of the window in pixels or tokens; an eighth of the image, or a token, if not given.
        stride: occlusion: distance between windows; half a window, or a token, if not given.
        residual: rollout: share of the identity in each layer; 0.5 if not given.
        fusion: rollout: mean, max or min over heads; mean if not given.
        done: Called with the number of passes or windows just finished, and of all.

    Returns:
        The values in the resolution of the image that the model saw, or one per token, and the target with its score.

    Raises:
        InputError: If a method or a target does not fit the model, and the message says which do; or if integrated
            gradients do not add up to the change of the score.

    Examples:
        >>> vit = clearhead.load("vit-imagenette")
        >>> result = saliency(vit, "golf-ball", method="grad-cam")  # a path, or the name of an image that ships
        >>> result.target, result.values.shape, result.layer
        ('golf ball', torch.Size([128, 128]), 'blocks.4')
        >>> figure = result.figure()
    """
    # Options that were given, checked below against those of the method.
    given_options = {
        "layer": layer, "baseline": baseline, "steps": steps, "samples": samples, "noise": noise, "seed": seed,
        "patch": patch, "stride": stride, "residual": residual, "fusion": fusion,
    }  # fmt: skip
    name = "integrated" if method is None else method
    one_of("method", name, SALIENCY_METHODS)
    chosen = SALIENCY_METHODS[name]
    options = _options(name, given_options)
    about = float_input(model, given, tokenizer=tokenizer, at=at)
    # Grad-CAM alone is for one kind, images, so that the input is a text here.
    if about.kind not in chosen.kinds:
        fitting = ", ".join(
            name for name, other in SALIENCY_METHODS.items() if about.kind in other.kinds
        )
        raise InputError(f"method={method!r} is not for a text: expected one of {fitting}")
    # The logits of the input are needed once, to name the target and its probability.
    with torch.no_grad():
        goal = choose_target(target, about.logits(about.x), about.names, about.name)
    # Only the default may fall back to another method; a named one fails instead.
    if method is None:
        name, attribution = _default(about, goal, options, done)
    else:
        attribution = chosen.compute(about, goal, options, done)
    return Saliency(
        values=_plain(attribution.values),
        whole=_plain(attribution.whole),
        method=name,
        signed=chosen.signed,
        target=goal.name,
        index=goal.index,
        score=goal.value,
        probability=goal.probability,
        tokens=about.tokens,
        at=about.at,
        layer=attribution.layer,
        layers=attribution.layers,
        completeness=attribution.completeness,
        complete=attribution.complete,
        picture=seen(about),
    )


def _default(
    about: FloatInput, goal: Target, options: PathOptions, done: Done | None
) -> tuple[str, Attribution]:
    """Integrated gradients, or occlusion where they do not add up after a first attempt; the method and its result."""
    try:
        # One attempt without refinement, whose cost is known beforehand.
        return "integrated", integrated_gradients(
            about, goal, replace(options, refined=False), done
        )
    except IncompleteError as problem:
        incomplete = problem
    empty = START[about.kind] if options.baseline is None else options.baseline
    # The message's first half says by how much the values are off. The replacement is named because the signs depend
    # on it, and method="occlusion" has another one for texts.
    warnings.warn(
        f"{str(incomplete).partition(', even with')[0]}; this is occlusion instead, which puts {_replacement(empty)} "
        "in the place of what it covers, and method='integrated' takes more points",
        Notice,
        stacklevel=3,
    )
    return "occlusion", occlusion(about, goal, PatchOptions(baseline=empty), done)


def _replacement(baseline: Baseline) -> str:
    """A baseline in words."""
    if not isinstance(baseline, str):
        return "the baseline given"
    meaning = " (the mean embedding of the vocabulary)" if baseline == "mean" else ""
    return f"baseline={baseline!r}{meaning}"


def _options(method: str, given: dict[str, Any]) -> Any:
    """The options of a method; raises for those that only others have."""
    kind = SALIENCY_METHODS[method].options
    # `refined` is internal: callers choose `steps` instead.
    own = [field.name for field in fields(kind) if field.name != "refined"]
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in chosen:
        if name not in own:
            others = ", ".join(methods_with(name))
            expected = ", ".join(own) or "none"
            raise InputError(
                f"{name} is an option of {others}: of method={method!r} expected {expected}"
            )
    return kind(**chosen)


def methods_with(option: str) -> list[str]:
    """The methods that have an option."""
    names = []
    for name, method in SALIENCY_METHODS.items():
        if option in [field.name for field in fields(method.options)]:
            names.append(name)
    return names


def seen(about: FloatInput) -> np.ndarray | None:
    """The image that a model saw, (height, width, 3) uint8; of bare tensors, their values scaled to the full range."""
    # The picture of the input as the model saw it; a bare tensor is turned into one.
    if about.given.picture is not None or about.kind == "text":
        return about.given.picture
    x = about.x[0].detach().float().cpu()
    # Pixels of a bare tensor: its range is unknown, so it is stretched to 0 to 255.
    low, high = float(x.min()), float(x.max())
    x = ((x - low) / ((high - low) or 1.0) * 255).round().to(torch.uint8)
    if len(x) != 3:
        x = x[:1].expand(3, -1, -1)  # the first channel, in grey
    # (c, height, width) -> (height, width, c)
    return x.permute(1, 2, 0).numpy()


def region_mask(region: Region, shape: tuple[int, ...]) -> Tensor:
    """Which places a region contains, booleans of a shape: a box, booleans, or numbers of tokens."""
    mask = torch.as_tensor(np.asarray(region))
    # Booleans are taken as they are; numbers mean a box or tokens.
    if mask.dtype == torch.bool:
        if tuple(mask.shape) != shape:
            raise InputError(
                f"a region of shape {tuple(mask.shape)}: expected booleans of shape {shape}"
            )
        return mask
    if mask.is_floating_point() or mask.ndim != 1:
        raise InputError(f"region={region!r}: expected whole numbers, or booleans of shape {shape}")
    # An image's region is a box of 4 numbers, a text's a list of tokens.
    if len(shape) == 2:
        return _box(mask.tolist(), shape)
    return _tokens(mask.tolist(), shape[0])


def _box(box: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    height, width = shape
    # Left and top are included, right and bottom are not.
    if len(box) != 4 or not (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height):
        raise InputError(
            f"box {tuple(box)}: expected (left, top, right, bottom) with left < right and top < bottom, within an "
            f"image of {width} x {height} pixels"
        )
    inside = torch.zeros(shape, dtype=torch.bool)
    inside[box[1] : box[3], box[0] : box[2]] = True
    return inside


def _tokens(numbers: Sequence[int], count: int) -> Tensor:
    if any(not 0 <= number < count for number in numbers):
        raise InputError(f"tokens {list(numbers)}: there are {count}, counted from 0")
    inside = torch.zeros(count, dtype=torch.bool)
    inside[list(numbers)] = True
    return inside


def _plain(x: Tensor) -> Tensor:
    """A result on the CPU, in float32 or better."""
    return at_least_float32(x.detach()).cpu()
