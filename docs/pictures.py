"""Draw the pictures of the documentation: `make pictures` for all, `python docs/pictures.py masks` for some of them.

One function per picture, named like its file. Every number is computed here, by the library, from fixed seeds, or read
from docs/results. The pictures of the explorer are screenshots of a browser (Chromium and its driver); without one they
stay as they are, like those of captions without the images of Flickr8k, and those of checkpoints that do not ship
without the folder CLEARHEAD_CHECKPOINTS.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from explorer_tour import screenshot
from matplotlib.figure import Figure
from PIL.Image import Dither, Image, Quantize
from torch import Tensor, nn

import clearhead as ch
from clearhead.data.files import DataError
from clearhead.data.images.captions import read_flickr8k
from clearhead.data.images.files import open_image, read_image
from clearhead.draw.style import PALETTE, sheet
from clearhead.layers import (
    Alibi,
    Attention,
    Block,
    Learned,
    Mask,
    Memory,
    Relative,
    Rotary,
    SinCos2d,
    Sinusoid,
    Stack,
    attend,
    grid,
    make_norm,
)
from clearhead.training.augmentation import AUGMENTATIONS
from clearhead.training.objectives import DeviceRng
from clearhead.training.objectives.classification import mix

HERE = Path(__file__).parent / "pictures"
PICTURES: dict[str, Callable[[], Figure | Image | None]] = {}


def picture(draw: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that draws a picture."""
    PICTURES[draw.__name__.replace("_", "-")] = draw
    return draw


# 01: attention


@picture
def sharpness() -> Figure:
    """The output of a soft lookup in four directions, for every query direction."""

    def compass(degrees: Tensor) -> Tensor:
        angle = degrees.deg2rad()
        return torch.stack([angle.cos(), angle.sin()], dim=-1)[None, None]

    degrees = torch.arange(-45.0, 315.5, 0.5)
    k, v = (
        compass(torch.arange(0.0, 360.0, 90.0)),
        torch.tensor([10.0, 20, 30, 40]).view(1, 1, 4, 1),
    )
    lines = {}
    for sharp in (0.0, 1.0, 5.0, 20.0, 500.0):
        answer = attend(compass(degrees), k, v, score="dot", sharpness=sharp)
        lines[f"sharpness {sharp:g}"] = (degrees / 90, answer.flatten())
    return ch.draw.curves(
        lines, xlabel="query, in quarter turns: east 0, north 1, west 2, south 3", ylabel="answer"
    )


@picture
def worked_example() -> Figure:
    """The weights of the lecture's worked example."""
    x = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]])
    layer = Attention(4, head=3, score="dot", bias=False, out=False)
    assert layer.query is not None
    assert layer.key is not None
    layer.query.weight.data = torch.tensor([[1.0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]).T
    layer.key.weight.data = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]).T
    with ch.watch(layer, "weights") as tape:
        layer(x[None])
    names = ["input 1", "input 2", "input 3"]
    return ch.draw.heatmap(
        tape["weights"].dense()[0, 0], rows=names, columns=names, digits=3, most=1.0
    )


@picture
def scaling() -> Figure:
    """Scores with and without the division by the root of the width: variance, entropy and gradient."""
    widths = [2**i for i in range(1, 12)]
    measured: dict[str, dict[str, list[float]]] = {}
    for score, name in (("dot", "dot product"), ("scaled", "divided by the root of the width")):
        variance, entropy, passed = [], [], []
        for width in widths:
            torch.manual_seed(0)
            layer = Attention(width, score=score, project="none", out=False)
            queries, keys = (
                torch.randn(1, 128, width, requires_grad=True),
                torch.randn(1, 64, width),
            )
            with warnings.catch_warnings():
                # the explicit computation is intended
                warnings.simplefilter("ignore", ch.look.Notice)
                with ch.watch(layer, "scores", "weights", grad=True) as tape:
                    out = layer(queries, keys)
            (out * torch.randn_like(out)).sum().backward()
            variance.append(tape["scores"].var().item())
            entropy.append(tape["weights"].entropy().mean().item())
            through = tape.gradient("scores").norm(dim=-1) / tape.gradient("weights").norm(dim=-1)
            passed.append(through.median().item())
        measured[name] = {"variance": variance, "entropy": entropy, "passed": passed}
    titles = {
        "variance of the scores": "variance",
        "entropy of the weights, nats": "entropy",
        "gradient passed by the softmax": "passed",
    }
    plots = {
        title: {name: (widths, m[key]) for name, m in measured.items()}
        for title, key in titles.items()
    }
    return ch.draw.panels(plots, xlabel="width", log=["xy", "x", "xy"], zero=True, width=2.9)


@picture
def masks() -> Figure:
    """Eight masks as grids of booleans."""
    n = 10
    documents = torch.tensor([[0] * 4 + [1] * 3 + [2] * 3])
    prefix = torch.ones(n, n, dtype=torch.bool).tril() | (torch.arange(n) < 4)
    kinds = {
        "causal": (Mask(causal=True), n),
        "window=3": (Mask(window=3), n),
        "causal, window=3": (Mask(causal=True, window=3), n),
        "lengths=7": (Mask(lengths=7), n),
        "causal, documents": (Mask(causal=True, documents=documents), n),
        "allow: a prefix of 4": (Mask(allow=prefix), n),
        "allow: not the diagonal": (Mask(allow=~torch.eye(n, dtype=torch.bool)), n),
        "causal, offset=6": (Mask(causal=True, offset=6), 4),
    }
    return ch.draw.grids({name: _dense(mask, q, n) for name, (mask, q) in kinds.items()})


def _dense(mask: Mask, q: int, k: int) -> Tensor:
    return mask.dense(q, k)[0, 0]


# 02: positions


