"""Tables that are gone, put back, restored or replaced: a sink writes nothing behind a hole."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from pyiceberg.catalog import load_catalog
from pyspark.sql.types import (
    ByteType,
    StructField,
    StructType,
)

from strandline.core.errors import (
    CorruptionError,
    UnavailableError,
)
from tests.ends.tableplaces import NAMES, Place, before_next, stage


def test_a_table_that_is_gone_or_put_back(place: Place) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    if place.kind == "delta":
        for entry in (place.path / "table" / "_delta_log").iterdir():
            entry.unlink()
    else:
        load_catalog(**place.catalog).drop_table("a.table")
    with pytest.raises(CorruptionError, match="less of the job's rows than it had"):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match=r"(?s)is gone, and rows .* wait for it.* another table"):
        place.start(staged, 2)
    with pytest.raises(CorruptionError, match="the table is gone, with rows that would not come again"):
        place.start(staged[1:], 2)
    place.start([], 2)


def test_a_table_made_anew_does_not_hide_what_is_gone(place: Place) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    place.make_anew(pa.table({"k": [7], "v": ["other"]}))
    with pytest.raises(CorruptionError, match=r"it has none on record, and had epoch 1"):
        place.start(staged, 2)
    assert place.pairs() == [(7, "other")]


# What is on record, and was, is compared before rows are looked at.
@pytest.mark.parametrize(
    ("how", "key"),
    [
        ("its own command", None), ("its own command", "k"), ("a copy", None),
        pytest.param("a copy", "k", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_a_table_that_was_put_back_is_not_written_to(place: Place, how: str, key: Any) -> None:
    """Rows between are nobody's to add again: neither the run nor the next one may go on behind a hole."""
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    older, put_back = place.marked(how)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    staged = stage(sink, 3, [(3, "c")])
    newer, bring_back = place.marked(how)
    put_back()
    lost = r"less of the job's rows than it had: it was put back .* \(it has epoch 1 on record, and had epoch 2\)"
    with pytest.raises(CorruptionError, match=lost):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match=lost):
        place.start(staged, 3, key=key)
    # Where no rows wait, too.
    with pytest.raises(CorruptionError, match=lost):
        place.start(staged[-1:], 2, key=key)
    assert place.pairs() == older
    bring_back()
    assert place.pairs() == newer
    place.start(staged, 3, key=key)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]


def test_an_iceberg_table_that_was_put_back_to_the_middle_of_a_merge(tmp_path: Path) -> None:
    """The first of a merge's two snapshots has neither the old rows of its keys nor the new ones."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key="k")
    sink.commit(stage(sink, 1, [(1, "a"), (2, "a")]))
    sink.commit(second := stage(sink, 2, [(1, "b")]))
    newest = place.table().current_snapshot()

    def put_back(snapshot: int) -> None:
        place.table().manage_snapshots().set_current_snapshot(snapshot).commit()

    put_back(newest.parent_snapshot_id)
    assert place.pairs() == []
    third = stage(sink, 3, [(3, "c")])
    with pytest.raises(CorruptionError, match="it has epoch 0 on record, and had epoch 2"):
        sink.commit(third)
    with pytest.raises(CorruptionError, match="it has epoch 0 on record, and had epoch 2"):
        place.start(third, 3, key="k")
    # Of its checkpoint from before the merge, too: the merge would not bring back the second key.
    with pytest.raises(CorruptionError, match="it has epoch 0 on record, and had epoch 1"):
        place.start(second, 2, key="k")
    put_back(newest.snapshot_id)
    place.start(third, 3, key="k")
    assert place.pairs() == [(1, "b"), (2, "a"), (3, "c")]


@pytest.mark.parametrize("how", ["its own command", "a copy"])
def test_a_job_may_go_back_with_its_table(place: Place, how: str) -> None:
    """What the older checkpoint lists is not in the older table, whatever the record says that was left as it is."""
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    _, put_back = place.marked(how)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    sink.commit(stage(sink, 3, [(3, "c")]))
    put_back()
    sink = place.start(second, 2)
    assert place.pairs() == [(1, "a"), (2, "b")]
    third = stage(sink, 3, [(3, "d")])
    sink.commit(third)
    place.start(second, 2).commit(third)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "d")]


def test_a_log_entry_without_information_hides_no_rollback(delta: Place) -> None:
    """Delta's writers may leave it out."""
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    _, put_back = delta.marked("its own command")
    sink.commit(stage(sink, 2, [(2, "b")]))
    third = stage(sink, 3, [(3, "c")])
    put_back()
    for _ in range(2):
        delta.append(pa.table({"k": [7], "v": ["other"]}))
    entry = delta.path / f"table/_delta_log/{delta.table().version():020}.json"
    lines = entry.read_text().splitlines()
    entry.write_text("\n".join(line for line in lines if "commitInfo" not in line))
    with pytest.raises(CorruptionError, match="it was put back"):
        sink.commit(third)
    with pytest.raises(CorruptionError, match="it was put back"):
        delta.start(third, 3)


