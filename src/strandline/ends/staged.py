"""Rows that wait for their way into a target: staged by tasks in files, and cut into transactions."""

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
"""How much of a task's rows is in one file: they are in memory whole."""
_WHOLE = "99999999"
"""Stands in the mark of a piece's end: greater than that of any of its rows."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A file of staged rows."""

    name: str
    rows: int
    bytes: int
    """As Arrow has them, uncompressed."""
    crc32: int
    """Of the file: whole as it may be, another one in its place would be other rows."""


class StagedTask(JsonCommittable, frozen=True, array_like=True, tag="rows"):
    """What one task has staged of an epoch: a committable."""

    generation: Generation
    epoch: Epoch
    partition: int
    lane: int
    """In which it is delivered, whatever lanes the target has in later runs: that lane's record says what is done."""
    pieces: list[Piece]
    place: str = ""
    """The url that the pieces are below. They are looked for where the sink stages now: a job's folder may be moved."""


class Reached(JsonCommittable, frozen=True, array_like=True, tag="reached"):
    """How far lanes had come in the target at a checkpoint: it may not be less again."""

    sink: str
    lanes: dict[int, str]


LISTED: msgspec.json.Decoder[StagedTask | Reached] = msgspec.json.Decoder(StagedTask | Reached)


def generation_in(sink: str, path: str) -> int | None:
    """Return which run of the sink has staged a file, if one has."""
    found = re.match(rf"{sink}/g(\d+)/", path)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class StageRows:
    """Stages a partition's rows of an epoch: what `write_tasks` calls."""

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
    """A piece that may have to be written."""

    number: str
    """Where it stands in its lane: those that come later have greater ones, whatever run has staged them."""
    path: str
    piece: Piece
    place: str
    """The url of the folder that it was put into."""

    def mark(self, rows: int) -> str:
        """Return the mark of having written so many of its rows: marks grow, as strings."""
        return f"{self.number}.{_WHOLE if rows >= self.piece.rows else f'{rows:08}'}"

    def done(self, mark: str | None) -> int:
        """Return how many of its rows were written when this was the lane's mark."""
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
                    hint=f"start the job with the former staging= until nothing waits for the sink (`strandline status`"
                    f" says so), and change it then; or copy {self.path.partition('/')[0]}/ from there to {folder.url}",
                ) from error
            raise CorruptionError(
                f"{sink}: staged rows are gone that the target does not have on record: {where}",
                hint="they were deleted in the checkpoint's storage, or the target was put back to an older state; if "
                "it was, restore the job from a savepoint of before",
            ) from error
        hint = (
            "bring the file back from a copy; or give the sink another name and start the job with drop=[…] of the "
            "present one, which gives up all rows that wait for it"
        )
        try:
            rows = decode_rows(data, where)
        except CorruptionError as error:
            raise CorruptionError(f"{sink}: staged rows cannot be read: {error.message}", hint=hint) from None
        if zlib.crc32(data) != self.piece.crc32:
            raise CorruptionError(f"{sink}: staged rows are others than the checkpoint lists: {where}", hint=hint)
        return rows


def first_mark(generation: int) -> str:
    """Return what no mark of a generation's is less than."""
    return f"{generation:08}"


def waiting_in(sink: str, staged: StagedTask) -> Iterator[StagedFile]:
    """Return a task's pieces in their order."""
    for at, piece in enumerate(staged.pieces):
        number = f"{staged.generation:08}.{staged.epoch:012}.{staged.partition:05}.{at:05}"
        yield StagedFile(number, f"{sink}/g{staged.generation}/{piece.name}", piece, staged.place)


@dataclass(frozen=True)
class Remainder:
    """What is left of a piece."""

    waiting: StagedFile
    done: int

    @property
    def rows(self) -> int:
        """How many rows that are."""
        return self.waiting.piece.rows - self.done


def rests(waiting: Sequence[StagedFile], since: str | None, max_rows: int, max_bytes: int) -> Iterator[list[Remainder]]:
    """Cut what lies behind a lane's mark into parts, each for about one transaction."""
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
    """Rows on their way into a target, with where they stand."""

    rests: Sequence[Remainder]
    _batches: Sequence[pa.RecordBatch]

    @classmethod
    def read(cls, rests: Sequence[Remainder], folder: Folder, sink: str) -> TransactionRows:
        """Read what is left of these pieces."""
        batches = [b for r in rests for b in _behind(r.waiting.read(folder, sink), r.done)]
        return cls(rests, batches)

    @cached_property
    def _ends(self) -> list[int]:
        """Of each piece, how many of the rows end with it."""
        ends, end = [], 0
        for rest in self.rests:
            end += rest.rows
            ends.append(end)
        return ends

    @property
    def rows(self) -> int:
        """How many they are."""
        return self._ends[-1]

    def cut(self, sink: str, start: int, stop: int) -> Rows:
        """Return those from `start` up to `stop`."""
        return Rows(self._between(start, stop), lambda: self._ids(sink, start, stop))

    def _between(self, start: int, stop: int) -> list[pa.RecordBatch]:
        found, at = [], 0
        for batch in self._batches:
            first, last = max(start - at, 0), min(stop - at, batch.num_rows)
            if first < last:
                found.append(batch.slice(first, last - first))
            at += batch.num_rows
        return found

    def mark(self, stop: int) -> str:
        """Return the mark of having written all up to `stop`."""
        rest, row = self._at(stop - 1)
        return rest.waiting.mark(row + 1)

    def _ids(self, sink: str, start: int, stop: int) -> list[str]:
        return [f"{sink}-{rest.waiting.number}.{row:08}" for rest, row in map(self._at, range(start, stop))]

    def _at(self, at: int) -> tuple[Remainder, int]:
        index = bisect_right(self._ends, at)
        rest = self.rests[index]
        return rest, rest.done + at - (self._ends[index] - rest.rows)


def _behind(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Give batches without so many rows at their beginning."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if rows else batch
        rows = max(0, rows - batch.num_rows)