@picture
def sinusoid() -> Figure:
    """The sinusoid's vectors of 128 positions."""
    vectors = Sinusoid(64).vectors(torch.arange(128))
    return ch.draw.matrix(vectors, xlabel="column", ylabel="position", square=False)


@picture
def similarity() -> Figure:
    """The cosine similarity of position vectors."""
    torch.manual_seed(0)
    kinds = {"sinusoid": Sinusoid(64), "learned, before training": Learned(64, context=96)}
    cosines = {}
    for name, kind in kinds.items():
        p = nn.functional.normalize(kind.vectors(torch.arange(96)).detach(), dim=-1)
        cosines[name] = p @ p.T
    return ch.draw.grids(cosines, signed=True, xlabel="position", ylabel="position", size=2.6)


@picture
def buckets() -> Figure:
    """The bucket of each distance in relative positions."""
    both, past = Relative(1).bucket, Relative(1, causal=True).bucket
    distance = torch.arange(-128, 129)
    plots = {
        "looking both ways": {"bucket": (distance, both)},
        "causal": {"bucket": (distance[:129], past[:129])},
    }
    return ch.draw.panels(
        plots, xlabel="key position - query position", ylabel=["bucket", ""], steps=True
    )


@picture
def alibi() -> Figure:
    """The weights of the last of 64 queries when all scores are 0, so that only the slopes matter."""
    heads, n = 4, 64
    positions, at = Alibi(heads), torch.arange(n)
    zeros, one_hot = torch.zeros(1, heads, n, 1), torch.eye(n).expand(1, heads, n, n)
    weights = attend(zeros, zeros, one_hot, mask=Mask(causal=True), bias=positions.bias(at, at))[
        0, :, -1
    ].flip(-1)
    slopes = [f"1/{round(-1 / s)}" for s in positions.slope.tolist()]
    lines = {f"slope {slopes[h]}": (at, weights[h] / weights[h, 0]) for h in range(heads)}
    return ch.draw.curves(
        lines, xlabel="tokens ago", ylabel="weight, where the newest has 1", zero=True
    )


@picture
def wavelengths() -> Figure:
    """The wavelengths of rotary pairs under each scaling, and by how much it slows them down."""
    context, factor = 4096, 8.0
    plain, pair = Rotary(128), torch.arange(64)
    scaled = {
        name: Rotary(128, scaling=name, factor=factor, context=context)
        for name in ("linear", "ntk", "yarn", "llama3")
    }
    trained = "trained length"
    wavelength = {"plain": (pair, 2 * torch.pi / plain.speed)}
    wavelength |= {name: (pair, 2 * torch.pi / rotary.speed) for name, rotary in scaled.items()}
    wavelength[trained] = (pair, torch.full((64,), float(context)))
    slower = {"plain": (pair, torch.ones(64))}
    slower |= {name: (pair, plain.speed / rotary.speed) for name, rotary in scaled.items()}
    plots = {"wavelength, positions": wavelength, "slowed down by": slower}
    return ch.draw.panels(
        plots, xlabel="pair of columns", log=["y", ""], dashed=[trained], width=3.6
    )


# 03: memory and depth

GUESTS, STAR = 12, 2  # the third of twelve guests is the important one


def _memory(gamma: float, guests: int = GUESTS) -> Tensor:
    """The share of each guest in the memory: guest i is unit vector i, so entry i is what is left of it."""
    memory = Memory(guests, gamma=gamma)
    memory.value.weight.data, memory.value.bias.data = torch.eye(guests), torch.zeros(guests)
    left = memory(torch.eye(guests)[None])[0, -1].detach()
    return left / left.sum()


def _attention(guests: int = GUESTS) -> Tensor:
    """The share of each guest in the output of attention: the query scores 5 with the important one, 0 with others."""
    keys = torch.zeros(1, 1, guests, 1)
    keys[0, 0, STAR] = 5.0
    return attend(torch.ones(1, 1, 1, 1), keys, torch.eye(guests)[None, None], score="dot")[0, 0, 0]


@picture
def party() -> Figure:
    """The shares of all guests, in the memory and in attention."""
    names = ["the star" if i == STAR else str(i + 1) for i in range(GUESTS)]
    shares = {"memory, gamma 0.7": _memory(0.7), "attention": _attention()}
    return ch.draw.bars(
        shares, names=names, xlabel="guests, in the order they came", ylabel="share at the end"
    )


@picture
def fading() -> Figure:
    """The share of the important guest as more guests arrive."""
    later = torch.arange(0, 41, 2)
    lines = {}
    for gamma in (0.9, 0.7, 0.5):
        lines[f"memory, gamma {gamma}"] = (
            later,
            [_memory(gamma, STAR + 1 + int(n))[STAR].item() for n in later],
        )
    lines["attention"] = (later, [_attention(STAR + 1 + int(n))[STAR].item() for n in later])
    return ch.draw.curves(
        lines, xlabel="guests who came after the star", ylabel="the star's share", zero=True
    )


@picture
def growth() -> Figure:
    """The output size of layers that multiply it by ten, with and without normalisation after each."""
    torch.manual_seed(0)
    start, lines = torch.randn(1000), {}
    matrices = [torch.randn(1000, 1000) * 10 / 1000**0.5 for _ in range(8)]
    for kind, name in (("none", "no norm"), ("layer", "layer norm")):
        norm, z = make_norm(kind, 1000), start
        sizes = [z.square().mean().sqrt().item()]
        for matrix in matrices:
            z = norm(matrix @ z).detach()
            sizes.append(z.square().mean().sqrt().item())
        lines[name] = (torch.arange(9), sizes)
    return ch.draw.curves(lines, xlabel="layer", ylabel="size of its output", log="y")


