"""Rows of sinks of table formats: keys, columns, partitions, and what is refused before the start."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import strandline as sl
from strandline.core.errors import ConfigurationError, SinkError
from strandline.core.ids import Generation
from strandline.ends.tables.datafiles import cast_rows, refuse_unreadable
from strandline.spark.sinks.base import SinkContext
from tests.ends.tableplaces import NAMES, SESSION, Place, before_next, stage, tried


def test_the_last_row_of_a_key_stays(place: Place) -> None:
    sink = place.start(key="k")
    first = stage(sink, 1, [(1, "a"), (2, "b"), (1, "c")], [(3, "d")])
    sink.commit([*first, *stage(sink, 2, [(3, "e"), (4, "f")])])
    assert place.pairs() == [(1, "c"), (2, "b"), (3, "e"), (4, "f")]
    sink.commit(stage(sink, 3, [(2, "g")]))
    assert place.pairs() == [(1, "c"), (2, "g"), (3, "e"), (4, "f")]
    assert not [path for path in place.path.rglob("_strandline/**/*") if path.is_file()]


def test_null_lists_and_maps_stay_null_where_rows_are_merged(place: Place) -> None:
    inner = StructType([StructField("a", LongType())])
    columns = StructType([
        StructField("k", LongType()), StructField("m", MapType(StringType(), inner)), StructField("l", ArrayType(inner)),
    ])  # fmt: skip
    sink = place.start(key="k")
    sink.commit(stage(sink, 1, [(1, None, None), (2, {}, []), (3, {"x": {"a": 1}}, [{"a": 1}])], schema=columns))
    sink.commit(stage(sink, 2, [(3, None, None)], schema=columns))
    rows = [row for path in place.files() for row in pq.read_table(path.removeprefix("file://")).to_pylist()]
    assert sorted(tuple(row.values()) for row in rows) == [(1, None, None), (2, [], []), (3, None, None)]


def test_a_life_that_begins_where_another_has_left_rows(place: Place) -> None:
    def begin(sink: Any, **given: Any) -> None:
        sink.check(
            SinkContext(SESSION, "job", given.pop("life", ""), Generation(0), "out", begins="starts afresh", **given)
        )

    begin(place.make())
    sink = place.start()
    sink.commit(stage(sink, 3, [(1, "a")]))
    begin(place.make(), life="life")
    begin(place.make(existing="keep"))
    begin(place.make(key="k"))
    begin(place.make(), from_life="life", from_epoch=3)
    for other in (
        {},
        {"life": "another"},
        {"from_life": "life", "from_epoch": 2},
        {"from_life": "another", "from_epoch": 9},
    ):
        with pytest.raises(ConfigurationError, match="rows of an earlier life of job 'job', which starts afresh"):
            begin(place.make(), **other)
    place.make().check(SinkContext(SESSION, "another", "", Generation(0), "out"))
    with pytest.raises(ConfigurationError, match="existing is 'replace'"):
        place.make(existing="replace")


def test_a_key_of_several_columns(place: Place) -> None:
    schema = StructType([*NAMES.fields, StructField("n", IntegerType())])
    sink = place.start(key=["k", "v"])
    sink.commit(stage(sink, 1, [(1, "a", 1), (1, "b", 2), (2, "a", 3)], schema=schema))
    sink.commit(stage(sink, 2, [(1, "b", 4), (2, "b", 5)], schema=schema))
    rows = sorted(tuple(row.values()) for row in place.rows().select(["k", "v", "n"]).to_pylist())
    assert rows == [(1, "a", 1), (1, "b", 4), (2, "a", 3), (2, "b", 5)]


def test_a_key_without_value_is_refused(place: Place) -> None:
    sink = place.start(key="k")
    with pytest.raises(RuntimeError):
        stage(sink, 1, [(None, "a")])
    rows = pa.RecordBatch.from_pydict({"k": pa.array([1, None])})
    with pytest.raises(ConfigurationError, match="column 'k' of the table takes no nulls, and 1 rows have none"):
        cast_rows(rows, pa.schema([pa.field("k", pa.int64(), nullable=False)]))


def test_values_that_tables_cannot_tell_of_are_refused() -> None:
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    far = pa.array([1 << 60]).cast(pa.timestamp("us"))
    for column, said in ((text, "is no UTF-8"), (pa.ListArray.from_arrays([0, 1], text), "is no UTF-8"), (far, "9999")):
        with pytest.raises(ConfigurationError, match=f"column 'v' cannot be written into a table: .*{said}"):
            refuse_unreadable(pa.table({"v": column}))
    refuse_unreadable(pa.table({"v": ["é", None]}))


@pytest.mark.parametrize("key", [None, "k"])
def test_new_columns(place: Place, key: Any) -> None:
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    wider = StructType([*NAMES.fields, StructField("w", ByteType())])
    refusing = place.start(first, 1, key=key)
    with pytest.raises(ConfigurationError, match="new columns that the table does not have: w"):
        stage(refusing, 2, [(2, "b", 2)], schema=wider)
    waiting = stage(refusing, 2, [(5, "waited")])
    adding = place.start([*first, *waiting], 2, key=key, new_columns="add")
    adding.commit(stage(adding, 3, [(2, "b", 2)], schema=wider))
    rows = sorted(tuple(row.values()) for row in place.rows().select(["k", "v", "w"]).to_pylist())
    assert rows == [(1, "a", None), (2, "b", 2), (5, "waited", None)]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("k", StringType()), "column 'k': the job gives string, the table has int64"),
        (StructField("k", DoubleType()), "column 'k': the job gives double, the table has int64"),
        (StructField("K", LongType()), "column 'K' differs from the table's 'k' only in case"),
        (StructField("other", NullType()), "has no type for column 'other'|new columns"),
    ],
    ids=["text", "double", "case", "nothing"],
)
def test_columns_that_do_not_fit_are_refused_before_the_start(place: Place, field: StructField, words: str) -> None:
    tried(place.make(), NAMES)
    assert not list(place.path.rglob("*.parquet"))
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    with pytest.raises(ConfigurationError, match=words):
        tried(place.make(), StructType([field, NAMES["v"]]))
    tried(place.make(), StructType([StructField("k", IntegerType())]))


def test_what_cannot_be_reached_or_written_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for sink, words in (
        (sl.sinks.delta(tmp_path / "file" / "table"), "cannot be written"),
        (
            sl.sinks.iceberg({"type": "sql", "uri": f"sqlite:///{tmp_path}/no/c.db", "warehouse": "w"}, "a.b"),
            "unable to open",
        ),
        (sl.sinks.iceberg({"type": "rest", "uri": "http://127.0.0.1:9", "token": "secret-token"}, "a.b"), "refused"),
        (sl.sinks.iceberg("nobodys", "a.b"), "URI missing"),
    ):
        sink.patience_s = 0.0
        with pytest.raises(ConfigurationError, match=words) as refused:
            tried(sink, NAMES)
        assert "secret-token" not in str(refused.value)


@pytest.mark.parametrize("uri", ["postgresql://me:se@cret@host:5432/cat", "postgresql://host:5432/cat?password=secret"])
def test_the_destination_says_no_password(uri: str) -> None:
    sink = sl.sinks.iceberg({"name": "c", "type": "sql", "uri": uri}, "a.b")
    assert sink.destination == "Iceberg table a.b of catalog c postgresql://host:5432/cat"


def test_parameters_that_name_what_is_not_there(place: Place) -> None:
    for options in ({"key": "x"}, {"partition_by": "x"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} names column 'x'"):
            tried(place.make(**options), NAMES)
    with pytest.raises(ConfigurationError, match="column 'd' of the key is double"):
        tried(place.make(key="d"), StructType([StructField("d", DoubleType())]))
    with pytest.raises(ConfigurationError, match="new_columns is 'drop'"):
        place.make(new_columns="drop")
    with pytest.raises(ConfigurationError, match="target_bytes is 0"):
        place.make(target_bytes=0)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_table_in_parts(place: Place, key: Any) -> None:
    schema = StructType([*NAMES.fields, StructField("day", DateType()), StructField("at", TimestampType())])
    one, two = datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)
    at = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    sink = place.start(key=key, partition_by="day")
    first = stage(
        sink, 1, [(1, "a", one, at), (2, "b", two, at), (3, "c", one, None)], [(4, "", None, at)], schema=schema
    )
    sink.commit(first)
    sink.commit(stage(sink, 2, [(5, "d", two, at)], schema=schema))
    found = {row["k"]: (row["v"], row["day"], row["at"]) for row in place.rows().to_pylist()}
    assert found == {1: ("a", one, at), 2: ("b", two, at), 3: ("c", one, None), 4: ("", None, at), 5: ("d", two, at)}
    if place.kind == "delta":
        days = pa.table(place.table().get_add_actions(flatten=True))["partition.day"].to_pylist()
        assert set(days) == {one, two, None}
    else:
        found_days = {task.file.partition[0] for task in place.table().scan().plan_files()}
        assert found_days == {(day - datetime.date(1970, 1, 1)).days for day in (one, two)} | {None}


def test_delta_tables_that_want_more_of_a_writer_are_refused(delta: Place) -> None:
    DeltaTable.create(str(delta.path / "table"), pa.schema([("k", pa.int64()), ("v", pa.string())]))
    delta.table().alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(ConfigurationError, match=r"delta.constraints.positive = k > 0"):
        tried(delta.make(), NAMES)


def test_an_append_only_table_takes_nothing_back(delta: Place) -> None:
    configuration: Any = {"delta.appendOnly": "true"}
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    DeltaTable.create(str(delta.path / "table"), schema, configuration=configuration)
    with pytest.raises(ConfigurationError, match="appendOnly"):
        tried(delta.make(key="k"), NAMES)
    sink = delta.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit([*first, *stage(sink, 2, [(2, "b")])])
    delta.start(first, 1)
    assert delta.pairs() == [(1, "a"), (2, "b")]


def test_files_that_are_compacted_while_they_are_taken_back_are_reported(delta: Place, caplog: Any) -> None:
    sink = delta.start()
    sink.commit(first := stage(sink, 1, [(1, "a")]))
    sink.commit([*first, *stage(sink, 2, [(2, "b")])])
    before_next(sink := delta.make(), "_properties", lambda: delta.table().optimize.compact())
    delta.go_on(sink, first, 1)
    assert delta.pairs() == [(1, "a"), (2, "b")]
    assert "rows of later epochs, up to 2" in caplog.text


def test_files_of_which_some_were_compacted_before_are_reported(place: Place, caplog: Any) -> None:
    sink, pending = place.start(), []
    for epoch in (1, 2, 3):
        pending = stage(sink, epoch, [(epoch, "a")])
        sink.commit(pending)
        if epoch == 1:
            first = pending
        elif epoch == 2:
            compact(place)
    place.start([*first, sink.reached()], 1)
    assert place.pairs() == [(1, "a"), (2, "a")]
    assert "goes back to epoch 1; rows of later epochs, up to 3" in caplog.text


def compact(place: Place) -> None:
    """Put all rows into one file, as another writer."""
    table = place.table()
    if place.kind == "delta":
        table.optimize.compact()
        return
    transaction = table.transaction()
    with transaction.update_snapshot().overwrite() as snapshot:
        for task in table.scan().plan_files():
            snapshot.delete_data_file(task.file)
    transaction.append(table.scan().to_arrow())
    transaction.commit_transaction()


def test_a_partitioning_that_files_do_not_tell_is_refused(tmp_path: Path) -> None:
    from pyiceberg.transforms import BucketTransform, DayTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("at", TimestampType())])
    sink = place.start()
    stage(sink, 1, [(1, "a", None)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    days = [datetime.datetime(2026, 1, day, 23, tzinfo=datetime.UTC) for day in (1, 2)]
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a", days[0]), (2, "b", days[1]), (3, "c", days[0])], schema=schema))
    assert len(place.files()) == 2
    assert len(place.pairs()) == 3
    with place.table().update_spec() as spec:
        spec.add_field("k", BucketTransform(4), "bucket")
    with pytest.raises(ConfigurationError, match=r"partitioned by bucket\[4\]\(k\)"):
        tried(place.make(), schema)


def test_a_table_of_version_1_that_was_in_parts_is_refused_without_a_key(tmp_path: Path) -> None:
    """Such a table keeps the field, and the library adds no files to it."""
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.string())]), version=1, part="v")
    with place.table().update_spec() as spec:
        spec.remove_field("v")
    with pytest.raises(ConfigurationError, match=r"partitioned by void\(v\) \(a table of version 1 keeps former"):
        tried(place.make(), NAMES)
    sink = place.start(key="k")
    sink.commit(stage(sink, 1, [(1, "a")]))
    assert place.pairs() == [(1, "a")]


def test_a_table_of_a_version_that_the_library_does_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    monkeypatch.setattr("pyiceberg.table.metadata.SUPPORTED_TABLE_FORMAT_VERSION", 1)
    with pytest.raises(ConfigurationError, match="has format version 2, and the library writes versions up to 1"):
        tried(place.make(), NAMES)


def test_a_text_that_is_too_long_for_the_path_of_a_part_does_not_wait_for_ever(tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.string())]), part="v")
    sink = place.start(key="k")
    with pytest.raises(SinkError, match="text of a partition column is too long for a path"):
        sink.commit(stage(sink, 1, [(1, "a" * 300)]))
    assert place.pairs() == []


@pytest.mark.parametrize("key", [None, "k"])
def test_parts_of_floating_point_are_refused(tmp_path: Path, key: Any) -> None:
    """The library writes rows with NaN into the part without a value, and readers who look for NaN skip it."""
    place = Place("iceberg", tmp_path / "place")
    place.create(pa.schema([("k", pa.int64()), ("v", pa.float64())]), part="v")
    schema = StructType([StructField("k", LongType()), StructField("v", DoubleType())])
    with pytest.raises(ConfigurationError, match="partitioned by 'v', which is floating point"):
        tried(place.make(key=key), schema)


def test_rows_by_key_into_parts_that_need_another_package_are_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the job would begin, and end with its first checkpoint."""
    from pyiceberg.transforms import DayTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("at", TimestampType())])
    stage(place.start(), 1, [(1, "a", None)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("at", DayTransform(), "day")
    monkeypatch.setattr("strandline.spark.sinks.tables.iceberg.find_spec", lambda _: None)
    tried(place.make(), schema)
    with pytest.raises(ConfigurationError, match=r"day\(at\), for which rows by key need the package pyiceberg-core"):
        tried(place.make(key="k"), schema)


@pytest.mark.parametrize("day", [datetime.date.min, datetime.date.max])
def test_rows_are_found_by_the_first_and_the_last_date(tmp_path: Path, day: datetime.date) -> None:
    from pyiceberg.transforms import YearTransform

    place = Place("iceberg", tmp_path / "place")
    schema = StructType([*NAMES.fields, StructField("day", DateType())])
    stage(place.start(), 1, [(1, "a", day)], schema=schema)
    with place.table().update_spec() as spec:
        spec.add_field("day", YearTransform(), "year")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a", day), (2, "b", day)], schema=schema))
    ((_, kept),) = sink._replaced(place.table(), pa.table({"k": [1], "day": [day]}))
    assert kept["k"].to_pylist() == [2]
