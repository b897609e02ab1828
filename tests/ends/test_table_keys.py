"""Rows of sinks of table formats that replace and delete each other by key, also as a job goes back."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from strandline.core.errors import ConfigurationError
from tests.ends.tableplaces import NAMES, Place, stage, tried

GONE = StructType([*NAMES.fields, StructField("gone", BooleanType())])


def starts(place: Place, *given: Any, nullable: tuple[str, ...] = ()) -> Any:
    """Start a sink that rows are deleted from, as a view makes it."""
    sink, marker = place.make(key="k").deleting("gone", nullable)
    assert marker == "gone"
    sink.patience_s = sink.start_patience_s = 0.5
    place.go_on(sink, *given)
    return sink


def test_marked_rows_delete_those_of_their_keys(place: Place) -> None:
    sink = place.start(key="k", delete="gone")
    sink.commit(stage(sink, 1, [(1, "a", False), (2, "b", False), (3, "c", None)], schema=GONE))
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]
    assert place.rows().column_names == ["k", "v"]
    # Of several in one transaction, the newest one counts: gone and there again, there and gone again.
    second = stage(sink, 2, [(1, "x", True), (2, "y", True), (4, "d", False)], schema=GONE)
    third = stage(sink, 3, [(2, "z", False), (3, None, True), (4, None, True)], schema=GONE)
    sink.commit([*second, *third])
    assert place.pairs() == [(2, "z")]
    # The same ones again, as after a kill before the answer.
    again = starts(place, [*second, *third], 3)
    assert place.pairs() == [(2, "z")]
    again.commit(stage(again, 4, [(9, "was never there", True)], schema=GONE))
    again.commit(stage(again, 5, [(2, None, True)], schema=GONE))
    assert place.pairs() == []


def test_null_is_a_key_of_its_own(place: Place) -> None:
    columns = StructType([StructField("k", LongType()), StructField("j", StringType()), *GONE.fields[1:]])
    sink, _ = place.make(key=["k", "j"]).deleting("gone", ["k", "j"])
    place.go_on(sink, [], 0)
    sink.commit(
        stage(sink, 1, [(None, None, "a", False), (None, "", "b", False), (0, None, "c", False)], schema=columns)
    )
    sink.commit(stage(sink, 2, [(None, None, "d", False), (0, None, "", True), (0, "", "e", False)], schema=columns))
    rows = {tuple(row.values()) for row in place.rows().to_pylist()}
    assert rows == {(None, None, "d"), (None, "", "b"), (0, "", "e")}
    sink.commit(stage(sink, 3, [(None, None, "", True), (None, "", "", True)], schema=columns))
    assert place.rows().to_pylist() == [{"k": 0, "j": "", "v": "e"}]


def test_a_column_that_takes_no_nulls_is_refused_before_the_start(place: Place) -> None:
    columns = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
    if place.kind == "iceberg":
        place.create(columns)
    else:
        place.append(pa.Table.from_pylist([], columns))
    sink, _ = place.make(key="k").deleting("gone", ["k"])
    with pytest.raises(ConfigurationError, match="'k' is part of the key and may be null, and the table's") as caught:
        tried(sink, GONE)
    assert "WHERE k IS NOT NULL" in caught.value.hint
    tried(place.make(key="k").deleting("gone")[0], GONE)


def test_markers_that_are_none(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"delete='v' needs key="):
        place.make(delete="v")
    with pytest.raises(ConfigurationError, match="the column 'k' is in key="):
        place.make(key="k", delete="k")
    with pytest.raises(ConfigurationError, match="delete names column 'gone', which the rows do not have"):
        tried(place.make(key="k", delete="gone"), NAMES)
    with pytest.raises(ConfigurationError, match="delete='v' is string, expected a boolean"):
        tried(place.make(key="k", delete="v"), NAMES)


def test_a_job_goes_back_past_the_begin_of_a_sink(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    sink = starts(place, [], 3)
    sink.commit(stage(sink, 4, [(1, "a", False)], schema=GONE))
    sink.commit(stage(sink, 5, [(2, "b", False)], schema=GONE))
    starts(place, [], 1)
    assert place.pairs() == []
    assert "stay in" not in caplog.text


def test_keys_and_rows_in_partitions(place: Place) -> None:
    """Null is a partition, and a row may move to another one, and back."""
    columns = StructType([StructField("k", StringType()), StructField("v", StringType()), GONE.fields[-1]])

    def start(epoch: int, part: str) -> Any:
        sink, _ = place.make(key="k", partition_by=part).deleting("gone", ["k"])
        place.go_on(sink, [], epoch)
        return sink

    sink = start(0, "k")
    sink.commit(stage(sink, 1, [("b", "1", False), ("x", "2", False), (None, "3", False)], schema=columns))
    sink.commit(
        stage(sink, 2, [("b", "4", False), ("x", "5", True), (None, "6", False), ("y", "7", False)], schema=columns)
    )
    assert {(row["k"], row["v"]) for row in place.rows().to_pylist()} == {("b", "4"), (None, "6"), ("y", "7")}
    start(1, "k")
    assert {(row["k"], row["v"]) for row in place.rows().to_pylist()} == {("b", "1"), ("x", "2"), (None, "3")}


def test_rows_that_move_to_another_partition(place: Place) -> None:
    sink, _ = place.make(key="k", partition_by="v").deleting("gone")
    place.go_on(sink, [], 0)
    sink.commit(stage(sink, 1, [(1, "a", False), (2, "b", False), (3, "n", False)], schema=GONE))
    sink.commit(stage(sink, 2, [(1, "b", False), (2, "a b/c=d%", False)], schema=GONE))
    sink.commit(stage(sink, 3, [(1, "c", True), (2, "z", False)], schema=GONE))
    assert place.pairs() == [(2, "z"), (3, "n")]
    place.go_on(sink, [], 2)
    assert place.pairs() == [(1, "b"), (2, "a b/c=d%"), (3, "n")]
    place.go_on(sink, [], 1)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "n")]


class Table:
    """What a sink's table should have after each epoch, beside a row of another writer."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self._rng = place, random.Random(seed)
        self.sink, self.epoch = starts(place, [], 0, nullable=("k",)), 0
        self.known: dict[int, dict[int | None, str]] = {0: {}}

    def go(self, epochs: int, **waits: bool) -> list[str]:
        """Write some epochs, and compare; return what waits."""
        waiting: list[str] = []
        for _ in range(epochs):
            rows, rng = dict(self.known[self.epoch]), self._rng
            new = {rng.choice([None, *range(12)]): str(rng.random()) for _ in range(4)}
            changes = [(k, v, k in rows and rng.random() < 0.5) for k, v in new.items()]
            for k, v, is_gone in changes:
                rows.pop(k, None)
                if not is_gone:
                    rows[k] = v
            self.epoch += 1
            self.known[self.epoch] = rows
            waiting += stage(self.sink, self.epoch, changes, schema=GONE)
            if not waits:
                self.sink.commit(waiting)
                waiting = []
                assert self.found() == self.known[self.epoch]
        return waiting

    def go_back(self, epoch: int) -> None:
        self.epoch = epoch
        self.sink = starts(self.place, [], epoch, nullable=("k",))

    def found(self) -> dict[int | None, str]:
        rows = self.place.rows().select(["k", "v"]).to_pylist()
        found = {row["k"]: row["v"] for row in rows}
        assert len(found) == len(rows)
        assert found.pop(100, "another's") == "another's"
        return found


