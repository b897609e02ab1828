"""What the tests of views' operators share: rows of all awkward kinds, epochs by chance, and a partition to run them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from strandline.runtime.operators.views import chunks
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.rowlayout import FIRED
from strandline.runtime.state.store import Store
from strandline.types.columns import arrow_schema, from_python
from strandline.types.datatypes import StructType, parse_schema, parse_type
from strandline.types.murmur import key_group
from tests.runtime.bench import MAX_PARALLELISM, Bench

# The keys of tests have few rows.
chunks.CHUNK = 2

KEY = "__strandline_key"
NAN = float("nan")
KEY_TYPES: dict[str, tuple[str, list[Any]]] = {
    "text": ("struct<k0: string, side: int>", [("a", 0), ("", 0), (None, 0), (None, 1), ("é\0", 0)]),
    "number": ("struct<k0: bigint>", [(1,), (2,), (None,), (-1,)]),
    "double": ("struct<k0: double>", [(0.0,), (1.5,), (NAN,), (None,)]),
    "nothing": ("struct<side: int>", [(0,)]),
}
COLUMNS = "n bigint, x double, s string, l array<double>"
ROWS: list[tuple[Any, ...]] = [
    (1, 0.0, "a", None), (1, -0.0, "a", None), (1, NAN, None, []), (None, None, None, None), (2, 1.5, "", [0.0]),
    (2, 1.5, "", [-0.0]), (2, 1.5, "", [NAN, None]),
]  # fmt: skip
"""Rows of COLUMNS: those that differ in the sign of a zero are others."""
Bag = Counter[Any]


def exact(value: Any) -> str:
    """Return a text that is the same for equal rows alone: zeros have a sign, and all NaNs are one."""
    return repr(as_tuple(value))


def as_tuple(value: Any) -> Any:
    """Return structs as tuples."""
    if isinstance(value, dict):
        return tuple(map(as_tuple, value.values()))
    return type(value)(map(as_tuple, value)) if isinstance(value, list | tuple) else value


def bag(rows: Iterable[tuple[Any, ...]]) -> Bag:
    """Return rows that end with a weight as a bag; one may be there less than 0 times."""
    found: Bag = Counter()
    for *row, weight in rows:
        found[exact(tuple(row))] += weight
    return Counter({row: n for row, n in found.items() if n})


WAYS = ["keep", "keep", "again", "restore", "write", "evict"]
Change = tuple[Any, Any, int]
"""A key, a row and a weight."""


def row_of(at_key: int, row: Any) -> Any:
    """Return a row that tells its key: equal rows have equal keys, as keys are computed from rows."""
    return at_key, *row[1:]


@st.composite
def changes(draw: st.DrawFn, keys: Sequence[Any], rows: Sequence[Any], counts: dict[Any, int]) -> list[Change]:
    """Return an epoch's changes of some counts, by index of key and row: the counts after it are `counts` then."""
    found: list[Change] = []
    entries = st.tuples(st.integers(0, len(keys) - 1), st.integers(0, len(rows) - 1), st.integers(0, 2))
    for at_key, at_row, count in draw(st.lists(entries, max_size=10)):
        before = counts.get((at_key, at_row), 0)
        counts[at_key, at_row] = count
        way = draw(st.sampled_from(["once", "ones", "around", "touch"]))
        key, row, change = keys[at_key], row_of(at_key, rows[at_row]), count - before
        match way:
            case "once":
                found.append((key, row, change))
            case "ones":
                found += [(key, row, 1 if change > 0 else -1)] * abs(change)
            case "around":
                # What cancels out within an epoch was never there.
                found += [(key, row, change), (key, row, -1), (key, row, 1)]
            case "touch":
                found += [(key, row, change), (key, tuple([None] * len(row)), 0)]
    return draw(st.permutations(found))


def cut(draw: Any, changes: Sequence[Any]) -> list[list[Any]]:
    """Return an epoch's changes in batches."""
    at = draw(st.integers(0, len(changes)))
    return [list(part) for part in (changes[:at], changes[at:]) if part]


