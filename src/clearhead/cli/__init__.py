"""The command line: one subcommand per public function. Slow imports (torch, numpy) happen inside the subcommands.

stdout is the result, stderr everything else; exit code 0: done, 1: failed, 2: misuse, 130: stopped by Ctrl-C,
141: the reader of stdout closed it.

verb         make a function a subcommand: examples in its help, user errors as one sentence
arguments    arguments that several subcommands share; words like beams=5 as keyword arguments
option_help  the keyword options of a function, for the help of its subcommand
config_help  the fields of a config dataclass, with defaults and meanings
registered   the names and help of views and figures, read from source
completion   shell completion
text_input   texts from the command line, files or stdin, read bit by bit
answers      print an answer per text or image as it comes
output       print results, progress and notices
inference    translate evaluate score fill classify embed parity caption
generation   generate chat
info         models export data recipe explore doctor
inspection   view (look) compare figure
training     train finetune verify-resume sweep plot
"""

from __future__ import annotations

import io
import sys

from . import generation, inference, info, inspection, training  # noqa: F401  (each adds its subcommands)
from .verb import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the `clearhead` command with the arguments of this process; raises SystemExit with the exit code.

    Output to a file or a pipe is UTF-8, whatever the locale.

    Examples:
        >>> from unittest.mock import patch
        >>> with patch("sys.argv", ["clearhead", "--version"]):
        ...     main()
        Traceback (most recent call last):
        SystemExit: 0
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")
    app(prog_name="clearhead")
