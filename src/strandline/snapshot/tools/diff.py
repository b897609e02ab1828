"""Differences between two snapshots: keys added, changed and removed, by operator and state.

It compares rows, so that the snapshots may differ in backend, form, parallelism and stored bytes. It holds one key
group at a time in memory. It skips files with the same name in two canonical savepoints.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Literal

from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.scratch import Scratch
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.codecs import has_rows
from strandline.snapshot.tools.comparison import KeyDiff, StateComparison, why_not
from strandline.snapshot.tools.grouprows import OperatorRows, by_group, unequal_groups

Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class StateDiff:
    """The differences of one state."""

    operator: str
    state: str
    """Empty for an operator that only one snapshot has."""
    only: Side | Literal[""] = ""
    """The snapshot that has it, if the other one does not."""
    why_not: str = ""
    """The reason why it was not compared; "" if it was."""
    notes: tuple[str, ...] = ()
    """Remarks on other types, and on columns that were not compared."""
    added: int = 0
    changed: int = 0
    removed: int = 0
    """The numbers of keys, or keys of the map for broadcast state. A key has changed if any of its rows has."""
    rows_before: int = 0
    rows_after: int = 0
    """The numbers of compared rows."""
    rows_unread: int = 0
    """The number of rows in equal files, which were not read."""
    keys: tuple[KeyDiff, ...] = ()
    """Some keys that differ."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as it was looked at."""
        return not (self.only or self.why_not or self.notes or self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class SnapshotDiff:
    """The differences between two snapshots."""

    before: str
    after: str
    """Their urls."""
    states: tuple[StateDiff, ...]
    groups: int
    """The number of key groups of all operators in which rows may differ."""
    groups_read: int

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs, as far as it was looked at."""
        return all(state.is_equal for state in self.states)


def diff_snapshots(
    before: Snapshot,
    after: Snapshot,
    *,
    sample: float = 1.0,
    most_keys: int = 0,
    scratch: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SnapshotDiff:
    """Compare the state in two snapshots, without rows that had expired when each was taken.

    With `sample` below 1, it reads only that part of the key groups, a random one that is equal each time. For each
    state, it returns up to `most_keys` keys that differ, with their rows. `progress` gets the numbers of compared key
    groups and of all. Values of an older type are compared as values of the current type. Raises CorruptionError naming
    a file that is missing or damaged.
    """
    with Scratch("diff", scratch) as directory:
        states: list[StateDiff] = []
        both: list[_OperatorDiff] = []
        theirs = {operator.uid: operator for operator in after.manifest.operators}
        for operator in before.manifest.operators:
            if (other := theirs.pop(operator.uid, None)) is None:
                states.append(StateDiff(operator.uid, "", only="before"))
                continue
            reading = OperatorRows(before, operator, directory), OperatorRows(after, other, directory)
            both.append(_OperatorDiff(*reading, sample, most_keys))
        states += [StateDiff(uid, "", only="after") for uid in theirs]
        total, done = sum(len(one.chosen) for one in both), 0
        for one in both:
            for groups in one.compare():
                done += groups
                progress(done, total)
            states += one.result()
    return SnapshotDiff(before.url, after.url, tuple(states), sum(one.population for one in both), total)


class _OperatorDiff:
    """Compares the states of one operator, which both snapshots have."""

    def __init__(self, before: OperatorRows, after: OperatorRows, sample: float, most_keys: int) -> None:
        self._sides = before, after
        self._states: dict[str, _StateDiff] = {}
        self._only: list[StateDiff] = []
        uid, theirs = before.operator.uid, {info.name: info for info in _tables_of(after.operator)}
        for info in _tables_of(before.operator):
            other = theirs.pop(info.name, None)
            if other is None:
                self._only.append(StateDiff(uid, info.name, only="before"))
            elif why := why_not(before.operator, after.operator, info, other):
                self._only.append(StateDiff(uid, info.name, why_not=why))
            else:
                self._states[info.name] = _StateDiff(self._sides, info, other, most_keys)
        self._only += [StateDiff(uid, name, only="after") for name in theirs]
        keyed = [one.groups for one in self._states.values() if not one.is_broadcast]
        candidates = sorted(set().union(*keyed))
        self.population = len(candidates)
        # Use the same key groups for all states, so that files are fetched once.
        self.chosen = set(random.Random(uid).sample(candidates, math.ceil(sample * self.population)))

    def compare(self) -> Iterator[int]:
        """Compare all states; yield numbers of compared key groups."""
        before, after = self._sides
        with closing(before), closing(after):
            for state in self._states.values():
                if state.is_broadcast and state.groups:
                    state.compare(BROADCAST_GROUPS)
            ends = sorted({*before.starts, *after.starts, before.operator.max_parallelism} - {0})
            first = 0
            for end in ends:
                groups = self.chosen.intersection(range(first, end))
                for state in self._states.values():
                    for run in _runs(groups & state.groups):
                        state.compare(run)
                first = end
                yield len(groups)

    def result(self) -> list[StateDiff]:
        """Return the differences of each state."""
        return [state.result() for state in self._states.values()] + self._only


class _StateDiff:
    """Compares one state's rows."""

    def __init__(self, sides: tuple[OperatorRows, OperatorRows], before: StateInfo, after: StateInfo, most_keys: int):
        self._sides = sides
        self._infos = before, after
        self.is_broadcast = before.kind == "broadcast"
        self._comparison = StateComparison(sides[0].operator, before, after, most_keys)
        self._counts = [0, 0, 0]
        self._rows = [0, 0]
        self._unread = 0
        every = BROADCAST_GROUPS if self.is_broadcast else range(sides[0].operator.max_parallelism)
        self.groups = set(every)
        """The key groups in which rows may differ."""
        if all(side.are_tables for side in sides):
            files, other = (side.tables(before.name) for side in sides)
            self.groups = unequal_groups(files, other)
            self._unread = sum(f.rows for f in files if f.first_key_group not in self.groups)

    def compare(self, groups: range) -> None:
        """Compare a range of key groups that is inside one partition on each side."""
        one, other = (self._grouped(side, groups) for side in (0, 1))
        for before, after in _together(one, other):
            self._counts = list(map(add, self._counts, self._comparison.compare(before, after)))

    def result(self) -> StateDiff:
        """Return the differences of the state in the key groups that were read."""
        added, changed, removed = self._counts
        return StateDiff(
            self._sides[0].operator.uid, self._infos[0].name, notes=self._comparison.notes, added=added,
            changed=changed, removed=removed, rows_before=self._rows[0], rows_after=self._rows[1],
            rows_unread=self._unread, keys=tuple(self._comparison.differences),
        )  # fmt: skip

    def _grouped(self, side: int, groups: range) -> Iterator[tuple[int, object]]:
        def count(rows: int) -> None:
            self._rows[side] += rows

        info, read_as = self._infos[side], self._comparison.read_as[side]
        return by_group(self._sides[side].read(info, groups, read_as), count)


def _tables_of(operator: OperatorInfo) -> list[StateInfo]:
    return [state for state in operator.states if has_rows(state)]


def _runs(groups: Iterable[int]) -> Iterator[range]:
    """Yield the contiguous ranges of key groups."""
    run = range(0)
    for group in sorted(groups):
        if group != run.stop:
            if run:
                yield run
            run = range(group, group)
        run = range(run.start, group + 1)
    if run:
        yield run


def _together(one: Iterator[tuple[int, object]], other: Iterator[tuple[int, object]]) -> Iterator[Sequence[object]]:
    """Yield the rows of both sides for each key group, with None for a side without rows."""
    heads = [next(one, None), next(other, None)]
    while groups := [head[0] for head in heads if head is not None]:
        group = min(groups)
        yield [head[1] if head is not None and head[0] == group else None for head in heads]
        for at, rest in enumerate((one, other)):
            head = heads[at]
            if head is not None and head[0] == group:
                heads[at] = next(rest, None)
