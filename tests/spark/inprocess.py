"""Spark's part in a sink's trial, played in this process: partitions of Arrow batches, tasks, and tasks that are tried again.

What is sent to tasks is pickled, as Spark does it. A check that takes seconds on Spark takes milliseconds here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_ATTEMPTS = 4


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
        self.schema = None

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

    def collect(self) -> list[Row]:
        return [row for index in range(len(self._parts)) for row in self._run(index)]

    def _run(self, index: int) -> list[Row]:
        for attempt in range(_ATTEMPTS):
            context: Any = object.__new__(TaskContext)
            context._partitionId, context._localProperties = index, {}
            before, TaskContext._taskContext = TaskContext._taskContext, context
            try:
                batches = iter([pa.RecordBatch.from_arrays([a], [self._column]) for a in self._parts[index]])
                for step in self._steps:
                    batches = cloudpickle.loads(step)(batches)
                return [Row(**row) for batch in batches for row in batch.to_pylist()]
            except Exception:
                if attempt == _ATTEMPTS - 1:
                    raise
            finally:
                TaskContext._taskContext = before
        raise AssertionError
