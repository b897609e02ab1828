"""What every kind of table promises, over a backend that keeps state and over one that keeps none itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.backends.base import Backend
from strandline.backends.heap import HeapBackend
from strandline.backends.options import MIB
from strandline.backends.rocksdb import RocksDBBackend
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.panebytes import PaneCodec
from strandline.runtime.state.panes import GROUP, PaneTable
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import TimerTable
from strandline.runtime.state.values import ValueTable
from strandline.types.datatypes import parse_schema, parse_type
from tests.runtime.bench import BUDGET

NAME = "state"
GROUPS = range(2)
KEY = b"\0\0"
PANE = PaneCodec("table", parse_schema("n bigint"), Schemas())
Table = StateTable[Any]


def values(backend: Backend) -> Table:
    return ValueTable(NAME, backend, list, list, bytes, list, MIB)


def maps(backend: Backend) -> Table:
    codec = ValueCodec(parse_type("binary"))
    return MapTable(
        NAME, backend, bytes, lambda entry: (entry[:2], 2), bytes, lambda entry, at: entry[at:], codec, MIB
    )  # fmt: skip


def timers(backend: Backend) -> Table:
    return TimerTable(NAME, backend, GROUPS)


def panes(backend: Backend) -> Table:
    def merge(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return pa.concat_batches(batches)

    return PaneTable(NAME, backend, GROUPS, PANE, merge, MIB)


def put(table: Table, n: int) -> None:
    """Make one entry of a number."""
    sub = n.to_bytes(2, "big")
    if isinstance(table, ValueTable):
        table.load([KEY + sub])
        table.undo.setdefault(KEY + sub, table.live[KEY + sub])
        table.live[KEY + sub] = b"x"
    elif isinstance(table, MapTable):
        table.put(KEY, sub, b"x")
    elif isinstance(table, TimerTable):
        table.set(KEY, n)
    elif isinstance(table, PaneTable):
        table.next_epoch = n
        full = pa.schema([pa.field(GROUP, pa.int32()), *PANE.schema])
        table.add(n, pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array([n])], schema=full))


def keep(table: Table, *numbers: int) -> None:
    for n in numbers:
        put(table, n)
    table.commit()
    table.evict()


@dataclass
class Case:
    make: Callable[[Backend], Table]
    backend: Backend

    def __post_init__(self) -> None:
        self.table = self.make(self.backend)

    def write(self, encode: Callable[[], Iterator[Any]]) -> set[bytes]:
        """Do what the thread does that writes; return the keys."""
        entries = list(encode())
        if not self.backend.keeps_all:
            self.backend.write({NAME: entries})
        self.table.release()
        return {key for key, value in entries if value is not None}


@pytest.fixture(params=[(kind, make) for kind in ("heap", "rocksdb") for make in (values, maps, timers, panes)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    kind, make = request.param

    backend: Backend = HeapBackend(tmp_path / "heap", [NAME], inline=False, limit_bytes=None)
    if kind == "rocksdb":
        backend = RocksDBBackend(tmp_path / "rocksdb", [NAME], memory=BUDGET)
    yield Case(make, backend)
    backend.close()


def test_what_is_frozen_is_the_committed_state_whatever_is_written_later(case: Case) -> None:
    keep(case.table, 1)
    put(case.table, 2)
    case.table.abort()
    encode = case.table.freeze()
    keep(case.table, 3)
    assert len(case.write(encode)) == 1


def test_a_backend_gets_changes_or_else_everything_each_time(case: Case) -> None:
    keep(case.table, 1, 2)
    first = case.write(case.table.freeze())
    keep(case.table, 3)
    second = case.write(case.table.freeze())
    assert (len(first), len(second)) == ((2, 3) if case.backend.keeps_all else (2, 1))
    assert first < second if case.backend.keeps_all else not first & second


def test_layers_are_written_in_order_and_let_go_of(case: Case) -> None:
    keep(case.table, 1)
    frozen = [case.table.freeze()]
    keep(case.table, 2)
    frozen.append(case.table.freeze())
    assert len(case.table._frozen) == 2
    for left in (1, 0):
        case.write(frozen.pop(0))
        if isinstance(case.table, TimerTable):
            assert case.table.next_us() == 1
        keep(case.table)
        assert len(case.table._frozen) == left
    assert case.table.dirty_bytes == 0 or case.backend.keeps_all


def test_written_state_takes_no_more_memory_with_each_snapshot(case: Case) -> None:
    keep(case.table, 1)
    for _ in range(5):
        case.write(case.table.freeze())
        keep(case.table)
    if isinstance(case.table, PaneTable):
        assert len(case.table.panes[1].entries or ()) <= 1
    assert len(case.table._frozen) <= 1
    assert all(len(layer) <= 1 for layer in case.table.unwritten())


def test_a_table_that_is_opened_again_has_what_was_written(case: Case) -> None:
    keep(case.table, 1, 2)
    entries = list(case.table.freeze()())
    if not case.backend.keeps_all:
        case.backend.write({NAME: entries})
    again = case.make(case.backend)
    if case.backend.keeps_all:
        again.adopt((key, value) for key, value in entries if value is not None)
    put(again, 1)
    put(again, 3)
    keep(again)
    assert len(list(again.freeze()())) == (3 if case.backend.keeps_all else 2)


@pytest.mark.parametrize("written", [True, False])
def test_what_was_deleted_makes_later_reads_of_a_key_no_slower(tmp_path: Path, written: bool) -> None:
    """A list that is set, or a map whose entries come and go, in each epoch of a job that runs for weeks."""
    case = Case(maps, RocksDBBackend(tmp_path / "rocksdb", [NAME], memory=BUDGET))
    table = case.table
    assert isinstance(table, MapTable)
    for n in range(9):
        assert len(table.entries(KEY)) <= 2
        assert table.get(KEY, b"none%d" % n) is None
        for other in list(table.entries(KEY)):
            table.put(KEY, other, None)
        if n == 5:
            table.abort()
        keep(table, n)
        if written:
            case.write(table.freeze())
    assert sorted(table.entries(KEY).items()) == [(b"\0\x08", b"x")]
    assert [table.get(KEY, n.to_bytes(2, "big")) for n in (0, 4, 7, 8)] == [None, None, None, b"x"]
    case.backend.close()


def test_a_read_of_all_entries_hides_no_deletion_of_its_epoch(tmp_path: Path) -> None:
    """The harness, which encodes each epoch's writes, failed with a KeyError."""
    case = Case(maps, RocksDBBackend(tmp_path / "rocksdb", [NAME], memory=BUDGET))
    table = case.table
    assert isinstance(table, MapTable)
    table.put(KEY, b"gone", None)
    assert table.entries(KEY) == {}
    assert list(table.changed()) == [(KEY + b"gone", None)]
    table.commit()
    assert list(table.freeze()()) == [(KEY + b"gone", None)]
    case.backend.close()
