"""The graph that a status shows: sources, operators and sinks, without the steps between them. Without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from strandline.control.status import GraphNode
from strandline.plan.columns import Columns
from strandline.plan.graph import LateNode, MapNode, OperatorNode, OutputNode, SourceNode, StepNode, UnionNode
from strandline.spark.job.outline import outline
from strandline.spark.sinks.simple import NoopSink

COLUMNS = Columns.of("user string")


def test_steps_between_are_left_out_and_side_outputs_named() -> None:
    web, till = SourceNode(COLUMNS, name="web"), SourceNode(COLUMNS, name="till")
    mapped = MapNode(COLUMNS, StepNode(COLUMNS, web), function=iter, input="", output="user string")
    both = UnionNode(COLUMNS, OutputNode(COLUMNS, mapped), (till,))
    count = OperatorNode(COLUMNS, both, uid="count", name="Count", sides={"alerts": "n int", "dead_letters": "n int"})
    top = OperatorNode(COLUMNS, OutputNode(COLUMNS, count), uid="top", name="Top")
    sinks: list[Any] = [
        ("out", StepNode(COLUMNS, OutputNode(COLUMNS, top))),
        ("bad", UnionNode(COLUMNS, OutputNode(COLUMNS, count, 2), (OutputNode(COLUMNS, mapped, 1),))),
        ("late", LateNode(COLUMNS, both, uid="top")),
    ]
    plan: Any = SimpleNamespace(
        pipeline=SimpleNamespace(sources=[till, web], operators=[count, top]),
        sinks=[(name, NoopSink(name=name), node) for name, node in sinks],
    )
    assert outline(plan) == [
        GraphNode("source:till", "source", "till"),
        GraphNode("source:web", "source", "web"),
        GraphNode("operator:count", "operator", "count", "Count", {"source:web": "", "source:till": ""}),
        GraphNode("operator:top", "operator", "top", "Top", {"operator:count": ""}),
        GraphNode("sink:out", "sink", "out", "noop", {"operator:top": ""}),
        GraphNode("sink:bad", "sink", "bad", "noop", {"operator:count": "dead_letters", "source:web": "dead_letters"}),
        GraphNode("sink:late", "sink", "late", "noop", {"operator:top": "late events"}),
    ]
