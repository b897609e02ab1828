"""Daemon that forks Spark's Python workers and has already imported the modules of our tasks, which saves 0.4 s each.

    python -m strandline.spark.keepers.daemon pyspark.worker

Spark starts it in place of its own daemon, which imports little because some libraries start threads that forks lack.
The libraries with threads that are imported here, OpenBLAS and Arrow's allocator, start them again after a fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

_CLOSED = (BrokenPipeError, ConnectionResetError)


def main() -> None:
    """Fork workers until Spark has enough."""
    # Before the first import of pyspark.
    sys.path[:] = without_zips(sys.path)
    import pyspark.daemon
    import pyspark.worker

    import strandline.spark.keepers.worker  # noqa: F401
    from strandline.keeper.lean import ready_to_fork

    os.register_at_fork(after_in_child=partial(_renew_in_worker, os.getpid()))
    ready_to_fork()
    pyspark.daemon.worker = partial(_serve, pyspark.daemon.worker)
    pyspark.daemon.manager()


def _serve(worker: Any, sock: Any, authenticated: bool) -> Any:
    """Run Spark's worker, but end without a traceback when Spark closes the connection: it needs no more rows."""
    sys.unraisablehook = _report
    try:
        return worker(sock, authenticated)
    except _CLOSED:
        return 1


def _report(error: sys.UnraisableHookArgs) -> None:
    """Report an error of a destructor, except the flush of a file to a connection that Spark has closed."""
    if not isinstance(error.exc_value, _CLOSED):
        sys.__unraisablehook__(error)


def _renew_in_worker(daemon: int) -> None:
    from strandline.keeper.lean import renew_randomness

    # Not in processes that a worker forks, such as a pool of the user's function.
    if os.getppid() == daemon:
        renew_randomness()


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


if __name__ == "__main__":
    main()