@picture
def depth() -> Figure:
    """Parameters, signal and gradient of stacks of layers, at initialisation."""
    depths = [1, 2, 4, 8, 16, 32]
    kinds = {
        "plain": ("plain", "none"),
        "plain, layer norm": ("plain", "layer"),
        "dense": ("dense", "none"),
        "residual": ("residual", "none"),
        "residual, layer norm": ("residual", "layer"),
    }
    plots: dict[str, dict[str, tuple[list[int], list[float]]]] = {
        "parameters": {},
        "signal: how much outputs differ": {},
        "gradient at the first layer": {},
    }
    for name, (connect, norm) in kinds.items():
        size, signal, gradient = [], [], []
        for n in depths:
            torch.manual_seed(0)
            stack = Stack(32, n, connect=connect, norm=norm).double()
            x = torch.randn(256, 32, dtype=torch.float64)
            y = stack(x)
            (y * torch.randn_like(y)).sum().backward()
            grad = stack.layers[0].weight.grad
            assert isinstance(grad, Tensor)
            size.append(float(sum(p.numel() for p in stack.parameters())))
            signal.append(y.std(0).mean().item())
            gradient.append(grad.square().mean().sqrt().item())
        for plot, values in zip(plots.values(), (size, signal, gradient), strict=True):
            plot[name] = (depths, values)
    return ch.draw.panels(plots, xlabel="layers", log="xy", width=2.9, height=3.5)


class Blocks(nn.Module):
    """Transformer blocks in one of the two orders, initialised as in Xiong et al. 2020."""

    def __init__(self, order: str, n: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64, 4, order=order) for _ in range(n))
        self.norm = make_norm("layer" if order == "pre" else "none", 64)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.xavier_normal_(p)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


@picture
def orders() -> Figure:
    """The residual stream and the gradients of pre-norm and post-norm blocks."""
    n = 24
    at = torch.arange(1, n + 1)
    sizes, gradients = {}, {}
    for order in ("pre", "post"):
        size, gradient = torch.zeros(n), torch.zeros(n)
        for seed in range(4):
            torch.manual_seed(seed)
            model, x = Blocks(order, n), torch.randn(4, 32, 64)
            with ch.watch(model, "blocks.*") as tape:
                y = model(x)
            (y * torch.randn_like(y)).sum().backward()
            size += torch.stack([z.std() for z in tape.match("blocks.*").values()]) / 4
            gradient += torch.stack([block.mlp.up.weight.grad.norm() for block in model.blocks]) / 4  # type: ignore
        sizes[order], gradients[order] = (at, size), (at, gradient)
    plots = {"size of the stream": sizes, "gradient of the MLP": gradients}
    return ch.draw.panels(plots, xlabel="block", zero=True, width=3.2)


# 04: looking inside

HEADS = ["one back", "same word", "near", "sink"]


def _built(words: list[str], p: int) -> tuple[Attention, Tensor]:
    """The layer that page 04 builds by hand, and its input: columns for the word, and `p` for the position.

    The score divides by the root of p; `gain` cancels the difference to the 16 of the page.
    """
    vocab = list(dict.fromkeys(words))
    v, gain = len(vocab), (p / 16) ** 0.5
    places = Sinusoid(p, join="concatenate")
    vectors = places.vectors(torch.arange(len(words) + 100))
    back = torch.linalg.lstsq(vectors[1:], vectors[:-1], driver="gelsd").solution.float()
    query, key = torch.zeros(4, p, v + p), torch.zeros(4, p, v + p)
    query[0, :, v:], key[0, :, v:] = 60 * gain * back.T, torch.eye(p)
    query[1, :v, :v], key[1, :v, :v] = 16 * gain * torch.eye(v), torch.eye(v)
    query[2, :, v:], key[2, :, v:] = 10 * gain * torch.eye(p), torch.eye(p)
    key[3, 0, 0] = 80 * gain
    layer = Attention(v + p, heads=4, head=p, out=False)
    assert layer.query is not None
    assert layer.key is not None
    with torch.no_grad():
        layer.query.weight.copy_(query.flatten(0, 1))
        layer.query.bias.zero_().view(4, p)[3, 0] = 0.5
        layer.key.weight.copy_(key.flatten(0, 1))
        layer.key.bias.zero_()
    return layer, places.add(torch.eye(v)[[vocab.index(word) for word in words]][None])


def _text() -> list[str]:
    """4,096 words whose topic changes and returns."""
    torch.manual_seed(0)
    words = ["<s>"]
    for topic, n in (("a", 1023), ("b", 1024), ("a", 512), ("c", 1024), ("b", 512)):
        words += [f"{topic}{i}" for i in torch.randint(8, (n,)).tolist()]
    return words


@picture
def heads() -> Figure:
    """The maps of the four heads on twelve words."""
    words = ["<s>", "the", "cat", "saw", "the", "dog", "and", "the", "dog", "saw", "the", "cat"]
    layer, x = _built(words, 16)
    with torch.no_grad(), ch.watch(layer, "weights") as tape:
        layer(x, mask=Mask(causal=True))
    shown = tape["weights"].dense()[0]
    return ch.draw.heads(shown, rows=words, columns=words, titles=HEADS, most=1.0, size=1.95)


@picture
def overview() -> Figure:
    """The pooled maps of the four heads on 4,096 words."""
    layer, x = _built(_text(), 32)
    with torch.no_grad(), ch.watch(layer, "weights") as tape:
        layer(x, mask=Mask(causal=True))
    return ch.draw.heads(tape["weights"].pool(96)[0], titles=HEADS, most=0.2, size=1.95)


