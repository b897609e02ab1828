"""Delivery by a function, to systems without transactions: HTTP, a queue. At least once, with an id for each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql import Row

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core.errors import ConfigurationError, CorruptionError, FencedError, NotFoundError, StrandlineError
from strandline.core.ids import Epoch
from strandline.core.settings import Duration, parse_duration_ms
from strandline.ends.committables import decode_committables
from strandline.ends.staged import COMMITTABLES, StagedTask
from strandline.ends.target import Connection, Rows, Target, Writer
from strandline.plan.callables import call, check_function, check_shippable, name_of
from strandline.spark.sinks.sink_errors import function_error, user_lines
from strandline.spark.sinks.transactional import Transactional, TransactionalOptions, check_option_names
from strandline.storage.place import Place

_LONGEST_PAUSE_S = 10.0

Deliver = Callable[[list[Row], list[str]], Any]


class DeliverSink(Transactional):
    """Call `function(rows, ids)` for rows that a checkpoint has, on the executors, until it returns: at least once.

    `ids` has an id for each row, the same at each repetition, in this run or a later one: use it as an idempotency key.
    At most `batch_size` rows come at once, in order within a partition. After an error, the call is tried up to
    `attempts` times, with growing pauses from `pause` on; then the error ends the job, unless `on_error` prevents it.
    Errors in `passing` never end the job: the rows wait, and the job goes on, for as long as it takes.
    `options` are those of `sinks.Transactional`.
    """

    made_by = "sinks.deliver()"
    # Threads would share the function's state, such as a connection.
    in_threads = False

    def __init__(
        self,
        function: Deliver,
        *,
        batch_size: int = 100,
        attempts: int = 5,
        pause: Duration = "200 ms",
        passing: Sequence[type[Exception]] = (ConnectionError, TimeoutError),
        **options: Unpack[TransactionalOptions],
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
        ends = check_option_names(where, options).get("on_error", "fail") == "fail"
        super().__init__(_FunctionTarget(function, batch_size, attempts, pause_s, tuple(passing), ends), **options)

    def reached(self) -> str | None:
        # The lanes' records are in the staging folder, which may change: without them, no rows are lost.
        return None

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str]:
        try:
            return super().recover(pending, epoch, fresh=fresh)
        except CorruptionError:
            # After a clean stop, the checkpoint lists rows that were delivered since: a former place has the record.
            if not self._take_records(pending):
                raise
        return super().recover(pending, epoch, fresh=fresh)

    def _take_records(self, pending: Sequence[str]) -> bool:
        """Copy the lanes' records from the places in which the rows were staged; return whether there are any."""
        tasks = decode_committables(pending, COMMITTABLES, self._writer.label)
        here, has_records = folder_at(self._place), False
        for each in {(each.place, each.lane): each for each in tasks if isinstance(each, StagedTask)}.values():
            path = f"{self._sink}/lanes/{each.lane}"
            with suppress(StrandlineError):
                if each.place != here.url and (mark := _newest(self._former(each.place), path)) is not None:
                    _record(here, path, mark)
                    has_records = True
        return has_records

    def _former(self, url: str) -> Folder:
        """Return the folder in which an earlier run has staged rows. Raises NotFoundError if its directory is gone."""
        with_checkpoints = self._opened.staging
        if with_checkpoints is not None and (folder := folder_at(with_checkpoints)).url == url:
            return folder
        parts = urlsplit(url)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            raise NotFoundError(f"{url}: no such directory")
        return folder_at(Place(url=url, options=self._options, fsync=self._place.fsync))


class _FunctionTarget(Target):
    refusing = (Exception,)

    def __init__(
        self, function: Deliver, batch_size: int, attempts: int, pause_s: float, passing: tuple[type[Exception], ...],
        ends: bool,
    ) -> None:  # fmt: skip
        self.function, self.attempts, self.pause_s, self.passing = function, attempts, pause_s, passing
        self.ends = ends
        """Whether its errors end the job; otherwise a bisection finds the row that causes one."""
        # The mark is recorded after each call.
        self.max_rows = batch_size
        name = getattr(function, "__qualname__", "<lambda>")
        # All lambdas have the same name.
        self.destination = "" if "<lambda>" in name else f"function {function.__module__}.{name}"

    def claim(self, writer: Writer) -> None:
        folder = folder_at(writer.storage)
        _record(folder, f"{writer.sink}/claims", _claim(writer), _check_claim(folder, writer))

    def connect(self, writer: Writer, lane: int) -> Connection:
        return _FunctionLane(self, writer, lane)


@dataclass
class _FunctionLane(Connection):
    target: _FunctionTarget
    writer: Writer
    lane: int

    def __post_init__(self) -> None:
        self._folder = folder_at(self.writer.storage)
        self._path = f"{self.writer.sink}/lanes/{self.lane}"

    def reached(self) -> str | None:
        return _newest(self._folder, self._path)

    def write_rows(self, rows: Rows, since: str | None, mark: str) -> None:
        _check_claim(self._folder, self.writer)
        make_row = Row(*rows.batches[0].schema.names)
        batches = ([c.to_pylist() for c in batch.columns] for batch in rows.batches)
        self._call([make_row(*values) for columns in batches for values in zip(*columns, strict=True)], rows.ids)
        _record(self._folder, self._path, mark, since)

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        assert not batches, "rows need ids: call write_rows"
        _record(self._folder, self._path, mark, since)

    def _call(self, rows: list[Row], ids: list[str]) -> None:
        target, pause_s = self.target, self.target.pause_s
        attempts = target.attempts if target.ends or len(rows) == 1 else 1
        what = f"{self.writer.label}: its function {name_of(target.function)}"
        for attempt in range(1, attempts + 1):
            try:
                # Copies: the function may change its lists, and a next attempt needs all rows.
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
                    raise function_error(where, error, user_lines(error.__traceback__)) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _claim(writer: Writer) -> str:
    return f"{writer.generation:08}"


def _check_claim(folder: Folder, writer: Writer) -> str | None:
    """Return the newest claim; raise FencedError if it belongs to a newer run."""
    newest = _newest(folder, f"{writer.sink}/claims")
    if newest is not None and newest > _claim(writer):
        raise FencedError(f"{writer.label}: a newer driver of the job is running")
    return newest


# A record is the greatest name in a folder, so that a late task of an older run does not set it back.


def _newest(folder: Folder, path: str) -> str | None:
    below = f"{path}/"
    paths = (info.path for info in folder.list(below))
    return max((path.removeprefix(below) for path in paths if path.startswith(below)), default=None)


def _record(folder: Folder, path: str, name: str, before: str | None = None) -> None:
    """Record a name, in place of the one before."""
    folder.put(f"{path}/{name}", b"")
    if before is not None and before < name:
        folder.delete([f"{path}/{before}"])
