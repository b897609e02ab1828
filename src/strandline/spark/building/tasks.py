"""The function of Spark's tasks that write state, in a module with few imports, since each worker imports it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from strandline.checkpoint.folder import folder_at
from strandline.core.ids import Partition
from strandline.core.keygroups import range_of
from strandline.core.scratch import Scratch
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.parquet import key_groups
from strandline.snapshot.savepoints.builder import groups_of, write_rows
from strandline.snapshot.savepoints.export import Files
from strandline.spark.base.task_errors import SEAL, sealed_errors
from strandline.storage.place import Place

RESULT = "files"
"""The column of a task's output."""


class TableTask:
    """Writes the rows of a range of key groups to files, and outputs one row that lists the files.

    Only files in such rows belong to the savepoint: the last step deletes the files of other attempts.
    """

    def __init__(self, target: Place, operator: OperatorInfo, state: StateInfo, ranges: int) -> None:
        self._target = target
        self._operator = operator
        self._state = state
        self._ranges = ranges
        self._seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonempty = (batch for batch in batches if batch.num_rows)
        first = next(nonempty, None)
        if first is None:
            return
        with sealed_errors(self._seal):
            files = self._write(first, itertools.chain([first], nonempty))
        yield pa.RecordBatch.from_pydict({RESULT: [msgspec.json.encode(files).decode()]})

    def _write(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Files:
        codec = rows_of(self._operator, self._state)
        max_parallelism = self._operator.max_parallelism
        groups = groups_of(self._operator, self._state)
        with Scratch("write") as scratch:
            if self._ranges > 1:
                index = int(key_groups(codec.check(first.slice(0, 1)))[0]) * self._ranges // max_parallelism
                groups = range_of(Partition(index), max_parallelism, self._ranges)
            files, pieces = write_rows(codec, batches, groups, max_parallelism, folder_at(self._target), scratch)
        return Files(files={self._state.name: files}, pieces={self._state.name: pieces})
