"""The process that forks Spark's Python workers, with what our tasks import in it: they begin some 0.4 s sooner.

    python -m strandline.spark.keepers.daemon pyspark.worker

Spark starts it in place of its own, which imports so little because some libraries start threads that forks lack. Those
that are imported here make theirs anew: OpenBLAS, and Arrow's allocator.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import strandline.spark.keepers.worker  # noqa: F401
from strandline.keeper.lean import defer_pandas


def main() -> None:
    """Fork workers until Spark has enough."""
    defer_pandas()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
