"""On record: what a file sink has shown. That a file is not there says nothing: a consumer may have taken it.

Each record is a file of its own, `shown-{number}`, and the one with the highest number counts. It is made by a
conditional create under the number after the one that was read: of two drivers that both take themselves for the
owner, one finds that it is not alone before it shows anything.
"""

from __future__ import annotations

import logging
import re

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.core.ids import unique_name
from strandline.format.frame import RecordFormat
from strandline.spark.base.filesystem import FileSystem

log = logging.getLogger(__name__)

_NAME = re.compile(r"shown-(\d{12})")


@decodable
class Committable(msgspec.Struct, frozen=True):
    """A staged epoch: the sink's path then, the generation that staged it, its directory below the path, its files."""

    root: str
    generation: int
    epoch: int
    directory: str
    files: list[str]


LISTED = msgspec.json.Decoder(Committable)


class Owner(msgspec.Struct, frozen=True):
    """Whose rows they are: a sink of a job, in one life of that job."""

    job: str
    life: str
    sink: str


class VisibilityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record. Everything up to `epoch` that `generation` or an older one staged is visible, or was."""

    generation: int = 0
    epoch: int = 0
    intent: list[Committable] = []
    """What is being shown: each file of these is staged, or visible, or was."""
    owner: Owner | msgspec.UnsetType = msgspec.UNSET
    """Left out by those that did not know it yet."""
    by: int | msgspec.UnsetType = msgspec.UNSET
    """A number that the run has drawn which wrote it: no other one writes the same bytes. Left out as well."""

    def covers(self, staged: Committable) -> bool:
        """Whether this epoch was shown. The record knows nothing of what was staged by a later generation."""
        return staged.generation <= self.generation and staged.epoch <= self.epoch


SHOWN = RecordFormat(b"SLSHOWN1", 1, VisibilityRecord, "the record")


class VisibilityLog:
    """The records of one sink in one output directory. `newest` is the one that counts."""

    def __init__(self, files: FileSystem, root: str, directory: str, owner: Owner | None = None) -> None:
        """`owner` is who writes records here, and nobody if they are only read."""
        self._files = files
        self._owner = owner or msgspec.UNSET
        # Not its generation: in a copy of the checkpoint directory, or one that was set back, another run has the same.
        self._by = int(unique_name()[:15], 16)
        self._directory = directory
        self._root = root
        numbers = self._numbers()
        self._number = max(numbers, default=0)
        self.newest = self._read(numbers)

    @property
    def are_there(self) -> bool:
        """Whether there is any: the sink has begun in this directory before."""
        return self._number > 0

    def write(self, record: VisibilityRecord) -> None:
        """Make this the record that counts, durably; raise UnavailableError if it would not follow on `newest`."""
        self.check_alone()
        if self._number == 0:
            self._files.mkdirs(self._directory)
        record = msgspec.structs.replace(record, owner=self._owner, by=self._by)
        number = self._number + 1
        if not self._files.create(self._path(number), SHOWN.encode(record)):
            raise self._not_alone(number)
        self._number, self.newest = number, record
        # Only now: until the new one was whole and durable, the older one counted.
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

        A driver that was replaced while it started would else put its own beginning on record, as if what its
        successor has shown meanwhile never was. Or the checkpoint directory was set back, and generations count again
        from an older one: only one that was never there tells its files from those of before.
        """
        if self.newest.generation >= generation:
            raise UnavailableError(
                f"{self._root}/{self._directory}: generation {self.newest.generation} of the job has shown rows here, "
                f"and generation {generation} begins: another driver has replaced it, or the checkpoint directory was "
                "set back to what it was before",
                hint="keep one driver; after setting the directory back, start again until the generation is newer",
            )

    def check_alone(self) -> None:
        """Raise UnavailableError if the records are not as this driver has left them."""
        number = max(self._numbers(), default=0)
        if number != self._number:
            raise self._not_alone(number)

    def _read(self, numbers: list[int]) -> VisibilityRecord:
        """Return the newest record that can be read: one that a crash cut off was not acted upon."""
        for number in sorted(numbers, reverse=True):
            data = self._files.read(self._path(number))
            try:
                if data is not None:
                    return SHOWN.decode(data, f"{self._root}/{self._path(number)}")
            except CorruptionError as error:
                log.warning("a record of what a sink has shown is passed over: %s", error.message)
        return VisibilityRecord()

    def _numbers(self) -> list[int]:
        return [int(found[1]) for name, _ in self._files.list(self._directory) if (found := _NAME.fullmatch(name))]

    def _path(self, number: int) -> str:
        return f"{self._directory}/shown-{number:012d}"

    def _not_alone(self, found: int) -> UnavailableError:
        return UnavailableError(
            f"{self._root}/{self._directory}: the newest record of what the sink has shown is number {found}, expected "
            f"{self._number}: another driver of the same job is writing here, or the directory was moved or deleted",
            hint="keep one driver, and leave the directory in its place while the job runs",
        )
