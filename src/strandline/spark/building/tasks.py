"""What runs in the tasks that write state: workers import it, and with it no more than they need."""

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
    """What runs in a task: it writes the rows of a range of key groups; its one row of output says what came of it.

    Its files are known by that row alone: those of attempts that are not counted are deleted with the last step.
    """

    def __init__(self, target: Place, operator: OperatorInfo, state: StateInfo, ranges: int) -> None:
        self._target = target
        self._operator = operator
        self._state = state
        self._ranges = ranges
        self._seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        with sealed_errors(self._seal):
            found = self._write(first, itertools.chain([first], filled))
        yield pa.RecordBatch.from_pydict({RESULT: [msgspec.json.encode(found).decode()]})

    def _write(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Files:
        codec = rows_of(self._operator, self._state)
        most = self._operator.max_parallelism
        groups = groups_of(self._operator, self._state)
        with Scratch("write") as scratch:
            if self._ranges > 1:
                own = int(key_groups(codec.check(first.slice(0, 1)))[0]) * self._ranges // most
                groups = range_of(Partition(own), most, self._ranges)
            files, pieces = write_rows(codec, batches, groups, most, folder_at(self._target), scratch)
        return Files(files={self._state.name: files}, pieces={self._state.name: pieces})
