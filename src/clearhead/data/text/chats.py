"""Conversations for a chat model: only the assistant's answers, with the token that ends them, are targets.

ids (b, t)      conversations as the chat template writes them, padded      targets (b, t)   the next id, or -100
with pack=true several conversations share a row, with documents and at (b, t) so that none attends to another
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...checks import at_least, fraction
from ...errors import InputError
from ...progress import in_parts
from ...tokens import Tokenizer
from ...tokens.chat_template import read_template, render, token_names
from ...tokens.special import Special, read_special
from ..batching import Bucketed, Buckets, Ragged
from ..data import IGNORE, Batch, Rows
from ..files import DataError, given_files, locate
from ..splits import held_out, told
from .conversations import Chat, Chats, Columns, Message, read_chats
from .tokenizers import find_tokenizer, open_tokenizer, vocabulary_size

# Which tokens of a conversation are the assistant's: what the template writes for an answer after its prompt.


@dataclass(frozen=True, slots=True)
class ChatIds:
    """A conversation as ids, with the next id as target where it belongs to an answer, and -100 elsewhere."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def last(self) -> int:
        """The last id that is a target."""
        return int(self.targets[self.targets != IGNORE][-1])


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as the template writes it, and the ids of that text."""

    messages: Sequence[Message]
    where: str  # file:line
    text: str
    ids: NDArray[np.int64]


class Rendering:
    """Renders conversations with a chat template, up to `longest` tokens; counts those that do not fit."""

    def __init__(
        self, template: str, names: Mapping[str, str], tokens: Tokenizer, longest: int
    ) -> None:
        self.template, self.names, self.tokens, self.longest = template, names, tokens, longest
        self.shortened = self.left_out = self.unanswered = 0
        self._special = set(tokens.special_names.values())
        found = sorted(tokens.special_names, key=len, reverse=True)
        # without names nothing matches
        self._pattern = re.compile("|".join(map(re.escape, found)) or "(?!)")

    def tokenized(self, chat: Chat) -> ChatIds | None:
        """Return a conversation without the oldest turns that do not fit; None if its last turn does not fit."""
        # the system message is kept when old turns are dropped
        system = [message for message in chat.messages[:1] if message["role"] == "system"]
        turns = chat.messages[len(system) :]
        # a shorter conversation keeps its system message, and begins with a question
        begins = [i for i, message in enumerate(turns) if i == 0 or message["role"] == "user"]

        # candidates are rendered, since templates add tokens of their own to every turn
        def rendered(begin: int) -> RenderedChat:
            return self._rendered([*system, *turns[begin:]], chat.where)

        whole, first = rendered(begins[0]), 0
        if len(whole.ids) > self.longest:
            # a later beginning is never longer, so that the first that fits is found by halving
            first = bisect_left(
                begins, True, lo=1, key=lambda begin: len(rendered(begin).ids) <= self.longest
            )
        # usually the first one fits; `_ids` may add a token at a border
        for begin in begins[first:]:
            if begin > 0:
                whole = rendered(begin)
            ids, counted = self._ids(whole)
            # a conversation all of whose answers the template drops teaches nothing
            if not counted.any():
                self.unanswered += 1
                return None
            if len(ids) <= self.longest:  # a border that a token would cross can add a token
                self.shortened += begin > 0
                # the target of each id is the next one, if that belongs to an answer
                targets = np.append(np.where(counted, ids, IGNORE)[1:], IGNORE)
                return ChatIds(ids, targets)
        self.left_out += 1
        return None

    def _rendered(self, messages: Sequence[Message], where: str) -> RenderedChat:
        text = self._render(messages, where, prompt=False)
        return RenderedChat(messages, where, text, self.tokens.marked(text))

    def _ids(self, whole: RenderedChat) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of a conversation, and whether each belongs to an answer."""
        # (text, whether it is an answer), in order
        parts = self._parts(whole)
        rows = self._rows([text for text, _ in parts], whole.ids)
        counted = []
        for row, (_, answers) in zip(rows, parts, strict=True):
            # questions and everything that the template writes around them do not count
            counted.append(self._counted(row) if answers else np.zeros(len(row), bool))
        return np.concatenate(rows).astype(np.int64), np.concatenate(counted)

    def _rows(self, parts: list[str], ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the ids of each part of a text, given the ids of all of it.

        The model reads a prompt without its answer. So where a token would cross the border, the prompt ends there, and
        the rest is encoded as a text that continues it.
        """
        rows: list[NDArray[np.int64]] = []
        while True:
            text, continues = "".join(parts), bool(rows)
            places = self._special_places(text, ids)
            at, done = 0, 0  # ids and parts that are in rows
            # ids up to the end of each part; the last part takes what is left
            for end in accumulate(map(len, parts[:-1])):
                # how the model will see this beginning at inference: without what follows
                prompt = self._prompt(text[:end], ids, places, continues=continues)
                # a token that spans the border is another one in the prompt alone
                crossed = not np.array_equal(ids[: len(prompt)], prompt)
                # it would change the part before, too
                if crossed and not np.array_equal(ids[:at], prompt[:at]):
                    break
                rows.append(prompt[at:])
                at, done = len(prompt), done + 1
                if crossed:
                    break
            else:
                # no border was crossed any more: the rest of the ids belongs to the last part
                return [*rows, ids[at:]]
            # the parts behind the border are encoded again, as a continuation
            parts = parts[done:]
            ids = self.tokens.continued("".join(parts), marked=True)

    def _prompt(
        self,
        text: str,
        ids: NDArray[np.int64],
        places: list[tuple[int, int, str]],
        *,
        continues: bool,
    ) -> NDArray[np.int64]:
        """Return the ids of the beginning of a text as a prompt; only what follows its last special token is encoded.

        Args:
            text: The beginning.
            ids: The ids of the whole text.
            places: Its special tokens.
            continues: Whether the text continues another.
        """
        # the last special token that ends before the end of the beginning
        found = bisect_right(places, len(text), key=lambda place: place[0])
        # special tokens separate: ids before one do not depend on what comes after
        if found:
            end, after, name = places[found - 1]
            # [1:] drops the special token itself, whose id is in ids[:after]
            return np.concatenate([ids[:after], self.tokens.marked(name + text[end:])[1:]])
        if continues:
            return self.tokens.continued(text, marked=True)
        return self.tokens.marked(text)

    def _special_places(self, text: str, ids: NDArray[np.int64]) -> list[tuple[int, int, str]]:
        """Return the special tokens in a text: where each ends in the text and in its ids, and its name."""
        found = list(self._pattern.finditer(text))
        after = [i for i, token in enumerate(ids.tolist(), 1) if token in self._special]
        if len(found) != len(after):  # some are not recognised as such
            return []
        return [(match.end(), i, match[0]) for match, i in zip(found, after, strict=True)]

    def _counted(self, row: np.ndarray) -> NDArray[np.bool_]:
        """Whether each token of an answer counts: all, except white space after the special token that ends it."""
        special = [i for i, token in enumerate(row.tolist()) if token in self._special]
        counted = np.ones(len(row), bool)
        # after the token that ends the turn, a line feed is the template's
        if special and not self.tokens.decode(row[special[-1] + 1 :]).strip():
            counted[special[-1] + 1 :] = False
        return counted

    def _parts(self, whole: RenderedChat) -> list[tuple[str, bool]]:
        """Return the text of a conversation in parts, and whether each is an answer.

        An answer before the first question counts only if the template writes its prompt as it writes all others.
        """
        messages, text, where = whole.messages, whole.text, whole.where
        parts, at, asked = [], 0, False
        for i, message in enumerate(messages):
            asked = asked or message["role"] == "user"
            if message["role"] != "assistant":
                continue
            # with the header of the answer, as the model is asked at inference
            before = self._render(messages[:i], where, prompt=True)
            after = self._render(messages[: i + 1], where, prompt=False)
            # templates that change earlier turns, such as those that drop old reasoning
            if not after.startswith(before) or not text.startswith(after):
                if not asked:
                    continue
                raise DataError(
                    f"{where}: the chat template does not write a conversation as the beginning of a longer one, so "
                    f"that the answer in message {i + 1} cannot be found: expected another template, or conversations "
                    "of one question and one answer"
                )
            # what came before the answer, and the answer with its end
            parts += [(text[at : len(before)], False), (text[len(before) : len(after)], True)]
            at = len(after)
        # parts without text would give rows without ids
        return [part for part in [*parts, (text[at:], False)] if part[0]]

    def _render(self, messages: Sequence[Message], where: str, *, prompt: bool) -> str:
        try:
            return render(self.template, messages, self.names, prompt=prompt)
        except InputError as problem:
            raise DataError(f"{where}: {problem}") from problem


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatsConfig:
    """Options of chats."""

    path: str  # a table of conversations: .jsonl, .json, .csv, .tsv or .parquet, compressed or not
    tokens: str  # folder with a tokenizer and a chat template, such as a checkpoint's
    valid_path: str | None = None  # such a table for validation; None: a share of the first
    share: float = 0.1  # share of the questions kept for validation, if there is no valid_path
    messages: str | None = None  # column of lists of messages; None: messages or conversations
    # column of questions; None: prompt, question or instruction (with input)
    prompt: str | None = None
    answer: str | None = None  # column of answers; None: answer, completion, response or output
    # whether the first row of a CSV or TSV file names the columns; None: recognised
    header: bool | None = None
    # largest number of tokens; longer conversations lose their oldest turns, or are left out
    longest: int = 1024
    # put several conversations in a row, up to `longest` tokens, so that there is little padding
    pack: bool = False
    batch_tokens: int = 4096  # largest number of tokens per step, padding included
    # rows are padded to multiples of this, so that there are few different widths
    rounding: int = 8
    valid_most: int | None = None  # largest number of validation batches; None: all

    def __post_init__(self) -> None:
        fraction(self, "share")
        at_least(self, 1, "batch_tokens", "rounding")
        at_least(self, 0, "valid_most")
        if not 2 <= self.longest <= self.batch_tokens:
            raise InputError(
                f"longest={self.longest}: expected 2 or more, and at most batch_tokens={self.batch_tokens}"
            )
        if self.messages is not None and (self.prompt or self.answer):
            raise InputError(
                "messages and prompt or answer: expected a column of messages, or two columns"
            )


class ChatRows(Bucketed):
    """Conversations as ids, every one once per epoch."""

    tokens: Tokenizer

    def __init__(self, config: ChatsConfig, *, seed: int, root: Path | None = None) -> None:
        folder = find_tokenizer(config.tokens, root)
        self.tokens = open_tokenizer(config.tokens, folder)
        self.chat, special = read_template(folder), read_special(folder, self.tokens)
        if self.chat is None:
            raise DataError(
                f"tokens={config.tokens!r} has no chat template: expected a folder with chat_template.jinja, or with "
                "chat_template in tokenizer_config.json, as chat models have"
            )
        self.files = given_files(config.path, config.valid_path)
        self.config, self.seed = config, seed
        self.sizes = {"vocab": vocabulary_size(folder, self.tokens)}
        rendering = Rendering(
            self.chat, token_names(special, self.tokens), self.tokens, config.longest
        )
        columns = columns_of(config)
        train = read_chats(locate(config.path, root), columns)
        if config.valid_path is None:
            # rows that were left out stay counted in `train`
            valid = Chats()
            # by questions, before anything is tokenized
            train.chats, valid.chats = split_chats(train.chats, config.share)
        else:
            valid = read_chats(locate(config.valid_path, root), columns)
        train_rows, valid_rows = (_tokenized(chats, rendering) for chats in (train, valid))
        if not train_rows:
            raise DataError(
                f"{config.path}: no conversation is left to train on: {rendering.left_out} are too long"
            )
        self.special = _with_turn_end(special, train_rows, self.tokens)
        # any id does: padding is no target, and comes after everything that is
        pad = special.pad or 0
        self._encoded = (EncodedChats(train_rows, pad), EncodedChats(valid_rows, pad))
        source = config.valid_path or f"share = {config.share} of the different first questions"
        # whole conversations, not only their questions
        known = {_content(chat) for chat in train.chats}
        twice = sum(_content(chat) in known for chat in valid.chats)
        self._split = told(train_rows, valid_rows, "conversation", source, twice)
        self.unanswered = train.unanswered + valid.unanswered + rendering.unanswered
        self.empty = train.empty + valid.empty
        self.shortened, self.left_out = rendering.shortened, rendering.left_out
        self._group()

    def _group(self) -> None:
        super()._group()
        self.keys = ("ids", "targets")
        if self.config.pack:
            # several conversations per row: attention and positions must tell them apart
            self.keys += ("documents", "at")

    def _left_out(self) -> Sequence[str]:
        longest = self.config.longest
        parts = {
            "left out, which have no answer": self.unanswered,
            "left out, which have an empty message": self.empty,
            f"without their oldest turns, to fit into longest={longest} tokens": self.shortened,
            f"left out, whose last question and answer have more than {longest} tokens": self.left_out,
        }
        return [f"{count:,} {what}" for what, count in parts.items() if count]


def _tokenized(chats: Chats, rendering: Rendering) -> list[ChatIds]:
    """Return the conversations that fit, as ids."""
    rows = []
    for some in in_parts(chats.chats, "tokenizing"):
        for chat in some:
            row = rendering.tokenized(chat)
            if row is not None:
                rows.append(row)
    return rows


class EncodedChats:
    """Conversations as ids in rows of one or several, and their buckets."""

    def __init__(self, conversations: Sequence[ChatIds], pad: int) -> None:
        self.single_ids = Ragged([row.ids for row in conversations])
        self.single_targets = Ragged([row.targets for row in conversations])
        self.pad = pad

    def group(self, config: ChatsConfig) -> None:
        """Put the conversations into rows, and divide these into buckets."""
        ids, targets = self.single_ids, self.single_targets
        self.packed = config.pack
        if config.pack:
            rows = pack(ids.lengths.tolist(), config.longest)
            self.ids, self.targets = _joined(ids, rows), _joined(targets, rows)
            # the number of the conversation in its row, and the position of each token in its conversation
            sizes = [ids.lengths[row] for row in rows]
            self.documents = Ragged([np.repeat(np.arange(len(row)), row) for row in sizes])
            # positions begin at 0 in each conversation, as without packing
            self.at = _joined(Ragged([np.arange(size) for size in ids.lengths.tolist()]), rows)
        else:
            self.ids, self.targets = ids, targets
        self.buckets = Buckets(
            self.ids.lengths, config.batch_tokens, config.rounding, config.longest
        )

    def __len__(self) -> int:
        return len(self.ids.lengths)

    def batch(self, bucket: int, order: NDArray[np.int64], rows: Rows) -> Batch:
        """Return rows of a bucket; padding is a document of its own."""
        whole, chosen = self.buckets.choose(bucket, order, rows)
        width = self.buckets.width(bucket, self.ids.lengths[whole])
        batch = {
            "ids": self.ids.padded(chosen, width, self.pad),
            "targets": self.targets.padded(chosen, width, IGNORE),
        }
        if self.packed:
            # -1 marks the padding until it gets a number
            documents = self.documents.padded(chosen, width, -1)
            # padding is a document of its own, so that no conversation attends to it
            padding = documents.max(axis=1, keepdims=True) + 1
            batch["documents"] = np.where(documents < 0, padding, documents)
            batch["at"] = self.at.padded(chosen, width, 0)
        return batch


def _joined(single: Ragged, rows: Sequence[Sequence[int]]) -> Ragged:
    """Concatenate the rows of these numbers to longer ones."""
    # Ragged yields rows in order; indexing needs a list
    every = list(single)
    return Ragged([np.concatenate([every[i] for i in row]) for row in rows])


def pack(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Divide items among rows of at most `most`: the largest first, each into the fullest row that it fits into."""
    rows: list[list[int]] = []
    # by the number of free places: the rows that have so many
    with_room: list[list[int]] = [[] for _ in range(most + 1)]
    # equal sizes by their number, so that the result is always the same
    largest_first = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    for i in largest_first:
        # best fit: the smallest free space that is large enough
        free = next((n for n in range(sizes[i], most + 1) if with_room[n]), None)
        if free is None:  # a new row
            rows.append([])
            # an empty row, with all of its places free
            row, free = len(rows) - 1, most
        else:
            row = with_room[free].pop()
        rows[row].append(i)
        # back into the list of the space that is left
        with_room[free - sizes[i]].append(row)
    return rows


def columns_of(config: ChatsConfig) -> Columns:
    """The columns that a config names."""
    return Columns(
        messages=config.messages, prompt=config.prompt, answer=config.answer, header=config.header
    )


def split_chats(chats: list[Chat], share: float) -> tuple[list[Chat], list[Chat]]:
    """Divide conversations by their first questions, so that none is in both training and validation."""
    # by question, so that different answers to it stay in one part
    kept = held_out((chat.question for chat in chats), share)
    train = [chat for chat in chats if chat.question not in kept]
    return train, [chat for chat in chats if chat.question in kept]


def _content(chat: Chat) -> tuple[tuple[str, str], ...]:
    return tuple((one["role"], one["content"]) for one in chat.messages)


def _with_turn_end(special: Special, rows: Sequence[ChatIds], tokens: Tokenizer) -> Special:
    """Add the special token that ends the answers to those that end a generated text."""
    special_ids = set(tokens.special_names.values())
    ends = dict.fromkeys(special.ends)  # a set in order
    for row in rows:
        if row.last in special_ids:
            # such as <|im_end|>, which the checkpoint may not list as an end
            ends[row.last] = None
    return replace(special, ends=tuple(ends))
