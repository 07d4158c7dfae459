"""The command line: one subcommand per public function. What takes time to import is imported by its command.

stdout is the result, stderr everything else; exit code 0: done, 1: failed, 2: misuse.

verb         a function becomes a subcommand: examples in its help, mistakes as sentences
arguments    the arguments that several verbs share
option_help  the options of a function, for its verb's help
config_help  the fields of a dataclass, with their meanings
completion   what Tab offers
text_input   texts from the command line, files or stdin
output       results, progress and notices, printed
inference    translate evaluate generate chat score fill classify embed parity
info         models data recipe explore doctor
training     train verify-resume sweep plot
"""

from __future__ import annotations

import io
import sys

from . import inference, info, training  # noqa: F401  (each adds its verbs)
from .verb import app

__all__ = ["app", "main"]


def main() -> None:
    """The console script. A result that goes into a file is UTF-8, as files that are read are."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")
    app(prog_name="clearhead")
