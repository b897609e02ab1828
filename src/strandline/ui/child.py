"""A process for the page that runs a command, ends it when the server ends, and removes what it leaves.

`python -m strandline.ui.child SECONDS COMMAND…` ends the command and its processes after that time, or as soon as its
standard input is closed: the server's end closes it, also when that is killed. Spark's and Python's temporary files are
in a directory that is removed then. Its exit code is the command's, or one of those below.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from strandline.core.scratch import Scratch

TIME_IS_UP = 124
INPUT_CLOSED = 125
_POLL_S = 0.1
_GONE_S = 5.0
_NICE = 5
"""Jobs of the machine go first."""


def main() -> None:
    """Run the command of the arguments."""
    limit_s, command = float(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(INPUT_CLOSED))
    os.nice(_NICE)
    # A short name: PySpark makes a socket in it.
    with Scratch("h") as place:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, cwd=place, env=_environment(place), start_new_session=True
        )
        try:
            code = _wait(process, limit_s)
        finally:
            _end(process)
    sys.exit(code)


def _environment(place: Path) -> dict[str, str]:
    """Return the environment of a command whose temporary files, and those of its Spark, are in a directory."""
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={place} -XX:-UsePerfData".lstrip()
    return {**os.environ, "TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place), "SPARK_SUBMIT_OPTS": options}


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    end_s = time.monotonic() + limit_s
    while process.poll() is None:
        if time.monotonic() > end_s:
            return TIME_IS_UP
        if select.select([0], [], [], _POLL_S)[0]:
            return INPUT_CLOSED
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what runs of the command, which is a group of processes, and wait until it is gone."""
    end_s = time.monotonic() + _GONE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end_s:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
