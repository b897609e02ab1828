"""The record of the epochs that a file sink has shown. A missing file proves nothing: consumers may move files away.

Each record is a file, `shown-{number}`, and the one with the highest number counts. A driver creates it conditionally,
under the number after the one that it read. If two drivers run, one of them detects the other before it shows anything.
"""

from __future__ import annotations

import logging
import re

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.core.ids import unique_name
from strandline.ends.begins import Begin
from strandline.format.frame import RecordFormat
from strandline.spark.base.filesystem import FileSystem

log = logging.getLogger(__name__)

_NAME = re.compile(r"shown-(\d{12})")


@decodable
class Committable(msgspec.Struct, frozen=True):
    """A staged epoch: the sink's path, the generation that staged it, its directory below the path, its files."""

    root: str
    generation: int
    epoch: int
    directory: str
    files: list[str]


COMMITTABLES = msgspec.json.Decoder(Committable)


class SinkOwner(msgspec.Struct, frozen=True):
    """The owner of rows: a sink of a job, in one life of that job."""

    job: str
    life: str
    sink: str


class VisibilityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record. All epochs up to `epoch` that `generation` or an older one has staged are or were visible."""

    generation: int = 0
    epoch: int = 0
    intent: list[Committable] = []
    """The epochs that are being shown: each of their files is staged, or is or was visible."""
    owner: SinkOwner | msgspec.UnsetType = msgspec.UNSET
    """Missing in records of older versions."""
    by: int | msgspec.UnsetType = msgspec.UNSET
    """A random number of the run that wrote it, so that no two runs write the same bytes. May be missing as well."""
    begins: list[Begin] | msgspec.UnsetType = msgspec.UNSET
    """See `ends/begins.py`. May be missing as well."""

    def covers(self, staged: Committable) -> bool:
        """Whether this epoch was shown. A record does not cover epochs of later generations."""
        return staged.generation <= self.generation and staged.epoch <= self.epoch


RECORD_FORMAT = RecordFormat(b"SLSHOWN1", 1, VisibilityRecord, "the record")


class VisibilityLog:
    """The records of one sink in one output directory. `newest` is the one that counts."""

    def __init__(self, files: FileSystem, root: str, directory: str, owner: SinkOwner | None = None) -> None:
        """`owner` is the writer of records; None to read only."""
        self._files = files
        self._owner = owner or msgspec.UNSET
        # The generation is not unique: a copy of the checkpoint directory, or one that was set back, repeats it.
        self._by = int(unique_name()[:15], 16)
        self._directory = directory
        self._root = root
        numbers = self._numbers()
        self._number = max(numbers, default=0)
        self.newest = self._read(numbers)

    @property
    def exist(self) -> bool:
        """Whether there is any record: the sink has begun in this directory before."""
        return self._number > 0

    def write(self, record: VisibilityRecord) -> None:
        """Write a record durably; raise UnavailableError if another driver has written one after `newest`."""
        self.check_sole_writer()
        if self._number == 0:
            self._files.mkdirs(self._directory)
        begins = record.begins or self.newest.begins
        record = msgspec.structs.replace(record, owner=self._owner, by=self._by, begins=begins)
        number = self._number + 1
        if not self._files.create(self._path(number), RECORD_FORMAT.encode(record)):
            raise self._conflict(number)
        self._number, self.newest = number, record
        # Only now: the older record counts until the new one is complete and durable.
        for older in self._numbers():
            if older < number:
                self._files.delete(self._path(older))

    def check_owner(self) -> None:
        """Raise ConfigurationError if the records are of another owner."""
        if self.newest.owner and self.newest.owner != self._owner:
            raise ConfigurationError(
                f"sink {self._root}: {self._directory} has the record of {self.newest.owner}, expected {self._owner}",
                hint="give the sink another name, or another directory",
            )

    def check_before(self, generation: int) -> None:
        """Raise UnavailableError unless this generation, which begins, is newer than all on record.

        Otherwise a driver that was replaced during its start would record its own begin over the epochs that its
        successor has shown. Or the checkpoint directory was set back, and generations are counted again: a repeated
        generation could not tell its files from the older ones.
        """
        if self.newest.generation >= generation:
            raise UnavailableError(
                f"{self._root}/{self._directory}: generation {self.newest.generation} of the job has shown rows here, "
                f"and generation {generation} begins: another driver has replaced it, or the checkpoint directory was "
                "set back to what it was before",
                hint="run one driver only; after setting the directory back, start again until the generation is newer",
            )

    def check_sole_writer(self) -> None:
        """Raise UnavailableError if another driver has written a record."""
        number = max(self._numbers(), default=0)
        if number != self._number:
            raise self._conflict(number)

    def _read(self, numbers: list[int]) -> VisibilityRecord:
        """Return the newest readable record: a record that a crash has truncated had no effects yet."""
        for number in sorted(numbers, reverse=True):
            # Twice, since the transfer may damage a record.
            for is_last in (False, True):
                data = self._files.read(self._path(number))
                try:
                    if data is not None:
                        return RECORD_FORMAT.decode(data, f"{self._root}/{self._path(number)}")
                except CorruptionError as error:
                    if is_last:
                        log.warning("an unreadable record of a file sink is ignored: %s", error.message)
        return VisibilityRecord()

    def _numbers(self) -> list[int]:
        return [int(match[1]) for name, _ in self._files.list(self._directory) if (match := _NAME.fullmatch(name))]

    def _path(self, number: int) -> str:
        return f"{self._directory}/shown-{number:012d}"

    def _conflict(self, number: int) -> UnavailableError:
        return UnavailableError(
            f"{self._root}/{self._directory}: the newest record of the sink is number {number}, expected "
            f"{self._number}: another driver of the same job is writing here, or the directory was moved or deleted",
            hint="run one driver only, and leave the directory in its place while the job runs",
        )
