"""Rows that Spark aggregates before the shuffle: keys that are structs are grouped by their values."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import DataFrame

import strandline as sl
from strandline.plan.columns import Columns
from strandline.plan.graph import Cut, Node, OperatorNode, PartialNode, SourceNode
from strandline.runtime.rowlayout import ROWS
from strandline.spark.base.ddl import ddl_of
from strandline.spark.base.templates import PlanTemplate, empty_rdd, frame_of, output_ids
from strandline.spark.keepers.exchange import clone_session, prepare_session
from strandline.spark.lower.nodes import lower_node

pytestmark = pytest.mark.spark


def plan_of(df: DataFrame) -> Any:
    jdf: Any = df._jdf
    return jdf.queryExecution()


def grouped_by(df: DataFrame) -> list[str]:
    """Return the types of what Spark groups rows by."""
    plan = plan_of(df).optimizedPlan()
    while plan.nodeName() != "Aggregate":
        plan = plan.children().head()
    keys = plan.groupingExpressions()
    return [keys.apply(at).dataType().sql() for at in range(keys.size())]


def reduced(rows: DataFrame, *keys: str) -> DataFrame:
    """Return the number of rows of each key, as Spark makes it of all rows."""
    given = Columns(tuple((each.name, ddl_of(each.dataType)) for each in rows.schema))
    node = PartialNode(Columns((*given.types, (ROWS, "bigint"))), SourceNode(given), keys, Cut())
    return lower_node(node, [rows], 1, is_reduced=True)


def test_groups_of_structs_are_those_of_their_values(spark: Any) -> None:
    rows = spark.range(12).selectExpr(
        "struct(nullif(id % 3, 0) as a, if(id % 2 = 0, 'x', null) as `b c`) as k",
        "id % 2 as n",
        "struct(id % 2 as a) as m",
        "if(id % 4 = 0, null, struct(cast(null as int) as a)) as o",
        "struct(id % 2 as a, id % 3 as A) as p",
    )
    df = reduced(rows, "k", "n", "m", "o", "p")
    assert grouped_by(df) == [
        "BIGINT", "STRING", "BIGINT", "BIGINT", "STRUCT<a: INT>", "STRUCT<a: BIGINT, A: BIGINT>",
    ], "a struct that is null is not one of nulls; names that are alike cannot be told apart"  # fmt: skip
    assert df.columns == ["k", "n", "m", "o", "p", ROWS]
    expected = rows.groupBy(*rows.columns).count()
    assert sorted(map(str, map(tuple, df.collect()))) == sorted(map(str, map(tuple, expected.collect())))


def _operator(node: Node) -> OperatorNode:
    while not isinstance(node, OperatorNode):
        assert node.parent is not None
        node = node.parent
    return node


@pytest.mark.parametrize("window", ["", ", session_window(at, '10 seconds')", ", window(at, '10 seconds')"])
def test_a_view_groups_rows_by_columns_and_counts_them_once(spark: Any, window: str) -> None:
    df = spark.readStream.format("rate").load().selectExpr("value % 5 as k", "timestamp as at")
    stream = sl.stream(df).watermark("at", "1 s")
    view = sl.sql(f"SELECT k, count(*) AS n FROM stream GROUP BY k{window}", stream=stream)
    partial = _operator(view._node).parent
    assert isinstance(partial, PartialNode)
    step: Any = partial.parent
    hidden = ", ".join(f"unix_micros(at) as {name}" for name in step.parent.columns.hidden)
    session = clone_session(spark)
    prepare_session(session)
    rdd = empty_rdd(session)
    jdf: Any = session.range(1).selectExpr("id as k", "timestamp_micros(id) as at")._jdf
    rows = frame_of(session, rdd, jdf.schema()).selectExpr("k", "at", *([hidden] if hidden else []))
    result = lower_node(partial, [step.step(rows)], 1, is_reduced=True)
    assert not any("STRUCT" in kind for kind in grouped_by(result))
    text = plan_of(result).optimizedPlan().toString()
    functions = re.findall(r"\b(?:sum|count)\([^)]*\)", text.partition("Aggregate")[2].splitlines()[0])
    assert set(functions) == {"count(1)"}
    template = PlanTemplate(result, {"source": rdd}, (), (), [output_ids(plan_of(result).analyzed())[ROWS]])
    assert "Exchange" not in template.copy({"source": rdd}, {}).toString(), "each task's rows are aggregated alone"
