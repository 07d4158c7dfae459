"""Inspection: what a model computed for one text, kept so that any map, head, layer or token can be queried later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.text.labelled import mask_of
from ...decode import Choice
from ...errors import InputError
from ...inputs.pairs import decoder_ids
from ...look import AttentionMap, edit, silence, watch
from ...look.capture.addresses import Tree, matching
from ...look.causes.head_effects import (
    Ablation,
    next_token_ablation,
    token_ablation,
    vector_ablation,
)
from ...look.causes.logit_lens import has_lens, lens_logits
from ...look.structure import KINDS, attention_layers
from ...tasks import Translation
from ...tasks.translate import Pass, translator_tokens
from ...tokens import Tokenizer
from ...weights import Bundle
from .. import answers
from ..candidates import TOP, candidates, entropies, likeliest, significant
from .attention_groups import ABOUT, CELLS, Axis, Group, in_range, rounded, spaces_before, text_axis

# longest text whose effects of heads are measured: it takes a forward pass per head
EFFECT_TOKENS = 512
BOTH_WAYS = "each token attends to every token"  # the self-attention of an encoder
Off = Mapping[int, Sequence[int]]  # heads to silence, by layer


@dataclass(eq=False)
class Inspection:
    """The attention maps of a model for one text, and of a single text also the output of each block."""

    groups: dict[str, Group]  # by kind of attention; empty for a model without attention
    bundle: Bundle
    ids: list[int] = field(default_factory=list)  # the tokens of a single text
    states: list[Tensor] = field(default_factory=list)  # (t, d) residual stream after each block
    forced: Pass | None = None  # the source and target of a translation
    lock: anyio.Lock | None = None  # held while its model is used
    reason: str | None = None  # why there are no groups, of a model whose attention was not seen
    axis: Axis | None = None  # the names of a single text's tokens

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        groups = [group.to_dict() for group in self.groups.values()]
        text = None
        if self.axis is not None:
            spaces = spaces_before(self._tokens, self.ids)
            text = {"names": self.axis.names, "special": self.axis.special, "spaces": spaces}
        return {"groups": groups, "text": text, "lens": self.has_lens, "reason": self.reason}

    @property
    def has_lens(self) -> bool:
        """Whether it has a logit lens and candidates: only a language model whose final norm is known has them."""
        return bool(self.states) and has_lens(self.bundle)

    def group(self, name: str) -> Group:
        """The attention of one kind; raises for a kind that the model does not have."""
        if name not in self.groups:
            known = (
                ", ".join(self.groups)
                or f"none, because {self.reason or 'this model has no attention'}"
            )
            raise InputError(f"no attention {name!r} here: expected one of {known}")
        return self.groups[name]

    @torch.no_grad()
    def lens(self, at: int, top: int = TOP) -> answers.LensShape:
        """The likeliest next tokens after token `at` by each layer's output (nostalgebraist 2020, the logit lens)."""
        if not self.has_lens:
            raise InputError("this model has no logit lens: expected a GPT")
        in_range("token", at, len(self.ids))
        # (layers, d): the residual stream at this token after each block, read by the model's own
        # norm and head.
        logits = self._logits(torch.stack([state[at] for state in self.states]))
        layers = likeliest(language_model_tokens(self.bundle), logits, top)
        return {"at": at, "layers": layers, "entropy": entropies(logits)}

    @torch.no_grad()
    def candidates(
        self, first: int, last: int, choice: Choice, top: int = TOP
    ) -> answers.CandidatesShape:
        """The probability of each token from `first` to last - 1, and the likeliest tokens in its place."""
        if not self.has_lens:
            raise InputError("this model has no candidates: expected a GPT")
        if not 1 <= first < last <= len(self.ids):
            raise InputError(
                f"tokens {first} to {last}: expected a range within 1 to {len(self.ids)}"
            )
        if last - first > CELLS:
            raise InputError(f"{last - first:,} tokens at once: expected at most {CELLS}")
        # The distribution of token i is read after token i - 1, hence the shift by one.
        logits = self._logits(self.states[-1][first - 1 : last - 1])
        ids = torch.tensor(self.ids[first:last], device=logits.device)
        # (r, v) -> r: the log-probability of the token that was written.
        logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0].tolist()
        shares = [significant(p) for p in torch.tensor(logprobs).exp().tolist()]
        return {
            "first": first,
            "shares": shares,
            "logprobs": [significant(p) for p in logprobs],
            "candidates": candidates(language_model_tokens(self.bundle), logits, choice, top),
        }

    @torch.no_grad()
    def similar(self, at: int) -> answers.SimilarShape:
        """The cosine similarity of token `at` with every token, between their vectors after the last block."""
        if not self.states:
            raise InputError(
                "this inspection has no vectors of tokens: expected that of a single text"
            )
        in_range("token", at, len(self.ids))
        x = self.states[-1].to(self.bundle.device)
        if self._norm is not None:
            # The final norm is what the head would read; without it a few large channels decide the cosine.
            x = self._norm(x)
        x = F.normalize(x.float(), dim=-1)
        return {"at": at, "similarity": rounded((x @ x[at]).cpu().numpy())}

    def effects(self, name: str) -> Iterator[dict[str, Any] | None]:
        """The effect of every head of a kind of attention, layer by layer; None after a part of a layer.

        An effect is the mean change per token when the head is silenced and all others are on: of its log-probability
        in nats, or of an encoder's output vectors x, |x' - x| / |x|. Raises at once for a text that is too long.
        """
        group, ablation = self.group(name), self._ablation()
        tokens = max(len(group.rows), len(group.columns))
        if tokens > EFFECT_TOKENS:
            raise InputError(
                f"the text has {tokens:,} tokens, and measuring every head takes one pass over it per head: expected "
                f"at most {EFFECT_TOKENS} tokens"
            )
        return self._effects(group, ablation)

    def _effects(self, group: Group, ablation: Ablation) -> Iterator[dict[str, Any] | None]:
        measure = "vector" if ablation.vectors else "logprob"
        for layer in range(len(group.maps)):
            # Measured once per group: a second request gets the kept numbers at once.
            if layer not in group.effects:
                parts = []
                # Effects come in groups of heads, (heads, tokens), and the pause after each lets
                # other requests run.
                for part in ablation.effect_parts(group.heads_address(layer), group.heads):
                    parts.append(part.mean(-1).cpu())
                    yield None
                group.effects[layer] = [significant(x) for x in torch.cat(parts).tolist()]
            yield {
                "layer": layer,
                "layers": len(group.maps),
                "effect": group.effects[layer],
                "measure": measure,
            }

    def without(self, off: Off) -> answers.WithoutShape:
        """The log-probability of each token with all heads on (before), and with the heads of `off` silenced (after).

        Whether heads were silenced when the text was written or inspected makes no difference.
        """
        if not self.has_lens:
            raise InputError(
                "this is no text of a language model: expected the inspection of a GPT's text"
            )
        ablation = self._ablation()
        before, after = ablation.logprobs(), ablation.logprobs(silenced(self.bundle.model, off))
        assert before is not None
        assert after is not None
        # The first token has no probability, because nothing comes before it.
        return {
            "tokens": text_axis(self._tokens, self.ids).names,
            "before": [None, *map(significant, before.tolist())],
            "after": [None, *map(significant, after.tolist())],
        }

    def _ablation(self) -> Ablation:
        model, device = self.bundle.model, self.bundle.device
        if self.forced is not None:
            # Teacher forcing: the decoder reads the given target, shifted, and each of its tokens is scored.
            reads, writes = decoder_ids(self.bundle, self.forced.target)
            # ids and targets: one per target token; source: one per source token.
            ids, targets, source = (
                torch.from_numpy(x).to(device) for x in (reads, writes, self.forced.source)
            )
            inputs = {"ids": ids[None], "source": source[None]}
            return token_ablation(model, inputs, targets, [])
        ids = torch.tensor(self.ids, device=device)
        # A language model is its own measure: the log-probability of its next tokens.
        if "predict" in self.bundle.can:
            return next_token_ablation(model, ids, [""] * len(ids))
        # An encoder predicts nothing here, so the change of its output vectors is measured.
        return vector_ablation(model, ids[None], [])

    def _logits(self, x: Tensor) -> Tensor:
        """The logits of outputs of blocks, (r, d) -> (r, v)."""
        return lens_logits(self.bundle.model, x.to(self.bundle.device)).float()

    @property
    def _norm(self) -> Any:
        """The final norm; None if a foreign model has more than a norm after its last layer."""
        model: Any = self.bundle.model
        return model.norm

    @property
    def _tokens(self) -> Tokenizer:
        return self.bundle.tokenizer()

    def size(self) -> int:
        """Bytes held by the maps and the states."""
        return sum(group.size() for group in self.groups.values()) + sum(
            x.nbytes for x in self.states
        )


