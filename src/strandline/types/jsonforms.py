"""Conversion of values to and from JSON, and from plain text of a known type."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from strandline.types.coercion import MisfitError
from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.records import Record

_TEXTS = (StringType, BinaryType, DateType, TimestampType, TimestampNTZType, DecimalType)


def from_text(text: str, kind: DataType) -> Any:
    """Return the value of a text, which is JSON, but without quotes if JSON would have them; raise MisfitError.

    >>> from strandline.types.datatypes import parse_type
    >>> from_text("ann", parse_type("string")), from_text("17", parse_type("bigint"))
    ('ann', 17)
    """
    if isinstance(kind, _TEXTS):
        return from_json(text, kind)
    try:
        value = json.loads(text)
    except ValueError:
        raise MisfitError(f"a {kind.ddl} as JSON", text) from None
    return from_json(value, kind)


def from_json(value: Any, kind: DataType) -> Any:
    """Return the value of a JSON value, which still needs coercion; raise MisfitError.

    Times and dates are in ISO 8601, times without a zone in UTC; binary is in base64.
    """
    if isinstance(kind, StructType) and isinstance(value, Mapping):
        types = dict(zip(kind.names, (field.type for field in kind.fields), strict=True))
        return {name: from_json(part, types[name]) if name in types else part for name, part in value.items()}
    if isinstance(kind, StructType) and isinstance(value, list) and len(value) == len(kind.fields):
        return tuple(from_json(part, field.type) for part, field in zip(value, kind.fields, strict=True))
    if isinstance(kind, ArrayType) and isinstance(value, list):
        return [from_json(part, kind.element) for part in value]
    if isinstance(kind, FloatType | DoubleType) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, DecimalType) and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return Decimal(str(value))
        except InvalidOperation:
            raise MisfitError(f"a {kind.ddl}", value) from None
    if isinstance(value, str):
        return _from_text(value, kind)
    return value


def _from_text(text: str, kind: DataType) -> Any:
    try:
        if isinstance(kind, BinaryType):
            return base64.b64decode(text, validate=True)
        if isinstance(kind, DateType):
            return dt.date.fromisoformat(text)
        if isinstance(kind, TimestampType | TimestampNTZType):
            time = dt.datetime.fromisoformat(text)
            if isinstance(kind, TimestampNTZType):
                return time
            return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
    except (ValueError, binascii.Error):
        form = "base64" if isinstance(kind, BinaryType) else "ISO 8601"
        raise MisfitError(f"a {kind.ddl} in {form}", text) from None
    return text


def to_json(value: Any) -> Any:
    """Return a value that json.dumps accepts; maps with keys other than strings become lists of pairs.

    >>> from strandline.types.records import record_type
    >>> to_json({"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "of": record_type(["a", "b"])._make((1, b"x"))})
    {'at': '2026-01-01T00:00:00+00:00', 'of': {'a': 1, 'b': 'eA=='}}
    """
    if isinstance(value, Record):
        return {name: to_json(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(part) for key, part in value.items()}
        return [[to_json(key), to_json(part)] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return value
