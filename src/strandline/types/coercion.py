"""Coercion of users' values to the one Python form of their type, for state and output rows."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

import numpy as np

from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.records import Record, record_type

Coercion = Callable[[Any], Any]

EXACT_DECIMALS = Context(prec=100, Emax=999_999, Emin=-999_999, traps=[Inexact, InvalidOperation])
"""A context that moves the point of a decimal and never rounds."""
_FLOAT32 = struct.Struct("<f")


class MisfitError(Exception):
    """A value does not fit a type. Callers convert it to an error that names the state or column."""

    def __init__(self, expected: str, value: Any, why: str = "") -> None:
        super().__init__(expected, value, why)
        self.expected = expected
        self.value = value
        self.why = why
        self.path = ""

    def within(self, part: str) -> MisfitError:
        """Prefix the path with the part of the outer value that holds the misfit."""
        self.path = part + self.path
        return self

    def __str__(self) -> str:
        at = f" at {self.path}" if self.path else ""
        why = f": {self.why}" if self.why else ""
        return f"expected {self.expected}{at}, got {short_repr(self.value)} ({type(self.value).__name__}){why}"


def short_repr(value: Any) -> str:
    """Return the repr of a value for an error message, cut off after 200 characters."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= 200 else text[:200] + "…"


def coercion(kind: DataType, *, hashable: bool = False) -> Coercion:
    """Return the function that checks and normalises one value (never None), or raises MisfitError.

    With `hashable`, arrays become tuples, as in the keys of a map.
    """
    if isinstance(kind, IntegralType):
        return _integral(kind)
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, ArrayType):
        return _array(kind, hashable)
    if isinstance(kind, MapType):
        return _map(kind)
    if isinstance(kind, StructType):
        return _struct(kind, hashable)
    return _SCALARS[type(kind)]


def _integral(kind: IntegralType) -> Coercion:
    limit = 1 << (8 * kind.width - 1)
    ddl = kind.ddl

    def coerce(value: Any) -> Any:
        if type(value) is not int:
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise MisfitError(ddl, value, _integer_hint(value))
            value = int(value)
        if not -limit <= value < limit:
            raise MisfitError(ddl, value, f"the range is {-limit} to {limit - 1}")
        return value

    return coerce


