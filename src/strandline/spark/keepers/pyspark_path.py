"""Spark's Python workers find pyspark in its package, not in the zip file that Spark puts before it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def without_zips(path: Sequence[str]) -> list[str]:
    """Return a path for modules without the zip files of Spark's that hold what is found behind them as well.

    There is no place in a zip file for what Python compiles: whoever starts compiles all of it, half a second's work.
    """
    return [entry for entry in path if not _is_found_behind(Path(entry), path)]


def _is_found_behind(entry: Path, path: Sequence[str]) -> bool:
    # …/site-packages/pyspark/python/lib/pyspark.zip, and py4j-….zip beside it.
    home = entry.parent.parent.parent
    if entry.suffix != ".zip" or entry.parent.parts[-2:] != ("python", "lib") or not (home / "__init__.py").exists():
        return False
    # A Spark that is not the package of this Python's has other modules.
    name = entry.name.partition("-")[0].removesuffix(".zip")
    return str(home.parent) in path and (home.parent / name / "__init__.py").exists()
