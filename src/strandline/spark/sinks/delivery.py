"""From staged rows to a target, in a task or on the driver: what is on record there is not written again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core import failpoints
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError, SinkError, StrandlineError
from strandline.core.failure import shortened
from strandline.core.ids import Epoch, Generation
from strandline.format.rows import decode_rows, encode_rows
from strandline.spark.base.marks import Seal, marking
from strandline.spark.sinks.target import Target, Writer
from strandline.spark.sinks.tasks import TaskAttempt
from strandline.storage.place import Place

_PIECE_BYTES = 8 << 20
"""How much of a task's rows is in one file: they are in memory whole."""
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 1.0


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A file of staged rows."""

    name: str
    rows: int
    bytes: int
    """As Arrow has them, uncompressed."""


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """What one task has staged of an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    partition: int
    pieces: list[Piece]

    @property
    def text(self) -> str:
        """The committable itself."""
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True)
class Waiting:
    """A piece that may have to be written."""

    mark: str
    """Where it stands in its lane: those that come later have greater ones, whatever run has staged them."""
    path: str
    piece: Piece


@dataclass(frozen=True)
class Delivered:
    """What became of a lane's pieces."""

    rows: int
    transactions: int
    failure: str = ""
    """Why those that are left have to wait, if any are."""


def staged_of(text: str, sink: str) -> Staged:
    """Read a committable."""
    try:
        return msgspec.json.decode(text, type=Staged)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{sink}: the checkpoint lists what it has not staged: {text:.200}") from error


def generation_in(sink: str, path: str) -> int | None:
    """Return which run of the sink has staged a file, if one has."""
    found = re.match(rf"{sink}/g(\d+)/", path)
    return int(found[1]) if found else None


def waiting_in(sink: str, staged: Staged) -> Iterator[Waiting]:
    """Return a task's pieces in their order."""
    for at, piece in enumerate(staged.pieces):
        mark = f"{staged.generation:08}.{staged.epoch:012}.{staged.partition:05}.{at:05}"
        yield Waiting(mark, f"{sink}/g{staged.generation}/{piece.name}", piece)


@dataclass(frozen=True)
class StageRows:
    """Stages a partition's rows of an epoch: what `write_tasks` calls."""

    place: Place
    sink: str
    generation: Generation
    epoch: Epoch

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        folder = folder_at(self.place)
        pieces: list[Piece] = []
        held: list[pa.RecordBatch] = []

        def put() -> None:
            name = f"{self.epoch}-{attempt.partition}-{attempt.name}-{len(pieces)}"
            folder.put(f"{self.sink}/g{self.generation}/{name}", encode_rows(held))
            pieces.append(Piece(name, sum(b.num_rows for b in held), sum(b.nbytes for b in held)))
            held.clear()

        for batch in batches:
            held.append(batch)
            if sum(b.nbytes for b in held) >= _PIECE_BYTES:
                put()
        if held:
            put()
        failpoints.hit("sink.rows_staged")
        return Staged(self.generation, self.epoch, attempt.partition, pieces).text


@dataclass(frozen=True)
class Delivery:
    """Writes what is staged into a target, a lane at a time. It goes to the executors."""

    target: Target
    writer: Writer
    place: Place
    patience_s: float
    """For how long a target that does not answer is tried again, before its rows wait for another time."""

    def deliver(self, lane: int, waiting: Sequence[Waiting]) -> Delivered:
        """Write what the lane's record in the target does not have yet."""
        folder, rows, transactions = folder_at(self.place), 0, 0
        delay_s, until = _FIRST_DELAY_S, time.monotonic() + self.patience_s
        while True:
            try:
                for part in self._write_rest(lane, waiting, folder):
                    transactions += 1
                    rows += sum(each.piece.rows for each in part)
                    until = time.monotonic() + self.patience_s
                return Delivered(rows, transactions)
            except Exception as error:
                if not isinstance(error, ConflictError) and not self.target.may_pass(error):
                    raise self._named(error) from error
                if time.monotonic() + delay_s > until:
                    return Delivered(rows, transactions, shortened(f"{type(error).__name__}: {error}".strip()))
            # Another connection asks how far it came: an answer may have been lost.
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _write_rest(self, lane: int, waiting: Sequence[Waiting], folder: Folder) -> Iterator[list[Waiting]]:
        """Write what lies behind the lane's record; give each transaction's pieces when it is through."""
        connection = self.target.connect(self.writer, lane)
        try:
            since = connection.reached()
            for part in self._parts([each for each in waiting if since is None or each.mark > since]):
                try:
                    batches = [batch for each in part for batch in self._read(folder, each)]
                except CorruptionError:
                    # Unless somebody else was faster, and took the files away.
                    if connection.reached() == since:
                        raise
                    raise ConflictError(f"{self.writer.label}: another task writes this lane") from None
                failpoints.hit("sink.deliver.before")
                connection.write(batches, since, part[-1].mark)
                failpoints.hit("sink.deliver.after")
                since = part[-1].mark
                yield part
        finally:
            # What closes badly has failed before, or has nothing more to say.
            with suppress(Exception):
                connection.close()

    def _parts(self, waiting: Sequence[Waiting]) -> Iterator[list[Waiting]]:
        """Cut a lane's pieces into transactions."""
        part: list[Waiting] = []
        for each in waiting:
            rows, size = sum(w.piece.rows for w in part), sum(w.piece.bytes for w in part)
            is_full = rows + each.piece.rows > self.target.max_rows or size + each.piece.bytes > self.target.max_bytes
            if part and is_full:
                yield part
                part = []
            part.append(each)
        if part:
            yield part

    def _read(self, folder: Folder, waiting: Waiting) -> list[pa.RecordBatch]:
        where = f"{folder.url}/{waiting.path}"
        try:
            return decode_rows(folder.get(waiting.path), where)
        except NotFoundError as error:
            raise CorruptionError(
                f"{self.writer.label}: staged rows are gone that the target does not have on record: {where}",
                hint="they were deleted in the checkpoint's storage, or the target was put back to an older state; if "
                "it was, restore the job from a savepoint of before",
            ) from error

    def _named(self, error: Exception) -> Exception:
        if isinstance(error, StrandlineError):
            return error
        return SinkError(
            f"{self.writer.label}: the target refused: {shortened(f'{type(error).__name__}: {error}')}",
            hint="the rows stay staged, and are tried again with the next start",
            discreet=f"{self.writer.label}: the target refused: {type(error).__name__}",
        )


DELIVERED = "lane int, rows bigint, transactions int, failure string"


@dataclass(frozen=True)
class DeliverLanes:
    """What runs in tasks, whose rows are the lanes' numbers."""

    seal: Seal
    delivery: Delivery
    lanes: dict[int, Sequence[Waiting]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = sorted(self.lanes)
        for batch in batches:
            with marking(self.seal):
                lanes = [order[at] for at in batch[0].to_pylist()]
                done = [(lane, self.delivery.deliver(lane, self.lanes[lane])) for lane in lanes]
            columns = [
                pa.array([lane for lane, _ in done], pa.int32()),
                pa.array([found.rows for _, found in done], pa.int64()),
                pa.array([found.transactions for _, found in done], pa.int32()),
                pa.array([found.failure for _, found in done], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["lane", "rows", "transactions", "failure"])
