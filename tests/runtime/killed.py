"""A process that restores a savepoint and is killed in the middle of a table: `killed.py ROOT FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strandline.keeper.restoring import PartitionRestore
from tests.runtime.rescaling import Job

_with_cleaning = PartitionRestore._with_cleaning


def _killed(*given: Any) -> Iterator[tuple[bytes, bytes]]:
    found = _with_cleaning(*given)
    yield next(found)
    yield next(found)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    PartitionRestore._with_cleaning = _killed  # type: ignore[method-assign]
    job = Job(Path(sys.argv[1]))
    job.restore_savepoint(sys.argv[2])
    job.start(1, "rocksdb")
