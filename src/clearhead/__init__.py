"""clearhead: build, train, run and look inside attention models.

The map of the house; a room imports only rooms above it, and the reading order is the data's way.

    draw/     arrays -> figures; knows no torch and no model
    layers/   tensor -> tensor: attend(), masks, positions, memory, blocks
    look/     watch, edit, maps and exact statistics of attention
    explore/  the page that shows it all (today: the lecture's worked example)

Everything is loaded when it is first used, so that importing clearhead imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import draw, layers, look
    from .look import edit, watch

__version__ = "0.1.0"
__all__ = ["draw", "edit", "layers", "look", "watch"]

_HOME = {"draw": "", "layers": "", "look": "", "edit": "look", "watch": "look"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = _HOME[name]
    return getattr(import_module(f".{home}", __name__), name) if home else import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
