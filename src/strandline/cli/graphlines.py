"""A graph as lines of text: a line for each node, and rails between those that read each other's rows."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.control.status import GraphNode

_NODES = {"source": "○", "operator": "●", "sink": "□"}
_RAIL = "│"


def graph_lines(nodes: Sequence[GraphNode]) -> list[str]:
    """Return the drawing at the left of each node, all of one width. Each node comes after those that it reads."""
    last = {id_: number for number, node in enumerate(nodes) for id_ in node.inputs}
    rails: list[str] = []
    """By column: the node whose rows other nodes below read, or ""."""
    lines = []
    for number, node in enumerate(nodes):
        joined = [column for column, id_ in enumerate(rails) if id_ in node.inputs]
        ending = [column for column in joined if last[rails[column]] == number]
        if not ending and "" not in rails:
            rails.append("")
        place = ending[0] if ending else rails.index("")
        lines.append(_line(_NODES[node.kind], rails, joined, ending, place))
        for column in ending:
            rails[column] = ""
        rails[place] = node.id if last.get(node.id, -1) > number else ""
    width = max(map(len, lines), default=0)
    return [line.ljust(width) for line in lines]


def _line(sign: str, rails: Sequence[str], joined: Sequence[int], ending: Sequence[int], place: int) -> str:
    """Draw one node at its column, with lines from the rails that it joins."""
    first, end = min([place, *joined]), max([place, *joined])
    cells = []
    for column, id_ in enumerate(rails):
        if column == place:
            cell = sign
        elif column in joined:
            at_end = column in (first, end)
            if column in ending:
                cell = ("╰" if column == first else "╯") if at_end else "┴"
            else:
                cell = ("├" if column == first else "┤") if at_end else "┼"
        elif id_:
            cell = _RAIL
        else:
            cell = "─" if first < column < end else " "
        cells.append(cell + ("─" if first <= column < end else " "))
    return "".join(cells).rstrip()
