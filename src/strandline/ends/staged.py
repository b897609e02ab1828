"""Staged rows: tasks write them to files, and the delivery cuts them into transactions."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import pyarrow as pa

from strandline.checkpoint.folder import Folder, folder_at
from strandline.core import failpoints
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import Epoch, Generation
from strandline.ends.committables import JsonCommittable, TaskAttempt
from strandline.ends.target import Rows
from strandline.format.rows import decode_rows, encode_rows
from strandline.storage.place import Place

_PIECE_BYTES = 8 << 20
"""The size of a file of staged rows, which is in memory as a whole."""
_WHOLE = "99999999"
"""In the mark of a piece's end: greater than the number of any of its rows."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A file of staged rows."""

    name: str
    rows: int
    bytes: int
    """Their size in Arrow, uncompressed."""
    crc32: int
    """Of the file: detects another intact file in its place."""


class StagedTask(JsonCommittable, frozen=True, array_like=True, tag="rows"):
    """The rows that one task has staged in an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    partition: int
    lane: int
    """The lane of its delivery, also in later runs with other lanes: that lane's record has the progress."""
    pieces: list[Piece]
    place: str = ""
    """The url of the staging folder, for errors. Pieces are read from the present one: a job's folder may be moved."""


class LaneMarks(JsonCommittable, frozen=True, array_like=True, tag="reached"):
    """The marks of lanes in the target at a checkpoint: they must not become smaller."""

    sink: str
    lanes: dict[int, str]


COMMITTABLES: msgspec.json.Decoder[StagedTask | LaneMarks] = msgspec.json.Decoder(StagedTask | LaneMarks)


def generation_of(sink: str, path: str) -> int | None:
    """Return the generation of the sink that has staged a file; None for other files."""
    match = re.match(rf"{sink}/g(\d+)/", path)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class StageRows:
    """The task that stages a partition's rows of an epoch, called by `write_tasks`."""

    place: Place
    sink: str
    generation: Generation
    epoch: Epoch
    parallel: bool = True
    """Whether each partition has a lane; else all are in lane 0."""

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        folder = folder_at(self.place)
        pieces: list[Piece] = []
        held: list[pa.RecordBatch] = []
        size = 0

        def put() -> None:
            nonlocal size
            name = f"{self.epoch}-{attempt.partition}-{attempt.name}-{len(pieces)}"
            data = encode_rows(held)
            folder.put(f"{self.sink}/g{self.generation}/{name}", data)
            pieces.append(Piece(name, sum(b.num_rows for b in held), size, zlib.crc32(data)))
            held.clear()
            size = 0

        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= _PIECE_BYTES:
                put()
        if held:
            put()
        failpoints.hit("sink.rows_staged")
        lane = attempt.partition if self.parallel else 0
        return StagedTask(self.generation, self.epoch, attempt.partition, lane, pieces, folder.url).text


@dataclass(frozen=True)
class StagedFile:
    """A piece, with its position in its lane."""

    number: str
    """Its position in the lane: later pieces have greater numbers, also across runs."""
    path: str
    piece: Piece
    place: str
    """The url of the folder that it was written to."""

    def mark(self, rows: int) -> str:
        """Return the mark after so many of its rows. Marks sort as strings."""
        return f"{self.number}.{_WHOLE if rows >= self.piece.rows else f'{rows:08}'}"

    def done(self, mark: str | None) -> int:
        """Return the number of its rows up to the lane's mark."""
        if mark is None or mark < self.mark(0):
            return 0
        number, _, rows = mark.rpartition(".")
        return int(rows) if number == self.number and rows != _WHOLE else self.piece.rows

    def read(self, folder: Folder, sink: str) -> list[pa.RecordBatch]:
        """Read its rows."""
        where = f"{folder.url}/{self.path}"
        try:
            data = folder.get(self.path)
        except NotFoundError as error:
            if self.place != folder.url:
                raise CorruptionError(
                    f"{sink}: rows of the last checkpoint were staged in {self.place}, and the sink now stages in "
                    f"{folder.url}, which does not have {self.path}: staging= or checkpoints= of the job was changed",
                    hint="start the job with the former staging= until no rows wait for the sink (see `strandline "
                    f"status`), and change it then; or copy {self.path.partition('/')[0]}/ from there to {folder.url}",
                ) from error
            raise CorruptionError(
                f"{sink}: staged rows are gone that the target does not have on record: {where}",
                hint="they were deleted in the checkpoint's storage, or the target was put back to an older state; in "
                "that case, restore the job from an older savepoint",
            ) from error
        hint = (
            "restore the file from a copy; or give the sink another name and start the job with drop=[…] of the "
            "present one, which gives up all rows that wait for it"
        )
        try:
            rows = decode_rows(data, where)
        except CorruptionError as error:
            raise CorruptionError(f"{sink}: staged rows cannot be read: {error.message}", hint=hint) from None
        if zlib.crc32(data) != self.piece.crc32:
            raise CorruptionError(f"{sink}: staged rows are not those that the checkpoint lists: {where}", hint=hint)
        return rows


