"""generate, stream and chat: a text goes on, whole or piece by piece; and a conversation does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

import numpy as np

from .. import decode
from ..decode import Choice, Hypothesis, search
from ..errors import InputError
from ..tokens import Pair, Pieces, Subwords, Tokens
from ..weights import Bundle

BATCH_TOKENS = 8192  # tokens of prompts and answers that are written at a time
HALF = "\ufffd"  # how a character looks of which not all bytes are there
Message = Mapping[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How a text goes on."""

    text: str  # what was written; without the stop string, if it came to one
    prompt: str  # what it goes on from
    logprob: float  # sum of the log-probabilities of what was written, in nats, as the model sees them
    pieces: list[str]  # the tokens that were written
    ended: str  # why: "end" a token that ends texts, "stop" a stop string, "limit" max_new
    others: list[Generation] = field(default_factory=list)  # the other samples, where there are some

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "others"}
        return found | {"others": [other.to_dict() for other in self.others]}


@dataclass(frozen=True, kw_only=True, slots=True)
class Writing:
    """The choices of writing, as the command line takes them.

    Tokens are drawn where anything is said about drawing: a temperature, a top_k, top_p, min_p, a seed, or several
    samples; otherwise the likeliest is taken.
    """

    max_new: int = 100  # tokens to write at most
    temperature: float | None = None  # below 1 draws likelier tokens, above 1 stranger ones; 0 takes the likeliest
    top_k: int | None = None  # tokens to draw from
    top_p: float | None = None  # probability that they have together
    min_p: float | None = None  # probability that each has at least, as a share of the likeliest's
    repetition: float = 1.0  # above 1, what was there becomes less likely
    stop: str | tuple[str, ...] = ()  # texts that end an answer, and are no part of it
    samples: int = 1  # answers to draw for each prompt
    seed: int | tuple[int, ...] | None = (
        None  # of drawing: one, or one a prompt, whose draws then depend on nothing else
    )
    slide: bool = False  # beyond the model's context, forget the older half of what was read
    beams: int = 1  # answers that are followed at a time; the best is given

    def __post_init__(self) -> None:
        if self.max_new < 1:
            raise InputError(f"max_new={self.max_new}: expected 1 or more")
        if self.samples < 1:
            raise InputError(f"samples={self.samples}: expected 1 or more")
        if "" in self.stops:
            raise InputError("stop has an empty text: expected texts that end an answer")
        if self.samples > 1 and self.temperature == 0.0:
            raise InputError(f"samples={self.samples} with temperature=0: all would be the same")
        if self.beams > 1 and (self.choice.sample or self.stops):
            raise InputError(f"beams={self.beams}: a search draws nothing, and knows no stop strings")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def choice(self) -> Choice:
        """How the next token is chosen."""
        drawn = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        said = any(value is not None for value in (*drawn.values(), self.seed)) or self.samples > 1
        if self.temperature == 0.0 or not said:
            return Choice(repetition=self.repetition)
        return Choice(sample=True, repetition=self.repetition, **(drawn | {"temperature": self.temperature or 1.0}))


def generate(bundle: Bundle, text: str | Sequence[str], **options: Any) -> Generation | list[Generation]:
    """Go on with a text, or with many at once: generate(gpt2, "Attention is", max_new=40, top_p=0.9, seed=7).text

    The options are those of Writing.
    """
    writing, tokens = _writing(options), _tokens(bundle)
    texts = [text] if isinstance(text, str) else list(text)
    prompts = [_prompt(bundle, tokens, one) for one in texts]
    seeds = _seeds(writing, len(texts))
    found: list[Generation | None] = [None] * len(texts)
    for rows in _batches([(len(prompt) + writing.max_new) * writing.samples for prompt in prompts]):
        batch = [prompts[i] for i in rows]
        answers = search(
            bundle.model, {}, start=batch, end=_ends(bundle), limit=writing.max_new, beams=writing.beams,
            best=writing.samples, choice=writing.choice, slide=writing.slide, seed=[seeds[i] for i in rows],
            ended=_watcher(tokens, writing.stops),
        )  # fmt: skip
        for i, hypotheses in zip(rows, answers, strict=True):
            first, *others = [_generation(tokens, texts[i], prompts[i], h, writing) for h in hypotheses]
            first.others.extend(others)
            found[i] = first
    results = [one for one in found if one is not None]
    return results[0] if isinstance(text, str) else results


def stream(bundle: Bundle, text: str, **options: Any) -> Iterator[str]:
    """The same of one text, piece by piece, as it is written: for piece in stream(gpt2, "Once upon"): print(piece)"""
    tokens = _tokens(bundle)
    yield from _pieces(bundle, tokens, _prompt(bundle, tokens, text), _writing(options))


def chat(bundle: Bundle, messages: Sequence[Message], **options: Any) -> Iterator[str]:
    """What a model that is talked to answers, piece by piece: chat(ready, [{"role": "user", "content": "Hello!"}])"""
    yield from _pieces(bundle, _tokens(bundle), conversation(bundle, messages), _writing(options))


