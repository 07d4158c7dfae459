"""A function becomes a subcommand: its help ends with examples, and a mistake of the user's is told in a sentence."""

from __future__ import annotations

import dis
import errno
import functools
import re
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import typer

from .. import __version__
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


def verb(*examples: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A subcommand named like its function."""

    def made(function: Callable[P, T]) -> Callable[P, T]:
        @app.command(epilog="\n\n".join(examples))
        @functools.wraps(function)
        def told(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                result = function(*args, **kwargs)
                sys.stdout.flush()  # while a full disk can still be told
                return result
            except (ValueError, OSError, RuntimeError, MemoryError, OverflowError, TypeError) as problem:
                if not _is_users(problem):
                    raise
                worker = f"worker {rank()}: " if rank() else ""
                print(worker + _sentence(problem), file=sys.stderr)
                if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
                    sys.stdout = sys.stderr  # or Python would try the rest once more, and fail in its own way
                raise typer.Exit(1) from problem

        return told

    return made


def _is_users(problem: Exception) -> bool:
    """Whether an error tells the person at the keyboard what to mend: a file's, or one that the house itself raised.

    What a library raised in a call of ours is a bug of ours, and shows its trace.
    """
    if isinstance(problem, OSError) and (problem.filename is not None or problem.errno == errno.ENOSPC):
        return True
    if _too_much(problem):
        return True
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("clearhead"):
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.errno is not None:
        return f"{problem.filename or 'what was to be written'}: {problem.strerror}"
    return _too_much(problem) or " ".join(str(problem).split()) or type(problem).__name__


def _too_much(problem: Exception) -> str:
    """A sentence where more was asked for than fits: into a whole number of 64 bits, or into memory; else nothing."""
    said = str(problem)
    if isinstance(problem, OverflowError) or "Overflow when unpacking long" in said:
        return "a number is too large to count with: expected less than 2^63"
    if not isinstance(problem, MemoryError) and not (isinstance(problem, RuntimeError) and "allocate" in said):
        return ""
    asked = re.search(r"allocate (\d+) bytes", said) or re.search(r"allocate ([\d.]+ \w+)", said)
    many = "" if asked is None else f" when {asked[1]}{' bytes' * asked[1].isdigit()} were asked for at once"
    return f"the memory was full{many}: expected smaller numbers, shorter texts, fewer at a time, or a smaller model"


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
