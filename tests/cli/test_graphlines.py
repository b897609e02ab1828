"""Graphs as lines of text: who reads whom can be followed from each line."""

from __future__ import annotations

import pytest

from strandline.cli.graphlines import graph_lines
from strandline.control.status import GraphNode


def nodes(*readers: str) -> list[GraphNode]:
    """Nodes as "c<ab": c reads a and b."""
    return [
        GraphNode(name, "operator", name, inputs=dict.fromkeys(inputs, ""))
        for name, _, inputs in (each.partition("<") for each in readers)
    ]


@pytest.mark.parametrize(
    ("readers", "lines"),
    [
        ([], []),
        (["a"], ["●"]),
        (["a", "b<a", "c<b"], ["●", "●", "●"]),
        (["a", "b", "c<ab"], ["●  ", "│ ●", "●─╯"]),
        (["a", "b<a", "c<a"], ["●  ", "├─●", "●  "]),
        (["a", "b<a", "c<ab"], ["●  ", "├─●", "●─╯"]),
        (["a", "b", "c", "d<abc"], ["●    ", "│ ●  ", "│ │ ●", "●─┴─╯"]),
        # The rail of b is passed behind, and goes on.
        (["a", "b", "c", "d<ac", "e<bd"], ["●    ", "│ ●  ", "│ │ ●", "●─│─╯", "●─╯  "]),
        (["a", "b", "c<b", "d<ab", "e<abc"], ["●    ", "│ ●  ", "│ ├─●", "├─┼─│─●", "●─┴─╯"]),
    ],
)  # fmt: skip
def test_a_line_for_each_node(readers: list[str], lines: list[str]) -> None:
    drawn = graph_lines(nodes(*readers))
    assert [line.rstrip() for line in drawn] == [line.rstrip() for line in lines]
    assert len({len(line) for line in drawn}) <= 1
