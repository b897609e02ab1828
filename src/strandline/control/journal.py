"""The journal of this machine's jobs: a small file for each, with its last state, read when no driver answers.

No job depends on it: a job restores only from its checkpoint directory.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from strandline.control.status import State
from strandline.core.program import ProgramFile
from strandline.core.version import VERSION
from strandline.keeper.paths import Places, driver_records

ENDED: frozenset[State] = frozenset({"finished", "stopped", "failed"})


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The latest state of a job, written by its newest driver."""

    job: str
    directory: str
    """The checkpoint directory, as a url."""
    pid: int
    born: str
    """When that process began, in clock ticks: another process may have its pid by now."""
    since_ms: int
    """When the run began."""
    state: State
    at_ms: int
    """Since when it is in this state."""
    failure: str = ""
    """The reason of the last failure or restart."""
    failure_ms: int | None = None
    engine: str = VERSION
    program: ProgramFile | None = None
    """The program that started it; None if that was no file, as in a notebook."""

    @property
    def fate(self) -> str:
        """The job's end: its final state; "killed" if its process ended without writing one; "" if it runs."""
        if self.state in ENDED:
            return self.state
        return "" if self.born and process_start(self.pid) == self.born else "killed"


def write(places: Places, record: JournalEntry) -> JournalEntry | None:
    """Replace the job's record, unless a later run is at work, and return it. Errors of the file system are ignored."""
    path = places.driver_record
    before = next(iter(_read(path)), None)
    if before is not None and before.since_ms > record.since_ms and not before.fate:
        return None
    hidden = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        hidden.touch(0o600)
        hidden.write_bytes(msgspec.json.encode(record))
        hidden.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        return None
    return before


def records(local_dir: Path, job: str | None = None) -> list[JournalEntry]:
    """Return the records of the jobs with this local_dir, the newest first."""
    matches = [record for path in driver_records(local_dir) for record in _read(path) if job in (None, record.job)]
    return sorted(matches, key=lambda record: -record.at_ms)


def _read(path: Path) -> list[JournalEntry]:
    """Return the record of a file; none of another version, or of a broken one."""
    try:
        return [msgspec.json.decode(path.read_bytes(), type=JournalEntry)]
    except (OSError, msgspec.DecodeError):
        return []


def process_start(pid: int) -> str:
    """Return when a process began, in clock ticks; "" if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] != "Z":
            return after_name[19]
    return ""
