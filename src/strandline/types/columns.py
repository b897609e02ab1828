"""Conversion between Arrow columns and the Python forms of values, without silent changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import ConfigurationError, CorruptionError, OutputError, StateTypeError, UserCodeError
from strandline.types.coercion import MisfitError, coercion, short_repr
from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.records import record_type
from strandline.types.scalars import FIXED_SCALARS, Numbers, check_range

_TO_ARROW: dict[DataType, pa.DataType] = {
    BooleanType(): pa.bool_(),
    ByteType(): pa.int8(),
    ShortType(): pa.int16(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    FloatType(): pa.float32(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    BinaryType(): pa.binary(),
    DateType(): pa.date32(),
    TimestampType(): pa.timestamp("us", "UTC"),
    TimestampNTZType(): pa.timestamp("us"),
}
_FROM_ARROW: dict[pa.DataType, DataType] = {
    **{arrow: ours for ours, arrow in _TO_ARROW.items()},
    pa.large_string(): StringType(),
    pa.string_view(): StringType(),
    pa.large_binary(): BinaryType(),
    pa.binary_view(): BinaryType(),
}
TEMPORAL = (DateType, TimestampType, TimestampNTZType)
ToPython = Callable[[pa.Array, DataType, bool], list[Any]]
"""From a column to values, hashable ones if the flag is set."""
ToArrow = Callable[[Sequence[Any], DataType], pa.Array]


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a type, the same as Spark's."""
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ArrayType):
        return pa.list_(to_arrow_type(kind.element))
    if isinstance(kind, MapType):
        return pa.map_(to_arrow_type(kind.key), to_arrow_type(kind.value))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, to_arrow_type(field.type)) for field in kind.fields])
    return _TO_ARROW[kind]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows."""
    return pa.schema([pa.field(field.name, to_arrow_type(field.type)) for field in schema.fields])


def from_arrow_type(arrow: pa.DataType) -> DataType:
    """Return the type of an Arrow column; raise ConfigurationError if Spark has no such type."""
    if arrow in _FROM_ARROW:
        return _FROM_ARROW[arrow]
    if pa.types.is_timestamp(arrow):
        return TimestampNTZType() if arrow.tz is None else TimestampType()
    if pa.types.is_decimal(arrow):
        return DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_map(arrow):
        return MapType(from_arrow_type(arrow.key_type), from_arrow_type(arrow.item_type))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return ArrayType(from_arrow_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return StructType(tuple(Field(field.name, from_arrow_type(field.type)) for field in arrow))
    raise ConfigurationError(
        f"the Arrow type {arrow} has no counterpart among Spark's types that Strandline knows",
        hint="cast the column, for example unsigned integers to bigint and dictionaries to their values",
    )


def conform(array: pa.Array | pa.ChunkedArray, kind: DataType) -> pa.Array:
    """Return an array in the Arrow type of `kind`; cast other time zones, units and widths if that loses nothing.

    Raises StateTypeError if values would change.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    target = to_arrow_type(kind)
    if array.type == target:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    why = ""
    if _may_cast(from_arrow_type(array.type), kind):
        try:
            return array.cast(target)
        except pa.ArrowException as error:
            why = f": {error}"
    raise StateTypeError(
        f"expected an Arrow column of {kind.ddl} ({target}), got {array.type}{why}",
        hint=_cast_hint(array.type, kind),
        expected=kind.ddl,
        actual=str(array.type),
        why=why,
    )


