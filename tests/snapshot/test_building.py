"""Savepoints made of rows: the same files as of a job that has them, whatever order they come in; and what is refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.checkpoint.folder import folder_at
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, StateLimitError, StateTypeError, UnavailableError
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.format.manifest import Manifest, StateInfo, TTLInfo
from strandline.runtime.program import Restore
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.parquet import read_tables
from strandline.snapshot.savepoints.builder import SavepointBuilder, write_rows
from strandline.snapshot.savepoints.savepoint import fetching
from strandline.snapshot.savepoints.sorter import RowSorter
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.storage.place import Place
from strandline.types.datatypes import parse_schema
from tests.runtime.bench import OPS
from tests.runtime.rescaling import KEYS, Job
from tests.snapshot.exporting import exported_here
from tests.snapshot.strategies import (
    MAX_PARALLELISM,
    Stored,
    list_states,
    operator_of,
    pane_states,
    timer_states,
    value_states,
)
from tests.soak import examples

__all__ = ["exported_here"]

SEEN = StateInfo(name="seen", kind="value", value_type="bigint")
SHORT = StateInfo(
    name="short", kind="list", value_type="string", ttl=TTLInfo(duration_ms=1000, refresh="write", time="processing")
)
TIMERS = StateInfo(name="timers.event", kind="timers", value_type="")
OPERATOR = operator_of(parse_schema("card string, shop int"), SEEN, SHORT)


def place(root: Path, path: str) -> Place:
    return Place(url=root.as_uri(), path=path)


def seen(*rows: tuple[str, int, int], **more: Any) -> pa.RecordBatch:
    cards, shops, values = map(list, zip(*rows, strict=True))
    return pa.RecordBatch.from_pydict({"value": values, "shop": pa.array(shops, pa.int32()), "card": cards, **more})


def build(root: Path, *states: tuple[str, Sequence[pa.RecordBatch]]) -> Manifest:
    """Make a savepoint `to` below the root."""
    with SavepointBuilder(place(root, "to"), "job", [OPERATOR], scratch=root) as builder:
        for state, batches in states:
            builder.write("op", state, batches)
        return builder.finish()


def rows_in(root: Path, manifest: Manifest, scratch: Path) -> dict[str, list[pa.RecordBatch]]:
    """The rows of each state of the only operator."""
    (operator,) = manifest.operators
    opening = fetching(folder_at(place(root, "")), scratch)
    tables = operator.tables or {}
    return {name: list(read_tables(files, range(MAX_PARALLELISM), opening)) for name, files in tables.items()}


# -- the same state as of a job


def test_rows_of_a_jobs_savepoint_in_another_order_give_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, job = random.Random(3), Job(tmp_path)
    job.start(3, "memory")
    for _ in range(4):
        job.run([(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in KEYS])
    job.checkpoint()
    job.stop()
    taken = take_savepoint(job.manifest(), place(tmp_path / "storage", "job"), place(tmp_path, "taken"))
    (operator,) = taken.operators
    for name, limit_bytes in (("sorted on disk", 500), ("built", 1 << 26)):
        monkeypatch.setattr(RowSorter.__init__, "__defaults__", (limit_bytes,))
        with SavepointBuilder(place(tmp_path, name), "other", [operator], scratch=tmp_path) as builder:
            for state, batches in rows_in(tmp_path / "taken", taken, tmp_path).items():
                rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
                rows = rows.take(pa.array(rng.sample(range(rows.num_rows), rows.num_rows)))
                if rng.random() < 0.5:
                    rows = rows.drop_columns(["key_group"])
                half = rows.num_rows // 2
                builder.write("op", state, [rows.slice(half), rows.slice(0, half)])
            built = builder.finish()
        assert built.operators[0].tables == operator.tables, name
        assert built.life != taken.life
        assert not list(tmp_path.glob("strandline-savepoint-*"))
    # A job that begins with it has what one has that goes on from the other.
    assert restored(job, built, "built", "rocksdb") == restored(job, taken, "taken", "memory")


def restored(job: Job, manifest: Manifest, name: str, backend: str) -> dict[str, Any]:
    """All entries of a job that has restored a savepoint, at another parallelism."""
    shutil.rmtree(job.root / "local")
    (job.root / "storage").rename(job.root / f"storage-before-{name}")
    job.restore = Restore(
        checkpoint=manifest.checkpoint, epoch=manifest.epoch, stored=manifest.operators[0], place=place(job.root, name)
    )
    job.start(2, backend)
    job.checkpoint()
    job.stop()
    found = {state: sorted(entries) for state, entries in job.entries().items() if entries}
    assert len(found) > 6
    return found


def check_building(stored: Stored, data: st.DataObject, directory: Path) -> None:
    """Check that shuffled rows, in several batches and runs, give the files of the rows that entries of them decode to."""
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    if stored.state.kind == "panes":
        rows = with_own_groups(codec, rows)
    elif stored.state.kind != "broadcast":
        # Keys of strategies are in any key group.
        rows = rows.drop_columns(["key_group"])
    order = data.draw(st.permutations(range(rows.num_rows)))
    rows = rows.take(pa.array(order, pa.int64()))
    try:
        wanted = codec.decode(codec.encode(rows))
    except StateTypeError:
        wanted = None
    cut = data.draw(st.integers(0, rows.num_rows))
    limit = data.draw(st.sampled_from([1, 200, 1 << 20]))
    groups = BROADCAST_GROUPS if stored.state.kind == "broadcast" else range(MAX_PARALLELISM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowSorter.__init__, "__defaults__", (limit,))
        try:
            files, pieces = write_rows(
                codec,
                [rows.slice(0, cut), rows.slice(cut)],
                groups,
                MAX_PARALLELISM,
                folder_at(place(directory, "to")),
                directory,
            )
        except StateTypeError:
            assert wanted is None
            return
    assert wanted is not None
    assert not pieces
    writer = TableWriter(codec.file_schema, groups, MAX_PARALLELISM, directory)
    writer.write(wanted)
    assert files == [file.table for file in writer.finish()[0]]


def with_own_groups(codec: Any, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Give rows of panes the key groups of their keys; marks stay where they are."""
    marks = rows.column(1).is_null()
    keyed = rows.filter(pc.invert(marks)).drop_columns(["key_group"])
    return pa.concat_batches([codec.check(keyed), rows.filter(marks)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("building")


@examples(60)
@given(stored=value_states() | timer_states() | list_states().map(lambda found: found[0]), data=st.data())
def test_rows_in_any_order_are_written_as_their_entries_say(
    stored: Stored, data: st.DataObject, directory: Path
) -> None:
    check_building(stored, data, directory)


@examples(20)
@given(stored=pane_states().map(lambda found: found[0]), data=st.data())
def test_panes_in_any_order_are_written_as_their_entries_say(
    stored: Stored, data: st.DataObject, directory: Path
) -> None:
    check_building(stored, data, directory)


# -- what is refused, and leaves nothing


@pytest.mark.parametrize(
    ("state", "batches", "why"),
    [
        ("seen", [seen(("a", 1, 1), ("b", 2, 2)), seen(("b", 3, 2), ("b", 2, 3))], "the key card='b', shop=2 does"),
        ("seen", [seen(("a", 1, 1)), seen(("c", 1, 1), value=["x"])], "expected an Arrow column of bigint"),
        (
            "seen",
            [seen(("a", 1, 1), ("q", 7, 0), value=[1, None])],
            "it is null, .*; it is of the key card='q', shop=7",
        ),
        ("seen", [seen(("a", 1, 1), key_group=pa.array([5], pa.int32()))], "it is 5, and the key's is .*card='a'"),
        ("seen", [seen(("a", 1, 1), extra=[1])], "its table has the columns key_group, card, shop, value; "),
        ("short", [seen(("a", 1, 1))], "its table has the columns .*position"),
        ("gone", [], "no state 'op.gone'; there are: op.seen, op.short"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_left(
    tmp_path: Path, state: str, batches: list[pa.RecordBatch], why: str
) -> None:
    with pytest.raises((StateTypeError, ConfigurationError), match=why):
        build(tmp_path, ("seen" if state == "short" else "short", []), (state, batches))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_key_is_named_that_python_cannot_hold(tmp_path: Path) -> None:
    codec = rows_of(OPERATOR, TIMERS)
    times = pa.array([1 << 60, 1 << 60], pa.int64()).view(pa.timestamp("us", "UTC"))
    rows = pa.RecordBatch.from_pydict({"card": ["a", "a"], "shop": pa.array([1, 1], pa.int32()), "time": times})
    batches, folder = [rows.slice(1), rows.slice(0, 1)], folder_at(place(tmp_path, "to"))
    with pytest.raises(StateTypeError, match=f"card='a', shop=1, time={1 << 60} µs does not fit: there is more than"):
        write_rows(codec, batches, range(MAX_PARALLELISM), MAX_PARALLELISM, folder, tmp_path)


def test_elements_of_a_list_expire_each_at_its_time(tmp_path: Path) -> None:
    times = pa.array([1, None, 1], pa.timestamp("us", "UTC"))
    rows = seen(("a", 1, 1), ("b", 1, 1), ("b", 1, 2), value=list("xyz"), position=[0, 0, 1], expires_at=times)
    manifest = build(tmp_path, ("short", [rows.slice(2), rows.slice(0, 2)]))
    found = [row for batch in rows_in(tmp_path / "to", manifest, tmp_path)["short"] for row in batch.to_pylist()]
    written = {row["value"]: row["expires_at"] and row["expires_at"].microsecond for row in found}
    assert written == {"x": 1, "y": None, "z": 1}


def test_a_state_is_given_once_and_a_folder_is_empty(tmp_path: Path) -> None:
    with SavepointBuilder(place(tmp_path, "to"), "job", [OPERATOR]) as builder:
        builder.write("op", "seen", [seen(("a", 1, 1))])
        with pytest.raises(ConfigurationError, match="its rows were given before"):
            builder.write("op", "seen", [])
        builder.finish()
    snapshot = open_snapshot(str(tmp_path / "to"))
    assert snapshot.manifest.source is None
    assert [(table, files[0].rows) for table, files in (snapshot.manifest.operators[0].tables or {}).items()] == [
        ("seen", 1)
    ]
    with pytest.raises(ConflictError):
        SavepointBuilder(place(tmp_path, "to"), "job", [OPERATOR])
    open_snapshot(str(tmp_path / "to"))


def break_off() -> None:
    raise OSError("broken off")


@pytest.mark.parametrize("step", ["savepoint.built.state", "savepoint.written", "savepoint.publish"])
def test_what_breaks_off_leaves_nothing(tmp_path: Path, step: str) -> None:
    failpoints.arm(step, break_off)
    with pytest.raises(OSError, match="broken off"):
        build(tmp_path, ("seen", [seen(("a", 1, 1))]))
    assert not list((tmp_path / "to").rglob("*.parquet"))
    build(tmp_path)


def test_without_a_temporary_directory_the_folder_stays_free(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no temporary directory can be made"):
        SavepointBuilder(place(tmp_path, "to"), "job", [OPERATOR], scratch=tmp_path / "none")
    build(tmp_path)


def test_a_key_group_that_no_column_can_hold_is_refused_in_words(tmp_path: Path) -> None:
    """The bytes are a file's that has none: nobody reads them."""
    with (tmp_path / "empty").open("wb") as file:
        file.truncate(1_200_000_000)
    nothing = pa.memory_map(str(tmp_path / "empty")).read_buffer()
    ends = pa.py_buffer(np.array([0, nothing.size], np.int32).tobytes())
    value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, nothing])
    rows = pa.RecordBatch.from_arrays([pa.array([7], pa.int32()), value], ["key_group", "value"])
    sorter = RowSorter(range(5, 9), tmp_path)
    with pytest.raises(StateLimitError, match=r"key group 7 hold .* 2,147,483,647 at most[^$]*max_parallelism"):
        sorter._concat([rows, rows], 2)
