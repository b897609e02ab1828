"""From staged rows to a target, in a task or on the driver: what is on record there is not written again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, SinkError, StrandlineError
from strandline.core.failure import shortened
from strandline.ends.rejected import RejectedRows
from strandline.ends.staged import StagedFile, TransactionRows, first_mark, rests
from strandline.ends.target import Connection, Target, Writer
from strandline.storage.place import Place

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 1.0
_PARTS = 16
"""Into how many transactions goes at least what is otherwise one, where rows wait already."""
_FEWEST_ROWS = 10
"""How many are in the first of them then, whatever they are to the target; in each that follows, twice as many."""


@dataclass(frozen=True)
class Delivered:
    """What became of a lane's pieces."""

    rows: int
    refused: int
    mark: str = ""
    """The lane's, in the target, as far as is known."""
    failure: str = ""
    """Why those that are left have to wait, if any are."""


@dataclass(frozen=True)
class Delivery:
    """Writes what is staged into a target, a lane at a time. It goes to the executors."""

    target: Target
    writer: Writer
    place: Place
    refusals: RejectedRows
    patience_s: float
    """For how long a target that does not answer is tried again, before its rows wait for another time."""
    reached: Mapping[int, str]
    """What lanes had on record before: they cannot have less."""
    is_late: bool = False
    """Whether rows may wait because transactions were too large: a slow target ends those that take long."""

    def deliver(self, lane: int, waiting: Sequence[StagedFile]) -> Delivered:
        """Write what the lane's record in the target does not have yet."""
        folder, rows, refused, mark = folder_at(self.place), 0, 0, self.reached.get(lane, "")
        delay_s, until = FIRST_DELAY_S, time.monotonic() + self.patience_s
        while True:
            one = _Lane(self, lane, folder)
            try:
                for written, is_refused, reached in one.write(waiting):
                    rows, refused, mark = rows + written, refused + is_refused, reached
                    until = time.monotonic() + self.patience_s
                return Delivered(rows, refused, mark)
            except Exception as error:
                if not isinstance(error, ConflictError) and not self.target.may_pass(error):
                    raise self._named(error) from error
                if time.monotonic() + delay_s > until:
                    return Delivered(rows, refused, mark, reason_of(error))
            finally:
                one.close()
            # Another connection asks how far it came: an answer may have been lost.
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, StrandlineError):
            if isinstance(error, ConfigurationError):
                # The start has looked: the target was changed since, as by a migration, which may not be over.
                error.fields["is_targets"] = True
            return error
        return SinkError(
            f"{self.writer.label}: the target refused: {shortened(f'{type(error).__name__}: {error}')}",
            hint="the rows stay staged, and are tried again with the next start; on_error='dead-letter' goes on "
            "without those that are refused",
            discreet=f"{self.writer.label}: the target refused: {type(error).__name__}",
        )


class _Lane:
    """One way through what waits for a lane."""

    def __init__(self, delivery: Delivery, lane: int, folder: Folder) -> None:
        self._d, self._target, self._lane, self._folder = delivery, delivery.target, lane, folder
        self._connection: Connection | None = None

    def close(self) -> None:
        # What closes badly has failed before, or has nothing more to say.
        with suppress(Exception):
            if self._connection is not None:
                self._connection.close()
        self._connection = None

    def write(self, waiting: Sequence[StagedFile]) -> Iterator[tuple[int, int, str]]:
        """Write what lies behind the lane's mark; give each transaction's rows, how many it set aside, its mark."""
        connection = self._connect()
        since = connection.reached()
        self._check(since or "", begins=not waiting)
        max_rows = self._target.max_rows
        many = min(_FEWEST_ROWS, max_rows) if self._d.is_late else max_rows
        for rest in rests(waiting, since, max_rows, self._target.max_bytes):
            try:
                part = TransactionRows.read(rest, self._folder, self._d.writer.label)
            except CorruptionError:
                # Unless another run or task was faster, and took the files away: a transaction finds that.
                connection.write([], since, since or "")
                raise
            most = max(part.rows // _PARTS, _FEWEST_ROWS) if self._d.is_late else max_rows
            left = [(0, part.rows)]
            while left:
                start, stop = left.pop()
                if stop - start > (size := min(many, most)):
                    left.append((start + size, stop))
                    stop = start + size
                mark = part.mark(stop)
                try:
                    failpoints.hit("sink.deliver.before")
                    connection.write_rows(part.cut(self._d.writer.sink, start, stop), since, mark)
                    failpoints.hit("sink.deliver.after")
                    many = min(2 * many, max_rows)
                    yield stop - start, 0, mark
                except Exception as error:
                    if not self._d.refusals.takes(self._target, error):
                        raise
                    self.close()
                    connection = self._connect()
                    if connection.reached() != since:
                        raise self._overtaken() from None
                    if stop - start > 1:
                        # It does not say which of them.
                        middle = (start + stop) // 2
                        left += [(middle, stop), (start, middle)]
                        continue
                    self._d.refusals.put(self._d.writer, part.cut(self._d.writer.sink, start, stop), error)
                    connection.write([], since, mark)
                    yield 0, 1, mark
                since = mark

    def _check(self, since: str, *, begins: bool) -> None:
        if begins and since >= first_mark(self._d.writer.generation):
            raise SinkError(
                f"{self._d.writer.label}: the target has rows of generation {int(since.partition('.')[0])} of the job, "
                f"and generation {self._d.writer.generation} begins: another driver has replaced it, or the checkpoint "
                "directory was set back to what it was before",
                hint="keep one driver; after setting the directory back, start again until the generation is newer",
            )
        if since >= (before := self._d.reached.get(self._lane, "")):
            return
        raise CorruptionError(
            f"{self._d.writer.label}: the target has less on record than it had: it was put back, or is another one, "
            f"or the record is another one, as prefix= of sinks.kafka or record= of a database sink says which it is "
            f"(lane {self._lane} is at {since or 'nothing'}, and was at {before})",
            hint="if prefix=, record= or the target was changed between two starts, give the sink the former one; or "
            "restore the job from a checkpoint or savepoint of before; or give the sink another name: it begins "
            "anew, and goes on behind the rows that were delivered",
        )

    def _connect(self) -> Connection:
        self._connection = self._target.connect(self._d.writer, self._lane)
        return self._connection

    def _overtaken(self) -> ConflictError:
        return ConflictError(f"{self._d.writer.label}: another task writes this lane")


def reason_of(error: Exception) -> str:
    """Return why rows wait, for logs and the status: further lines of an error may quote rows."""
    return shortened(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".strip())
