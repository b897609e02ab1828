"""Tables read out of snapshots of every form: the same rows, whole, in ranges and by key, and no more files than needed."""

from __future__ import annotations

import datetime as dt
import os
import random
import re
import shutil
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from strandline.checkpoint import kinds, restore
from strandline.checkpoint.folder import Folder
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError, StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.opening.snapshot import Snapshot, open_snapshot
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.keys import TableKey, key_columns, key_from_text
from strandline.snapshot.tables import reader as reading
from strandline.snapshot.tables.metadata import METADATA_TABLES, metadata, metadata_schema
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.sql import query
from strandline.snapshot.tables.table import Table, all_tables, find_table, tables
from strandline.storage.local import LocalStore
from strandline.types.columns import from_arrow_type, to_python
from strandline.types.datatypes import LongType
from tests.runtime.rescaling import KEYS
from tests.snapshot import strategies as made
from tests.snapshot.stateful import checkpoint_of, checkpoint_of_entries, savepoint_of, savepoint_of_rows
from tests.soak import examples

FORMS = ("checkpoint", "native", "canonical", "filesystem")
NAMES = [
    "value", "pair", "tags", "history", "by_kind", "top", "mean", "short", "timers.event", "timers.processing",
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("job")
    checkpoint = checkpoint_of(root / "rocksdb")
    return {
        "checkpoint": checkpoint,
        "native": savepoint_of(checkpoint, "native"),
        "canonical": savepoint_of(checkpoint, "canonical"),
        "filesystem": checkpoint_of(root / "filesystem", "filesystem", parallelism=3),
    }


@pytest.fixture
def checkpoint(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the checkpoint, with its job's folder, to be broken."""
    shutil.copytree(folders["checkpoint"].parent, tmp_path / "copy")
    return tmp_path / "copy" / folders["checkpoint"].name


def whole(snapshot: Snapshot, name: str, groups: range | None = None) -> pa.Table:
    table = find_table(snapshot, name)
    with StateReader() as reader:
        return pa.Table.from_batches(reader.rows(table, groups), table.schema)


def look_up(snapshot: Snapshot, name: str, key: Any) -> pa.RecordBatch:
    with StateReader() as reader:
        return reader.look_up(find_table(snapshot, name), key)


# -- what there is


@pytest.mark.parametrize("form", FORMS)
def test_the_tables_of_a_snapshot(folders: dict[str, Path], form: str) -> None:
    found = tables(open_snapshot(str(folders[form])))
    assert [one.table for one in found] == [f"op.{name}" for name in NAMES]
    assert found[3].columns == {"key_group": "int", "k": "string", "position": "bigint", "value": "bigint"}
    known = [(one.rows, (one.bytes or 0) > 0) for one in found[:1]]
    assert known == [(60, True) if form == "canonical" else (None, False)]


def test_a_table_is_found_by_its_states_name_too(folders: dict[str, Path]) -> None:
    snapshot = open_snapshot(str(folders["canonical"]))
    assert find_table(snapshot, "mean").name == "op.mean"
    with pytest.raises(NotFoundError, match=r"no table 'means'[^$]*its tables are 'op.value', 'op.pair'"):
        find_table(snapshot, "means")


def test_names_that_may_be_two_tables_have_quotes(folders: dict[str, Path]) -> None:
    snapshot = open_snapshot(str(folders["canonical"]))
    (op,) = snapshot.manifest.operators
    other = structs.replace(
        op, uid="op.timers", states=[structs.replace(op.states[0], name="event")], tables={"event": op.tables["value"]}
    )
    snapshot = replace(snapshot, manifest=structs.replace(snapshot.manifest, operators=[op, other]))
    names = [table.table for table in tables(snapshot)]
    assert [name for name in names if '"' in name] == ['"op"."timers.event"', '"op.timers"."event"']
    assert "op.timers.processing" in names
    assert (len(whole(snapshot, '"op.timers"."event"')), len(whole(snapshot, '"op"."timers.event"'))) == (60, 0)
    with pytest.raises(NotFoundError, match=r"""may be any of '"op"."timers.event"', '"op.timers"."event"'"""):
        find_table(snapshot, "op.timers.event")
    with query(
        snapshot, 'SELECT count(*) FROM "op.timers".event, op."timers.processing" p WHERE p.k = event.k'
    ) as rows:
        assert rows.read_all().to_pylist() == [{"count_star()": 60}]


@pytest.mark.parametrize("name", METADATA_TABLES)
@pytest.mark.parametrize("form", ["checkpoint", "canonical"])
def test_metadata(folders: dict[str, Path], form: str, name: str) -> None:
    snapshot = open_snapshot(str(folders[form]))
    rows = metadata(snapshot, name)
    assert rows.schema == metadata_schema(name)
    files = sum(file.size for file in snapshot.manifest.files())
    parts = 0 if form == "canonical" else 2
    wanted: dict[str, Any] = {
        "snapshot": {"kind": "checkpoint" if form == "checkpoint" else "savepoint", "job": "job"},
        "operators": {"operator": "op", "bytes": files, "states": 12},
        "states": {"table": "op.value", "value_type": "bigint", "rows": 60 if form == "canonical" else None},
        "partitions": {"first_key_group": 0, "last_key_group": 63},
        "files": {"operator": "op", "partition": None if form == "canonical" else 0},
        "history": {"state": "complete", "url": snapshot.url, "checkpoint": 1},
    }
    first = rows.to_pylist()[:1]
    assert len(rows) == {"partitions": parts, "files": len(snapshot.manifest.files()), "states": 12}.get(name, 1)
    assert all(wanted[name].items() <= row.items() for row in first)


def test_metadata_that_there_is_not(folders: dict[str, Path]) -> None:
    with pytest.raises(NotFoundError, match=r"'sinks'[^$]*snapshot, operators, states, partitions, files, history"):
        metadata(open_snapshot(str(folders["canonical"])), "sinks")


# -- rows


def test_every_form_of_a_snapshot_has_the_same_rows(folders: dict[str, Path]) -> None:
    snapshots = [open_snapshot(str(folders[form])) for form in FORMS]
    for name in NAMES:
        first, *others = [whole(snapshot, name) for snapshot in snapshots]
        assert first.num_rows == {"history": 360, "timers.event": 0}.get(name, 60)
        for other in others:
            assert other.equals(first), name
        parts = [whole(snapshots[0], name, groups) for groups in (range(-3, 50), range(50, 51), range(51, 999))]
        assert pa.concat_tables(parts).equals(first)


def test_a_key_is_looked_up_in_every_form(folders: dict[str, Path]) -> None:
    for form in FORMS:
        snapshot = open_snapshot(str(folders[form]))
        with StateReader() as reader:
            for table in all_tables(snapshot):
                rows = whole(snapshot, table.name)
                for key in ("k0", "k7", "k59"):
                    mine = rows.filter(pa.array([k == key for k in rows.column("k").to_pylist()], pa.bool_()))
                    found = pa.Table.from_batches([reader.look_up(table, key)])
                    assert found.equals(mine)
                assert reader.look_up(table, "absent").num_rows == 0


@pytest.mark.parametrize("make", [made.value_states, made.timer_states, made.list_states, made.pane_states])
@given(data=st.data())
@examples(12)
def test_any_state(make: Any, data: Any) -> None:
    drawn = data.draw(make())
    stored: made.Stored = drawn if isinstance(drawn, made.Stored) else drawn[0]
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    if stored.state.kind != "broadcast":
        # Marks of panes have no key; all others shall be in the key group of theirs.
        rows = rows.filter(rows.column(1).is_valid()).drop_columns(["key_group"])
        try:
            stored.entries = codec.encode(rows)
        except StateTypeError:
            assume(False)
        rows = codec.decode(stored.entries)
    with tempfile.TemporaryDirectory() as place:
        ours = checkpoint_of_entries(Path(place, "ours"), stored.operator, stored.state.name, stored.entries)
        tables = savepoint_of_rows(Path(place, "tables"), stored.operator, stored.state.name, rows)
        for folder in (ours, tables):
            snapshot = open_snapshot(str(folder))
            (table,) = all_tables(snapshot)
            check_same(table, whole(snapshot, table.name), rows)
            # The splits of a table are all of its rows, each once.
            parts = [whole(snapshot, table.name, groups) for groups in table.splits()]
            check_same(table, pa.concat_tables([table.schema.empty_table(), *parts]), rows)
            if table.is_broadcast:
                with pytest.raises(ConfigurationError, match="broadcast state belongs to no key"):
                    look_up(snapshot, table.name, 1)
            else:
                check_keys(table, rows)


def check_same(table: Table, found: pa.Table | pa.RecordBatch, rows: pa.RecordBatch) -> None:
    """Compare rows by what they are stored as: for Arrow, no NaN equals another."""
    batch = found if isinstance(found, pa.RecordBatch) else one_batch(found)
    assert batch.schema == rows.schema
    assert table.codec.encode(batch) == table.codec.encode(rows)


def one_batch(found: pa.Table) -> pa.RecordBatch:
    batches = found.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=found.schema)


def check_keys(table: Table, rows: pa.RecordBatch) -> None:
    """Each key's rows are found by it, and no others."""
    names = [field.name for field in key_columns(table.operator)]
    given = [{name: value_of(rows.column(name), row) for name in names} for row in range(rows.num_rows)]
    keys = [TableKey(table.operator, key).bytes for key in given]
    with StateReader() as reader:
        for key, encoded in zip(given, keys, strict=True):
            mine = rows.filter(pa.array([other == encoded for other in keys], pa.bool_()))
            assert mine.num_rows
            check_same(table, reader.look_up(table, key), mine)


def value_of(column: pa.Array, row: int) -> Any:
    return to_python(column.slice(row, 1), from_arrow_type(column.type))[0]


# -- no more than is needed


def test_only_the_part_is_opened_that_may_hold_the_key(checkpoint: Path) -> None:
    snapshot = open_snapshot(str(checkpoint))
    (operator,) = snapshot.manifest.operators
    group = TableKey(operator, "k7").group
    for part in operator.partitions:
        if not part.first_key_group <= group <= part.last_key_group:
            for file in filter(lambda file: file.inline is None, part.files):
                (checkpoint.parent / file.path).unlink()
    assert look_up(snapshot, "op.top", "k7").column("value").to_pylist() == [7]
    with pytest.raises(CorruptionError, match="missing"):
        whole(snapshot, "op.top")


def test_only_row_groups_are_read_whose_statistics_may_hold_the_key(tmp_path: Path) -> None:
    stored = keyed_rows(300)
    snapshot = open_snapshot(str(savepoint_of_rows(tmp_path / "sp", *stored)))
    opened: list[bool] = []

    class Counting(TableKey):
        def may_be_in(self, parquet: Any, row_group: int) -> bool:
            opened.append(super().may_be_in(parquet, row_group))
            return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "TableKey", Counting)
        assert look_up(snapshot, "s", 77).column("value").to_pylist() == ["v77"]
        assert look_up(snapshot, "s", -77).num_rows == 0
    # Two row groups have the absent key's key group, and neither can hold it.
    assert opened == [True, False, False]


