"""clearhead: build, train, run and look inside attention models.

The folders, in reading order; each imports only those above it:

    errors, checks, atomic_files, counter_rng, protobuf, devices   small parts that all folders share
    config     frozen dataclasses <-> TOML and JSON; errors name the file and the line
    draw/      arrays -> figures; knows no torch and no model
    tokens/    text <-> ids
    data/      files -> batches, each a function of (seed, step); image preprocessing
    layers/    tensor -> tensor: attend(), masks, positions, memory, blocks
    models/    one family per file: gpt, bert, transformer, rnn_seq2seq, vit, resnet, captioner, reader, ...
    fast/      the same computation, faster: CPU and GPU decoding, 8-bit weights
    weights/   folders <-> models
    look/      watch, edit, attention maps and exact statistics
    decode/    logits -> ids: one search for every decoder
    metrics/   BLEU, chrF, and the scores of captions
    tasks/     generate, chat, embed, fill, classify, caption, score, translate, evaluate
    training/  objectives, optimisers, schedules, checkpoints, one loop; verify_resume
    report/    plot, sweep, doctor; view, compare and figure: what `look` measures, drawn
    explore/   the web page and its server
    cli/       the command line: one subcommand per public function

Everything is imported when it is first used: importing clearhead imports no torch.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import config, data, decode, draw, layers, look, models, tasks, tokens, training, weights
    from .look import edit, watch
    from .models import build, families
    from .report.compare import compare
    from .report.figures import figure
    from .report.plot import plot
    from .report.sweep import sweep
    from .report.views import view
    from .tasks.caption import caption
    from .tasks.classify import classify
    from .tasks.evaluation.evaluate import evaluate
    from .tasks.generate import chat, generate, stream
    from .tasks.score import score
    from .tasks.text import embed, fill, likelihood
    from .tasks.translate import translate
    from .training import train, verify_resume
    from .training.own_data.finetune import finetune
    from .weights import Bundle, export, load, quantise, save

# OpenMP reads this when torch is loaded. By default its idle threads spin, which beside one other busy process makes a
# small step ten times slower; asleep, they cost some microseconds per operation. OMP_WAIT_POLICY=ACTIVE lets them spin.
if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"
__all__ = [
    "Bundle", "build", "caption", "chat", "classify", "compare", "config", "data", "decode", "draw", "edit", "embed",
    "evaluate", "export", "families", "figure", "fill", "finetune", "generate", "layers", "likelihood", "load", "look",
    "models", "plot", "quantise", "save", "score", "stream", "sweep", "tasks", "tokens", "train", "training",
    "translate", "verify_resume", "view", "watch", "weights",
]  # fmt: skip

# The public functions and the folders that they come from; any other public name is a folder.
_HOME = {
    "build": "models", "families": "models",
    "Bundle": "weights", "export": "weights", "load": "weights", "quantise": "weights", "save": "weights",
    "edit": "look", "watch": "look",
    "finetune": "training", "train": "training", "verify_resume": "training", "plot": "report", "sweep": "report",
    "compare": "report", "figure": "report", "view": "report",
    "caption": "tasks", "chat": "tasks", "classify": "tasks", "embed": "tasks", "evaluate": "tasks", "fill": "tasks",
    "generate": "tasks", "likelihood": "tasks", "score": "tasks", "stream": "tasks", "translate": "tasks",
}  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'clearhead' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted(__all__)