def first_mark(generation: int) -> str:
    """Return a lower bound of a generation's marks."""
    return f"{generation:08}"


def files_of(sink: str, staged: StagedTask) -> Iterator[StagedFile]:
    """Return a task's pieces in order."""
    for at, piece in enumerate(staged.pieces):
        number = f"{staged.generation:08}.{staged.epoch:012}.{staged.partition:05}.{at:05}"
        yield StagedFile(number, f"{sink}/g{staged.generation}/{piece.name}", piece, staged.place)


@dataclass(frozen=True)
class Remainder:
    """The undelivered rest of a piece."""

    waiting: StagedFile
    done: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.waiting.piece.rows - self.done


def split_waiting(
    waiting: Sequence[StagedFile], since: str | None, max_rows: int, max_bytes: int
) -> Iterator[list[Remainder]]:
    """Split the rows after a lane's mark into parts, each for about one transaction."""
    part: list[Remainder] = []
    rows = size = 0
    for each in waiting:
        rest = Remainder(each, each.done(since))
        if not rest.rows:
            continue
        if part and (rows + rest.rows > max_rows or size + each.piece.bytes > max_bytes):
            yield part
            part, rows, size = [], 0, 0
        part.append(rest)
        rows, size = rows + rest.rows, size + each.piece.bytes
    if part:
        yield part


@dataclass(frozen=True)
class TransactionRows:
    """The rows of a transaction, with their positions in the lane."""

    rests: Sequence[Remainder]
    _batches: Sequence[pa.RecordBatch]

    @classmethod
    def read(cls, rests: Sequence[Remainder], folder: Folder, sink: str) -> TransactionRows:
        """Read the rests of these pieces."""
        batches = [b for r in rests for b in _skip(r.waiting.read(folder, sink), r.done)]
        return cls(rests, batches)

    @cached_property
    def _ends(self) -> list[int]:
        """The number of rows up to the end of each piece."""
        ends, end = [], 0
        for rest in self.rests:
            end += rest.rows
            ends.append(end)
        return ends

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._ends[-1]

    def cut(self, sink: str, start: int, stop: int) -> Rows:
        """Return the rows from `start` up to `stop`."""
        return Rows(self._between(start, stop), lambda: self._ids(sink, start, stop))

    def _between(self, start: int, stop: int) -> list[pa.RecordBatch]:
        batches, at = [], 0
        for batch in self._batches:
            first, last = max(start - at, 0), min(stop - at, batch.num_rows)
            if first < last:
                batches.append(batch.slice(first, last - first))
            at += batch.num_rows
        return batches

    def mark(self, stop: int) -> str:
        """Return the mark after the rows up to `stop`."""
        rest, row = self._at(stop - 1)
        return rest.waiting.mark(row + 1)

    def _ids(self, sink: str, start: int, stop: int) -> list[str]:
        return [f"{sink}-{rest.waiting.number}.{row:08}" for rest, row in map(self._at, range(start, stop))]

    def _at(self, at: int) -> tuple[Remainder, int]:
        index = bisect_right(self._ends, at)
        rest = self.rests[index]
        return rest, rest.done + at - (self._ends[index] - rest.rows)


def _skip(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if rows else batch
        rows = max(0, rows - batch.num_rows)
