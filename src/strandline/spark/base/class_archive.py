"""An archive of Spark's classes, which drivers load instead of hundreds of jars: made behind the first (`behind.py`).

Of all that happens until a job's first epoch is over, reading, verifying and linking classes takes the most. Java calls
the archive a dynamic class data archive. It is a cache: a JVM that it does not fit goes without it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

_OURS = "-XX:SharedArchiveFile="
_THEIRS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare:")
_READ_BY_JAVA = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def archive_of(java: str) -> Path:
    """Return where the archive for this Java and this Spark is, or would be."""
    found = Path(java).resolve()
    home = Path(_find_spark_home())
    files = [found.parent.parent / "lib" / "server" / "libjvm.so", *sorted(home.glob("jars/*.jar"))]
    known = []
    for path in files:
        if path.exists():
            stat = path.stat()
            known.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "strandline" / "classes" / f"{name}.jsa"


def failure_of(archive: Path) -> Path:
    """Return the file that says why the archive could not be made behind a driver: it is not tried again."""
    return archive.with_suffix(".failed")


def may_be_archived(java: str, given: str) -> bool:
    """Whether an archive would be used, if there were one: not where the user's own options say what to use."""
    said = " ".join([given, *(os.environ.get(name, "") for name in _READ_BY_JAVA)])
    return not any(option in said for option in _THEIRS) and " " not in str(archive_of(java))


def class_options(java: str, given: str) -> str:
    """Return the Java options that use the archive if there is one, unless the user's own say what to use."""
    archive = archive_of(java)
    # Where users put jars of their own before Spark's, Java would say on standard output that it does not fit.
    return f"{_OURS}{archive} -Xlog:cds*=off" if archive.exists() and may_be_archived(java, given) else ""
