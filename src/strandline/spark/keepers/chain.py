"""Operators one after the other in one Spark task: what one gives stays in Arrow, and on its partition.

A row's partition is computed from its key as the shuffle does, and must be the task's: so each operator gets the rows
that a shuffle would bring. Its end row comes when the keeper above has acknowledged the epoch: then no row is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import OutputError
from strandline.core.ids import Partition
from strandline.core.keygroups import range_of
from strandline.keeper.lean import defer_pandas
from strandline.runtime.rowlayout import KEY_GROUP, PARTITION, SIDE, partition_of
from strandline.spark.base.task_errors import SEAL, Seal, sealed_errors
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import parse_schema
from strandline.types.murmurcolumns import key_groups
from strandline.types.scalars import Numbers

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Link:
    """Makes rows for an operator of the output of the operator above, which has the same keys and partitions."""

    above: str
    """The uid of the operator above."""
    output: str
    """DDL of its keepers' rows."""
    keys: Sequence[str]
    columns: Sequence[str]
    """The columns that the operator reads, hidden ones first."""
    parallelism: int
    max_parallelism: int
    seal: Seal = SEAL

    def rows(self, partition: int, batches: Batches) -> Batches:
        """Yield the rows of the main output as `Exchange.route` gives them: the partition, the key group, the columns.

        The end row comes last.
        """
        output = parse_schema(self.output)
        types = output.types_of(self.keys)
        fields = map(arrow_schema(output).field, self.columns)
        schema = pa.schema([pa.field(PARTITION, pa.int32()), pa.field(KEY_GROUP, pa.int32()), *fields])
        with sealed_errors(self.seal):
            for batch in batches:
                rows = batch.filter(pc.equal(batch.column(SIDE), 0)) if SIDE in output.names else batch
                if rows.num_rows:
                    groups = key_groups(list(map(rows.column, self.keys)), types, self.max_parallelism)
                    self._check(partition, groups)
                    numbers = pa.array(np.full(rows.num_rows, partition, np.int32))
                    columns = [numbers, pa.array(groups), *map(rows.column, self.columns)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        ends = [pa.array([partition], pa.int32()), *(pa.nulls(1, field.type) for field in list(schema)[1:])]
        yield pa.RecordBatch.from_arrays(ends, schema=schema)

    def _check(self, partition: int, groups: Numbers) -> None:
        expected = range_of(Partition(partition), self.max_parallelism, self.parallelism)
        if np.any((groups < expected.start) | (groups >= expected.stop)):
            message = (
                f"operator '{self.above}' has keeps_key, and gave a row with another key ({', '.join(self.keys)}) than "
                "that of the events it came of"
            )
            raise OutputError(
                message,
                hint="give the key's columns as they came; or leave keeps_key out, so that rows are shuffled",
                discreet=message,
                operator=self.above,
            )


@dataclass(frozen=True)
class Chain:
    """The function of a partition's rows for the first operator, which returns the output of the last one."""

    first: Callable[[Batches], Batches]
    rest: Sequence[tuple[Link, Callable[[Batches], Batches]]]

    def __call__(self, batches: Batches) -> Batches:
        defer_pandas()
        first = next(batches, None)
        if first is None:
            return
        partition = partition_of(first)
        rows = self.first(itertools.chain([first], batches))
        for link, worker in self.rest:
            rows = worker(link.rows(partition, rows))
        yield from rows
