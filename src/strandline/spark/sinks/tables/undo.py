"""The rows by key that a table had before a sink's later transactions, from the files that these removed and added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from strandline.ends.tables.columns import plain_type

GONE = "__strandline_gone"
"""The column that marks rows to delete."""
_INDEX, _OLD, _NEW = "__index__", "__old__", "__new__"


class NotUndoableError(Exception):
    """The rows before a transaction are not known any more."""


@dataclass(frozen=True)
class Change:
    """The rows of the files that a transaction has removed, and of those that it has added."""

    removed: pa.Table
    added: pa.Table


def former_rows(changes: Iterable[Change], key: Sequence[str]) -> pa.Table | None:
    """Return the row that each key had before the first of some transactions, which come in reverse order.

    `GONE` marks keys that had none. Rows that a transaction has copied are left out: others may have changed them.
    """
    tables = [rows for change in changes for rows in _before(change, key)]
    if not tables:
        return None
    return last_rows(pa.concat_tables(tables, promote_options="permissive"), key)


def plain_rows(rows: pa.Table) -> pa.Table:
    """Return rows in one layout of each type: files of other writers have others."""
    return rows.cast(pa.schema([pa.field(column.name, plain_type(column.type)) for column in rows.schema]))


def last_rows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    numbered = rows.select(list(key)).append_column(_INDEX, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(_INDEX, "max")])[f"{_INDEX}_max"]
    return rows.take(last.take(pc.sort_indices(last)))


def _before(change: Change, key: Sequence[str]) -> list[pa.Table]:
    """Return the rows that a transaction has replaced or deleted, and the keys of those that it has inserted."""
    old, new = plain_rows(change.removed), plain_rows(change.added)
    sides = [(old, 1, 0), (new, 0, 1)]
    if any(name not in side.column_names for side, _, _ in sides if len(side) for name in key):
        raise NotUndoableError("the table had other columns for the key")
    numbered = [
        pa.table(
            {
                **{name: side[name] for name in key},
                _INDEX: pa.array(range(len(side)), pa.int64()),
                _OLD: pa.repeat(pa.scalar(is_old, pa.int64()), len(side)),
                _NEW: pa.repeat(pa.scalar(is_new, pa.int64()), len(side)),
            }
        )
        for side, is_old, is_new in sides
        if len(side)
    ]
    if not numbered:
        return []
    groups = (
        pa.concat_tables(numbered, promote_options="permissive")
        .group_by(list(key), use_threads=False)
        .aggregate([(_OLD, "sum"), (_NEW, "sum"), (_INDEX, "first"), (_INDEX, "last")])
    )
    was, has = groups[f"{_OLD}_sum"], groups[f"{_NEW}_sum"]
    if pc.any(pc.greater(was, 1)).as_py() or pc.any(pc.greater(has, 1)).as_py():
        raise NotUndoableError("several rows had the same key")
    # The old side comes first, so that a group's first row is the old one, if it has both.
    first, last = groups[f"{_INDEX}_first"], groups[f"{_INDEX}_last"]
    both = pc.and_(pc.equal(was, 1), pc.equal(has, 1))
    before, after = old.take(first.filter(both)), new.take(last.filter(both))
    changed = before.filter(pa.array(_differ(before, after), pa.bool_()))
    deleted = old.take(first.filter(pc.equal(has, 0)))
    inserted = new.take(first.filter(pc.equal(was, 0)))
    return [
        rows.append_column(GONE, pa.repeat(is_gone, len(rows)))
        for rows, is_gone in ((changed, False), (deleted, False), (inserted, True))
        if len(rows)
    ]


def _differ(before: pa.Table, after: pa.Table) -> list[bool]:
    """Return which rows of equal keys differ."""
    if before.column_names != after.column_names:
        return [True] * len(before)
    columns = [(before[name].to_pylist(), after[name].to_pylist()) for name in before.column_names]
    differ = [False] * len(before)
    for olds, news in columns:
        differ = [each or old != new for each, old, new in zip(differ, olds, news, strict=True)]
    return differ
