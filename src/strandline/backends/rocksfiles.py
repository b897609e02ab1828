"""The permanent names of RocksDB's files, and the translation of its errors into Strandline's."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Literal

import msgspec

from strandline.backends.walformat import DAMAGED, FIRST, MIDDLE, PIECE_BYTES, WHOLE, records
from strandline.core.errors import CorruptionError, StrandlineError, UnavailableError, local_files_hint
from strandline.core.ids import unique_name

BLOCK_CHECKED = (".sst",)
"""The endings of files of which RocksDB verifies each block that it reads, and that the file is the one it wrote.

It reads an older blob file as the right one, and a MANIFEST without records that are damaged, without an error.
"""
_HINT = "the job restores from its last complete checkpoint"
_TAG_DIGITS = 16
_OTHER_NAME = re.compile(
    r"CURRENT|LOCK|IDENTITY|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|blob|log|dbtmp)|.*\.json|archive"
)
_ROCKSDB_NAME = re.compile(r"\d+\.(?:sst|blob)")
_PERMANENT_NAME = re.compile(rf"(\d+)-[0-9a-f]{{{_TAG_DIGITS}}}(\.(?:sst|blob))")
_PERMANENT_MANIFEST = re.compile(rf"(MANIFEST-\d+)-[0-9a-f]{{{_TAG_DIGITS}}}-\d+")
_LOG_PART = re.compile(rf"(\d+)-([0-9a-f]{{{_TAG_DIGITS}}})-(\d+)-(\d+)\.log")
_LOG_NAME = re.compile(r"(\d+)\.log")


def permanent_kind(name: str) -> Literal["table", "manifest", "part"] | None:
    """Return the kind of a permanent name: of an SST or blob file, a MANIFEST or a log's part; None for other names."""
    if _PERMANENT_NAME.fullmatch(name):
        return "table"
    if _PERMANENT_MANIFEST.fullmatch(name):
        return "manifest"
    return "part" if _LOG_PART.fullmatch(name) else None


def part_bounds(name: str) -> tuple[int, str, int, int]:
    """Return the number of the log of which a part is, its tag, and where the part begins and ends there."""
    number, tag, start, end = name.removesuffix(".log").split("-")
    return int(number), tag, int(start), int(end)


def logs_in(directory: Path) -> dict[int, Path]:
    """Return RocksDB's logs in a directory, by number; none if it does not exist."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return {int(match[1]): path for path in paths if (match := _LOG_NAME.fullmatch(path.name))}


def check_manifest(directory: Path) -> None:
    """Raise CorruptionError if a MANIFEST has zeros for records, or ends in the middle of one.

    RocksDB reads it without them, and knows nothing of the files that they list: that state is gone without an error.
    """
    for path in directory.glob("MANIFEST-*"):
        data = path.read_bytes()
        *_, (kind, _, at) = [(WHOLE, 0, 0), *records(data, 0)]
        if kind in (DAMAGED, FIRST, MIDDLE):
            raise CorruptionError(f"{path}: RocksDB's list of files is damaged at byte {at} of {len(data)}", hint=_HINT)


class Names(msgspec.Struct, frozen=True):
    """The permanent names of an open database's files: those of `restored` have another one than `tag` gives."""

    tag: str
    restored: dict[str, str]


