"""Training from pretrained weights: options that contradict the checkpoint are refused, adapters (LoRA) are added."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ... import config
from ...data import Data
from ...errors import InputError, nearest
from ...layers.lora import add_adapters
from ...models import Model, family, family_of
from ...weights import Bundle, WeightsError
from ...weights.checkpoints.pretrained import (
    Pretrained,
    check_fit,
    chosen_parts,
    in_head,
    misfit,
)
from ...weights.fill import state
from ...weights.peft.save import check as check_saved_apart
from ..recipe import LoraConfig, Recipe, place_of, section_key

if TYPE_CHECKING:
    from ..setup import PlayerSetup


def pretrained_key(recipe: Recipe, player: str) -> str:
    """The dotted key of a player's pretrained weights, for messages."""
    return ".".join(section_key(recipe, player, "pretrained"))


def written(recipe: Recipe, player: str, start: Pretrained, differ: Collection[str]) -> str:
    """The line of a recipe that lets these options differ from the checkpoint."""
    keys = {"folder": start.folder, "part": start.part, "into": start.into}
    words = [f'{key} = "{value}"' for key, value in keys.items() if value is not None]
    names = ", ".join(f'"{option}"' for option in dict.fromkeys([*start.differ, *differ]))
    return f"{pretrained_key(recipe, player)} = {{{', '.join(words)}, differ = [{names}]}}"


def check_whole(
    recipe: Recipe, player: str, given: config.Table, start: Pretrained, saved: PlayerSetup
) -> None:
    """Raise if an option of the recipe contradicts the checkpoint, whose weights depend on it."""
    model, options = family(saved.model)
    known = {f.name for f in fields(options)}
    free = {*model.may_differ, *start.differ}
    for option, value in given.items():
        if option in free or option not in known:
            continue
        theirs = saved.options.get(option)
        # sizes are compared with the weights, whose message is better
        if theirs == value or _is_size(saved, option, theirs, value):
            continue
        problem = (
            f"{given.place(option)}{'.'.join(given.key)}.{option} = {value!r}: the checkpoint {start.folder} has "
            f"{_shown(theirs)}"
        )
        # the checkpoint's model with this option, to say what goes wrong
        other = saved.with_option(option, value)
        if other is None:
            raise config.ConfigError(f"{problem}; leave it out")
        unfit = misfit(saved.empty(), other, all_used=True)
        if unfit:
            raise config.ConfigError(
                f"{problem}, and its weights do not fit ({unfit}); leave it out"
            )
        # shapes agree: the weights load, but were trained for another computation
        raise config.ConfigError(
            f"{problem}; leave it out or, if the weights can be used with another, write "
            f"{written(recipe, player, start, [option])}"
        )


def check_start(
    recipe: Recipe,
    player: str,
    setup: PlayerSetup,
    start: Pretrained,
    given: config.Table,
    source: PlayerSetup,
) -> None:
    """Raise if a checkpoint does not fit the model, or if one for a submodule was trained for another computation."""
    key = pretrained_key(recipe, player)
    place = place_of(recipe, section_key(recipe, player, "pretrained"))
    checkpoint, model = source.empty(), setup.empty()
    parts = chosen_parts(checkpoint, model, start, f"{place}{key}")
    # a submodule that is a model itself has options of its own, such as a captioner's encoder
    ours = _own_setup(parts[1]) or setup
    known = [*(f.name for f in fields(family(ours.model)[1])), "tokens"]
    for option in start.differ:
        if option not in known:
            hint = nearest(option, known) or f"; its options are {', '.join(known)}"
            raise config.ConfigError(
                f'{place}{key}: differ = ["{option}"]: a {ours.model} has no such option{hint}'
            )
    # a part of a checkpoint: its options are compared here, those of a whole one by check_whole
    if not start.is_whole:
        different = _different_options(ours, source, start)
        if misfit(*parts, all_used=start.into is None):  # probably because of a size
            # sizes do not fit: check_fit reports these numbers with the shapes of the weights
            different = [option for option in different if not _is_number(ours.options.get(option))]
        if different:
            # where the user would change the option: inside the section of the submodule
            where = ".".join(given.key)
            if ours is not setup and start.into:
                where += f".{start.into}"
            mine = ", ".join(f"{where}.{o} = {_shown(ours.options.get(o))}" for o in different)
            theirs = ", ".join(f"{o} = {_shown(source.options.get(o))}" for o in different)
            raise config.ConfigError(
                f"{given.place(different[0])}{mine}: the checkpoint {start.folder} has {theirs}; expected the same or, "
                f"if the weights can be used with another, {written(recipe, player, start, different)}"
            )
    check_fit(checkpoint, model, start, f"{place}{key}")


