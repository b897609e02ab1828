"""How many partitions a job's operators are to have: what its settings say, and what it was told."""

from __future__ import annotations

from pyspark.sql import SparkSession

from strandline.core.settings import Settings
from strandline.plan.parallelism import Parallelism, Told


def parallelism_of(settings: Settings, spark: SparkSession, told: Told | None = None) -> Parallelism:
    """Return what is said of a job's parallelism, beside what the program says of its operators."""
    told = told or Told()
    return Parallelism(
        default=spark.sparkContext.defaultParallelism,
        job=told.job or settings.parallelism,
        told=told.operators,
    )
