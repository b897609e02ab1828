"""A sink on trial: the engine's part in its runs, played without an engine, and crashes between two of its lines."""

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
    """The driver is dead: nothing of it runs any more, but for what `finally` and `with` do."""


def numbers_of(epoch: int, version: int = 0) -> range:
    """Return the rows of an epoch; an epoch that comes again may hold others."""
    start = epoch * 1_000_000 + version * 1000
    return range(start, start + _ROWS)


def frame_of(spark: SparkSession, numbers: range, tasks: int) -> DataFrame:
    """Return a DataFrame of these rows in so many partitions: one column, `n bigint`."""
    return spark.range(numbers.start, numbers.stop, 1, tasks).toDF("n")


def failing_once(df: DataFrame, marker: Path) -> DataFrame:
    """Return these rows, of which one task fails once it has given all of its own; `marker` says that it did."""
    master = df.sparkSession.sparkContext.master or ""
    if re.fullmatch(r"local(\[[^,]*\])?", master):
        raise ConfigurationError(f"the master {master} tries no task again", hint="say how often: local[2,4]")

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        with suppress(FileExistsError):
            marker.touch(exist_ok=False)
            raise RuntimeError("a task fails once, to see what becomes of its rows")

    return df.mapInArrow(step, df.schema)


def noting_ends(df: DataFrame, directory: Path) -> DataFrame:
    """Return these rows; whenever a partition was read to its end, there is a file more that is named after it."""

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
    """Gives the sink, as each driver would make it for this place; or one object, if its rows go with its driver."""
    visible: Callable[[], Iterable[int]] = tuple
    """Reads what everybody can see now: `n` of every row."""
    left: Callable[[], Any] = tuple
    """What is staged, of any run; after a restart it must be nothing: empty, zero or None."""
    frame: Callable[[SparkSession, range, int], DataFrame] = frame_of
    away: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Takes what rows go to away, for as long as the context lasts: nobody reaches it."""
    mute: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Meanwhile, what rows go to does what it is asked to, and its answers are lost, at least that to a commit."""
    crashes: int = 8
    """At how many of a step's lines to crash, at most."""
    generation: int = field(default=0, init=False)
    storage: str = field(default_factory=lambda: mkdtemp(prefix="strandline-trial-"), init=False)
    """What stands for the checkpoints' storage, for sinks whose rows wait there."""

    def __post_init__(self) -> None:
        finalize(self, shutil.rmtree, self.storage, ignore_errors=True)

    def open(
        self, made: Sink | None = None, *, life: str = "life", name: str = "out", gone: Collection[str] = ()
    ) -> Sink:
        """Return the sink, or this object again, opened for the next generation of a job; `gone` are former names."""
        self.generation += 1
        made = made or self.make()
        # A trial has no hour to wait.
        made.patience_s = made.start_patience_s = _PATIENCE_S
        place = Place(url=self.storage, path="sinks", fsync=False)
        generation = Generation(self.generation)
        gone = frozenset(gone)
        made.open(SinkContext(self.spark, "job", life, generation, name, fsync=False, staging=place, gone=gone))
        return made

    def start(self, pending: Sequence[str] = (), epoch: int = 0, made: Sink | None = None) -> Sink:
        """Return the sink, started from a checkpoint of this epoch that lists these rows; 0: the job begins."""
        made = self.open(made)
        made.recover(list(pending), Epoch(epoch), fresh=epoch == 0)
        assert not self.left(), f"staged by older runs, and left by a restart: {self.left()}"
        return made

    def stage(self, sink: Sink, *epochs: int, version: int = 0, tasks: int = TASKS) -> list[str]:
        """Write epochs; return their committables, and how far the sink has come."""
        found = [text for epoch in epochs for text in self.write(sink, epoch, self.rows(epoch, version, tasks))]
        assert len(set(found)) == len(found), f"committables that are the same: {found}"
        reached = sink.reached()
        return found if reached is None else [*found, reached]

    def write(self, sink: Sink, epoch: int, df: DataFrame) -> list[str]:
        """Write these rows as an epoch; return its committables."""
        return committables_of("on trial", sink.write(df, Epoch(epoch)))

    def rows(self, epoch: int, version: int = 0, tasks: int = TASKS) -> DataFrame:
        """Return an epoch's rows, in one version of them."""
        return self.frame(self.spark, numbers_of(epoch, version), tasks)

    def expect(self, *epochs: int | tuple[int, int], at_least: bool = False) -> None:
        """Assert that the rows of these epochs, or versions of an epoch, are visible, each once, and no others."""
        wanted: Counter[int] = Counter()
        for epoch in epochs:
            wanted.update(numbers_of(*epoch) if isinstance(epoch, tuple) else numbers_of(epoch))
        seen = Counter(self.visible())
        assert not wanted - seen, f"rows are missing: {sorted(wanted - seen)}"
        assert at_least or seen == wanted, f"rows that must not be visible, or not so often: {seen - wanted}"

    def expect_none_twice(self) -> None:
        """Assert that no row is visible twice."""
        twice = [number for number, times in Counter(self.visible()).items() if times > 1]
        assert not twice, f"rows are visible twice: {sorted(twice)}"

    def moments(self, steps: int) -> Iterator[int]:
        """Return at which of so many steps to crash: spread over all of them, the first and the last included."""
        many = min(self.crashes, steps)
        return (i * (steps - 1) // max(1, many - 1) for i in range(many))


class Steps:
    """A context that counts the lines which a sink's own modules run, and crashes before one of them.

    Its modules are those in the folder of its class. It takes the place of a debugger or a coverage measurement
    meanwhile, and sees only this thread.
    """

    def __init__(self, sink: Sink, crash_at: int | None = None) -> None:
        self.count = 0
        self._crash_at = crash_at
        classes = [made for made in type(sink).__mro__ if made not in Sink.__mro__]
        functions = [value for made in classes for value in vars(made).values() if isfunction(value)]
        self._folders = {Path(function.__code__.co_filename).parent for function in functions}
        self._is_own: dict[str, bool] = {__file__: False}
        self._before: Any = None

    def __enter__(self) -> Steps:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: object, *_: object) -> bool:
        sys.settrace(self._before)
        return kind is Crash

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        file, before = frame.f_code.co_filename, 0
        if file not in self._is_own:
            self._is_own[file] = Path(file).parent in self._folders
        if not self._is_own[file]:
            return None

        def stepped(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal before
            if event == "line":
                # Where it goes back, and not to a loop's next round, a `with` block may end: it would keep what it
                # holds, while a process that dies holds no locks. From Python 3.12 on, so does the next round of a
                # comprehension, which is in the function's own frame.
                is_back, before = frame.f_lineno <= before, frame.f_lineno
                if not is_back or linecache.getline(file, before).lstrip().startswith(("for ", "while ")):
                    if self.count == self._crash_at:
                        raise Crash
                    self.count += 1
            return stepped

        return stepped
