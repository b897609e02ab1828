"""Columns that are made once, and not in every epoch, in which Python would ask the JVM for each of them.

They are without a DataFrame: by names and expressions, so that they are those of any that has what they name. And
without a session: expressions are kept as text, which Spark reads with the settings of the DataFrame's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.plan.columns import quoted

_MOST = 1000
_made: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()
"""For each JVM, by what they are made of."""


def parsed(session: Any, sql: str) -> Column:
    """Return an SQL expression as Spark reads it once, where a column of its text is read again in each DataFrame.

    It is read with the settings of whichever session is active: not for what users write, nor for casts of theirs.
    """
    try:
        found = session._jsparkSession.sessionState().sqlParser().parseExpression(sql)
        return Column(getattr(session._jvm, "org.apache.spark.sql.classic.ExpressionUtils").column(found))
    except Py4JError:
        # Where another Spark has it under another name, it is only slower.
        return F.expr(sql)


def select_sql(df: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """Select columns, which are given by the SQL of what they hold."""
    return select(df, _of_sql(df, columns))


def aggregate_sql(df: DataFrame, by: Mapping[str, str], columns: Mapping[str, str]) -> DataFrame:
    """Group rows by columns, and return them with those that are aggregates."""
    groups: Any = df._jdf.groupBy(_of_sql(df, by))
    made = _of_sql(df, columns)
    return DataFrame(groups.agg(made.head(), made.tail()), df.sparkSession)


def select(df: DataFrame, columns: Any) -> DataFrame:
    """Do what `select` does, with columns as its JVM has them."""
    return DataFrame(df._jdf.select(columns), df.sparkSession)


def columns_of(df: DataFrame) -> Any:
    """Return a DataFrame's columns, by their names, as its JVM has them."""
    names = tuple(df.columns)
    return _once(df, names, lambda: [F.col(quoted(name)) for name in names])


def as_the_jvm_has(df: DataFrame, *columns: Column) -> Any:
    """Return columns as methods of the DataFrame's JVM take them."""
    return df._jcols(*columns)  # type: ignore[operator]


def _of_sql(df: DataFrame, columns: Mapping[str, str]) -> Any:
    # Names are none of SQL's: in that, some settings have them stand for others. Nor is there an "as": each select is
    # to give a column that is no other's.
    return _once(
        df,
        tuple(columns.items()),
        lambda: [F.col(sql) if sql == quoted(name) else F.expr(sql).alias(name) for name, sql in columns.items()],
    )


def _once(df: DataFrame, key: Hashable, make: Callable[[], list[Column]]) -> Any:
    context: Any = df.sparkSession.sparkContext
    known = _made.setdefault(context._gateway, {})
    found = known.get(key)
    if found is None:
        if len(known) >= _MOST:
            known.clear()
        found = known[key] = as_the_jvm_has(df, *make())
    return found