def conversation(bundle: Bundle, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation up to where the model answers, as the checkpoint's own template writes it."""
    tokens = _tokens(bundle)
    if bundle.chat is None or not isinstance(tokens, Subwords | Pieces):
        raise InputError("this model has no chat template: it goes on with texts, and is not talked to")
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(problem: str) -> None:
        raise TemplateError(problem)

    room = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    room.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    special = {"bos_token": tokens.start, "eos_token": tokens.end, "pad_token": tokens.pad}
    names = {name: "" if i is None else tokens.pieces([i])[0] for name, i in special.items()}
    try:
        text = room.from_string(bundle.chat).render(messages=list(messages), add_generation_prompt=True, **names)
    except TemplateError as cause:
        raise InputError(f"the chat template takes no such conversation: {cause}") from cause
    return [int(i) for i in tokens.marked(text)]


def _pieces(bundle: Bundle, tokens: Tokens, prompt: list[int], writing: Writing) -> Iterator[str]:
    """Text as soon as it is sure: whole characters, and nothing that may be the beginning of a stop string."""
    if writing.samples > 1 or writing.beams > 1:
        raise InputError("one answer can be streamed: expected samples=1 and beams=1")
    ends, ids, shown = _ends(bundle), [int(i) for i in prompt], ""
    before, first = tokens.decode(np.array(ids, np.int64)), len(ids)
    steps = decode.stream(
        bundle.model, {}, start=[prompt], end=ends, limit=writing.max_new, choice=writing.choice,
        slide=writing.slide, seed=_seeds(writing, 1), ended=_watcher(tokens, writing.stops),
    )  # fmt: skip
    for new in steps:
        if new[0] in ends:
            break
        ids.append(new[0])
        text = _after(tokens, ids, first, before)
        cut, stopped = _cut(text, writing.stops)
        sure = cut if stopped else text[: len(text) - _pending(text, writing.stops)]
        if len(sure) > len(shown) and sure.startswith(shown):
            yield sure[len(shown) :]
            shown = sure
        if stopped:
            return
    rest = _after(tokens, ids, first, before)
    if rest[len(shown) :]:
        yield rest[len(shown) :]


def _generation(tokens: Tokens, text: str, prompt: list[int], h: Hypothesis, writing: Writing) -> Generation:
    whole = _after(tokens, [*prompt, *h.ids], len(prompt), tokens.decode(np.array(prompt, np.int64)))
    cut, stopped = _cut(whole, writing.stops)
    return Generation(
        text=cut, prompt=text, logprob=h.logprob, pieces=tokens.pieces(np.array(h.ids, np.int64)),
        ended="stop" if stopped else "end" if h.finished else "limit",
    )  # fmt: skip


def _after(tokens: Tokens, ids: list[int], first: int, before: str) -> str:
    """The text of ids from `first` on: as it stands after the text before it, where a space may matter."""
    whole = tokens.decode(np.array(ids, np.int64))
    if before and not before.endswith(HALF) and whole.startswith(before):
        return whole[len(before) :]
    return tokens.decode(np.array(ids[first:], np.int64))


def _cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """A text up to its first stop string, and whether there is one."""
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _pending(text: str, stops: tuple[str, ...]) -> int:
    """How much of a text's end is not sure yet: half a character, or what a stop string may begin with."""
    half = len(text) - len(text.rstrip(HALF))
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max([half, *begun])


class _Watcher:
    """Whether an answer has come to a stop string: it is in the last tokens, of which a character has at most 4."""

    def __init__(self, tokens: Tokens, stops: tuple[str, ...]) -> None:
        self.tokens, self.stops = tokens, stops
        self.tail = 4 * max(map(len, stops)) + 4

    def __call__(self, row: int, ids: Sequence[int]) -> bool:
        tail = self.tokens.decode(np.array(ids[-self.tail :], np.int64))
        return any(stop in tail for stop in self.stops)


def _watcher(tokens: Tokens, stops: tuple[str, ...]) -> _Watcher | None:
    return _Watcher(tokens, stops) if stops else None


def _writing(options: Mapping[str, Any]) -> Writing:
    from ..config import read

    return read(Writing, options)


def _tokens(bundle: Bundle) -> Tokens:
    name = type(bundle.model).__name__
    if isinstance(bundle.tokens, Pair) or not hasattr(bundle.model, "read"):
        raise InputError(f"this {name} does not go on with texts: expected a GPT")
    if bundle.tokens is None:
        raise InputError(f"this {name} was trained on numbers, not on texts: expected one with tokens")
    return bundle.tokens


def _prompt(bundle: Bundle, tokens: Tokens, text: str) -> list[int]:
    """The ids that a text is gone on from; an empty one begins where texts do."""
    ids = [int(i) for i in (tokens.wrapped(text) if isinstance(tokens, Subwords | Pieces) else tokens.encode(text))]
    if ids:
        return ids
    special = bundle.special
    begin = [] if special is None else [i for i in (special.start, *special.ends) if i is not None]
    if not begin:
        raise InputError("the prompt is empty, and the model has no token that begins a text: expected some text")
    return [int(begin[0])]


def _ends(bundle: Bundle) -> list[int]:
    return [] if bundle.special is None else [int(i) for i in bundle.special.ends]


def _seeds(writing: Writing, rows: int) -> list[int]:
    """A seed for each prompt."""
    if isinstance(writing.seed, tuple):
        if len(writing.seed) != rows:
            raise InputError(f"{len(writing.seed)} seeds for {rows} texts: expected one for all, or one a text")
        return list(writing.seed)
    return [(writing.seed or 0) + row for row in range(rows)]


def _batches(sizes: Sequence[int]) -> list[list[int]]:
    """Prompts of like length together, the longest first, so that a full memory shows at once."""
    batches: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if not batches or (len(batches[-1]) + 1) * sizes[batches[-1][0]] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(i)
    return batches
