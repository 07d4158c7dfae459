"""Print an answer for each text or image as it comes: in the order of the inputs, with memory for only a few of them.

What was printed is complete: Ctrl-C loses only what was not yet computed. A line that has no answer is named on stderr,
keeps its place in the output, and makes the exit code 1.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ..errors import CutNotice, TextError
from .output import progress
from .text_input import Item

# inputs of the first batch, so that it is answered soon; each batch is twice as large as the one
# before
FIRST = 4
MOST = 256  # inputs of a batch
CHARACTERS = 1 << 17  # characters of a batch; a longer text is a batch of its own

Answer = Callable[[list[str], int], Iterable[Any]]  # of texts, and the number of the first of them


def print_answers(
    items: Iterable[list[Item]],
    answer: Answer,
    *,
    as_json: bool,
    plain: Callable[[Any], str],
    record: Callable[[Any], dict[str, Any]],
    describe: Callable[[Item], dict[str, Any]] = lambda item: {item.key: item.text},
    named: bool = True,
    total: int | None = None,
    most: int = MOST,
) -> None:
    """Print a line for each input: the input, a tab and its answer; with `as_json` an object with both.

    Args:
        items: The inputs, as many at a time as are there.
        answer: Computes the answers of a batch. A text that it refuses with a TextError is left out, and the others
            are answered; if that text is an argument of the command, the error is raised.
        as_json: Print objects.
        plain: An answer as text.
        record: An answer as plain values.
        describe: An input as plain values.
        named: Whether the input is printed before an answer that is text.
        total: The size of all inputs, for the progress bar; None if unknown.
        most: Inputs of a batch.
    """
    count, failed, told = 0, 0, set[str]()
    with progress(beside_results=True) as done:
        for batch in _batches(items, most):
            lines = []
            for item, result in zip(batch, _answers(batch, answer, count, told), strict=True):
                # A blank line stands for a missing answer, so that answers and inputs stay aligned.
                if isinstance(result, TextError):
                    print(f"{item.place}: {' '.join(str(result).split())}", file=sys.stderr)
                    failed += 1
                    line = {"error": str(result)} if as_json else ""
                else:
                    line = record(result) if as_json else plain(result)
                # An object; or the input, a tab and the answer; or the answer alone.
                if isinstance(line, dict):
                    line = json.dumps(describe(item) | line, allow_nan=False)
                elif named:
                    line = f"{_field(item.text)}\t{line}"
                lines.append(line)
            # Written per batch, so that Ctrl-C never leaves half of one.
            write_lines(lines)
            count += len(batch)
            done(sum(item.size for item in batch), total)
    # Everything else is answered; the exit code shows scripts that something is missing.
    if failed:
        verb = "has" if failed == 1 else "have"
        print(f"{failed:,} of {count:,} lines {verb} no result", file=sys.stderr)
        raise typer.Exit(1)


def shift_seed(options: dict[str, Any], first: int) -> dict[str, Any]:
    """The options for a batch: input i of all uses the seed + i, in whichever batch it is."""
    # Without a seed each batch samples anew.
    if options.get("seed") is None:
        return options
    return options | {"seed": options["seed"] + first}


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout and flush them; Ctrl-C interrupts only after the last of them."""
    text = "".join(f"{line}\n" for line in lines)
    with _late_interrupt():
        binary = getattr(sys.stdout, "buffer", None)
        if not isinstance(binary, io.RawIOBase):
            # Python's own buffer writes all of a text.
            sys.stdout.write(text)
        else:  # PYTHONUNBUFFERED: a write that a signal interrupts writes a part, and Python drops the rest
            left = text.replace("\n", os.linesep).encode(
                sys.stdout.encoding, sys.stdout.errors or "strict"
            )
            # write() may take only a part of the bytes, and returns how many.
            while left:
                left = left[binary.write(left) or 0 :]
        sys.stdout.flush()


def write_json(value: dict[str, Any]) -> None:
    """Write an object to stdout as a line of JSON, and flush it."""
    write_lines([json.dumps(value, allow_nan=False)])


@contextmanager
def _late_interrupt() -> Iterator[None]:
    """Context manager that delays Ctrl-C to its end; a second one interrupts at once, in case the reader never reads.

    Python drops the rest of a text if a write is interrupted while it waits for the reader of a pipe.
    """
    # Signal handlers belong to the main thread; a handler of someone else's is left in place.
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # no interrupt can come here
        yield
        return
    interrupted = False

    def remember(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        # The next Ctrl-C interrupts at once again.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Raised after the write is complete, so that no line is cut in half.
    if interrupted:
        raise KeyboardInterrupt


def _batches(items: Iterable[list[Item]], largest: int) -> Iterator[list[Item]]:
    """Yield the inputs in batches of growing size; no batch waits for inputs that are not yet there."""
    # Starts small so that the first answers come soon, and grows because large batches are faster.
    most = min(FIRST, largest)
    for block in items:
        batch: list[Item] = []
        characters = 0
        for item in block:
            # A batch may not exceed the number of inputs, nor the characters that fit into memory;
            # one long text is allowed alone.
            if len(batch) == most or (batch and characters + len(item.text) > CHARACTERS):
                yield batch
                batch, characters, most = [], 0, min(2 * most, largest)
            batch.append(item)
            characters += len(item.text)
        if batch:
            yield batch


def _answers(batch: list[Item], answer: Answer, first: int, told: set[str]) -> list[Any]:
    """The answer of each input, or a TextError if it has none. `told` has the notices that were printed before."""
    try:
        for item in batch:
            # Raises before the model runs: the input could not even be read.
            if item.problem:
                raise TextError(item.problem)
        with warnings.catch_warnings(record=True) as caught:
            # Every batch counts texts that were cut, which Python would show only once.
            warnings.simplefilter("always", CutNotice)
            results = list(answer([item.text for item in batch], first))
    except TextError as problem:
        if len(batch) == 1 and batch[0].given:
            raise
        # Down to the one text that is refused: its error takes the place of its answer.
        if len(batch) == 1:
            return [problem]
        half = len(batch) // 2  # the halves without such a text are answered in one go
        return _answers(batch[:half], answer, first, told) + _answers(
            # `first` moves along, so that seeds do not depend on how a batch was split.
            batch[half:],
            answer,
            first + half,
            told,
        )
    for one in caught:
        if isinstance(one.message, CutNotice):
            # The notice counts within the batch; the user needs the line.
            for i, tokens in one.message.lengths.items():
                print(f"{batch[i].place}: {one.message.problem(tokens)}", file=sys.stderr)
        elif str(one.message) not in told:
            # The same notice for the next batch says nothing new.
            told.add(str(one.message))
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return results


def _field(text: str) -> str:
    """A text as a field of a line: its tabs become spaces too."""
    from ..data.files import as_line

    return as_line(text).replace("\t", " ")