def _integer_hint(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "a boolean is no number here"
    return "convert it with int() or round()" if isinstance(value, float | np.floating | Decimal) else ""


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise MisfitError("boolean", value)
    return bool(value)


def _double(value: Any) -> float:
    return value if type(value) is float else _to_float(value, "double")


def _float(value: Any) -> float:
    number = _to_float(value, "float")
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    except OverflowError as error:
        raise MisfitError("float", value, "too large for 32 bits; declare it as double") from error
    return rounded


def _to_float(value: Any, ddl: str) -> float:
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise MisfitError(ddl, value, "convert it with float()" if isinstance(value, Decimal) else "")
    try:
        return float(value)
    except OverflowError as error:
        raise MisfitError(ddl, value, "too large") from error


def _string(value: Any) -> Any:
    if type(value) is not str:
        if not isinstance(value, str):
            raise MisfitError("string", value, "decode it first" if isinstance(value, bytes) else "")
        value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MisfitError("string", value, "it holds half a surrogate pair, which is no text") from error
    return value


def _binary(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise MisfitError("binary", value, "encode it first" if isinstance(value, str) else "")
    return bytes(value)


def _date(value: Any) -> dt.date:
    if type(value) is dt.date:
        return value
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise MisfitError("date", value, "take its .date()" if isinstance(value, dt.datetime) else "")
    return dt.date(value.year, value.month, value.day)


def _timestamp(value: Any) -> dt.datetime:
    if type(value) is dt.datetime and value.tzinfo is dt.UTC:
        return value
    if not isinstance(value, dt.datetime):
        raise MisfitError("timestamp", value, "give a datetime with a time zone")
    try:
        offset = value.utcoffset()
    except Exception as error:
        # pandas' NaT has no offset, and a user's tzinfo may raise anything.
        raise MisfitError("timestamp", value, "it is not a valid time") from error
    if offset is None:
        raise MisfitError(
            "timestamp", value, "it has no time zone; give an aware datetime, like datetime.now(timezone.utc), "
            "or declare timestamp_ntz",
        )  # fmt: skip
    try:
        value = value.astimezone(dt.UTC)
    except OverflowError as error:
        raise MisfitError("timestamp", value, "in UTC it lies outside the years 1 to 9999") from error
    return _plain_datetime(value, "timestamp")


def _timestamp_ntz(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise MisfitError("timestamp_ntz", value, "give a datetime without a time zone")
    if value.tzinfo is not None:
        raise MisfitError("timestamp_ntz", value, "it has a time zone; declare timestamp, or drop the zone")
    return value if type(value) is dt.datetime and not value.fold else _plain_datetime(value, "timestamp_ntz")


def _plain_datetime(value: Any, ddl: str) -> dt.datetime:
    # A subclass such as pandas' may hold what a datetime cannot.
    try:
        plain = dt.datetime(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.tzinfo
        )
    except (TypeError, ValueError) as error:
        raise MisfitError(ddl, value, "it is not a valid time") from error
    if getattr(value, "nanosecond", 0):
        raise MisfitError(ddl, value, "it has nanoseconds; round it to microseconds")
    return plain


def _decimal(kind: DecimalType) -> Coercion:
    step = Decimal((0, (1,), -kind.scale))
    limit = Decimal((0, (1,), kind.precision - kind.scale))
    ddl = kind.ddl

    def coerce(value: Any) -> Any:
        if not isinstance(value, Decimal):
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise MisfitError(ddl, value, "give a Decimal, made from text" if isinstance(value, float) else "")
            value = Decimal(int(value))
        try:
            exact = value.quantize(step, context=EXACT_DECIMALS)
        except DecimalException as error:
            raise MisfitError(ddl, value, f"it is not exact with {kind.scale} digits after the point") from error
        if not exact.is_finite():
            raise MisfitError(ddl, value, "it is no finite number")
        if not -limit < exact < limit:
            raise MisfitError(ddl, value, f"it has more than {kind.precision - kind.scale} digits before the point")
        return exact if exact else abs(exact)

    return coerce


def _array(kind: ArrayType, hashable: bool) -> Coercion:
    element, ddl = coercion(kind.element, hashable=hashable), kind.ddl
    make: type[list[Any]] | type[tuple[Any, ...]] = tuple if hashable else list
    fits = _all_exact(kind.element)

    def coerce(value: Any) -> Any:
        if type(value) is list and fits(value):
            return make(value)
        is_scalar = isinstance(value, np.ndarray) and not value.ndim
        if not isinstance(value, list | tuple | np.ndarray) or isinstance(value, Record) or is_scalar:
            raise MisfitError(ddl, value, "give a list")
        try:
            return make([None if each is None else element(each) for each in value])
        except MisfitError:
            raise _misfit_among((f"[{index}]", element, each) for index, each in enumerate(value)) from None

    return coerce


def _misfit_among(parts: Iterable[tuple[str, Coercion, Any]]) -> MisfitError:
    """Return the first misfit among the parts of a value: triples of the place, the coercion and the part."""
    for place, coerce, part in parts:
        try:
            if part is not None:
                coerce(part)
        except MisfitError as misfit:
            return misfit.within(place)
    raise AssertionError("a value that did not fit now fits: does another thread change it?")


def _map(kind: MapType) -> Coercion:
    coerce_key, coerce_value, ddl = coercion(kind.key, hashable=True), coercion(kind.value), kind.ddl
    keys_fit, values_fit = _all_exact(kind.key), _all_exact(kind.value)

    def coerce(value: Any) -> dict[Any, Any]:
        if type(value) is dict and keys_fit(value) and values_fit(value.values()):
            return dict(value)
        if not isinstance(value, Mapping):
            raise MisfitError(ddl, value, "give a dict")
        try:
            return {coerce_key(k): None if v is None else coerce_value(v) for k, v in value.items()}
        except MisfitError:
            raise _misfit_among(parts_of(value)) from None

    def parts_of(value: Mapping[Any, Any]) -> Iterator[tuple[str, Coercion, Any]]:
        for k, v in value.items():
            if k is None:
                raise MisfitError(kind.key.ddl, k, "the keys of a map are never null").within(".keys()")
            yield ".keys()", coerce_key, k
            yield f"[{short_repr(k)}]", coerce_value, v

    return coerce


def _struct(kind: StructType, hashable: bool) -> Coercion:
    names, ddl = kind.names, kind.ddl
    coercions = [coercion(field.type, hashable=hashable) for field in kind.fields]
    record = record_type(names)
    make = record._make

    def coerce(value: Any) -> Record:
        values = value if type(value) is record or type(value) is tuple else struct_parts(value, names, ddl)
        if len(values) != len(names):
            raise MisfitError(ddl, value, f"it has {len(values)} values for {len(names)} fields")
        try:
            return make([None if v is None else coerce(v) for coerce, v in zip(coercions, values, strict=True)])
        except MisfitError:
            raise _misfit_among(zip(map(".{}".format, names), coercions, values, strict=True)) from None

    return _with_fast_path(kind, record, coerce)


def struct_parts(value: Any, names: tuple[str, ...], ddl: str) -> Sequence[Any]:
    """Return the values of a dict, a tuple, a list, a Spark Row or a Record, in the order of `names`."""
    if isinstance(value, Mapping):
        _check_names(value, value.keys(), names, ddl)
        return [value[name] for name in names]
    if isinstance(value, tuple):
        # A named Row has __fields__, a Record or namedtuple has _fields: names take precedence over positions.
        value_names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
        if value_names is not None and tuple(value_names) != names:
            _check_names(value, value_names, names, ddl)
            by_name = dict(zip(value_names, tuple(value), strict=True))
            return [by_name[name] for name in names]
        return value
    if isinstance(value, list):
        return value
    raise MisfitError(ddl, value, "give a dict, a tuple or a Record")


def _check_names(value: Any, value_names: Any, names: tuple[str, ...], ddl: str) -> None:
    missing = [name for name in names if name not in value_names]
    unknown = [str(name) for name in value_names if name not in names]
    if missing or unknown:
        parts = [f"{verb} {', '.join(n)}" for verb, n in (("it misses", missing), ("it has unknown", unknown)) if n]
        raise MisfitError(ddl, value, " and ".join(parts))


def _with_fast_path(kind: StructType, record: type[Record], slow: Coercion) -> Coercion:
    """Return `slow` with a fast path for the common case: a tuple whose values are all exact, and need no coercion.

    The fast path is generated code: a loop over the fields is several times as slow, and every assignment runs it.
    """
    tests = [_exact_test(field.type, f"v{i}") for i, field in enumerate(kind.fields)]
    if not all(tests):
        return slow
    parts = ", ".join(f"v{i}" for i in range(len(tests)))
    source = (
        "def coerce(value):\n"
        "    t = type(value)\n"
        f"    if (t is record or t is tuple) and len(value) == {len(tests)}:\n"
        f"        {parts}, = value\n"
        f"        if {' and '.join(tests)}:\n"
        "            return value if t is record else make(value)\n"
        "    return slow(value)\n"
    )
    names: dict[str, Any] = {
        "record": record,
        "make": record._make,
        "slow": slow,
        "date": dt.date,
        "datetime": dt.datetime,
        "UTC": dt.UTC,
    }
    exec(source, names)  # The source contains only positions, type names and limits, no text of users.
    coerce: Coercion = names["coerce"]
    return coerce


def _all_exact(kind: DataType) -> Callable[[Collection[Any]], bool]:
    """Return the function that tests whether all values of a collection are exact, without a Python step for each."""
    if isinstance(kind, IntegralType):
        limit = 1 << (8 * kind.width - 1)
        return lambda values: (
            not set(map(type, values)) - {int} and (not values or (-limit <= min(values) and max(values) < limit))
        )
    if isinstance(kind, StringType):
        return lambda values: not set(map(type, values)) - {str} and "".join(values).isascii()
    exact = kind.exact
    return lambda values: exact is not None and not set(map(type, values)) - {exact}


def _exact_test(kind: DataType, name: str) -> str:
    """Return the source of the test whether the variable `name` is exact; empty if only coercion can tell."""
    if isinstance(kind, TimestampType):
        return f"type({name}) is datetime and {name}.tzinfo is UTC"
    if isinstance(kind, TimestampNTZType):
        return f"type({name}) is datetime and {name}.tzinfo is None and not {name}.fold"
    if kind.exact is None:
        return ""
    test = f"type({name}) is {kind.exact.__name__}"
    if isinstance(kind, IntegralType):
        limit = 1 << (8 * kind.width - 1)
        test += f" and {-limit} <= {name} < {limit}"
    return f"{test} and {name}.isascii()" if kind.exact is str else test


_SCALARS: dict[type[DataType], Coercion] = {
    BooleanType: _boolean,
    FloatType: _float,
    DoubleType: _double,
    StringType: _string,
    BinaryType: _binary,
    DateType: _date,
    TimestampType: _timestamp,
    TimestampNTZType: _timestamp_ntz,
}
