"""The archive of Spark's classes, which drivers load instead of hundreds of jars (`strandline warm-up` creates it).

Reading, verifying and linking classes takes most of the time until a job's first epoch ends. Java calls the archive a
dynamic CDS archive. It is a cache: a JVM that it does not fit ignores it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

_ARCHIVE_OPTION = "-XX:SharedArchiveFile="
_CLASS_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare:")
_JAVA_ENVIRONMENT = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def archive_of(java: str) -> Path:
    """Return the path of the archive for this Java and this Spark, whether or not it exists."""
    java_home = Path(java).resolve().parent.parent
    spark_home = Path(_find_spark_home())
    files = [java_home / "lib" / "server" / "libjvm.so", *sorted(spark_home.glob("jars/*.jar"))]
    known = []
    for path in files:
        if path.exists():
            stat = path.stat()
            known.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "strandline" / "classes" / f"{name}.jsa"


def class_options(java: str, user_options: str) -> str:
    """Return the Java options that load the archive, "" if it does not exist, or the user's options name another."""
    archive = archive_of(java)
    options = " ".join([user_options, *(os.environ.get(name, "") for name in _JAVA_ENVIRONMENT)])
    if not archive.exists() or " " in str(archive) or any(option in options for option in _CLASS_OPTIONS):
        return ""
    # If the user puts jars before Spark's, the archive does not fit, and Java would report that on standard output.
    return f"{_ARCHIVE_OPTION}{archive} -Xlog:cds*=off"