def rows_batch(schema: StructType, key_type: str, rows: Sequence[tuple[Any, ...]], key_at: int) -> pa.RecordBatch:
    """Return rows as a keeper receives them: the key group, then the columns."""
    kind = parse_type(key_type)
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in schema.fields]
    groups = [int(key_group((key,), [kind], MAX_PARALLELISM)) for key in columns[key_at]]
    arrays = [from_python(values, each.type, each.name) for values, each in zip(columns, schema.fields, strict=True)]
    return pa.RecordBatch.from_arrays(
        [pa.array(groups, pa.int32()), *arrays],
        schema=pa.schema([pa.field("key_group", pa.int32()), *arrow_schema(schema)]),
    )


@dataclass(frozen=True)
class Shape:
    """An operator of a view, and its columns: those of the input are without the key, which is first, or last of pairs."""

    process: Any
    key_type: str
    columns: str
    output: str
    is_phased: bool = False
    """Whether rows say if a timer of an operator before gave them."""

    @property
    def is_pairs(self) -> bool:
        return self.columns.startswith("left ")

    @property
    def input(self) -> str:
        """All columns of the input."""
        key = f"{KEY} {self.key_type}"
        return f"{self.columns}, {key}" if self.is_pairs else f"{key}, {self.columns}"

    @cached_property
    def schema(self) -> StructType:
        return parse_schema(self.input)

    def program(self) -> dict[str, Any]:
        """Return what a program says of it."""
        output = f"{self.output}, {WEIGHT} bigint"
        return {
            "key_columns": [KEY], "input_schema": self.input, "output_schema": output, "phased": self.is_phased,
        }  # fmt: skip

    def batch(self, rows: Sequence[tuple[Any, ...]], *, fired: bool = False) -> pa.RecordBatch:
        """Return rows as a keeper receives them."""
        batch = rows_batch(self.schema, self.key_type, rows, len(self.schema.fields) - 1 if self.is_pairs else 0)
        return batch.add_column(1, FIRED, pa.array([fired] * len(rows), pa.bool_())) if self.is_phased else batch


class Operator(Bench):
    """A partition of one operator of a view."""

    def __init__(
        self, kind: str, root: Path, process: Any, key_type: str, columns: str, output: str, *, is_phased: bool = False
    ) -> None:
        self.shape = Shape(process, key_type, columns, output, is_phased)
        super().__init__(kind, root, process, **self.shape.program())

    def epoch_of(self, batches: Sequence[Sequence[tuple[Any, ...]]], *, abort: bool = False) -> list[tuple[Any, ...]]:
        """Process an epoch; return its output rows."""
        made = map(self.shape.batch, batches)
        return [tuple(row.values()) for batch in self.apply(made, abort=abort) for row in batch.to_pylist()]

    def keep_nothing_in_memory(self, really: bool) -> None:
        """Have the caches of the operator's states evicted, or not."""
        evict_all(self.task.store, really=really)

    def write_behind(self) -> None:
        """Have the changes so far written to the backend."""
        self.write(self.freeze())

    def restart(self, data: st.DataObject) -> None:
        """Go on from a snapshot, in another partition object."""
        self.restore(self.snapshot(), self.epoch)


def evict_all(store: Store, *, really: bool) -> None:
    """Have the caches of a task's states evicted, or not."""
    for table in store._values:
        table._cache_bytes = 0 if really else 1 << 20


class Life:
    """The epochs of an operator by chance: some are given up and repeated, some follow a restore."""

    def __init__(self, data: st.DataObject, bench: Any) -> None:
        """`bench`: an Operator, or what is like one."""
        self._data, self._bench = data, bench
        self.given: Bag = Counter()
        """The sum of all that it gave."""

    def epoch(self, batches: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """Process an epoch; return what it gave."""
        way = self._data.draw(st.sampled_from(WAYS), label="way")
        self._bench.keep_nothing_in_memory(way == "evict")
        if way == "again":
            first = self._bench.epoch_of(batches, abort=True)
            found = self._bench.epoch_of(batches)
            assert Counter(map(exact, first)) == Counter(map(exact, found))
        else:
            found = self._bench.epoch_of(batches)
        self.given.update(bag(found))
        self.given = Counter({row: n for row, n in self.given.items() if n})
        if way == "write":
            self._bench.write_behind()
        elif way == "restore":
            self._bench.restart(self._data)
        return found
