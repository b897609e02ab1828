"""Module path on which Python workers import pyspark from its package and not from the zip file of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def without_zips(path: Sequence[str]) -> list[str]:
    """Return a module path without those zip files of Spark whose packages are also installed on the path.

    A zip file stores no compiled modules: each process that imports from it compiles them, which takes half a second.
    """
    return [entry for entry in path if not _is_duplicate_zip(Path(entry), path)]


def _is_duplicate_zip(entry: Path, path: Sequence[str]) -> bool:
    # …/site-packages/pyspark/python/lib/pyspark.zip, and py4j-….zip beside it.
    home = entry.parent.parent.parent
    if entry.suffix != ".zip" or entry.parent.parts[-2:] != ("python", "lib") or not (home / "__init__.py").exists():
        return False
    # A Spark outside this Python's packages may have another version.
    name = entry.name.partition("-")[0].removesuffix(".zip")
    return str(home.parent) in path and (home.parent / name / "__init__.py").exists()
