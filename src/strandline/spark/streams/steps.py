"""Stateless steps of streams, which keep the hidden columns of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from strandline.spark.base.templates import has_present
from strandline.spark.streams.frames import FrameSource, Step, apply_step, probe_of
from strandline.spark.streams.hints import MissingMethodHints
from strandline.spark.streams.html import stream_html
from strandline.types.spark_schema import SparkType


class Steps(MissingMethodHints):
    """Rows, and the stateless steps on them. Every method returns a new stream."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _repr_html_(self) -> str:
        return stream_html(self._description, self._node)

    @property
    def columns(self) -> list[str]:
        """Names of the stream's columns."""
        return self._node.columns.names

    @property
    def types(self) -> dict[str, str]:
        """The stream's columns and their types, as text: `sl.Value(stream.types["amount"])` is a state of that type."""
        columns = self._node.columns
        return {name: columns.ddl_of(name) for name in columns.names}

    @property
    def schema(self) -> Any:
        """The stream's Spark schema."""
        if not all(isinstance(source, FrameSource) for source in sources_of(self._node)):
            # A test's events: there is no Spark session.
            return spark_type(self._node.columns.schema("schema"))
        return probe_of(self._node).drop(*self._node.columns.hidden).schema

    def select(self, *columns: str | Column) -> Self:
        """Keep or compute columns, as DataFrame.select does."""
        if len(columns) == 1 and isinstance(columns[0], list):
            columns = tuple(columns[0])
        _check_columns("select", *columns, expected="a column's name or a Column")
        return self._select("select", columns, lambda df, hidden: df.select(*columns, *hidden))

    def select_expr(self, *expressions: str) -> Self:
        """Keep or compute columns with SQL expressions."""
        _check_columns("select_expr", *expressions)
        return self._select("select_expr", expressions, lambda df, hidden: df.selectExpr(*expressions, *hidden))

    def _select(
        self, method: str, columns: Sequence[str | Column], step: Callable[[DataFrame, list[str]], DataFrame]
    ) -> Self:
        """Select columns, and the hidden ones unless a `*` selects them already."""
        hidden = list(self._node.columns.hidden)
        if hidden and TIME in apply_step(self._node, lambda df: step(df, []), method).columns.hidden:
            hidden = []
        return self._step(method, lambda df: step(df, hidden), is_fixed=not has_present(*columns))

    def with_column(self, name: str, column: Column) -> Self:
        """Add or replace a column."""
        _check_columns("with_column", column, expected="a Column", of=(Column,))
        return self._step("with_column", lambda df: df.withColumn(name, column), is_fixed=not has_present(column))

    def where(self, condition: str | Column) -> Self:
        """Keep the rows for which a condition is true, SQL or a Column."""
        _check_columns("where", condition)
        return self._step("where", lambda df: df.where(condition), is_fixed=not has_present(condition))

    filter = where

    def transform(self, step: Step) -> Self:
        """Apply any stateless function from DataFrame to DataFrame.

        A function that keeps unknown columns, as withColumn does, also keeps the rows' event time.
        """
        return self._step("transform", step, is_fixed=False)

    def _step(self, method: str, step: Step, *, is_fixed: bool) -> Self:
        return type(self)(apply_step(self._node, step, method, is_fixed=is_fixed))

    def map(
        self, function: Callable[[Any], Any], output: str | SparkType, *, on_error: OnError | Then = "fail"
    ) -> Self:
        """Apply a Python function to each row; it returns a dict or tuple that fits the schema `output`.

        `on_error` is the policy for rows for which the function fails: "fail", "skip", "dead-letter", or an
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

        `on_error` is as in map(). If the function fails for a row, the rows that it has yielded for it are dropped.
        """
        return self._mapped(map_rows(self._node, "flat_map", function, output, on_error))

    def _mapped(self, node: MapNode) -> Self:
        """Return the main output of a function of rows."""
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
        """Call another system for each row, with up to `concurrency` concurrent calls in each of Spark's tasks.

        The function is async, or an ordinary one, which runs in threads. It returns a dict or tuple that fits `output`,
        a list of these, or None for no row. Rows stay in order; with ordered=False, they come in the order of answers.

        `retry`, a number or an `sl.Retry`, repeats calls that fail or have no answer after `timeout`. If all attempts
        fail, the result is `fallback`: a row, None for no row, or a function of (row, error) that returns one of these.
        Without it, `on_error` applies, as in map(). If that is "fail", an error ends the job, and a call without an
        answer restarts it from its last checkpoint. After any failure, the job repeats the calls for rows since the
        last checkpoint: calls should have no side effects.

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
        """Set the event time of rows to a timestamp column, and define the stream's watermark.

        The watermark is the newest time so far, less `delay`, by which events may be late. It moves when an epoch ends.
        With `per`, there is a newest time for each value of that column (a partition, a device), and the smallest
        counts; with `idle`, a value without rows for this time does not count. Without `idle`, the job keeps every
        value for ever, and a value without new rows stops the watermark. Rows count when they reach the first keyed
        operator. Output rows of operators have the time of the event, or of the timer, that caused them.
        """
        return type(self)(watermark_on(self._node, column, delay, per, idle))


def _check_columns(
    step: str, *columns: Any, expected: str = "SQL or a Column", of: tuple[type, ...] = (str, Column)
) -> None:
    """Raise ConfigurationError for values that are not columns for Spark."""
    for each in columns:
        if callable(each) and not isinstance(each, of):
            raise ConfigurationError(
                f"{step}() was given a function, expected {expected}: Spark computes it, not Python",
                hint='write it as SQL, "amount > 10", or as F.col("amount") > 10; if only Python can compute it: '
                'flat_map(lambda row: [row] if … else [], output="…")',
            )
        if not isinstance(each, of):
            raise ConfigurationError(
                f"{step}() was given {each!r:.100}, a {type(each).__name__}, expected {expected}",
                hint='a column is F.col("amount"), a constant F.lit(5)',
            )
