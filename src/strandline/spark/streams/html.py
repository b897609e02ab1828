"""Streams as HTML, for notebooks: what their rows come from, and their columns."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.core.html import Html, card, facts, strong, table
from strandline.plan.graph import Node, OperatorNode, SourceNode, WatermarkNode, with_ancestors


def stream_html(what: str, node: Node, more: Mapping[str, object] | None = None) -> Html:
    """Return a stream; `more` are facts of its kind."""
    above = list(with_ancestors(node))
    sources = [each.name or "one" for each in above if isinstance(each, SourceNode)]
    operators = [each.uid for each in above if isinstance(each, OperatorNode)]
    times = [each.spec.column for each in above if isinstance(each, WatermarkNode)]
    values = {
        **(more or {}),
        "sources": ", ".join(dict.fromkeys(sources)),
        "operators": ", ".join(dict.fromkeys(operators)) or None,
        "event time": ", ".join(dict.fromkeys(times)) or None,
    }
    return card(strong(what), facts(values), table(("column", "type"), node.columns.types))
