"""Accuracy on CIFAR-10 against training compute: ViT, hybrid, ResNet and ConvNeXt; and what the recipe changes.

    python benchmarks/vision_or_cnn.py --list                    # the runs, their sizes and expected minutes
    python benchmarks/vision_or_cnn.py --jobs 8 --limit 590      # on one H200; again: resumes, and does what is left
    python benchmarks/vision_or_cnn.py --figure                  # docs/pictures/vision-or-cnn.png, from the results

After Dosovitskiy et al. 2021, Figure 5, in small: three budgets, each four times the one before, which all families
spend in 40 epochs; so the models differ in size, by at most 10 % in FLOPs per image. Every family has a strong recipe
of its own (configs/cifar10-*-strong.toml, whose models are those of the middle budget). "The recipe decides" compares
these with the recipes of the first papers (configs/cifar10-*-old.toml) at the middle budget.

FLOPs of training are three times those of the forward passes, counted as for the share of the peak that trainings log,
and checked against a formula for each family. Runs share the GPU in processes of their own; a run whose time is over
saves a checkpoint, and the same command resumes it. Results of all finished runs are added to
docs/results/vision_or_cnn.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from results import CONFIGS, HOME, RESULTS, keep

from clearhead.data.images.in_memory import (
    CLASSES,
    PREPROCESSING,
    SIDE,
    Pictures,
    PixelConfig,
    Pixels,
)
from clearhead.draw.style import HAIR, PALETTE, SMALL, dress, letters, save, sheet
from clearhead.training import read_recipe
from clearhead.training.logs import training_flops
from clearhead.training.objectives import objective_class
from clearhead.training.processes import PATIENCE, Child, command, exit_on_sigterm
from clearhead.training.recipe import Recipe
from clearhead.training.setup import resolve
from clearhead.training.sweep import is_finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES, ROWS, EPOCHS = 50_000, 512, 40
BUDGETS = ("small", "middle", "large")
# The options in which the models of the other budgets differ from those of the recipes, and the expected minutes on an
# H200 that eight runs share.
SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "vit": {
        "small": ("model.width=96", "model.depth=4", "model.heads=3", "model.hidden=448"),
        "large": ("model.width=256", "model.depth=11", "model.heads=4", "model.skip=0.05"),
    },
    "hybrid": {
        "small": ("model.stem_width=16", "model.width=96", "model.depth=2", "model.heads=3"),
        "large": (
            "model.stem_width=64",
            "model.width=256",
            "model.depth=5",
            "model.heads=4",
            "model.skip=0.05",
        ),
    },
    "resnet": {"small": ("model.width=16",), "large": ("model.width=64",)},
    "convnext": {},
}
MINUTES = {"small": 3.5, "middle": 5.0, "large": 8.5}
TITLES = {"vit": "ViT", "hybrid": "hybrid", "resnet": "ResNet", "convnext": "ConvNeXt"}
STAGGER = 1.0  # seconds between two starts, so that compilation does not begin everywhere at once
SHORTEST = 40.0  # seconds: with less time left no run is started


class Plan(NamedTuple):
    """A run of the experiment."""

    family: str
    budget: str
    seed: int
    recipe: str = "strong"
    changes: tuple[str, ...] = ()  # further overrides

    @property
    def name(self) -> str:
        return f"{self.family}-{self.recipe}-{self.budget}-{self.seed}"

    @property
    def path(self) -> Path:
        return CONFIGS / f"cifar10-{self.family}-{self.recipe}.toml"

    def words(self, epochs: int) -> tuple[str, ...]:
        """The overrides of the recipe."""
        size = SIZES[self.family].get(self.budget, ())
        return (*size, f"seed={self.seed}", f"steps={epochs * (IMAGES // ROWS)}", *self.changes)

    def settings(self, epochs: int, *extra: str) -> Recipe:
        return read_recipe(self.path, *self.words(epochs), *extra)


def plans(changes: Mapping[str, Sequence[str]]) -> list[Plan]:
    """All runs, the most important first: a seed of everything, then the other seeds, then the old recipes.

    Among those of a seed the longest come first, so that no long one is left alone at the end.

    Args:
        changes: Overrides of the runs of a recipe: {"vit-strong": ["optim.lr=4e-3"]}.
    """
    found = []
    for seed in (1, 2, 3):
        for budget in reversed(BUDGETS):
            found += [Plan("vit", budget, seed), Plan("hybrid", budget, seed)]
            if seed == 1:
                found.append(Plan("resnet", budget, seed))
            if seed == 1 and budget == "middle":
                found.append(Plan("convnext", budget, seed))
    for seed in (1, 2, 3):
        found += [Plan("vit", "middle", seed, "old"), Plan("resnet", "middle", seed, "old")]
        if seed > 1:
            found.append(Plan("resnet", "middle", seed))
    return [
        plan._replace(changes=tuple(changes.get(f"{plan.family}-{plan.recipe}", ())))
        for plan in found
    ]


# Compute


def small_data() -> Pixels:
    """Two black images in the shape of CIFAR-10's, from which the sizes of a model follow."""
    black = Pictures(images=np.zeros((2, 3, SIDE, SIDE), np.uint8), labels=np.arange(2))
    return Pixels(
        PixelConfig(rows=2), black, black, classes=CLASSES, preprocessing=PREPROCESSING, seed=0
    )