def _cast_hint(actual: pa.DataType, kind: DataType) -> str:
    """Return the hint that tells users how to cast a column of another type."""
    if isinstance(kind, TimestampType):
        if pa.types.is_timestamp(actual) and actual.tz is not None:
            return (
                "timestamps are in microseconds: column.cast(pa.timestamp('us', 'UTC'), safe=False) cuts off the rest"
            )
        if pa.types.is_timestamp(actual):
            return "it has no time zone: pc.assume_timezone(column, 'UTC') gives it one; or declare timestamp_ntz"
        if pa.types.is_integer(actual):
            return "numbers have no unit: column.cast(pa.timestamp('us', 'UTC')) takes them for microseconds since 1970"
    if isinstance(kind, TimestampNTZType) and pa.types.is_timestamp(actual):
        if actual.tz is not None:
            return "it has a time zone: declare timestamp, or cast it to pa.timestamp('us') for what clocks show in UTC"
        return "timestamps are in microseconds: column.cast(pa.timestamp('us'), safe=False) cuts off the rest"
    if isinstance(kind, IntegralType) and pa.types.is_floating(actual):
        return f"say how to round: pc.round(column).cast('{to_arrow_type(kind)}')"
    return "cast the column to the declared type"


def _may_cast(actual: DataType, kind: DataType) -> bool:
    if actual == kind or (isinstance(actual, IntegralType) and isinstance(kind, IntegralType | DoubleType)):
        return True
    return isinstance(actual, FloatType) and isinstance(kind, DoubleType)


# -- Arrow to Python


def to_python(array: pa.Array | pa.ChunkedArray, kind: DataType) -> list[Any]:
    """Return a column as Python values: None for null, Records for structs, dicts for maps, aware datetimes in UTC.

    Raises StateTypeError if the column is of another type, UserCodeError if it holds a value that Python cannot.
    """
    try:
        return _to_python(array, kind, False)
    except (CorruptionError, UnicodeDecodeError) as error:
        # The stored bytes are intact: the user's rows hold these values.
        raise _unreadable(error) from error


def _to_python(array: pa.Array | pa.ChunkedArray, kind: DataType, hashable: bool) -> list[Any]:
    array = conform(array, kind)
    if isinstance(kind, ArrayType | MapType):
        return parts_to_python(array, kind, hashable, _to_python)
    if isinstance(kind, StructType):
        # Skip nulls: in the pairs that are the input of functions on two streams, one half is always null.
        present = array.drop_null() if array.null_count else array
        children = [_to_python(c, f.type, hashable) for c, f in zip(present.flatten(), kind.fields, strict=True)]
        records: list[Any] = list(map(record_type(kind.names)._make, zip(*children, strict=True)))
        return _insert_nulls(records, array) if array.null_count else records
    if isinstance(kind, StringType | BinaryType | DecimalType):
        texts: list[Any] = array.to_pylist()
        return texts
    return set_nulls(FIXED_SCALARS[kind].from_numbers(arrow_numbers(array, kind)), array)


def parts_to_python(array: pa.Array, kind: ArrayType | MapType, hashable: bool, convert: ToPython) -> list[Any]:
    """Return a column of arrays or maps as lists (or tuples) and dicts; `convert` converts its parts."""
    if not len(array):
        return []
    bounds = array.offsets.to_numpy()
    first, last = int(bounds[0]), int(bounds[-1])
    bounds = (bounds - first).tolist()

    def part(child: pa.Array, of: DataType, as_key: bool) -> list[Any]:
        return convert(child.slice(first, last - first), of, as_key)

    rows: list[Any]
    if isinstance(kind, MapType):
        keys, values = part(array.keys, kind.key, True), part(array.items, kind.value, False)
        rows = [dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in pairwise(bounds)]
    else:
        elements = part(array.values, kind.element, hashable)
        rows = [elements[a:b] for a, b in pairwise(bounds)]
        if hashable:
            rows = list(map(tuple, rows))
    return set_nulls(rows, array)


def set_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Set the values of the null rows of a column to None; return the values."""
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _insert_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Return the values, which are those of the valid rows, with None for each null row."""
    rest = iter(values)
    return [next(rest) if valid else None for valid in array.is_valid().to_pylist()]


