"""The sources of a job: joins them into one query, and splits the rows of each epoch by source.

There is one query because an epoch is the same prefix of every source, and one directory of Spark's progress rewinds
them all. Several sources are a union: each row has the number of its source, and a struct column for each source. See
docs/design/0004-several-sources.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import quoted
from strandline.plan.graph import Node, SourceNode
from strandline.spark.base.batch_limit import may_run_python
from strandline.spark.streams.frames import FrameSource

_SOURCE = "__strandline_source"
_ROWS = "__strandline_rows"


class Sources:
    """The DataFrames that a job reads: one, which needs no name, or several with names."""

    def __init__(self, nodes: Sequence[SourceNode]) -> None:
        self.nodes = [node for node in nodes if isinstance(node, FrameSource)]
        if len(self.nodes) < len(nodes):
            raise ConfigurationError(
                "a stream of a test's events cannot be a job's source", hint="begin it with strandline.stream(df)"
            )

    @property
    def names(self) -> list[str]:
        """The sources' names; none for a single source without a name."""
        return [node.name for node in self.nodes if node.name]

    @property
    def are_several(self) -> bool:
        """Whether there is more than one source."""
        return len(self.nodes) > 1

    @property
    def session(self) -> SparkSession:
        """The session of the sources."""
        return self.nodes[0].df.sparkSession

    @property
    def may_run_python(self) -> bool:
        """Whether Python functions may compute the sources' rows."""
        return any(may_run_python(node.df) for node in self.nodes)

    def query(self, order: Sequence[str]) -> DataFrame:
        """Return the DataFrame of the query, with sources in this order of names: Spark's log numbers them in order."""
        frames = {node.name: node.df for node in self.nodes}
        return self.union({name: frames[name] for name in order} if self.are_several else frames)

    def union(self, frames: Mapping[str, DataFrame], carried: Sequence[str] = ()) -> DataFrame:
        """Return the union of sources, by name; columns in `carried` stay outside the sources' struct columns."""
        if not self.are_several:
            (only,) = frames.values()
            return only
        numbers = {node.name: at for at, node in enumerate(self.nodes)}
        tagged = []
        for name, df in frames.items():
            columns = [F.col(quoted(column)) for column in df.columns if column not in carried] if carried else ["*"]
            at = numbers[name]
            tagged.append(df.select(F.lit(at).alias(_SOURCE), F.struct(*columns).alias(f"{_ROWS}_{at}"), *carried))
        return reduce(_union, tagged)

    def split(self, df: DataFrame) -> dict[Node, DataFrame]:
        """Return each source's rows of an epoch."""
        if not self.are_several:
            return {self.nodes[0]: df}
        return {node: df.where(f"{_SOURCE} = {at}").select(f"{_ROWS}_{at}.*") for at, node in enumerate(self.nodes)}


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)
