"""Arrow columns and Python values, in exactly the Python forms that state has, and without silent conversions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import ConfigurationError, CorruptionError, OutputError, StateTypeError, UserCodeError
from strandline.types.coercion import MisfitError, coercion, shown
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
_TEMPORAL = (DateType, TimestampType, TimestampNTZType)


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark and we use for a type."""
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
    """Return the type of an Arrow column; raise ConfigurationError for one that Spark has no type for."""
    found = _FROM_ARROW.get(arrow)
    if found is not None:
        return found
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
    """Return an Arrow array in the one Arrow type of `kind`: other zones, units and widths are cast if nothing is lost.

    Raises StateTypeError if values would change.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    wanted = to_arrow_type(kind)
    if array.type == wanted:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    why = ""
    if _may_cast(from_arrow_type(array.type), kind):
        try:
            return array.cast(wanted)
        except pa.ArrowException as error:
            why = f": {error}"
    raise StateTypeError(
        f"expected an Arrow column of {kind.ddl} ({wanted}), got {array.type}{why}",
        hint=_to_fit(array.type, kind),
        expected=kind.ddl,
        actual=str(array.type),
        why=why,
    )


def _to_fit(given: pa.DataType, kind: DataType) -> str:
    """Return what to do about a column of another type: of times, what their units and zones are taken for."""
    if isinstance(kind, TimestampType):
        if pa.types.is_timestamp(given) and given.tz is not None:
            return (
                "timestamps are in microseconds: column.cast(pa.timestamp('us', 'UTC'), safe=False) cuts off the rest"
            )
        if pa.types.is_timestamp(given):
            return "it has no time zone: pc.assume_timezone(column, 'UTC') gives it one; or declare timestamp_ntz"
        if pa.types.is_integer(given):
            return "numbers have no unit: column.cast(pa.timestamp('us', 'UTC')) takes them for microseconds since 1970"
    if isinstance(kind, TimestampNTZType) and pa.types.is_timestamp(given):
        if given.tz is not None:
            return "it has a time zone: declare timestamp, or cast it to pa.timestamp('us') for what clocks show in UTC"
        return "timestamps are in microseconds: column.cast(pa.timestamp('us'), safe=False) cuts off the rest"
    if isinstance(kind, IntegralType) and pa.types.is_floating(given):
        return f"say how to round: pc.round(column).cast('{to_arrow_type(kind)}')"
    return "cast the column to the declared type"


def _may_cast(given: DataType, wanted: DataType) -> bool:
    if given == wanted or (isinstance(given, IntegralType) and isinstance(wanted, IntegralType | DoubleType)):
        return True
    return isinstance(given, FloatType) and isinstance(wanted, DoubleType)


# -- Arrow to Python


def to_python(array: pa.Array | pa.ChunkedArray, kind: DataType) -> list[Any]:
    """Return a column as Python values: None for null, Records for structs, dicts for maps, aware datetimes in UTC.

    Raises StateTypeError if the column is of another type, UserCodeError if it holds what Python has no value for.
    """
    try:
        return _to_python(array, kind, False)
    except (CorruptionError, UnicodeDecodeError) as error:
        # Nothing is damaged: the rows are so, and come again.
        raise _unreadable(error) from error


def _to_python(array: pa.Array | pa.ChunkedArray, kind: DataType, hashable: bool) -> list[Any]:
    array = conform(array, kind)
    if isinstance(kind, ArrayType | MapType):
        return _parted(array, kind, hashable)
    if isinstance(kind, StructType):
        # Only what is there: of the halves of a pair, the inputs of two streams' functions, one is always null.
        there = array.drop_null() if array.null_count else array
        children = [_to_python(c, f.type, hashable) for c, f in zip(there.flatten(), kind.fields, strict=True)]
        found: list[Any] = list(map(record_type(kind.names)._make, zip(*children, strict=True)))
        return _among_nulls(found, array) if array.null_count else found
    if isinstance(kind, StringType | BinaryType | DecimalType):
        texts: list[Any] = array.to_pylist()
        return texts
    return _with_nulls(FIXED_SCALARS[kind].from_numbers(arrow_numbers(array, kind)), array)


def _parted(array: pa.Array, kind: ArrayType | MapType, hashable: bool) -> list[Any]:
    if not len(array):
        return []
    bounds = array.offsets.to_numpy()
    first, last = int(bounds[0]), int(bounds[-1])
    bounds = (bounds - first).tolist()

    def part(child: pa.Array, of: DataType, as_key: bool) -> list[Any]:
        return _to_python(child.slice(first, last - first), of, as_key)

    found: list[Any]
    if isinstance(kind, MapType):
        keys, values = part(array.keys, kind.key, True), part(array.items, kind.value, False)
        found = [dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in pairwise(bounds)]
    else:
        elements = part(array.values, kind.element, hashable)
        found = [elements[a:b] for a, b in pairwise(bounds)]
        if hashable:
            found = list(map(tuple, found))
    return _with_nulls(found, array)


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def _among_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Return the values that are there in their rows, None in all others."""
    rest = iter(values)
    return [next(rest) if valid else None for valid in array.is_valid().to_pylist()]


def arrow_numbers(array: pa.Array, kind: DataType) -> Numbers:
    """Return the numbers of a fixed-width Arrow column, which conforms to `kind`; zero where null."""
    if isinstance(kind, _TEMPORAL):
        array = array.view(pa.int32() if isinstance(kind, DateType) else pa.int64())
    if array.null_count:
        array = array.fill_null(False if isinstance(kind, BooleanType) else 0)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def numbers_to_arrow(numbers: Numbers, kind: DataType, absent: Numbers | None = None) -> pa.Array:
    """Return the Arrow column of a fixed-width type; null where `absent`."""
    array = pa.array(np.ascontiguousarray(numbers), mask=absent)
    return array.view(to_arrow_type(kind)) if isinstance(kind, _TEMPORAL) else array


