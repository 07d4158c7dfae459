"""A mask is freed when its last user is gone, and moves to a device with all its tensors."""

import gc
import weakref

import torch

from clearhead.layers import Mask


def test_a_predicate_does_not_keep_its_mask_alive():
    """Caches hold predicates for as long as their mask lives: a reference back would keep it forever."""
    mask = Mask(causal=True, window=3, lengths=[2, 5])
    allowed, gone = mask.predicate(5, "cpu"), weakref.ref(mask)
    del mask
    gc.collect()
    assert gone() is None
    zero = torch.tensor(0)
    assert allowed(zero, zero, zero, zero)


def test_a_mask_moves_with_all_its_tensors():
    mask = Mask(
        causal=True, lengths=[2, 5], offset=torch.tensor([0, 1]),
        documents=torch.zeros(2, 5, dtype=torch.long), allow=torch.ones(5, dtype=torch.bool),
    ).to("meta")  # fmt: skip
    assert {t.device.type for t in (mask.lengths, mask.offset, mask.documents, mask.allow)} == {"meta"}
    assert mask.causal
    plain = Mask(causal=True, lengths=3)
    assert plain.to("meta") is plain
