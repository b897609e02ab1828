"""Rows of a state from a file: Parquet, CSV or JSON, as `strandline state show` writes them, or others."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.core.errors import ConfigurationError, NotFoundError, OutputError, StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import ANY_TIMES, VALUE
from strandline.snapshot.rows.keys import key_columns
from strandline.snapshot.tools.transform import fitting
from strandline.types.columns import from_arrow_type, from_python, to_arrow_type
from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.scalars import timestamp_to_us

_BATCH_ROWS = 16_384
_CELL_CHARS = (1 << 31) - 1
_BEYOND_PYTHON = re.compile(r"(([+-]\d{1,6}|\d{5,6}|0000)-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z?")
"""A time in a year that Python does not support."""
_YEAR_US = 31_556_952 * 1_000_000
Line = tuple[int, Mapping[str, Any]]


def rows_in(path: Path, operator: OperatorInfo, state: StateInfo) -> Callable[[Path], Iterator[pa.RecordBatch]]:
    """Return a function that takes a directory and yields the rows of a file, in the types of a state's table.

    The file's suffix is its format: .parquet, .csv (with a header) or .json (an object a line). Raises NotFoundError
    and ConfigurationError at once. The function raises StateTypeError, with the line, for a value that does not fit.
    """
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file", hint="name a file with all rows that the state is to have")
    forms: dict[str, Callable[..., Iterator[pa.RecordBatch]]] = {
        ".parquet": _parquet,
        ".csv": partial(_text, _csv_lines),
        ".json": partial(_text, _json_lines),
    }
    read = forms.get(path.suffix.lower().replace(".jsonl", ".json").replace(".ndjson", ".json"))
    if read is None:
        raise ConfigurationError(f"{path}: expected a file that ends with {', '.join(forms)}")
    return lambda scratch: read(path, operator, state)


def _parquet(path: Path, operator: OperatorInfo, state: StateInfo) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            yield from fitting(operator, state, file.iter_batches(_BATCH_ROWS))
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as Parquet: {error}") from error


def _text(
    lines: Callable[[Path], Iterator[Line]], path: Path, operator: OperatorInfo, state: StateInfo
) -> Iterator[pa.RecordBatch]:
    types = {field.name: from_arrow_type(field.type) for field in rows_of(operator, state).schema}
    keys = [field.name for field in key_columns(operator)]
    rows = lines(path)
    while batch := _next(rows, path):
        if state.kind == "panes":
            # In CSV, the missing key of a mark looks like empty texts; a mark is recognised by its missing value.
            batch = [(line, row if row.get(VALUE) else {**row, **dict.fromkeys(keys)}) for line, row in batch]
        names = list(dict.fromkeys(name for _, row in batch for name in row))
        arrays = [_column(path, name, types.get(name, StringType()), batch) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _next(lines: Iterator[Line], path: Path) -> list[Line]:
    try:
        return list(islice(lines, _BATCH_ROWS))
    except (csv.Error, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}", hint="it must be text in UTF-8") from error


def _csv_lines(path: Path) -> Iterator[Line]:
    # A cell may be as large as a value; the default limit is 128 KB.
    csv.field_size_limit(_CELL_CHARS)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        for row in reader:
            if len(row) != len(names):
                raise StateTypeError(
                    f"{path}: line {reader.line_num} has {len(row)} values, expected {len(names)}: {', '.join(names)}"
                )
            yield reader.line_num, dict(zip(names, row, strict=True))


def _json_lines(path: Path) -> Iterator[Line]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise StateTypeError(
                    f"{path}: line {number} is no JSON: {error}", hint="write an object a line"
                ) from None
            if not isinstance(row, dict):
                raise StateTypeError(f"{path}: line {number} is no JSON object", hint="write an object a line")
            yield number, row


def _column(path: Path, name: str, kind: DataType, lines: list[Line]) -> pa.Array:
    if name in ANY_TIMES and isinstance(kind, TimestampType):
        return _times(path, name, kind, lines)
    values = []
    for number, row in lines:
        try:
            values.append(value_from(row.get(name), kind))
        except (ValueError, TypeError, KeyError, InvalidOperation) as error:
            raise _misfit(path, number, name, kind, row.get(name), str(error)) from None
    try:
        return from_python(values, kind, name)
    except OutputError as error:
        number, row = lines[error.fields["index"]]
        raise _misfit(path, number, name, kind, row.get(name), "") from None


def _times(path: Path, name: str, kind: DataType, lines: list[Line]) -> pa.Array:
    """Return a column of times, which may be in years that Python does not support."""
    times_us: list[int | None] = []
    for number, row in lines:
        text = row.get(name) or None
        try:
            times_us.append(None if text is None else _time_us(text, kind))
        except (ValueError, TypeError, AttributeError) as error:
            raise _misfit(path, number, name, kind, text, str(error)) from None
    return pa.array(times_us, pa.int64()).view(to_arrow_type(kind))


def _time_us(text: Any, kind: DataType) -> int:
    match = _BEYOND_PYTHON.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return timestamp_to_us(value_from(text, kind))
    # numpy takes no time zone, and turns a time out of its range into another one.
    time_us = int(np.datetime64(match[1], "us").view("i8"))
    if abs(time_us / _YEAR_US - (int(match[2]) - 1970)) > 2:
        raise ValueError(f"year {match[2]} is out of range")
    return time_us


def _misfit(path: Path, line: int, name: str, kind: DataType, value: Any, why: str) -> StateTypeError:
    return StateTypeError(
        f"{path}: line {line}, column '{name}' (a {kind.ddl}) does not fit: {value!r:.100}{f' ({why})' if why else ''}",
        hint="write it as `strandline state show --json` does: binary in hex, moments as 2026-01-31 12:00:00Z",
    )


def value_from(value: Any, kind: DataType) -> Any:
    """Return the value of a type that JSON or text encodes. Raises ValueError, TypeError or KeyError if it is wrong."""
    if value is None or isinstance(kind, StringType):
        return value
    if isinstance(value, str):
        return _from_text(value, kind)
    if isinstance(kind, StructType):
        if unknown := sorted(set(value) - set(kind.names)):
            raise KeyError(f"there is no field {unknown[0]!r}")
        return {field.name: value_from(value.get(field.name), field.type) for field in kind.fields}
    if isinstance(kind, ArrayType):
        return [value_from(item, kind.element) for item in value]
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return {_hashable(value_from(key, kind.key)): value_from(item, kind.value) for key, item in pairs}
    if isinstance(kind, FloatType | DoubleType) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, DecimalType) and not isinstance(value, bool):
        return Decimal(str(value))
    return value


def _hashable(value: Any) -> Any:
    """Return a value as a key of a map: structs and arrays become tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _from_text(text: str, kind: DataType) -> Any:
    if text == "":
        return b"" if isinstance(kind, BinaryType) else None
    if isinstance(kind, BinaryType):
        return bytes.fromhex(text.removeprefix("0x"))
    if isinstance(kind, DateType):
        return date.fromisoformat(text)
    if isinstance(kind, TimestampType | TimestampNTZType):
        moment = datetime.fromisoformat(text)
        has_zone = isinstance(kind, TimestampType)
        return moment.replace(tzinfo=UTC) if has_zone and moment.tzinfo is None else moment
    if isinstance(kind, DecimalType):
        return Decimal(text)
    if isinstance(kind, FloatType | DoubleType):
        return float(text)
    if isinstance(kind, BooleanType):
        return {"true": True, "false": False}[text.lower()]
    if isinstance(kind, StructType | ArrayType | MapType):
        return value_from(json.loads(text), kind)
    return int(text)
