"""Messages of Kafka as new versions of rows: one without a value deletes the row of its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType, VariantType

from strandline.core.errors import ConfigurationError
from strandline.ends.arguments import check_column, check_columns

_ROW, _IS_GONE = "__strandline_row", "__strandline_gone"
_OF_VALUES = ("mode", "columnnameofcorruptrecord")
"""Options of JSON that are not for keys: one that is plain text is no mistake."""


def versions(
    messages: DataFrame,
    value: str | Column,
    *,
    key: str | Sequence[str],
    deleted: str = "_deleted",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return messages as new versions of rows for `sl.table`: a message without a value deletes the row of its key.

    `value` has the columns: as DDL, they are read from JSON, with Spark's `options` for it; or it is a struct, such as
    from_avro("value", schema). Columns of `key` that a value lacks come from the message's key: JSON with these
    columns, or the text of a single one. The boolean column `deleted` is true for a message without a value; for others
    it is the value's own, if that has one. Messages with neither a value nor a readable key are left out.

    >>> rows = kafka.versions(kafka.read(spark, "one:9092", "customers"), "id bigint, name string", key="id")
    >>> customers = table(stream(rows), key="id", deleted="_deleted")
    """
    what = "kafka.versions()"
    names = check_columns(what, "key", key)
    check_column(what, "deleted", deleted)
    if not names:
        raise ConfigurationError(f"{what}: key is empty", hint="name the columns that identify a row: key='id'")
    row = F.from_json(F.col("value").cast("string"), value, dict(options or {})) if isinstance(value, str) else value
    parsed = messages.select(row.alias(_ROW), "key", F.col("value").isNull().alias(_IS_GONE))
    kind = parsed.schema[_ROW].dataType
    if not isinstance(kind, StructType):
        raise ConfigurationError(
            f"{what}: the value is {kind.simpleString()}, expected the columns of a row",
            hint='write their types, "id bigint, name string", or give a struct, as from_avro("value", schema)',
        )
    if unknown := [name for name in names if name not in kind.names]:
        raise ConfigurationError(f"{what}: key='{unknown[0]}' is no column; the value has {', '.join(kind.names)}")
    of_key = _of_key([kind[name] for name in names], options or {})
    columns = {name: F.col(_ROW).getField(name) for name in kind.names}
    columns |= {name: F.coalesce(columns[name], column) for name, column in of_key.items()}
    columns[deleted] = F.col(_IS_GONE) | F.coalesce(columns.get(deleted, F.lit(None)).cast("boolean"), F.lit(False))
    is_known = reduce(or_, (column.isNotNull() for column in of_key.values()))
    return parsed.where(~F.col(_IS_GONE) | is_known).select(*(each.alias(name) for name, each in columns.items()))


def _of_key(columns: Sequence[StructField], options: Mapping[str, str]) -> dict[str, Column]:
    """Return the values of columns in a message's key: as `sinks.kafka` writes them, or a single one in JSON."""
    text = F.col("key").cast("string")
    kept = {name: option for name, option in options.items() if name.lower() not in _OF_VALUES}
    fields = F.from_json(text, StructType([StructField(each.name, each.dataType) for each in columns]), kept)
    of_json = {each.name: fields.getField(each.name) for each in columns}
    if len(columns) > 1:
        return of_json
    (single,) = columns
    return {single.name: F.coalesce(of_json[single.name], _from_text(text, single.dataType))}


def _from_text(text: Column, kind: DataType) -> Column:
    if isinstance(kind, BinaryType):
        return F.col("key")
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        return F.from_json(text, kind) if not isinstance(kind, VariantType) else F.try_parse_json(text)
    return text if isinstance(kind, StringType) else text.try_cast(kind)
