"""Topics as tables that change: messages of Kafka by key, and those without a value."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.spark.sinks.kafkasink import MessageColumns
from strandline.spark.views.view import _newest

pytestmark = pytest.mark.spark

MESSAGES = "key binary, value binary"


def messages(spark: Any, *rows: tuple[Any, Any]) -> Any:
    encoded = [tuple(None if each is None else each.encode() for each in row) for row in rows]
    return spark.createDataFrame(encoded, MESSAGES)


def read(df: Any, value: Any, **more: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in sl.kafka.versions(df, value, **more).collect()]


def test_a_message_without_a_value_deletes_the_row_of_its_key(spark: Any) -> None:
    df = messages(
        spark,
        ("1", '{"id": 1, "name": "a"}'), ("1", None), ('{"id": 2}', None), ("none", None), (None, None),
        ("3", '{"name": "without"}'), ("4", "no JSON"), ("5", '{"id": 6}'),
    )  # fmt: skip
    assert read(df, "id bigint, name string", key="id") == [
        (1, "a", False), (1, None, True), (2, None, True), (3, "without", False), (4, None, False), (6, None, False),
    ]  # fmt: skip
    df = messages(spark, ("a", None), ('{"id": "b"}', None), ("7", None))
    assert [row[0] for row in read(df, "id string, n int", key="id")] == ["a", "b", "7"]


def test_columns_of_the_key_are_json(spark: Any) -> None:
    df = messages(
        spark, ('{"a": 1, "b": "x"}', None), ('{"a": 2}', None), ("{}", None), ('{"a": 3, "b": ""}', '{"n": 4}')
    )
    rows = read(df, "a int, b string, n int", key=["a", "b"], deleted="gone")
    assert rows == [(1, "x", None, True), (2, None, None, True), (3, "", 4, False)]


def test_the_values_own_marker_counts_too(spark: Any) -> None:
    df = messages(spark, ("1", '{"id": 1, "gone": true}'), ("1", '{"id": 1}'), ("1", None))
    assert read(df, "id int, gone boolean", key="id", deleted="gone") == [(1, True), (1, False), (1, True)]


def test_a_value_may_be_a_struct(spark: Any) -> None:
    df = messages(spark, ("a", "1,2"), ("b", None))
    value = F.from_csv(F.col("value").cast("string"), "x int, y int")
    with_key = F.when(F.col("value").isNotNull(), F.struct(F.lit(None).cast("string").alias("k"), value.x.alias("x")))
    assert read(df, with_key, key="k") == [("a", 1, False), ("b", None, True)]


@pytest.mark.parametrize(
    ("value", "given", "words"),
    [
        ("id int", {"key": "idd"}, "key='idd' is no column; the value has id"),
        ("id int", {"key": []}, "key is empty"),
        ("value", {"key": "id"}, "the value is int, expected the columns of a row"),
    ],
)
def test_versions_that_cannot_be_read(spark: Any, value: Any, given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sl.kafka.versions(messages(spark), F.lit(1) if value == "value" else value, **given)


ROW = {
    "n": (7, "bigint"), "t": ("ä {", "string"), "at": (dt.datetime(2026, 1, 2, 3, 4, 5, 123456), "timestamp"),
    "ntz": (dt.datetime(2026, 1, 2, 3, 4, 5, 7), "timestamp_ntz"), "day": (dt.date(2026, 1, 2), "date"),
    "d": (Decimal("-1.50"), "decimal(10, 2)"), "b": (bytearray(b"\x00\xff"), "binary"), "x": (True, "boolean"),
    "s": ((1, "a"), "struct<a: int, b: string>"), "l": ([1, 2], "array<int>"),
}  # fmt: skip


@pytest.mark.parametrize("names", [*([name] for name in ROW), list(ROW)], ids=lambda names: "-".join(names))
def test_keys_that_a_sink_has_written_are_read_again(spark: Any, names: list[str]) -> None:
    """Without a value, so that all comes from the key."""
    ddl = ", ".join(f"{name} {ROW[name][1]}" for name in names)
    df = spark.createDataFrame([tuple(ROW[name][0] for name in names)], ddl).withColumn("gone", F.lit(True))
    key = names[0] if len(names) == 1 else names
    layout = MessageColumns(None, None, key, None, None, None, None, "gone")
    written = layout.messages(df)
    (message,) = written.collect()
    assert message["value"] is None
    ((*found, gone),) = read(written, ddl, key=key)
    assert gone is True
    assert found == [ROW[name][0] for name in names]


def test_times_of_keys_differ_as_in_the_rows(spark: Any) -> None:
    """Spark writes JSON with milliseconds: two keys would be one."""
    rows = [(1, dt.datetime(2026, 1, 1, microsecond=each)) for each in (0, 1, 1000, 1001)]
    layout = MessageColumns(None, None, ["n", "at"], None, None, None, None)
    found = [
        json.loads(row["key"])["at"]
        for row in layout.messages(spark.createDataFrame(rows, "n int, at timestamp")).collect()
    ]
    assert [each[19:] for each in found] == [".000Z", ".000001Z", ".001Z", ".001001Z"]


def test_times_within_keys_differ_too(spark: Any) -> None:
    rows = [(1, (dt.datetime(2026, 1, 1, microsecond=each),)) for each in (0, 1)]
    df = spark.createDataFrame(rows, "n int, s struct<at: timestamp>")
    for key in ("s", ["s"], ["n", "s"]):
        layout = MessageColumns(None, None, key, None, None, None, None)
        assert len({row["key"] for row in layout.messages(df).collect()}) == 2


def test_zero_is_one_key(spark: Any) -> None:
    """-0.0 is 0.0 in SQL, and another text."""
    rows = [(-0.0, "a", -1), (0.0, "b", 1), (float("nan"), "c", 1)]
    found = _newest(
        spark.createDataFrame(rows, f"x double, v string, {WEIGHT} bigint"), ["x"], ["x", "v"], "gone"
    ).collect()
    assert sorted((str(row["x"]), row["v"], row["gone"]) for row in found) == [("0.0", "b", False), ("nan", "c", False)]


def test_the_key_of_a_view_in_kafka(spark: Any) -> None:
    kept = MessageColumns(None, None, "k", None, None, None, None)
    assert kept.deleting("gone", [], refuses=True).delete == "gone"
    assert kept.deleting("gone", ["k"], refuses=False).delete == "gone"
    with pytest.raises(ConfigurationError, match="the key 'k' may be null") as caught:
        kept.deleting("gone", ["k"], refuses=True)
    assert "WHERE k IS NOT NULL" in caught.value.hint
    # In JSON, null is a key as others.
    assert MessageColumns(None, None, ["k", "j"], None, None, None, None).deleting("gone", ["k", "j"], refuses=True)
    for part in ("topic_column", "partition"):
        parts = {"topic_column": None, "partition": None, part: "p"}
        layout = MessageColumns(topic=None, key="k", value=None, headers=None, timestamp=None, **parts)
        with pytest.raises(ConfigurationError, match=f"{part}='p' is not in the key"):
            layout.deleting("gone", [], refuses=True)
        assert MessageColumns(topic=None, key=["k", "p"], value=None, headers=None, timestamp=None, **parts).deleting(
            "gone", [], refuses=True
        )


def test_a_tombstone_has_no_value_whatever_the_row_has(spark: Any) -> None:
    schema = StructType([StructField(name, StringType()) for name in ("k", "v")])
    rows = spark.createDataFrame([("a", "x"), ("b", None)], schema).withColumn("gone", F.expr("nullif(k = 'a', false)"))
    for value, living in ((None, b'{"k":"b"}'), ("k", b"b")):
        layout = MessageColumns(None, None, "k", value, None, None, None, "gone")
        assert [(row["key"], row["value"]) for row in layout.messages(rows).collect()] == [(b"a", None), (b"b", living)]
    with pytest.raises(ConfigurationError, match="delete is column 'v' of type string, expected boolean"):
        MessageColumns(None, None, "k", None, None, None, None, "v").messages(rows)


def test_columns_that_are_never_null(spark: Any, tmp_path: Path) -> None:
    """By the query's conditions, also those of views that it reads: the schema of JSON has nulls everywhere."""
    people = sl.files_source(tmp_path, schema="city string, id int", format="json", name="people", spark=spark)
    known = sl.sql("SELECT city, id FROM people WHERE city IS NOT NULL", people=sl.table(people, key="id"))
    all_cities = sl.sql("SELECT city, count(*) AS n FROM people GROUP BY city", people=people)
    views = {
        known: {"city"},
        sl.sql("SELECT city, count(*) AS n FROM known GROUP BY city", known=known): {"city", "n"},
        all_cities: {"n"},
        sl.sql("SELECT city, count(*) AS n FROM people WHERE city > 'A' GROUP BY city", people=people): {"city", "n"},
        sl.sql("SELECT p.city FROM people p JOIN c ON p.city = c.city", people=people, c=all_cities): {"city"},
        sl.sql("SELECT city, count(*) AS n FROM known GROUP BY ROLLUP (city)", known=known): {"n"},
    }
    for view, never_null in views.items():
        assert view._never_null == never_null, view.text
        assert view.name == ""


def test_two_tables_of_one_name_have_uids_of_their_own(spark: Any, tmp_path: Path) -> None:
    def outputs(**options: Any) -> list[Any]:
        found = []
        for name, more in (("old", {}), ("new", options)):
            people = sl.files_source(tmp_path, schema="city string, id int", format="json", name=name, spark=spark)
            view = sl.sql("SELECT city, id FROM people", people=sl.table(people, key="id", **more))
            found.append(view.changes().to(sl.sinks.memory()))
        return found

    checkpoints = sl.Checkpoints(str(tmp_path / "checkpoints"))
    with pytest.raises(ConfigurationError, match="is used by 2 operators"):
        sl.Job("one", sinks=outputs(), checkpoints=checkpoints)
    job = sl.Job("two", sinks=outputs(uid="new people"), checkpoints=checkpoints)
    first, second = (operator.uid for operator in job.operators())
    assert first.startswith("table-people-")
    assert second == "new people"
