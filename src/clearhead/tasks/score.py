"""score: the log-probability of a given text, or of a given translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import torch

from ..data.data import IGNORE
from ..data.files import DataError
from ..data.text.chats import ChatIds, ChatsConfig, Rendering, columns_of, split_chats
from ..data.text.conversations import Columns, read_chats
from ..data.text.documents import Documents
from ..errors import InputError, TextError
from ..inputs.texts import check_text, id_batches
from ..tokens.chat_template import token_names
from ..weights import Bundle, ModelLike, opened
from .text import Likelihood, likelihood, likelihoods, target_logprobs
from .translate import Translation, given_translation


@overload
def score(
    bundle: ModelLike, text: str, target: None = None, *, stride: int | None = None
) -> Likelihood: ...


@overload
def score(
    bundle: ModelLike, text: str, target: str, *, stride: int | None = None
) -> Translation: ...


def score(
    bundle: ModelLike, text: str, target: str | None = None, *, stride: int | None = None
) -> Likelihood | Translation:
    """Return the log-probability of a text under a language model, or of a translation under a translator.

    Args:
        bundle: A language model or a translator, or its name or folder.
        text: The text, or the source of a translation.
        target: The translation; only for a translator.
        stride: Language model: tokens that the window over a long text moves by; see `likelihood`.

    Returns:
        A Likelihood; of a translator a Translation, with its attention to the source.

    Examples:
        >>> score(clearhead.load("fr-en"), "Je la mange.", "I eat it.").logprob > -5
        True
    """
    bundle = opened(bundle)
    check_text(bundle, text)
    _check_pair(bundle, target is not None)
    if target is not None:
        # forced decoding, with the attention to the source
        return given_translation(bundle, text, target)
    return _checked(text, likelihood(bundle, text, stride=stride))


def scores(bundle: Bundle, texts: Sequence[str]) -> list[Likelihood]:
    """What `score` returns for each of several texts, which a language model reads in batches."""
    _check_pair(bundle, False)
    return [
        _checked(text, one) for text, one in zip(texts, likelihoods(bundle, texts), strict=True)
    ]


def _check_pair(bundle: Bundle, pair: bool) -> None:
    """Raise unless a translator gets a text with its translation, and another model a text alone."""
    translator = "translate" in bundle.can
    if translator and not pair:
        raise InputError("this is a translator: expected a text and its translation")
    if pair and not translator:
        raise InputError("this is no translator: expected a text alone")


def _checked(text: str, result: Likelihood) -> Likelihood:
    if not result.counted:
        raise TextError(
            f"{text!r} is one token, with nothing before it to predict it from: expected two or more"
        )
    return result


# The log-probability of many texts, or of the answers of many conversations, under a language model.


SOME = 64  # texts between two reports of progress
LONGEST = 4096  # tokens of a conversation, where the model has no limit

Done = Callable[[int, int], None]  # called with the number of texts just finished, and of all


@dataclass(frozen=True, slots=True)
class Counted:
    """The log-probability of the tokens that count, their number, and their text."""

    logprob: float
    tokens: int
    text: str
    left_out: int = 0  # rows without text, or conversations without an answer


def document_likelihoods(bundle: Bundle, path: Path, done: Done | None) -> Counted:
    """Score the text files of a folder, or the rows of a table, each by itself; nothing predicts their first tokens."""
    documents = Documents([path], joined=False)
    texts = [text for text in documents.whole() if text.strip()]
    if not texts:
        raise DataError(f"{path} has no texts")
    logprob, tokens = 0.0, 0
    # in groups, so that progress can be reported; batches by length are formed within each
    for first in range(0, len(texts), SOME):
        some = texts[first : first + SOME]
        for part in likelihoods(bundle, some):
            # sums, so that the perplexity weights tokens, not texts, equally
            logprob, tokens = logprob + part.logprob, tokens + part.counted
        if done is not None:
            done(len(some), len(texts))
    return Counted(logprob, tokens, "".join(texts), documents.empty)


@torch.no_grad()
def answer_likelihoods(
    bundle: Bundle,
    path: Path,
    done: Done | None,
    *,
    part: str = "all",
    options: ChatsConfig | None = None,
) -> Counted:
    """Score the answers of conversations, each with the token that ends it; questions are read and do not count.

    Args:
        bundle: The model.
        path: A table of conversations.
        done: Called with the number of conversations just finished, and of all.
        part: all, or, of the table that the model was trained on, valid or train.
        options: Those of the training.
    """
    tokens = bundle.tokenizer()
    if bundle.chat is None:
        raise InputError(
            f"{path} has chats, and this {bundle.name} has no chat template: expected a chat model, or texts"
        )
    names = token_names(bundle.special, tokens)
    rendering = Rendering(bundle.chat, names, tokens, bundle.max_tokens or LONGEST)
    # without a training's options, the usual names of columns
    found = read_chats(path, Columns() if options is None else columns_of(options))
    chats = found.chats
    # without the training's options its division into parts is unknown
    if options is not None and part != "all":
        # (train, valid), divided as the training divided them
        chats = split_chats(chats, options.share)[part == "valid"]
    rows: list[ChatIds] = [row for chat in chats if (row := rendering.tokenized(chat))]
    if not rows:
        raise DataError(
            f"{path} has no conversation with an answer that this {bundle.name} can read"
        )
    logprob, count, model = 0.0, 0, bundle.model
    for batch, ids, _ in id_batches(bundle, [row.ids for row in rows]):
        # the token after each id where it is a part of an answer; a row's padding has none
        wanted = torch.full_like(ids, IGNORE)
        for i, number in enumerate(batch):
            # targets are shifted already: target t follows id t
            wanted[i, : len(rows[number].targets)] = torch.from_numpy(rows[number].targets)
        counts = wanted != IGNORE
        # (b, t, d) -> (n, d): only states that predict a token of an answer go through the head
        x = model.states(ids)[counts]  # type: ignore[operator]
        logprob += float(target_logprobs(model.head, x, wanted[counts]).double().sum())
        count += int(counts.sum())
        if done is not None:
            done(len(batch), len(rows))
    # bits per byte are of the text of the answers, not of the questions
    answers = [row.targets[row.targets != IGNORE] for row in rows]
    text = "".join(tokens.decode(np.asarray(one)) for one in answers)
    return Counted(logprob, count, text, found.unanswered + found.empty)