def test_a_job_goes_back_past_keys_that_are_all_new_or_all_gone(place: Place) -> None:
    sink = starts(place, [], 0)
    sink.commit(stage(sink, 1, [(1, "a", False)], schema=GONE))
    sink.commit(stage(sink, 2, [(2, "b", False)], schema=GONE))
    sink.commit(stage(sink, 3, [(1, None, True), (2, None, True)], schema=GONE))
    starts(place, [], 2)
    assert place.pairs() == [(1, "a"), (2, "b")]
    sink = starts(place, [], 1)
    assert place.pairs() == [(1, "a")]
    sink.commit(stage(sink, 2, [(1, "c", False)], schema=GONE))
    assert place.pairs() == [(1, "c")]


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_goes_back_finds_the_rows_of_then(place: Place, seed: int) -> None:
    """Also twice, past where it has gone back before; beside rows of others, and after what they have rewritten."""
    table = Table(place, seed)
    table.go(5)
    place.append(pa.table({"k": pa.array([100], pa.int64()), "v": ["another's"]}))
    table.go(3)
    if place.kind == "delta":
        place.table().optimize.compact()
    table.go(1)
    for back in (6, 4, 2):
        table.go_back(back)
        assert table.found() == table.known[back]
        assert 100 in place.rows()["k"].to_pylist()
        table.go(2)
    # Nothing is taken back twice.
    table.go_back(table.epoch)
    assert table.found() == table.known[table.epoch]


def test_a_transaction_with_rows_of_both_sides_is_left(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Rows of several checkpoints that have waited come in one transaction: its rows of earlier epochs are not known."""
    table = Table(place, 1)
    table.go(2)
    table.sink.commit(table.go(3, waits=True))
    assert table.found() == table.known[5]
    table.go_back(3)
    assert table.found() == table.known[5]
    assert "stay in sinks" in caplog.text
    assert "until the same keys come again" in caplog.text
    assert "has rows of earlier epochs, too" in caplog.text


def test_files_that_are_gone_cannot_be_read_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    table = Table(place, 2)
    table.go(4)
    now = set(place.files())
    for file in place.path.rglob("*.parquet"):
        if not any(each.endswith(file.name) for each in now):
            file.unlink()
    table.go_back(2)
    assert table.found() == table.known[4]
    assert "is gone" in caplog.text
