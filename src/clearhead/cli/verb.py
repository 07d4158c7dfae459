"""Make a function a subcommand: its help ends with examples, and a user's error is printed as one sentence."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
import typer.core

from .. import __version__
from ..errors import UserError
from .option_help import options_help
from .output import notices, rank

P = ParamSpec("P")
T = TypeVar("T")

# The command `clearhead`, a Typer application to which each subcommand is added.
app = typer.Typer(
    name="clearhead",
    help="Build, train, run and look inside attention models.",
    epilog='clearhead translate en-de "A dog runs."\n\nclearhead explore\n\nclearhead train --help',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(typer.core.TyperCommand):
    """A subcommand that refuses an option given twice, and says how values without dashes are written."""

    hint = ""  # what the message about an unknown option ends with

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except Exception as problem:
            # Caught by its name: the class lives in click or in typer's own copy, depending on the
            # version.
            if type(problem).__name__ == "NoSuchOption":  # of click, or of typer's copy of it
                problem.message += self.written(problem.option_name, given)  # type: ignore[attr-defined]
            raise
        # During shell completion a half-typed command must not be an error.
        if not ctx.resilient_parsing:
            self._check_repeated(ctx, given)
        return rest

    def written(self, option: str, args: list[str]) -> str:
        """The end of the message about an unknown option."""
        return self.hint

    def _check_repeated(self, ctx: Any, args: list[str]) -> None:
        """Fail if an option with a value is given twice: the parser would keep the last."""
        # The order in which parameters were given, which click keeps beside the parsed values.
        order = self.make_parser(ctx).parse_args(args)[2]
        for option in {one.name: one for one in order if one.param_type_name == "option"}.values():
            # Options that may be repeated collect their values, and a flag given twice says nothing
            # else.
            if order.count(option) > 1 and not (
                option.multiple or getattr(option, "is_flag", False)
            ):
                ctx.fail(
                    f"{option.opts[-1]} is given {order.count(option)} times: expected it once"
                )


class RecipeCommand(Command):
    """A subcommand that takes values of a recipe."""

    hint = ". Values of the recipe are written NAME=VALUE: steps=100, seed=1, optim.lr=1e-4, data.batch_tokens=2048"


class WordsCommand(Command):
    """A subcommand that takes words like beams=5."""

    def written(self, option: str, args: list[str]) -> str:
        name = option.lstrip("-").replace("-", "_")
        # The word that was taken for an option: --beams=5 or --beams 5.
        at = next((i for i, word in enumerate(args) if word.partition("=")[0] == option), len(args))
        if at < len(args):
            _, equals, value = args[at].partition("=")
        else:
            _, equals, value = ("", "", "")
        if not equals:
            # Written with a space, the value is the next word.
            value = next(
                (word for word in args[at + 1 : at + 2] if not word.startswith("-")), "VALUE"
            )
        return f". Options without dashes are written NAME=VALUE: {name}={value}"


def verb(
    *examples: str,
    options: tuple[str, str] | None = None,
    more: str = "",
    command: type[Command] | None = None,
    alias: str = "",
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that makes a function a subcommand of the same name, with its docstring and examples as help.

    `options` is the file and the name of the function whose keyword arguments the subcommand takes as name=value;
    `more` is a further paragraph of help; `command` the class of the subcommand, which otherwise depends on whether the
    function has an argument `options`; `alias` another name of it, which the list of subcommands leaves out.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        # Read from source: importing the function would import torch for every --help.
        paragraphs = [inspect.cleandoc(function.__doc__ or ""), more]
        if options is not None:
            paragraphs.insert(1, options_help(*options))
        help_text = _escape("\n\n".join(filter(None, paragraphs)))
        takes_words = "options" in inspect.signature(function).parameters
        kind = command or (WordsCommand if takes_words else Command)
        epilog = "\n\n".join(_escape(example) for example in examples)

        @app.command(cls=kind, epilog=epilog, help=help_text)
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                # Notices become plain sentences only here; in Python they stay warnings.
                with notices():
                    result = function(*args, **kwargs)
                sys.stdout.flush()  # while a full disk can still be reported
                return result
            except BrokenPipeError as closed:  # `| head -1`: nobody reads the rest
                # Otherwise Python complains at exit, when it flushes stdout.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                # The exit code of a program that SIGPIPE ends.
                raise typer.Exit(128 + 13) from closed
            except Exception as problem:
                sentence = explain(problem)
                if sentence is None:
                    # A bug: its traceback is what helps.
                    raise
                print((f"worker {rank()}: " if rank() else "") + sentence, file=sys.stderr)
                if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
                    # Otherwise Python writes the rest again at exit, and prints a traceback.
                    sys.stdout = sys.stderr
                raise typer.Exit(1) from problem

        if alias:
            # Left out of the list of commands; the examples in its own help use the alias.
            epilog = epilog.replace(f"clearhead {function.__name__} ", f"clearhead {alias} ")
            app.command(alias, cls=kind, epilog=epilog, help=help_text, hidden=True)(run)
        return run

    return decorate


def explain(problem: Exception) -> str | None:
    """One sentence for an error that the user can correct; None for a bug, which shows its traceback."""
    if isinstance(problem, UserError):
        return " ".join(str(problem).split()) or type(problem).__name__
    if isinstance(problem, OSError) and (
        # An OSError without a file name comes from our code or a library, and is a bug.
        problem.filename is not None or problem.errno == errno.ENOSPC
    ):
        return f"{problem.filename or 'the output cannot be written'}: {problem.strerror}"
    return _too_large(problem)


def _too_large(problem: Exception) -> str | None:
    """A sentence if a number exceeds 64 bits, or memory is exhausted; None for other errors."""
    # PyTorch reports an exhausted allocation as a RuntimeError, recognised by its text.
    message = str(problem)
    if isinstance(problem, OverflowError) or "Overflow when unpacking long" in message:
        return "a number is too large: expected less than 2^63"
    if not isinstance(problem, MemoryError) and not (
        isinstance(problem, RuntimeError) and "allocate" in message
    ):
        return None
    size = re.search(r"allocate (\d+) bytes", message) or re.search(
        r"allocate ([\d.]+ \w+)", message
    )
    if size is None:
        amount = ""
    else:
        amount = f" when {size[1]}{' bytes' * size[1].isdigit()} were allocated at once"
    return f"out of memory{amount}: expected smaller numbers, shorter texts, fewer at a time, or a smaller model"


def _escape(text: str) -> str:
    """Escape brackets, which rich would take for markup and leave out of the help."""
    return text.replace("[", "\\[")


def _version(wanted: bool) -> bool:
    if wanted:
        print(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
