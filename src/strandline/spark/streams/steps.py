"""Stateless steps of streams: they stay Spark's, and what rows carry unseen goes along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from strandline.core.errors import ConfigurationError
from strandline.runtime.rowlayout import TIME
from strandline.spark.base.ddl import first_line, input_schema, quoted
from strandline.spark.base.hidden import hidden_of, visible, without_hidden
from strandline.spark.base.reported import errors_reported
from strandline.spark.streams.nodes import Node, Step, StepNode, WatermarkNode, has_limit
from strandline.spark.streams.rows import RowFunction
from strandline.spark.streams.watermark import make_spec, with_times
from strandline.types.datatypes import parse_schema


class Steps:
    """Rows, and the stateless steps on them. Every method gives a new stream."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def columns(self) -> list[str]:
        """Names of the stream's columns."""
        return visible(self._node.probe.columns)

    @property
    def schema(self) -> Any:
        """The stream's Spark schema."""
        return without_hidden(self._node.probe).schema

    def select(self, *columns: str | Column) -> Self:
        """Keep or compute columns, as DataFrame.select does."""
        return self._select(lambda df, hidden: df.select(*columns, *hidden))

    def select_expr(self, *expressions: str) -> Self:
        """Keep or compute columns with SQL expressions."""
        return self._select(lambda df, hidden: df.selectExpr(*expressions, *hidden))

    def _select(self, step: Callable[[DataFrame, list[str]], DataFrame]) -> Self:
        """Select columns; the hidden ones stay, unless a `*` took them along already."""
        hidden = hidden_of(self._node.probe)
        if hidden and TIME in self.transform(lambda df: step(df, []))._node.probe.columns:
            hidden = []
        return self.transform(lambda df: step(df, hidden))

    def with_column(self, name: str, column: Column) -> Self:
        """Add or replace a column."""
        return self.transform(lambda df: df.withColumn(name, column))

    def where(self, condition: str | Column) -> Self:
        """Keep the rows that fulfil a condition, SQL or a Column."""
        return self.transform(lambda df: df.where(condition))

    filter = where

    def transform(self, step: Step) -> Self:
        """Apply any stateless function from DataFrame to DataFrame.

        One that keeps the columns it does not know, as withColumn does, keeps the rows' event time too.
        """
        try:
            with errors_reported():
                probe = step(self._node.probe)
        except AnalysisException as error:
            raise ConfigurationError(
                f"a step does not fit the stream's columns ({', '.join(self.columns)}): {first_line(error)}"
            ) from None
        return type(self)(StepNode(probe, self._node, step, stops_early=has_limit(probe)))

    def map(self, function: Callable[[Any], Any], output: str) -> Self:
        """Apply a Python function to each row; it returns a dict or tuple that fits the schema `output`."""
        return self.flat_map(_One(function), output)

    def flat_map(self, function: Callable[[Any], Iterable[Any] | None], output: str) -> Self:
        """Apply a Python function to each row; it yields any number of dicts or tuples that fit `output`."""
        hidden = hidden_of(self._node.probe)
        ddl = parse_schema(output).ddl
        rows = RowFunction(function, input_schema(self._node.probe, "map"), ddl, len(hidden))
        names = [*map(quoted, self.columns), *hidden]
        schema = self._node.probe.sparkSession.createDataFrame([], ddl).schema
        for name in hidden:
            schema.add(self._node.probe.schema[name])
        return self.transform(lambda df: df.select(*names).mapInArrow(rows, schema))

    def watermark(self, column: str, delay: str = "0s", *, per: str | None = None, idle: str | None = None) -> Self:
        """Give every row the time in a timestamp column, and the stream a watermark.

        The watermark is the newest time so far, less `delay`: how late events may come. It moves when an epoch ends.
        With `per`, the newest times of that column's values (a partition, a device) are told apart and the slowest
        counts; with `idle`, a value that was silent for so long is not waited for. Without it the job remembers every
        value for ever, and one that ends holds the watermark up. Rows count once they reach the first keyed operator.
        What operators give has the time of the event, or the timer, that it came of.
        """
        spec = make_spec(self._node.probe, column, delay, per, idle)

        def step(df: DataFrame) -> DataFrame:
            return with_times(df, spec)

        return type(self)(WatermarkNode(step(self._node.probe), self._node, step, spec))


class _One:
    """A map function as a flat_map function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, row: Any) -> tuple[Any]:
        return (self._function(row),)
