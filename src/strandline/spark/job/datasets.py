"""The datasets of a job for lineage: those that its sources read, and those that its sinks write."""

from __future__ import annotations

import json
from collections.abc import Iterator

from strandline.core.datasets import Dataset
from strandline.spark.lower.plan import Plan
from strandline.spark.sources.checks import KAFKA, Relation, relations_of

_MADE_UP = "org.apache.spark.sql.execution.streaming."
"""The prefix of the classes of sources that make their rows up: `rate`, and those of tests."""


def inputs_of(plan: Plan) -> tuple[Dataset, ...]:
    """Return the datasets that a job reads."""
    return tuple(
        dataset for node in plan.sources.nodes for relation in relations_of(node.df) for dataset in _of(relation)
    )


def outputs_of(plan: Plan) -> tuple[Dataset, ...]:
    """Return the datasets that a job writes: of sinks that know theirs."""
    return tuple(dataset for _, sink, _ in plan.sinks for dataset in sink.datasets)


def _of(relation: Relation) -> Iterator[Dataset]:
    options = relation.options
    if relation.implementation.startswith(KAFKA):
        servers = options.get("kafka.bootstrap.servers", "")
        topics = [*options.get("subscribe", "").split(","), options.get("subscribepattern", "")]
        topics += json.loads(options["assign"]) if "assign" in options else []
        yield from (Dataset.topic(servers, topic.strip()) for topic in topics if topic.strip())
    elif path := options.get("path", ""):
        yield Dataset.at(path)
    elif not relation.implementation.startswith(_MADE_UP):
        # A table of a catalog, or a connector that Strandline does not know.
        yield Dataset("spark", relation.provider or relation.implementation)
