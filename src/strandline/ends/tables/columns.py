"""The check of a job's columns against a table's: types, new columns, and the columns of the key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from strandline.core.errors import ConfigurationError
from strandline.ends.arguments import NULL_KEYS


def fit_columns(
    where: str, rows: pa.Schema, table: pa.Schema, *, key: Sequence[str] = (), may_add: bool = False
) -> tuple[pa.Schema, list[pa.Field]]:
    """Return the job's columns in the table's types, and those that the table does not have.

    Raises ConfigurationError with all misfits. With `may_add`, new columns are allowed.
    """
    misfits, columns, new = [], [], []
    existing = {column.name: column for column in table}
    folded = {column.name.lower(): column.name for column in table}
    for column in rows:
        wanted = existing.get(column.name)
        if wanted is None and column.name.lower() in folded:
            misfits.append(
                f"column '{column.name}' differs from the table's '{folded[column.name.lower()]}' only in case"
            )
        elif wanted is None:
            new.append(pa.field(column.name, plain_type(column.type)))
        elif not fits(column.type, wanted.type):
            types = f"the job gives {plain_type(column.type)}, the table has {plain_type(wanted.type)}"
            misfits.append(f"column '{column.name}': {types}")
        else:
            columns.append(pa.field(column.name, plain_type(wanted.type), wanted.nullable and column.name not in key))
    if new and not may_add:
        misfits.append(f"new columns that the table does not have: {', '.join(column.name for column in new)}")
    missing = [column.name for column in table if not column.nullable and column.name not in rows.names]
    if missing:
        misfits.append(f"the table takes no null in {', '.join(missing)}, which the rows do not have")
    if misfits:
        raise ConfigurationError(
            f"{where}: the rows do not fit: {'; '.join(misfits)}",
            hint="select and cast the columns before the sink"
            + ("; or new_columns='add' to have new ones added to the table" if new and not may_add else ""),
        )
    return pa.schema([*columns, *(pa.field(c.name, c.type, c.name not in key) for c in new)]), new


def check_names(where: str, what: str, names: Iterable[str], rows: pa.Schema) -> None:
    """Raise ConfigurationError unless the rows have all of these columns."""
    for name in names:
        if name not in rows.names:
            raise ConfigurationError(
                f"{where}: {what} names column '{name}', which the rows do not have", hint=f"one of {rows.names}"
            )


def check_key(where: str, key: Sequence[str], rows: pa.Schema) -> None:
    """Raise ConfigurationError for a column of the key that is missing, or of a type without a clear equality."""
    check_names(where, "key", key, rows)
    for name in key:
        kind = rows.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise ConfigurationError(
                f"{where}: column '{name}' of the key is {kind}, expected numbers without fraction, text, bytes, "
                "booleans, dates or times",
                hint="cast it, or choose another key",
            )


def check_marker(where: str, name: str, rows: pa.Schema) -> None:
    """Raise ConfigurationError unless the rows have this column, and it is a boolean."""
    check_names(where, "delete", [name], rows)
    if not pa.types.is_boolean(rows.field(name).type):
        raise ConfigurationError(f"{where}: delete='{name}' is {rows.field(name).type}, expected a boolean")


def check_nullable(where: str, nullable: Iterable[str], table: pa.Schema) -> None:
    """Raise ConfigurationError for a column of the key that may be null, and may not in the table."""
    for name in nullable:
        if not table.field(name).nullable:
            raise ConfigurationError(
                f"{where}: '{name}' is part of the key and may be null, and the table's column takes no nulls",
                hint=f"{NULL_KEYS.format(name)}; or allow nulls in the table's column",
            )


def without(columns: pa.Schema, name: str | None) -> pa.Schema:
    """Return the columns without one."""
    return pa.schema([column for column in columns if column.name != name])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the one type that tables have for all of Arrow's layouts of the same values; times in UTC."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, plain_type(inner.type), inner.nullable) for inner in kind.fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    return kind


def fits(kind: pa.DataType, table: pa.DataType) -> bool:
    """Whether a table's type holds every value of the other type."""
    kind, table = plain_type(kind), plain_type(table)
    if pa.types.is_struct(kind) and pa.types.is_struct(table):
        inner = {child.name: child.type for child in table.fields}
        return [child.name for child in kind.fields] == list(inner) and all(
            fits(child.type, inner[child.name]) for child in kind.fields
        )
    if pa.types.is_list(kind) and pa.types.is_list(table):
        return fits(kind.value_type, table.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(table):
        return fits(kind.key_type, table.key_type) and fits(kind.item_type, table.item_type)
    if pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(table):
        return bool(kind.bit_width <= table.bit_width)
    if pa.types.is_floating(kind) and pa.types.is_floating(table):
        return bool(kind.bit_width <= table.bit_width)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(table):
        return bool(kind.scale <= table.scale and kind.precision - kind.scale <= table.precision - table.scale)
    return bool(kind.equals(table))
