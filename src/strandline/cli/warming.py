"""`strandline warm-up`: makes the archive of Spark's classes that shortens the start of this machine's drivers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.cli.output import say
from strandline.core.errors import UnavailableError
from strandline.core.texts import size_text

_JOB_TIMEOUT_S = 1800.0
_LINES = 6
_EXIT_TIMEOUT_S = 5.0


def warm_up() -> None:
    """Make an archive of Spark's classes, which shortens starts.

    Jobs of this machine then start in about 60 % of the time. Once for each Java and each Spark, and user; in an image,
    as a step of its making.
    """
    from strandline.spark.base.class_archive import archive_of
    from strandline.spark.base.session import check_java

    archive = archive_of(check_java())
    if archive.exists():
        say(f"{archive} is there, and fits this Java and this Spark")
        return
    say("running a small job, whose classes are then written; this takes about a minute")
    try:
        with _exclusive_directory() as directory:
            if not archive.exists():
                _make(archive, directory)
    except TimeoutError as error:
        raise UnavailableError(f"no archive was made: {error}", hint="try again when the machine has time") from None
    except OSError as error:
        raise UnavailableError(
            f"{archive} cannot be written: {error}", hint="give another directory in XDG_CACHE_HOME, here and to jobs"
        ) from None
    # Archives of other versions, perhaps; each has one or two hundred megabytes.
    others = [other for other in archive.parent.glob("*.jsa") if other != archive]
    say(f"{archive}: {size_text(archive.stat().st_size)}; sessions of strandline.session() use it from now on")
    if others:
        say(f"beside it are {len(others)} of other versions; delete them if you do not use those versions")


@contextlib.contextmanager
def _exclusive_directory() -> Iterator[Path]:
    """Lock the making of archives for this user; yield an empty directory, whose path is short enough for sockets."""
    from strandline.core.settings import default_local_dir

    home = default_local_dir()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = home / "warm-up"
    with (home / "warm-up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A killed process may have left files.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _make(archive: Path, directory: Path) -> None:
    draft = archive.with_suffix(".making")
    archive.parent.mkdir(parents=True, exist_ok=True)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    # Without Java's messages about the classes that it does not archive.
    options = f"{options} -Xlog:cds*=off -XX:ArchiveClassesAtExit={draft}".lstrip()
    try:
        failed, message = _run(directory, {**os.environ, "SPARK_SUBMIT_OPTS": options})
        if failed or not draft.exists():
            message = _cause_of(message.splitlines()) or "Java wrote nothing"
            hint = "jobs run without it; `strandline doctor` looks at Java and Spark"
            raise UnavailableError(f"no archive was made: {message}", hint=hint)
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)


def _run(directory: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Run the job, which ends when this process does; return whether it failed, and its output."""
    log = directory / "output"
    with log.open("w") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "strandline.cli.sample", str(directory)],
            env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
    try:
        failed = job.wait(_JOB_TIMEOUT_S) != 0
        return failed, log.read_text(errors="replace")
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the job was not done after {_JOB_TIMEOUT_S:.0f} s") from None
    finally:
        # The job and its JVM end when its standard input is closed.
        assert job.stdin is not None
        job.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_EXIT_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _cause_of(lines: Sequence[str]) -> str:
    """Return the last lines that Java and the program printed, without Python's tracebacks."""
    messages = [line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    return "\n".join(messages[-_LINES:])