def _own_setup(part: nn.Module) -> PlayerSetup | None:
    """The family and the options of a submodule that is a model itself, such as the encoder of a captioner."""
    from ..setup import PlayerSetup

    if not isinstance(part, Model):
        return None
    return PlayerSetup(model=family_of(part), options=config.dump(part.config))


def _different_options(setup: PlayerSetup, source: PlayerSetup, start: Pretrained) -> list[str]:
    """The options of both models that differ and do not only fix the sizes of weights, which are compared anyway."""
    # options that either family declares to be free, such as dropout
    free = {*start.differ, *family(setup.model)[0].may_differ, *family(source.model)[0].may_differ}
    both = {f.name for f in fields(source.config)}
    differs = []
    for option in (f.name for f in fields(setup.config)):
        if option in free or option not in both:
            continue
        ours, theirs = setup.options.get(option), source.options.get(option)
        if ours == theirs or _is_size(source, option, ours, theirs):
            continue
        # a number that changes the shapes is a size; one that does not, like `window`, must be equal
        other = None
        if _is_number(ours):
            other = source.with_option(option, ours)
        if other is None or _same_shapes(source.empty(), other):
            differs.append(option)
    return differs


def _is_size(setup: PlayerSetup, option: str, a: Any, b: Any) -> bool:
    """True if an option that only one of two models gives is a size of weights, like `hidden`, but not `window`."""
    # exactly one of the two has a number; the other one has nothing
    value = b if a is None else a
    if (a is None) == (b is None) or not _is_number(value):
        return False
    # changed to two other numbers: a size changes the shapes, a `window` does not
    others = (setup.with_option(option, other) for other in (1, 2 * value))
    return any(_shapes(other) != _shapes(setup.empty()) for other in others if other is not None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)


def _shapes(model: Model) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in state(model).items()}


def _same_shapes(a: Model, b: Model) -> bool:
    """True if the tensors that two models both have are of the same shapes."""
    theirs = _shapes(b)
    # only tensors of both models: the smaller one may lack some
    return all(theirs.get(name, shape) == shape for name, shape in _shapes(a).items())


# Adapters (LoRA): which weights are trained, and the folder that they belong to.


def adapt(
    model: nn.Module, lora: LoraConfig, filled: Collection[str], *, seed: int, freeze: Sequence[str]
) -> None:
    """Freeze a model and add adapters to it; a head that the pretrained weights did not fill is trained as well.

    Args:
        model: The model, with its pretrained weights.
        lora: The options.
        filled: Names of the weights that were pretrained.
        seed: Seed of the adapters' initial weights.
        freeze: Submodules without adapters.
    """
    # parameters that no checkpoint filled: they start from random numbers
    new = [name for name, _ in model.named_parameters() if name not in filled]
    random = [name for name in new if not in_head(model, name)]
    if random:
        raise InputError(
            f"lora adapts pretrained weights, and {random[0]} is not one of them: it would stay random; expected "
            "pretrained weights for the whole model but its head"
        )
    add_adapters(
        model,
        lora.maps,
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        seed=seed,
        skip=freeze,
    )
    # add_adapters has frozen all weights: a random head would stay random
    for name in new:
        model.get_parameter(name).requires_grad_(True)


def check_apart(setup: PlayerSetup, saved: PlayerSetup, start: Pretrained, data: Data) -> None:
    """Raise, before a training, if its adapters could not be saved apart from their base model in the end.

    Args:
        setup: The model that is trained.
        saved: The checkpoint that it starts from.
        start: Where that is.
        data: The data, which has the tokenizer of the result.
    """
    model = setup.empty()
    # only models of text have a tokenizer to be saved with them
    if model.reads in ("tokens", "pairs", "captions"):
        tokens = data.tokens
    else:
        tokens = None
    bundle = Bundle(model, tokens, special=setup.special or data.special, base=base_folder(start))
    try:
        check_saved_apart(bundle, saved.config)
    except WeightsError as problem:
        raise WeightsError(f"lora.merge = false: {problem}") from problem


def base_folder(start: Pretrained) -> str:
    """The base model of adapters that are saved apart from it: an absolute path, or a name that `load` accepts."""
    if Path(start.folder).exists():
        # absolute: the folder of the adapters may be moved elsewhere
        return str(Path(start.folder).resolve())
    return start.folder
