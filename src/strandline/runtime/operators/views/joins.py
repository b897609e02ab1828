"""Joins of two changing tables by equal keys: each side's rows are state, and results change with either side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.backends.base import Backend
from strandline.format.schemas import Schemas
from strandline.runtime.operators.views.bags import WEIGHT, Bag, Numbers, RowType, from_state, refuse_absent, to_state
from strandline.runtime.operators.views.chunks import Chunks
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows, changed_rows
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.types.datatypes import StructType

How = Literal["inner", "left", "right", "full", "semi", "anti", "existence"]
"""`existence`: every left row, and whether it has a partner."""
PAIRED: tuple[How, ...] = ("inner", "left", "right", "full")
"""The kinds whose results have the columns of both sides."""
_SIDES = "left", "right"


@dataclass(frozen=True)
class _Added:
    """An epoch's changes of one side."""

    rows: Bag
    touched: Numbers
    """The numbers of the keys that it has, also of changes that cancel out."""


@dataclass(frozen=True)
class _Side:
    """The rows of one side, of the keys that an epoch touches."""

    kind: RowType
    added: Bag
    before: Bag
    """All rows of the keys in which the other side changes; of others, perhaps."""
    after: Bag
    had: Numbers
    """By key: whether it had rows before."""
    has: Numbers