def inspect_translation(bundle: Bundle, translation: Translation) -> Inspection:
    """Inspect the attention of a translator for one of its translations; no groups for a model without attention."""
    known = Tree(bundle.model).known
    # The decoder's self-attention is shown under its own name, not as "self".
    names = {name: KINDS[name] for name in ABOUT if name != "self" and matching(KINDS[name], known)}
    if not names or not translation.target:
        return Inspection({}, bundle)
    tape = translation.tape(*names.values())
    pair, forced = translator_tokens(bundle), translation.forced
    assert forced is not None
    source_words, target_words = translation.words
    source = text_axis(pair.source, forced.source.tolist(), source_words)
    reads, writes = decoder_ids(bundle, forced.target)
    # A forced first token, such as a language code, is written too, and is a word of its own.
    prompt = len(writes) - len(forced.target)
    # Words are indices into the target: a prompt in front moves them all.
    target_words = [[i + prompt for i in word] for word in target_words]
    target_words = [*([i] for i in range(prompt)), *target_words]
    target = text_axis(pair.target, writes.tolist(), target_words)
    # The decoder reads the start token first and never its last token: word indices move by one.
    shifted = [[i + 1 for i in word if i + 1 < len(writes)] for word in target_words]
    words_read = [[0], *(word for word in shifted if word)]
    read = text_axis(pair.target, reads.tolist(), words_read)
    # Queries by keys: rows are what attends, columns what is attended to.
    sides = {"cross": (target, source), "encoder": (source, source), "decoder": (target, read)}
    groups = {name: Group(name, *sides[name], tape.match(at)) for name, at in names.items()}
    return Inspection(groups, bundle, forced=forced)


