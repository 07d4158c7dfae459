"""What the reference documents: the public modules with their names, and the sections of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import docstrings

# The public modules, in the order of the site. The names of other modules are for the package itself.
MODULES = (
    "clearhead", "clearhead.tasks", "clearhead.weights", "clearhead.inputs", "clearhead.models", "clearhead.layers",
    "clearhead.look", "clearhead.decode", "clearhead.training", "clearhead.training.objectives",
    "clearhead.data", "clearhead.tokens",
    "clearhead.metrics", "clearhead.draw", "clearhead.report", "clearhead.explore", "clearhead.fast",
    "clearhead.config", "clearhead.errors", "clearhead.devices", "clearhead.checks", "clearhead.counter_rng",
    "clearhead.atomic_files", "clearhead.progress", "clearhead.lazy", "clearhead.protobuf", "clearhead.cli",
)  # fmt: skip
GROUPS = ("Functions", "Classes", "Families", "Objectives", "Errors and warnings", "Constants")
# methods that are listed without a docstring too, or in spite of their underscores
SHOWN = ("forward", "__call__")


@dataclass(frozen=True)
class Public:
    """A public name: the module that it is imported from, the object, and the module on whose page it is described."""

    module: str
    name: str
    thing: Any
    home: str
    group: str

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    @cached_property
    def doc(self) -> docstrings.Doc:
        if self.group == "Constants":
            return docstrings.Doc(
                summary=docstrings.constant(import_module(self.module), self.name)[2]
            )
        return docstrings.parse(inspect.getdoc(self.thing) or "")


def public_names(module: str) -> list[str]:
    """The names in `__all__` that are not modules, or else all names without underscore that the module defines."""
    loaded = import_module(module)
    own = [
        name for name, thing in vars(loaded).items() if getattr(thing, "__module__", "") == module
    ]
    names = getattr(loaded, "__all__", None) or [name for name in own if not name.startswith("_")]
    return [name for name in names if not isinstance(getattr(loaded, name), ModuleType | TypeVar)]


def public(module: str) -> list[Public]:
    """The public names of a module, with the classes that recipes refer to by a word, in groups."""
    loaded = import_module(module)
    things = {name: getattr(loaded, name) for name in public_names(module)}
    names = [
        Public(module, name, thing, _home(module, name, thing), _group(thing))
        for name, thing in things.items()
    ]
    return sorted([*names, *_classes_by_word(module)], key=lambda one: GROUPS.index(one.group))


def _home(module: str, name: str, thing: Any) -> str:
    """The module on whose page a name is described: the top level, or else the innermost one that defines it."""
    defined = getattr(thing, "__module__", None) or ""
    exporting = [
        one for one in MODULES if f"{defined}.".startswith(f"{one}.") and name in public_names(one)
    ]
    exporting = [one for one in exporting if getattr(import_module(one), name) is thing]
    return "clearhead" if "clearhead" in exporting else max(exporting, key=len, default=module)


def _group(thing: Any) -> str:
    if isinstance(thing, type):
        return "Errors and warnings" if issubclass(thing, BaseException) else "Classes"
    return "Functions" if isinstance(thing, FunctionType) else "Constants"


def _classes_by_word(module: str) -> Iterator[Public]:
    """The families of models and the objectives, which a module imports when they are first used."""
    loaded: Any = import_module(module)
    if module == "clearhead.models":
        group, kinds = "Families", [loaded.family(word)[0] for word in loaded.FAMILIES]
    elif module == "clearhead.training.objectives":
        group, kinds = "Objectives", [loaded.objective_class(word) for word in loaded.OBJECTIVES]
    else:
        return
    # not those of users
    for kind in (kind for kind in kinds if kind.__module__.startswith(f"{module}.")):
        name = f"{kind.__module__.removeprefix(f'{module}.')}.{kind.__name__}"
        yield Public(module, name, kind, module, group)


def members(thing: Any) -> dict[str, Any]:
    """The documented public methods and properties that a class itself defines."""
    if not isinstance(thing, type):
        return {}
    found = {
        name: part
        for name, part in vars(thing).items()
        if name in SHOWN or not name.startswith("_")
    }
    found = {
        name: part
        for name, part in found.items()
        if isinstance(docstrings.function_of(part), FunctionType)
    }
    return {
        name: part
        for name, part in found.items()
        if name in SHOWN or docstrings.function_of(part).__doc__
    }


@dataclass(frozen=True)
class Options:
    """The options of one section of a recipe, or of one name that the section can have."""

    section: str  # data, model, ...; "" is the top level
    name: str
    config: type
    summary: str

    @property
    def anchor(self) -> str:
        return ".".join(part for part in (self.section, self.name) if part) or "recipe"


def recipe_options() -> list[Options]:
    """All sections of a recipe, in the order of a file, each with the dataclass of its options."""
    from clearhead import data, models
    from clearhead.training import augmentation, objectives, recipe
    from clearhead.training.optim import optimisers as optim
    from clearhead.training.optim import schedule

    def section(name: str, config: type) -> Options:
        return Options(name, "", config, docstrings.parse(inspect.getdoc(config) or "").summary)

    return [
        section("", recipe.Recipe),
        *(
            Options("data", name, data.data_config(name), about)
            for name, about in data.names().items()
        ),
        *(
            Options("model", name, models.family(name)[1], about)
            for name, about in models.families().items()
        ),
        *(
            Options("objective", name, objectives.objective_class(name).Config, about)
            for name, about in objectives.objectives().items()
            if objectives.objective_class(name).__module__.startswith("clearhead.")
        ),
        *(
            Options(
                "augment", name, kind.Config, docstrings.parse(inspect.getdoc(kind) or "").summary
            )
            for name, kind in augmentation.AUGMENTATIONS.items()
        ),
        section("players", recipe.PlayerConfig),
        section("pretrained", recipe.Pretrained),
        section("optim", optim.OptimConfig),
        section("schedule", schedule.ScheduleConfig),
        section("run", recipe.RunConfig),
    ]
