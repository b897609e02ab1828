"""Sinks without files: memory for tests, console, callbacks, nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row

from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.core.ids import Epoch, unique_name
from strandline.plan.callables import call, check_function, check_shippable
from strandline.spark.base.session import restored_settings
from strandline.spark.base.task_errors import SEAL
from strandline.spark.base.templates import discard
from strandline.spark.sinks.base import Sink, SinkContext, Visibility
from strandline.spark.sinks.sink_errors import ForEach


class MemorySink(Sink):
    """Collect rows in the driver, for tests: `rows` are visible exactly once while the driver lives."""

    destination = "memory"

    def __init__(self, *, visibility: Visibility = "checkpoint", name: str | None = None) -> None:
        super().__init__(name=name, visibility=visibility)
        # A checkpoint may list rows that another object staged: they were lost with its driver.
        self._owner = unique_name()
        self._staged: dict[int, list[Row]] = {}
        self._visible: dict[int, list[Row]] = {}
        self._lock = threading.Lock()

    @property
    def rows(self) -> list[Row]:
        """Every visible row, by epoch."""
        with self._lock:
            return [row for epoch in sorted(self._visible) for row in self._visible[epoch]]

    def write(self, df: DataFrame, epoch: Epoch) -> str | None:
        rows = df.collect()
        failpoints.hit("sink.staged")
        with self._lock:
            if self.visibility == "epoch":
                self._visible.setdefault(epoch, []).extend(rows)
                return None
            self._staged[epoch] = rows
        return f"{self._owner}/{epoch}"

    def commit(self, pending: Sequence[str]) -> None:
        with self._lock:
            for owner, _, epoch in (text.partition("/") for text in pending):
                if owner == self._owner:
                    self._show(int(epoch))

    def _show(self, epoch: int) -> None:
        if epoch in self._staged:
            self._visible[epoch] = self._staged.pop(epoch)
        elif epoch not in self._visible:
            raise CorruptionError(
                f"a sink in memory staged epoch {epoch}, and now has it neither staged nor visible",
                hint="use one sink for each job: a job that begins anew forgets the rows of the one before",
            )

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> None:
        self.commit(pending)
        with self._lock:
            self._staged.clear()
            if self.visibility == "checkpoint":
                self._visible = {e: rows for e, rows in self._visible.items() if e <= epoch}


class ForeachSink(Sink):
    """Call `function(row)` for each row, on the executors, at least once."""

    def __init__(self, function: Callable[[Row], Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        check_function("sinks.foreach(): the function", function, ["row"])
        check_shippable("sinks.foreach(): the function", function)
        self._function = function
        self._called = name or "foreach"

    def open(self, context: SinkContext) -> None:
        self._called = context.sink

    def write(self, df: DataFrame, epoch: Epoch) -> None:
        df.foreachPartition(ForEach(SEAL, self._called, self._function))


class ForeachBatchSink(Sink):
    """Call `function(df, epoch)` on the driver for each epoch, at least once.

    An epoch that comes again after a failure may hold other rows under the same number: after the last checkpoint, the
    source may be cut into epochs differently. So do not skip an epoch because its number was seen before.
    """

    reads_once = False

    def __init__(self, function: Callable[[DataFrame, int], Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        check_function("sinks.foreach_batch(): the function", function, ["df", "epoch"])
        self._function = function

    def write(self, df: DataFrame, epoch: Epoch) -> None:
        # All epochs and the sinks after this one use the same session.
        with restored_settings(df.sparkSession):
            call("sinks.foreach_batch(): the function", self._function, df, epoch)


class ConsoleSink(Sink):
    """Print the first rows of each epoch."""

    def __init__(self, *, rows: int = 20, name: str | None = None) -> None:
        super().__init__(name=name)
        if not isinstance(rows, int) or rows < 0:
            raise ConfigurationError(f"sinks.console(): rows is {rows!r}, expected how many rows of an epoch to print")
        self._rows = rows

    def write(self, df: DataFrame, epoch: Epoch) -> None:
        rows = df.collect()
        if rows:
            print(f"epoch {epoch}: {len(rows)} rows")
            for row in rows[: self._rows]:
                print("  " + ", ".join(f"{name}={value!r}" for name, value in row.asDict().items()))


class NoopSink(Sink):
    """Compute all rows and discard them, for benchmarks."""

    def write(self, df: DataFrame, epoch: Epoch) -> None:
        discard(df)