@picture
def statistics() -> Figure:
    """The entropy and distance of the four heads on 512 words."""
    layer, x = _built(_text()[:512], 32)
    with torch.no_grad(), ch.watch(layer, "entropy", "distance") as tape:
        layer(x, mask=Mask(causal=True))
    n, uniform = torch.arange(1, 513), "evenly over all"
    entropy = {head: (n, tape["entropy"][0, h]) for h, head in enumerate(HEADS)} | {
        uniform: (n, n.log())
    }
    distance = {head: (n, tape["distance"][0, h]) for h, head in enumerate(HEADS)} | {
        uniform: (n, (n - 1) / 2)
    }
    plots = {"entropy, nats": entropy, "distance, tokens": distance}
    return ch.draw.panels(plots, xlabel="query", dashed=[uniform], zero=True, width=3.6)


# 05: translation


@picture
def crossing() -> Figure:
    """The alignment of a French pronoun, which precedes its verb."""
    source, target, weights = ch.translate(
        ch.load("fr-en", device="cpu"), "Je la mange.", beams=5
    ).by_word()
    return ch.draw.heatmap(
        weights, rows=target, columns=source, xlabel="read", ylabel="written", digits=2, most=1.0
    )


def _aligned(name: str) -> Figure:
    """A measured alignment of docs/results."""
    alignment = _results("alignment")[name]
    return ch.draw.heatmap(
        alignment["weights"],
        rows=alignment["target"],
        columns=alignment["source"],
        xlabel="read",
        ylabel="given",
        most=1.0,
    )


@picture
def lecture_alignment() -> Figure:
    """The alignment of the lecture's sentence."""
    return _aligned("lecture")


@picture
def caption_alignment() -> Figure:
    """The alignment of an image caption and its translation."""
    return _aligned("caption")


@picture
def sentence_length() -> Figure:
    """BLEU by the length of the sentence."""
    results = _results("sentence_length")
    lines = {name: (results["words"], bleu) for name, bleu in results["bleu"].items()}
    return ch.draw.curves(lines, xlabel="words of a sentence", ylabel="BLEU", zero=True)


@picture
def rnn_vs_transformer() -> Figure:
    """Sequential steps, time and memory of recurrent models and the Transformer, by length."""
    results = _results("rnn_vs_transformer")
    titles = {
        "chain_forward": "matrix products one after another",
        "train_batch": f"training step, {results['tokens_a_batch']:,} tokens a batch, ms",
        "kept_sentence": "kept for the gradients of a sentence, MB",
        "write_sentence": "writing a sentence, ms",
    }
    # the same chain as with the fused kernel
    del results["chain_forward"]["Transformer, scores written out"]
    plots = {
        title: {name: (results["lengths"], y) for name, y in results[what].items()}
        for what, title in titles.items()
    }
    return ch.draw.panels(plots, xlabel="tokens a side", log="xy", width=3.7, height=2.6, across=2)


# 06: language models


@picture
def writer() -> Figure:
    """The maps of some heads of the language model that comes with the package."""
    bundle = ch.load("everyday", device="cpu")
    pieces = ch.likelihood(bundle, READ).pieces
    with torch.no_grad(), ch.watch(bundle.model, "blocks.2.attn.weights") as tape:
        bundle.model(torch.tensor(bundle.tokens.encode(READ))[None])
    names, shown = [piece.strip() for piece in pieces], (1, 2, 3, 4)
    weights = tape["blocks.2.attn.weights"].dense()[0, list(shown)]
    return ch.draw.heads(
        weights, rows=names, columns=names, titles=[f"head {i}" for i in shown], most=1.0, size=1.95
    )


READ = "The man who saw the dog ran away because he was afraid of it."


# 07: vision models

EXAMPLES = Path(ch.__file__).parent / "explore" / "example_images"


def _example(name: str) -> Image:
    """An example image of the explorer."""
    return open_image(EXAMPLES / f"{name}.webp")


@picture
def patches() -> Figure:
    """A photograph, and the patches that it is cut into."""
    cat, n, gap = np.asarray(_example("cat").resize((128, 128))), 32, 6
    apart = np.full((4 * (n + gap) - gap, 4 * (n + gap) - gap, 3), 255, np.uint8)
    for i in range(4):
        for j in range(4):
            y, x = i * (n + gap), j * (n + gap)
            apart[y : y + n, x : x + n] = cat[i * n : (i + 1) * n, j * n : (j + 1) * n]
    return ch.draw.images({"image": cat, "16 patches, read row by row": apart}, size=1.75)


@picture
def grid_positions() -> Figure:
    """The similarity of the position of a cell with those of all cells of a 14 x 14 grid, without their mean."""
    vectors = SinCos2d(768).vectors(grid(14, 14))
    vectors = nn.functional.normalize(vectors - vectors.mean(0), dim=-1)
    cells = {
        "row 0, column 0": 0,
        "row 4, column 9": 65,
        "row 7, column 7": 105,
        "row 13, column 2": 184,
    }
    maps = {
        name: (vectors @ vectors[cell]).clamp(max=1).view(14, 14) for name, cell in cells.items()
    }
    return ch.draw.grids(maps, signed=True, xlabel="column", ylabel="row", most=1.0)


@picture
def augmentation() -> Figure:
    """One photograph under each augmentation, and mixed with another image."""
    size = 64
    both = [
        np.asarray(image.resize((size, size))) for image in (_example("cat"), _example("parachute"))
    ]
    images = torch.from_numpy(np.stack(both)).permute(0, 3, 1, 2).contiguous()
    rng, changed = DeviceRng(6, 0, torch.arange(2)), {"image": both[0]}
    for name, one in AUGMENTATIONS.items():
        always = (
            {"chance": 1.0}
            if name in ("flip", "erase")
            else {"pixels": 12}
            if name == "shift"
            else {}
        )
        act = one(one.Config(**always))
        changed[name] = act(images, rng.uniform(act.draws))[0].permute(1, 2, 0).numpy()
    share = torch.full((2,), 0.6)  # of the first image, in place of quantiles of a distribution
    for name, shares in {"mixup": (share, None), "cutmix": (None, share)}.items():
        out = mix(images / 255, rng, *shares)[0][0]
        changed[name] = out.clamp(0, 1).permute(1, 2, 0).numpy()
    return ch.draw.images(changed, across=5, size=1.0)


