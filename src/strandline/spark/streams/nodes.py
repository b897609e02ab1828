"""The steps of a pipeline as a graph: streams make its nodes, a job's plan builds them into DataFrames every epoch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pyspark.sql import DataFrame

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.runtime.rowlayout import TIME
from strandline.runtime.task.outputs import raw_ddl
from strandline.runtime.watermarks import WatermarkSpec
from strandline.spark.base.ddl import input_schema
from strandline.spark.base.hidden import hidden_of
from strandline.spark.sources.files import Cleaning
from strandline.spark.streams.reduction import Reduction

Step = Callable[[DataFrame], DataFrame]
_LIMIT = re.compile(r"^[ :+-]*(GlobalLimit|LocalLimit|Offset|Tail)\b", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class Node:
    """A step of a pipeline. `probe` is an empty DataFrame with the step's schema, for checking what follows."""

    probe: DataFrame
    parent: Node | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it gets."""
        return () if self.parent is None else (self.parent,)


@dataclass(frozen=True, eq=False)
class SourceNode(Node):
    """A Structured Streaming DataFrame that a job reads."""

    df: DataFrame = field(kw_only=True)
    name: str = ""
    """What it is found by in checkpoints; empty: nothing, it is the only one."""
    cleaning: Cleaning | None = None
    """What becomes of its files once no checkpoint needs them."""


@dataclass(frozen=True, eq=False)
class StepNode(Node):
    """A stateless step: it stays a Spark DataFrame operation."""

    step: Step = field(default=lambda df: df)
    stops_early: bool = field(default=False, kw_only=True)
    """Whether it may stop reading before the rows end."""


@dataclass(frozen=True, eq=False)
class WatermarkNode(StepNode):
    """The step that gives every row its time."""

    spec: WatermarkSpec = field(default_factory=lambda: WatermarkSpec(""))


@dataclass(frozen=True, eq=False)
class OperatorNode(Node):
    """A keyed operator. Its probe has the raw output: side outputs are told apart by the steps that follow."""

    uid: str = ""
    name: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    process: KeyedProcess | KeyedBatchProcess = field(default_factory=KeyedProcess)
    input_schema: str = ""
    output_schema: str = ""
    sides: dict[str, str] = field(default_factory=dict)
    sides_before: dict[str, Node] = field(default_factory=dict)
    """Side outputs that its keepers do not give: they are told from its input."""
    hidden: tuple[str, ...] = ()
    """The hidden columns of its input."""
    max_parallelism: int | None = None
    reduction: Reduction | None = None
    """Of a built-in aggregation: whether its input is aggregated before it is sent."""

    @property
    def is_timed(self) -> bool:
        """Whether its events have times."""
        return TIME in self.hidden

    @property
    def raw_schema(self) -> str:
        """DDL of what its keepers give."""
        return raw_ddl(self.output_schema, self.sides, timed=self.is_timed)


@dataclass(frozen=True)
class Keyed:
    """Rows partitioned by key: what keyed operators are made on."""

    node: Node
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    made_by: Literal["key_by", "connect", "broadcast"] = "key_by"

    @property
    def probe(self) -> DataFrame:
        """An empty DataFrame with the rows' schema."""
        return self.node.probe

    @property
    def is_timed(self) -> bool:
        """Whether the rows have times."""
        return TIME in self.node.probe.columns

    def schema(self, where: str) -> str:
        """Return the DDL of the columns; errors about them begin with `where`."""
        return input_schema(self.node.probe, where)


def make_operator(
    parent: Node,
    process: KeyedProcess | KeyedBatchProcess,
    uid: str,
    *,
    name: str,
    keys: tuple[str, ...],
    output: str,
    order_by: tuple[str, ...] = (),
    sides: Mapping[str, str] = MappingProxyType({}),
    sides_before: Mapping[str, Node] = MappingProxyType({}),
    max_parallelism: int | None = None,
    reduction: Reduction | None = None,
) -> OperatorNode:
    """Return the node of an operator on the rows of another; `output` and `sides` are checked DDL."""
    hidden = tuple(hidden_of(parent.probe))
    raw = raw_ddl(output, dict(sides), timed=TIME in hidden)
    return OperatorNode(
        probe=parent.probe.sparkSession.createDataFrame([], raw),
        parent=parent,
        uid=uid,
        name=name,
        keys=keys,
        order_by=order_by,
        process=process,
        input_schema=input_schema(parent.probe, f"operator '{uid}'"),
        output_schema=output,
        sides=dict(sides),
        sides_before=dict(sides_before),
        hidden=hidden,
        max_parallelism=max_parallelism,
        reduction=reduction,
    )


def has_limit(df: DataFrame) -> bool:
    """Return whether some step of a plan need not read all of its rows."""
    return bool(_LIMIT.search(df._jdf.queryExecution().analyzed().toString()))
