"""Staged rows: tasks write them to files, and the delivery cuts them into transactions."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
_PIECE_END = "99999999"
"""The row number in the mark after a whole piece: greater than that of any row."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A file of staged rows."""

    name: str
    rows: int
    bytes: int
    """The size of the rows in Arrow, uncompressed."""
    crc32: int
    """The checksum of the file: detects another intact file in its place."""


class StagedTask(JsonCommittable, frozen=True, array_like=True, tag="rows"):
    """The rows that one task has staged in an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    partition: int
    lane: int
    """The lane of the rows, also in later runs with other lanes: its record in the target has the progress."""
    pieces: list[Piece]
    place: str = ""
    """The url of the staging folder, for errors: a job may be moved, and pieces are read from its present folder."""


class LaneMarks(JsonCommittable, frozen=True, array_like=True, tag="reached"):
    """The marks of lanes in the target at a checkpoint: they must not become smaller."""

    sink: str
    lanes: dict[int, str]


COMMITTABLES: msgspec.json.Decoder[StagedTask | LaneMarks] = msgspec.json.Decoder(StagedTask | LaneMarks)


def generation_of(sink: str, path: str) -> int | None:
    """Return the generation that staged a file of this sink; None for other files."""
    match = re.match(rf"{sink}/g(\d+)/", path)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class RowStager:
    """Stages a partition's rows of an epoch: a task that `write_tasks` runs."""

    place: Place
    sink: str
    generation: Generation
    epoch: Epoch
    parallel: bool = True
    """Whether each partition has a lane; otherwise all rows are in lane 0."""

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> str:
        folder = folder_at(self.place)
        pieces: list[Piece] = []
        buffered: list[pa.RecordBatch] = []
        size = 0

        def write_piece() -> None:
            nonlocal size
            name = f"{self.epoch}-{attempt.partition}-{attempt.name}-{len(pieces)}"
            data = encode_rows(buffered)
            folder.put(f"{self.sink}/g{self.generation}/{name}", data)
            pieces.append(Piece(name, sum(b.num_rows for b in buffered), size, zlib.crc32(data)))
            buffered.clear()
            size = 0

        for batch in batches:
            buffered.append(batch)
            size += batch.nbytes
            if size >= _PIECE_BYTES:
                write_piece()
        if buffered:
            write_piece()
        failpoints.hit("sink.rows_staged")
        lane = attempt.partition if self.parallel else 0
        return StagedTask(self.generation, self.epoch, attempt.partition, lane, pieces, folder.url).text


@dataclass(frozen=True)
class StagedFile:
    """A piece in its lane."""

    number: str
    """The position in the lane, which sorts as a string: later pieces have greater numbers, also across runs."""
    path: str
    piece: Piece
    place: str
    """The url of the folder that it was written to."""

    def mark(self, rows: int) -> str:
        """Return the mark after this number of rows of the piece. Marks sort as strings."""
        return f"{self.number}.{_PIECE_END if rows >= self.piece.rows else f'{rows:08}'}"

    def delivered(self, mark: str | None) -> int:
        """Return how many rows of the piece the target has, by the lane's mark."""
        if mark is None or mark < self.mark(0):
            return 0
        number, _, rows = mark.rpartition(".")
        return int(rows) if number == self.number and rows != _PIECE_END else self.piece.rows

    def read(self, folder: Folder, sink: str) -> list[pa.RecordBatch]:
        """Read the rows of the piece. Raises CorruptionError if the file is missing or not the one that was staged."""
        where = f"{folder.url}/{self.path}"
        hint = (
            "restore the file from a copy; or give the sink another name and start the job with drop=[…] of the "
            "present one, which gives up all rows that wait for it"
        )

        def decode(data: bytes, where: str) -> list[pa.RecordBatch]:
            try:
                rows = decode_rows(data, where)
            except CorruptionError as error:
                raise CorruptionError(f"{sink}: staged rows cannot be read: {error.message}", hint=hint) from None
            if zlib.crc32(data) != self.piece.crc32:
                raise CorruptionError(
                    f"{sink}: staged rows are not those that the checkpoint lists: {where}", hint=hint
                )
            return rows

        try:
            return folder.read(self.path, decode)
        except NotFoundError as error:
            if self.place != folder.url:
                raise CorruptionError(
                    f"{sink}: {folder.url} does not have {self.path}, which was staged in {self.place} before the last "
                    "checkpoint: staging= or checkpoints= of the job was changed",
                    hint="start the job with the former staging= until no rows wait for the sink (see `strandline "
                    "status`), stop it, and change staging= then; or copy "
                    f"{self.path.partition('/')[0]}/ from there to {folder.url}",
                ) from error
            raise CorruptionError(
                f"{sink}: staged rows are missing that the target has no record of: {where}",
                hint="if the target was put back to an older state, restore the job from an older savepoint; otherwise "
                "restore the file from a copy: it was deleted in the checkpoint's storage",
            ) from error


def first_mark(generation: int) -> str:
    """Return a lower bound of a generation's marks."""
    return f"{generation:08}"


def files_of(sink: str, staged: StagedTask) -> Iterator[StagedFile]:
    """Yield a task's pieces in order."""
    for index, piece in enumerate(staged.pieces):
        number = f"{staged.generation:08}.{staged.epoch:012}.{staged.partition:05}.{index:05}"
        yield StagedFile(number, f"{sink}/g{staged.generation}/{piece.name}", piece, staged.place)


@dataclass(frozen=True)
class Remainder:
    """The rows of a piece after its first `delivered` ones."""

    file: StagedFile
    delivered: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.file.piece.rows - self.delivered


def split_waiting(
    waiting: Sequence[StagedFile], mark: str | None, max_rows: int, max_bytes: int
) -> Iterator[list[Remainder]]:
    """Split the rows after a lane's mark into parts, each for about one transaction."""
    part: list[Remainder] = []
    rows = size = 0
    for file in waiting:
        rest = Remainder(file, file.delivered(mark))
        if not rest.rows:
            continue
        if part and (rows + rest.rows > max_rows or size + file.piece.bytes > max_bytes):
            yield part
            part, rows, size = [], 0, 0
        part.append(rest)
        rows, size = rows + rest.rows, size + file.piece.bytes
    if part:
        yield part


@dataclass(frozen=True)
class TransactionRows:
    """The rows of a transaction, with their positions in the lane."""

    remainders: Sequence[Remainder]
    _batches: Sequence[pa.RecordBatch]

    @classmethod
    def read(
        cls, remainders: Sequence[Remainder], read: Callable[[StagedFile], Sequence[pa.RecordBatch]]
    ) -> TransactionRows:
        """Read the rows from their files."""
        return cls(remainders, [b for r in remainders for b in _skip(read(r.file), r.delivered)])

    @cached_property
    def _ends(self) -> list[int]:
        """The total number of rows up to the end of each remainder."""
        ends, end = [], 0
        for rest in self.remainders:
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
        rest, row = self._locate(stop - 1)
        return rest.file.mark(row + 1)

    def _ids(self, sink: str, start: int, stop: int) -> list[str]:
        return [f"{sink}-{rest.file.number}.{row:08}" for rest, row in map(self._locate, range(start, stop))]

    def _locate(self, row: int) -> tuple[Remainder, int]:
        """Return the remainder that has a row of the transaction, and the row's number in its piece."""
        index = bisect_right(self._ends, row)
        rest = self.remainders[index]
        return rest, rest.delivered + row - (self._ends[index] - rest.rows)


def _skip(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if rows else batch
        rows = max(0, rows - batch.num_rows)
