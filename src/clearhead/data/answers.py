"""Which tokens of a conversation are the assistant's: what the template writes for an answer after its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


class Rendering:
    """Renders conversations with a chat template, up to `longest` tokens; counts those that do not fit."""

    def __init__(self, template: str, names: Mapping[str, str], tokens: Tokenizer, longest: int) -> None:
        self.template, self.names, self.tokens, self.longest = template, names, tokens, longest
        self.shortened = self.left_out = 0
        self._special = set(tokens.special_names.values())

    def answered(self, chat: Chat) -> Answered | None:
        """Return a conversation without the oldest turns that do not fit; None if its last turn does not fit."""
        system = [one for one in chat.messages[:1] if one["role"] == "system"]
        turns = chat.messages[len(system) :]
        begins = [i for i, one in enumerate(turns) if i == 0 or one["role"] == "user"]
        begins = [i for i in begins if any(one["role"] == "assistant" for one in turns[i:])]
        for begin in begins:
            ids, counted = self._ids([*system, *turns[begin:]], chat.where)
            if len(ids) <= self.longest:
                self.shortened += begin > 0
                return Answered(ids, np.append(np.where(counted, ids, IGNORE)[1:], IGNORE))
        self.left_out += 1
        return None

    def _ids(self, messages: Sequence[Message], where: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of a conversation, and whether each belongs to an answer."""
        parts = self._parts(messages, where)
        text = "".join(text for text, _ in parts)
        ends = np.cumsum([len(text) for text, _ in parts])
        whole, cuts = self.tokens.marked(text), [self.tokens.marked(text[:end]) for end in ends[:-1].tolist()]
        if all(np.array_equal(whole[: len(cut)], cut) for cut in cuts):
            rows = np.split(whole, [len(cut) for cut in cuts])
        else:  # a token would cross the border of an answer: the model reads the prompt alone, so it ends there
            rows = [self.tokens.marked(text) for text, _ in parts]
        counted = [
            self._counted(row) if answers else np.zeros(len(row), bool)
            for row, (_, answers) in zip(rows, parts, strict=True)
        ]
        return np.concatenate(rows).astype(np.int64), np.concatenate(counted)

    def _counted(self, row: np.ndarray) -> NDArray[np.bool_]:
        """Whether each token of an answer counts: all, except white space after the special token that ends it."""
        special = [i for i, token in enumerate(row.tolist()) if token in self._special]
        counted = np.ones(len(row), bool)
        if special and not self.tokens.decode(row[special[-1] + 1 :]).strip():
            counted[special[-1] + 1 :] = False
        return counted

    def _parts(self, messages: Sequence[Message], where: str) -> list[tuple[str, bool]]:
        """Return the text of a conversation in parts, and whether each is an answer."""
        whole = self._render(messages, where, prompt=False)
        parts, at = [], 0
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:i], where, prompt=True)
            after = self._render(messages[: i + 1], where, prompt=False)
            if not after.startswith(before) or not whole.startswith(after):
                raise DataError(
                    f"{where}: the chat template does not write a conversation as the beginning of a longer one, so "
                    f"that the answer in message {i + 1} cannot be found: expected another template, or conversations "
                    "of one question and one answer"
                )
            parts += [(whole[at : len(before)], False), (whole[len(before) : len(after)], True)]
            at = len(after)
        return [part for part in [*parts, (whole[at:], False)] if part[0]]

    def _render(self, messages: Sequence[Message], where: str, *, prompt: bool) -> str:
        try:
            return render(self.template, messages, self.names, prompt=prompt)
        except InputError as problem:
            raise DataError(f"{where}: {problem}") from problem
