"""Rows of Parquet files, by the optional package pyarrow."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError
from .files import DataError
from .streams import DECOMPRESSORS, open_bytes

BATCH = 1024  # rows that are read at once


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Open a Parquet file; raises a sentence if pyarrow is not installed."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as cause:
        raise MissingPackageError(
            f'{path}: Parquet files need the package pyarrow: pip install "clearhead[parquet]"'
        ) from cause
    with open_bytes(path) as packed, tempfile.TemporaryFile() as unpacked:
        if path.suffix.lower() in DECOMPRESSORS:  # its end is read first
            shutil.copyfileobj(packed, unpacked)
        try:
            file = ParquetFile(unpacked if unpacked.tell() else packed)
        except (ArrowException, OSError) as error:
            raise DataError(f"{path} is not a Parquet file: {error}") from error
        try:
            yield file
        except (ArrowException, OSError) as error:  # a damaged page is noticed when it is read
            raise DataError(f"{path} is a damaged Parquet file: {error}") from error


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet file, each with its number from 1."""
    with parquet_file(path) as file:
        number = 0
        for batch in file.iter_batches(batch_size=BATCH):
            for values in batch.to_pylist():
                number += 1
                yield number, values
