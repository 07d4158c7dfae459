"""CUDA-graph decoding that runs several tokens ahead of the host.

A step, from the embedding of a token to the choice of the next token and its embedding, is captured once as a CUDA
graph and then replayed; it never waits for the host. Tokens are copied to the host several steps at a time. Only the
host checks whether a text has ended: tokens past its end are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..models import DecoderStack, Model
from ..models.decoder_state import DecoderState
from . import gpu_decode
from .gpu_decode import GpuDecoder

STEPS_PER_COPY = 8  # steps that are copied to the host together
# steps that are launched before the host waits for their tokens
MAX_STEPS_AHEAD = 2 * STEPS_PER_COPY
# tokens: the limit of a graph is rounded up to a multiple, so that similar texts share a graph
LIMIT_MULTIPLE = 256
MIN_STEPS = 8  # steps from which capturing a graph pays
MAX_IDLE_SHARE = 1 / 8  # share of a GPU's memory that the KV cache of an idle graph may hold


@runtime_checkable
class TokenChoice(Protocol):
    """How the next token is chosen: the part of decode.Choice that a graph needs."""

    @property
    def sample(self) -> bool: ...

    @property
    def repetition(self) -> float: ...

    def pick(
        self, logits: Tensor, *, uniforms: Tensor | None, seen: Tensor | None, banned: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class Graph:
    """A captured step of a model on static storage, from a token to the choice of the next one."""

    def __init__(self, decoder: GpuDecoder, choice: TokenChoice, banned: Sequence[int]) -> None:
        device, rows, limit = decoder.residual.device, decoder.rows, decoder.limit
        self.decoder, self.choice = decoder, choice
        # the static inputs of the choice, where it needs them
        self.banned: Tensor | None = None
        self.seen: Tensor | None = None
        self.uniforms: Tensor | None = None
        if banned:
            self.banned = torch.tensor(list(banned), dtype=torch.long, device=device)
        if choice.repetition != 1.0:
            # (b, v): marks the tokens that a row already has
            self.seen = torch.zeros(rows, decoder.vocab, dtype=torch.bool, device=device)
        if choice.sample:
            # (b, t): one random number per step, read at the row's count
            self.uniforms = torch.zeros(rows, limit + 1, dtype=torch.float64, device=device)
        self.graph: Any = None  # in Triton's interpreter there is none: steps are called one by one
        self.tokens, self.scores = decoder.tokens, decoder.scores
        self.events: list[tuple[int, Any]] = []  # (steps copied to the host, event of that copy)
        if device.type == "cuda":
            # on the host, in pinned memory, so that copies to it do not wait
            self.tokens = torch.zeros(limit + 1, rows, dtype=torch.long, pin_memory=True)
            self.scores = torch.zeros(limit + 1, rows, pin_memory=True)
            self._capture()

    def begin(
        self,
        state: DecoderState,
        last: Int[Tensor, "b 1"],
        uniforms: Float[Tensor, "b t"] | None,
        seen: Bool[Tensor, "b v"] | None,
    ) -> None:
        """Continue from a state and the last token of each row."""
        caches = state.kv.caches
        keys, values = [c.k for c in caches], [c.v for c in caches]
        self.decoder.begin(keys, values, caches[0].at, last[:, 0], caches[0].furthest)
        if self.uniforms is not None and uniforms is not None:
            self.uniforms[:, : uniforms.shape[1]].copy_(uniforms[:, : self.uniforms.shape[1]])
        if self.seen is not None and seen is not None:
            self.seen.copy_(seen)
        self.events.clear()

    def run(self, first: int, steps: int) -> None:
        """Launch these steps, and start copying their tokens to the host."""
        if self.graph is None:
            for _ in range(steps):
                self.step()
            return
        for _ in range(steps):
            # queued on the device; the host goes on at once
            self.graph.replay()
        new = slice(first, first + steps)
        self.tokens[new].copy_(self.decoder.tokens[new], non_blocking=True)
        self.scores[new].copy_(self.decoder.scores[new], non_blocking=True)
        event = torch.cuda.Event()  # happens when the copies are done
        event.record()
        self.events.append((first + steps, event))

    def wait(self, step: int) -> None:
        """Wait until the tokens of this step are on the host."""
        # copies of earlier steps are done, since they are made in order
        while self.events and self.events[0][0] <= step:
            self.events.pop(0)
        if self.events:
            self.events[0][1].synchronize()

    def step(self) -> None:
        """Append one token to each row."""
        decoder = self.decoder
        logits = decoder()
        if self.banned is None and self.seen is None and self.uniforms is None:
            decoder.append_token()  # the likeliest
            return
        seen = uniforms = None
        if self.seen is not None:
            # the last token counts as seen before the next one is chosen
            seen = self.seen.scatter_(1, decoder.token[:, None], True)
        if self.uniforms is not None:
            uniforms = self.uniforms.gather(1, decoder.count[:, None])[:, 0]
        token, logp = self.choice.pick(logits, uniforms=uniforms, seen=seen, banned=self.banned)
        decoder.append_token(token[:, 0], logp[:, 0])

    def _capture(self) -> None:
        """Run the step twice, so that all kernels are compiled and all memory is allocated; then capture it."""
        # on another stream than the default one, as a capture must be
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(2):
                # every run begins at position 0, so that it does not run out of the cache
                self.decoder.at.zero_()
                self.decoder.count.zero_()
                self.step()
        here.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.step()


class GraphDecoder:
    """A search with one beam whose steps run as a CUDA graph, several tokens ahead of the host.

    Use `of`, which returns None for a model that cannot be captured; then the model's own `step` is used.

    Args:
        graph: The captured step.
        state: The state that the search continues from.
        model: The model; its next search may use the graph again.
        key: What must be equal for that: rows, options and the addresses of the weights.

    Examples:
        >>> model = clearhead.build("gpt", vocab=11, context=16, width=8, depth=1, heads=2).eval()
        >>> state, last = model.start({}, rows=1, limit=8), torch.tensor([[1]])
        >>> GraphDecoder.of(model, state, last, clearhead.decode.Choice(), (), None, torch.zeros) is None  # on a CPU
        True
    """

    def __init__(self, graph: Graph, state: DecoderState, model: nn.Module, key: Any) -> None:
        self.graph, self.state, self.model, self.key = graph, state, model, key
        first = state.kv.caches[0]
        self.steps = first.limit - first.furthest  # that the KV cache has room for
        self.launched = self.returned = 0  # steps
        self.rows = list(range(state.rows))  # the unfinished rows

    @staticmethod
    def of(
        model: nn.Module,
        state: Any,
        last: Int[Tensor, "b 1"],
        choice: TokenChoice,
        banned: Sequence[int],
        uniforms: Float[Tensor, "b t"] | None,
        seen: Callable[[int], Tensor],
    ) -> GraphDecoder | None:
        """The decoder of a model outside training, on a GPU, that continues from a state; None if there is none.

        Args:
            model: The model.
            state: A state that its `start` made.
            last: The last token of each row.
            choice: How a token is chosen.
            banned: Tokens that are never chosen.
            uniforms: The random numbers of sampling, for each row and step from here on.
            seen: Returns, for the size of the vocabulary, which tokens each row already has (b, v).
        """
        stack = model.decoder_stack if isinstance(model, Model) else None
        if stack is None or model.training or not isinstance(state, DecoderState):
            return None
        if not stack.embed.table.is_cuda and not gpu_decode.INTERPRETED:
            return None
        # other dtypes than the kernels': left to the modules
        if torch.is_autocast_enabled(last.device.type):
            return None
        key = (state.rows, choice, tuple(banned), tuple(p.data_ptr() for p in model.parameters()))
        graph = _graph_for(model, stack, state, choice, banned, key)
        if graph is None:
            return None
        decoder = GraphDecoder(graph, state, model, key)
        if decoder.steps < 1 or not decoder.unhooked:
            # nothing was launched: the graph is kept for a later search
            decoder.close()
            return None
        seen_tokens = None if graph.seen is None else seen(graph.decoder.vocab)
        graph.begin(state, last, uniforms, seen_tokens)
        return decoder

    @property
    def unhooked(self) -> bool:
        """True if no hook or tap is set: a captured graph would not call it."""
        return self.graph.decoder.unhooked

    def __call__(self) -> tuple[Int[Tensor, "r 1"], Float[Tensor, "r 1"]]:
        """The next token of each unfinished row and its log-probability, on the host."""
        while self.launched < self.steps and self.launched - self.returned < MAX_STEPS_AHEAD:
            # The first step runs alone, so that its token arrives early.
            steps = STEPS_PER_COPY if self.launched else 1
            steps = min(steps, self.steps - self.launched)
            self.graph.run(self.launched, steps)
            self.launched += steps
        self.graph.wait(self.returned)
        # finished rows go on in the graph; what they write is not read
        token = self.graph.tokens[self.returned, self.rows, None]
        score = self.graph.scores[self.returned, self.rows, None]
        self.returned += 1
        return token, score

    def keep(self, index: Sequence[int]) -> None:
        """Continue with these rows only."""
        self.rows = [self.rows[i] for i in index]

    def settle(self) -> None:
        """Copy the KV cache of the unfinished rows back into the state, up to the last token that was returned."""
        # steps that ran ahead of the host are undone: only what was returned counts
        state, decoder = self.state, self.graph.decoder
        index = torch.tensor(self.rows, device=decoder.at.device)
        if len(self.rows) < state.rows:
            # finished rows leave the state too: its rows become those of `index`
            state.reorder(index)
        filled = state.kv.caches[0].furthest + self.returned
        for cache, k, v in zip(state.kv.caches, decoder.k, decoder.v, strict=True):
            cache.k[:, :, :filled] = k[index, :, :filled]
            cache.v[:, :, :filled] = v[index, :, :filled]
        state.kv.advance(self.returned)
        self.close()

    def close(self) -> None:
        """Keep the graph for the next search of this model, unless its KV cache is large."""
        decoder = self.graph.decoder
        device = decoder.residual.device
        if device.type == "cuda":
            cache_bytes = sum(x.nbytes for x in (*decoder.k, *decoder.v))
            memory = torch.cuda.get_device_properties(device).total_memory
            if cache_bytes > memory * MAX_IDLE_SHARE:
                # dropped with the search: it would hold memory that the next one may need
                return
        _IDLE[self.model] = (self.key, self.graph)


# The graph of each model's last search. A running search takes it out, so that no two searches share one.
_IDLE: WeakKeyDictionary[nn.Module, tuple[Any, Graph]] = WeakKeyDictionary()


def _graph_for(
    model: nn.Module,
    stack: DecoderStack,
    state: DecoderState,
    choice: TokenChoice,
    banned: Sequence[int],
    key: Any,
) -> Graph | None:
    """The idle graph of a model if it fits this search, or a new one; None if the model cannot be captured."""
    first = state.kv.caches[0]
    limit, steps = first.limit, first.limit - first.furthest
    idle = _IDLE.pop(model, None)
    if idle is not None and idle[0] == key and idle[1].decoder.limit >= limit:
        return idle[1]
    if idle is not None and idle[1].graph is not None:
        torch.cuda.synchronize()  # it may still be running
    del idle  # before memory is allocated for another
    if stack.embed.table.is_cuda:
        if steps < MIN_STEPS:
            # a few plain steps take less time than a capture
            return None
        limit = -(-limit // LIMIT_MULTIPLE) * LIMIT_MULTIPLE  # rounded up
    decoder = GpuDecoder.of(stack, state.rows, limit)
    if decoder is None or not decoder.unhooked:
        return None
    return Graph(decoder, choice, banned)
