"""Starts a background process that creates the archive of Spark's classes, once, when a driver ends that had none.

The process runs a small job at low priority: see `strandline.cli.warming`. Only drivers that run Spark in one process
do this; clusters and containers put the archive into their images.
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
"""The path of the archive that this driver did not find."""
_has_run_epoch = False


def create_at_exit(java: str) -> None:
    """Create the archive when this driver ends."""
    if not _missing:
        _missing.append(archive_of(java))
        atexit.register(_at_exit)


def note_epoch() -> None:
    """Note that a job has completed an epoch: jobs work on this machine, so an archive can be created."""
    global _has_run_epoch
    _has_run_epoch = True


def _at_exit() -> None:
    archive = _missing[0]
    if not _has_run_epoch or archive.exists() or failure_of(archive).exists() or not _has_room(archive):
        return
    # It does not run in the program's directory, which the user may want to remove.
    command = [sys.executable, "-m", "strandline.cli.warming", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        subprocess.Popen(
            command, env=environment, cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        log.info("cannot start the process that creates an archive of Spark's classes: %s", error)
        return
    tell(
        f"creating an archive of Spark's classes in the background, once: drivers start faster with it "
        f"({SETTING}=false turns this off)"
    )


def _has_room(archive: Path) -> bool:
    """Whether the archive's directory can be written, and its disk has enough free space."""
    directory = next((path for path in archive.parents if path.exists()), None)
    return directory is not None and os.access(directory, os.W_OK) and shutil.disk_usage(directory).free > _ROOM_BYTES
