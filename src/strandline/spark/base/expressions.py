"""A cache of columns: without it, Python would call the JVM for each column in every epoch.

Cached columns are names and expressions that belong to no DataFrame, so that they resolve in any that has these names.
They belong to no session: Spark parses their text with the settings of the DataFrame's session.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.plan.columns import quoted

_MAX_CACHED = 1000
_cache: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
"""For each JVM, columns by their names or SQL."""


def parse_expression(session: Any, sql: str) -> Column:
    """Return an SQL expression that Spark parses once: it parses `F.expr` again in each DataFrame.

    Spark uses the settings of the active session: do not use this for SQL or casts that users write.
    """
    try:
        expression = session._jsparkSession.sessionState().sqlParser().parseExpression(sql)
        return Column(getattr(session._jvm, "org.apache.spark.sql.classic.ExpressionUtils").column(expression))
    except Py4JError:
        # Another version of Spark may have another name for the class: `F.expr` is slower, but works.
        return F.expr(sql)


def integers(session: Any, values: Sequence[int]) -> Column:
    """Return an array of integers as one literal: Spark would analyse each literal of `F.array` in every epoch."""
    context: Any = session.sparkContext
    array = context._gateway.new_array(context._jvm.int, len(values))
    for at, value in enumerate(values):
        array[at] = value
    return Column(getattr(context._jvm, "org.apache.spark.sql.functions").lit(array))


def select_sql(df: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Select columns, each defined by its name and its SQL expression."""
    return select(df, _of_sql(df, columns))


def aggregate_sql(df: DataFrame, by: Mapping[str, str], columns: Mapping[str, str]) -> DataFrame:
    """Group rows by the columns `by`, and add the aggregates `columns`; each is a name and an SQL expression."""
    groups: Any = df._jdf.groupBy(_of_sql(df, by))
    aggregates = _of_sql(df, columns)
    return DataFrame(groups.agg(aggregates.head(), aggregates.tail()), df.sparkSession)


def select(df: DataFrame, columns: Any) -> DataFrame:
    """Select the JVM's columns."""
    return DataFrame(df._jdf.select(columns), df.sparkSession)


def columns_of(df: DataFrame) -> Any:
    """Return a DataFrame's columns, by their names, as the JVM's columns."""
    names = tuple(df.columns)
    return _cached(df, names, lambda: [F.col(quoted(name)) for name in names])


def to_java_columns(df: DataFrame, *columns: Column) -> Any:
    """Return columns as arguments of the JVM's DataFrame methods."""
    return df._jcols(*columns)  # type: ignore[operator]


def _of_sql(df: DataFrame, columns: Mapping[str, str]) -> Any:
    # Plain columns are passed by name, not as SQL, in which some settings resolve a name to another column. They have
    # no alias: a column with an alias would be a new column.
    return _cached(
        df,
        tuple(columns.items()),
        lambda: [F.col(sql) if sql == quoted(name) else F.expr(sql).alias(name) for name, sql in columns.items()],
    )


def _cached(df: DataFrame, key: Hashable, make: Callable[[], list[Column]]) -> Any:
    context: Any = df.sparkSession.sparkContext
    cache = _cache.setdefault(context._gateway, {})
    columns = cache.get(key)
    if columns is None:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        columns = cache[key] = to_java_columns(df, *make())
    return columns
