"""Columns that are made once are each time those of the DataFrame that they are selected from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from strandline.spark.base.expressions import aggregate_sql, select_sql
from strandline.spark.base.mapping import map_batches

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


def test_what_a_cast_does_is_as_the_session_says(spark: Any) -> None:
    for is_ansi in ("false", "true", "false"):
        session = spark.newSession()
        session.conf.set("spark.sql.ansi.enabled", is_ansi)
        df = session.createDataFrame([("x",)], "t string")
        found = select_sql(df, {"n": "cast(t as int)"})
        if is_ansi == "true":
            with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
                found.collect()
        else:
            assert found.collect()[0].n is None


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
