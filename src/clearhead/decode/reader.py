"""The model of a search with its state: what each row has read, and what to forget of it when the context is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import InputError
from ..fast import CpuDecoder, GraphDecoder
from ..look import new_text
from ..models import Model
from .beams import Beams
from .plan import Plan


class Reader:
    """The one place that chooses between a model's own `step` and a fast decoder."""

    def __init__(
        self, model: Any, inputs: Mapping[str, Tensor], prompts: list[list[int]], samples: int, width: int, plan: Plan,
        room: int,
    ) -> None:  # fmt: skip
        self.model, self.inputs, self.width, self.plan = model, inputs, width, plan
        self.state: Any
        self._cpu: CpuDecoder | None = None
        self._graph: GraphDecoder | None = None
        self._fresh = True  # nothing was written yet after what was read
        self.device = next(model.parameters()).device
        longest = max(map(len, prompts))
        # Tokens per row that the model can read; of an encoder-decoder the context limits the source.
        self.most = model.max_tokens if isinstance(model, Model) and model.reads == "tokens" else None
        total = longest + room - 1  # the last token is written, and not read
        if self.most is not None and total > self.most and not plan.slide:
            raise InputError(
                f"a prompt of {longest} tokens and {room} more: this model reads {self.most} at once; expected fewer, "
                "or slide=true to forget the older half whenever the context is full"
            )
        self.limit = total if self.most is None else min(total, self.most)
        copies = samples if not inputs else 1  # inputs are already repeated
        self.prompts = [prompt for prompt in prompts for _ in range(samples)]  # by the number of the answer
        self.begins = self._read(prompts if copies > 1 else self.prompts)  # the first token that each row has read
        for n in (copies, width):
            if n > 1:
                self.state.expand(n)
                self.begins = [begin for begin in self.begins for _ in range(n)]
        self.last = torch.tensor([[prompt[-1]] for prompt in self.prompts for _ in range(width)], device=self.device)
        self._seen: Tensor | None = None
        self._logp: Tensor | None = None

    def step(self, last: Tensor) -> Float[Tensor, "r v"]:
        """Append a token to each row; returns the logits of the next one."""
        if self._cpu is not None and self._cpu.unhooked:
            logits = self._cpu.step(last, self.state)
            if logits is not None:
                return logits[:, -1].float()
        logits, self.state = self.model.step(last, self.state)
        return logits[:, -1].float()

    def logp(self, logits: Float[Tensor, "r v"]) -> Float[Tensor, "r v"]:
        """Log-probabilities, valid until the next step: for many rows, allocating takes longer than computing."""
        if logits.requires_grad:
            return logits.log_softmax(-1)
        if self._logp is None or self._logp.shape[0] < len(logits):
            self._logp = torch.empty_like(logits)
        return torch.log_softmax(logits, -1, out=self._logp[: len(logits)])

    def ahead(self, beam: Beams, uniforms: Tensor | None, written: int) -> tuple[Tensor, Tensor] | None:
        """The next token of each row and its log-probability, where a CUDA graph has already computed them."""
        if self._fresh and self.width == 1:
            beam.move(self.device)
            left = None if uniforms is None else uniforms[beam.which, written - 1 :]
            self._graph = GraphDecoder.of(
                self.model, self.state, beam.last, self.plan.choice, self.plan.banned, left,
                lambda vocab: self.seen(beam, vocab),
            )  # fmt: skip
            self._seen = None
        self._fresh = False
        if self._graph is not None and not self._graph.unhooked:  # somebody has begun to watch
            self._graph.settle()
            self._graph = None
        beam.move(self.device if self._graph is None else torch.device("cpu"))
        return None if self._graph is None else self._graph()

    def close(self) -> None:
        """Give the CUDA graph back, if there is one."""
        if self._graph is not None:
            self._graph.close()
        self._graph = None

    def keep(self, index: Tensor, always: bool) -> None:
        """Continue with these rows of the state."""
        if not always and len(index) == len(self.begins):
            return
        if self._graph is None:
            self.state.reorder(index)
        else:
            self._graph.keep(index.tolist())
        self.begins = [self.begins[i] for i in index.tolist()]
        self._seen = None if self._seen is None else self._seen[index]

    def make_room(self, beam: Beams) -> None:
        """If a row has filled the model's context, read the newer part of every row again.

        Of a text of n tokens the model then reads those from the least multiple of half its context on that leaves no
        more than its context: it makes no difference which of them were the prompt.
        """
        if self.most is None or self.most > self.limit:
            return
        lengths = [len(self.prompts[row]) + len(text) for row, texts in beam.rows() for text in texts]
        if max(n - begin for n, begin in zip(lengths, self.begins, strict=True)) <= self.most:
            return
        self.begins = self._read([self.prompts[row] + text for row, texts in beam.rows() for text in texts])

    def seen(self, beam: Beams, vocab: int) -> Tensor:
        """Marks the tokens that each row has, those of its prompt included."""
        if self._seen is None:
            self._seen = torch.zeros(len(beam.last), vocab, dtype=torch.bool, device=self.device)
            texts = [self.prompts[row] + text for row, texts in beam.rows() for text in texts]
            for row, text in enumerate(texts):
                self._seen[row, text] = True
        return self._seen.scatter_(1, beam.last, True)

    def _read(self, texts: list[list[int]]) -> list[int]:
        """Start again with texts, all but the last token of each; returns the first token that each row has read."""
        self.close()
        self._fresh = True
        begins = [self._begin(len(text)) for text in texts]
        read = [text[begin:-1] for text, begin in zip(texts, begins, strict=True)]
        new_text(self.model)
        self.state = self.model.start(self.inputs, len(texts), self.limit)
        longest = max(map(len, read))
        if longest:
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in read], device=self.device)
            ragged = any(len(row) < longest for row in read)
            counts = torch.tensor([len(row) for row in read], device=self.device) if ragged else None
            self.state = self.model.read(ids, self.state, counts)
        self._cpu = CpuDecoder.of(self.model, self.state)
        return begins

    def _begin(self, tokens: int) -> int:
        if self.most is None or tokens <= self.most:
            return 0
        half = max(self.most // 2, 1)
        return -(-(tokens - self.most) // half) * half
