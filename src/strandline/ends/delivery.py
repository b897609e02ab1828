"""Delivery of staged rows into a target, in a task or on the driver, from the mark that the target has on record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, SinkError, StrandlineError
from strandline.core.failure import shortened
from strandline.ends.readahead import ReadAhead
from strandline.ends.rejected import RejectedRows
from strandline.ends.staged import StagedFile, TransactionRows, first_mark, split_waiting
from strandline.ends.target import Connection, Target, Writer
from strandline.storage.place import Place

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 1.0
_PARTS = 16
"""The least number of transactions that replace one if rows are late."""
_FEWEST_ROWS = 10
"""The size of the first transaction if rows are late; each of the next ones has twice as many rows."""
_given_up: dict[tuple[str, str], int] = {}
"""By storage and sink: the generation of which a lane has waited in vain in this process. Until one makes progress,
none waits: tasks that wait, one after the other, keep the executor's cores from the job's epochs."""


@dataclass(frozen=True)
class LaneResult:
    """The result of the delivery of a lane."""

    rows: int
    refused: int
    mark: str = ""
    """The lane's last known mark in the target."""
    failure: str = ""
    """Why the rest of the rows has to wait; empty if none is left."""


@dataclass(frozen=True)
class Delivery:
    """Writes the staged rows of a lane into a target. Executors get a copy."""

    target: Target
    writer: Writer
    place: Place
    refusals: RejectedRows
    patience_s: float
    """Time without progress after which an unavailable target's rows wait for the next delivery."""
    marks: Mapping[int, str]
    """The lanes' last known marks: the target must not have smaller ones."""
    is_behind: bool = False
    """Whether rows of an earlier sink of the job wait: rows that refer to them wait, too."""
    is_late: bool = False
    """Whether rows are late, perhaps since a slow target aborts large transactions: begin with small ones."""
    ahead: ReadAhead | None = None
    """Rows that were read before; None in tasks."""

    def deliver(self, lane: int, waiting: Sequence[StagedFile]) -> LaneResult:
        """Write the rows after the lane's mark in the target."""
        rows, refused, mark = 0, 0, self.marks.get(lane, "")
        sink, generation = (self.place.url, self.writer.sink), self.writer.generation
        may_wait = _given_up.get(sink) != generation
        delay_s, until = FIRST_DELAY_S, time.monotonic() + (self.patience_s if may_wait else 0.0)
        while True:
            attempt = _Attempt(self, lane)
            try:
                for row_count, refused_count, new_mark in attempt.write(waiting):
                    rows, refused, mark = rows + row_count, refused + refused_count, new_mark
                    _given_up.pop(sink, None)
                    until = time.monotonic() + self.patience_s
                return LaneResult(rows, refused, mark)
            except Exception as error:
                if not self._may_pass(error):
                    raise self._final(error) from error
                if time.monotonic() + delay_s > until:
                    _given_up[sink] = generation
                    return LaneResult(rows, refused, mark, reason_of(error))
            finally:
                attempt.close()
            # The next connection reads the mark again: the answer to a commit may have been lost.
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def ask(self, lane: int) -> str:
        """Return why the target does not answer now for a lane; empty if it does."""
        try:
            with closing(self.target.connect(self.writer, lane)) as connection:
                connection.reached()
        except Exception as error:
            if not self._may_pass(error):
                raise self._final(error) from error
            return reason_of(error)
        return ""

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, ConflictError) or self.target.may_pass(error) or self.awaits_others(error)

    def awaits_others(self, error: Exception) -> bool:
        """Whether the target may accept the row when it has those of an earlier sink, to which it refers."""
        return self.is_behind and isinstance(error, SinkError) and bool(error.fields.get("refers"))

    def _final(self, error: Exception) -> Exception:
        if isinstance(error, StrandlineError):
            if isinstance(error, ConfigurationError):
                # The start has checked the target: a migration may have changed it since, and may still be running.
                error.fields["may_pass"] = True
            return error
        return SinkError(
            f"{self.writer.label}: the target refused: {shortened(f'{type(error).__name__}: {error}')}",
            hint="the rows stay staged, and the next start tries them again; on_error='dead-letter' goes on "
            "without the refused rows",
            discreet=f"{self.writer.label}: the target refused: {type(error).__name__}",
        )


