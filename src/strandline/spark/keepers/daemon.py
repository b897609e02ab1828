"""The process that forks Spark's Python workers, with what our tasks import in it: they begin some 0.4 s sooner.

    python -m strandline.spark.keepers.daemon pyspark.worker

Spark starts it in place of its own, which imports so little because some libraries start threads that forks lack. Those
that are imported here make theirs anew: OpenBLAS, and Arrow's allocator.
"""

from __future__ import annotations

import os
from functools import partial

import pyspark.daemon
import pyspark.worker

import strandline.spark.keepers.worker  # noqa: F401
from strandline.keeper.lean import ready_to_fork, renew_randomness
from strandline.spark.keepers.quietly import serve


def main() -> None:
    """Fork workers until Spark has enough."""
    os.register_at_fork(after_in_child=partial(_renew_in_worker, os.getpid()))
    ready_to_fork()
    pyspark.daemon.worker = partial(serve, pyspark.daemon.worker)
    pyspark.daemon.manager()


def _renew_in_worker(daemon: int) -> None:
    # What a worker forks, a pool of the user's, is the user's affair.
    if os.getppid() == daemon:
        renew_randomness()


if __name__ == "__main__":
    main()
