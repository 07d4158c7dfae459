"""Tables of data that stay on the device, so that a step only sends row numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..data import Data

SHARE = 0.25  # largest share of the free memory of a device that the tables of a dataset may take


class Resident:
    """The tables of datasets on the device of the model, for the datasets whose tables fit there.

    Args:
        datasets: The datasets by name; "" is the main one.
        device: The device of the model.

    Examples:
        >>> data = clearhead.data.make_data("identity", {"width": 3}, seed=0)
        >>> Resident({"": data}, torch.device("cpu")).names  # it has no tables
        frozenset()
    """

    def __init__(self, datasets: Mapping[str, Data], device: torch.device) -> None:
        fitting = {name: data for name, data in datasets.items() if data.tables and _fits(data, device)}
        self.names = frozenset(fitting)
        self.tables = {
            f"{name}.{key}" if name else key: torch.from_numpy(np.ascontiguousarray(table)).to(device)
            for name, data in fitting.items()
            for key, table in data.tables.items()
        }

    def looked_up(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch with the rows of the tables in place of their numbers."""
        return {key: self.tables[key][x] if key in self.tables else x for key, x in batch.items()}


def _fits(data: Data, device: torch.device) -> bool:
    size = sum(table.nbytes for table in data.tables.values())
    return device.type != "cuda" or size <= SHARE * torch.cuda.mem_get_info(device)[0]
