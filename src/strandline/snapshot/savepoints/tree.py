"""Tree that determines the files of a state's rows, from the rows alone and not from their writers.

Key groups are the leaves of a binary tree. A node is small if its rows fit into a file. A small node whose parent is
not small becomes a file, as does a small root; a key group that is not small becomes several. A writer of a part of the
tree can classify some nodes, and passes on the rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable


class _Node:
    """An aligned range of 2^level key groups that are complete."""

    __slots__ = ("level", "open", "rows", "size")

    def __init__(self, level: int, rows: int = 0, size: int = 0, open: bool = False) -> None:
        self.level = level
        self.rows = rows
        """Rows that still wait for a decision."""
        self.size = size
        """The known size of all its rows."""
        self.open = open
        """Whether another writer has its first key groups."""


class KeyGroupTree:
    """The nodes before the next rows, which assign rows to files, first in, first out.

    `give(rows, whole)` gets the number of the oldest waiting rows: they are a file if `whole`, else a part of one. Rows
    of at most one file wait.
    """

    def __init__(self, groups: range, leaves: int, file_bytes: int, give: Callable[[int, bool], None]) -> None:
        self._groups = groups
        self._leaves = leaves
        self._depth = (leaves - 1).bit_length()
        self._file_bytes = file_bytes
        self._give = give
        self._nodes: list[_Node] = []
        """Nodes before the leaf, one for each set bit of its number, with the level of the bit."""
        self._at = 0
        self._leaf = _Node(0)
        self._known = 0
        """The total size of all nodes and of the leaf."""
        self._leaf_waiting = 0
        self._skip(groups.start, open=True)

    def add(self, group: int, rows: int, size: int) -> None:
        """Add rows of the current key group or of a later one."""
        self._go_to(group)
        self._leaf.rows += rows
        self._leaf.size += size
        self._leaf_waiting += size
        self._known += size
        self._settle()

    @property
    def overfull(self) -> bool:
        """Whether the waiting rows of the current key group exceed one file."""
        return self._leaf_waiting > self._file_bytes

    def cut(self, rows: int, size: int) -> None:
        """Assign the first rows of the current key group to a file."""
        self._leaf.rows -= rows
        self._leaf_waiting -= size
        self._give(rows, True)

    def mark_file(self, group: int) -> None:
        """Note that a file begins with this key group, so that no ancestor is small."""
        self.add(group, 0, self._file_bytes + 1)
        self._leaf_waiting = 0

    def finish(self) -> None:
        """Assign the remaining rows."""
        self._go_to(self._groups.stop)
        if self._groups.stop == self._leaves:
            self._skip(1 << self._depth)
        for node in self._nodes:
            self._release(node, whole=node.level == self._depth and not node.open)

    def _go_to(self, group: int) -> None:
        if group == self._at:
            return
        leaf, self._leaf, self._leaf_waiting = self._leaf, _Node(0), 0
        if leaf.size > self._file_bytes:
            self._release(leaf, whole=True)
        self._push(leaf)
        self._at += 1
        self._skip(group)

    def _skip(self, to: int, open: bool = False) -> None:
        """Skip key groups without rows, in nodes as large as possible."""
        while self._at < to:
            level = (to - self._at).bit_length() - 1
            if self._at:
                level = min(level, (self._at & -self._at).bit_length() - 1)
            self._push(_Node(level, open=open))
            self._at += 1 << level

    def _push(self, node: _Node) -> None:
        while self._nodes and self._nodes[-1].level == node.level:
            node = self._merge(self._nodes.pop(), node)
        self._nodes.append(node)

    def _merge(self, left: _Node, right: _Node) -> _Node:
        size = left.size + right.size
        if size > self._file_bytes:
            # The left node was released when the size became known.
            self._release(right, whole=True)
        return _Node(left.level + 1, left.rows + right.rows, size, left.open)

    def _settle(self) -> None:
        """Release nodes whose parents are not small: all rows after a node are in its parent, too."""
        after = self._known
        for node in self._nodes:
            if after <= self._file_bytes:
                return
            self._release(node, whole=not node.open)
            after -= node.size

    def _release(self, node: _Node, whole: bool) -> None:
        rows, node.rows = node.rows, 0
        if rows:
            self._give(rows, whole)
