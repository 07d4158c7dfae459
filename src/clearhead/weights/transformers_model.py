"""A text model of transformers behind the interface of our own models, so that every task and view can use it.

    theirs.base_model   ids -> ... -> blocks -> norm -> a vector per token, `encode`
    theirs              the same, and a head: next tokens, masked tokens or classes

Its layers are `blocks`, as in our own models; what attends inside of them is found by watching (look/intercept.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..errors import InputError
from ..layers import mean_of_tokens
from ..models import Model
from ..models.model import random_ids

PROBE = 2  # tokens of the text by which the parts of a model are found


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The sizes of a model of transformers, as far as they are known."""

    architecture: str  # its class
    vocab: int  # number of embeddings
    width: int  # width of the vectors that its layers return
    depth: int  # number of layers
    context: int | None = None  # tokens per row that it has positions for; None: any number
    classes: int | None = None  # number of classes of a classifier
    pool: Literal["mean", "first"] = "mean"  # how the vectors of a text's tokens become one


class Logits(nn.Identity):
    """The head of a model whose `states` are its logits already.

    Args:
        size: Number of logits.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size


class TransformersState:
    """What a language model of transformers keeps between steps: the tokens of each row, and its own cache.

    Prompts of different lengths are padded on the left, as its `generate` does.
    """

    def __init__(self, ids: Int[Tensor, "b t"]) -> None:
        self.ids = ids
        self.mask: Bool[Tensor, "b t"] | None = None  # False for padding; None: there is none
        self.cache: Any = None

    def append(self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> None:
        """Append tokens to every row."""
        if mask is not None or self.mask is not None:
            before = torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask
            after = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
            self.mask = torch.cat([before, after], dim=1)
        self.ids = torch.cat([self.ids, ids], dim=1)

    def expand(self, n: int) -> None:
        """Repeat every row n times."""
        self.ids = self.ids.repeat_interleave(n, dim=0)
        self.mask = None if self.mask is None else self.mask.repeat_interleave(n, dim=0)
        if self.cache is not None:
            self.cache.batch_repeat_interleave(n)

    def reorder(self, index: Int[Tensor, "n"]) -> None:
        """Let row i be what row index[i] was."""
        self.ids = self.ids[index]
        self.mask = None if self.mask is None else self.mask[index]
        if self.cache is not None:
            self.cache.reorder_cache(index)


class TransformersModel(Model):
    """A text model of transformers: it predicts next or masked tokens, classifies, or encodes.

    Args:
        theirs: The model.
        can: What it can do, keys of CAPABILITIES.
        context: Tokens per row that it has positions for; None: any number.
        pool: How the vectors of a text's tokens become one, if it embeds texts.
    """

    config: Config
    note = "opened with transformers, watched by interception"

    def __init__(
        self,
        theirs: Any,
        can: frozenset[str],
        *,
        context: int | None = None,
        pool: Literal["mean", "first"] = "mean",
    ) -> None:
        super().__init__()
        self.can = can
        self.theirs: Any
        ids = torch.tensor([[0, 1][:PROBE]], device=next(theirs.parameters()).device)
        table = theirs.get_input_embeddings()
        # These names come before `theirs`, so that the addresses of `watch` begin with them.
        self.blocks = find_blocks(theirs.base_model)
        self.norm, vectors = final_norm(theirs.base_model, self.blocks, ids)
        self.head = self._find_head(theirs, ids, vectors)
        self._whole = isinstance(self.head, Logits)
        if self._whole and "predict" in can:
            self.norm = None  # head(norm(x)) would be no logits
        self.theirs = theirs
        self._caches = "past_key_values" in inspect.signature(theirs.forward).parameters
        self._places = "position_ids" in inspect.signature(theirs.forward).parameters
        self.config = Config(
            architecture=type(theirs).__name__, vocab=table.num_embeddings, width=vectors.shape[-1],
            depth=len(self.blocks), context=context, pool=pool,
            classes=theirs.config.num_labels if "classify" in can else None,
        )  # fmt: skip

    @torch.no_grad()
    def _find_head(self, theirs: Any, ids: Tensor, vectors: Tensor) -> nn.Module:
        """The module that makes logits of `encode`; if that takes more than one module, the logits are the states."""
        if self.can & {"embed"}:
            return nn.Identity()
        logits, head = theirs(input_ids=ids).logits, theirs.get_output_embeddings()
        if "predict" in self.can and head is not None and torch.equal(head(vectors).float(), logits.float()):
            return head
        return Logits(logits.shape[-1])

    @property
    def name(self) -> str:
        return type(self.theirs).__name__

    def example_inputs(self, rows: int, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"ids": random_ids(self.config.vocab, rows, min(size, self.config.context or size), generator)}

    def encode(self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None) -> Float[Tensor, "b t d"]:
        """A vector per token: the output of the last layer, after the final norm."""
        return _vectors(self.theirs.base_model(input_ids=ids, attention_mask=_inside(ids, lengths)))

    def states(self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None) -> Float[Tensor, "b *t d"]:
        """The input of `head`: a vector per token, or the logits themselves."""
        if not self._whole:
            return self.encode(ids, lengths=lengths)
        logits: Tensor = self.theirs(input_ids=ids, attention_mask=_inside(ids, lengths)).logits
        return logits

    def forward(self, ids: Int[Tensor, "b t"], *, lengths: Int[Tensor, "b"] | None = None) -> Float[Tensor, "b *o"]:
        x = self.states(ids, lengths=lengths)
        if "embed" in self.can:
            return x[:, 0] if self.config.pool == "first" else mean_of_tokens(x, lengths)
        return self.head(x)

    def start(self, inputs: Mapping[str, Tensor], rows: int, limit: int) -> TransformersState:
        """The state of `rows` empty texts, which grows as they do. `inputs` is empty."""
        if self.max_tokens is not None and limit > self.max_tokens:
            raise InputError(f"{limit} tokens, prompt and answer together: this model reads {self.max_tokens} at once")
        return TransformersState(torch.zeros(rows, 0, dtype=torch.long, device=next(self.parameters()).device))

    def read(
        self, ids: Int[Tensor, "b t"], state: TransformersState, counts: Int[Tensor, "b"] | None = None
    ) -> TransformersState:
        """Append prompt tokens without computing logits: the first `counts[i]` of row i, or all of them."""
        mask = None
        if counts is not None:
            place = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - counts[:, None])
            mask, ids = place >= 0, ids.gather(1, place.clamp(min=0))
        self._append(ids, state, mask)
        return state

    def step(
        self, ids: Int[Tensor, "b t"], state: TransformersState
    ) -> tuple[Float[Tensor, "b t v"], TransformersState]:
        """Append tokens to every row, and return the logits after each of them."""
        return self.head(self._append(ids, state)), state

    def _append(self, ids: Tensor, state: TransformersState, mask: Tensor | None = None) -> Tensor:
        """Append tokens to the state, and return the input of `head` for them; without a cache all is read again."""
        state.append(ids, mask)
        given = ids if self._caches else state.ids
        more: dict[str, Any] = {"past_key_values": state.cache, "use_cache": True} if self._caches else {}
        if state.mask is not None:
            more["attention_mask"] = state.mask.long()
            if self._places:
                more["position_ids"] = (state.mask.long().cumsum(1) - 1).clamp(min=0)[:, -given.shape[1] :]
        out = (self.theirs if self._whole else self.theirs.base_model)(input_ids=given, **more)
        state.cache = out.past_key_values if self._caches else None
        x: Tensor = out.logits if self._whole else _vectors(out)
        return x[:, -ids.shape[1] :]


def find_blocks(base: nn.Module) -> nn.ModuleList:
    """The layers of a model: the longest list of modules of one class, the outermost if several are as long."""
    lists = [part for part in base.modules() if isinstance(part, nn.ModuleList) and len({*map(type, part)}) == 1]
    if not lists:
        raise InputError(f"a {type(base).__name__} has no list of layers: expected a model with layers of one class")
    return max(lists, key=len)


@torch.no_grad()
def final_norm(
    base: nn.Module, blocks: nn.ModuleList, ids: Int[Tensor, "1 t"]
) -> tuple[nn.Module | None, Float[Tensor, "1 t d"]]:
    """The module between the output of the last layer and that of the model, and the latter for some ids.

    nn.Identity if there is none, and None if the output is made by more than one module.
    """
    last: list[Tensor] = []
    given: list[nn.Module] = []  # modules that were called with the output of the last layer
    inside = {part for block in blocks for part in block.modules()} | {blocks, base}

    def layer(_: nn.Module, __: Any, out: Any) -> None:
        last[:] = [_first(out)]
        given.clear()

    def other(module: nn.Module, args: Any, kwargs: dict[str, Any], _: Any) -> None:
        if last and any(x is last[0] for x in (*args, *kwargs.values())):
            given.append(module)

    hooks = [blocks[-1].register_forward_hook(layer)]
    hooks += [m.register_forward_hook(other, with_kwargs=True) for m in base.modules() if m not in inside]
    try:
        vectors = _vectors(base(input_ids=ids))
    finally:
        for hook in hooks:
            hook.remove()
    if not last:
        return None, vectors
    for module in (nn.Identity(), *given):
        out = module(last[0])
        if isinstance(out, Tensor) and torch.equal(out, vectors):
            return module, vectors
    return None, vectors


def _vectors(out: Any) -> Tensor:
    """The output of a base model: a vector per token."""
    vectors: Tensor = out.last_hidden_state
    return vectors


def _first(out: Any) -> Any:
    """The first output of a layer, which may return several."""
    return out[0] if isinstance(out, tuple) else out


def _inside(ids: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Which tokens are not padding; None: all."""
    if lengths is None or bool((lengths == ids.shape[1]).all()):
        return None
    return torch.arange(ids.shape[1], device=ids.device) < lengths.to(ids.device)[:, None]
