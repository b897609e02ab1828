"""Finds operators that need no shuffle, since all their rows come from an operator that keeps the key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strandline.plan.graph import Node, OperatorNode, OutputNode
from strandline.plan.pipeline import Operator
from strandline.spark.base.mapping import BatchFunction
from strandline.spark.keepers.chain import Chain, Link
from strandline.types.datatypes import parse_schema


@dataclass(frozen=True)
class Chains:
    """The operators of a pipeline that run in the task of the operator above."""

    operators: Mapping[OperatorNode, Operator]
    above: Mapping[OperatorNode, OperatorNode]
    """The operator above of each that needs no shuffle."""

    def of(self, node: Node) -> list[Node]:
        """Return a node with the operators above it in the same task, in the order of the rows."""
        above = self.above.get(node) if isinstance(node, OperatorNode) else None
        return [node] if above is None else [*self.of(above), node]

    @property
    def inner(self) -> set[Node]:
        """The nodes whose rows Spark does not see."""
        return {*self.above.values(), *(node.parent for node in self.above if node.parent is not None)}

    def combined(self, functions: Mapping[Node, BatchFunction]) -> dict[Node, BatchFunction]:
        """Return one function for each task in place of one for each operator."""
        inner = self.inner
        return {node: self._combined(node, functions) for node in functions if node not in inner}

    def _combined(self, node: Node, functions: Mapping[Node, BatchFunction]) -> BatchFunction:
        first, *rest = self.of(node)
        links = [(self._link(each), functions[each].call) for each in rest if isinstance(each, OperatorNode)]
        return BatchFunction(Chain(functions[first].call, links), functions[node].schema) if links else functions[node]

    def _link(self, node: OperatorNode) -> Link:
        above, operator = self.above[node], self.operators[node]
        columns = [*node.hidden, *parse_schema(node.input_schema).names]
        numbers = operator.parallelism, operator.max_parallelism
        return Link(above.uid, above.raw_schema, node.keys, columns, *numbers)


def find_chains(operators: Mapping[OperatorNode, Operator], pinned: Collection[Node], *, by_time: bool) -> Chains:
    """Find the operators that need no shuffle; `by_time` is FrameBuilder's."""

    def numbers(node: OperatorNode) -> tuple[int, int]:
        return operators[node].parallelism, operators[node].max_parallelism

    above: dict[OperatorNode, OperatorNode] = {}
    for node in operators:
        parent = node.parent
        last = parent.parent if isinstance(parent, OutputNode) and not parent.side else parent
        if (
            isinstance(last, OperatorNode)
            and last.keeps_key
            and last.keys == node.keys
            and numbers(last) == numbers(node)
            # A shuffle would sort the rows; rows that others read, too, are pinned.
            and not node.order_by
            and not (by_time and node.hidden)
            and not {parent, last} & set(pinned)
        ):
            above[node] = last
    return Chains(operators, above)
