"""Public names of a folder that are imported when they are first used, so that a command loads only what it needs.

The `__init__.py` of a folder lists its public names once, as imports that type checkers and editors read:

    if TYPE_CHECKING:
        from .watch import edit as edit, watch as watch

    lazy.public_names(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from .errors import nearest


def public_names(package: str) -> None:
    """Give a folder the names that its `if TYPE_CHECKING:` block imports, each imported when it is first used.

    Args:
        package: The `__name__` of the folder's `__init__.py`, which calls this.

    Examples:
        >>> import clearhead.look  # its __init__.py calls public_names(__name__)
        >>> clearhead.look.watch.__module__
        'clearhead.look.watch'
    """
    module = sys.modules[package]
    homes = _imports(module)
    module.__class__ = _LazyFolder
    module.__dict__.update(_homes=homes, __all__=sorted(homes))


class _LazyFolder(ModuleType):
    """A folder whose public names are imported when they are first used."""

    _homes: Mapping[str, str]  # public name: module that defines it, relative to the folder
    __all__: list[str]

    def __getattr__(self, name: str) -> object:
        if name not in self._homes:
            hint = nearest(name, self._homes)
            # hasattr and getattr with a default expect an AttributeError
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{hint}")
        home = self._homes[name]
        if home == ".":  # a folder or file, itself public
            return import_module(f".{name}", self.__name__)
        value = getattr(import_module(home, self.__name__), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Importing tasks/translate.py would bind it to the name of the function `translate`, which keeps it.
        if isinstance(value, ModuleType) and self._homes.get(name, ".") != ".":
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return self.__all__


def _imports(module: ModuleType) -> dict[str, str]:
    """The names that the TYPE_CHECKING block of a module's source imports, with the modules that define them."""
    source = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]
    homes = {}
    for statement in ast.parse(source).body:
        # the block is parsed and not run: running it would import every module
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for node in statement.body:
                assert isinstance(node, ast.ImportFrom), "only `from .x import y as y` in the block"
                home = "." * node.level + (node.module or "")
                homes.update({alias.name: home for alias in node.names})
    return homes
