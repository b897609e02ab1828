"""Columns that are made once are each time those of the DataFrame that they are selected from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from strandline.spark.base.expressions import aggregate_sql, select_sql
from strandline.spark.base.mapping import map_batches
from strandline.spark.keepers.exchange import keep_active_session

pytestmark = pytest.mark.spark
ODD = "a.b `c`"


def test_a_column_is_made_of_one_of_its_name_again_and_again(spark: Any) -> None:
    """Were it the same column each time, it would be made of itself."""
    df = spark.createDataFrame([("x", 1), (None, 2)], "origin string, n int")
    further = {"origin": "concat('1/', coalesce(origin, ''))", "n": "n + 1"}
    for _ in range(3):
        df = select_sql(df, further)
    both = df.unionAll(df).join(select_sql(df, further).withColumnRenamed("n", "m"), "origin", "left")
    assert sorted(tuple(row) for row in both.collect()) == [("1/1/1/", 5, None)] * 2 + [("1/1/1/x", 4, None)] * 2


def test_names_may_be_any(spark: Any) -> None:
    df = spark.createDataFrame([(1, 2), (1, 3)], ["n", "null"]).withColumnRenamed("n", ODD)
    found = select_sql(df, {"null": "`null`", ODD: "`a.b ``c```", "select": "1L"})
    assert found.columns == ["null", ODD, "select"]
    assert [tuple(row) for row in found.collect()] == [(2, 1, 1), (3, 1, 1)]
    (row,) = aggregate_sql(df, {ODD: "`a.b ``c```"}, {"from": "sum(`null`)", "n": "count(1)"}).collect()
    assert row.asDict() == {ODD: 1, "from": 5, "n": 2}


@pytest.fixture
def sessions(spark: Any) -> Iterator[list[Any]]:
    """Two sessions, the first of which is active: each is to be told something else."""
    both = [spark.newSession(), spark.newSession()]
    with keep_active_session(spark):
        spark._jvm.SparkSession.setActiveSession(both[0]._jsparkSession)
        yield both


def test_what_a_cast_does_is_as_the_session_says_whichever_is_active(sessions: list[Any]) -> None:
    for flags in (("true", "false"), ("false", "true")):
        for session, is_ansi in zip(sessions, flags, strict=True):
            session.conf.set("spark.sql.ansi.enabled", is_ansi)
        for session, is_ansi in zip(sessions, flags, strict=True):
            df = DataFrame(session._jsparkSession.sql("select 'x' t"), session)
            casts = {"n": "max(cast(t as int))"}
            for found in (select_sql(df, {"n": "cast(t as int)"}), aggregate_sql(df, {"t": "`t`"}, casts).drop("t")):
                if is_ansi == "true":
                    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
                        found.collect()
                else:
                    assert found.collect()[0].n is None


def test_an_expression_is_read_with_what_is_set_by_then(sessions: list[Any]) -> None:
    _, session = sessions
    told = ("UTC", "TIMESTAMP_LTZ", 1), ("Asia/Tokyo", "TIMESTAMP_LTZ", 2), ("UTC", "TIMESTAMP_NTZ", 3)
    at, kind = "unix_seconds(timestamp_ltz '1970-01-02 00:00:00')", "typeof(timestamp '1970-01-02 00:00:00')"
    seen = []
    for values in told:
        for name, value in zip(
            ("spark.sql.session.timeZone", "spark.sql.timestampType", "my.number"), values, strict=True
        ):
            session.conf.set(name, value)
        df = DataFrame(session._jsparkSession.range(1), session)
        seen.append(tuple(select_sql(df, {"at": at, "kind": kind, "number": "${my.number}"}).collect()[0]))
    assert seen == [(86400, "timestamp", 1), (54000, "timestamp", 2), (86400, "timestamp_ntz", 3)]


def test_a_name_stands_for_its_column_whatever_is_set(sessions: list[Any]) -> None:
    _, session = sessions
    session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    names = ["axb", "a.b", "${env:HOME}"]
    df = DataFrame(session._jsparkSession.sql("select 1, 2, 3"), session).toDF(*names)
    assert select_sql(df, {name: f"`{name}`" for name in names[1:]}).columns == names[1:]


def test_batches_have_all_columns_by_their_names(spark: Any) -> None:
    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"names": batch.schema.names, "first": [v.as_py() for v in batch.columns[1]] * 3}
            )

    for rename in (ODD, "plain"):
        for at in (1, 2):
            df = spark.createDataFrame([(0, at, 5)], "k long, v long, `null` long").withColumnRenamed("v", rename)
            found = map_batches(df.coalesce(1), seen, "names string, first long").collect()
            assert [tuple(row) for row in found] == [("k", at), (rename, at), ("null", at)]
