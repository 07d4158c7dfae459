"""A cache of what is computed from a mask, such as its dense form."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from .mask import Mask

Value = TypeVar("Value")


class MaskCache(Generic[Value]):
    """Values computed from masks, kept as long as their mask lives and its tensors are not written to.

    One mask serves all layers of a forward pass, and often all steps of a search.
    """

    def __init__(self) -> None:
        self._entries: WeakKeyDictionary[Mask, tuple[tuple[int, ...], dict[Hashable, Value]]] = WeakKeyDictionary()

    def of(self, mask: Mask) -> dict[Hashable, Value]:
        """The values of a mask by any key, to be read and added to.

        A write to one of the mask's tensors empties them, and so does entering or leaving inference mode, because
        inference tensors cannot be trained with. They are not kept if a write could not be noticed.
        """
        writes = mask.version
        if writes is None:
            return {}
        version = (torch.is_inference_mode_enabled(), *writes)
        entry = self._entries.get(mask)
        if entry is None or entry[0] != version:
            entry = self._entries[mask] = (version, {})
        return entry[1]
