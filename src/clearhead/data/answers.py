"""Which tokens of a conversation are the assistant's: what the template writes for an answer after its prompt."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..tokens import Tokenizer
from ..tokens.chat_template import render
from .batches import IGNORE
from .conversations import Chat, Message
from .files import DataError


@dataclass(frozen=True, slots=True)
class Answered:
    """A conversation as ids, with the next id as target where it belongs to an answer, and -100 elsewhere."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]

    @property
    def last(self) -> int:
        """The last id that is a target."""
        return int(self.targets[self.targets != IGNORE][-1])


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the template writes it, and the ids of that text."""

    messages: Sequence[Message]
    where: str  # file:line
    text: str
    ids: NDArray[np.int64]


class Rendering:
    """Renders conversations with a chat template, up to `longest` tokens; counts those that do not fit."""

    def __init__(self, template: str, names: Mapping[str, str], tokens: Tokenizer, longest: int) -> None:
        self.template, self.names, self.tokens, self.longest = template, names, tokens, longest
        self.shortened = self.left_out = self.unanswered = 0
        self._special = set(tokens.special_names.values())
        found = sorted(tokens.special_names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found)) or "(?!)")  # without names nothing matches

    def answered(self, chat: Chat) -> Answered | None:
        """Return a conversation without the oldest turns that do not fit; None if its last turn does not fit."""
        system = [one for one in chat.messages[:1] if one["role"] == "system"]
        turns = chat.messages[len(system) :]
        begins = [i for i, one in enumerate(turns) if i == 0 or one["role"] == "user"]

        def rendered(begin: int) -> Rendered:
            return self._rendered([*system, *turns[begin:]], chat.where)

        whole, first = rendered(begins[0]), 0
        if len(whole.ids) > self.longest:
            first = bisect_left(begins, True, lo=1, key=lambda begin: len(rendered(begin).ids) <= self.longest)
        for begin in begins[first:]:
            ids, counted = self._ids(whole if begin == 0 else rendered(begin))
            if not counted.any():
                self.unanswered += 1
                return None
            if len(ids) <= self.longest:  # a border that a token would cross can add a token
                self.shortened += begin > 0
                return Answered(ids, np.append(np.where(counted, ids, IGNORE)[1:], IGNORE))
        self.left_out += 1
        return None

    def _rendered(self, messages: Sequence[Message], where: str) -> Rendered:
        text = self._render(messages, where, prompt=False)
        return Rendered(messages, where, text, self.tokens.marked(text))

    def _ids(self, whole: Rendered) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of a conversation, and whether each belongs to an answer."""
        parts = self._parts(whole)
        rows = self._rows([text for text, _ in parts], whole.ids)
        counted = [
            self._counted(row) if answers else np.zeros(len(row), bool)
            for row, (_, answers) in zip(rows, parts, strict=True)
        ]
        return np.concatenate(rows).astype(np.int64), np.concatenate(counted)

    def _rows(self, parts: list[str], ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the ids of each part of a text, given the ids of all of it.

        The model reads a prompt without its answer. So where a token would cross the border, the prompt ends there, and
        the rest is encoded as a text that continues it.
        """
        rows: list[NDArray[np.int64]] = []
        while True:
            text, continues = "".join(parts), bool(rows)
            places, at, done = self._special_places(text, ids), 0, 0  # at, done: ids and parts that are in rows
            for end in accumulate(map(len, parts[:-1])):
                prompt = self._prompt(text[:end], ids, places, continues=continues)
                crossed = not np.array_equal(ids[: len(prompt)], prompt)
                if crossed and not np.array_equal(ids[:at], prompt[:at]):  # it would change the part before, too
                    break
                rows.append(prompt[at:])
                at, done = len(prompt), done + 1
                if crossed:
                    break
            else:
                return [*rows, ids[at:]]
            parts = parts[done:]
            ids = self.tokens.continued("".join(parts), marked=True)

    def _prompt(
        self, text: str, ids: NDArray[np.int64], places: list[tuple[int, int, str]], *, continues: bool
    ) -> NDArray[np.int64]:
        """Return the ids of the beginning of a text as a prompt; only what follows its last special token is encoded.

        Args:
            text: The beginning.
            ids: The ids of the whole text.
            places: Its special tokens.
            continues: Whether the text continues another.
        """
        found = bisect_right(places, len(text), key=lambda place: place[0])
        if found:
            end, after, name = places[found - 1]
            return np.concatenate([ids[:after], self.tokens.marked(name + text[end:])[1:]])
        return self.tokens.continued(text, marked=True) if continues else self.tokens.marked(text)

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
        if special and not self.tokens.decode(row[special[-1] + 1 :]).strip():
            counted[special[-1] + 1 :] = False
        return counted

    def _parts(self, whole: Rendered) -> list[tuple[str, bool]]:
        """Return the text of a conversation in parts, and whether each is an answer.

        An answer before the first question counts only if the template writes its prompt as it writes all others.
        """
        messages, text, where = whole.messages, whole.text, whole.where
        parts, at, asked = [], 0, False
        for i, message in enumerate(messages):
            asked = asked or message["role"] == "user"
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:i], where, prompt=True)
            after = self._render(messages[: i + 1], where, prompt=False)
            if not after.startswith(before) or not text.startswith(after):
                if not asked:
                    continue
                raise DataError(
                    f"{where}: the chat template does not write a conversation as the beginning of a longer one, so "
                    f"that the answer in message {i + 1} cannot be found: expected another template, or conversations "
                    "of one question and one answer"
                )
            parts += [(text[at : len(before)], False), (text[len(before) : len(after)], True)]
            at = len(after)
        return [part for part in [*parts, (text[at:], False)] if part[0]]

    def _render(self, messages: Sequence[Message], where: str, *, prompt: bool) -> str:
        try:
            return render(self.template, messages, self.names, prompt=prompt)
        except InputError as problem:
            raise DataError(f"{where}: {problem}") from problem
