"""The errors and warnings that are written for the person who uses the library.

Every error that a user can cause and correct derives from UserError, and from the built-in class that Python
programmers expect for it. The command line prints such an error as one sentence; any other exception is a bug and
shows its traceback.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType


class UserError(Exception):
    """A mistake that the user can correct: the message says what was given and what was expected."""


class InputError(UserError, ValueError):
    """An argument has a value that cannot be used."""


class TextError(InputError):
    """One of the texts cannot be used; others can."""


class InputTypeError(UserError, TypeError):
    """An argument has a type that cannot be used."""


class InputIndexError(UserError, IndexError):
    """An index, such as the number of a layer or a head, is out of range."""


class InputKeyError(UserError, KeyError):
    """A name is unknown."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would show the message in quotes


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder does not exist."""


class DownloadError(UserError, ConnectionError):
    """A file cannot be downloaded."""


class MissingPackageError(UserError, RuntimeError):
    """An optional package is needed and not installed."""


class Notice(UserWarning):
    """The result is right, but was computed in another way than the user may expect: slower, or of a shortened text."""


class CutNotice(Notice):
    """Some texts are longer than the model's context, and were cut there; `lengths` has their numbers and tokens."""

    def __init__(self, lengths: Mapping[int, int], texts: int, most: int) -> None:
        self.lengths, self.most = dict(lengths), most
        names = ", ".join(str(i + 1) for i in list(lengths)[:5])
        if len(lengths) > 5:
            names += f" and {len(lengths) - 5} more"
        longest = "the longest" if len(lengths) > 1 else "it"
        super().__init__(
            f"text {names} of {texts} is {self.problem(max(lengths.values()), longest)}"
        )

    def problem(self, tokens: int, name: str = "it") -> str:
        """Describe what happened to a text of this many tokens, as the end of a sentence."""
        return (
            f"longer than the {self.most} tokens that this model reads ({name} has {tokens}): the rest was left out; "
            "split it"
        )


PACKAGE = str(Path(__file__).parent)


def caller_level() -> int:
    """Return the stacklevel with which a warning of the calling function names the line of the user that led to it.

    Examples:
        >>> caller_level()  # called by the user, not by a function of the library
        1
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    # torch is between a task and its caller, as the wrapper of torch.no_grad
    while frame is not None and (
        frame.f_code.co_filename.startswith(PACKAGE)
        or frame.f_globals.get("__name__", "").startswith("torch.")
    ):
        frame, level = frame.f_back, level + 1
    return level


CLOSE = 0.1  # names are suggested together if their similarity differs by no more


def nearest(name: object, names: Iterable[str], *, most: int = 3) -> str:
    """Return "; the nearest is X" for an error message about an unknown name, or "" if no known name is similar.

    Args:
        name: The unknown name. Case is ignored.
        names: The known names.
        most: The largest number of names to suggest.

    Examples:
        >>> nearest("widht", ["width", "depth", "heads"])
        '; the nearest is width'
        >>> nearest("xyz", ["width", "depth"])
        ''
    """
    known = {other.lower(): other for other in names}
    wanted = str(name).lower()
    similar = difflib.get_close_matches(wanted, list(known), n=most, cutoff=0.5)
    # the best ones come first: keep those that are about as similar
    ratios = [difflib.SequenceMatcher(None, other, wanted).ratio() for other in similar]
    words = []
    for other, ratio in zip(similar, ratios, strict=True):
        if ratio >= ratios[0] - CLOSE:
            words.append(known[other])
    if not words:
        return ""
    verb = "is" if len(words) == 1 else "are"
    return f"; the nearest {verb} {', '.join(words)}"
