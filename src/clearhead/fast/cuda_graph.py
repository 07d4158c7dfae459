"""Tokens ahead of their reader: a GPU writes step after step while the host still looks at the first.

A step, from a token's vector to the choice of the next token and its vector, is captured once as a CUDA graph and then
replayed; none of it waits for the host. What was written goes to the host some steps at a time. Where an answer ends,
only the host knows: what was written past an end is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..decode.sampling import Choice, draw, repeat_less
from ..models import gpt
from .gpu_decode import Stepper

AT_ONCE = 8  # steps that go to the host together
UNDER_WAY = 2 * AT_ONCE  # steps that the GPU is asked for before the host waits
ROUND = 256  # tokens: graphs for texts of a like length are the same
WORTH = 8  # tokens from which a graph is worth its capture
KEPT = 1 / 8  # of a GPU's memory, that keys and values may hold until the next search


class Graph:
    """One step of a model, its choice of a token included, on storage that stands still."""

    def __init__(self, stepper: Stepper, choice: Choice, banned: Sequence[int]) -> None:
        device, rows, limit = stepper.stream.device, stepper.rows, stepper.limit
        self.stepper, self.choice = stepper, choice
        self.banned = torch.tensor(list(banned), dtype=torch.long, device=device) if banned else None
        self.seen = self.uniforms = None
        if choice.repetition != 1.0:
            self.seen = torch.zeros(rows, stepper.vocab, dtype=torch.bool, device=device)
        if choice.sample:
            self.uniforms = torch.zeros(rows, limit + 1, dtype=torch.float64, device=device)
        self.graph: Any = None
        self.tokens, self.scores = stepper.tokens, stepper.scores
        self.events: list[tuple[int, Any]] = []  # how many steps are on the host when each has happened
        if device.type == "cuda":
            self.tokens = torch.zeros(limit + 1, rows, dtype=torch.long, pin_memory=True)
            self.scores = torch.zeros(limit + 1, rows, pin_memory=True)
            self._capture()

    def begin(
        self, state: gpt.State, last: Int[Tensor, "b 1"], uniforms: Float[Tensor, "b t"] | None,
        seen: Bool[Tensor, "b v"] | None,
    ) -> None:  # fmt: skip
        """Go on from a state and the last token of each row."""
        first = state.caches[0]
        self.stepper.begin(
            [c.k for c in state.caches], [c.v for c in state.caches], first.at, last[:, 0], first.furthest
        )
        if self.uniforms is not None and uniforms is not None:
            self.uniforms[:, : uniforms.shape[1]].copy_(uniforms[:, : self.uniforms.shape[1]])
        if self.seen is not None and seen is not None:
            self.seen.copy_(seen)
        self.events.clear()

    def run(self, first: int, steps: int) -> None:
        """Write these steps, and send them on their way to the host."""
        for _ in range(steps):
            self.step() if self.graph is None else self.graph.replay()
        if self.graph is not None:
            part = slice(first, first + steps)
            self.tokens[part].copy_(self.stepper.tokens[part], non_blocking=True)
            self.scores[part].copy_(self.stepper.scores[part], non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.events.append((first + steps, event))

    def wait(self, step: int) -> None:
        """Until this step is on the host."""
        while self.events and self.events[0][0] <= step:
            self.events.pop(0)
        if self.events:
            self.events[0][1].synchronize()

    def step(self) -> None:
        """Write one token a row."""
        stepper, choice = self.stepper, self.choice
        logits = stepper()
        if self.banned is None and self.seen is None and self.uniforms is None:
            stepper.take()
            return
        if self.seen is not None:
            logits = repeat_less(logits, self.seen.scatter_(1, stepper.token[:, None], True), choice.repetition)
        logp = logits.log_softmax(-1)
        if self.banned is not None:
            logp = logp.index_fill(1, self.banned, -math.inf)
        if self.uniforms is None:
            token = logp.max(-1, keepdim=True).indices
        else:
            token = draw(choice.narrowed(logp), self.uniforms.gather(1, stepper.count[:, None])[:, 0])
        stepper.take(token[:, 0], logp.gather(1, token)[:, 0])

    def _capture(self) -> None:
        """Run once, so that all is compiled and has its place; then write down what is to be done."""
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(2):
                self.stepper.at.zero_()
                self.stepper.count.zero_()
                self.step()
        here.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.step()


class Ahead:
    """A search of one beam, some steps ahead of its reader. `of` gives None where a model cannot be captured."""

    def __init__(self, graph: Graph, state: gpt.State, model: nn.Module, key: Any) -> None:
        self.graph, self.state, self.model, self.key = graph, state, model, key
        self.steps = state.caches[0].limit - state.caches[0].furthest  # that there is room for
        self.asked = self.given = 0
        self.rows = list(range(state.rows))  # that are still looked at

    @staticmethod
    def of(
        model: Any, state: Any, last: Int[Tensor, "b 1"], choice: Choice, banned: Sequence[int],
        uniforms: Float[Tensor, "b t"] | None, seen: Callable[[int], Tensor],
    ) -> Ahead | None:  # fmt: skip
        """Go on from a state with the last token of each row.

        `luck` are the chances of the draws from here on; `seen` says which of so many tokens stand in each row.
        """
        if type(model) is not gpt.GPT or type(state) is not gpt.State or model.training:
            return None
        if torch.is_autocast_enabled(last.device.type):  # numbers of other types: the modules' business
            return None
        limit, steps = state.caches[0].limit, state.caches[0].limit - state.caches[0].furthest
        key = (state.rows, choice, tuple(banned), tuple(p.data_ptr() for p in model.parameters()))
        known, graph = _IDLE.pop(model, None), None
        if known is not None and known[0] == key and known[1].stepper.limit >= limit:
            graph = known[1]
        if graph is None:
            if known is not None and known[1].graph is not None:
                torch.cuda.synchronize()  # what it has still to write is written
            del known  # before room is made for another
            if model.embed.table.is_cuda:
                if steps < WORTH:
                    return None
                limit = -(-limit // ROUND) * ROUND
            window = model.config.window
            stepper = Stepper.of(
                model.embed, model.positions, model.blocks, model.norm, model.head, window, state.rows, limit
            )
            if stepper is None or not stepper.unheard:
                return None
            graph = Graph(stepper, choice, banned)
        ahead = Ahead(graph, state, model, key)
        if steps < 1 or not ahead.unheard:
            ahead.close()
            return None
        graph.begin(state, last, uniforms, None if graph.seen is None else seen(graph.stepper.vocab))
        return ahead

    @property
    def unheard(self) -> bool:
        """Nobody listens inside the model: what is captured calls nobody."""
        return self.graph.stepper.unheard

    def __call__(self) -> tuple[Int[Tensor, "r 1"], Float[Tensor, "r 1"]]:
        """The next token of each row that is looked at, and its log-probability, on the host."""
        while self.asked < self.steps and self.asked - self.given < UNDER_WAY:
            steps = min(AT_ONCE if self.asked else 1, self.steps - self.asked)  # the first is waited for
            self.graph.run(self.asked, steps)
            self.asked += steps
        self.graph.wait(self.given)
        token, score = (x[self.given, self.rows, None] for x in (self.graph.tokens, self.graph.scores))
        self.given += 1
        return token, score

    def keep(self, index: Sequence[int]) -> None:
        """From now on only these of the rows are looked at."""
        self.rows = [self.rows[i] for i in index]

    def settle(self) -> None:
        """Bring the state to where the reader is: the rows that are looked at, with the tokens that were given."""
        state, stepper = self.state, self.graph.stepper
        index = torch.tensor(self.rows, device=stepper.at.device)
        if len(self.rows) < state.rows:
            state.reorder(index)
        filled = state.caches[0].furthest + self.given
        for cache, k, v in zip(state.caches, stepper.k, stepper.v, strict=True):
            cache.k[:, :, :filled] = k[index, :, :filled]
            cache.v[:, :, :filled] = v[index, :, :filled]
        state.advance(self.given)
        self.close()

    def close(self) -> None:
        """The graph may serve another."""
        stepper = self.graph.stepper
        size, device = sum(x.nbytes for x in (*stepper.k, *stepper.v)), stepper.stream.device
        if device.type != "cuda" or size <= torch.cuda.get_device_properties(device).total_memory * KEPT:
            _IDLE[self.model] = (self.key, self.graph)


# The graph that served a model last. It is taken from here while it serves, so that no two searches share one.
_IDLE: WeakKeyDictionary[nn.Module, tuple[Any, Graph]] = WeakKeyDictionary()
