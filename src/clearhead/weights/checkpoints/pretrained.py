"""Initialisation from pretrained weights, of a whole model or of a part of one; the head may be new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import nearest
from ...layers import Learned, Patches, resize
from ...models import Model
from ...tokens import Pair, Tokenizer
from ..bundle import Bundle
from ..fill import WeightsError, state
from ..folder import load

OUTPUT = "head"  # the output layer of a classifier
LISTED = 5  # labels that a message names


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """Weights to start from."""

    folder: str  # a model folder, a run folder, or a name that `load` accepts
    # submodule of the checkpoint to use, like encoder; not given: the whole checkpoint
    part: str | None = None
    # submodule of the model to fill, like encoder; not given: the whole model
    into: str | None = None
    differ: tuple[str, ...] = ()  # model options that may differ from those of the checkpoint

    @property
    def is_whole(self) -> bool:
        """True if a whole checkpoint fills a whole model, whose options are then those of the checkpoint."""
        return self.part is None and self.into is None


def in_head(model: nn.Module, name: str) -> bool:
    """True if a parameter belongs to the model's head."""
    parts = model.head_parts if isinstance(model, Model) else ("head",)
    return name.split(".")[0] in parts


@dataclass(frozen=True, slots=True)
class FillReport:
    """What `fill_pretrained` did."""

    names: frozenset[str]  # tensors of the model that were filled
    left_out: list[str]  # weights of the folder that were not used, each after the folder
    note: str = ""  # a sentence about a head that is new although it would fit


@torch.no_grad()
def fill_pretrained(
    model: nn.Module,
    start: Pretrained,
    tokens: Tokenizer | Pair | None = None,
    classes: tuple[str, ...] | None = None,
) -> FillReport:
    """Copy the weights of a folder into a model, or a part of it; returns which were filled, and which not used.

    A head that the folder lacks, or has in another shape or for other labels, keeps its random weights. Position
    embeddings of patches are interpolated to another image size. All other weights must fit.

    Args:
        model: The model.
        start: The folder, and which part of it goes where.
        tokens: The tokenizer of the data, which must be the checkpoint's if it has any.
        classes: The labels of the data.
    """
    bundle = load(start.folder, device="cpu", dtype="float32")
    checkpoint = bundle.model
    # a part of a model, such as an image encoder, may read something else
    if start.is_whole and "tokens" not in start.differ:
        _check_same_tokens(bundle.tokens, tokens, start)
    # nothing is copied before all of it fits
    source, target = chosen_parts(checkpoint, model, start)
    check_fit(checkpoint, model, start)
    theirs, used, names = state(source), set(), set()
    note = _other_labels(bundle, model, classes) if start.is_whole else ""
    for name, slot in state(target).items():
        if note and name.startswith(f"{OUTPUT}."):
            continue  # the head stands for other labels
        weight = theirs.get(name)
        if weight is not None and _fits(name, weight, slot, source, target):
            slot.copy_(_fitted(name, weight, slot, source, target))
            used.add(id(weight))
            if start.into is not None:
                # the name in the whole model
                name = f"{start.into}.{name}"
            names.add(name)
    unused = []
    # by identity, because the names within a part lack its prefix
    for name, weight in state(checkpoint).items():
        if id(weight) not in used:
            unused.append(f"{start.folder}: {name}")
    return FillReport(frozenset(names), unused, note)


def _other_labels(bundle: Bundle, model: nn.Module, classes: tuple[str, ...] | None) -> str:
    """A sentence if the outputs of a classifier stand for other labels than those of the data; "" otherwise."""
    if classes is None or not isinstance(model, Model) or "classify" not in model.can & bundle.can:
        return ""
    # classes without names are labelled by their numbers
    if (bundle.labels or tuple(map(str, range(bundle.config.classes)))) == classes:
        return ""
    theirs = f"are {_few(bundle.labels)}" if bundle.labels else "have no names"
    return f"the head is new: the labels of the checkpoint {theirs}, and those of the data {_few(classes)}"


