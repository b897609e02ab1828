"""The outline of a job's graph for its status: sources, keyed operators and sinks, without the steps between them."""

from __future__ import annotations

from strandline.api.badrecords import DEAD_LETTERS
from strandline.control.status import GraphNode
from strandline.plan.graph import LateNode, MapNode, Node, OperatorNode, OutputNode, SourceNode
from strandline.spark.lower.plan import Plan
from strandline.spark.sinks.base import kind_of


def outline(plan: Plan) -> list[GraphNode]:
    """Return the nodes of a plan's graph, each after those whose rows it reads."""
    pipeline = plan.pipeline
    return [
        *(GraphNode(_id(each), "source", each.name) for each in pipeline.sources),
        *(GraphNode(_id(each), "operator", each.uid, each.name, _inputs(*each.parents)) for each in pipeline.operators),
        *(GraphNode(f"sink:{name}", "sink", name, kind_of(sink), _inputs(node)) for name, sink, node in plan.sinks),
    ]


def _id(node: Node) -> str:
    return f"operator:{node.uid}" if isinstance(node, OperatorNode) else f"source:{getattr(node, 'name', '')}"


def _inputs(*nodes: Node) -> dict[str, str]:
    """Return by id the sources and operators that rows come from, each with its side output."""
    inputs: dict[str, str] = {}
    pending, visited = [(node, "") for node in reversed(nodes)], set[Node]()
    while pending:
        node, side = pending.pop()
        if node in visited:
            continue
        visited.add(node)
        if isinstance(node, SourceNode | OperatorNode):
            inputs.setdefault(_id(node), side)
        elif isinstance(node, LateNode) and node.uid:
            inputs.setdefault(f"operator:{node.uid}", "late events")
        else:
            pending += [(parent, _side(node) or side) for parent in reversed(node.parents)]
    return inputs


def _side(node: Node) -> str:
    """Return the name of a side output; "" for other nodes."""
    if not isinstance(node, OutputNode) or not node.side:
        return ""
    if isinstance(node.parent, OperatorNode):
        return [*node.parent.sides][node.side - 1]
    return DEAD_LETTERS if isinstance(node.parent, MapNode) else ""
