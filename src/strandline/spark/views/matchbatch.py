"""MATCH_RECOGNIZE over the rows of a batch, for previews: the operator's search, without a job and without state."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from strandline.plan.graph import Node, OperatorNode
from strandline.runtime.operators.views.match import MatchRecognizing
from strandline.spark.base.ddl import schema_of
from strandline.spark.streams.frames import FrameStep, frame_source
from strandline.spark.views.catalyst import Catalyst, id_of
from strandline.spark.views.matchclause import MatchClause, Matches
from strandline.spark.views.matching import match_rows
from strandline.spark.views.meaning import Meanings
from strandline.spark.views.operators import Operators
from strandline.spark.views.relations import Relation, Rows, unlike
from strandline.spark.views.rewriting import Rewriting
from strandline.spark.views.times import WHOLE


def register_matches(matches: Matches, query: Callable[[Rewriting], DataFrame]) -> None:
    """Create temporary views of the matches of a query's clauses, in the rows of their tables alone.

    `query` has Spark analyse a text in the session of the views.
    """
    for clause in matches.clauses:
        rows = _matches_of(matches, clause, query(matches.table(clause)), query)
        rows.createOrReplaceTempView(clause.name)


def _matches_of(
    matches: Matches, clause: MatchClause, df: DataFrame, query: Callable[[Rewriting], DataFrame]
) -> DataFrame:
    spark, columns = df.sparkSession, unlike(df.columns)
    catalyst, batch = Catalyst(spark), df.toDF(*columns)
    source = frame_source(batch)
    ops = Operators(catalyst, Meanings(catalyst, {}), source)
    its = catalyst.items(catalyst.plan_of(batch).output())
    output = tuple(catalyst.alias(each, name).toAttribute() for name, each in zip(df.columns, its, strict=True))
    rows = Relation(
        source, columns, output, output,
        {id_of(each): f"batch.{name}" for name, each in zip(columns, output, strict=True)}, "batch", weighted=False,
        # Whether a job has a watermark for the one of ORDER BY is checked with its own plan.
        times={(id_of(each), WHOLE): 0 for each in output if each.dataType().sql() == "TIMESTAMP"},
    )  # fmt: skip

    def analysed_over(rewriting: Rewriting, name: str, schema: StructType) -> DataFrame:
        spark.createDataFrame([], schema).createOrReplaceTempView(name)
        return query(rewriting)

    planned = match_rows(ops, matches, clause, rows, df.schema, analysed_over)
    of_clause = catalyst.plan_of(spark.createDataFrame([], planned.schema))
    result = planned.relation(ops, catalyst.items(of_clause.output()))
    step = Rows(catalyst, result, tuple(zip(planned.schema.names, result.output, strict=True)), is_weighted=False)
    return step(_searched(result.node, batch))


def _searched(operator: Node, batch: DataFrame) -> DataFrame:
    """Return what an operator gives of a batch of its source."""
    assert isinstance(operator, OperatorNode)
    assert isinstance(operator.parent, FrameStep)
    assert isinstance(operator.process, MatchRecognizing)
    answer = operator.process.answer(operator.parent.step(batch).toArrow())
    return batch.sparkSession.createDataFrame(pa.Table.from_batches([answer]), schema_of(operator.output_schema))