def inspect_text(
    bundle: Bundle,
    ids: Sequence[int],
    off: Off | None = None,
    # called with (blocks done, all blocks); may raise to stop
    done: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Run a language model or an encoder once over a text and keep every attention map and every block's output."""
    return inspect_output(bundle, ids, off, done)[0]


@torch.no_grad()
def inspect_output(
    bundle: Bundle,
    ids: Sequence[int],
    off: Off | None = None,
    done: Callable[[int, int], None] | None = None,
) -> tuple[Inspection, Tensor]:
    """Run a model over a text once; return its inspection and the input of the head, a vector per token or per text."""
    model: Any = bundle.model
    tokens, blocks = bundle.tokenizer(), len(model.blocks)
    ids = list(ids)
    passed = 0

    def keep(record: Any) -> Any:
        nonlocal passed
        # Attention maps are kept as they are; every other record is the output of a block.
        if isinstance(record, AttentionMap):
            return record
        passed += 1
        if done is not None:
            done(min(passed, blocks), blocks)
        if isinstance(record, tuple):  # a foreign layer may return several values
            record = record[0]
        # (1, t, d) -> (t, d): there is one text in the batch.
        return record[0]

    row = torch.tensor([ids], device=bundle.device)
    with (
        # Silencing is an edit of the same pass, so that the maps of later layers show its consequences.
        edit(model, silenced(model, off)),
        watch(model, KINDS["self"], "blocks.*", keep=keep) as tape,
    ):
        out: Tensor = model.states(row)[0]
    axis = text_axis(tokens, ids, mask=mask_of(tokens)[0] if "fill" in bundle.can else None)
    layers = tape.match(KINDS["self"])
    # A layer may run more than once, and each call has its own output.
    states = [x for name in tape.names if name not in layers for x in tape.calls(name)]
    # The kind "self" is described for causal models; an encoder attends both ways.
    about = None if "predict" in bundle.can else BOTH_WAYS
    if layers:
        groups = {"self": Group("self", axis, axis, layers, about)}
    else:
        groups = {}
    reason = None if layers else tape.unseen or None
    return Inspection(groups, bundle, ids, states, reason=reason, axis=axis), out


def silenced(model: nn.Module, off: Off | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """The edits that silence heads, given by layer."""
    chosen = {layer: heads for layer, heads in (off or {}).items() if heads}
    if not chosen:
        return {}
    layers = list(attention_layers(model))
    edits = {}
    for layer, heads in chosen.items():
        # Layers are counted among those with attention, as the maps are.
        address = layers[in_range("layer", layer, len(layers))]
        edits[f"{address}.heads"] = silence(heads)
    return edits


def language_model_tokens(bundle: Bundle) -> Tokenizer:
    """The tokenizer of a language model; raises for other models."""
    bundle.require("generate", "a GPT with its tokens")
    return bundle.tokenizer()
