from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from strandline.types.columns import build, to_arrow_type
from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    parse_type,
)
from strandline.types.murmur import key_group, spark_hash
from strandline.types.murmurcolumns import key_groups
from strandline.types.records import record_type
from tests.format.strategies import key_types, values

GOLDEN = json.loads((Path(__file__).parent / "golden" / "spark_hash.json").read_text())


def read(value: Any, kind: DataType) -> Any:
    """Turn a golden file's value into its Python form."""
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return [read(element, kind.element) for element in value]
    if isinstance(kind, MapType):
        return {read(k, kind.key): read(v, kind.value) for k, v in value}
    if isinstance(kind, StructType):
        return record_type(kind.names)._make(map(read, value, [field.type for field in kind.fields]))
    if isinstance(kind, FloatType | DoubleType):
        return float(value)
    if isinstance(kind, DecimalType):
        return Decimal(value)
    if isinstance(kind, BinaryType):
        return bytes.fromhex(value)
    if isinstance(kind, DateType):
        return dt.date.fromisoformat(value)
    if isinstance(kind, TimestampType | TimestampNTZType):
        zone = dt.UTC if isinstance(kind, TimestampType) else None
        return dt.datetime.fromisoformat(value).replace(tzinfo=zone)
    return value


def test_equals_spark() -> None:
    assert len(GOLDEN["cases"]) > 300
    wrong = []
    for case in GOLDEN["cases"]:
        types = [parse_type(text) for text in case["types"]]
        found = spark_hash(list(map(read, case["values"], types)), types)
        if found != case["hash"]:
            wrong.append((case, found))
    assert not wrong


def test_key_groups_are_never_negative() -> None:
    case = next(case for case in GOLDEN["cases"] if case["hash"] < 0 and case["types"] == ["bigint"])
    assert key_group(case["values"], [LongType()], 128) == case["hash"] % 128 >= 0


@given(st.lists(key_types(), min_size=1, max_size=3), st.data())
def test_hashes_of_columns_are_those_of_their_values(types: list[DataType], draw: st.DataObject) -> None:
    rows = draw.draw(st.lists(st.tuples(*[values(kind) for kind in types]), max_size=6))
    columns = [build(list(column), kind) for column, kind in zip(zip(*rows, strict=True), types, strict=bool(rows))]
    if not rows:
        columns = [pa.nulls(0, to_arrow_type(kind)) for kind in types]
    cut = draw.draw(st.integers(0, len(rows)))
    found = key_groups([column.slice(cut) for column in columns], types, 1000)
    assert found.tolist() == [key_group(row, types, 1000) for row in rows[cut:]]
