"""ModelRunner: the model of a search with its state. It alone chooses between a model's own step and a fast decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..errors import TextError
from ..fast import CpuDecoder, GraphDecoder
from ..models import Model
from ..models.texts import new_text
from .beams import Beams
from .plan import Plan


class ModelRunner:
    """Runs the steps of a search, and reads the newer half of each text again when the context is full.

    Args:
        model: A model with `start` and `step`, and with `read` if it continues prompts.
        inputs: What `start` needs, with a row per sample.
        prompts: The prompt of each row.
        samples: Answers per prompt.
        width: Beams per answer.
        plan: The options of the search.
        room: The largest number of tokens that an answer may have.
    """

    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, Tensor],
        prompts: list[list[int]],
        samples: int,
        width: int,
        plan: Plan,
        room: int,
    ) -> None:
        self.model, self.inputs, self.width, self.plan = model, inputs, width, plan
        self.state: Any
        self._cpu: CpuDecoder | None = None
        self._graph: GraphDecoder | None = None
        self._no_steps = True  # no step was taken since the texts were read
        self._seen: Tensor | None = None
        self._logp: Tensor | None = None
        self.device = next(model.parameters()).device
        longest = max(map(len, prompts))
        # Tokens per row that the model can read; the context of an encoder-decoder limits only the source.
        self.context = (
            model.max_tokens if isinstance(model, Model) and model.reads == "tokens" else None
        )
        total = longest + room - 1  # the last token is written, but not read
        if self.context is not None and total > self.context and not plan.slide:
            raise TextError(
                f"a prompt of {longest} tokens and {room} more: this model reads {self.context} at once; expected "
                + (
                    "a shorter prompt"
                    if longest > self.context
                    else f"max_new={self.context - longest + 1} or less"
                )
                + ", or slide=true to forget the older half whenever the context is full"
            )
        if self.context is None:
            self.limit = total
        else:
            self.limit = min(total, self.context)
        copies = samples if not inputs else 1  # inputs already have a row per sample
        self.prompts = [prompt for prompt in prompts for _ in range(samples)]  # of each answer
        # index of the first token each row has read
        self.firsts = self._read(prompts if copies > 1 else self.prompts)
        for n in (copies, width):
            if n > 1:
                self.state.expand(n)
                self.firsts = [first for first in self.firsts for _ in range(n)]
        self.last = torch.tensor(
            [[prompt[-1]] for prompt in self.prompts for _ in range(width)], device=self.device
        )

    def step(self, last: Int[Tensor, "r 1"]) -> Float[Tensor, "r v"]:
        """Append a token to each row, and return the logits of the next one."""
        if self._cpu is not None and self._cpu.unhooked:
            logits = self._cpu.step(last, self.state)
            if logits is not None:
                return logits[:, -1].float()
        logits, self.state = self.model.step(last, self.state)
        return logits[:, -1].float()

    def log_softmax(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r v"]:
        """Log-probabilities in a reused buffer, valid until the next step: allocating would take longest."""
        if logits.requires_grad:
            return logits.log_softmax(-1)
        if self._logp is None or self._logp.shape[0] < len(logits):
            self._logp = torch.empty_like(logits)
        return torch.log_softmax(logits, -1, out=self._logp[: len(logits)])

    def graph_step(
        self, beams: Beams, uniforms: Float[Tensor, "n t"] | None, written: int
    ) -> tuple[Int[Tensor, "r 1"], Float[Tensor, "r 1"]] | None:
        """The next token of each row and its log-probability, if a CUDA graph decodes; None otherwise."""
        if self._no_steps and self.width == 1:
            beams.move(self.device)
            if uniforms is None:
                left = None
            else:
                left = uniforms[beams.answers, written - 1 :]
            self._graph = GraphDecoder.of(
                self.model,
                self.state,
                beams.last,
                self.plan.choice,
                self.plan.banned,
                left,
                lambda vocab: self.seen(beams, vocab),
            )
            self._seen = None
        self._no_steps = False
        if self._graph is not None and not self._graph.unhooked:  # a hook was set during the search
            self._graph.settle()
            self._graph = None
        beams.move(self.device if self._graph is None else torch.device("cpu"))
        return None if self._graph is None else self._graph()

    def close(self) -> None:
        """Release the CUDA graph, if there is one."""
        if self._graph is not None:
            self._graph.close()
        self._graph = None

    def keep(self, index: Int[Tensor, "r"], always: bool) -> None:
        """Continue with these rows of the state; without `always`, nothing is done if their number is the same."""
        if not always and len(index) == len(self.firsts):
            return
        if self._graph is None:
            self.state.reorder(index)
        else:
            self._graph.keep(index.tolist())
        self.firsts = [self.firsts[i] for i in index.tolist()]
        self._seen = None if self._seen is None else self._seen[index]

    def slide(self, beams: Beams) -> None:
        """If a row has filled the model's context, read the newer part of every row again.

        A text is read from the smallest multiple of half the context that leaves no more than the context, so it makes
        no difference which part of it was the prompt.
        """
        if self.context is None or self.context > self.limit:
            return
        lengths = [
            len(self.prompts[answer]) + len(text)
            for answer, texts in beams.rows()
            for text in texts
        ]
        if max(n - first for n, first in zip(lengths, self.firsts, strict=True)) > self.context:
            self.firsts = self._read(self._texts(beams))

    def seen(self, beams: Beams, vocab: int) -> Bool[Tensor, "r v"]:
        """Marks the tokens that each row has, those of its prompt included."""
        if self._seen is None:
            self._seen = torch.zeros(len(beams.last), vocab, dtype=torch.bool, device=self.device)
            for row, text in enumerate(self._texts(beams)):
                self._seen[row, text] = True
        return self._seen.scatter_(1, beams.last, True)

    def _texts(self, beams: Beams) -> list[list[int]]:
        """The prompt and the written ids of each hypothesis."""
        return [self.prompts[answer] + text for answer, texts in beams.rows() for text in texts]

    def _read(self, texts: list[list[int]]) -> list[int]:
        """Start again from texts, without the last token of each; returns the first token that each row has read."""
        self.close()
        self._no_steps = True
        firsts = [self._first(len(text)) for text in texts]
        rows = [text[first:-1] for text, first in zip(texts, firsts, strict=True)]
        new_text(self.model)
        self.state = self.model.start(self.inputs, len(texts), self.limit)
        longest = max(map(len, rows))
        if longest:
            ids = torch.tensor(
                [row + [0] * (longest - len(row)) for row in rows], device=self.device
            )
            ragged = any(len(row) < longest for row in rows)
            if ragged:
                counts = torch.tensor([len(row) for row in rows], device=self.device)
            else:
                counts = None
            self.state = self.model.read(ids, self.state, counts)
        self._cpu = CpuDecoder.of(self.model, self.state)
        return firsts

    def _first(self, tokens: int) -> int:
        """The first token to read of a text with so many tokens."""
        return first_read(tokens, self.context)


def first_read(tokens: int, context: int | None) -> int:
    """The first token that a sliding model reads of a text: a multiple of half its context; 0 if all of it fits."""
    if context is None or tokens <= context:
        return 0
    half = max(context // 2, 1)
    return -(-(tokens - context) // half) * half
