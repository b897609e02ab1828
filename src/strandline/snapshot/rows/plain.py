"""Rows of tables as plain values, which JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

_FIRST = "-290308-12-21T19:59:05.224192"
"""The first moment in µs since 1970, which is numpy's NaT."""


def first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first rows; None: all."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def plain_column(column: pa.Array) -> list[Any]:
    """Return a column's values for JSON: times as text, binary in hex, decimals as text, maps as objects or pairs."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _moments(column)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        texts: list[Any] = column.cast(pa.string()).to_pylist()
        return texts
    return [_plain(value, kind) for value in column.to_pylist()]


def _moments(column: pa.Array) -> list[str | None]:
    """Return times as text, also in years that Python's datetime and Arrow's text do not support."""
    import numpy as np

    zone = "Z" if column.type.tz else ""
    numbers = column.view(pa.int64()).fill_null(0).to_numpy().view(f"M8[{column.type.unit}]")
    texts = [_FIRST if text == "NaT" else text for text in np.datetime_as_string(numbers).tolist()]
    texts = [text.replace("T", " ") + zone for text in texts]
    return [text if valid else None for text, valid in zip(texts, column.is_valid().to_pylist(), strict=True)]


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(_plain(key, kind.key_type), _plain(item, kind.item_type)) for key, item in value]
        return dict(pairs) if all(isinstance(key, str) for key, _ in pairs) else pairs
    if pa.types.is_nested(kind):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        # isoformat() writes the year with four digits, which %Y does not on every platform.
        return value.replace(tzinfo=None).isoformat(" ", "microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, Decimal | date) else value
