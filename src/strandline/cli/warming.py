"""`strandline warm-up`: makes the archive of Spark's classes that shortens the start of this machine's drivers.

`python -m strandline.cli.warming PID` does the same silently in the background, once that process, a driver, has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.cli.output import say, size_text
from strandline.core.errors import StrandlineError, UnavailableError

_JOB_TIMEOUT_S = 1800.0
_LINES = 6
_POLL_S = 0.2
_EXIT_TIMEOUT_S = 5.0
_LOWEST_PRIORITY = 19
_OOM_SCORE = "1000"
"""The score at which the kernel kills a process before all others when memory is short."""


def warm_up() -> None:
    """Make an archive of Spark's classes, which shortens starts.

    Drivers of this machine then start in half the processor time. Once for each Java and each Spark, and user; in an
    image, as a step of its making. Elsewhere, the first driver has it made when it has ended.
    """
    from strandline.spark.base.class_archive import archive_of, failure_of
    from strandline.spark.base.session import check_java

    archive = archive_of(check_java())
    if archive.exists():
        say(f"{archive} is there, and fits this Java and this Spark")
        return
    say("running a small job, whose classes are then written; this takes about a minute")
    try:
        with _exclusive_directory(wait=True) as directory:
            if not archive.exists():
                _make(archive, directory)
        failure_of(archive).unlink(missing_ok=True)
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


def main() -> None:
    """Make the archive when a driver has ended, unless another process makes it; write an error to a file beside it."""
    from strandline.spark.base.class_archive import archive_of, failure_of
    from strandline.spark.base.session import check_java

    # Exit on SIGTERM by an exception, so that unfinished files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.nice(_LOWEST_PRIORITY)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    driver = Path("/proc", sys.argv[1])
    while driver.exists():
        time.sleep(_POLL_S)
    archive = archive_of(check_java())
    with contextlib.suppress(BlockingIOError), _exclusive_directory(wait=False) as directory:
        if archive.exists():
            return
        try:
            _make(archive, directory)
        except TimeoutError:
            # Other processes had priority. The next driver starts another attempt.
            return
        except (StrandlineError, OSError) as error:
            with contextlib.suppress(OSError):
                failure_of(archive).write_text(f"{error}\nstrandline warm-up tries it again\n")


@contextlib.contextmanager
def _exclusive_directory(*, wait: bool) -> Iterator[Path]:
    """Lock the making of archives for this user; yield an empty directory, whose path is short enough for sockets."""
    from strandline.core.settings import default_local_dir

    home = default_local_dir()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = home / "warm-up"
    with (home / "warm-up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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


if __name__ == "__main__":
    main()