def keyed_rows(count: int) -> tuple[OperatorInfo, str, pa.RecordBatch]:
    keys = made.fields_of(("id", LongType()))
    state = StateInfo(name="s", kind="value", value_type="string")
    operator = made.operator_of(keys, state)
    codec = rows_of(operator, state)
    rows = pa.record_batch({"id": range(count), "value": [f"v{n}" for n in range(count)]})
    return operator, "s", codec.decode(codec.encode(rows))


def test_what_is_open_is_closed_again(folders: dict[str, Path], tmp_path: Path) -> None:
    snapshot = open_snapshot(str(folders["checkpoint"]))
    with StateReader(tmp_path, most_open=1) as reader:
        table = find_table(snapshot, "top")
        for _ in range(2):
            for n, key in enumerate(KEYS[:12]):
                assert reader.look_up(table, key).column("value").to_pylist() == [n]
        (own,) = tmp_path.iterdir()
        assert len(list(own.glob("tmp*"))) == 1
        begun = reader.rows(table)
        next(begun)
        assert len(list(own.glob("tmp*"))) == 2
        begun.close()  # type: ignore[attr-defined]
        assert len(list(own.glob("tmp*"))) == 1
    assert not list(tmp_path.iterdir())


class Elsewhere(LocalStore):
    """A store that is not seen to be a directory of this machine."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.url = "s3://bucket"
        self.fetched: list[str] = []

    def get_file(self, path: str, target: Path) -> None:
        self.fetched.append(path)
        super().get_file(path, target)


@pytest.mark.parametrize("form", ["checkpoint", "canonical"])
def test_from_other_storage_a_look_up_fetches_only_the_part_that_may_hold_the_key(
    folders: dict[str, Path], tmp_path: Path, form: str
) -> None:
    snapshot = open_snapshot(str(folders[form]))
    store = Elsewhere(Path(snapshot.folder.url.removeprefix("file://")))
    table = replace(find_table(snapshot, "top"), folder=Folder(store))
    with StateReader(tmp_path) as reader:
        for _ in range(2):
            assert reader.look_up(table, "k7").column("value").to_pylist() == [7]
        wanted = [file.file for file in table.files] * 2 if table.files else table.part_of(24).files
        assert sorted(store.fetched) == sorted(file.path for file in wanted if file.inline is None)
        assert pa.Table.from_batches(reader.rows(table)).equals(whole(snapshot, "top"))


# -- beside a running job, and damage


def test_a_checkpoint_that_its_job_deletes_is_read_to_the_end_of_what_is_open(checkpoint: Path) -> None:
    snapshot = open_snapshot(str(checkpoint))
    with StateReader() as reader:
        table = find_table(snapshot, "top")
        assert reader.look_up(table, "k7").num_rows == 1
        shutil.rmtree(checkpoint.parent / "shared")
        shutil.rmtree(checkpoint)
        assert reader.look_up(table, "k7").num_rows == 1
        with pytest.raises(NotFoundError, match=r"deleted while it was read[^$]*Checkpoints\(retain"):
            list(reader.rows(table))


def test_links_that_are_refused_are_symbolic_ones(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(restore, "_LINK_FROM_BYTES", 0)
    monkeypatch.setattr(os, "link", refuse)
    before = {path: path.read_bytes() for path in checkpoint.parent.rglob("*") if path.is_file()}
    assert whole(open_snapshot(str(checkpoint)), "top").num_rows == 60
    assert {path: path.read_bytes() for path in checkpoint.parent.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("form", ["checkpoint", "canonical"])
def test_damage_is_named(folders: dict[str, Path], tmp_path: Path, form: str) -> None:
    source = folders[form] if form == "canonical" else folders[form].parent
    shutil.copytree(source, tmp_path / "copy")
    folder = tmp_path / "copy" if form == "canonical" else tmp_path / "copy" / folders[form].name
    snapshot = open_snapshot(str(folder))
    files = snapshot.manifest.operators[0].tables or {}
    # States that are equal have a file in common.
    for name in {file.path for file in snapshot.manifest.files() if file.name.endswith((".sst", ".log", ".parquet"))}:
        path = Path(snapshot.folder.url.removeprefix("file://"), name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        path.write_bytes(data)
    with pytest.raises(CorruptionError, match=files["top"][0].file.path if files else r"state directory|\.log'\): "):
        whole(snapshot, "top")


def test_damage_that_rocksdb_does_not_report_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB reads its MANIFEST up to the first header of a record that is zero: here, to fewer than half the rows."""
    monkeypatch.setattr(kinds, "_INLINE_UP_TO_BYTES", 0)
    snapshot = open_snapshot(str(checkpoint_of(tmp_path)))
    whole(snapshot, "top")
    (file, *_) = [file for file in snapshot.manifest.files() if file.name.startswith("MANIFEST")]
    path = Path(snapshot.folder.url.removeprefix("file://"), file.path)
    data = path.read_bytes()
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 7 + int.from_bytes(data[starts[-1] + 4 : starts[-1] + 6], "little"))
    kept = data[: starts[len(starts) // 2]]
    path.write_bytes(kept + bytes(len(data) - len(kept)))
    with pytest.raises(CorruptionError, match=file.path):
        whole(snapshot, "top")


def test_a_look_up_believes_no_damaged_bit(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["canonical"], tmp_path / "copy")
    snapshot = open_snapshot(str(tmp_path / "copy"))
    (file,) = find_table(snapshot, "top").files or []
    path = tmp_path / "copy" / file.file.path
    whole_file = path.read_bytes()
    random_bits = random.Random(1)
    with StateReader() as reader:
        table = find_table(snapshot, "top")
        for _ in range(200):
            data = bytearray(whole_file)
            data[random_bits.randrange(len(data))] ^= 1 << random_bits.randrange(8)
            path.write_bytes(data)
            with pytest.raises(CorruptionError, match=re.escape(file.file.path)):
                reader.look_up(table, "k7")
        path.write_bytes(whole_file)
        assert reader.look_up(table, "k7").column("value").to_pylist() == [7]


def test_other_readers_see_damaged_pages(folders: dict[str, Path], tmp_path: Path) -> None:
    (file,) = find_table(open_snapshot(str(folders["canonical"])), "top").files or []
    data = bytearray((folders["canonical"] / file.file.path).read_bytes())
    column = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0).column(2)
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(data)), page_checksum_verification=True).read()


