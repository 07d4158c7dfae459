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
from ..models.text_events import new_text
from .hypotheses import Beams
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
        self._seen: Tensor | None = None  # (rows, v) the tokens that each row has
        self._logp: Tensor | None = None  # (rows, v) the buffer of log_softmax
        self.device = next(model.parameters()).device
        # tokens per row that the model can read; the context of an encoder-decoder limits only the source
        self.context: int | None = None
        if isinstance(model, Model) and model.reads == "tokens":
            self.context = model.max_tokens
        # tokens that each row will have read: the last one is written, but not read
        self.limit = max(map(len, prompts)) + room - 1
        if self.context is not None and self.limit > self.context:
            if not plan.slide:
                raise _too_long(max(map(len, prompts)), room, self.context)
            self.limit = self.context

        # samples of a prompt share its reading; inputs already have a row per sample
        self.prompts = [prompt for prompt in prompts for _ in range(samples)]  # of each answer
        if inputs:
            copies, read = 1, self.prompts
        else:
            copies, read = samples, prompts
        # index of the first token each row has read
        self.firsts = self._read(read)
        for n in (copies, width):
            if n > 1:
                self.state.expand(n)
                self.firsts = [first for first in self.firsts for _ in range(n)]
        last = [[prompt[-1]] for prompt in self.prompts for _ in range(width)]
        self.last = torch.tensor(last, device=self.device)

    def step(self, last: Int[Tensor, "r 1"]) -> Float[Tensor, "r v"]:
        """Append a token to each row, and return the logits of the next one."""
        if self._cpu is not None and self._cpu.unhooked:
            # checked at every step: a hook may be set while a search runs
            logits = self._cpu.step(last, self.state)
            # None: a number is NaN, which only the model's own step treats right
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
        # a graph begins with the first step after reading
        if self._no_steps and self.width == 1:
            beams.move(self.device)
            # the random numbers of this step and those after it, for the rows that are left
            left = None
            if uniforms is not None:
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
        # a hook that was set during the search would not be called: continue with the model's own step
        if self._graph is not None and not self._graph.unhooked:
            self._graph.settle()
            self._graph = None
        if self._graph is None:
            beams.move(self.device)
            return None
        beams.move(torch.device("cpu"))  # where a graph's tokens arrive
        return self._graph()

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
            # beams change places, and finished rows leave the KV cache
            self.state.reorder(index)
        else:
            # a graph has static shapes: its finished rows go on, unread
            self._graph.keep(index.tolist())
        self.firsts = [self.firsts[i] for i in index.tolist()]
        if self._seen is not None:
            self._seen = self._seen[index]

    def slide(self, beams: Beams) -> None:
        """If a row has filled the model's context, read the newer part of every row again.

        A text is read from the smallest multiple of half the context that leaves no more than the context, so it makes
        no difference which part of it was the prompt.
        """
        if self.context is None or self.context > self.limit:
            return  # no text can become longer than the context
        longest, firsts = 0, iter(self.firsts)
        for answer, texts in beams.rows():
            # firsts are in the order of the state's rows: answers, and in each its beams
            for text in texts:
                longest = max(longest, len(self.prompts[answer]) + len(text) - next(firsts))
        if longest > self.context:
            self.firsts = self._read(self._texts(beams))

    def seen(self, beams: Beams, vocab: int) -> Bool[Tensor, "r v"]:
        """Return a mask (r, v) of the tokens that each row already has, prompt included."""
        if self._seen is None:
            self._seen = torch.zeros(len(beams.last), vocab, dtype=torch.bool, device=self.device)
            for row, text in enumerate(self._texts(beams)):
                self._seen[row, text] = True
        return self._seen.scatter_(1, beams.last, True)

    def _texts(self, beams: Beams) -> list[list[int]]:
        """The prompt and the written ids of each hypothesis."""
        return [self.prompts[answer] + text for answer, texts in beams.rows() for text in texts]

    def _read(self, texts: list[list[int]]) -> list[int]:
        """Start a new state and read each text but its last token; returns the index where each reading began."""
        self.close()
        self._no_steps = True
        firsts = [first_read(len(text), self.context) for text in texts]
        # the last token is the input of the first step
        rows = [text[first:-1] for text, first in zip(texts, firsts, strict=True)]
        new_text(self.model)
        self.state = self.model.start(self.inputs, len(texts), self.limit)
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        if longest:
            # padding on the right: `counts` leaves it out of the cache's positions
            padded = [row + [0] * (longest - len(row)) for row in rows]
            counts = None
            if min(lengths) < longest:
                counts = torch.tensor(lengths, device=self.device)
            ids = torch.tensor(padded, device=self.device)
            self.state = self.model.read(ids, self.state, counts)
        self._cpu = CpuDecoder.of(self.model, self.state)
        return firsts


def first_read(tokens: int, context: int | None) -> int:
    """The first token that a sliding model reads of a text: a multiple of half its context; 0 if all of it fits."""
    if context is None or tokens <= context:
        return 0
    half = max(context // 2, 1)
    # as many halves as cover the tokens beyond the context, rounded up
    return -(-(tokens - context) // half) * half


def _too_long(prompt: int, room: int, context: int) -> TextError:
    """The error for a prompt and an answer that do not fit into the context together."""
    if prompt > context:
        expected = "a shorter prompt"
    else:
        expected = f"max_new={context - prompt + 1} or less"
    return TextError(
        f"a prompt of {prompt} tokens and {room} more: this model reads {context} at once; expected "
        f"{expected}, or slide=true to forget the older half whenever the context is full"
    )
