"""What a job reads: one query over all of its sources, and in every epoch each source's rows again.

One query, because an epoch is the same prefix of every source, and one directory of Spark's progress rewinds them all.
Several sources are a union in which each row has the number of its source, and lies in that source's own column. See
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
from strandline.spark.streams.frames import FrameSource

_SOURCE = "__strandline_source"
_ROWS = "__strandline_rows"


class Sources:
    """The DataFrames that a job reads: one, which needs no name, or several, in the order of their names."""

    def __init__(self, nodes: Sequence[SourceNode]) -> None:
        self.nodes = [node for node in nodes if isinstance(node, FrameSource)]
        if len(self.nodes) < len(nodes):
            raise ConfigurationError(
                "a stream of a test's events is no source of a job", hint="begin it with strandline.stream(df)"
            )

    @property
    def names(self) -> list[str]:
        """The sources' names; none for a single one that was given no name."""
        return [node.name for node in self.nodes if node.name]

    @property
    def are_several(self) -> bool:
        """Whether their rows have to be told apart."""
        return len(self.nodes) > 1

    @property
    def session(self) -> SparkSession:
        """The session that they are read with."""
        return self.nodes[0].df.sparkSession

    def together(self, order: Sequence[str]) -> DataFrame:
        """Return what one query reads: the sources in this order of names, for Spark knows them by their places."""
        frames = {node.name: node.df for node in self.nodes}
        return self.union({name: frames[name] for name in order} if self.are_several else frames)

    def union(self, frames: Mapping[str, DataFrame], carried: Sequence[str] = ()) -> DataFrame:
        """Return rows of sources, by their names, as one; columns that are `carried` stay beside the sources' own."""
        if not self.are_several:
            (only,) = frames.values()
            return only
        numbers = {node.name: at for at, node in enumerate(self.nodes)}
        tagged = []
        for name, df in frames.items():
            own = [F.col(quoted(column)) for column in df.columns if column not in carried] if carried else ["*"]
            at = numbers[name]
            tagged.append(df.select(F.lit(at).alias(_SOURCE), F.struct(*own).alias(f"{_ROWS}_{at}"), *carried))
        return reduce(_union, tagged)

    def apart(self, df: DataFrame) -> dict[Node, DataFrame]:
        """Return each source's rows of an epoch."""
        if not self.are_several:
            return {self.nodes[0]: df}
        return {node: df.where(f"{_SOURCE} = {at}").select(f"{_ROWS}_{at}.*") for at, node in enumerate(self.nodes)}


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)
