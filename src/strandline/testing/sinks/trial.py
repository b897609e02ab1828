"""Trial of a sink: runs it as the engine does, and injects crashes between two of its lines."""

from __future__ import annotations

import linecache
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any
from weakref import finalize

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation, unique_name
from strandline.spark.sinks.base import Sink, SinkContext, committables_of
from strandline.storage.place import Place

TASKS = 3
_PATIENCE_S = 0.5
_ROWS = 6


class Crash(BaseException):
    """A crash of the driver. Only its `finally` and `with` blocks still run."""


def numbers_of(epoch: int, version: int = 0) -> range:
    """Return the rows of an epoch; a replayed epoch may have another version of them."""
    start = epoch * 1_000_000 + version * 1000
    return range(start, start + _ROWS)


def frame_of(spark: SparkSession, numbers: range, tasks: int) -> DataFrame:
    """Return a DataFrame of numbers in one column, `n bigint`, with one partition for each task."""
    return spark.range(numbers.start, numbers.stop, 1, tasks).toDF("n")


def failing_once(df: DataFrame, marker: Path) -> DataFrame:
    """Return the rows; one task fails once, after its last row, and creates the file `marker`."""
    master = df.sparkSession.sparkContext.master or ""
    if re.fullmatch(r"local(\[[^,]*\])?", master):
        raise ConfigurationError(
            f"the master {master} does not retry tasks", hint="set the number of attempts: local[2,4]"
        )

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        with suppress(FileExistsError):
            marker.touch(exist_ok=False)
            raise RuntimeError("injected failure of a task after its last row")

    return df.mapInArrow(step, df.schema)


def noting_ends(df: DataFrame, directory: Path) -> DataFrame:
    """Return the rows; each time a partition is read to its end, create a file whose name begins with its index."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        (directory / f"{context.partitionId()}-{unique_name()}").touch()

    return df.mapInArrow(step, df.schema)


@dataclass
class Trial:
    """One sink in one empty place, for one check."""

    spark: SparkSession
    make: Callable[[], Sink]
    """Returns a new sink for the place, as each driver makes one; or one object, if its rows die with the driver."""
    visible: Callable[[], Iterable[int]] = tuple
    """Returns `n` of every visible row."""
    left: Callable[[], Any] = tuple
    """Returns what is staged by any run; after a restart it must be empty, zero or None."""
    frame: Callable[[SparkSession, range, int], DataFrame] = frame_of
    away: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which the target is unreachable."""
    mute: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which the target executes requests, but its answers are lost, at least that to a commit."""
    crashes: int = 8
    """The greatest number of crashes in one step."""
    generation: int = field(default=0, init=False)
    storage: str = field(default_factory=lambda: mkdtemp(prefix="strandline-trial-"), init=False)
    """The checkpoint storage, for sinks whose rows wait there."""

    def __post_init__(self) -> None:
        finalize(self, shutil.rmtree, self.storage, ignore_errors=True)

    def open(
        self, sink: Sink | None = None, *, life: str = "life", name: str = "out", gone: Collection[str] = ()
    ) -> Sink:
        """Return a new sink, or this one, opened for the next generation of a job; `gone` are former names."""
        self.generation += 1
        sink = sink or self.make()
        sink.patience_s = sink.start_patience_s = _PATIENCE_S
        place = Place(url=self.storage, path="sinks", fsync=False)
        generation = Generation(self.generation)
        gone = frozenset(gone)
        sink.open(SinkContext(self.spark, "job", life, generation, name, fsync=False, staging=place, gone=gone))
        return sink

    def start(self, pending: Sequence[str] = (), epoch: int = 0, sink: Sink | None = None) -> Sink:
        """Return a sink, started from a checkpoint of this epoch that lists these rows; 0 starts a new job."""
        sink = self.open(sink)
        sink.recover(list(pending), Epoch(epoch), fresh=epoch == 0)
        assert not self.left(), f"a restart left what older runs had staged: {self.left()}"
        return sink

    def stage(self, sink: Sink, *epochs: int, version: int = 0, tasks: int = TASKS) -> list[str]:
        """Write epochs; return their committables, and that of `reached`."""
        committables = [text for epoch in epochs for text in self.write(sink, epoch, self.rows(epoch, version, tasks))]
        assert len(set(committables)) == len(committables), f"equal committables: {committables}"
        reached = sink.reached()
        return committables if reached is None else [*committables, reached]

    def write(self, sink: Sink, epoch: int, df: DataFrame) -> list[str]:
        """Write these rows as an epoch; return its committables."""
        return committables_of("on trial", sink.write(df, Epoch(epoch)))

    def rows(self, epoch: int, version: int = 0, tasks: int = TASKS) -> DataFrame:
        """Return a version of an epoch's rows."""
        return self.frame(self.spark, numbers_of(epoch, version), tasks)

    def expect(self, *epochs: int | tuple[int, int], at_least: bool = False) -> None:
        """Assert that exactly the rows of these epochs, or (epoch, version) pairs, are visible, each once."""
        expected: Counter[int] = Counter()
        for epoch in epochs:
            expected.update(numbers_of(*epoch) if isinstance(epoch, tuple) else numbers_of(epoch))
        seen = Counter(self.visible())
        assert not expected - seen, f"rows are missing: {sorted(expected - seen)}"
        assert at_least or seen == expected, f"rows that must not be visible, or not so often: {seen - expected}"

    def expect_none_twice(self) -> None:
        """Assert that no row is visible twice."""
        twice = [number for number, times in Counter(self.visible()).items() if times > 1]
        assert not twice, f"rows are visible twice: {sorted(twice)}"

    def moments(self, steps: int) -> Iterator[int]:
        """Return the steps at which to crash, spread from the first to the last."""
        many = min(self.crashes, steps)
        return (i * (steps - 1) // max(1, many - 1) for i in range(many))


class CrashingLines:
    """A context that counts the executed lines of a sink's modules, and crashes before one of them.

    Its modules are those in the folder of its class. The context replaces the trace function of debuggers and
    coverage tools, and traces only this thread.
    """

    def __init__(self, sink: Sink, crash_at: int | None = None) -> None:
        self.count = 0
        self._crash_at = crash_at
        classes = [cls for cls in type(sink).__mro__ if cls not in Sink.__mro__]
        functions = [value for cls in classes for value in vars(cls).values() if isfunction(value)]
        self._folders = {Path(function.__code__.co_filename).parent for function in functions}
        self._is_own: dict[str, bool] = {__file__: False}
        self._before: Any = None

    def __enter__(self) -> CrashingLines:
        self._before = sys.gettrace()
        sys.settrace(self._trace_call)
        return self

    def __exit__(self, kind: object, *_: object) -> bool:
        sys.settrace(self._before)
        return kind is Crash

    def _trace_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        file, before = frame.f_code.co_filename, 0
        if file not in self._is_own:
            self._is_own[file] = Path(file).parent in self._folders
        if not self._is_own[file]:
            return None

        def trace_line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                # Do not crash at a jump back that is not a loop's next round: there a `with` block may end, and a crash
                # would keep its lock, which a dead process does not hold. From Python 3.12 on, the next round of a
                # comprehension is such a jump too, as it runs in the frame of the function.
                is_back, before = frame.f_lineno <= before, frame.f_lineno
                if not is_back or linecache.getline(file, before).lstrip().startswith(("for ", "while ")):
                    if self.count == self._crash_at:
                        raise Crash
                    self.count += 1
            return trace_line

        return trace_line
