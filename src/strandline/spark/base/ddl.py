"""Spark's schemas and names as the DDL that the engine reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from strandline.core.errors import ConfigurationError
from strandline.format.keycolumns import key_column
from strandline.spark.base.hidden import visible, without_hidden
from strandline.spark.base.reported import errors_reported
from strandline.types.datatypes import parse_schema, parse_type


def input_schema(probe: DataFrame, where: str) -> str:
    """Return the DDL of a step's input columns."""
    counted = Counter(name.lower() for name in visible(probe.columns))
    twice = [name for name in visible(probe.columns) if counted[name.lower()] > 1]
    if twice:
        raise ConfigurationError(
            f"{where}: the column {', '.join(dict.fromkeys(twice))} is there more than once",
            hint="rename one: Spark does not tell upper from lower case",
        )
    parts = []
    for column in without_hidden(probe).schema.fields:
        parts.append(f"{quoted(column.name)} {ddl_of(column.dataType)}")
    try:
        return parse_schema(", ".join(parts)).ddl
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{where}: a column's type is not supported: {error.message}", hint="cast it, or select other columns"
        ) from None


def check_keys(probe: DataFrame, keys: Sequence[Any], order: Sequence[Any]) -> None:
    """Refuse what key_by() was given: columns that are not there, or twice, or of a type that no key can have."""
    if not keys:
        raise ConfigurationError("key_by() needs at least one column", hint='write key_by("customer")')
    columns = visible(probe.columns)
    for what, names in (("key_by", keys), ("order_by", order)):
        for name in names:
            if not isinstance(name, str):
                raise ConfigurationError(
                    f"{what} was given {name!r}, expected a column's name",
                    hint='compute the column first: .with_column("k", expression).key_by("k")',
                )
            if name not in columns:
                raise ConfigurationError(f"{what}: there is no column '{name}'; the stream has {', '.join(columns)}")
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigurationError(f"key_by: the column '{key}' is given more than once")
        try:
            key_column(parse_type(ddl_of(probe.schema[key].dataType)))
        except ConfigurationError as error:
            raise ConfigurationError(f"key_by: '{key}' cannot be a key: {error.message}", hint=error.hint) from None
    if not order:
        return
    try:
        with errors_reported():
            probe.sortWithinPartitions(*(F.col(quoted(name)) for name in order))
    except AnalysisException as error:
        raise ConfigurationError(
            f"order_by: rows cannot be sorted by {', '.join(order)}: {first_line(error)}",
            hint="order by numbers, strings, times, or arrays and structs of them",
        ) from None


def ddl_of(kind: DataType) -> str:
    """Return a type's DDL with every name quoted, as Spark's own simpleString has not."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(f.name)}: {ddl_of(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    """Return a name as SQL expressions need it: always in quotes, for `null` and `current_date` may be columns."""
    return "`" + name.replace("`", "``") + "`"


def first_line(error: PySparkException) -> str:
    """Return what an error of Spark's says, without the plan behind it."""
    return str(error).strip().splitlines()[0]
