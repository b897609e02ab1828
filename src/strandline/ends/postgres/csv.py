"""CSV from Arrow batches, for PostgreSQL's COPY, which parses each value with the type of its column.

All values are quoted and nulls are not, so that an empty text is not a null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from strandline.core.errors import SinkError

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="all_valid")
_JSON = msgspec.json.Encoder(decimal_format="number")
_EARLIEST, _LATEST = dt.date(1, 1, 1), dt.date(9999, 12, 31)
_DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1)


def as_csv(batch: pa.RecordBatch, json: frozenset[str] = frozenset()) -> pa.Buffer:
    """Return a batch's rows as CSV. Lists become arrays, or JSON in the columns of `json`."""
    columns = [_cells(batch[name], name, name in json) for name in batch.schema.names]
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, batch.schema.names), sink, _OPTIONS)
    return sink.getvalue()


def _cells(array: pa.Array, name: str, as_json: bool) -> pa.Array:
    """Return a column in types that Arrow's CSV writer supports, with values that PostgreSQL parses."""
    kind = array.type
    if pa.types.is_list(kind) and not as_json:
        return _arrays(array, name)
    if pa.types.is_nested(kind):
        return documents(array, name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if pc.any(pc.match_substring(array, "\0")).as_py():
            raise SinkError(
                f"column {name}: a text has the character U+0000, which PostgreSQL's texts cannot hold",
                hint=f"take it out in a step before the sink: .with_column('{name}', \"replace({name}, '\\\\0')\")",
            )
        return array
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else "\\x" + value.hex() for value in array.to_pylist()], pa.string())
    if pa.types.is_date(kind):
        _check_range(array.cast(pa.int32()), 1, name)
        return array
    if pa.types.is_timestamp(kind):
        _check_range(array.cast(pa.int64()), _DAY_US, name)
        return array.cast(pa.timestamp("us", "UTC" if kind.tz else None))
    if pa.types.is_duration(kind):
        return pc.binary_join_element_wise(array.cast(pa.int64()).cast(pa.string()), "microseconds", " ")
    return array


def _check_range(numbers: pa.Array, units_per_day: int, name: str) -> None:
    bounds = pc.min_max(numbers).as_py()
    first = (_EARLIEST - _EPOCH).days * units_per_day
    after = ((_LATEST - _EPOCH).days + 1) * units_per_day
    if bounds["min"] is not None and (bounds["min"] < first or bounds["max"] >= after):
        raise SinkError(
            f"column {name}: a time lies before the year 1 or after 9999, which is not written",
            hint="fix it in a step before the sink; often the number has another unit",
        )


def _arrays(array: pa.ListArray, name: str) -> pa.Array:
    """Return lists as PostgreSQL writes arrays: {1,2,NULL}, {"a","b"}."""
    cells = _cells(array.flatten(), name, as_json=False)
    texts = values_of(cells.cast(pa.string()), name)
    if pa.types.is_string(cells.type):
        texts = [None if text is None else _quoted(text) for text in texts]
    elements = ["NULL" if text is None else text for text in texts]
    lengths = pc.list_value_length(array).to_pylist()
    arrays: list[str | None] = []
    at = 0
    for length in lengths:
        if length is None:
            arrays.append(None)
            continue
        arrays.append("{" + ",".join(elements[at : at + length]) + "}")
        at += length
    return pa.array(arrays, pa.string())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def values_of(array: pa.Array, name: str) -> list[Any]:
    """Return a column as Python values; raise SinkError for a value that Python cannot represent."""
    try:
        values: list[Any] = array.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError) as error:
        raise SinkError(
            f"column {name}: a text is no UTF-8, or a time lies before the year 1 or after 9999: {error}",
            hint=f"fix it in a step before the sink, texts with .with_column('{name}', \"make_valid_utf8({name})\")",
            discreet=f"column {name}: a text is no UTF-8, or a time lies before the year 1 or after 9999",
        ) from None
    return values


def documents(array: pa.Array, name: str) -> pa.Array:
    """Return nested values as JSON: numbers, times in ISO 8601, bytes in base64; NaN and infinities become null."""
    kind = array.type
    return pa.array(
        [None if value is None else _JSON.encode(_plain(value, kind)).decode() for value in values_of(array, name)],
        pa.string(),
    )


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value with dicts for maps, which Arrow returns as lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_name(key): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_plain(each, kind.value_type) for each in value]
    return value


def _name(key: Any) -> str:
    """Return a map's key as the text that a JSON object needs."""
    if isinstance(key, str):
        return key
    if isinstance(key, Mapping | list):
        return _JSON.encode(key).decode()
    return msgspec.json.encode(key).decode().strip('"')
