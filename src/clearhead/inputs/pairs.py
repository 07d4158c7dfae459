"""Pairs of texts for translators: the source, and what the decoder reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor

from ..weights import Bundle
from .batch import Batch, ModelInput
from .batching import by_length, cut_rows, padded
from .texts import check_text, id_row

PairIds = tuple[np.ndarray, np.ndarray]  # of a source, and of what the decoder reads


def decoder_ids(bundle: Bundle, written: Sequence[int] | np.ndarray) -> PairIds:
    """What a decoder reads to write these ids, and what it writes after each token that it reads.

    Both have as many ids. It reads its prompt and all but the last id; a language that is forced after the start token
    is read and written.
    """
    # [BOS] or [BOS, language]: everything after the first id is also predicted
    start, *forced = bundle.decoder_prompt()
    writes = np.array([*forced, *written], np.int64)
    # teacher forcing: the input is the target shifted right by one position
    reads = np.append(np.int64(start), writes[:-1])
    return reads, writes


def read_pair(bundle: Bundle, given: Any, target: str | None) -> ModelInput:
    """A source, and what a translator has written of its target so far, as one input.

    Args:
        bundle: A translator.
        given: The source, or (source, target).
        target: The target; None: the decoder reads its prompt alone.
    """
    # a pair overrides the keyword
    source, target = (given, target) if isinstance(given, str) else given
    check_text(bundle, source)
    pair = bundle.pair()
    ids = pair.read(source)
    reads, writes = _target_ids(bundle, target)
    return ModelInput(
        model=bundle.model,
        bundle=bundle,
        args=(id_row(bundle, reads, "target"),),
        named={"source": id_row(bundle, ids)},
        pieces=pair.source.pieces(ids),
        decoder_input=pair.target.pieces(reads),
        target=pair.target.pieces(writes),
        target_ids=None if target is None else id_row(bundle, writes, "target")[0],
    )


def _target_ids(bundle: Bundle, target: str | None) -> PairIds:
    if target is None:
        # Without a target the decoder reads its prompt alone: the encoder never sees the target.
        prompt = np.array(bundle.decoder_prompt(), np.int64)
        return prompt, prompt[1:]
    return decoder_ids(bundle, bundle.pair().written(target))


def source_batch(bundle: Bundle, rows: Sequence[np.ndarray]) -> dict[str, Int[Tensor, "..."]]:
    """Padded sources and their lengths: the arguments `source` and `lengths` of a translator."""
    # the encoder sees both directions, so it needs lengths to mask the padding
    source, lengths = padded(rows, bundle.pair().source.pad, bundle.device)
    return {"source": source, "lengths": lengths}


def pair_items(bundle: Bundle, data: Any) -> tuple[list[PairIds], bool]:
    """The ids of sources, and of what the decoder reads for each; and whether a single source was given."""
    single = isinstance(data, str)
    sources, targets = [], []
    for given in [data] if single else data:
        # a source alone, or (source, target)
        source, target = (given, None) if isinstance(given, str) else given
        sources.append(bundle.pair().read(source))
        targets.append(_target_ids(bundle, target)[0])
    most = bundle.max_tokens
    return list(zip(cut_rows(sources, most), cut_rows(targets, most), strict=True)), single


def pair_batches(bundle: Bundle, items: Sequence[PairIds]) -> Iterator[Batch]:
    """Yield pairs of ids as one batch."""
    source = source_batch(bundle, [source for source, _ in items])
    target_pad = bundle.pair().target.pad
    # the decoder is causal: padding at the end changes no earlier state
    ids, target_lengths = padded([ids for _, ids in items], target_pad, bundle.device)
    yield Batch(
        named={"ids": ids, **source}, lengths=source["lengths"], target_lengths=target_lengths
    )


def grouped_pairs(bundle: Bundle, items: Sequence[PairIds]) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of pairs whose sources have similar lengths, with their numbers."""
    for numbers in by_length([len(source) for source, _ in items], bundle.model):
        # longest source first, so that one padding serves similar lengths
        for batch in pair_batches(bundle, [items[i] for i in numbers]):
            # pair_batches yields one batch, in the order of `numbers`
            yield numbers, batch