def arrow_numbers(array: pa.Array, kind: DataType) -> Numbers:
    """Return the numbers of a fixed-width Arrow column, which conforms to `kind`; zero where null."""
    if isinstance(kind, TEMPORAL):
        array = array.view(pa.int32() if isinstance(kind, DateType) else pa.int64())
    if array.null_count:
        array = array.fill_null(False if isinstance(kind, BooleanType) else 0)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def numbers_to_arrow(numbers: Numbers, kind: DataType, absent: Numbers | None = None) -> pa.Array:
    """Return the Arrow column of a fixed-width type; null where `absent`."""
    array = pa.array(np.ascontiguousarray(numbers), mask=absent)
    return array.view(to_arrow_type(kind)) if isinstance(kind, TEMPORAL) else array


# -- values that Spark's types have and Python's do not


def check_readable(array: pa.Array, kind: DataType) -> None:
    """Raise UserCodeError if a column that conforms to `kind` holds a string or a time that Python cannot hold.

    A string of Spark may hold any bytes, and its calendar extends beyond the years 1 to 9999.
    """
    if isinstance(kind, StringType):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            to_python(array, kind)
    elif isinstance(kind, TEMPORAL):
        try:
            check_range(arrow_numbers(array, kind), kind.ddl)
        except CorruptionError as error:
            raise _unreadable(error) from error
    elif isinstance(kind, StructType):
        for child, field in zip(array.flatten(), kind.fields, strict=True):
            check_readable(child, field.type)
    elif isinstance(kind, ArrayType):
        check_readable(array.flatten(), kind.element)
    elif isinstance(kind, MapType) and len(array):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        check_readable(array.keys.slice(start, stop - start), kind.key)
        check_readable(array.items.slice(start, stop - start), kind.value)


def _unreadable(error: CorruptionError | UnicodeDecodeError) -> UserCodeError:
    if isinstance(error, CorruptionError):
        return UserCodeError(error.message, hint=error.hint)
    return UserCodeError(
        f"the string {short_repr(error.object)} is no UTF-8: {error.reason} at byte {error.start}",
        hint='drop such rows before key_by, as with where("is_valid_utf8(column)"), repair them with '
        "make_valid_utf8(column), or let on_error decide",
    )


def to_readable(array: pa.Array, kind: DataType) -> list[Any]:
    """Return a column as `to_python` does, with bytes and numbers for strings and times that Python cannot hold."""
    raw = _raw_type(kind)
    values = to_python(conform(array, kind).view(to_arrow_type(raw)), raw)
    return [_read(value, kind) for value in values]


def readable_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows of any types as dicts, with the results of `to_readable` for values that Python cannot hold."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (UnicodeDecodeError, ValueError, OverflowError):
            columns[name] = to_readable(column, from_arrow_type(column.type))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _raw_type(kind: DataType) -> DataType:
    """Return a type with bytes in place of strings, and integers in place of times."""
    if isinstance(kind, StringType):
        return BinaryType()
    if isinstance(kind, TEMPORAL):
        return IntegerType() if isinstance(kind, DateType) else LongType()
    if isinstance(kind, ArrayType):
        return ArrayType(_raw_type(kind.element))
    if isinstance(kind, MapType):
        return MapType(_raw_type(kind.key), _raw_type(kind.value))
    if isinstance(kind, StructType):
        return StructType(tuple(Field(field.name, _raw_type(field.type)) for field in kind.fields))
    return kind


def _read(value: Any, kind: DataType) -> Any:
    """Return the value of bytes or an integer, or these if Python cannot hold the value."""
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return type(value)([_read(element, kind.element) for element in value])
    if isinstance(kind, MapType):
        return {_read(key, kind.key): _read(item, kind.value) for key, item in value.items()}
    if isinstance(kind, StructType):
        return value._make([_read(part, field.type) for part, field in zip(value, kind.fields, strict=True)])
    try:
        if isinstance(kind, StringType):
            return value.decode()
        from_number = FIXED_SCALARS[kind].from_number if isinstance(kind, TEMPORAL) else None
        return value if from_number is None else from_number(value)
    except (CorruptionError, UnicodeDecodeError):
        return value


