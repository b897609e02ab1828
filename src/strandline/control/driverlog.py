"""The log of a job's drivers: what they told and warned of, beside the logs of its keepers, and outliving the job."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from datetime import datetime
from pathlib import Path

from strandline.control.announcements import is_logged, listening

MOST_BYTES = 8 << 20
"""How long it gets before it is put aside; one older file is kept."""


class DriverLog(logging.Handler):
    """Writes a driver's log while it is open. Of several jobs in one process, each log has what concerns them all."""

    shows_nothing = True

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path = path
        self._writing = threading.Lock()
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Begin to listen."""
        logger = logging.getLogger("strandline")
        self._open.enter_context(listening(self.note))
        logger.addHandler(self)
        self._open.callback(logger.removeHandler, self)

    def close(self) -> None:
        """Listen no more."""
        self._open.close()
        super().close()

    def note(self, text: str, detail: bool = False) -> None:
        """Write what was told."""
        self._write("DEBUG" if detail else "INFO", text)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning, and have it shown as if nobody had listened here."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._write(record.levelname, text)
        if not is_logged() and self is logging.getLogger("strandline").handlers[0] and logging.lastResort:
            # Python shows warnings where no handler is; there is one now, and it shows nothing.
            logging.lastResort.handle(record)

    def _write(self, level: str, text: str) -> None:
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        first, *more = text.splitlines() or [""]
        lines = "".join(f"  {line}\n" for line in more)
        data = f"{now} {os.getpid()} {level} {first}\n{lines}".encode(errors="replace")
        # A disk that is full, or a directory that is gone, ends no job, and keeps nobody from hearing of its end.
        with self._writing, contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size + len(data) > MOST_BYTES:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
            with open(self.path, "ab", opener=_for_us_alone) as file:
                file.write(data)


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
