"""The job of shop.py and the page that shows it, as processes, for tests in a browser."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.control.client import call, find_drivers
from strandline.control.commands import STATUS, NoArguments
from strandline.control.status import Status

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0


def begin(
    program: str | Path, *arguments: object, variables: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start a module, by its name, or a file."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **(variables or {})}
    which = [str(program)] if isinstance(program, Path) else ["-m", program]
    return subprocess.Popen([sys.executable, *which, *map(str, arguments)], env=env, cwd=ROOT, text=True, **more)


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Shop:
    """The job, and the page that shows it."""

    directory: Path
    local_dir: Path
    job: subprocess.Popen[str]
    address: str = ""

    def status(self) -> Status | None:
        drivers = [driver for driver in find_drivers(self.local_dir) if driver.answers]
        return call(drivers[0], STATUS, NoArguments()) if drivers else None

    def wait_until(self, is_true: Callable[[Status], bool]) -> Status:
        """Wait for a status of the job."""
        deadline = time.monotonic() + PATIENCE_S
        while (status := self.status()) is None or not is_true(status):
            assert self.job.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, status
            time.sleep(0.5)
        return status


@contextmanager
def shown_shop(directory: Path, **variables: str) -> Iterator[Shop]:
    """Run the job with these variables in its environment, and a page."""
    local_dir = Path(tempfile.mkdtemp(prefix="sl-"))
    with open(directory / "log", "w") as log:
        job = begin(
            Path(__file__).with_name("shop.py"), directory, local_dir, variables=variables, stdout=log, stderr=log
        )
    page = begin(
        "strandline.cli.main", "ui", "--local-dir", local_dir, "--port", 0, "--values", "shown",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert page.stdout is not None
        yield Shop(directory, local_dir, job, page.stdout.readline().strip())
    finally:
        end(page)
        page.stdout.close()  # type: ignore[union-attr]
        end(job)
        shutil.rmtree(local_dir, ignore_errors=True)
