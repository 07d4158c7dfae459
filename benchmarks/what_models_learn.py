"""Measure the facts of docs/15-what-models-learn.md.

    python benchmarks/what_models_learn.py heads                   # print the numbers of one fact
    python benchmarks/what_models_learn.py heads fields --save     # also keep them in docs/results
    CLEARHEAD_CHECKPOINTS=checkpoints python benchmarks/what_models_learn.py sentences

The facts are the functions of benchmarks/learned. CLEARHEAD_CHECKPOINTS is the folder of the models that do not ship,
CLEARHEAD_DATA that of CIFAR-10 and Imagenette. All run on a CPU, in a few minutes each.
"""

from __future__ import annotations

import argparse
import json

import torch
from learned import FACTS
from results import keep_part, rounded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("facts", nargs="+", choices=FACTS, metavar="FACT", help=", ".join(FACTS))
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep the numbers in docs/results/what_models_learn.json",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.facts:
        numbers = FACTS[name]()
        print(json.dumps({name: rounded(numbers)}))
        if args.save:
            keep_part("what_models_learn", name, numbers)


if __name__ == "__main__":
    main()