class SstFiles:
    """The permanent names of an opened database's files.

    RocksDB numbers its files in one sequence. A restore sets it back, and then the same number names other bytes. Hence
    a snapshot names each file `number-tag.sst`, with a random tag for each opening of a backend: no name ever has two
    contents. In a snapshot with a log, its MANIFEST has such a name too, and each log consists of parts.
    """

    def __init__(self, directory: Path, before: Names | None = None) -> None:
        """Check the files of a snapshot in `directory`, if there is one, and give them RocksDB's names.

        With `before`, they have RocksDB's names since an opening with those names.
        """
        self.tag = unique_name()[:_TAG_DIGITS]
        """A name of the opening."""
        self._restored: dict[str, str] = {}
        if before is not None:
            # RocksDB gives no number again that a file in a snapshot has.
            native = (path.name for path in directory.iterdir() if _ROCKSDB_NAME.fullmatch(path.name))
            self._restored = {name: before.restored.get(name) or _tagged(name, before.tag) for name in native}
        self._manifests = 0
        parts: dict[str, list[Path]] = {}
        for path in list(directory.iterdir()):
            if match := _PERMANENT_NAME.fullmatch(path.name):
                self._adopt(path, match[1] + match[2])
            elif match := _PERMANENT_MANIFEST.fullmatch(path.name):
                self._adopt(path, match[1])
                (directory / "CURRENT").write_text(f"{match[1]}\n")
            elif match := _LOG_PART.fullmatch(path.name):
                parts.setdefault(match[1], []).append(path)
            elif not _OTHER_NAME.fullmatch(path.name):
                # Without it, the state would lack what the file has.
                raise CorruptionError(
                    f"{path}: RocksDB's files have no such name, nor do those of a snapshot",
                    hint="a newer release of Strandline may have made the snapshot: restore it with that one",
                )
        for number, of_log in parts.items():
            join_parts(directory / f"{number}.log", sorted(of_log))
            for path in of_log:
                path.unlink()
        check_manifest(directory)

    def _adopt(self, path: Path, name: str) -> None:
        if name in self._restored:
            raise CorruptionError(
                f"{path.parent}: holds {path.name} and {self._restored[name]}, files of two snapshots",
                hint="restore one snapshot into an empty directory",
            )
        self._restored[name] = path.name
        path.rename(path.with_name(name))

    def permanent_name(self, name: str) -> str | None:
        """Return the permanent name of a file, or None for a file that is neither SST nor blob."""
        if not _ROCKSDB_NAME.fullmatch(name):
            return None
        return self._restored.get(name) or _tagged(name, self.tag)

    @property
    def names(self) -> Names:
        """The names that another opening needs of this one."""
        return Names(self.tag, self._restored)

    def manifest_name(self, name: str) -> str:
        """Return a permanent name for the present content of a MANIFEST. A restore makes CURRENT from it."""
        self._manifests += 1
        return f"{name}-{self.tag}-{self._manifests}"


def log_part_name(number: int, tag: str, start: int, end: int) -> str:
    """Return the permanent name of the bytes of a log from `start` to before `end`."""
    return f"{number:06}-{tag}-{start:012}-{end:012}.log"


def _tagged(name: str, tag: str) -> str:
    number, suffix = name.split(".")
    return f"{number}-{tag}.{suffix}"


def join_parts(log: Path, parts: list[Path]) -> None:
    """Make a log of its parts, as a new file: RocksDB may change it."""
    tags, size_bytes = set(), 0
    for path in parts:
        _, tag, start, end = part_bounds(path.name)
        tags.add(tag)
        if len(tags) > 1 or start != size_bytes or path.stat().st_size != end - start:
            raise CorruptionError(
                f"{log.parent}: {log.name} has the part {path.name} of {path.stat().st_size} bytes, expected one that "
                f"begins at {size_bytes}, of one snapshot",
                hint="restore one snapshot into an empty directory",
            )
        size_bytes = end
    with log.open("wb") as joined:
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined, PIECE_BYTES)


class ErrorTranslation:
    """A context that translates RocksDB's errors: bare `Exception`s whose text begins with their kind."""

    __slots__ = ("_directory", "_errors_by_thread")

    def __init__(self, directory: Path, errors_by_thread: dict[int, BaseException] | None = None) -> None:
        """Errors are also added to `errors_by_thread`, by thread id."""
        self._directory = directory
        self._errors_by_thread = errors_by_thread

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        translated = self._translate(error)
        if self._errors_by_thread is not None:
            self._errors_by_thread[threading.get_ident()] = translated or error
        try:
            if translated is not None:
                raise translated from error
        finally:
            # The error's traceback refers to this frame: the cycle would keep a write's values for long.
            del translated

    def _translate(self, error: BaseException) -> StrandlineError | None:
        if not (isinstance(error, OSError) or type(error) is Exception):
            return None
        message = f"state directory {self._directory}: {error}"
        if isinstance(error, OSError):
            return UnavailableError(message, hint=local_files_hint(error))
        if str(error).startswith("Corruption") or "No such file" in str(error):
            return CorruptionError(message, hint=_HINT)
        return UnavailableError(message, hint=local_files_hint(error))
