"""`strandline warm-up`: makes the archive of Spark's classes from which drivers of this machine start sooner."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from strandline.cli.output import say, size_text
from strandline.core.errors import UnavailableError

_PATIENCE_S = 900.0
_LINES = 6


def warm_up() -> None:
    """Make what drivers of this machine start from in half the processor time: an archive of Spark's classes.

    Once for each Java and each Spark, and user; in an image, as a step of its making.
    """
    from strandline.spark.base.classes import archive_of
    from strandline.spark.base.session import check_java

    archive = archive_of(check_java())
    if archive.exists():
        say(f"{archive} is there, and fits this Java and this Spark")
        return
    say("running a small job, whose classes are then written; this takes about a minute")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix="making-") as directory:
            made = Path(directory) / "classes.jsa"
            _make(made, Path(directory))
            made.replace(archive)
    except OSError as error:
        raise UnavailableError(
            f"{archive} cannot be written: {error}", hint="give another directory in XDG_CACHE_HOME, here and to jobs"
        ) from None
    # Of other versions, perhaps; they are a hundred megabytes or two each.
    others = [other for other in archive.parent.glob("*.jsa") if other != archive]
    say(f"{archive}: {size_text(archive.stat().st_size)}; sessions of strandline.session() use it from now on")
    if others:
        say(f"beside it are {len(others)} of other versions, which nobody needs if you do not")


def _make(made: Path, directory: Path) -> None:
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    # What Java has to say of classes that it does not take along is nobody's business.
    options = f"{given} -Xlog:cds*=off -XX:ArchiveClassesAtExit={made}".lstrip()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "strandline.cli.sample", str(directory)],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        failed, said = done.returncode != 0, done.stdout
    except subprocess.TimeoutExpired:
        failed, said = True, f"not done after {_PATIENCE_S:.0f} s"
    if failed or not made.exists():
        said = _cause_of(said.splitlines()) or "Java wrote nothing"
        raise UnavailableError(
            f"no archive was made: {said}", hint="jobs run without it; `strandline doctor` looks at Java and Spark"
        )


def _cause_of(lines: Sequence[str]) -> str:
    """Return what Java and the program said, without the lines of Python that lead there."""
    said = [line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))]
    return "\n".join(said[-_LINES:])
