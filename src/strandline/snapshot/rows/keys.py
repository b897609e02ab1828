"""Keys of tables: parsed from text, encoded as the prefix of stored entries, and searched in rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo
from strandline.snapshot.rows.columns import KEY_GROUP, key_fields
from strandline.types.columns import from_python, to_arrow_type, to_python
from strandline.types.datatypes import (
    BinaryType,
    DataType,
    DoubleType,
    Field,
    FloatType,
    StringType,
    StructType,
    parse_schema,
)
from strandline.types.murmur import key_group

_NOT_BY_VALUE = (FloatType, DoubleType, StructType)
"""Types with values that are equal as keys, but not in Arrow."""
_ORDERED = (str, int, bytes)


def key_columns(operator: OperatorInfo) -> list[Field]:
    """Return the key columns of an operator's tables, with their names there."""
    return key_fields(parse_schema(operator.key_schema))


class TableKey:
    """A key of an operator, with its key group and its bytes."""

    def __init__(self, operator: OperatorInfo, key: Any) -> None:
        """`key` is a value, a tuple for several columns, or a mapping with a value for each key column.

        Raises StateTypeError if it is no key of the operator.
        """
        self.columns = key_columns(operator)
        names = [field.name for field in self.columns]
        self._codec = KeyCodec([field.type for field in self.columns])
        several = len(names) > 1
        if isinstance(key, Mapping) and (several or set(key) == set(names)):
            if set(key) != set(names):
                raise StateTypeError(
                    f"operator '{operator.uid}': a key has the columns {', '.join(names)}, got {', '.join(key)}",
                    hint="give a value for each of them",
                )
            key = tuple(key[name] for name in names) if several else key[names[0]]
        coerced = self._codec.coerce(tuple(key) if isinstance(key, list) and several else key)
        self.values: tuple[Any, ...] = coerced if several else (coerced,)
        self.group = key_group(self.values, self._codec.types, operator.max_parallelism)
        self.bytes = self._codec.encode(self.group, coerced)
        """The prefix of the key's entries, and of no others."""

    def among(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of this key among some rows."""
        mask = pc.equal(rows.column(KEY_GROUP), pa.scalar(int(self.group), pa.int32()))
        for field, value in zip(self.columns, self.values, strict=True):
            if not isinstance(field.type, _NOT_BY_VALUE):
                wanted = from_python([value], field.type, field.name)[0]
                mask = pc.and_kleene(mask, pc.equal(rows.column(field.name), wanted))
        if any(isinstance(field.type, _NOT_BY_VALUE) for field in self.columns):
            columns = [rows.column(field.name) for field in self.columns]
            for column in columns:
                mask = pc.and_(mask.fill_null(False), column.is_valid())
            at = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            rows = rows.take(pa.array(at))
            encoded = self._codec.encode_arrow(
                rows.column(KEY_GROUP), [rows.column(field.name) for field in self.columns]
            )
            mask = pa.array([one == self.bytes for one in encoded], pa.bool_())
        return rows.filter(mask)

    def may_be_in(self, parquet: pq.ParquetFile, row_group: int) -> bool:
        """Whether a row group of a table's file may hold rows of this key, by its statistics."""
        group = parquet.metadata.row_group(row_group)
        for index, (field, value) in enumerate(zip(self.columns, self.values, strict=True), 1):
            if isinstance(field.type, StructType):
                # A struct has several columns in the file.
                return True
            statistics = group.column(index).statistics
            if type(value) not in _ORDERED or statistics is None or not statistics.has_min_max:
                continue
            least, most = statistics.min, statistics.max
            if type(least) is type(value) and not least <= value <= most:
                return False
        return True


def key_from_text(operator: OperatorInfo, texts: Sequence[str]) -> tuple[Any, ...] | Any:
    """Parse a key with a text for each column: as Spark casts it; binary in hex, structs in JSON.

    Raises ConfigurationError if a text is no value of its column.
    """
    columns = key_columns(operator)
    if len(texts) != len(columns):
        raise ConfigurationError(
            f"operator '{operator.uid}': a key has {len(columns)} columns, {_text(columns)}; got {len(texts)} values",
            hint="give a value for each of them, in this order",
        )
    values = [_value(operator.uid, field, text) for field, text in zip(columns, texts, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


def _value(uid: str, field: Field, text: str) -> Any:
    kind = field.type
    try:
        if isinstance(kind, StringType):
            return text
        if isinstance(kind, BinaryType):
            return bytes.fromhex(text.removeprefix("0x"))
        if isinstance(kind, StructType):
            return _from_json(json.loads(text), kind)
        (value,) = to_python(pa.array([text]).cast(to_arrow_type(kind)), kind)
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        raise ConfigurationError(
            f"operator '{uid}': {text!r} is no value of the key column '{field.name}', a {kind.ddl}: {error}",
            hint="write binary in hex, structs as JSON objects, moments as 2026-01-31 12:00:00Z",
        ) from error
    return value


def _from_json(value: Any, kind: DataType) -> Any:
    """Convert a JSON value to a type; its leaves may be texts, too."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {field.name: _from_json(value[field.name], field.type) for field in kind.fields}
    field = Field("value", kind)
    return _value("", field, value if isinstance(value, str) else json.dumps(value))


def _text(columns: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} {field.type.ddl}" for field in columns)