def test_a_table_that_is_put_back_while_a_transaction_is_under_way(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    _, put_back = delta.marked("its own command")
    sink.commit(stage(sink, 2, [(2, "b")]))
    third = stage(sink, 3, [(3, "c")])
    before_next(sink, "_properties", put_back)
    with pytest.raises(CorruptionError, match="it was put back"):
        sink.commit(third)
    assert delta.pairs() == [(1, "a")]


def test_restored_to_a_time_and_there_and_back(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    sink.commit(stage(sink, 2, [(2, "b")]))
    staged = stage(sink, 3, [(3, "c")])
    versions = {entry["version"]: entry["timestamp"] for entry in delta.table().history()}
    newest = max(versions)
    delta.table().restore(datetime.datetime.fromtimestamp(versions[newest - 1] / 1000, datetime.UTC))
    for _ in range(5):
        delta.append(pa.table({"k": [7], "v": ["other"]}))
    with pytest.raises(CorruptionError, match="had epoch 2"):
        delta.start(staged, 3)
    delta.table().restore(newest)
    delta.start(staged, 3)
    assert delta.pairs() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_table_that_was_restored_before_the_sink_began(delta: Place) -> None:
    """To a version whose entry in the log is gone by now."""
    for number in range(4):
        delta.append(pa.table({"k": [number], "v": ["other"]}))
    delta.table().restore(1)
    delta.table().create_checkpoint()
    for version in range(3):
        (delta.path / f"table/_delta_log/{version:020}.json").unlink()
    sink = delta.start()
    sink.commit(stage(sink, 1, [(7, "a")]))
    assert delta.pairs() == [(0, "other"), (1, "other"), (7, "a")]


def test_rows_that_deletion_vectors_keep_are_told_of(delta: Place, caplog: Any) -> None:
    fields = DeltaSchema.from_arrow(pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())]))
    DeltaTable.create(str(delta.path / "table"), fields, configuration={"delta.enableDeletionVectors": "true"})
    sink = delta.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    sink.commit(stage(sink, 2, [(2, "b")]))
    delta.start(first, 1)
    assert "those stay that were compacted or rewritten since, or marked by deletion vectors" in caplog.text


def test_a_table_that_was_replaced_in_place(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    DeltaTable.create(str(delta.path / "table"), delta.table().schema(), mode="overwrite")
    with pytest.raises(CorruptionError, match="it has none on record, and had epoch 1"):
        sink.commit(staged)
    with pytest.raises(CorruptionError, match="it has none on record, and had epoch 1"):
        delta.start(staged, 2)


@pytest.mark.parametrize("key", [None, "k"])
def test_the_log_of_a_table_is_in_order_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """Iceberg's Java library loads no table whose log goes back by more than a minute."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    now, wider = time.time(), StructType([*NAMES.fields, StructField("w", ByteType())])

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

    monkeypatch.setattr(time, "time", lambda: now - 3600)
    monkeypatch.setattr("pyiceberg.table.update.datetime", Earlier)
    sink.commit(second := stage(sink, 2, [(1, "b"), (2, "b")]))
    sink = place.start([*first, *second], 2, key=key, new_columns="add")
    sink.commit(stage(sink, 3, [(3, "c", 3)], schema=wider))
    metadata = place.table().metadata
    for log in (metadata.snapshot_log, [*metadata.metadata_log, *metadata.snapshot_log[-1:]], metadata.snapshots):
        times = [each.timestamp_ms for each in log]
        assert times == sorted(times)
    assert metadata.last_updated_ms >= now * 1000 - 1000
    assert place.pairs() == [*([] if key else [(1, "a")]), (1, "b"), (2, "b"), (3, "c")]


def test_snapshots_that_expire_take_no_record_along(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    sink.commit(staged)
    place.append(pa.table({"k": [7], "v": ["other"]}))
    table = place.table()
    expire = table.maintenance.expire_snapshots()
    for snapshot in table.snapshots()[:-1]:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert len(place.table().snapshots()) == 1
    place.start(staged, 1)
    assert place.pairs() == [(1, "a"), (7, "other")]


@pytest.mark.parametrize("value", [None, 1])
def test_a_record_that_another_program_removes_or_sets_back_deletes_no_files(tmp_path: Path, value: Any) -> None:
    """A start would take the table's files for those of epochs that were never added."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    for epoch in (1, 2):
        sink.commit(staged := stage(sink, epoch, [(epoch, "a")]))
        if epoch == 1:
            (before,) = [each for each in place.table().properties.items() if each[0].startswith("strandline.sink.")]
    with place.table().transaction() as transaction:
        transaction.set_properties(dict([before])) if value else transaction.remove_properties(before[0])
    with pytest.raises(CorruptionError, match="less of the job's rows"):
        place.start(staged, 2)
    assert place.pairs() == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("version", [1, 2])
def test_a_tag_that_keeps_the_newest_snapshot_is_no_rollback(tmp_path: Path, version: int) -> None:
    """Those between it and what the table shows are expired."""
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.string())]), version)
    place.append(pa.table({"k": [6], "v": ["other"]}))
    _, put_back = place.marked("its own command")
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    sink.commit(staged)
    table = place.table()
    newest = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(newest, "day").commit()
    put_back()
    with pytest.raises(CorruptionError, match="none on record"):
        place.start(stage(sink, 2, [(2, "b")]), 2)
    place.table().manage_snapshots().set_current_snapshot(newest).commit()
    for number in (7, 8):
        place.append(pa.table({"k": [number], "v": ["other"]}))
    place.table().maintenance.expire_snapshots().older_than(datetime.datetime.now()).commit()
    assert len(place.table().snapshots()) == 2
    sink = place.start(staged, 1)
    sink.commit(stage(sink, 2, [(2, "b")]))
    assert place.pairs() == [(1, "a"), (2, "b"), (6, "other"), (7, "other"), (8, "other")]
    _, put_back = place.marked("its own command")
    sink.commit(stage(sink, 3, [(3, "c")]))
    fourth = stage(sink, 4, [(4, "d")])
    put_back()
    with pytest.raises(CorruptionError, match="it has epoch 2 on record, and had epoch 3"):
        place.start(fourth, 4)


