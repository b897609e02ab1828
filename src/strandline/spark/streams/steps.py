"""Stateless steps of streams; what rows carry unseen goes along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from pyspark.sql import Column, DataFrame

from strandline.api.badrecords import OnError, Then
from strandline.api.retries import Retry
from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration
from strandline.plan.asyncmaps import FAIL, map_async
from strandline.plan.graph import MapNode, Node, sources_of
from strandline.plan.maps import map_rows
from strandline.plan.operators import watermark_on
from strandline.runtime.rowlayout import TIME
from strandline.spark.base.ddl import spark_type
from strandline.spark.streams.frames import FrameSource, Step, probe_of, transformed
from strandline.spark.streams.words import Worded
from strandline.types.spark_schema import SparkType


class Steps(Worded):
    """Rows, and the stateless steps on them. Every method gives a new stream."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def columns(self) -> list[str]:
        """Names of the stream's columns."""
        return self._node.columns.names

    @property
    def types(self) -> dict[str, str]:
        """The stream's columns and their types, as text: `sl.Value(stream.types["amount"])` declares a state alike."""
        columns = self._node.columns
        return {name: columns.ddl_of(name) for name in columns.names}

    @property
    def schema(self) -> Any:
        """The stream's Spark schema."""
        if not all(isinstance(source, FrameSource) for source in sources_of(self._node)):
            # A test's events: there is no Spark, and no type that only Spark knows.
            return spark_type(self._node.columns.schema("schema"))
        return probe_of(self._node).drop(*self._node.columns.hidden).schema

    def select(self, *columns: str | Column) -> Self:
        """Keep or compute columns, as DataFrame.select does."""
        if len(columns) == 1 and isinstance(columns[0], list):
            columns = tuple(columns[0])
        _check_columns("select", *columns, expected="a column's name or a Column")
        return self._select("select", lambda df, hidden: df.select(*columns, *hidden))

    def select_expr(self, *expressions: str) -> Self:
        """Keep or compute columns with SQL expressions."""
        _check_columns("select_expr", *expressions)
        return self._select("select_expr", lambda df, hidden: df.selectExpr(*expressions, *hidden))

    def _select(self, what: str, step: Callable[[DataFrame, list[str]], DataFrame]) -> Self:
        """Select columns; the hidden ones stay, unless a `*` took them along already."""
        hidden = list(self._node.columns.hidden)
        if hidden and TIME in transformed(self._node, lambda df: step(df, []), what).columns.hidden:
            hidden = []
        return self._step(what, lambda df: step(df, hidden))

    def with_column(self, name: str, column: Column) -> Self:
        """Add or replace a column."""
        _check_columns("with_column", column, expected="a Column", of=(Column,))
        return self._step("with_column", lambda df: df.withColumn(name, column))

    def where(self, condition: str | Column) -> Self:
        """Keep the rows that fulfil a condition, SQL or a Column."""
        _check_columns("where", condition)
        return self._step("where", lambda df: df.where(condition))

    filter = where

    def transform(self, step: Step) -> Self:
        """Apply any stateless function from DataFrame to DataFrame.

        One that keeps the columns it does not know, as withColumn does, keeps the rows' event time too.
        """
        return self._step("transform", step)

    def _step(self, what: str, step: Step) -> Self:
        return type(self)(transformed(self._node, step, what))

    def map(
        self, function: Callable[[Any], Any], output: str | SparkType, *, on_error: OnError | Then = "fail"
    ) -> Self:
        """Apply a Python function to each row; it returns a dict or tuple that fits the schema `output`.

        `on_error` says what becomes of a row that the function fails for: "fail", "skip", "dead-letter", or an
        `sl.OnError`; see `dead_letters`.
        """
        return self._mapped(map_rows(self._node, "map", function, output, on_error))

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any] | None],
        output: str | SparkType,
        *,
        on_error: OnError | Then = "fail",
    ) -> Self:
        """Apply a Python function to each row; it yields any number of dicts or tuples that fit `output`.

        `on_error` is as in map(): of a row that the function fails for, none of the rows that it gave before is given.
        """
        return self._mapped(map_rows(self._node, "flat_map", function, output, on_error))

    def _mapped(self, node: MapNode) -> Self:
        """Return the main output of a function of each row."""
        raise NotImplementedError

    def map_async(
        self,
        function: Callable[[Any], Any],
        output: str | SparkType,
        *,
        concurrency: int = 10,
        timeout: Duration | None = None,
        ordered: bool = True,
        retry: int | Retry = 0,
        fallback: Any = FAIL,
        on_error: OnError | Then = "fail",
    ) -> Self:
        """Ask another system about each row: `concurrency` calls are under way at once in each of Spark's tasks.

        The function is async, or an ordinary one, which runs in threads. It gives a dict or tuple that fits `output`, a
        list of such, or None for no row. Rows stay in order; with ordered=False, they come as answers do.

        A call that fails, or has no answer after `timeout`, is made again as `retry` says: so often, or an `sl.Retry`.
        What fails for good is given `fallback`: a row, None for no row, or what a function of (row, error) returns.
        Else `on_error` counts, as in map(); and where it is "fail", an error ends the job, and a call without an answer
        sends it back to its last checkpoint. After any failure, rows since the last checkpoint are asked about again:
        calls should change nothing.

        >>> async def country(row):
        ...     return {"ip": row.ip, "country": await lookup(row.ip)}
        >>> located = visits.map_async(country, "ip string, country string", concurrency=50, timeout="5s")
        """
        return self._mapped(
            map_async(self._node, function, output, concurrency, timeout, ordered, retry, fallback, on_error)
        )

    def watermark(
        self, column: str, delay: Duration = "0s", *, per: str | None = None, idle: Duration | None = None
    ) -> Self:
        """Give every row the time in a timestamp column, and the stream a watermark.

        The watermark is the newest time so far, less `delay`: how late events may come. It moves when an epoch ends.
        With `per`, the newest times of that column's values (a partition, a device) are told apart and the slowest
        counts; with `idle`, a value that was silent for so long is not waited for. Without it the job remembers every
        value for ever, and one that ends holds the watermark up. Rows count once they reach the first keyed operator.
        What operators give has the time of the event, or the timer, that it came of.
        """
        return type(self)(watermark_on(self._node, column, delay, per, idle))


def _check_columns(
    step: str, *given: Any, expected: str = "SQL or a Column", of: tuple[type, ...] = (str, Column)
) -> None:
    """Refuse what Spark takes for no column."""
    for each in given:
        if callable(each) and not isinstance(each, of):
            raise ConfigurationError(
                f"{step}() was given a function, expected {expected}: Spark computes it, not Python",
                hint='write it as SQL, "amount > 10", or as F.col("amount") > 10; for what only Python can say: '
                'flat_map(lambda row: [row] if … else [], output="…")',
            )
        if not isinstance(each, of):
            raise ConfigurationError(
                f"{step}() was given {each!r:.100}, a {type(each).__name__}, expected {expected}",
                hint='a column is F.col("amount"), a constant F.lit(5)',
            )
