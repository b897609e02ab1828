"""The permanent names of RocksDB's files, and the translation of its errors into ours."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from strandline.core.errors import CorruptionError, StrandlineError, UnavailableError
from strandline.core.ids import unique_name

_TAG_DIGITS = 16
_ROCKSDB_NAME = re.compile(r"\d+\.(?:sst|blob)")
_LASTING = re.compile(rf"(\d+)-[0-9a-f]{{{_TAG_DIGITS}}}(\.(?:sst|blob))")


class SstFiles:
    """The permanent names of an opened database's SST and blob files.

    RocksDB numbers its files in one sequence that a restore sets back, so that after a restore the same number names
    other bytes. Hence a snapshot names each of them `number-tag.sst`, with a random tag for each opening of a backend:
    no name ever has two contents.
    """

    def __init__(self, directory: Path) -> None:
        """Rename the files of a snapshot in `directory`, if there is one, to RocksDB's names."""
        self._tag = unique_name()[:_TAG_DIGITS]
        self._restored: dict[str, str] = {}
        for path in list(directory.iterdir()):
            if match := _LASTING.fullmatch(path.name):
                self._adopt(path, match[1] + match[2])

    def _adopt(self, path: Path, name: str) -> None:
        if name in self._restored:
            raise CorruptionError(
                f"{path.parent}: holds {path.name} and {self._restored[name]}, files of two snapshots",
                hint="restore one snapshot into an empty directory",
            )
        self._restored[name] = path.name
        path.rename(path.with_name(name))

    def lasting_name(self, name: str) -> str | None:
        """Return the permanent name of a file, or None for a file that is neither SST nor blob."""
        if not _ROCKSDB_NAME.fullmatch(name):
            return None
        number, suffix = name.split(".")
        return self._restored.get(name, f"{number}-{self._tag}.{suffix}")


class Translating:
    """Translates RocksDB's errors, which are bare `Exception`s whose text begins with a kind, into ours."""

    __slots__ = ("_directory", "_noted")

    def __init__(self, directory: Path, noted: dict[int, BaseException] | None = None) -> None:
        """Errors are added to `noted`, by thread id."""
        self._directory = directory
        self._noted = noted

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        ours = self._translated(error)
        if self._noted is not None:
            self._noted[threading.get_ident()] = ours or error
        try:
            if ours is not None:
                raise ours from error
        finally:
            # The error's traceback has this frame: the cycle would keep the values of a write until a collection.
            del ours

    def _translated(self, error: BaseException) -> StrandlineError | None:
        if not (isinstance(error, OSError) or type(error) is Exception):
            return None
        message = f"state directory {self._directory}: {error}"
        if isinstance(error, OSError):
            return UnavailableError(message)
        if str(error).startswith("Corruption") or "No such file" in str(error):
            return CorruptionError(message, hint="the job restores from its last complete checkpoint")
        return UnavailableError(message, hint="look for a full or failing disk")
