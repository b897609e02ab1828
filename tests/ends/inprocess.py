"""Spark's part in a sink's trial, played in this process: partitions of Arrow batches, tasks, and tasks that are tried again.

What is sent to tasks is pickled, as Spark does it. A check that takes seconds on Spark takes milliseconds here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.types import LongType, StructField, StructType

from strandline.spark.base.ddl import arrow_schema
from strandline.testing.sinks import conformance

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ATTEMPTS = 4
_ONE_TASK = threading.Lock()
"""Held while a task runs: there is one TaskContext for all threads, and a thread that outlives a check has tasks too."""

OF_WAITING_ROWS = {
    conformance.it_runs_and_closes, conformance.an_epoch_without_rows, conformance.rows_are_read_once_and_to_their_end,
    conformance.rows_of_a_task_that_fails_are_seen, conformance.nothing_is_visible_before_its_commit,
    conformance.an_epoch_that_is_written_again_counts_once,
}  # fmt: skip
"""Checks of rows that wait for a target, whatever it is: test_sink_conformance.py has them for one, and soak tests for all."""

_UTC = pa.timestamp("us", "UTC")


class Session:
    """Stands in for a session whose tasks are tried again."""

    master = "local[2,4]"

    @property
    def sparkContext(self) -> Session:
        return self

    def range(self, start: int, stop: int, step: int, tasks: int) -> Frame:
        numbers = range(start, stop, step)
        cut = [numbers[task * len(numbers) // tasks : (task + 1) * len(numbers) // tasks] for task in range(tasks)]
        return Frame(self, "id", [[pa.array(part, pa.int64())] if part else [] for part in cut])


class Frame:
    """Stands in for a DataFrame of one column."""

    def __init__(self, session: Session, column: str, parts: Sequence[Any], steps: Sequence[bytes] = ()) -> None:
        self.sparkSession = session
        self._column, self._parts, self._steps = column, parts, steps
        self.schema = StructType([StructField(column, LongType())])

    @property
    def columns(self) -> list[str]:
        return [self._column]

    def toDF(self, column: str) -> Frame:
        return Frame(self.sparkSession, column, self._parts)

    def where(self, nothing: str) -> Frame:
        assert nothing == "n < 0"
        return Frame(self.sparkSession, self._column, [[] for _ in self._parts])

    def mapInArrow(self, step: Step, schema: Any) -> Frame:
        return Frame(self.sparkSession, self._column, self._parts, [*self._steps, cloudpickle.dumps(step)])

    def _batches(self, index: int) -> Iterator[pa.RecordBatch]:
        return iter([pa.RecordBatch.from_arrays([a], [self._column]) for a in self._parts[index]])

    def collect(self) -> list[Row]:
        return [row for index in range(len(self._parts)) for row in self._run(index)]

    def _run(self, index: int) -> list[Row]:
        for attempt in range(_ATTEMPTS):
            context: Any = object.__new__(TaskContext)
            context._partitionId, context._localProperties = index, {}
            with _ONE_TASK:
                TaskContext._taskContext = context
                try:
                    batches = self._batches(index)
                    for step in self._steps:
                        batches = cloudpickle.loads(step)(batches)
                    return [Row(**row) for batch in batches for row in batch.to_pylist()]
                except Exception:
                    if attempt == _ATTEMPTS - 1:
                        raise
                finally:
                    TaskContext._taskContext = None
        raise AssertionError


class Given(Frame):
    """Stands in for a DataFrame of any columns: a list of rows for each partition."""

    def __init__(self, schema: StructType, *parts: Sequence[Sequence[Any]], steps: Sequence[bytes] = ()) -> None:
        super().__init__(Session(), "", parts, steps)
        self.schema = schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def mapInArrow(self, step: Step, schema: Any) -> Given:
        return Given(self.schema, *self._parts, steps=[*self._steps, cloudpickle.dumps(step)])

    def _batches(self, index: int) -> Iterator[pa.RecordBatch]:
        if not self._parts[index]:
            return iter([])
        berlin = pa.timestamp("us", "Europe/Berlin")
        columns = pa.schema([f.with_type(berlin) if f.type == _UTC else f for f in arrow_schema(self.schema)])
        arrays = [
            pa.array(list(c), f.type) for c, f in zip(zip(*self._parts[index], strict=True), columns, strict=True)
        ]
        return iter([pa.RecordBatch.from_arrays(arrays, schema=columns)])
