"""clearhead: build, train, run and look inside attention models.

The map of the house; a room imports only rooms above it, and the reading order is the data's way.

    config    frozen dataclasses <-> TOML and JSON; every mistake is told with its place
    draw/     arrays -> figures; knows no torch and no model
    tokens/   text <-> ids
    data/     files -> batches, each a function of (seed, step); the last room that knows files of data
    layers/   tensor -> tensor: attend(), masks, positions, memory, blocks
    models/   one family a file: gpt, bert, transformer, rnn_seq2seq, reader, deep
    weights/  folders <-> models
    look/     watch, edit, maps and exact statistics of attention
    decode/   logits -> ids: one search for every decoder
    metrics   how good an answer is, in numbers that others can repeat
    tasks/    the verbs people came for: generate, chat, embed, fill, classify, score, translate, evaluate
    train/    objective, optimiser, schedule, checkpoints, one loop; sweep, verify_resume
    report/   whole stories told with the rooms above: plot, doctor
    explore/  the page that shows it all, and its server
    cli/      the command line: one subcommand = one public function

Everything is loaded when it is first used, so that importing clearhead imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import config, data, decode, draw, layers, look, models, tasks, tokens, weights
    from .look import edit, watch
    from .models import build
    from .report.plot import plot
    from .tasks.evaluate import evaluate
    from .tasks.generate import chat, generate, stream
    from .tasks.score import score
    from .tasks.text import classify, embed, fill, likelihood
    from .tasks.translate import translate
    from .training import train, verify_resume
    from .training.sweep import sweep
    from .weights import Bundle, load, quantise, save

__version__ = "0.1.0"
__all__ = [
    "Bundle", "build", "chat", "classify", "config", "data", "decode", "draw", "edit", "embed", "evaluate", "fill",
    "generate", "layers", "likelihood", "load", "look", "models", "plot", "quantise", "save", "score", "stream",
    "sweep", "tasks", "tokens", "train", "translate", "verify_resume", "watch", "weights",
]  # fmt: skip

# The public verbs and the rooms they live in; any other public name is a room. A verb is not named like a room, which
# would take its place as soon as anything imports it; models and train are both, rooms that can be called.
_HOME = {
    "build": "models",
    "Bundle": "weights", "load": "weights", "quantise": "weights", "save": "weights",
    "edit": "look", "watch": "look",
    "sweep": "train", "verify_resume": "train", "plot": "report",
    "chat": "tasks", "classify": "tasks", "embed": "tasks", "evaluate": "tasks", "fill": "tasks", "generate": "tasks",
    "likelihood": "tasks", "score": "tasks", "stream": "tasks", "translate": "tasks",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