def counted(plan: Plan) -> tuple[float, int, Any]:
    """The FLOPs of training on an image, counted; the number of parameters; the model's options."""
    data, recipe = small_data(), plan.settings(EPOCHS)
    setup = resolve(recipe, data, {})
    player = setup.players["model"]
    kind = objective_class(setup.objective)
    model = player.build()
    objective = kind(kind.Config(), {"model": model}, data)
    batch = {"images": torch.zeros(2, 3, SIDE, SIDE), "labels": torch.zeros(2, dtype=torch.long)}
    return (
        training_flops(objective, batch) / 2,
        sum(p.numel() for p in model.parameters()),
        player.config,
    )


def vit_products(c: Any) -> float:
    """Multiplications of a ViT's forward pass: per block 12 d^2 per token, if the MLP has 4 d, and 2 t^2 d."""
    tokens, hidden = (SIDE // c.patch) ** 2, c.hidden or 4 * c.width
    each = 4 * c.width**2 + 2 * c.width * hidden
    blocks = c.depth * (tokens * each + 2 * tokens**2 * c.width)
    if c.stem == "patch":
        stem = tokens * 3 * c.patch**2 * c.width
    else:
        channels = c.stem_width
        places = [SIDE**2 // 4**i for i in range(c.patch.bit_length() - 1)]
        stem = places[0] * 27 * channels + residual_products(channels, [2] * len(places))
        stem += tokens * 9 * channels * 2 ** (len(places) - 1) * c.width
    return blocks + stem + c.width * len(CLASSES)


def residual_products(width: int, depths: Sequence[int]) -> float:
    """Multiplications of the stages of a ResNet: two 3x3 convolutions per block, and 1x1 ones where a stage begins."""
    total, inputs = 0.0, width
    for i, depth in enumerate(depths):
        outputs, places = width * 2**i, SIDE**2 // 4**i
        total += places * 9 * (inputs * outputs + (2 * depth - 1) * outputs**2)
        total += places * inputs * outputs if i else 0.0
        inputs = outputs
    return total


def resnet_products(c: Any) -> float:
    """Multiplications of a ResNet's forward pass: the first convolution, the stages and the head."""
    last = c.width * 2 ** (len(c.depths) - 1)
    return SIDE**2 * 27 * c.width + residual_products(c.width, c.depths) + last * len(CLASSES)


def convnext_products(c: Any) -> float:
    """Multiplications of a ConvNeXt's forward pass: k^2 d and 8 d^2 per place and block, and halving the grid."""
    places, width = (SIDE // c.patch) ** 2, c.width
    total = places * 3.0 * c.patch**2 * width
    for i, depth in enumerate(c.depths):
        if i:
            places, width = places // 4, 2 * width
            total += places * 4 * (width // 2) * width
        total += depth * places * (c.kernel**2 * width + 8 * width**2)
    return total + width * len(CLASSES)


FORMULAS: dict[str, Callable[[Any], float]] = {
    "vit": vit_products,
    "hybrid": vit_products,
    "resnet": resnet_products,
    "convnext": convnext_products,
}


def sizes(wanted: Sequence[Plan]) -> dict[tuple[str, str], dict[str, float]]:
    """FLOPs of training per image and parameters of each (family, budget); raises unless they are as planned."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for plan in wanted:
        if (plan.family, plan.budget) in found:
            continue
        flops, parameters, options = counted(plan)
        # a product is a multiplication and an addition; three passes
        formula = 6 * FORMULAS[plan.family](options)
        if not 0.98 < flops / formula < 1.02:
            raise AssertionError(
                f"{plan.name}: {flops:.4g} FLOPs counted, {formula:.4g} by the formula"
            )
        found[plan.family, plan.budget] = {
            "flops": flops,
            "formula": formula,
            "parameters": parameters,
        }
    for budget in BUDGETS:
        each = [size["flops"] for (_, name), size in found.items() if name == budget]
        if each and max(each) > 1.1 * min(each):
            raise AssertionError(
                f"the FLOPs of the {budget} budget differ by more than 10 %: {each}"
            )
    return found


# Trainings


def train_all(
    waiting: list[Plan], runs: Path, *, epochs: int, jobs: int, limit: float, extra: list[str]
) -> None:
    """Train `jobs` runs at a time in processes of their own; when the time is over, all save a checkpoint and stop."""
    start, running = time.monotonic(), list[tuple[Plan, Child]]()

    def seconds() -> float:
        return time.monotonic() - start

    try:
        while waiting or running:
            for plan, child in [pair for pair in running if not pair[1].running]:
                running.remove((plan, child))
                code = child.process.returncode
                print(
                    f"{seconds():5.0f} s  {plan.name}: {child.error(code) if code else 'done'}",
                    flush=True,
                )
            if seconds() > limit:
                break
            if waiting and len(running) < jobs and limit - seconds() > SHORTEST:
                plan = waiting.pop(0)
                line = command(plan.path, *plan.words(epochs), *extra, out=runs / plan.name)
                running.append((plan, Child(line, threads=2, log=runs / f"{plan.name}.log")))
                print(f"{seconds():5.0f} s  {plan.name}: started", flush=True)
                time.sleep(STAGGER)
            else:
                if not running:
                    break
                time.sleep(0.1)
    finally:
        stop([child for _, child in running])
        for plan, _ in running:
            print(f"{seconds():5.0f} s  {plan.name}: stopped", flush=True)


def stop(children: Sequence[Child]) -> None:
    """Ask all children to save a checkpoint and end; those that do not within their patience are killed."""
    for child in children:
        if child.running:
            child.process.terminate()
    end = time.monotonic() + PATIENCE
    for child in children:
        try:
            child.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


def outcome(plan: Plan, folder: Path, size: dict[str, float]) -> dict[str, Any]:
    """What a finished run measured."""
    records = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rates = [record["rate"] for record in records if "rate" in record]
    steps, seconds = records[-1]["step"], sum(record.get("seconds", 0.0) for record in records)
    accuracy = [record["valid_accuracy"] for record in records if "valid_accuracy" in record]
    return {
        "family": plan.family,
        "recipe": plan.recipe,
        "budget": plan.budget,
        "seed": plan.seed,
        "accuracy": accuracy[-1],
        "steps": steps,
        "minutes": seconds / 60,
        "images_per_second": statistics.median(rates),
        "parameters": size["parameters"],
        "flops": size["flops"] * steps * ROWS,
    }


def merge(
    wanted: Sequence[Plan], runs: Path, epochs: int, others: Sequence[Path]
) -> dict[str, Any]:
    """Add the results of finished runs, and those of other files, to docs/results/vision_or_cnn.json.

    Trials with other options than the plan's do not count.
    """
    found: dict[str, Any] = {}
    for path in (RESULTS / "vision_or_cnn.json", *others):
        if path.is_file():
            found |= json.loads(path.read_text(encoding="utf-8"))["runs"]
    done = [plan for plan in wanted if is_finished(runs / plan.name, plan.settings(epochs))]
    every = sizes(done)
    for plan in done:
        found[plan.name] = outcome(plan, runs / plan.name, every[plan.family, plan.budget])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    if done or others:
        keep("vision_or_cnn", machine=device, runs=dict(sorted(found.items())))
    return found


# The figure


def figure(found: dict[str, Any]) -> Figure:
    """Accuracy against FLOPs, a line per family through the means of its seeds; and by recipe at the middle budget."""
    paper = sheet(9.0, 3.6)
    left, right = paper.subplots(1, 2, width_ratios=(3, 2))
    dress(
        left,
        xlabel="FLOPs of training",
        ylabel="accuracy on the test images, %",
        title="strong recipes",
    )
    colours = dict(zip(TITLES, PALETTE, strict=False))
    results = list(found.values())
    used = [budget for budget in BUDGETS if any(r["budget"] == budget for r in results)]
    for family, title in TITLES.items():
        points = [r for r in results if r["family"] == family and r["recipe"] == "strong"]
        by_budget = [[r for r in points if r["budget"] == budget] for budget in used]
        means = [
            (
                statistics.fmean(r["flops"] for r in some),
                100 * statistics.fmean(r["accuracy"] for r in some),
            )
            for some in by_budget
            if some
        ]
        if not means:
            continue
        colour = colours[family]
        left.plot(*zip(*means, strict=True), color=colour, label=title, marker="o", markersize=4)
        left.scatter(
            [r["flops"] for r in points],
            [100 * r["accuracy"] for r in points],
            s=10,
            color=colour,
            alpha=0.5,
        )
    left.set_xscale("log")
    spent = [
        statistics.median(r["flops"] for r in results if r["budget"] == budget) for budget in used
    ]
    left.minorticks_off()
    left.set_xticks(spent, [f"{flops:.1e}" for flops in spent], **letters(SMALL))
    left.set_axisbelow(True)
    left.grid(True, color=HAIR, linewidth=0.8)
    left.legend(frameon=False, prop={"size": SMALL})

    dress(right, title="the recipe, at the middle budget")
    groups = [(family, recipe) for family in ("vit", "resnet") for recipe in ("old", "strong")]
    for place, (family, recipe) in enumerate(groups):
        accuracies = [
            100 * r["accuracy"]
            for r in results
            if (r["family"], r["recipe"], r["budget"]) == (family, recipe, "middle")
        ]
        right.scatter([place] * len(accuracies), accuracies, s=16, color=colours[family])
    right.set_xticks(
        range(len(groups)),
        [f"{TITLES[family]},\n{recipe}" for family, recipe in groups],
        **letters(SMALL),
    )
    right.set_xlim(-0.5, len(groups) - 0.5)
    right.set_axisbelow(True)
    right.grid(True, axis="y", color=HAIR, linewidth=0.8)
    return paper


def table(wanted: Sequence[Plan], found: dict[str, Any], epochs: int) -> None:
    """Print the runs, their sizes and results, and the minutes that all take together."""
    every = sizes(wanted)
    for plan in wanted:
        size = every[plan.family, plan.budget]
        done = found.get(plan.name)
        result = (
            f"{100 * done['accuracy']:.2f} % in {done['minutes']:.1f} minutes"
            if done
            else "not yet"
        )
        flops = size["flops"] * epochs * (IMAGES // ROWS) * ROWS
        off = size["flops"] / size["formula"] - 1
        print(
            f"{plan.name:26s} {size['parameters'] / 1e6:6.2f}M parameters {flops:9.3g} FLOPs ({off:+.1%} by formula) "
            f"{MINUTES[plan.budget]:.1f} minutes  {result}"
        )
    minutes = sum(MINUTES[plan.budget] for plan in wanted)
    print(
        f"{len(wanted)} runs: {minutes:.0f} minutes of trainings that share the GPU, {minutes / 8:.0f} with eight jobs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", help="overrides for all runs, such as steps=3 for a trial"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/vision_or_cnn"), help="folder of the run folders"
    )
    parser.add_argument(
        "--only",
        default="",
        help="only runs whose name contains one of these words: resnet,vit-old",
    )
    parser.add_argument("--jobs", type=int, default=8, help="runs that share the GPU")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which all stop"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        help="an override for a recipe: --change vit-strong:optim.lr=4e-3",
    )
    parser.add_argument("--list", action="store_true", help="print the runs and do nothing")
    parser.add_argument(
        "--merge", nargs="*", type=Path, default=[], help="add the results of these files"
    )
    parser.add_argument(
        "--figure", action="store_true", help="only draw the figure of the results that are there"
    )
    given = parser.parse_args()
    changes: dict[str, list[str]] = {}
    for change in given.change:
        recipe, _, word = change.partition(":")
        changes.setdefault(recipe, []).append(word)
    wanted = [
        plan for plan in plans(changes) if any(word in plan.name for word in given.only.split(","))
    ]
    if not (given.list or given.figure or given.merge):
        sizes(wanted)
        waiting = [
            plan
            for plan in wanted
            if not is_finished(given.runs / plan.name, plan.settings(given.epochs, *given.words))
        ]
        with exit_on_sigterm():
            train_all(
                waiting,
                given.runs,
                epochs=given.epochs,
                jobs=given.jobs,
                limit=given.limit,
                extra=given.words,
            )
    found = merge(wanted, given.runs, given.epochs, given.merge)
    table(wanted, found, given.epochs)
    if given.figure:
        save(figure(found), HOME / "docs" / "pictures" / "vision-or-cnn.png")


if __name__ == "__main__":
    main()