def _watched(name: str, image: Image) -> tuple[Any, ch.look.Tape]:
    """The pixels that a vision transformer of the zoo reads, and its attention maps."""
    bundle = ch.load(name, device="cpu")
    with ch.watch(bundle.model, "blocks.*.attn.weights") as tape:
        ch.classify(bundle, image)
    assert bundle.preprocessing is not None
    return bundle.preprocessing.pixels(image).transpose(1, 2, 0), tape


@picture
def class_attention() -> Figure:
    """What the class token attends to, mean of all heads, in some blocks of two models."""
    pictures, maps = {}, {}
    shown = {
        "golf ball": ("vit-imagenette", _example("golf-ball"), (0, 1, 5)),
        "cat": ("vit-cifar10", _example("cat"), (2, 5, 6)),
    }
    for what, (name, image, blocks) in shown.items():
        pixels, tape = _watched(name, image)
        step = max(len(pixels) // 64, 1)  # fewer pixels make a smaller file
        pixels = pixels[::step, ::step]
        pictures[what] = pixels
        for i in blocks:
            title = f"{what}, block {i}"
            pictures[title] = pixels
            maps[title] = tape[f"blocks.{i}.attn.weights"].row(0)[0].mean(0)[1:].view(16, 16)
    return ch.draw.images(pictures, maps=maps, size=1.5)


@picture
def grid_distance() -> Figure:
    """The mean distance over the grid of every head, for a photograph of a cat."""
    _, tape = _watched("vit-cifar10", _example("cat"))
    distance = ch.look.distance(tape, grid=(16, 16), special=1)[:, 0, :, 1:].mean(-1).T
    rows, columns = (
        [f"{word} {i}" for i in range(n)]
        for word, n in zip(("head", "block"), distance.shape, strict=True)
    )
    return ch.draw.heatmap(distance, rows=rows, columns=columns, digits=1, xlabel="", ylabel="")


# 14: captioning


def _caption_strip(model: str, name: str, across: int) -> Image | None:
    """Where each word of the caption of a test image of Flickr8k looked, in few colours; None without its images."""
    try:
        files = read_flickr8k("test")
    except DataError:
        return None
    image = read_image(str(files.root), name)
    caption: Any = ch.caption(ch.load(model, device="cpu"), image)
    return _in_few_colours(
        ch.draw.strip(
            np.asarray(image),
            caption.maps,
            caption.words,
            title=caption.text,
            across=across,
            size=1.2,
        ),
        dpi=105.0,  # light over a photograph in colour is compressed less than darkness
    )


def _in_few_colours(figure: Figure, dpi: float = 200.0) -> Image:
    """A figure as an image of 256 colours, which keeps its file small."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = open_image(ch.draw.save(figure, Path(folder) / "drawn.png", dpi=dpi))
    # keeps rare colours, such as that of a jacket
    few = drawn.quantize(256, method=Quantize.MAXCOVERAGE)
    return drawn.quantize(palette=few, dither=Dither.FLOYDSTEINBERG)


@picture
def caption_rnn() -> Image | None:
    """The figure of Show, Attend and Tell, for the recurrent captioner of the zoo."""
    return _caption_strip("captioner-rnn", "2759860913_f75b39d783.webp", across=7)


@picture
def caption_transformer() -> Image | None:
    """The same for the Transformer captioner, mean of layers and heads."""
    return _caption_strip("captioner", "2885387575_9127ea10f1.webp", across=6)


# 10: experiments, from the numbers in docs/results that benchmarks/*.py measured


def _results(name: str) -> dict[str, Any]:
    """The measurements of a benchmark."""
    results: dict[str, Any] = json.loads(
        (HERE.parent / "results" / f"{name}.json").read_text(encoding="utf-8")
    )
    return results


def _mean(rows: list[list[float]]) -> list[float]:
    """The mean over seeds."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


@picture
def identity() -> Figure:
    """Loss and parameters of stacks that learn the identity, by depth."""
    loss, size = {}, {}
    for kind, depths in _results("depth")["depth"].items():
        at = [int(depth) for depth in depths]
        loss[kind] = (at, [sorted(run["valid_loss"])[1] for run in depths.values()])
        size[kind] = (at, [run["parameters"] for run in depths.values()])
    plots = {"loss, median of three seeds": loss, "parameters": size}
    return ch.draw.panels(plots, xlabel="layers", log="xy", width=3.6, height=3.5)


@picture
def recall() -> Figure:
    """How often the important guest is recalled, by age."""
    results = _results("recall")
    ages, blind = results["ages"], "blind guess"
    lines = {name: (ages, _mean(rows)) for name, rows in results["accuracy"].items()}
    lines[blind] = (ages, [1 / results["symbols"]] * len(ages))
    return ch.draw.curves(
        lines,
        xlabel="guests that came after the important one",
        ylabel="recalled",
        dashed=[blind],
        zero=True,
        width=5.4,
    )


@picture
def length() -> Figure:
    """Loss on windows longer than those in training, for each kind of positions."""
    results = _results("length")
    plots: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for title, which in (("all characters", "all"), ("characters past the 64th", "past")):
        plots[title] = {}
        for kind, seeds in results["valid_loss"].items():
            pairs = [
                (n, y)
                for n, y in zip(results["lengths"], _mean_of_present(seeds[which]), strict=True)
                if y is not None
            ]
            if pairs:
                plots[title][kind] = ([n for n, _ in pairs], [y for _, y in pairs])
    return ch.draw.panels(
        plots, xlabel="characters in a window", ylabel=["loss", ""], log="x", width=3.6, height=3.4
    )


def _mean_of_present(rows: list[list[float | None]]) -> list[float | None]:
    """The mean over the seeds that have a value; None if there are none."""
    columns = ([y for y in column if y is not None] for column in zip(*rows, strict=True))
    return [sum(column) / len(column) if column else None for column in columns]


@picture
def spread() -> Figure:
    """The spread of a learned table of positions during training."""
    results = _results("positions")
    lines = {name: (results["steps"], _mean(rows)) for name, rows in results["spread"].items()}
    return ch.draw.curves(lines, xlabel="steps", ylabel="spread of the table", zero=True, width=5.4)


# 09: training


@picture
def inside() -> Figure:
    """Statistics of every head while a small model learns to reverse a sequence."""
    recipe = {
        "seed": 1,
        "steps": 300,
        "data": {"name": "reverse", "symbols": 10, "length": [3, 8], "rows": 64},
        "model": {"name": "gpt", "context": 16, "width": 64, "depth": 2, "heads": 2},
        "optim": {"lr": 3e-3},
        "schedule": {"warmup": 30},
        "run": {"inside_every": 20},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "reverse"
        ch.train(recipe, out=run, device="cpu", quiet=True)
        return ch.plot(run)[1]


# 08: the explorer


@picture
def explorer_start() -> Image | None:
    """The start page."""
    return screenshot("start", ".example .token")


@picture
def explorer_translate() -> Image | None:
    """A sentence, its translations, and the map of one head."""
    address = "translate?model=fr-en&text=Je+ne+sais+pas+o%C3%B9+il+habite.&beams=3&layer=1&head=3"
    return screenshot(address, ".heads canvas", tall=900)


@picture
def explorer_write() -> Image | None:
    """A generated text, the selected token, and the effect of every head."""
    address = "write?model=everyday&text=She+told+me+that&max_new=13&temperature=0.7&seed=2&layer=2&head=0&at=4"
    return screenshot(address + "&colouring=effect", ".heads [title*=': effect ']", tall=1080)


@picture
def explorer_read() -> Image | None:
    """A masked sentence, the model's guesses, and its attention."""
    return screenshot("read?model=cloze", ".heads canvas", tall=1180)


@picture
def explorer_classify() -> Image | None:
    """The class token's attention over an image, the classes, and the maps of every head."""
    return screenshot(
        "classify?model=vit-imagenette&image=church&layer=0&head=1", ".heads canvas", tall=800
    )


@picture
def explorer_compare() -> Image | None:
    """CKA of a vision transformer and a ResNet, attention distance and receptive fields."""
    address = "compare?model=vit-cifar10&other=resnet-cifar10"
    return screenshot(address, ".compare .remark:not(:empty)", tall=1980)


@picture
def explorer_patching() -> Image | None:
    """Two prompts, their tokens, and which layer and token carry the answer."""
    address = (
        "write?model=everyday&text=The+children+in+the+garden&inspect=1&patch=%7B%22open%22%3A1%7D"
    )
    return screenshot(address, ".patching .verdict", tall=890)


@picture
def explorer_caption() -> Image | None:
    """A caption of the user's own, the place of the camera, and a panel per word."""
    address = "caption?model=captioner&image=photographer&text=a+man+with+a+camera&at=4"
    return screenshot(address, ".strip button", tall=840, colours=256)


@picture
def explorer_build() -> Image | None:
    """The lecture's worked example, with the arithmetic of one weight."""
    act = (
        "document.querySelectorAll(\".matrix[aria-label^='A'] tbody td > *\")[1].dispatchEvent("
        "new PointerEvent('pointerover', { bubbles: true }))"
    )
    return screenshot("build", ".matrix td", act=act)


# 15: what models learn, from docs/results/what_models_learn.json; the maps of a ViT-S/14 need its checkpoint


def _learned(fact: str) -> dict[str, Any]:
    """The numbers of one fact."""
    found: dict[str, Any] = _results("what_models_learn")[fact]
    return found


@picture
def head_distances() -> Figure:
    """The nearest and the farthest head of every block of three ViTs, compared with uniform attention."""
    plots = {}
    for name in ("vit-cifar10", "vit-imagenette", "vit-s14"):
        found = _learned("heads")["models"][name]
        blocks = np.arange(len(found["mean"]))
        plots[name] = {
            "farthest head": (blocks, found["farthest"]),
            "mean of the heads": (blocks, found["mean"]),
            "nearest head": (blocks, found["nearest"]),
            "uniform attention": (blocks, np.ones(len(blocks))),
        }
    return ch.draw.panels(
        plots,
        xlabel="block",
        ylabel=["distance / uniform", "", ""],
        dashed=["uniform attention"],
        zero=True,
        shared=True,
        width=2.6,
        height=2.6,
    )


@picture
def field_growth() -> Figure:
    """The side of effective receptive fields by relative depth, and the theoretical one of a ResNet."""
    models = _learned("fields")["models"]

    def line(name: str, what: str = "side") -> tuple[Any, Any]:
        values = [
            np.nan if x is None else min(x, models[name]["image"]) for x in models[name][what]
        ]
        return np.linspace(0, 1, len(values)), np.array(values)

    plots = {
        "CIFAR-10, 32 pixels": {
            "ViT": line("vit-cifar10"),
            "ResNet": line("resnet-cifar10"),
            "ResNet, theoretical": line("resnet-cifar10", "theoretical"),
        },
        "ImageNet, 224 pixels": {
            "ViT": line("vit-s14"),
            "ResNet": line("keras-resnet50"),
            "MobileNetV2": line("mobilenet-v2"),
            "ResNet, theoretical": line("keras-resnet50", "theoretical"),
        },
    }
    return ch.draw.panels(
        plots,
        xlabel="relative depth",
        ylabel="side in pixels",
        dashed=["ResNet, theoretical"],
        zero=True,
        width=3.2,
    )


@picture
def layer_similarity() -> Figure:
    """CKA within models, and between models, the first block at the top left."""
    pairs = _learned("similarity")["pairs"]
    shown = {
        "vit-cifar10": "vit-cifar10", "resnet-cifar10": "resnet-cifar10",
        "ViT (rows), ResNet (columns)": "vit-cifar10 with resnet-cifar10",
        "vit-imagenette": "vit-imagenette", "two seeds": "vit-imagenette with vit-seed-2",
        "class token (rows), mean": "vit-imagenette with vit-mean",
    }  # fmt: skip
    matrices = {title: np.clip(pairs[name]["matrix"], 0, 1) for title, name in shown.items()}
    return ch.draw.grids(matrices, xlabel="", ylabel="", most=1.0, across=3, size=2.2)


@picture
def pooling() -> Figure:
    """The accuracy of linear probes after each block, on the class token and on the mean of the patches."""
    found = _learned("pooling")
    models = found["models"]
    blocks = np.arange(len(models["vit-mean"]["distance"]))
    lines = {
        "class token": (blocks, models["vit-imagenette"]["probe"]["class token"]),
        "patches beside it": (blocks, models["vit-imagenette"]["probe"]["patches"]),
        "patches, mean-pooled": (blocks, models["vit-mean"]["probe"]["patches"]),
        "chance": (blocks, [found["chance"]] * len(blocks)),
    }
    return ch.draw.curves(
        lines, xlabel="block", ylabel="accuracy of a linear probe", dashed=["chance"], zero=True
    )


def _real_vit() -> ch.Bundle | None:
    """The real ViT-S/14; None without its checkpoint."""
    folder = Path(os.environ.get("CLEARHEAD_CHECKPOINTS", "checkpoints")) / "vit-s14"
    return ch.load(folder, device="cpu") if folder.is_dir() else None


def _class_maps(bundle: ch.Bundle, name: str, side: int) -> ch.look.ClsMaps:
    """What the class token of the last block attends to in an example image of `side` pixels."""
    assert bundle.preprocessing is not None
    read = dataclasses.replace(bundle.preprocessing, resize=side, crop=(side, side))
    return ch.look.cls_maps(
        bundle.model, torch.from_numpy(read(_example(name).resize((side, side))))
    )


@picture
def class_token_maps() -> Image | None:
    """The class token's attention of a supervised ViT and of a ViT-S/14, mean of the heads of the last block."""
    real, ours = _real_vit(), ch.load("vit-imagenette", device="cpu")
    if real is None:
        return None
    pictures, maps = {}, {}
    for name in ("golf-ball", "parachute", "photographer"):
        pixels = np.asarray(_example(name).resize((64, 64)))
        pictures[name] = pixels
        for title, bundle, side in (("ours", ours, 128), ("ViT-S/14", real, 448)):
            key = f"{name}, {title}"
            pictures[key], maps[key] = pixels, _class_maps(bundle, name, side).maps.mean(0)
    order = [name for start in range(3) for name in list(pictures)[start::3]]  # a row per model
    return _in_few_colours(
        ch.draw.images({name: pictures[name] for name in order}, maps=maps, across=3, size=1.5)
    )


@picture
def class_token_heads() -> Figure | None:
    """What each head of the last block of a ViT-S/14 attends to, one colour per head."""
    real = _real_vit()
    if real is None:
        return None
    maps = _class_maps(real, "photographer", 448).maps
    return ch.draw.head_colours(
        maps.numpy(), np.asarray(_example("photographer").resize((128, 128))), keep=0.6
    )


@picture
def word_heads() -> Figure:
    """The best head of each set of sentences, on the sentences that did not choose it, beside its control."""
    models = _learned("sentences")["models"]
    shown = {
        "she > Sofia\nSmolLM2": ("smollm2", "names"), "it > plate\nSmolLM2": ("smollm2", "objects"),
        "it > animal\nMiniLM": ("minilm", "things"), "bank > river\nMiniLM": ("minilm", "banks"),
        "making > difficult\nMiniLM": ("minilm", "verbs"),
        "rend > difficile\nopus-mt": ("opus-mt-fr-en", "verbs-french"),
        "noir > chat\nopus-mt": ("opus-mt-fr-en", "adjectives"), "cat > chat\nopus-mt": ("opus-mt-fr-en", "order"),
    }  # fmt: skip
    rows = [models[model][which] for model, which in shown.values()]
    groups = {"best head, held out": "held_out", "chance": "chance"}
    return ch.draw.bars(
        {title: [row[key] for row in rows] for title, key in groups.items()},
        names=list(shown),
        ylabel="share of sentences",
        width=9.5,
        height=3.0,
    )


@picture
def bank_senses() -> Figure:
    """How often the nearest other bank has the same sense, by depth."""
    found = _learned("banks")
    titles = {"smollm2": "SmolLM2", "minilm": "MiniLM", "en-de": "encoder of en-de"}
    lines = {
        title: (
            np.linspace(0, 1, len(found["models"][name]["right"])),
            found["models"][name]["right"],
        )
        for name, title in titles.items()
    }
    lines["chance"] = (np.array([0.0, 1.0]), [found["chance"]] * 2)
    return ch.draw.curves(
        lines, xlabel="relative depth", ylabel="same sense", dashed=["chance"], zero=True
    )


@picture
def randomised() -> Figure:
    """Rank correlations of saliency maps with those of a model whose weights are shuffled."""
    rows = _learned("randomised")["models"]["vit-imagenette"]
    titles = {
        "output layer": "output layer shuffled",
        "all parameters": "all parameters shuffled",
        "another picture": "another picture, same model",
    }
    return ch.draw.bars(
        {title: [row[key] for row in rows.values()] for key, title in titles.items()},
        names=[name.replace("-", "-\n") for name in rows],
        ylabel="rank correlation",
        width=9.0,
    )


# 17: how the code is laid out

FOLDERS = (
    ("tokens/", "text <-> ids"),
    ("data/", "files -> batches of (seed, step)"),
    ("layers/", "tensors: attend, masks, positions, blocks"),
    ("models/", "one family per file, made of layers"),
    ("decode/", "logits -> ids: one search"),
    ("weights/", "folders and checkpoints <-> models"),
    ("inputs/", "text, image -> arguments, and names back"),
    ("look/", "watch, edit, maps, exact statistics"),
    ("tasks/", "translate, generate, classify, ..."),
    ("training/", "one loop, objectives, checkpoints"),
    ("report/", "views, figures, comparisons"),
    ("cli/, explore/", "the command line and the web page"),
)
# What each folder does on the way, in the order in which it is asked.
WAYS = {
    "clearhead translate en-de": {
        "cli/, explore/": "the sentence and its options",
        "tasks/": "translate: load, read, search",
        "weights/": "the model and its tokens",
        "inputs/": "source ids and the first target id",
        "tokens/": "words to ids",
        "look/": "watches: the map of each step",
        "decode/": "beams, one token at a time",
        "models/": "start and step: logits",
        "layers/": "attend",
    },
    "clearhead view MODEL cat.png cls": {
        "cli/, explore/": "the image and the view",
        "report/": "the view: what is measured, drawn",
        "weights/": "the model and its preprocessing",
        "inputs/": "pixels as the model's arguments",
        "data/": "the file: decoded, resized, cropped",
        "look/": "watches, and reduces the maps",
        "models/": "patches to logits",
        "layers/": "attend; its tap records",
    },
    "clearhead train reverse": {
        "cli/, explore/": "the recipe and its changes",
        "training/": "step: losses, gradients, update",
        "data/": "the batch of (seed, step)",
        "tokens/": "symbols and texts to ids",
        "models/": "forward",
        "layers/": "attend, forward and backward",
        "weights/": "saves the model in the end",
    },
}


@picture
def layout() -> Image:
    """The ways of a text, of an image and of a training step: a folder per row, a number per stop."""
    figure = sheet(11.5, 6.6)
    axes = figure.subplots()
    axes.set_xlim(0, 12.4)
    axes.set_ylim(len(FOLDERS) - 0.4, -1.2)  # the first folder on top
    axes.axis("off")
    rows = {name: row for row, (name, _) in enumerate(FOLDERS)}
    for name, row in rows.items():
        axes.axhspan(row - 0.46, row + 0.46, color="#f3f5f8" if row % 2 else "white", zorder=0)
        axes.text(0.1, row - 0.14, name, va="center", weight="bold", fontsize=10)
        axes.text(0.1, row + 0.24, dict(FOLDERS)[name], va="center", fontsize=7.5, color="#555555")
    for column, (command, stops) in enumerate(WAYS.items()):
        x = 3.6 + 3.0 * column
        colour = PALETTE[column]
        axes.text(
            x - 0.2, -0.85, command, fontsize=9.5, color=colour, weight="bold", family="monospace"
        )
        heights = [rows[name] for name in stops]
        axes.plot(
            [x, x], [min(heights), max(heights)], color=colour, linewidth=2, alpha=0.35, zorder=1
        )
        for number, (name, what) in enumerate(stops.items(), start=1):
            axes.scatter(x, rows[name], s=190, color=colour, zorder=2)
            axes.text(
                x,
                rows[name],
                str(number),
                color="white",
                ha="center",
                va="center",
                fontsize=8.5,
                weight="bold",
            )
            axes.text(x + 0.22, rows[name], what, va="center", fontsize=8.5)
    return _in_few_colours(figure, dpi=130)


# 16: bring your own


@picture
def io_la_sto_mangiando() -> Figure:
    """Cross-attention of a translator that was trained from a file of Italian and English sentences."""
    found = _results("own_data")
    names = {side: [name.strip() for name in found[side]] for side in ("queries", "keys")}
    return ch.draw.heatmap(
        found["weights"],
        rows=names["queries"],
        columns=names["keys"],
        xlabel="read",
        ylabel="written",
        digits=2,
        most=1.0,
    )


def save(drawn: Figure | Image | None, path: Path) -> Path:
    """Write a picture; None keeps the file that exists."""
    if isinstance(drawn, Image):
        drawn.save(path, optimize=True)
    elif drawn is not None:
        ch.draw.save(drawn, path)
    elif not path.exists():
        sys.exit(
            f"{path.name} cannot be drawn: expected a browser (chromium and chromedriver), Flickr8k's images, or the "
            "checkpoint in CLEARHEAD_CHECKPOINTS"
        )
    return path


def main(wanted: list[str]) -> None:
    """Draw the named pictures, or all."""
    torch.set_num_threads(1)  # small tensors, and the same sums in the same order everywhere
    unknown = [name for name in wanted if name not in PICTURES]
    if unknown:
        sys.exit(f"no picture {', '.join(unknown)}: expected some of {', '.join(PICTURES)}")
    for name in wanted or PICTURES:
        start = time.perf_counter()
        path = save(PICTURES[name](), HERE / f"{name}.png")
        print(
            f"{path.name:24} {path.stat().st_size / 1000:6.1f} kB  {time.perf_counter() - start:5.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