# -- what Spark's types hold and Python's do not


def check_readable(array: pa.Array, kind: DataType) -> None:
    """Raise UserCodeError if a column that conforms to `kind` holds a string or a moment that Python has no value for.

    Spark takes any bytes for a string, and its calendar goes beyond the years 1 to 9999.
    """
    if isinstance(kind, StringType):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            to_python(array, kind)
    elif isinstance(kind, _TEMPORAL):
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
        f"the string {shown(error.object)} is no UTF-8: {error.reason} at byte {error.start}",
        hint='drop such rows before key_by, as with where("is_valid_utf8(column)"), mend them with '
        "make_valid_utf8(column), or let on_error decide",
    )


def to_readable(array: pa.Array, kind: DataType) -> list[Any]:
    """Return a column as `to_python` does; bytes and numbers where Python has no value for a string or a moment."""
    plain = _plain_type(kind)
    values = to_python(conform(array, kind).view(to_arrow_type(plain)), plain)
    return [_read(value, kind) for value in values]


def readable_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows of whatever types as dicts, with what `to_readable` gives where Python has no value."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (UnicodeDecodeError, ValueError, OverflowError):
            columns[name] = to_readable(column, from_arrow_type(column.type))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain_type(kind: DataType) -> DataType:
    """Return the type of what stands for the values of a type: bytes for strings, numbers for moments."""
    if isinstance(kind, StringType):
        return BinaryType()
    if isinstance(kind, _TEMPORAL):
        return IntegerType() if isinstance(kind, DateType) else LongType()
    if isinstance(kind, ArrayType):
        return ArrayType(_plain_type(kind.element))
    if isinstance(kind, MapType):
        return MapType(_plain_type(kind.key), _plain_type(kind.value))
    if isinstance(kind, StructType):
        return StructType(tuple(Field(field.name, _plain_type(field.type)) for field in kind.fields))
    return kind


def _read(value: Any, kind: DataType) -> Any:
    """Return the value that bytes or a number stand for, or these if there is none."""
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
        from_number = FIXED_SCALARS[kind].from_number if isinstance(kind, _TEMPORAL) else None
        return value if from_number is None else from_number(value)
    except (CorruptionError, UnicodeDecodeError):
        return value


# -- Python to Arrow


def from_python(values: list[Any], kind: DataType, column: str) -> pa.Array:
    """Return a column of Python values, which may be whatever coercion to the type accepts; None for null.

    Raises OutputError, with fields column, expected, actual and index, at the first value that would have to change.
    """
    if _is_exact(values, kind):
        try:
            return pa.array(values, to_arrow_type(kind))
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            pass  # Below, the value that it was is found, or the coercion makes it fit.
    one = coercion(kind)
    fitting: list[Any] = []
    for index, value in enumerate(values):
        try:
            fitting.append(None if value is None else one(value))
        except Exception as error:
            # A list or a mapping of the user's own may raise what it likes.
            misfit = error if isinstance(error, MisfitError) else f"it raised {type(error).__name__}"
            raise OutputError(
                f"the output column '{column}' is {kind.ddl}, and row {index} of the batch does not fit: {misfit}",
                hint="make the value fit, or change the column's type in `output` of process()",
                column=column,
                expected=kind.ddl,
                actual=f"{shown(value)} ({type(value).__name__})",
                index=index,
            ) from None
    return build(fitting, kind)


def _is_exact(values: list[Any], kind: DataType) -> bool:
    # Of values of exactly these classes, pyarrow keeps each or raises. Among others it takes True for 1, 1.0 for 1,
    # a datetime for its date, a naive datetime for one in UTC, and rounds to 32 bits silently.
    return kind.exact is not None and set(map(type, values)) <= {kind.exact, type(None)}


def build(values: list[Any], kind: DataType) -> pa.Array:
    """Return the Arrow column of values that are in our own Python forms already."""
    absent = np.fromiter((v is None for v in values), bool, len(values)) if None in values else None
    if isinstance(kind, StructType):
        return _build_struct(values, kind, absent)
    if isinstance(kind, ArrayType | MapType):
        return _build_parted(values, kind, absent)
    if isinstance(kind, TimestampType | TimestampNTZType):
        scalar = FIXED_SCALARS[kind]
        filled = values if absent is None else [scalar.zero if v is None else v for v in values]
        return numbers_to_arrow(scalar.to_numbers(filled), kind, absent)
    return pa.array(values, to_arrow_type(kind))


def _build_struct(values: list[Any], kind: StructType, absent: Numbers | None) -> pa.Array:
    nothing = (None,) * len(kind.fields)
    rows = values if absent is None else [nothing if v is None else v for v in values]
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(kind.fields)
    return pa.StructArray.from_arrays(
        [build(list(column), field.type) for column, field in zip(columns, kind.fields, strict=True)],
        fields=list(to_arrow_type(kind)),
        mask=None if absent is None else pa.array(absent),
    )


def _build_parted(values: list[Any], kind: ArrayType | MapType, absent: Numbers | None) -> pa.Array:
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if v is None else len(v) for v in values], out=bounds[1:])
    # A null offset makes the entry that begins there null.
    nulls = None if absent is None else np.append(absent, False)
    offsets = pa.array(bounds.astype(np.int32), mask=nulls)
    present = [v for v in values if v is not None]
    if isinstance(kind, MapType):
        keys = build([k for v in present for k in v], kind.key)
        items = build([item for v in present for item in v.values()], kind.value)
        return pa.MapArray.from_arrays(offsets, keys, items)
    return pa.ListArray.from_arrays(offsets, build([element for v in present for element in v], kind.element))
