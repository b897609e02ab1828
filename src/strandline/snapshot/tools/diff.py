"""Differences between two snapshots: keys added, changed and removed, by operator and state.

It compares rows, so that the snapshots may differ in backend, form, parallelism and stored bytes. It holds one key
group at a time in memory. It skips files with the same name in two canonical savepoints.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from strandline.core.keygroups import BROADCAST_GROUP, BROADCAST_GROUPS
from strandline.format.manifest import TableFile
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.parquet import key_groups
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table, all_tables
from strandline.snapshot.tools.comparison import KeyDiff, StateComparison, why_not

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
    groups and of all. Values of an older type are compared as values of the current type. Raises as `StateReader` does.
    """
    with StateReader(scratch, most_open=1) as one, StateReader(scratch, most_open=1) as other:
        readers = one, other
        ours, theirs = (_tables_of(snapshot) for snapshot in (before, after))
        states = [StateDiff(uid, "", only="before") for uid in ours if uid not in theirs]
        states += [StateDiff(uid, "", only="after") for uid in theirs if uid not in ours]
        both = [
            _OperatorDiff(readers, uid, tables, theirs[uid], sample, most_keys)
            for uid, tables in ours.items()
            if uid in theirs
        ]
        total, done = sum(len(operator.chosen) for operator in both), 0
        for operator in both:
            for groups in operator.compare():
                done += groups
                progress(done, total)
            states += operator.result()
    return SnapshotDiff(before.url, after.url, tuple(states), sum(operator.population for operator in both), total)


def _tables_of(snapshot: Snapshot) -> dict[str, dict[str, Table]]:
    """Return the tables of a snapshot by operator and state."""
    tables: dict[str, dict[str, Table]] = {operator.uid: {} for operator in snapshot.manifest.operators}
    for table in all_tables(snapshot):
        tables[table.operator.uid][table.state.name] = table
    return tables


class _OperatorDiff:
    """Compares the states of one operator, which both snapshots have."""

    def __init__(
        self,
        readers: tuple[StateReader, StateReader],
        uid: str,
        before: Mapping[str, Table],
        after: Mapping[str, Table],
        sample: float,
        most_keys: int,
    ) -> None:
        self._states: list[_StateDiff] = []
        self._only = [StateDiff(uid, name, only="after") for name in after if name not in before]
        for name, table in before.items():
            if (other := after.get(name)) is None:
                self._only.append(StateDiff(uid, name, only="before"))
            elif why := why_not(table.operator, other.operator, table.state, other.state):
                self._only.append(StateDiff(uid, name, why_not=why))
            else:
                self._states.append(_StateDiff(readers, table, other, most_keys))
        candidates = sorted(set().union(*(one.groups for one in self._states if not one.is_broadcast)))
        self.population = len(candidates)
        # Use the same key groups for all states, so that files are fetched once.
        self.chosen = set(random.Random(uid).sample(candidates, math.ceil(sample * self.population)))
        self._starts = {part.first_key_group for one in self._states for part in one.partitions}

    def compare(self) -> Iterator[int]:
        """Compare all states; yield numbers of compared key groups."""
        for state in self._states:
            if state.is_broadcast and state.groups:
                state.compare(BROADCAST_GROUPS)
        for first, end in pairwise(sorted({0, *self._starts, BROADCAST_GROUP})):
            groups = self.chosen.intersection(range(first, end))
            for state in self._states:
                for run in _runs(groups & state.groups):
                    state.compare(run)
            yield len(groups)

    def result(self) -> list[StateDiff]:
        """Return the differences of each state."""
        return [state.result() for state in self._states] + self._only


class _StateDiff:
    """Compares one state's rows."""

    def __init__(self, readers: tuple[StateReader, StateReader], before: Table, after: Table, most_keys: int) -> None:
        self._readers = readers
        self._tables = before, after
        self.is_broadcast = before.is_broadcast
        self.partitions = [*before.partitions, *after.partitions]
        self._comparison = StateComparison(before.operator, before.state, after.state, most_keys)
        self._counts = [0, 0, 0]
        self._rows = [0, 0]
        self._unread = 0
        self.groups = set(before.groups)
        """The key groups in which rows may differ."""
        if before.files is not None and after.files is not None:
            self.groups = unequal_groups(before.files, after.files)
            self._unread = sum(f.rows for f in before.files if f.first_key_group not in self.groups)

    def compare(self, groups: range) -> None:
        """Compare a range of key groups that is inside one partition on each side."""
        one, other = (self._grouped(side, groups) for side in (0, 1))
        for before, after in _together(one, other):
            self._counts = list(map(add, self._counts, self._comparison.compare(before, after)))

    def result(self) -> StateDiff:
        """Return the differences of the state in the key groups that were read."""
        added, changed, removed = self._counts
        return StateDiff(
            self._tables[0].operator.uid, self._tables[0].state.name, notes=self._comparison.notes, added=added,
            changed=changed, removed=removed, rows_before=self._rows[0], rows_after=self._rows[1],
            rows_unread=self._unread, keys=tuple(self._comparison.differences),
        )  # fmt: skip

    def _grouped(self, side: int, groups: range) -> Iterator[tuple[int, object]]:
        def count(rows: int) -> None:
            self._rows[side] += rows

        return by_group(self._read(side, groups), count)

    def _read(self, side: int, groups: range) -> Iterator[pa.RecordBatch]:
        """Read rows of one side, with values of the newer type."""
        reader, table, read_as = self._readers[side], self._tables[side], self._comparison.read_as[side]
        if read_as is None:
            return reader.rows(table, groups, keep=True)
        newer = replace(table, state=read_as)
        if table.files is None:
            return reader.rows(newer, groups, keep=True)
        entries = table.codec.encode_groups(reader.rows(table, groups))
        return newer.codec.decode_groups(entry for some in entries for entry in some)


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


def by_group(batches: Iterable[pa.RecordBatch], report: Callable[[int], None]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield whole key groups of rows that are in order; `report` gets the numbers of rows."""
    waiting: list[pa.RecordBatch] = []
    at = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        report(batch.num_rows)
        groups = key_groups(batch)
        borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(borders):
            group = int(groups[first])
            if waiting and group != at:
                yield at, pa.concat_batches(waiting)
                waiting = []
            at = group
            waiting.append(batch.slice(first, last - first))
    if waiting:
        yield at, pa.concat_batches(waiting)


def unequal_groups(one: Iterable[TableFile], other: Iterable[TableFile]) -> set[int]:
    """Return the key groups in which two tables may differ: those of files that only one of them has.

    If one file of a key group differs, the whole key group does: a key's rows may span several files.
    """
    ours, theirs = {file.file.path: file for file in one}, {file.file.path: file for file in other}
    single = [*(f for path, f in ours.items() if path not in theirs), *(f for p, f in theirs.items() if p not in ours)]
    return {group for file in single for group in range(file.first_key_group, file.last_key_group + 1)}
