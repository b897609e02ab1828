"""Stateless steps of streams; what rows carry unseen goes along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from pyspark.sql import Column, DataFrame

from strandline.plan.asyncmaps import map_async
from strandline.plan.columns import Columns
from strandline.plan.graph import MapNode, Node
from strandline.plan.operators import watermark_on
from strandline.runtime.rowlayout import TIME
from strandline.spark.streams.frames import Step, probe_of, transformed
from strandline.types.datatypes import parse_schema


class Steps:
    """Rows, and the stateless steps on them. Every method gives a new stream."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def columns(self) -> list[str]:
        """Names of the stream's columns."""
        return self._node.columns.names

    @property
    def schema(self) -> Any:
        """The stream's Spark schema."""
        return probe_of(self._node).drop(*self._node.columns.hidden).schema

    def select(self, *columns: str | Column) -> Self:
        """Keep or compute columns, as DataFrame.select does."""
        return self._select("select", lambda df, hidden: df.select(*columns, *hidden))

    def select_expr(self, *expressions: str) -> Self:
        """Keep or compute columns with SQL expressions."""
        return self._select("select_expr", lambda df, hidden: df.selectExpr(*expressions, *hidden))

    def _select(self, what: str, step: Callable[[DataFrame, list[str]], DataFrame]) -> Self:
        """Select columns; the hidden ones stay, unless a `*` took them along already."""
        hidden = list(self._node.columns.hidden)
        if hidden and TIME in transformed(self._node, lambda df: step(df, []), what).columns.hidden:
            hidden = []
        return self._step(what, lambda df: step(df, hidden))

    def with_column(self, name: str, column: Column) -> Self:
        """Add or replace a column."""
        return self._step("with_column", lambda df: df.withColumn(name, column))

    def where(self, condition: str | Column) -> Self:
        """Keep the rows that fulfil a condition, SQL or a Column."""
        return self._step("where", lambda df: df.where(condition))

    filter = where

    def transform(self, step: Step) -> Self:
        """Apply any stateless function from DataFrame to DataFrame.

        One that keeps the columns it does not know, as withColumn does, keeps the rows' event time too.
        """
        return self._step("transform", step)

    def _step(self, what: str, step: Step) -> Self:
        return type(self)(transformed(self._node, step, what))

    def map(self, function: Callable[[Any], Any], output: str) -> Self:
        """Apply a Python function to each row; it returns a dict or tuple that fits the schema `output`."""
        return self.flat_map(lambda row: (function(row),), output)

    def flat_map(self, function: Callable[[Any], Iterable[Any] | None], output: str) -> Self:
        """Apply a Python function to each row; it yields any number of dicts or tuples that fit `output`."""
        given, ddl = self._node.columns.schema("map").ddl, parse_schema(output).ddl
        columns = Columns.of(ddl, self._node.columns.hidden)
        return type(self)(MapNode(columns, self._node, function=function, input=given, output=ddl))

    def map_async(
        self,
        function: Callable[[Any], Any],
        output: str,
        *,
        concurrency: int = 10,
        timeout: str | None = None,
        ordered: bool = True,
    ) -> Self:
        """Ask another system about each row: `concurrency` calls are under way at once in each of Spark's tasks.

        The function is async, or an ordinary one, which runs in threads. It gives a dict or tuple that fits `output`, a
        list of such, or None for no row. Rows stay in order; with ordered=False, they come as answers do. A call
        without an answer after `timeout` sends the job back to its last checkpoint; an error ends the job, as in map().
        After any failure, rows since the last checkpoint are asked about again: calls should change nothing.

        >>> async def country(row):
        ...     return {"ip": row.ip, "country": await lookup(row.ip)}
        >>> located = visits.map_async(country, "ip string, country string", concurrency=50, timeout="5s")
        """
        return type(self)(map_async(self._node, function, output, concurrency, timeout, ordered))

    def watermark(self, column: str, delay: str = "0s", *, per: str | None = None, idle: str | None = None) -> Self:
        """Give every row the time in a timestamp column, and the stream a watermark.

        The watermark is the newest time so far, less `delay`: how late events may come. It moves when an epoch ends.
        With `per`, the newest times of that column's values (a partition, a device) are told apart and the slowest
        counts; with `idle`, a value that was silent for so long is not waited for. Without it the job remembers every
        value for ever, and one that ends holds the watermark up. Rows count once they reach the first keyed operator.
        What operators give has the time of the event, or the timer, that it came of.
        """
        return type(self)(watermark_on(self._node, column, delay, per, idle))