# -- Python to Arrow


def from_python(values: Sequence[Any], kind: DataType, column: str) -> pa.Array:
    """Return a column of Python values, which are coerced to the type; None is null.

    Raises OutputError, with fields column, expected, actual and index, for the first value that does not fit.
    """
    if _is_exact(values, kind):
        try:
            return pa.array(values, to_arrow_type(kind))
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            pass  # The loop below coerces the value, or names it in the error.
    coerce = coercion(kind)
    fitting: list[Any] = []
    for index, value in enumerate(values):
        try:
            fitting.append(None if value is None else coerce(value))
        except Exception as error:
            # A user's list or mapping class may raise anything.
            misfit = error if isinstance(error, MisfitError) else f"it raised {type(error).__name__}"
            raise OutputError(
                f"the output column '{column}' is {kind.ddl}, and row {index} of the batch does not fit: {misfit}",
                hint="make the value fit, or change the column's type in `output` of process()",
                column=column,
                expected=kind.ddl,
                actual=f"{short_repr(value)} ({type(value).__name__})",
                index=index,
            ) from None
    return build(fitting, kind)


def _is_exact(values: Sequence[Any], kind: DataType) -> bool:
    # pyarrow keeps values of just these classes, or raises. It converts others silently: True and 1.0 to 1, a datetime
    # to its date, a naive datetime to UTC, a double to 32 bits.
    return kind.exact is not None and set(map(type, values)) <= {kind.exact, type(None)}


def build(values: Sequence[Any], kind: DataType) -> pa.Array:
    """Return the Arrow column of values that are exactly in the Python forms of a type."""
    return assemble(values, kind, _build_scalars)


def _build_scalars(values: Sequence[Any], kind: DataType) -> pa.Array:
    if isinstance(kind, TimestampType | TimestampNTZType):
        absent, scalar = _absent(values), FIXED_SCALARS[kind]
        filled = values if absent is None else [scalar.zero if v is None else v for v in values]
        return numbers_to_arrow(scalar.to_numbers(filled), kind, absent)
    return pa.array(values, to_arrow_type(kind))


def assemble(values: Sequence[Any], kind: DataType, build_scalars: ToArrow) -> pa.Array:
    """Return the Arrow column of values, of which `build_scalars` builds the columns without parts."""
    if not isinstance(kind, StructType | ArrayType | MapType):
        return build_scalars(values, kind)
    absent = _absent(values)
    if isinstance(kind, StructType):
        count = len(kind.fields)
        nothing = (None,) * count
        rows = values if absent is None else [nothing if v is None else v for v in values]
        columns: list[Any] = list(zip(*rows, strict=True)) if len(rows) else [()] * count
        if len(columns) != count:
            raise ValueError(f"it has {len(columns)} fields, expected {count}")
        return pa.StructArray.from_arrays(
            [assemble(column, field.type, build_scalars) for column, field in zip(columns, kind.fields, strict=True)],
            fields=list(to_arrow_type(kind)),
            mask=None if absent is None else pa.array(absent),
        )
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if v is None else len(v) for v in values], out=bounds[1:])
    # A null offset makes the row that begins there null.
    offsets = pa.array(bounds.astype(np.int32), mask=None if absent is None else np.append(absent, False))
    present = values if absent is None else [v for v in values if v is not None]
    parts = list(chain.from_iterable(present))
    if isinstance(kind, MapType):
        items = assemble([item for v in present for item in v.values()], kind.value, build_scalars)
        return pa.MapArray.from_arrays(offsets, assemble(parts, kind.key, build_scalars), items)
    return pa.ListArray.from_arrays(offsets, assemble(parts, kind.element, build_scalars))


def _absent(values: Sequence[Any]) -> Numbers | None:
    return np.fromiter((v is None for v in values), bool, len(values)) if None in values else None