def _few(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    listed = ", ".join(names[:LISTED])
    if len(names) > LISTED:
        return f"{listed} and {len(names) - LISTED} more"
    return listed


def _check_same_tokens(
    theirs: Tokenizer | Pair | None, ours: Tokenizer | Pair | None, start: Pretrained
) -> None:
    """Raise if an id means another token in the data than in the checkpoint, whose embeddings would be nonsense."""
    if theirs is None or ours is None:
        return
    # a Pair beside a single tokenizer: only the source can be compared
    for saved, given in zip(_sides(theirs), _sides(ours), strict=False):
        saved_names, names = saved.pieces(range(len(saved))), given.pieces(range(len(given)))
        # one vocabulary may be longer, as that of a model with a mask token
        for i, (saved_name, name) in enumerate(zip(saved_names, names, strict=False)):
            if saved_name != name:
                raise WeightsError(
                    f"pretrained={start.folder!r}: token {i} is {saved_name!r} in the checkpoint and {name!r} in the "
                    f'data: expected the same tokens (data.tokens = "{start.folder}" if the data has this option), or '
                    'differ = ["tokens"] to give the ids new meanings'
                )


def _sides(tokens: Tokenizer | Pair) -> list[Tokenizer]:
    if isinstance(tokens, Pair):
        return [tokens.source, tokens.target]
    return [tokens]


def check_fit(
    checkpoint: nn.Module, model: nn.Module, start: Pretrained, where: str = "pretrained"
) -> None:
    """Raise unless the weights of a checkpoint have the names and shapes of a model; `where` begins the message."""
    # a model that is filled whole must use all weights; a part may leave some
    source, target = chosen_parts(checkpoint, model, start, where)
    problem = misfit(source, target, all_used=start.into is None)
    if problem:
        # a weight that is there under another prefix: the hint names it
        missing, _, rest = problem.partition(" is missing")
        hint = _part_hint(missing, checkpoint, start) if rest else ""
        raise WeightsError(f"{where}={start.folder!r}: {problem}{hint}")


def chosen_parts(
    checkpoint: nn.Module, model: nn.Module, start: Pretrained, where: str = "pretrained"
) -> tuple[nn.Module, nn.Module]:
    """The submodule of the checkpoint that is used, and the submodule of the model that is filled."""
    source = submodule(checkpoint, start.part, f"{where}: part", f"the checkpoint {start.folder}")
    return source, submodule(model, start.into, f"{where}: into", "this model")


def misfit(source: nn.Module, target: nn.Module, *, all_used: bool) -> str:
    """The first weight that does not fit, in words; "" if all do. With `all_used` none may be left out but the head."""
    theirs, ours = state(source), state(target)
    for name, slot in ours.items():
        weight = theirs.get(name)
        # a head may be new
        if in_head(target, name):
            continue
        if weight is None:
            return f"{name} is missing, expected {tuple(slot.shape)}"
        if not _fits(name, weight, slot, source, target):
            # unlike the positions of patches, learned ones are not interpolated
            home = dict(target.named_modules()).get(name.rpartition(".")[0])
            is_learned = isinstance(home, Learned)
            note = ": learned positions cannot be used with another context" if is_learned else ""
            return f"{name} has the shape {tuple(weight.shape)}, expected {tuple(slot.shape)}{note}"
    if not all_used:
        return ""
    # weights for other tasks, which may be left out
    spare = source.spare_parts if isinstance(source, Model) else ()
    for name in theirs:
        if name not in ours and name not in spare and not in_head(source, name):
            return f"{name} has no place in the model of this recipe"
    return ""


def submodule(model: nn.Module, name: str | None, key: str, owner: str) -> nn.Module:
    """A submodule by name, the model itself for None; raises with the key of the recipe and the known names."""
    if name is None:
        return model
    modules = dict(model.named_modules())
    if name not in modules:
        # the innermost module that exists, whose parts the message lists
        outer = name
        while outer not in modules:  # the module "" is the model itself
            outer = outer.rpartition(".")[0]
        listed = [f"{outer}.{child}".strip(".") for child, _ in modules[outer].named_children()]
        has = f"{outer or 'it'} has {', '.join(listed) or 'none'}"
        raise WeightsError(
            f"{key} = {name!r}: {owner} has no such submodule: {has}{nearest(name, listed)}"
        )
    return modules[name]


def _part_hint(missing: str, checkpoint: nn.Module, start: Pretrained) -> str:
    """The value of `part` with which a missing weight would be there."""
    ending = f".{missing}"
    parts = [name.removesuffix(ending) for name in state(checkpoint) if name.endswith(ending)]
    # whoever has named a part has meant that one
    if not parts or start.part is not None:
        return ""
    part = start.into if start.into in parts else parts[0]
    return (
        f'; the checkpoint has {part}.{missing}: to use this submodule of it, write part = "{part}"'
    )


def _fits(name: str, weight: Tensor, slot: Tensor, source: nn.Module, target: nn.Module) -> bool:
    """Whether a weight has the shape of its slot in the model, or can be interpolated to it."""
    if weight.shape == slot.shape:
        return True
    # only the number of patches, the first axis, may differ
    return weight.shape[1:] == slot.shape[1:] and _grids(name, source, target) is not None


def _fitted(
    name: str, weight: Tensor, slot: Tensor, source: nn.Module, target: nn.Module
) -> Tensor:
    """The weight, interpolated to the shape of its slot in the model if necessary."""
    grids = _grids(name, source, target)
    if weight.shape == slot.shape or grids is None:
        return weight
    return resize(weight, *grids)


def _grids(
    name: str, source: nn.Module, target: nn.Module
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The old and the new grid of a weight that is interpolated to another image size; None for all others."""
    home, _, leaf = name.rpartition(".")
    # only positions of patches can be interpolated
    if leaf != "places":
        return None
    old, new = (dict(module.named_modules()).get(home) for module in (source, target))
    if isinstance(old, Patches) and isinstance(new, Patches):
        return (old.grid, new.grid)
    return None


def describe(left_out: list[str]) -> str:
    """A sentence about pretrained weights that were not used; empty if all were."""
    if not left_out:
        return ""
    return f"pretrained weights that are not used: {_few(left_out)}"
