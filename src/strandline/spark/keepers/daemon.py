"""Daemon that forks Spark's Python workers and has already imported the modules of our tasks, which saves 0.4 s each.

    python -m strandline.spark.keepers.daemon pyspark.worker

Spark starts it in place of its own daemon, which imports little because some libraries start threads that forks lack.
The libraries with threads that are imported here, OpenBLAS and Arrow's allocator, start them again after a fork.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from strandline.spark.keepers.pyspark_path import without_zips


def main() -> None:
    """Fork workers until Spark has enough."""
    # Before the first import of pyspark.
    sys.path[:] = without_zips(sys.path)
    import pyspark.daemon
    import pyspark.worker

    import strandline.spark.keepers.worker  # noqa: F401
    from strandline.keeper.lean import ready_to_fork
    from strandline.spark.keepers.quiet_worker import serve

    os.register_at_fork(after_in_child=partial(_renew_in_worker, os.getpid()))
    ready_to_fork()
    pyspark.daemon.worker = partial(serve, pyspark.daemon.worker)
    pyspark.daemon.manager()


def _renew_in_worker(daemon: int) -> None:
    from strandline.keeper.lean import renew_randomness

    # Not in processes that a worker forks, such as a pool of the user's function.
    if os.getppid() == daemon:
        renew_randomness()


if __name__ == "__main__":
    main()
