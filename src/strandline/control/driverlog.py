"""The log file of a job's drivers, with announcements and warnings, beside the keepers' logs. It outlives the job."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from strandline.control.announcements import is_logged, listening
from strandline.control.rotated import RotatedFile


class DriverLog(logging.Handler):
    """Writes a driver's log while it is open. With several jobs in a process, each log has the records of all."""

    shows_nothing = True

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path
        self._file = RotatedFile(path)
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start to record announcements and warnings."""
        logger = logging.getLogger("strandline")
        self._open.enter_context(listening(self.note))
        logger.addHandler(self)
        self._open.callback(logger.removeHandler, self)

    def close(self) -> None:
        """Stop recording."""
        self._open.close()
        super().close()

    def note(self, text: str, detail: bool = False) -> None:
        """Write an announcement."""
        self._write("DEBUG" if detail else "INFO", text)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning, and show it on standard error if the program has no handler of its own."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._write(record.levelname, text)
        if not is_logged() and self is logging.getLogger("strandline").handlers[0] and logging.lastResort:
            # Python shows warnings only where no handler is, and this one shows nothing.
            logging.lastResort.handle(record)

    def _write(self, level: str, text: str) -> None:
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        first, *more = text.splitlines() or [""]
        lines = "".join(f"  {line}\n" for line in more)
        # A full disk must not suppress the report of the job's end.
        self._file.append(f"{now} {os.getpid()} {level} {first}\n{lines}".encode(errors="replace"))


@dataclass
class LogEntry:
    """One record of a driver's log."""

    at: str
    """In ISO 8601."""
    pid: int
    level: str
    text: str


_ENTRY = re.compile(r"(\S+) (\d+) ([A-Z]+) (.*)")
_MOST_BYTES = 256 << 10


def read_entries(path: Path, most_bytes: int = _MOST_BYTES) -> list[LogEntry]:
    """Return the records at the end of a log, oldest first; none if there is no log."""
    entries: list[LogEntry] = []
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        for line in file.read().decode(errors="replace").splitlines():
            if match := _ENTRY.fullmatch(line):
                entries.append(LogEntry(match[1], int(match[2]), match[3], match[4]))
            elif entries:
                # A part of a line at the beginning belongs to no entry.
                entries[-1].text += f"\n{line.removeprefix('  ')}"
    return entries
