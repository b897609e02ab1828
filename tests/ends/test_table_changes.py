"""Tables that others change between two epochs, or while rows wait; and small files that are held together."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema as DeltaSchema
from deltalake import write_deltalake
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import (
    LongType,
    StructField,
    StructType,
)

from strandline.core.errors import (
    ConfigurationError,
    SinkError,
)
from tests.ends.tableplaces import NAMES, Place, before_next, changed, stage, staged_files


@pytest.mark.parametrize("at", ["before", "staged", "commit"])
def test_rows_are_written_again_where_the_table_is_divided_otherwise(place: Place, at: str) -> None:
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    if at == "before":
        changed(place, "parts")
    second = stage(sink, 2, [(2, "b"), (3, "c"), (4, "b")], [(5, "c")])
    if at == "staged":
        changed(place, "parts")
    if at == "commit":
        before_next(sink, "commit_files", lambda: changed(place, "parts"))
    sink.commit(second)
    before = [(0, "z")] if place.kind == "delta" else [(1, "a")]
    assert place.pairs() == [*before, (2, "b"), (3, "c"), (4, "b"), (5, "c")]
    third = stage(sink, 3, [(6, "b"), (7, "d")])
    files = {Path(file).name for file in staged_files(third)}
    sink.commit(third)
    assert files <= {Path(file).name for file in place.files()}
    assert place.pairs() == [*before, (2, "b"), (3, "c"), (4, "b"), (5, "c"), (6, "b"), (7, "d")]
    place.start(third, 3)
    assert len(place.pairs()) == 7


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("at", ["before", "staged", "commit"])
@pytest.mark.parametrize(("how", "words"), [("type", "the table has string"), ("gone", "does not have: k")])
def test_rows_are_not_written_into_columns_of_others(place: Place, how: str, words: str, at: str, key: Any) -> None:
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    if at == "before":
        changed(place, how)
    second = stage(sink, 2, [(2, "b")])
    if at == "staged":
        changed(place, how)
    if at == "commit":
        before_next(sink, "commit_rows" if key else "commit_files", lambda: changed(place, how))
    with pytest.raises(ConfigurationError, match=words) as caught:
        sink.commit(second)
    assert "was changed after rows of the last checkpoint were staged" in str(caught.value)
    assert "drop=['out']" in str(caught.value)
    assert len(place.rows()) == 1
    with pytest.raises(ConfigurationError, match=words):
        place.start([*first, *second], 2, key=key)


def test_a_constraint_that_comes_later_is_obeyed(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    second = stage(sink, 2, [(5, "b")])
    changed(delta, "constraint")
    with pytest.raises(ConfigurationError, match=r"delta.constraints.small = k < 3"):
        sink.commit(second)
    assert delta.pairs() == [(1, "a")]


def test_rows_against_a_constraint_end_the_commit_without_their_values(delta: Place) -> None:
    sink = delta.start(key="k")
    sink.commit(stage(sink, 1, [(1, "a")]))
    changed(delta, "constraint")
    sink.commit(stage(sink, 2, [(2, "b")]))
    with pytest.raises(SinkError, match="1 rows violate constraints of the table: k < 3") as caught:
        sink.commit(stage(sink, 3, [(5, "secret"), (1, "c")]))
    assert "secret" not in str(caught.value)
    assert delta.pairs() == [(1, "a"), (2, "b")]


def test_a_renamed_column_takes_its_rows_along(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    with place.table().update_schema() as schema:
        schema.rename_column("v", "old")
    with place.table().update_schema() as schema:
        schema.add_column("v", IcebergString())
    sink.commit(stage(sink, 2, [(2, "b")]))
    found = sorted((row["k"], row["v"], row["old"]) for row in place.rows().to_pylist())
    assert found == [(1, None, "a"), (2, "b", None)]


def test_files_end_at_their_size_and_are_held_together(delta: Place) -> None:
    sink = delta.start(target_bytes=4096, compact_every=2)
    rows = [(n, uuid.uuid4().hex) for n in range(3000)]
    sink.commit(stage(sink, 1, rows))
    assert len(delta.files()) == 1, "one batch of rows is in one file"
    sink.commit(stage(sink, 2, [(-1, "a")], [(-2, "b")]))
    assert len(delta.files()) == 2, "those of the second commit are held together"
    sink.commit(stage(sink, 3, [(-3, "c")]))
    assert len(delta.files()) == 3
    assert len(delta.pairs()) == 3003


@pytest.mark.parametrize("columns", [["k"], ["k", "v"]])
def test_small_files_are_held_together_in_their_parts(delta: Place, columns: list[str]) -> None:
    rows = pa.table({"k": [1, 2, 1], "v": ["x", None, "x"], "at": [datetime.datetime(2026, 1, 2), None, None]})
    for _ in range(2):
        write_deltalake(str(delta.path / "table"), rows, partition_by=columns, mode="append")
    sink = delta.start(compact_every=1)
    delta.table().alter.add_columns(DeltaSchema.from_arrow(pa.schema([("later", pa.int64())])).fields)
    schema = StructType([*NAMES.fields, StructField("later", LongType())])
    sink.commit(stage(sink, 1, [(1, "x", 5)], schema=schema))
    assert len(delta.files()) == 2
    found = delta.rows().select(["k", "v", "at", "later"]).to_pylist()
    wanted = 2 * rows.append_column("later", pa.nulls(3, pa.int64())).to_pylist()
    wanted.append({"k": 1, "v": "x", "at": None, "later": 5})
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_small_files_of_many_parts_are_held_together(delta: Place) -> None:
    """However their rows are mixed: of so many parts, not all files can be open at a time."""
    sink = delta.start(compact_every=2, partition_by="k")
    for epoch in (1, 2):
        sink.commit(stage(sink, epoch, [(n, "a") for n in range(100)]))
    assert len(delta.files()) == 100
    assert len(delta.pairs()) == 200


@pytest.mark.parametrize("others", ["compact", "append", "delete"])
def test_another_writer_comes_before_a_compaction(delta: Place, others: str) -> None:
    sink = delta.start(compact_every=2)
    sink.commit(stage(sink, 1, [(1, "a")]))
    acts = {
        "compact": lambda: delta.table().optimize.compact(),
        "append": lambda: delta.append(pa.table({"k": [7], "v": ["other"]})),
        "delete": lambda: delta.table().delete("k = 1"),
    }
    committed, load = sink.committed, sink.load

    def loaded() -> Any:
        table, sink.load = load(), load
        acts[others]()
        return table

    def then_loads(table: Any) -> None:
        sink.load = loaded
        committed(table)

    sink.committed = then_loads
    sink.commit(stage(sink, 2, [(2, "b")]))
    rows = {"compact": [(1, "a"), (2, "b")], "append": [(1, "a"), (2, "b"), (7, "other")], "delete": [(2, "b")]}
    assert delta.pairs() == rows[others]
    assert len(delta.files()) == (2 if others == "append" else 1)
