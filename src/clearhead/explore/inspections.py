"""A Look: what a model did with a text, kept to be asked for any row, tile, head, layer or token of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import decode
from ..decode import Choice, Plan
from ..errors import InputError
from ..look import AttentionMap, Tape, edit, silence, watch
from ..look.call import LazyCall
from ..tasks.translate import Translation
from ..tokens import Tokenizer
from ..weights import Bundle

STATISTICS = {  # what tells heads apart, and in which words
    "entropy": "how widely a token looks, in nats",
    "distance": "how far it looks, in tokens",
    "maximum": "how much goes to the key most looked at",
    "sink": "how much goes to the first key",
}
CELLS = 512  # of a side of what is sent at a time
OVERVIEWS = 64  # of a group that are kept: one a head, and some more
GROUPS = {  # the attentions of a model: where they are, and who looks at whom there
    "cross": ("decoder.blocks.*.cross.weights", "what is written looks at what was read"),
    "reading": ("encoder.blocks.*.attn.weights", "what was read looks at itself"),
    "writing": ("decoder.blocks.*.attn.weights", "what is written looks at what was written before it"),
    "self": ("blocks.*.attn.weights", "each token looks at those before it"),
}


class Left(Exception):  # noqa: N818  (it is no error)
    """Whoever asked has gone: the work stops."""


@dataclass(eq=False)
class Group:
    """The attention of one kind, layer by layer, with the tokens that look and those that are looked at."""

    name: str
    rows: list[str]
    columns: list[str]
    maps: list[AttentionMap]
    words: tuple[list[list[int]], list[list[int]]] | None = None  # the pieces of each word, where words are known
    _told: dict[int, dict[str, list[float]]] = field(default_factory=dict)  # the statistics of each layer
    _overviews: dict[tuple[int | None, int | None, int], np.ndarray] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        return self.maps[0].shape[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "about": GROUPS[self.name][1], "layers": len(self.maps), "heads": self.heads,
            "rows": self.rows, "columns": self.columns, "words": self.words is not None,
        }  # fmt: skip

    def tile(
        self, layer: int | None, head: int | None, rows: tuple[int, int], keys: tuple[int, int], cells: int = CELLS
    ) -> dict[str, Any]:
        """The weights of some rows on some keys, pooled to so many cells a side where there are more.

        A layer or head that is not named is averaged over. Pooling takes the mean over a cell's rows and the sum over
        its keys, so that a row still tells how much goes where.
        """
        maps = self.maps if layer is None else [self.maps[_within("layer", layer, len(self.maps))]]
        if head is not None:
            _within("head", head, self.heads)
        for name, (low, high), most in (("rows", rows, len(self.rows)), ("keys", keys, len(self.columns))):
            if not 0 <= low < high <= most:
                raise InputError(f"{name} {low} to {high}: expected a range within 0 to {most}")
        whole = (rows, keys) == ((0, len(self.rows)), (0, len(self.columns)))
        known = self._overviews.get((layer, head, cells)) if whole else None
        weights = np.mean([_pooled(m, head, rows, keys, cells) for m in maps], axis=0) if known is None else known
        if whole and known is None:
            kept = [*self._overviews.items(), ((layer, head, cells), weights)]
            self._overviews = dict(kept[-OVERVIEWS:])  # the oldest go; other threads may be at it too
        return {
            "layer": layer, "head": head, "rows": list(rows), "keys": list(keys), "weights": _rounded(weights),
            "most": float(weights.max(initial=0.0)),
        }  # fmt: skip

    def by_word(self, layer: int | None, head: int | None) -> dict[str, Any]:
        """The same between whole words: what a word receives is the sum over its pieces, what it gives their mean."""
        if self.words is None:
            raise InputError("this text is known by its tokens only: expected by=pieces")
        if max(len(self.rows), len(self.columns)) > CELLS:
            raise InputError(f"a text of more than {CELLS} tokens is shown by its pieces")
        give, take = self.words
        found = self.tile(layer, head, (0, len(self.rows)), (0, len(self.columns)))
        weights = np.array(found["weights"], np.float64).reshape(len(self.rows), len(self.columns))
        small = np.array([[weights[r][:, c].sum(1).mean() for c in take] for r in give]).reshape(len(give), len(take))
        names = [["".join(pieces[i] for i in each).strip() for each in some] for pieces, some in
                 ((self.rows, give), (self.columns, take))]  # fmt: skip
        return found | {
            "weights": _rounded(small), "most": float(small.max(initial=0.0)), "rows": [0, len(give)],
            "keys": [0, len(take)], "row_names": names[0], "key_names": names[1],
        }  # fmt: skip

    def statistics(self, layer: int) -> dict[str, Any]:
        """What tells the heads of a layer apart: the mean of each statistic over the tokens that look."""
        _within("layer", layer, len(self.maps))
        if layer not in self._told:
            found = self.maps[layer].statistics(*STATISTICS)
            self._told[layer] = {name: x.float().mean((0, 2)).tolist() for name, x in found.items()}
        return {"layer": layer, "layers": len(self.maps), **self._told[layer]}

    def size(self) -> int:
        """Bytes that its maps and overviews hold."""
        own = sum(_bytes(source) for m in self.maps for source in m.sources)
        return own + sum(x.nbytes for x in self._overviews.values())


@dataclass(eq=False)
class Look:
    """A text, what a model made of it, and what its tokens looked at."""

    groups: dict[str, Group]
    bundle: Bundle
    ids: list[int] = field(default_factory=list)  # of a language model's text
    states: list[Tensor] = field(default_factory=list)  # (t, d) after each block, for the lens

    def to_dict(self) -> dict[str, Any]:
        return {"groups": [group.to_dict() for group in self.groups.values()], "lens": bool(self.states)}

    def group(self, name: str) -> Group:
        if name not in self.groups:
            raise InputError(f"no attention {name!r} here: expected one of {', '.join(self.groups)}")
        return self.groups[name]

    @torch.no_grad()
    def lens(self, at: int, top: int = 5) -> dict[str, Any]:
        """What the model would say after a token if it stopped at each layer (nostalgebraist 2020, the logit lens)."""
        if not self.states:
            raise InputError("this model has no logit lens: expected a GPT")
        _within("token", at, len(self.ids))
        model: Any = self.bundle.model
        x = torch.stack([state[at] for state in self.states]).to(self.bundle.device)
        return {"at": at, "layers": self._likeliest(model.head(model.norm(x)), top)}

    @torch.no_grad()
    def candidates(self, first: int, last: int, top: int = 5) -> dict[str, Any]:
        """The likeliest tokens at some places, and the probability of the one that stands there."""
        if not self.states:
            raise InputError("this model has no candidates: expected a GPT")
        if not 1 <= first < last <= len(self.ids):
            raise InputError(f"tokens {first} to {last}: expected a range within 1 to {len(self.ids)}")
        if last - first > CELLS:
            raise InputError(f"{last - first} tokens at once: expected at most {CELLS}")
        model: Any = self.bundle.model
        logits = model.head(model.norm(self.states[-1][first - 1 : last - 1].to(self.bundle.device))).float()
        ids = torch.tensor(self.ids[first:last], device=logits.device)
        share = logits.softmax(-1).gather(1, ids[:, None])[:, 0]
        return {"first": first, "shares": _rounded(share.cpu().numpy()), "candidates": self._likeliest(logits, top)}

    def _likeliest(self, logits: Tensor, top: int) -> list[list[list[Any]]]:
        return likeliest(_tokens(self.bundle), logits, top)

    def size(self) -> int:
        """Bytes that it holds."""
        return sum(group.size() for group in self.groups.values()) + sum(x.nbytes for x in self.states)


def likeliest(tokens: Tokenizer, logits: Tensor, top: int) -> list[list[list[Any]]]:
    """For each row of logits the likeliest pieces and their probabilities."""
    known = logits[..., : len(tokens)].float().softmax(-1)
    high, which = known.topk(min(top, known.shape[-1]), dim=-1)
    return [
        [[piece, round(p, 5)] for piece, p in zip(tokens.pieces(ids), shares, strict=True)]
        for ids, shares in zip(which.tolist(), high.tolist(), strict=True)
    ]


def of_translation(bundle: Bundle, found: Translation) -> Look:
    """What a translator looked at while it wrote an answer; empty for a model without attention."""
    known = dict(bundle.model.named_modules())
    names = {name: at for name, (at, _) in GROUPS.items() if name != "self" and _has(known, at)}
    if not names or not found.target:
        return Look({}, bundle)
    tape = found.tape(*names.values())
    read, written = found.words
    before = ["<start>", *found.target[:-1]]  # what a decoder has read when it writes
    sides = {
        "cross": (found.target, found.source, (written, read)),
        "reading": (found.source, found.source, (read, read)),
        "writing": (found.target, before, None),
    }
    groups = {}
    for name, at in names.items():
        rows, columns, words = sides[name]
        groups[name] = Group(name, rows, columns, list(tape.match(at).values()), words)
    return Look(groups, bundle)


@torch.no_grad()
def of_text(
    bundle: Bundle,
    ids: Sequence[int],
    off: Mapping[int, Sequence[int]] | None = None,  # heads that are switched off, by layer
    done: Callable[[int, int], None] | None = None,  # is told how many of the blocks are done; may raise Left
) -> Look:
    """What a language model does with a text: one pass, in which every attention and every block is watched."""
    tokens, blocks = _tokens(bundle), len(bundle.model.blocks)  # type: ignore[arg-type]
    ids = list(ids)
    passed = 0

    def keep(record: Any) -> Any:
        nonlocal passed
        if isinstance(record, Tensor):
            passed += 1
            if done is not None:
                done(passed, blocks)
            return record[0]
        return record

    row = torch.tensor([ids], device=bundle.device)
    with edit(bundle.model, switched_off(off)), watch(bundle.model, GROUPS["self"][0], "blocks.*", keep=keep) as tape:
        bundle.model.states(row)  # type: ignore[operator]
    pieces = tokens.pieces(np.array(ids, np.int64))
    maps, states = _split(tape)
    groups = {"self": Group("self", pieces, pieces, maps)} if maps else {}
    return Look(groups, bundle, ids, states)


def writing(
    bundle: Bundle, ids: Sequence[int], *, max_new: int, choice: Choice, seed: int = 0,
    off: Mapping[int, Sequence[int]] | None = None, top: int = 5,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """How a text goes on, token by token: each with its id, its share, and the likeliest ones in its place.

    Watching and editing last for one step: between steps others may use the model.
    """
    tokens, ends = _tokens(bundle), [] if bundle.special is None else [int(i) for i in bundle.special.ends]
    steps = decode.stream(
        bundle.model, {}, Plan(start=[list(ids)], end=ends, limit=max_new, choice=choice, seed=[seed])
    )
    while True:
        changed = edit(bundle.model, switched_off(off))
        with torch.no_grad(), changed, watch(bundle.model, "head", keep="last") as tape:
            new = next(steps, None)
            logits = tape.calls("head")[-1][0, -1:] if new is not None else None
        if new is None or logits is None or new[0] in ends:
            return
        share = float(logits[0].float().softmax(-1)[new[0]])
        best = likeliest(tokens, logits, top)[0]
        yield {"id": new[0], "piece": tokens.pieces([new[0]])[0], "share": round(share, 5), "candidates": best}


def switched_off(off: Mapping[int, Sequence[int]] | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """The edits that switch heads off, by layer."""
    return {f"blocks.{layer}.attn.heads": silence(heads) for layer, heads in (off or {}).items() if heads}


def kinds(bundle: Bundle) -> list[str]:
    """The views of the page that a model can be used in: translate, write."""
    views = {"translate": "translate", "generate": "write"}
    return [view for capability, view in views.items() if capability in bundle.can and bundle.tokens is not None]


def _pooled(m: AttentionMap, head: int | None, rows: tuple[int, int], keys: tuple[int, int], cells: int) -> np.ndarray:
    """Cells of a part of a map, computed in bands of rows that fit a cache, each with the keys that it can reach."""
    m = m if head is None else m.only(head)
    if (rows, keys) == ((0, m.shape[2]), (0, m.shape[3])):
        return m.pool(cells)[0].mean(0).float().cpu().numpy()
    n, k = rows[1] - rows[0], keys[1] - keys[0]
    ny, nx = min(cells, n), min(cells, k)
    sums = torch.zeros(ny, nx)
    row_cell, key_cell = torch.arange(n) * ny // n, torch.arange(k) * nx // k
    step = max(1, min(256, (1 << 21) // (k * m.shape[1])))
    for low in range(rows[0], rows[1], step):
        some = low, min(low + step, rows[1])
        first, last = m.reach(some)
        near = max(first, keys[0]), min(last, keys[1])
        if near[0] < near[1]:
            x = m.tile(some, near)[0].mean(0).float().cpu()
            x = torch.zeros(len(x), nx).index_add_(1, key_cell[near[0] - keys[0] : near[1] - keys[0]], x)
            sums.index_add_(0, row_cell[some[0] - rows[0] : some[1] - rows[0]], x)
    return (sums / torch.bincount(row_cell, minlength=ny)[:, None]).numpy()


def _split(tape: Tape) -> tuple[list[AttentionMap], list[Tensor]]:
    maps = [tape[name] for name in tape.names if name.endswith(".weights")]
    return maps, [tape[name] for name in tape.names if not name.endswith(".weights")]


def _has(modules: Mapping[str, Any], pattern: str) -> bool:
    return pattern.replace("*", "0").removesuffix(".weights") in modules


def _tokens(bundle: Bundle) -> Tokenizer:
    bundle.require("generate", "a GPT with its tokens")
    return bundle.tokenizer()


def _within(name: str, number: int, most: int) -> int:
    if not 0 <= number < most:
        raise InputError(f"{name} {number}: there are {most}, counted from 0")
    return number


def _rounded(x: np.ndarray) -> Any:
    return x.astype(np.float64).round(5).tolist()


def _bytes(source: Any) -> int:
    return source.q.nbytes + source.k.nbytes if isinstance(source, LazyCall) else source.weights.nbytes