def test_a_rollback_to_what_a_clock_that_is_ahead_has_written(tmp_path: Path, monkeypatch: Any) -> None:
    """Snapshots of version 1 have times and no numbers."""
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.string())]), version=1)
    with monkeypatch.context() as ahead:
        ahead.setattr("pyiceberg.table.snapshots.time", SimpleNamespace(time=lambda: time.time() + 3600))
        place.append(pa.table({"k": [6], "v": ["other"]}))
    _, put_back = place.marked("its own command")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    put_back()
    with pytest.raises(CorruptionError, match="none on record"):
        place.start(stage(sink, 2, [(2, "b")]), 2)
    assert place.pairs() == [(6, "other")]


def test_a_rollback_is_seen_where_what_it_went_to_has_expired(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    place.append(pa.table({"k": [7], "v": ["other"]}))
    _, put_back = place.marked("its own command")
    staged = stage(sink, 2, [(2, "b")])
    sink.commit(staged)
    older = place.table().snapshots()[:-1]
    put_back()
    place.append(pa.table({"k": [8], "v": ["other"]}))
    expire = place.table().maintenance.expire_snapshots()
    for snapshot in older:
        expire = expire.by_id(snapshot.snapshot_id)
    expire.commit()
    assert [each.sequence_number for each in place.table().snapshots()] == [4, 5]
    with pytest.raises(CorruptionError, match="had epoch 1"):
        place.start(staged, 2)


def test_the_same_generation_again_is_refused(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    delta.generation = 0
    with pytest.raises(UnavailableError, match="the checkpoint directory was set back"):
        delta.start([], 1)
    delta.generation = 1
    with pytest.raises(CorruptionError, match="begins without any checkpoint"):
        delta.start()


def test_a_start_with_the_snapshot_of_another_job_may_come_again(delta: Place) -> None:
    DeltaTable.create(str(delta.path / "table"), pa.schema([("k", pa.int64()), ("v", pa.string())]))
    delta.start(epoch=7, fresh=True)
    sink = delta.start(epoch=7, fresh=True)
    sink.commit(stage(sink, 8, [(1, "a")]))
    assert delta.pairs() == [(1, "a")]
    with pytest.raises(CorruptionError, match=r"up to epoch 8 .*\s*begins without any checkpoint"):
        delta.start(epoch=7, fresh=True)


@pytest.mark.parametrize("before", [None, "k"])
def test_a_program_that_has_another_key_than_before(place: Place, before: Any) -> None:
    """What waits is written as it was staged; what the table lists is nobody's to delete."""
    after = None if before else "k"
    sink = place.start(key=before)
    first = stage(sink, 1, [(1, "a")], [(2, "b")])
    sink.commit(first)
    waiting = stage(sink, 2, [(1, "c")])
    sink = place.start([*first, *waiting], 2, key=after)
    wanted = [(1, "c"), (2, "b")] if before else [(1, "a"), (1, "c"), (2, "b")]
    assert place.pairs() == wanted
    last = stage(sink, 3, [(2, "d")])
    sink.commit(last)
    place.start(last, 3, key=before)
    place.start(last, 3, key=after)
    assert place.pairs() == sorted([*wanted, (2, "d")] if before else [*wanted[:2], (2, "d")])
