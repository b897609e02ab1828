"""External sort of rows by key group.

Rows beyond a limit go to local files, each sorted by key group. Then the sorter reads a few key groups at a time from
all files. It holds at most twice the limit in memory, or the rows of the largest key group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.core.errors import StateLimitError
from strandline.core.ids import unique_name
from strandline.snapshot.rows.parquet import key_groups

_LIMIT_BYTES = 64 << 20
_MOST_BYTES = (2 << 30) - 1
"""The limit of texts and bytes in a column, whose offsets have 32 bits."""


@dataclass(frozen=True)
class _Run:
    """Rows in the order of their key groups."""

    rows: pa.RecordBatch
    """In a memory-mapped file, if they exceeded the limit."""
    ends: npt.NDArray[np.int64]
    """For each key group, the number of rows of all groups before it; the last item is the number of all rows."""


class RowSorter:
    """Sorts rows of a contiguous range of key groups. The caller deletes its files in a local directory.

    The range of broadcast rows is BROADCAST_GROUPS.
    """

    def __init__(self, groups: range, directory: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._groups = groups
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = self._bytes = self._rows = 0
        self._runs: list[_Run] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, in any order. Raises ValueError for a key group outside of the range."""
        if not batch.num_rows:
            return
        groups = key_groups(batch)
        if groups.min() < self._groups.start or groups.max() >= self._groups.stop:
            raise ValueError(f"key groups {groups.min()} to {groups.max()}, expected some of {self._groups}")
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._waiting_bytes > self._limit_bytes:
            self._spill()

    def in_order(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows: whole key groups, in order; within a key group, in the order of `add`."""
        if self._waiting:
            rows, ends = self._sorted()
            self._runs.append(_Run(rows, ends))
        for first, last in self._cuts():
            parts = [run.rows.slice(run.ends[first], run.ends[last] - run.ends[first]) for run in self._runs]
            batch = self._concat([part for part in parts if part.num_rows], first)
            del parts
            yield batch

    def _concat(self, parts: list[pa.RecordBatch], first: int) -> pa.RecordBatch:
        try:
            return pa.concat_batches(parts)
        except pa.ArrowInvalid:
            # A keeper that restores a key group, and this sort, hold it as one batch.
            size_bytes = sum(part.nbytes for part in parts)
            raise StateLimitError(
                f"the rows of key group {self._groups.start + first} hold {size_bytes:,} bytes, and a column of a key "
                f"group {_MOST_BYTES:,} at most",
                hint="give the operator a larger max_parallelism: its key groups are smaller then; or let a key's "
                "values be less",
            ) from None

    def _sorted(self) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        self._bytes += self._waiting_bytes
        rows = pa.concat_batches(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        numbers = key_groups(rows) - self._groups.start
        ends = np.append(0, np.cumsum(np.bincount(numbers, minlength=len(self._groups))))
        return rows.take(pa.array(np.argsort(numbers, kind="stable"))), ends

    def _spill(self) -> None:
        rows, ends = self._sorted()
        path = self._directory / f"{unique_name()}.run"
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_batch(rows)
        del rows
        self._runs.append(_Run(pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0), ends))

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of key groups with rows up to the limit each, or a single larger key group."""
        if not self._runs:
            return
        ends = np.sum([run.ends for run in self._runs], axis=0)
        most = max(1, int(self._limit_bytes * self._rows / max(1, self._bytes)))
        first = 0
        while ends[first] < self._rows:
            last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, side="right")) - 1)
            if ends[last] > ends[first]:
                yield first, last
            first = last
