"""Tokenizers trained on the training text when a run starts, and the options that all translations share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ... import config, tokens
from ...checks import at_least
from ...errors import InputError
from ...tokens import Characters, Pair, Subwords, Tokenizer, Words
from ...tokens.ids import SPECIAL
from ...tokens.special import Special, read_special
from ..files import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """Options of a tokenizer that is trained on the training text."""

    # subwords are byte pair encoding
    vocabulary: Literal["subwords", "unigram", "words", "characters"] = "subwords"
    # largest number of tokens per side, special tokens included; characters are all kept
    size: int = 8000
    # smallest number of occurrences of a word, or of a pair of pieces to be merged
    minimum: int = 2
    lower: bool = False  # ignore capitals

    def __post_init__(self) -> None:
        # subwords need all 256 bytes, so that every text can be written
        if self.vocabulary in ("subwords", "unigram"):
            least = 256 + len(SPECIAL)
        else:
            least = len(SPECIAL) + 1
        if self.size < least:
            raise InputError(f"size={self.size}: expected {least} or more for {self.vocabulary}")
        at_least(self, 1, "minimum")
        if self.lower and self.vocabulary == "characters":
            raise InputError(
                "lower=true is for words and subwords: characters are kept as they are"
            )

    def tokenizer(self, texts: Sequence[str]) -> Tokenizer:
        """Train one tokenizer."""
        if self.vocabulary == "characters":
            # a space in any case: joined sentences are separated by one
            return Characters.of("".join({c for text in texts for c in text} | {" "}), special=True)
        if self.vocabulary == "words":
            return Words.of(
                texts, minimum=self.minimum, most=self.size - len(SPECIAL), lower=self.lower
            )
        kind = "bpe" if self.vocabulary == "subwords" else "unigram"
        return Subwords.of(texts, size=self.size, kind=kind, lower=self.lower, minimum=self.minimum)


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyConfig(TokenizerConfig):
    """Options of the tokenizers of a translation."""

    joint: bool = False  # one vocabulary for both sides, so that they may share an embedding table

    def pair(self, sources: Sequence[str], targets: Sequence[str]) -> Pair:
        """Train the tokenizers of both sides; the same texts and options give the same tokenizers."""
        if self.joint:
            both = self.tokenizer([*sources, *targets])
            return Pair(both, both)
        return Pair(self.tokenizer(sources), self.tokenizer(targets))


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationConfig(VocabularyConfig):
    """Options that all translations share."""

    # largest number of tokens per step on the longer side, padding included
    batch_tokens: int = 4096
    # rows are padded to multiples of this, so that there are few different widths
    rounding: int = 8
    # largest number of tokens per side; longer pairs are left out; None: no limit
    longest: int | None = None
    valid_most: int | None = None  # largest number of validation batches; None: all

    def __post_init__(self) -> None:
        VocabularyConfig.__post_init__(self)  # super() loses its class when slots make a new one
        at_least(self, 1, "batch_tokens", "rounding")
        at_least(self, 0, "valid_most")
        if self.longest is not None and self.longest < 2:
            raise InputError(f"longest={self.longest}: expected 2 or more, of which one is <end>")


# The tokenizer of a folder: that of a checkpoint, or of a run.


def find_tokenizer(name: str, root: Path | None, expected: str = "") -> Path:
    """Return the folder that has a tokenizer: the one of this name, the one in the data folder, or that of a run.

    Args:
        name: The folder.
        root: The data folder.
        expected: What else the option may be, for the message.
    """
    folder = Path(name).expanduser()
    if not (root is None or folder.is_dir()):
        # relative to the data folder, where no such folder is here
        folder = root / name
    for place in (folder, folder / "model"):  # the second is that of a run folder
        if tokens.saved(place) is not None:
            return place
    raise DataError(f"tokens={name!r}: there is no tokenizer in such a folder{expected}")


def open_tokenizer(name: str, folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder; `name` is the option that gave it."""
    tokenizer = tokens.load(folder)
    if isinstance(tokenizer, Pair):
        raise DataError(
            f"tokens={name!r} has the tokenizers of a translation model: expected one tokenizer"
        )
    return tokenizer


def open_pair(name: str, root: Path | None) -> tuple[Pair, Special]:
    """Load the tokenizers of a translator, and its special ids: the decoder may start from the padding, as in Marian.

    Args:
        name: The folder; one tokenizer in it is that of both sides.
        root: The data folder.
    """
    folder = find_tokenizer(name, root)
    found = tokens.load(folder)
    # a single tokenizer is that of both sides
    pair = found if isinstance(found, Pair) else Pair(found, found)
    return pair, read_special(folder, pair.target)


def vocabulary_size(folder: Path, tokenizer: Tokenizer) -> int:
    """Return the vocabulary of the model in a folder, which may have more embeddings than its tokenizer has tokens."""
    path = folder / "config.json"
    table = config.load(path) if path.is_file() else config.Table()
    # our own checkpoints keep their options in a section, others at the top
    if "clearhead" in table:
        size = table.get("options", {}).get("vocab")
    else:
        size = table.get("vocab_size")
    if isinstance(size, int):
        # embeddings are often padded to a round number; the tokenizer may also have grown
        return max(len(tokenizer), size)
    return len(tokenizer)
