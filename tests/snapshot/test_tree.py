"""The tree of key groups alone: whatever ranges its writers have, what they know of and what is joined are one result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.savepoints.tree import KeyGroupTree
from tests.soak import examples

FILE = 100

Part = tuple[list[int], bool]
"""Row numbers, and whether they are a file."""


class Writer:
    """Writes the numbers of rows, each of which has a key group and a size."""

    def __init__(self, groups: range, leaves: int) -> None:
        self.parts: list[Part] = []
        self.most = 0
        self._waiting: list[tuple[int, int]] = []
        self.tree = KeyGroupTree(groups, leaves, FILE, self._give)

    def write(self, number: int, group: int, size: int) -> None:
        self._waiting.append((number, size))
        self.tree.add(group, 1, size)
        while self.tree.overfull:
            rows = next(n for n in range(len(self._waiting), 0, -1) if n == 1 or self._size(n) <= FILE)
            self.tree.cut(rows, self._size(rows))
        self.most = max(self.most, self._size(len(self._waiting)))

    def finish(self) -> list[Part]:
        self.tree.finish()
        assert not self._waiting
        return self.parts

    def _size(self, rows: int) -> int:
        return sum(size for _, size in self._waiting[:rows])

    def _give(self, rows: int, whole: bool) -> None:
        self.parts.append(([number for number, _ in self._waiting[:rows]], whole))
        del self._waiting[:rows]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[int]]:
    leaves = draw(st.integers(1, 70))
    rows = draw(
        st.lists(st.tuples(st.integers(0, leaves - 1), st.sampled_from([0, 1, 10, 30, 70, 100, 101])), max_size=60)
    )
    ends = draw(st.lists(st.integers(1, leaves), max_size=8, unique=True))
    return leaves, sorted(rows, key=lambda row: row[0]), sorted({0, leaves, *ends})


def expected(leaves: int, rows: list[tuple[int, int]]) -> list[list[int]]:
    def below(first: int, width: int) -> Iterator[list[int]]:
        mine = [n for n, (group, _) in enumerate(rows) if first <= group < first + width]
        if sum(rows[n][1] for n in mine) <= FILE:
            yield from [mine] if mine else []
        elif width > 1:
            yield from below(first, width // 2)
            yield from below(first + width // 2, width // 2)
        else:
            part: list[int] = []
            for n in mine:
                if part and sum(rows[m][1] for m in [*part, n]) > FILE:
                    yield part
                    part = []
                part.append(n)
            yield part

    return list(below(0, 1 << (leaves - 1).bit_length()))


@examples(1000)
@given(cases())
def test_any_ranges_make_the_same_files(case: tuple[int, list[tuple[int, int]], list[int]]) -> None:
    leaves, rows, ends = case
    parts: list[Part] = []
    for first, last in pairwise(ends):
        writer = Writer(range(first, last), leaves)
        for number, (group, size) in enumerate(rows):
            if first <= group < last:
                writer.write(number, group, size)
        parts += writer.finish()
        assert writer.most <= FILE + 101
    assert [number for part, _ in parts for number in part] == list(range(len(rows)))
    joined = Writer(range(leaves), leaves)
    for part, whole in parts:
        if whole:
            joined.tree.mark_file(rows[part[0]][0])
        else:
            for number in part:
                joined.write(number, *rows[number])
    files = [part for part, whole in parts if whole] + [part for part, whole in joined.finish() if whole]
    assert all(whole for _, whole in joined.parts)
    assert sorted(files) == expected(leaves, rows)


@examples(300)
@given(cases())
def test_little_is_handed_on(case: tuple[int, list[tuple[int, int]], list[int]]) -> None:
    leaves, rows, ends = case
    for first, last in pairwise(ends):
        writer = Writer(range(first, last), leaves)
        for number, (group, size) in enumerate(rows):
            if first <= group < last:
                writer.write(number, group, size)
        handed_on = sum(rows[n][1] for part, whole in writer.finish() if not whole for n in part)
        # A file at most on each edge of each level, and none where a writer has all.
        assert handed_on <= 2 * FILE * leaves.bit_length()
        if (first, last) == (0, leaves):
            assert not handed_on