# -- keys


def test_keys_as_text() -> None:
    ddl = "a string, b bigint, c timestamp, d binary, e decimal(10,2), f date, g boolean, h struct<x: int, y: string>"
    operator = OperatorInfo(
        uid="op", backend="memory", parallelism=1, max_parallelism=128, key_schema=ddl, states=[], partitions=[]
    )  # fmt: skip
    texts = ["", "-3", "2026-01-31 12:00:00Z", "0xff00", "1.50", "2026-01-31", "true", '{"x": 1, "y": "2"}']
    key = key_from_text(operator, texts)
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    assert key[:7] == ("", -3, at, b"\xff\0", Decimal("1.50"), dt.date(2026, 1, 31), True)
    assert key[7] == {"x": 1, "y": "2"}
    assert TableKey(operator, key).values[7] == (1, "2")
    with pytest.raises(ConfigurationError, match=r"8 columns, a string, b bigint[^$]*got 1 values"):
        key_from_text(operator, ["x"])
    for at_column, text in ((1, "x"), (2, "never"), (3, "xy"), (7, "{}"), (7, "1")):
        wrong = [*texts[:at_column], text, *texts[at_column + 1 :]]
        with pytest.raises(ConfigurationError, match=f"'{operator.uid}': .* is no value of the key column"):
            key_from_text(operator, wrong)


@pytest.mark.parametrize("key", [1, None, ("k7", 1), {"x": "k7"}, {"k": "k7", "x": 1}])
def test_what_is_no_key_is_refused(folders: dict[str, Path], key: Any) -> None:
    snapshot = open_snapshot(str(folders["canonical"]))
    with StateReader() as reader, pytest.raises(StateTypeError):
        reader.look_up(find_table(snapshot, "top"), key)
