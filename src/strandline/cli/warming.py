"""`strandline warm-up`: makes the archive of Spark's classes from which drivers of this machine start sooner.

`python -m strandline.cli.warming PID` does the same behind a driver: once that process has ended, without a word.
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

_PATIENCE_S = 1800.0
_LINES = 6
_LOOK_S = 0.2
_END_S = 5.0
_LEAST_IMPORTANT = 19
_ENDED_FIRST = "1000"
"""What makes the kernel end a process before all others, where memory is short."""


def warm_up() -> None:
    """Make what drivers of this machine start from in half the processor time: an archive of Spark's classes.

    Once for each Java and each Spark, and user; in an image, as a step of its making. Elsewhere, the first driver has
    it made when it has ended.
    """
    from strandline.spark.base.class_archive import archive_of, failure_of
    from strandline.spark.base.session import check_java

    archive = archive_of(check_java())
    if archive.exists():
        say(f"{archive} is there, and fits this Java and this Spark")
        return
    say("running a small job, whose classes are then written; this takes about a minute")
    try:
        with _alone(wait=True) as directory:
            if not archive.exists():
                _make(archive, directory)
        failure_of(archive).unlink(missing_ok=True)
    except TimeoutError as error:
        raise UnavailableError(f"no archive was made: {error}", hint="try again when the machine has time") from None
    except OSError as error:
        raise UnavailableError(
            f"{archive} cannot be written: {error}", hint="give another directory in XDG_CACHE_HOME, here and to jobs"
        ) from None
    # Of other versions, perhaps; they are a hundred megabytes or two each.
    others = [other for other in archive.parent.glob("*.jsa") if other != archive]
    say(f"{archive}: {size_text(archive.stat().st_size)}; sessions of strandline.session() use it from now on")
    if others:
        say(f"beside it are {len(others)} of other versions, which nobody needs if you do not")


def main() -> None:
    """Make the archive behind a driver, unless somebody makes it already; why there is none is in a file beside it."""
    from strandline.spark.base.class_archive import archive_of, failure_of
    from strandline.spark.base.session import check_java

    # A process that was ended in words removes what it has begun.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.nice(_LEAST_IMPORTANT)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_ENDED_FIRST)
    driver = Path("/proc", sys.argv[1])
    while driver.exists():
        time.sleep(_LOOK_S)
    archive = archive_of(check_java())
    with contextlib.suppress(BlockingIOError), _alone(wait=False) as directory:
        if archive.exists():
            return
        try:
            _make(archive, directory)
        except TimeoutError:
            # Everything else went before it. The next driver has it tried again.
            return
        except (StrandlineError, OSError) as error:
            with contextlib.suppress(OSError):
                failure_of(archive).write_text(f"{error}\nstrandline warm-up tries it again\n")


@contextlib.contextmanager
def _alone(*, wait: bool) -> Iterator[Path]:
    """Give the one process of this user that may make an archive an empty directory, short enough for sockets."""
    from strandline.core.settings import default_local_dir

    home = default_local_dir()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = home / "warm-up"
    with (home / "warm-up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # What one has left that was killed.
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _make(archive: Path, directory: Path) -> None:
    made = archive.with_suffix(".making")
    archive.parent.mkdir(parents=True, exist_ok=True)
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    # What Java has to say of classes that it does not take along is nobody's business.
    options = f"{given} -Xlog:cds*=off -XX:ArchiveClassesAtExit={made}".lstrip()
    try:
        failed, said = _run(directory, {**os.environ, "SPARK_SUBMIT_OPTS": options})
        if failed or not made.exists():
            said = _cause_of(said.splitlines()) or "Java wrote nothing"
            raise UnavailableError(
                f"no archive was made: {said}", hint="jobs run without it; `strandline doctor` looks at Java and Spark"
            )
        made.replace(archive)
    finally:
        made.unlink(missing_ok=True)


def _run(directory: Path, environment: dict[str, str]) -> tuple[bool, str]:
    """Run the job, which ends when this process does; return whether it failed, and what it said."""
    said = directory / "said"
    with said.open("w") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "strandline.cli.sample", str(directory)],
            env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
    try:
        failed = job.wait(_PATIENCE_S) != 0
        return failed, said.read_text(errors="replace")
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the job was not done after {_PATIENCE_S:.0f} s") from None
    finally:
        # The end of its input is the end of the job: of its JVM, too.
        assert job.stdin is not None
        job.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def _cause_of(lines: Sequence[str]) -> str:
    """Return what Java and the program said, without the lines of Python that lead there."""
    said = [line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    return "\n".join(said[-_LINES:])


if __name__ == "__main__":
    main()
