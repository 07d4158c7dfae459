"""A function becomes a subcommand: its help ends with examples, and a mistake of the user's is told in a sentence."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

import typer

from .. import __version__
from .told import rank

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
                return function(*args, **kwargs)
            except (ValueError, OSError, RuntimeError) as problem:
                if not _is_users(problem):
                    raise
                worker = f"worker {rank()}: " if rank() else ""
                print(worker + _sentence(problem), file=sys.stderr)
                raise typer.Exit(1) from problem

        return told

    return made


def _is_users(problem: Exception) -> bool:
    """Whether an error tells the person at the keyboard what to mend: a file's, or one that the house itself raised.

    What a library raised in a call of ours is a bug of ours, and shows its trace.
    """
    if isinstance(problem, OSError) and problem.filename is not None:
        return True
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not str(trace.tb_frame.f_globals.get("__name__", "")).startswith("clearhead"):
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}"
    return " ".join(str(problem).split()) or type(problem).__name__


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
