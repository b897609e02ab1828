"""Rows of a made-up state: every type that a column may have, and what their files must be, computed the simple way."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from strandline.core.keygroups import range_of
from strandline.format.manifest import FileRef, TableFile
from strandline.snapshot.rows.parquet import Cut, LocalTable, Open, named_schema
from strandline.snapshot.savepoints.tablewriter import TableWriter, join

Row = dict[str, Any]

STRUCT = pa.struct([pa.field("n", pa.int64()), pa.field("s", pa.string()), pa.field("l", pa.list_(pa.int16()))])
SCHEMA = named_schema(
    pa.schema(
        {
            "key_group": pa.int32(),
            "user": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "flag": pa.bool_(),
            "double": pa.float64(),
            "amount": pa.decimal128(20, 2),
            "bytes": pa.binary(),
            "list": pa.list_(pa.list_(pa.string())),
            "map": pa.map_(pa.string(), STRUCT),
            "struct": STRUCT,
            "expires_at": pa.timestamp("us", "UTC"),
        }
    ),
    "detect",
    "seen",
)

_TIMES = st.sampled_from([dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(1, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)])
_STRINGS = st.sampled_from(["", "a", "größe", "x" * 40])
_STRUCTS = st.builds(
    lambda n, s, l: {"n": n, "s": s, "l": l},  # noqa: E741
    st.none() | st.integers(-5, 1 << 60),
    st.none() | _STRINGS,
    st.none() | st.lists(st.integers(-9, 9), max_size=4),
)
_VALUES = st.fixed_dictionaries(
    {
        "at": st.none() | _TIMES,
        "flag": st.none() | st.booleans(),
        "double": st.none() | st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5]),
        "amount": st.none() | st.decimals(-1000, 1000, places=2).map(lambda d: d + 0),
        "bytes": st.none() | st.binary(max_size=30),
        "list": st.none() | st.lists(st.none() | st.lists(st.none() | _STRINGS, max_size=3), max_size=3),
        "map": st.none() | st.dictionaries(_STRINGS, st.none() | _STRUCTS, max_size=2),
        "struct": st.none() | _STRUCTS,
        "expires_at": st.none() | _TIMES,
    }
)


@st.composite
def states(draw: st.DrawFn) -> tuple[int, list[Row]]:
    """A max_parallelism, and rows in order; some key groups have many."""
    max_parallelism = draw(st.integers(1, 300) | st.sampled_from([1, 2, 7, 128]))
    groups = draw(st.lists(st.integers(0, max_parallelism - 1), max_size=40))
    groups += draw(st.sampled_from([0, 0, 10, 60])) * draw(st.lists(st.integers(0, max_parallelism - 1), max_size=1))
    kinds = [
        {name: kind[name] for name in SCHEMA.names[2:]} for kind in draw(st.lists(_VALUES, min_size=1, max_size=8))
    ]
    return max_parallelism, [
        {"key_group": group, "user": f"user-{number:05d}", **kinds[number * 7 % len(kinds)]}
        for number, group in enumerate(sorted(groups))
    ]


def batches_of(rows: Sequence[Row], sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of these sizes, the same again and again, as parts of larger ones."""
    first = turn = 0
    while first < len(rows) or turn < len(sizes):
        last = min(first + sizes[turn % len(sizes)], len(rows))
        around = [*rows[max(first - 1, 0) : first], *rows[first : last + 1]]
        batch = pa.RecordBatch.from_pylist(around, SCHEMA)
        yield batch.slice(min(first, 1), last - first)
        first, turn = last, turn + 1


def written(
    rows: Sequence[Row], max_parallelism: int, parallelism: int, directory: Path, cut: Cut, sizes: Sequence[int] = (9,)
) -> list[LocalTable]:
    """The files of a state, in order, after as many writers have done their part."""
    directory.mkdir(exist_ok=True)
    files: list[LocalTable] = []
    pieces: list[TableFile] = []
    for partition in range(parallelism):
        groups = range_of(partition, max_parallelism, parallelism)
        writer = TableWriter(SCHEMA, groups, max_parallelism, directory, cut)
        for batch in batches_of([row for row in rows if row["key_group"] in groups], sizes):
            writer.write(batch)
        own_files, own_pieces = writer.finish()
        files += own_files
        pieces += [piece.table for piece in own_pieces]
    files += join([file.table for file in files], pieces, max_parallelism, directory, cut)
    for piece in pieces:
        Path(directory, piece.file.name).unlink()
    assert len({file.path for file in files}) == len(files)
    return sorted(files, key=lambda file: file.table.first_key_group)


def size_of(row: Row) -> int:
    """A row's size, as docs/format.md has it."""
    return sum(_size(value, SCHEMA.field(name).type) for name, value in row.items())


def _size(value: Any, kind: pa.DataType) -> int:
    if pa.types.is_string(kind):
        return 4 + len((value or "").encode())
    if pa.types.is_binary(kind):
        return 4 + len(value or b"")
    if pa.types.is_list(kind):
        return 4 + sum(_size(item, kind.value_type) for item in value or [])
    if pa.types.is_map(kind):
        return 4 + sum(_size(k, kind.key_type) + _size(v, kind.item_type) for k, v in (value or {}).items())
    if pa.types.is_struct(kind):
        return 1 + (sum(_size(value[field.name], field.type) for field in kind) if value is not None else 0)
    return {pa.bool_(): 1, pa.int16(): 2, pa.int32(): 4, pa.decimal128(20, 2): 16}.get(kind, 8)


def files_of(rows: Sequence[Row], max_parallelism: int, cut: Cut) -> list[list[Row]]:
    """What rows each file must have: all, if they are small, or as many of each key group as are small."""
    if sum(map(size_of, rows)) <= cut.file_bytes:
        return [list(rows)] if rows else []
    files: list[list[Row]] = []
    for group in range(max_parallelism):
        mine = [row for row in rows if row["key_group"] == group]
        while mine:
            n = 1
            while n < len(mine) and sum(map(size_of, mine[: n + 1])) <= cut.file_bytes:
                n += 1
            files.append(mine[:n])
            mine = mine[n:]
    return files


def opener(directory: Path, opened: list[str] | None = None) -> Open:
    """Opens files that lie in one directory, and notes which."""

    @contextmanager
    def open(file: FileRef) -> Iterator[Path]:
        if opened is not None:
            opened.append(file.name)
        yield directory / file.name

    return open


def same(values: object) -> str:
    """What two rows have in common that are equal; NaN is, and 0.0 is not -0.0."""
    return repr(values).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


def plain(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[Row]:
    return pa.Table.from_batches(batches, SCHEMA).to_pylist(maps_as_pydicts="strict")