class _Attempt:
    """One attempt to write a lane's waiting rows, over one connection at a time."""

    def __init__(self, delivery: Delivery, lane: int) -> None:
        self._d, self._target, self._lane = delivery, delivery.target, lane
        self._connection: Connection | None = None

    def close(self) -> None:
        # An error here follows an earlier error, or changes nothing: transactions are committed before.
        with suppress(Exception):
            if self._connection is not None:
                self._connection.close()
        self._connection = None

    def write(self, waiting: Sequence[StagedFile]) -> Iterator[tuple[int, int, str]]:
        """Write the rows after the lane's mark; yield for each transaction: rows, refused rows, mark."""
        connection = self._connect()
        since = connection.reached()
        self._check(since or "", begins=not waiting)
        max_rows = self._target.max_rows
        size = min(_FEWEST_ROWS, max_rows) if self._d.is_late else max_rows
        for rest in split_waiting(waiting, since, max_rows, self._target.max_bytes):
            try:
                part = TransactionRows.read(rest, self._read)
            except CorruptionError:
                # Another writer may have delivered and deleted the files.
                if connection.reached() == since:
                    raise
                raise self._overtaken() from None
            most = max(part.rows // _PARTS, _FEWEST_ROWS) if self._d.is_late else max_rows
            left = [(0, part.rows)]
            while left:
                start, stop = left.pop()
                if stop - start > (limit := min(size, most)):
                    left.append((start + limit, stop))
                    stop = start + limit
                mark = part.mark(stop)
                try:
                    failpoints.hit("sink.deliver.before")
                    connection.write_rows(part.cut(self._d.writer.sink, start, stop), since, mark)
                    failpoints.hit("sink.deliver.after")
                    size = min(2 * size, max_rows)
                    yield stop - start, 0, mark
                except Exception as error:
                    if self._d.awaits_others(error) or not self._d.refusals.accepts(self._target, error):
                        raise
                    self.close()
                    connection = self._connect()
                    if connection.reached() != since:
                        raise self._overtaken() from None
                    if stop - start > 1:
                        # Bisect: the error does not tell which row is refused.
                        middle = (start + stop) // 2
                        left += [(middle, stop), (start, middle)]
                        continue
                    self._d.refusals.put(self._d.writer, part.cut(self._d.writer.sink, start, stop), error)
                    connection.write([], since, mark)
                    yield 0, 1, mark
                since = mark

    @cached_property
    def _folder(self) -> Folder:
        # To open a directory syncs those above it.
        return folder_at(self._d.place)

    def _read(self, file: StagedFile) -> Sequence[pa.RecordBatch]:
        rows = self._d.ahead.take(file) if self._d.ahead is not None else None
        return file.read(self._folder, self._d.writer.label) if rows is None else rows

    def _check(self, since: str, *, begins: bool) -> None:
        if begins and since >= first_mark(self._d.writer.generation):
            raise SinkError(
                f"{self._d.writer.label}: the target has rows of generation {int(since.partition('.')[0])} of the job, "
                f"and generation {self._d.writer.generation} begins: another driver has replaced it, or the checkpoint "
                "directory was set back to what it was before",
                hint="run one driver only; after setting the directory back, start again until the generation is newer",
            )
        if since >= (before := self._d.marks.get(self._lane, "")):
            return
        raise CorruptionError(
            f"{self._d.writer.label}: the target has less on record than it had: it was put back, or is another one, "
            f"or prefix= of sinks.kafka or record= of a database sink now names another record "
            f"(lane {self._lane} is at {since or 'nothing'}, and was at {before})",
            hint="if prefix=, record= or the target was changed between two starts, give the sink the former one; or "
            "restore the job from an older checkpoint or savepoint; or give the sink another name: it begins with "
            "a new record, after the rows that were delivered",
        )

    def _connect(self) -> Connection:
        self._connection = self._target.connect(self._d.writer, self._lane)
        return self._connection

    def _overtaken(self) -> ConflictError:
        return ConflictError(f"{self._d.writer.label}: another task writes this lane")


def reason_of(error: Exception) -> str:
    """Return why rows wait, for logs and the status: only the first line, since the others may quote rows."""
    text = error.discreet if isinstance(error, StrandlineError) else str(error)
    return shortened(f"{type(error).__name__}: {text.strip().partition(chr(10))[0]}".strip())
