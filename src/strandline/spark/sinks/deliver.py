"""Delivery by a function, for what has no transactions: HTTP, a queue. At least once, with a stable id for each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from strandline.api.badrecords import Then
from strandline.checkpoint.folder import Folder, folder_at
from strandline.core.errors import ConfigurationError, FencedError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.ends.target import Connection, Rows, Target, Writer
from strandline.plan.callables import call, check_function, check_shippable, name_of
from strandline.spark.sinks.blame import raised, users_lines
from strandline.spark.sinks.transactional import Transactional

_LONGEST_PAUSE_S = 10.0

Deliver = Callable[[list[Row], list[str]], Any]


class DeliverSink(Transactional):
    """Call `function(rows, ids)` for rows that a checkpoint has, on the executors, until it returns: at least once.

    `ids` names each row, and is the same whenever the row comes again, in this run or a later one: give it to what you
    call as an idempotency key. At most `batch_size` rows come at once, in order within a partition. An error is tried
    again `attempts` times, with growing pauses from `pause` on; then it ends the job, unless `on_error` says otherwise.
    Errors that are in `passing` never do: the rows wait, and the job goes on, for as long as it takes.
    """

    made_by = "sinks.deliver()"
    # Of what all calls of a process share, as a connection, threads would make use at once.
    in_threads = False

    def __init__(
        self,
        function: Deliver,
        *,
        batch_size: int = 100,
        attempts: int = 5,
        pause: Duration = "200 ms",
        passing: Sequence[type[Exception]] = (ConnectionError, TimeoutError),
        on_error: Then = "fail",
        dead_letters: str | Path | None = None,
        name: str | None = None,
        staging: str | Path | None = None,
        storage_options: dict[str, str] | None = None,
    ) -> None:
        where = self.made_by
        check_function(f"{where}: the function", function, ["rows", "ids"])
        check_shippable(f"{where}: the function", function)
        for what, value in (("batch_size", batch_size), ("attempts", attempts)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"{where}: {what} is {value!r}, expected 1 or more")
        if not isinstance(passing, list | tuple) or not all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in passing
        ):
            raise ConfigurationError(
                f"{where}: passing is {passing!r:.300}, expected types of exceptions",
                hint="write it like passing=[ConnectionError, TimeoutError]",
            )
        pause_s = parse_duration_ms(pause, f"{where}: pause") / 1000
        super().__init__(
            _Called(function, batch_size, attempts, pause_s, tuple(passing), on_error == "fail"),
            name=name, staging=staging, on_error=on_error, dead_letters=dead_letters, storage_options=storage_options,
        )  # fmt: skip


class _Called(Target):
    refusing = (Exception,)

    def __init__(
        self, function: Deliver, batch_size: int, attempts: int, pause_s: float, passing: tuple[type[Exception], ...],
        ends: bool,
    ) -> None:  # fmt: skip
        self.function, self.attempts, self.pause_s, self.passing = function, attempts, pause_s, passing
        self.ends = ends
        """Whether what it raises ends the job; else rows are tried in halves, to find the one that it is for."""
        # How far it came is on record after each call.
        self.max_rows = batch_size
        name = getattr(function, "__qualname__", "<lambda>")
        # Two lambdas have one name.
        self.destination = "" if "<lambda>" in name else f"function {function.__module__}.{name}"

    def claim(self, writer: Writer) -> None:
        folder = folder_at(writer.storage)
        _note(folder, f"{writer.sink}/claims", _claim(writer), _check_claim(folder, writer))

    def connect(self, writer: Writer, lane: int) -> Connection:
        return _Calling(self, writer, lane)


@dataclass
class _Calling(Connection):
    target: _Called
    writer: Writer
    lane: int

    def __post_init__(self) -> None:
        self._folder = folder_at(self.writer.storage)
        self._path = f"{self.writer.sink}/lanes/{self.lane}"

    def reached(self) -> str | None:
        return _newest(self._folder, self._path)

    def write_rows(self, rows: Rows, since: str | None, mark: str) -> None:
        _check_claim(self._folder, self.writer)
        made = Row(*rows.batches[0].schema.names)
        columns = ([c.to_pylist() for c in batch.columns] for batch in rows.batches)
        self._call([made(*values) for found in columns for values in zip(*found, strict=True)], rows.ids)
        _note(self._folder, self._path, mark, since)

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        assert not batches, "rows come with their names"
        _note(self._folder, self._path, mark, since)

    def _call(self, rows: list[Row], ids: list[str]) -> None:
        target, pause_s = self.target, self.target.pause_s
        attempts = target.attempts if target.ends or len(rows) == 1 else 1
        what = f"{self.writer.label}: its function {name_of(target.function)}"
        for attempt in range(1, attempts + 1):
            try:
                # Lists of its own: what it takes out of them comes again, too.
                call(what, target.function, list(rows), list(ids))
                return
            except ConfigurationError:
                raise
            except Exception as error:
                if target.may_pass(error):
                    raise
                if attempt == attempts:
                    if not target.ends:
                        raise
                    where = f"{what}, called {attempts} times with {len(rows)} rows,"
                    raise raised(where, error, users_lines(error.__traceback__)) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _claim(writer: Writer) -> str:
    return f"{writer.generation:08}"


def _check_claim(folder: Folder, writer: Writer) -> str | None:
    """Return the newest claim; raise FencedError if it is that of a newer run."""
    newest = _newest(folder, f"{writer.sink}/claims")
    if newest is not None and newest > _claim(writer):
        raise FencedError(f"{writer.label}: a newer driver of the job is at work")
    return newest


# A record is the greatest name in a folder, so that a task of an older run that comes late does not set it back.


def _newest(folder: Folder, path: str) -> str | None:
    below = f"{path}/"
    found = (info.path for info in folder.list(below))
    return max((each.removeprefix(below) for each in found if each.startswith(below)), default=None)


def _note(folder: Folder, path: str, name: str, before: str | None = None) -> None:
    """Put a name on record, in place of the one before."""
    folder.put(f"{path}/{name}", b"")
    if before is not None and before < name:
        folder.delete([f"{path}/{before}"])
