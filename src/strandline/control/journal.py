"""What became of the jobs of this machine: a small file a job, for whoever asks when no driver answers any more.

Nothing depends on it: what a job goes on from is in its checkpoint directory alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from strandline.control.status import State
from strandline.core.version import VERSION
from strandline.keeper.paths import Places, driver_records

ENDED: frozenset[State] = frozenset({"finished", "stopped", "failed"})


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The newest that the newest driver of a job has said of it."""

    job: str
    directory: str
    """The checkpoint directory, as a url."""
    pid: int
    born: str
    """When that process began, in ticks of the system: another process may have its number by now."""
    since_ms: int
    """When the run began."""
    state: State
    at_ms: int
    """Since when it is in this state."""
    failure: str = ""
    """Why it failed, or was restarted, last."""
    failure_ms: int | None = None
    engine: str = VERSION

    @property
    def fate(self) -> str:
        """What became of it: its state if it has ended, "killed" if its process has gone without a word, else ""."""
        if self.state in ENDED:
            return self.state
        return "" if self.born and born(self.pid) == self.born else "killed"


def write(places: Places, record: JournalEntry) -> None:
    """Keep a record, in place of the one before. What a full disk keeps from it is nobody's trouble."""
    path = places.driver_record
    hidden = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        hidden.write_bytes(msgspec.json.encode(record))
        hidden.chmod(0o600)
        hidden.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)


def records(local_dir: Path, job: str | None = None) -> list[JournalEntry]:
    """Return what is known of the jobs with this local_dir, the newest first."""
    found = []
    for path in driver_records(local_dir):
        # It may be another version's, or broken: nothing depends on it.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            record = msgspec.json.decode(path.read_bytes(), type=JournalEntry)
            if job in (None, record.job):
                found.append(record)
    return sorted(found, key=lambda record: -record.at_ms)


def born(pid: int) -> str:
    """Return when a process began; "" if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] != "Z":
            return after_name[19]
    return ""
