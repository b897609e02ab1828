"""Which DataFrames are refused as a job's source before anything starts, each with what to do instead."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame

from strandline.core.errors import ConfigurationError
from strandline.spark.base.sessionchecks import check_session
from strandline.spark.sources.rereadable import check_relation, relations_of

_STATEFUL = {
    "Aggregate": "an aggregation",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "GlobalLimit": "limit",
    "LocalLimit": "limit",
    "SessionWindow": "a session window",
}


def check_source(df: Any) -> None:
    """Refuse DataFrames that cannot be a job's source."""
    if type(df).__module__.startswith("pyspark.sql.connect"):
        check_session(df.sparkSession)
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"stream() was given {df!r}, expected a Structured Streaming DataFrame")
    if not df.isStreaming:
        raise ConfigurationError(
            "stream() was given a batch DataFrame, expected a streaming one",
            hint="read it with spark.readStream instead of spark.read",
        )
    stateful = _find_stateful(df._jdf.queryExecution().analyzed())
    if stateful:
        raise ConfigurationError(
            f"the stream already holds a stateful Spark operator ({stateful}): its state would not be in the job's "
            "checkpoints and be lost at the first restart",
            hint="do that step in a keyed operator: stream(df).key_by(…).process(…)",
        )
    for relation in relations_of(df):
        check_relation(relation)


def check_source_name(name: object) -> str:
    """Return the name that a source was given, or nothing."""
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ConfigurationError(
            f"stream() was given name={name!r}, expected letters, digits, '_', '-' and '.'",
            hint='name what it brings, for the life of the job: name="payments"',
        )
    return name


def _find_stateful(plan: Any) -> str | None:
    name = plan.nodeName()
    children = [plan.children().apply(i) for i in range(plan.children().size())]
    streaming = [child for child in children if child.isStreaming()]
    if streaming and name in _STATEFUL:
        return _STATEFUL[name]
    if name == "Join" and len(streaming) == 2:
        return "a join of two streams"
    return next(filter(None, map(_find_stateful, streaming)), None)
