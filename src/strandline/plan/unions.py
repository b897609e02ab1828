"""Union of streams: checks that their columns agree, and lets rows record their input."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import Columns, check_unlike, quoted
from strandline.plan.graph import Node, UnionNode
from strandline.plan.operators import movers_of
from strandline.runtime.rowlayout import FIRED, ORIGIN, TIME


def union(first: Node, others: Sequence[Node]) -> UnionNode:
    """Return the union of several streams; refuse streams whose columns differ by name or type."""
    inputs = [first, *others]
    for number, node in enumerate(inputs, 1):
        check_unlike(node.columns.names, f"union: of stream {number}, ")
    for number, node in enumerate(others, 2):
        if difference := _difference(first.columns, node.columns):
            raise ConfigurationError(
                f"union: the columns of stream {number} are not those of the first: {difference}",
                hint="select the same columns of each before, in any order; cast what is of another type",
            )
        if node.columns.is_timed != first.columns.is_timed:
            raise ConfigurationError(
                f"union: stream {1 if first.columns.is_timed else number} has event time, and stream "
                f"{number if first.columns.is_timed else 1} has none",
                hint='call watermark("column") on each of them, or once behind union()',
            )
    movers = movers_of(inputs)
    hidden = [name for name in (TIME, FIRED, ORIGIN) if any(name in node.columns.hidden for node in inputs)]
    if len(movers) > 1:
        hidden.append(ORIGIN)
    return UnionNode(Columns(first.columns.types).with_hidden(*hidden), first, others=tuple(others), movers=movers)


def _difference(first: Columns, other: Columns) -> str:
    """Describe how columns differ, apart from their order; empty if they do not."""
    ours, theirs = dict(first.types), dict(other.types)
    lacks = [f"{quoted(name)} {ddl}" for name, ddl in ours.items() if name not in theirs]
    more = [f"{quoted(name)} {ddl}" for name, ddl in theirs.items() if name not in ours]
    unlike = [
        f"{quoted(name)} is {theirs[name]}, expected {ddl}"
        for name, ddl in ours.items()
        if theirs.get(name, ddl) != ddl
    ]
    differences = [f"it lacks {', '.join(lacks)}"] if lacks else []
    differences += [f"it has {', '.join(more)} as well"] if more else []
    return "; ".join([*differences, *unlike])
