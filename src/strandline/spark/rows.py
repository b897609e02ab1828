"""Stateless Python functions on rows, run by mapInArrow in Spark's own workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from strandline.format.columns import to_python
from strandline.format.records import record_type
from strandline.format.types import parse_schema
from strandline.runtime.outputs import OutputBuilder


class RowFunction:
    """Calls a function for each row and builds Arrow batches of what it gives."""

    def __init__(self, function: Callable[[Any], Iterable[Any] | None], input_schema: str, output_schema: str) -> None:
        self._function = function
        self._input_schema = input_schema
        self._output_schema = output_schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fields = parse_schema(self._input_schema).fields
        make = record_type([field.name for field in fields])._make
        outputs = OutputBuilder("map", parse_schema(self._output_schema))
        for batch in batches:
            columns = [to_python(c, f.type) for c, f in zip(batch.columns, fields, strict=True)]
            rows: list[Any] = []
            for row in map(make, zip(*columns, strict=True)):
                out = self._function(row)
                if out is not None:
                    rows.extend(out)
            if rows:
                yield outputs.from_rows(rows)
