"""Where a state's rows are cut into files: by what they are, never by who writes them.

Key groups are the leaves of a binary tree. A node is small if its rows are no more than a file should hold. A small
node whose parent is not small makes a file, as a small root does; a key group that is not small makes several. Whoever
sees only a part of the tree knows of some nodes what they are, and hands on the rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable


class _Node:
    """An aligned range of 2^level key groups, all of which have been seen."""

    __slots__ = ("level", "open", "rows", "size")

    def __init__(self, level: int, rows: int = 0, size: int = 0, open: bool = False) -> None:
        self.level = level
        self.rows = rows
        """Those that wait for where they go."""
        self.size = size
        """Of all its rows that are known of."""
        self.open = open
        """Its first key groups are another writer's."""


class KeyGroupTree:
    """The nodes that end where the next rows begin, and what becomes of their rows: first in, first out.

    `give(rows, whole)` takes the rows that have waited longest: they are a file, or else a part of one. No more rows
    wait than a file holds.
    """

    def __init__(self, groups: range, leaves: int, file_bytes: int, give: Callable[[int, bool], None]) -> None:
        self._groups = groups
        self._leaves = leaves
        self._depth = (leaves - 1).bit_length()
        self._file_bytes = file_bytes
        self._give = give
        self._nodes: list[_Node] = []
        """Left of the leaf; as long as the bits of its number that are set, and of their levels."""
        self._at = 0
        self._leaf = _Node(0)
        self._known = 0
        """The size of all nodes, and of the leaf."""
        self._leaf_waiting = 0
        self._skip(groups.start, open=True)

    def add(self, group: int, rows: int, size: int) -> None:
        """Rows of a key group have come, the same as before or a later one."""
        self._go_to(group)
        self._leaf.rows += rows
        self._leaf.size += size
        self._leaf_waiting += size
        self._known += size
        self._settle()

    @property
    def overfull(self) -> bool:
        """Whether rows of the present key group wait that are too many for one file."""
        return self._leaf_waiting > self._file_bytes

    def cut(self, rows: int, size: int) -> None:
        """Make a file of the first rows of the present key group."""
        self._leaf.rows -= rows
        self._leaf_waiting -= size
        self._give(rows, True)

    def mark_file(self, group: int) -> None:
        """There is a file that begins with this key group: no node above is small."""
        self.add(group, 0, self._file_bytes + 1)
        self._leaf_waiting = 0

    def finish(self) -> None:
        """No more rows come: decide of those that wait."""
        self._go_to(self._groups.stop)
        if self._groups.stop == self._leaves:
            self._skip(1 << self._depth)
        for node in self._nodes:
            self._let_go(node, whole=node.level == self._depth and not node.open)

    def _go_to(self, group: int) -> None:
        if group == self._at:
            return
        leaf, self._leaf, self._leaf_waiting = self._leaf, _Node(0), 0
        if leaf.size > self._file_bytes:
            self._let_go(leaf, whole=True)
        self._push(leaf)
        self._at += 1
        self._skip(group)

    def _skip(self, to: int, open: bool = False) -> None:
        """Go on over key groups without rows, by nodes as large as they may be."""
        while self._at < to:
            level = (to - self._at).bit_length() - 1
            if self._at:
                level = min(level, (self._at & -self._at).bit_length() - 1)
            self._push(_Node(level, open=open))
            self._at += 1 << level

    def _push(self, node: _Node) -> None:
        while self._nodes and self._nodes[-1].level == node.level:
            node = self._joined(self._nodes.pop(), node)
        self._nodes.append(node)

    def _joined(self, left: _Node, right: _Node) -> _Node:
        size = left.size + right.size
        if size > self._file_bytes:
            # The left one was let go when the size became known.
            self._let_go(right, whole=True)
        return _Node(left.level + 1, left.rows + right.rows, size, left.open)

    def _settle(self) -> None:
        """Let go of nodes whose parents are not small: everything after a node is in its parent, too."""
        after = self._known
        for node in self._nodes:
            if after <= self._file_bytes:
                return
            self._let_go(node, whole=not node.open)
            after -= node.size

    def _let_go(self, node: _Node, whole: bool) -> None:
        rows, node.rows = node.rows, 0
        if rows:
            self._give(rows, whole)
