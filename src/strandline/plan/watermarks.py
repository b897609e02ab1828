"""The step that gives every row its time, and whose watermark rows move."""

from __future__ import annotations

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.plan.graph import LateNode, Node, OperatorNode, PairNode, WatermarkNode
from strandline.runtime.rowlayout import ORIGIN, TIME
from strandline.runtime.watermarks import WatermarkSpec


def watermark_on(node: Node, column: str, delay: str, per: str | None, idle: str | None) -> WatermarkNode:
    """Return the node of what watermark() was given, checked."""
    columns = node.columns
    for what, name in (("column", column), ("per", per)):
        if name is not None and (not isinstance(name, str) or name not in columns.names):
            raise ConfigurationError(
                f"watermark: {what}={name!r} is no column; the stream has {', '.join(columns.names)}"
            )
    kind = columns.ddl_of(column)
    if per is not None:
        columns.ddl_of(per)
    if kind != "timestamp":
        raise ConfigurationError(
            f"watermark: the column '{column}' is {kind}, expected timestamp",
            hint=f'make one first: with_column("{column}", expression).watermark("{column}")',
        )
    if columns.is_timed:
        raise ConfigurationError(
            "watermark: the stream has a watermark already",
            hint="call it once, before the first key_by: what operators give has the time of the event it came of",
        )
    idle_us = None if idle is None else parse_duration_ms(idle, "watermark: idle") * 1000
    spec = WatermarkSpec(column, parse_duration_ms(delay, "watermark: delay") * 1000, per, idle_us)
    return WatermarkNode(columns.carrying(TIME, *([ORIGIN] if per else [])), node, spec)


def movers_of(operator: OperatorNode) -> tuple[WatermarkNode | None, ...]:
    """Return whose watermarks an operator's events move: one for all, or one an input."""
    node = operator.parent
    return node.movers if isinstance(node, PairNode) else (watermark_above(node),)


def watermark_above(node: Node | None) -> WatermarkNode | None:
    """Return the watermark that rows come straight from."""
    while node is not None and not isinstance(node, OperatorNode | WatermarkNode | LateNode):
        node = node.parent
    return node if isinstance(node, WatermarkNode) else None
