"""Partitions of the runtime: what they have stored, as entries and as rows, and partitions made of rows."""

from __future__ import annotations

import heapq
from pathlib import Path

import pyarrow as pa

from strandline.backends.base import LocalFile
from strandline.backends.rocksdb import RocksDBBackend
from strandline.format.heapfile import write_heap
from strandline.format.manifest import OperatorInfo
from strandline.runtime.program import state_infos
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.types.datatypes import StructType, parse_schema
from tests.runtime.bench import BUDGET, Bench
from tests.runtime.living import stored
from tests.snapshot.strategies import Entries, fields_of, operator_of


def operator_info(bench: Bench) -> OperatorInfo:
    schema: StructType = parse_schema(bench.program.input_schema)
    names = bench.program.key_columns
    keys = fields_of(*zip(names, schema.types_of(names), strict=True))
    return operator_of(keys, *state_infos(bench.process))


def tables_of(bench: Bench, **times_us: int | None) -> dict[str, pa.RecordBatch]:
    """Take a snapshot, and return its states as rows, without what has expired by these times, if there are any."""
    operator, entries = operator_info(bench), stored(bench)
    states = [state for state in operator.states if has_rows(state)]
    return {state.name: rows_of(operator, state, **times_us).decode(entries.get(state.name, [])) for state in states}


def files_of(bench: Bench, kind: str, tables: dict[str, pa.RecordBatch], root: Path) -> list[LocalFile]:
    """Return a snapshot of a kind of backend, made of rows alone."""
    operator = operator_info(bench)
    entries: dict[str, list[Entries]] = {state.name: [] for state in operator.states}
    for state in operator.states:
        if has_rows(state):
            codec = rows_of(operator, state)
            entries[state.name].append(codec.encode(tables[state.name]))
            if codec.cleaning:
                entries[codec.cleaning].append(codec.cleaning_of(entries[state.name][0]))
    merged = {name: list(heapq.merge(*parts)) for name, parts in sorted(entries.items())}
    root.mkdir()
    if kind == "rocksdb":
        backend = RocksDBBackend(root / "state", list(merged), memory=BUDGET)
        try:
            return backend.persist(merged, root / "files")
        finally:
            backend.close()
    path = root / "state.heap"
    with path.open("wb") as file:
        write_heap(file, merged.items())
    return [LocalFile("state.heap", path, path.stat().st_size, shared=False)]
