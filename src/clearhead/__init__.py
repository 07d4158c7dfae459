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
    decode/    logits -> ids: one search for every decoder
    weights/   folders <-> models
    inputs/    texts, pairs of texts, images -> a model's arguments, and the names of its tokens
    look/      watch, edit, attention maps and exact statistics
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
from typing import TYPE_CHECKING

from . import lazy

if TYPE_CHECKING:
    from . import config as config
    from . import data as data
    from . import decode as decode
    from . import draw as draw
    from . import explore as explore
    from . import layers as layers
    from . import look as look
    from . import models as models
    from . import tasks as tasks
    from . import tokens as tokens
    from . import training as training
    from . import weights as weights
    from .look.watch import edit as edit
    from .look.watch import watch as watch
    from .models import build as build
    from .models import families as families
    from .report import figure as figure
    from .report import view as view
    from .report.compare import compare as compare
    from .report.doctor import doctor as doctor
    from .report.plot import plot as plot
    from .report.sweep import sweep as sweep
    from .tasks import embed as embed
    from .tasks import evaluate as evaluate
    from .tasks import fill as fill
    from .tasks import likelihood as likelihood
    from .tasks.caption import caption as caption
    from .tasks.classify import classify as classify
    from .tasks.generate import chat as chat
    from .tasks.generate import generate as generate
    from .tasks.generate import stream as stream
    from .tasks.score import score as score
    from .tasks.translate import translate as translate
    from .training import finetune as finetune
    from .training import verify_resume as verify_resume
    from .training.train import train as train
    from .weights import Bundle as Bundle
    from .weights import export as export
    from .weights import load as load
    from .weights import quantise as quantise
    from .weights import save as save
    from .weights.parity import parity as parity

# OpenMP reads this when torch is loaded. By default its idle threads spin, which beside one other busy process makes a
# small step ten times slower; asleep, they cost some microseconds per operation. OMP_WAIT_POLICY=ACTIVE lets them spin.
if "torch" not in sys.modules and "GOMP_SPINCOUNT" not in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"

lazy.public_names(__name__)
