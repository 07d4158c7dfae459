"""A function becomes a subcommand: its help ends with examples, and a user's mistake is printed as one sentence."""

from __future__ import annotations

import errno
import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import typer

from .. import __version__
from ..errors import UserError
from .option_help import options_help
from .output import rank

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(
    name="clearhead",
    help="Build, train, run and look inside attention models.",
    epilog='clearhead translate en-de "A dog runs."\n\nclearhead explore\n\nclearhead train --help',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def verb(*examples: str, options: tuple[str, str] | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function a subcommand of the same name; `options` is the file and the function whose options it takes."""

    def made(function: Callable[P, T]) -> Callable[P, T]:
        listed = "" if options is None else f"\n\n{options_help(*options)}"
        help_text = _plain(inspect.cleandoc(function.__doc__ or "") + listed)

        @app.command(epilog="\n\n".join(_plain(one) for one in examples), help=help_text)
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                result = function(*args, **kwargs)
                sys.stdout.flush()  # while a full disk can still be reported
                return result
            except Exception as problem:
                sentence = explain(problem)
                if sentence is None:
                    raise
                worker = f"worker {rank()}: " if rank() else ""
                print(worker + sentence, file=sys.stderr)
                if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
                    sys.stdout = sys.stderr  # or Python would try to write the rest again, and fail in its own way
                raise typer.Exit(1) from problem

        return run

    return made


def explain(problem: Exception) -> str | None:
    """One sentence for a mistake that the user can mend; None for a bug, which shows its traceback."""
    if isinstance(problem, UserError):
        return " ".join(str(problem).split()) or type(problem).__name__
    if isinstance(problem, OSError) and (problem.filename is not None or problem.errno == errno.ENOSPC):
        return f"{problem.filename or 'what was to be written'}: {problem.strerror}"
    return _too_large(problem)


def _too_large(problem: Exception) -> str | None:
    """A sentence if more was asked for than fits into a 64-bit integer, or into memory."""
    message = str(problem)
    if isinstance(problem, OverflowError) or "Overflow when unpacking long" in message:
        return "a number is too large: expected less than 2^63"
    if not isinstance(problem, MemoryError) and not (isinstance(problem, RuntimeError) and "allocate" in message):
        return None
    asked = re.search(r"allocate (\d+) bytes", message) or re.search(r"allocate ([\d.]+ \w+)", message)
    many = "" if asked is None else f" when {asked[1]}{' bytes' * asked[1].isdigit()} were asked for at once"
    return f"out of memory{many}: expected smaller numbers, shorter texts, fewer at a time, or a smaller model"


def _plain(text: str) -> str:
    """Help text whose brackets are shown, not taken for markup."""
    return text.replace("[", "\\[")


def _version(asked: bool) -> bool:
    if asked:
        print(__version__)
        raise typer.Exit
    return asked


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
