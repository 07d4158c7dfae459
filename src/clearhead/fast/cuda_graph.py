"""CUDA-graph decoding that runs several tokens ahead of the host.

A step, from a token's embedding to the choice of the next token and its embedding, is captured once as a CUDA graph and
then replayed; none of it waits for the host. Tokens are copied to the host some steps at a time. Only the host knows
where an answer ends: tokens past an end are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..models import Model
from ..models.state import DecoderState
from . import gpu_decode
from .gpu_decode import GpuDecoder

AT_ONCE = 8  # steps that are copied to the host together
UNDER_WAY = 2 * AT_ONCE  # steps that the GPU is asked for before the host waits
ROUND = 256  # tokens: the limit of a graph is rounded up to this, so that similar texts share one
WORTH = 8  # tokens from which a graph is worth its capture
KEPT = 1 / 8  # of a GPU's memory, that an idle graph's KV cache may hold


@runtime_checkable
class Choice(Protocol):
    """How the next token is chosen: decode.Choice."""

    sample: bool
    repetition: float

    def pick(
        self, logits: Tensor, *, uniforms: Tensor | None, seen: Tensor | None, banned: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class Graph:
    """One step of a model, the choice of a token included, on static storage."""

    def __init__(self, decoder: GpuDecoder, choice: Choice, banned: Sequence[int]) -> None:
        device, rows, limit = decoder.stream.device, decoder.rows, decoder.limit
        self.decoder, self.choice = decoder, choice
        self.banned = torch.tensor(list(banned), dtype=torch.long, device=device) if banned else None
        self.seen = self.uniforms = None
        if choice.repetition != 1.0:
            self.seen = torch.zeros(rows, decoder.vocab, dtype=torch.bool, device=device)
        if choice.sample:
            self.uniforms = torch.zeros(rows, limit + 1, dtype=torch.float64, device=device)
        self.graph: Any = None
        self.tokens, self.scores = decoder.tokens, decoder.scores
        self.events: list[tuple[int, Any]] = []  # how many steps are on the host when each has happened
        if device.type == "cuda":
            self.tokens = torch.zeros(limit + 1, rows, dtype=torch.long, pin_memory=True)
            self.scores = torch.zeros(limit + 1, rows, pin_memory=True)
            self._capture()

    def begin(
        self, state: DecoderState, last: Int[Tensor, "b 1"], uniforms: Float[Tensor, "b t"] | None,
        seen: Bool[Tensor, "b v"] | None,
    ) -> None:  # fmt: skip
        """Continue from a state and the last token of each row."""
        caches = state.kv.caches
        self.decoder.begin(
            [c.k for c in caches], [c.v for c in caches], caches[0].at, last[:, 0], caches[0].furthest
        )  # fmt: skip
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
            self.tokens[part].copy_(self.decoder.tokens[part], non_blocking=True)
            self.scores[part].copy_(self.decoder.scores[part], non_blocking=True)
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
        """Append one token to each row."""
        decoder = self.decoder
        logits = decoder()
        if self.banned is None and self.seen is None and self.uniforms is None:
            decoder.take()
            return
        seen = None if self.seen is None else self.seen.scatter_(1, decoder.token[:, None], True)
        uniforms = None if self.uniforms is None else self.uniforms.gather(1, decoder.count[:, None])[:, 0]
        token, logp = self.choice.pick(logits, uniforms=uniforms, seen=seen, banned=self.banned)
        decoder.take(token[:, 0], logp[:, 0])

    def _capture(self) -> None:
        """Run the step twice, so that all kernels are compiled and all memory is allocated; then capture it."""
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(2):
                self.decoder.at.zero_()
                self.decoder.count.zero_()
                self.step()
        here.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.step()


class GraphDecoder:
    """A search of one beam that runs some steps ahead of the host. `of` returns None if a model cannot be captured."""

    def __init__(self, graph: Graph, state: DecoderState, model: nn.Module, key: Any) -> None:
        self.graph, self.state, self.model, self.key = graph, state, model, key
        first = state.kv.caches[0]
        self.steps = first.limit - first.furthest  # that there is room for
        self.asked = self.given = 0
        self.rows = list(range(state.rows))  # rows whose search is not over

    @staticmethod
    def of(
        model: nn.Module, state: Any, last: Int[Tensor, "b 1"], choice: Choice, banned: Sequence[int],
        uniforms: Float[Tensor, "b t"] | None, seen: Callable[[int], Tensor],
    ) -> GraphDecoder | None:  # fmt: skip
        """Continue from a state with the last token of each row.

        `uniforms` are the random numbers of sampling from here on; seen(vocab) marks the tokens that each row has.
        """
        stack = model.decoder_stack if isinstance(model, Model) else None
        if stack is None or model.training or not isinstance(state, DecoderState):
            return None
        if not stack.embed.table.is_cuda and not gpu_decode.INTERPRETED:
            return None
        if torch.is_autocast_enabled(last.device.type):  # kernels of other dtypes: left to the modules
            return None
        first = state.kv.caches[0]
        limit, steps = first.limit, first.limit - first.furthest
        key = (state.rows, choice, tuple(banned), tuple(p.data_ptr() for p in model.parameters()))
        known, graph = _IDLE.pop(model, None), None
        if known is not None and known[0] == key and known[1].decoder.limit >= limit:
            graph = known[1]
        if graph is None:
            if known is not None and known[1].graph is not None:
                torch.cuda.synchronize()  # it may still be running
            del known  # before memory is allocated for another
            if stack.embed.table.is_cuda:
                if steps < WORTH:
                    return None
                limit = -(-limit // ROUND) * ROUND
            kernels = GpuDecoder.of(stack, state.rows, limit)
            if kernels is None or not kernels.unhooked:
                return None
            graph = Graph(kernels, choice, banned)
        decoder = GraphDecoder(graph, state, model, key)
        if steps < 1 or not decoder.unhooked:
            decoder.close()
            return None
        graph.begin(state, last, uniforms, None if graph.seen is None else seen(graph.decoder.vocab))
        return decoder

    @property
    def unhooked(self) -> bool:
        """True if nobody watches or edits the model: a captured graph calls no hooks."""
        return self.graph.decoder.unhooked

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
        """Continue with these rows only."""
        self.rows = [self.rows[i] for i in index]

    def settle(self) -> None:
        """Copy the KV cache back into the state: of the rows whose search is not over, as far as the host has read."""
        state, decoder = self.state, self.graph.decoder
        index = torch.tensor(self.rows, device=decoder.at.device)
        if len(self.rows) < state.rows:
            state.reorder(index)
        filled = state.kv.caches[0].furthest + self.given
        for cache, k, v in zip(state.kv.caches, decoder.k, decoder.v, strict=True):
            cache.k[:, :, :filled] = k[index, :, :filled]
            cache.v[:, :, :filled] = v[index, :, :filled]
        state.kv.advance(self.given)
        self.close()

    def close(self) -> None:
        """Let the next search of this model use the graph."""
        decoder = self.graph.decoder
        size, device = sum(x.nbytes for x in (*decoder.k, *decoder.v)), decoder.stream.device
        if device.type != "cuda" or size <= torch.cuda.get_device_properties(device).total_memory * KEPT:
            _IDLE[self.model] = (self.key, self.graph)


# The graph of each model's last search. A running search takes it out, so that no two searches share one.
_IDLE: WeakKeyDictionary[nn.Module, tuple[Any, Graph]] = WeakKeyDictionary()
