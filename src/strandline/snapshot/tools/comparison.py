"""The rows of one state in two snapshots, compared key by key."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import add
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.values import ValueCodec
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import EXPIRES_AT, MAP_KEY, TIME, VALUE, WINDOW_END
from strandline.types.columns import conform, from_arrow_type
from strandline.types.datatypes import Field, LongType, StructType, parse_schema

_MOST_ROWS = 20
_TIMES = (TIME, WINDOW_END, EXPIRES_AT)
Change = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class KeyDiff:
    """A key that differs, as data for JSON."""

    change: Change
    key: dict[str, Any]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    """The first rows that only this side has, without the columns of the key."""
    rows_before: int
    rows_after: int
    """The number of such rows."""


def why_not(one: OperatorInfo, other: OperatorInfo, before: StateInfo, after: StateInfo) -> str:
    """Return why a state of two snapshots cannot be compared at all; "" if it can."""
    keys, their_keys = (parse_schema(info.key_schema) for info in (one, other))
    for what, now, was in (
        ("max_parallelism", other.max_parallelism, one.max_parallelism),
        ("key", other.key_schema, one.key_schema) if keys != their_keys else ("key", "", ""),
        ("kind", after.kind, before.kind),
        ("key type", after.key_type, before.key_type),
    ):
        if now != was:
            return f"its {what} is {now}, was {was}"
    return ""


class StateComparison:
    """Compares a state's rows, one key group at a time, and keeps some keys that differ."""

    def __init__(self, operator: OperatorInfo, before: StateInfo, after: StateInfo, most_shown: int) -> None:
        self.read_as: tuple[StateInfo | None, StateInfo | None] = None, None
        """The state whose type each side's values are read as; None for their own type."""
        self.notes: tuple[str, ...] = ()
        self.differences: list[KeyDiff] = []
        self._most_shown = most_shown
        left_out = set()
        if before.value_type != after.value_type:
            compared = "values were not compared"
            if _descends(before, after):
                self.read_as, compared = (after, None), "values were compared as those of the newer type"
            elif _descends(after, before):
                self.read_as, compared = (None, before), "values were compared as those of the newer type"
            else:
                left_out = {VALUE}
            self.notes = (f"its type is {after.value_type}, was {before.value_type}: {compared}",)
        if bool(before.ttl) != bool(after.ttl):
            left_out.add(EXPIRES_AT)
            self.notes += ("it has a TTL" if after.ttl else "it has no TTL any more",)
        names = rows_of(operator, self.read_as[1] or after).schema.names
        keys = 0 if before.kind == "broadcast" else len(parse_schema(operator.key_schema).fields)
        self._has_group = bool(keys)
        self._keys = names[1 : 1 + keys] or [MAP_KEY]
        self._rest = [name for name in names[1:] if name not in self._keys and name not in left_out]
        self._codecs: tuple[list[Field], KeyCodec, ValueCodec | None, bool] | None = None

    def compare(self, before: pa.RecordBatch | None, after: pa.RecordBatch | None) -> tuple[int, int, int]:
        """Return the numbers of added, changed and removed keys of a key group; None stands for no rows."""
        one, other = (None if rows is None else self._columns(rows) for rows in (before, after))
        if one is not None and other is not None and self._are_same(one, other):
            return 0, 0, 0
        ours, theirs = self._encode(one), self._encode(other)
        lost, new = ours.without(theirs), theirs.without(ours)
        touched = lost.keys() | new.keys()
        before_keys, after_keys = set(ours.keys), set(theirs.keys)
        added, removed = touched - before_keys, touched - after_keys
        if len(self.differences) < self._most_shown:
            for key in sorted(touched)[: self._most_shown - len(self.differences)]:
                change: Change = "added" if key in added else "removed" if key in removed else "changed"
                self.differences.append(self._describe(change, ours, theirs, lost.get(key, []), new.get(key, [])))
        return len(added), len(touched) - len(added) - len(removed), len(removed)

    def _columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the compared columns in the types of the codecs; times may be any number."""
        if self._codecs is None:
            kinds = [from_arrow_type(rows.schema.field(name).type) for name in (*self._keys, *self._rest)]
            fields = [Field(n, k) for n, k in zip((*self._keys, *self._rest), kinds, strict=True)]
            rest = [Field(f.name, LongType()) if f.name in _TIMES else f for f in fields[len(self._keys) :]]
            # In Arrow, -0.0 equals 0.0.
            has_floats = any(word in field.type.ddl for field in fields for word in ("float", "double"))
            key_codec = KeyCodec([field.type for field in fields[: len(self._keys)]])
            self._codecs = fields, key_codec, ValueCodec(StructType(tuple(rest))) if rest else None, has_floats
        fields = self._codecs[0]
        columns = [conform(rows.column(field.name), field.type) for field in fields]
        compared = pa.RecordBatch.from_arrays([rows.column(0), *columns], names=["", *(f.name for f in fields)])
        # Leave out marks of panes, which have no key and depend on the watermark.
        return compared.filter(compared.column(1).is_valid()) if compared.column(1).null_count else compared

    def _are_same(self, one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
        assert self._codecs is not None
        return not self._codecs[3] and bool(one.equals(other))

    def _encode(self, rows: pa.RecordBatch | None) -> _Rows:
        if rows is None or not rows.num_rows:
            return _Rows()
        assert self._codecs is not None
        fields, key_codec, rest_codec, _ = self._codecs
        groups = rows.column(0) if self._has_group else pa.array(np.zeros(rows.num_rows, np.int32))
        at = 1 + len(self._keys)
        keys = key_codec.encode_arrow(groups, rows.columns[1:at])
        columns = [
            column.view(pa.int64()) if field.name in _TIMES else column
            for field, column in zip(fields[at - 1 :], rows.columns[at:], strict=True)
        ]
        if rest_codec is None:
            return _Rows(rows, keys, keys)
        rest = rest_codec.encode_arrow(pa.StructArray.from_arrays(columns, names=self._rest))
        return _Rows(rows, keys, list(map(add, keys, rest)))

    def _describe(self, change: Change, ours: _Rows, theirs: _Rows, lost: list[int], new: list[int]) -> KeyDiff:
        key = _plain(ours.rows, lost[0], self._keys) if lost else _plain(theirs.rows, new[0], self._keys)
        before = [_plain(ours.rows, row, self._rest) for row in lost[:_MOST_ROWS]]
        after = [_plain(theirs.rows, row, self._rest) for row in new[:_MOST_ROWS]]
        return KeyDiff(change, key, before, after, len(lost), len(new))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows with their encoded keys, none of which is a prefix of another, and their encoded contents."""

    rows: pa.RecordBatch | None = None
    keys: Sequence[bytes] = ()
    whole: Sequence[bytes] = ()
    """For each row, its encoded key and other columns."""

    def without(self, others: _Rows) -> dict[bytes, list[int]]:
        """Return, by key, the rows that `others` lacks."""
        theirs = set(others.whole)
        missing: dict[bytes, list[int]] = {}
        for row, whole in enumerate(self.whole):
            if whole not in theirs:
                missing.setdefault(self.keys[row], []).append(row)
        return missing


def _descends(old: StateInfo, new: StateInfo) -> bool:
    """Whether the new state's manifest has the schema of the old one's values."""
    chain, before = new.older or {}, old.older or {}
    step = chain.get(old.schema_id)
    return (
        step is not None
        and step.value_type == old.value_type
        and all(chain.get(schema_id) == older for schema_id, older in before.items())
    )


def _plain(rows: pa.RecordBatch | None, row: int, names: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if rows is None:
        return values
    for name in names:
        column = rows.column(name)
        try:
            values[name] = _json(column[row].as_py())
        except (ValueError, OverflowError):
            # A time outside of Python's range.
            values[name] = column.view(pa.int64())[row].as_py()
    return values


def _json(value: Any) -> Any:
    """Convert a value for JSON: bytes to hex, times to ISO 8601, a map to a list of pairs."""
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