class Joining(EpochOperator):
    """Pairs of rows with equal keys, and rows without a partner as the kind of join says.

    A row of the input is a pair of which one half is null. A half has its columns, and its weight if rows are ever
    taken back.
    """

    def __init__(self, how: How, left: StructType, right: StructType, result: StructType) -> None:
        super().__init__()
        self._how = how
        self._kinds = RowType(left), RowType(right)
        self._result = RowType(result)
        self._chunks = {name: Chunks(name, kind) for name, kind in zip(_SIDES, self._kinds, strict=True)}
        self.keep_for(None)

    def keep_for(self, ttl_ms: int | None) -> None:
        # What expires is forgotten with its key, so it is one value.
        is_value, kinds = ttl_ms is not None, zip(_SIDES, self._kinds, strict=True)
        self.own_states = {name: Value(kind.bag_ddl) for name, kind in kinds} if is_value else {}
        self.own_tables = () if is_value else [each.info for each in self._chunks.values()]
        super().keep_for(ttl_ms)

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        if self.ttl_ms is not None:
            return ()
        return [
            each.bind(backend, schemas.get(name, Schemas()), cache_bytes // 2) for name, each in self._chunks.items()
        ]

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        lefts, rights = (_added(kind, of_row, half) for kind, half in zip(self._kinds, columns, strict=False))
        left = self._side(0, keys, lefts, rights, scope)
        right = self._side(1, keys, rights, lefts, scope)
        parts = [part for part in self._parts(left, right) if len(part)]
        if not parts:
            return None
        result = Bag(
            np.concatenate([part.of_key for part in parts]),
            pa.concat_arrays([part.rows for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )
        if result.counts.min() < 0 < result.counts.max():
            result = result.summed(self._result)
        return change_rows(self._result, result)

    def _side(self, side: int, keys: BatchKeys, change: _Added, other: _Added, scope: Scope) -> _Side:
        """Add the changes of one side to its state."""
        name, kind, added, count = _SIDES[side], self._kinds[side], change.rows, len(keys)
        where = f"operator '{scope.uid}', the {name} rows"
        if self.ttl_ms is not None:
            return self._expiring_side(name, kind, keys, change, where)
        chunks = self._chunks[name]
        ends = chunks.find(keys.encoded)
        has_less, is_asked = np.zeros(count, bool), np.zeros(count, bool)
        has_less[added.of_key[added.counts < 0]] = True
        # All rows of a key count if the other side changes, or if some are taken back.
        is_asked[other.rows.of_key] = True
        is_asked |= has_less
        before = chunks.whole(ends, is_asked)
        after = before.plus(added.of_keys(is_asked))
        had = ends.has_rows
        has = had.copy()
        has[added.of_key] = True
        chunks.append(ends, added.of_keys(~has_less))
        if has_less.any():
            after = after.of_keys(~has_less).plus(after.of_keys(has_less).summed(kind))
            refuse_absent(after, where)
            has[has_less] = np.bincount(after.of_key, minlength=count)[has_less] > 0
            chunks.replace(ends, has_less, after.of_keys(has_less))
        return _Side(kind, added, before, after, had, has)

    def _expiring_side(self, name: str, kind: RowType, keys: BatchKeys, change: _Added, where: str) -> _Side:
        state, added, count = vars(self)[name], change.rows, len(keys)
        before = from_state(state.get_many(keys), kind)
        after = before.plus(added)
        if len(added) and added.counts.min() < 0:
            after = after.summed(kind).there()
            added = before.negated().plus(after).summed(kind)
        changed = np.unique(change.touched)
        if len(changed):
            state.put_many(keys.take(changed), to_state(after, count, where).take(pa.array(changed)))
        had, has = (np.bincount(bag.of_key, minlength=count) > 0 for bag in (before, after))
        return _Side(kind, added, before, after, had, has)

    def _parts(self, left: _Side, right: _Side) -> Iterator[Bag]:
        """Yield the changes of the result in parts, some of which may cancel each other out."""
        how = self._how
        if how in PAIRED:
            # What changes on the left meets what was on the right, and what is on the left now what changes there.
            yield self._pairs(left.added, right.before)
            yield self._pairs(left.after, right.added)
        if how in ("left", "full", "anti"):
            yield from (self._left(bag, how != "anti") for bag in _without(left, right))
        if how in ("right", "full"):
            for bag in _without(right, left):
                nulls = [pa.nulls(len(bag), field.type) for field in left.kind.arrow]
                yield self._bag(bag.of_key, [*nulls, *bag.rows.flatten()], bag.counts)
        if how == "existence":
            yield from (self._left(bag, False, False) for bag in _without(left, right))
        if how in ("semi", "existence"):
            more = (True,) if how == "existence" else ()
            yield from (self._left(bag, False, *more) for bag in _with(left, right))

    def _pairs(self, lefts: Bag, rights: Bag) -> Bag:
        order = np.argsort(rights.of_key, kind="stable")
        keys = int(max(lefts.of_key.max(initial=-1), rights.of_key.max(initial=-1))) + 1
        sizes = np.bincount(rights.of_key, minlength=keys)
        starts = np.cumsum(sizes) - sizes
        times = sizes[lefts.of_key]
        at = np.repeat(np.arange(len(lefts)), times)
        # The number of each pair among those of its left row.
        rank = np.arange(len(at)) - np.repeat(np.cumsum(times) - times, times)
        other = order[np.repeat(starts[lefts.of_key], times) + rank]
        columns = [*lefts.rows.take(pa.array(at)).flatten(), *rights.rows.take(pa.array(other)).flatten()]
        return self._bag(lefts.of_key[at], columns, lefts.counts[at] * rights.counts[other])

    def _left(self, bag: Bag, padded: bool, *exists: bool) -> Bag:
        nulls = [pa.nulls(len(bag), field.type) for field in self._kinds[1].arrow] if padded else []
        flags = [pa.array(np.full(len(bag), flag)) for flag in exists]
        return self._bag(bag.of_key, [*bag.rows.flatten(), *nulls, *flags], bag.counts)

    def _bag(self, of_key: Numbers, columns: Sequence[pa.Array], counts: Numbers) -> Bag:
        return Bag(of_key, pa.StructArray.from_arrays(columns, fields=list(self._result.arrow)), counts)


def _added(kind: RowType, of_row: Numbers, half: pa.StructArray) -> _Added:
    """Return an epoch's changes of a side."""
    at = np.flatnonzero(half.is_valid().to_numpy(zero_copy_only=False))
    rows = half.take(pa.array(at))
    is_weighted = half.type.get_field_index(WEIGHT) >= 0
    weights = rows.field(WEIGHT) if is_weighted else pa.array(np.ones(len(rows), np.int64))
    added = changed_rows(kind, of_row[at], [rows.field(name) for name in kind.columns.names], weights)
    return _Added(added, of_row[at])


def _without(side: _Side, other: _Side) -> Iterator[Bag]:
    """Yield the changes of a side's rows that have no partner."""
    return _changes(side, ~other.had, ~other.has)


def _with(side: _Side, other: _Side) -> Iterator[Bag]:
    """Yield the changes of a side's rows that have one."""
    return _changes(side, other.had, other.has)


def _changes(side: _Side, counted: Numbers, counts: Numbers) -> Iterator[Bag]:
    """Yield the changes of those rows whose keys count; by key, whether it did before, and does now."""
    yield side.added.of_keys(counted & counts)
    yield side.before.of_keys(counted & ~counts).negated()
    yield side.after.of_keys(~counted & counts)
