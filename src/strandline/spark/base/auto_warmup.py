"""Behind a driver that started without an archive of Spark's classes, one is made: once, when the driver has ended.

A process of its own makes it, by a small job of ours, and gives way to everything else: see `strandline.cli.warming`.
Only of drivers that run Spark in one process, on a machine of somebody's own: elsewhere, images are built for that.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from strandline.control.announcements import tell
from strandline.spark.base.class_archive import archive_of, failure_of

log = logging.getLogger(__name__)

SETTING = "spark.strandline.warmup"
_ROOM_BYTES = 2 << 30
_missing: list[Path] = []
"""Where the archive would be that this driver has not found."""
_has_worked = False


def remember(java: str) -> None:
    """Have an archive made behind this driver, which has started without one though nothing was against it."""
    if not _missing:
        _missing.append(archive_of(java))
        atexit.register(_at_exit)


def has_worked() -> None:
    """A job has done an epoch: what is made by such a job, this machine can make."""
    global _has_worked
    _has_worked = True


def _at_exit() -> None:
    archive = _missing[0]
    if not _has_worked or archive.exists() or failure_of(archive).exists() or not _has_room(archive):
        return
    # Its own directory, too: the user may want to remove that of the program.
    command = [sys.executable, "-m", "strandline.cli.warming", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        subprocess.Popen(
            command, env=environment, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        log.info("no archive of Spark's classes is made: %s", error)
        return
    tell(
        f"once, in the background: an archive of Spark's classes, from which drivers start sooner "
        f"({SETTING}=false turns that off)"
    )


def _has_room(archive: Path) -> bool:
    """Whether an archive can be where it should be, and would not fill the disk."""
    there = next((path for path in archive.parents if path.exists()), None)
    return there is not None and os.access(there, os.W_OK) and shutil.disk_usage(there).free > _ROOM_BYTES
