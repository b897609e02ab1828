"""What RocksDB's files are called for ever, and what its errors are in our words."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from strandline.core.errors import CorruptionError, StrandlineError, UnavailableError
from strandline.core.ids import unique_name

_TAG_DIGITS = 16
_OWN = re.compile(r"\d+\.(?:sst|blob)")
_LASTING = re.compile(rf"(\d+)-[0-9a-f]{{{_TAG_DIGITS}}}(\.(?:sst|blob))")


class SstFiles:
    """The lasting names of an opened database's SST and blob files.

    RocksDB numbers its files in one sequence that a restore sets back, so that after a restore the same number names
    other bytes. Hence a snapshot calls each of them `number-tag.sst`, the tag drawn once each time a backend is opened:
    no name ever stands for two contents.
    """

    def __init__(self, directory: Path) -> None:
        """Rename the files of a snapshot in `directory`, if it holds one, to what RocksDB calls them."""
        self._tag = unique_name()[:_TAG_DIGITS]
        self._restored: dict[str, str] = {}
        for path in list(directory.iterdir()):
            if match := _LASTING.fullmatch(path.name):
                self._adopt(path, match[1] + match[2])

    def _adopt(self, path: Path, own: str) -> None:
        if own in self._restored:
            raise CorruptionError(
                f"{path.parent}: holds {path.name} and {self._restored[own]}, files of two snapshots",
                hint="restore one snapshot into an empty directory",
            )
        self._restored[own] = path.name
        path.rename(path.with_name(own))

    def lasting_name(self, own: str) -> str | None:
        """Return the name that a file keeps for ever, or None for a file that is neither SST nor blob."""
        if not _OWN.fullmatch(own):
            return None
        number, suffix = own.split(".")
        return self._restored.get(own, f"{number}-{self._tag}.{suffix}")


class Translating:
    """Turns RocksDB's errors, which are bare `Exception`s whose text begins with a kind, into ours."""

    __slots__ = ("_directory", "_noted")

    def __init__(self, directory: Path, noted: dict[int, BaseException] | None = None) -> None:
        """Errors are `noted`, by the thread that has them."""
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
            # Its traceback has this frame: the two would keep the values of a write until garbage is collected.
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
