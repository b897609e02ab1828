"""What a job gives beside what a table has: types that fit, columns that are new, keys that can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from strandline.core.errors import ConfigurationError


def fitting(
    where: str, given: pa.Schema, table: pa.Schema, *, key: Sequence[str] = (), may_add: bool = False
) -> tuple[pa.Schema, list[pa.Field]]:
    """Return the job's columns in the table's types, and those that the table does not have.

    Raises ConfigurationError with everything that does not fit. `may_add` says that new columns are no mistake.
    """
    wrong, columns, new = [], [], []
    there = {column.name: column for column in table}
    folded = {column.name.lower(): column.name for column in table}
    for column in given:
        wanted = there.get(column.name)
        if wanted is None and column.name.lower() in folded:
            wrong.append(
                f"column '{column.name}' differs from the table's '{folded[column.name.lower()]}' only in case"
            )
        elif wanted is None:
            new.append(pa.field(column.name, plain(column.type)))
        elif not fits(column.type, wanted.type):
            types = f"the job gives {plain(column.type)}, the table has {plain(wanted.type)}"
            wrong.append(f"column '{column.name}': {types}")
        else:
            columns.append(pa.field(column.name, plain(wanted.type), wanted.nullable and column.name not in key))
    if new and not may_add:
        wrong.append(f"new columns that the table does not have: {', '.join(column.name for column in new)}")
    missing = [column.name for column in table if not column.nullable and column.name not in given.names]
    if missing:
        wrong.append(f"the table takes no null in {', '.join(missing)}, and the job does not give it")
    if wrong:
        raise ConfigurationError(
            f"{where}: the rows do not fit: {'; '.join(wrong)}",
            hint="select and cast the columns before the sink"
            + ("; or new_columns='add' to have new ones added to the table" if new and not may_add else ""),
        )
    return pa.schema([*columns, *(pa.field(c.name, c.type, c.name not in key) for c in new)]), new


def check_names(where: str, what: str, names: Iterable[str], given: pa.Schema) -> None:
    """Raise ConfigurationError unless the job gives all of these columns."""
    for name in names:
        if name not in given.names:
            raise ConfigurationError(
                f"{where}: {what} names column '{name}', which the rows do not have", hint=f"one of {given.names}"
            )


def check_key(where: str, key: Sequence[str], given: pa.Schema) -> None:
    """Raise ConfigurationError for a key that is not there, or of a type whose values compare in several ways."""
    check_names(where, "key", key, given)
    for name in key:
        kind = given.field(name).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            raise ConfigurationError(
                f"{where}: column '{name}' of the key is {kind}, expected numbers without fraction, text, bytes, "
                "booleans, dates or times",
                hint="cast it, or give another key",
            )


def plain(kind: pa.DataType) -> pa.DataType:
    """Return a type as tables have it: of the ways to lay out the same values, one; times in UTC."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, plain(inner.type), inner.nullable) for inner in kind.fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    return kind


def fits(given: pa.DataType, table: pa.DataType) -> bool:
    """Whether every value of the one type is one of the other."""
    given, table = plain(given), plain(table)
    if pa.types.is_struct(given) and pa.types.is_struct(table):
        inner = {child.name: child.type for child in table.fields}
        return [child.name for child in given.fields] == list(inner) and all(
            fits(child.type, inner[child.name]) for child in given.fields
        )
    if pa.types.is_list(given) and pa.types.is_list(table):
        return fits(given.value_type, table.value_type)
    if pa.types.is_map(given) and pa.types.is_map(table):
        return fits(given.key_type, table.key_type) and fits(given.item_type, table.item_type)
    if pa.types.is_signed_integer(given) and pa.types.is_signed_integer(table):
        return bool(given.bit_width <= table.bit_width)
    if pa.types.is_floating(given) and pa.types.is_floating(table):
        return bool(given.bit_width <= table.bit_width)
    if pa.types.is_decimal(given) and pa.types.is_decimal(table):
        return bool(given.scale <= table.scale and given.precision - given.scale <= table.precision - table.scale)
    return bool(given.equals(table))
