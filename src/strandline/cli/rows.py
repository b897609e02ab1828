"""Rows of state as text: for people, as JSON and CSV, and as Parquet files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.cli.output import Table, say
from strandline.core.errors import ConfigurationError
from strandline.core.ids import unique_name
from strandline.snapshot.rows.plain import first_rows, plain_column

_SHOWN_ROWS = 20
_CELL_CHARS = 200


def print_rows(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    json: bool,
    csv: bool,
    parquet: Path | None,
    limit: int | None = None,
) -> None:
    """Print rows as they arrive, or write them to a file, in one of the formats; a table shows only the first ones."""
    if json + csv + (parquet is not None) > 1:
        raise ConfigurationError("--json, --csv and --parquet are three forms", hint="give one of them")
    if parquet is not None:
        _write_parquet(parquet, schema, first_rows(batches, limit))
    elif json:
        _print_json(first_rows(batches, limit))
    elif csv:
        _print_csv(schema, first_rows(batches, limit))
    else:
        _print_table(schema, batches, _SHOWN_ROWS if limit is None else limit)


def _print_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int) -> None:
    numbers = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)]
    output = Table(*schema.names, right=numbers, is_data=True)
    count = 0
    for batch in first_rows(batches, limit + 1):
        for row in zip(*map(plain_column, batch.columns), strict=True):
            if count < limit:
                output.add(*map(_cell, row))
            count += 1
    output.print()
    if count > limit:
        say(f"only the first {limit} rows; --limit N shows more, --json, --csv and --parquet give all")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"


def _print_json(batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        names = batch.schema.names
        rows = zip(*map(plain_column, batch.columns), strict=True)
        sys.stdout.writelines(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    sys.stdout.flush()


def _print_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    from pyarrow import csv

    plain = [pa.field(field.name, field.type if _is_flat(field.type) else pa.string()) for field in schema]
    sys.stdout.flush()
    with csv.CSVWriter(sys.stdout.buffer, pa.schema(plain)) as writer:
        for batch in batches:
            columns = [
                column if _is_flat(column.type) else pa.array(map(_text, plain_column(column)), pa.string())
                for column in batch.columns
            ]
            writer.write_batch(pa.record_batch(columns, schema=pa.schema(plain)))
    sys.stdout.buffer.flush()


def _write_parquet(to: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    from pyarrow import parquet

    if to.exists():
        raise ConfigurationError(f"{to}: is there already", hint="name another file, or move it away")
    draft = to.with_name(f".{to.name}.{unique_name()}.writing")
    rows = 0
    try:
        with parquet.ParquetWriter(draft, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        draft.rename(to)
    except OSError as error:
        raise ConfigurationError(f"{to}: cannot be written: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    say(f"{to}: {rows} rows")


def _is_flat(kind: pa.DataType) -> bool:
    """Whether Arrow's CSV writer formats values of a type as we do."""
    return not any(of(kind) for of in (pa.types.is_nested, pa.types.is_binary, pa.types.is_null, pa.types.is_timestamp))


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
