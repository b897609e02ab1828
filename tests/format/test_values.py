from __future__ import annotations

import datetime as dt
import json
import math
import struct
import zoneinfo
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError, UserCodeError
from strandline.format.values import ValueCodec
from strandline.types.columns import to_arrow_type, to_python
from strandline.types.datatypes import DataType, LongType, parse_type
from strandline.types.records import record_type
from tests.format.samples import VALUES
from tests.format.strategies import same, types, values

GOLDEN = json.loads((Path(__file__).parent / "golden" / "bytes.json").read_text())["values"]
TYPED_VALUES = types().flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values(kind), max_size=5)))


def with_gaps(items: list[Any]) -> list[Any]:
    """Put a None before each item and one at the end."""
    return [part for item in items for part in (None, item)] + [None]


# -- bytes


@given(TYPED_VALUES)
def test_round_trips(typed: tuple[DataType, list[Any]]) -> None:
    kind, some = typed
    codec = ValueCodec(kind)
    encoded = codec.encode_many(some)
    assert encoded == list(map(codec.encode, some))
    assert same(codec.decode_many(encoded), some)
    assert same(list(map(codec.decode, encoded)), some)
    assert same(codec.decode_many(with_gaps(encoded)), with_gaps(some))
    assert same([codec.coerce(value) for value in some], some)


@given(TYPED_VALUES)
def test_arrow_is_the_same_as_python(typed: tuple[DataType, list[Any]]) -> None:
    kind, some = typed
    codec = ValueCodec(kind)
    encoded = codec.encode_many(some)
    column = codec.decode_arrow(with_gaps(encoded))
    assert column.type == to_arrow_type(kind)
    column.validate(full=True)
    assert same(to_python(column, kind), with_gaps(some))
    assert codec.encode_arrow(column.drop_null()) == encoded


@pytest.mark.parametrize(("position", "ddl"), list(enumerate(ddl for ddl, _ in VALUES)))
def test_golden_bytes(position: int, ddl: str) -> None:
    samples = VALUES[position][1]
    assert GOLDEN[position]["type"] == ddl
    codec = ValueCodec(parse_type(ddl))
    assert [item.hex() for item in codec.encode_many(samples)] == GOLDEN[position]["hex"]
    assert same(codec.decode_many([bytes.fromhex(text) for text in GOLDEN[position]["hex"]]), samples)


def test_every_sample_has_golden_bytes() -> None:
    assert len(GOLDEN) == len(VALUES)


@pytest.mark.parametrize(("ddl", "samples"), VALUES)
def test_a_ttl_is_skipped(ddl: str, samples: list[Any]) -> None:
    codec = ValueCodec(parse_type(ddl), schema_id=3)
    plain = codec.encode_many(samples)
    with_ttl = [b"\x01" + item[1:2] + (1_700_000_000_000).to_bytes(8, "little") + item[2:] for item in plain]
    assert same(codec.decode_many(with_ttl), samples)
    assert same(codec.decode_many([*with_ttl, None, *plain]), [*samples, None, *samples])
    assert same(to_python(codec.decode_arrow([*with_ttl, None]), codec.type), [*samples, None])


@pytest.mark.parametrize("ddl", ["bigint", "string", "struct<a:int,b:date>", "map<string,int>"])
@pytest.mark.parametrize("schema_id", [0, 1, 127, 128, 254])
def test_schema_ids(ddl: str, schema_id: int) -> None:
    kind = parse_type(ddl)
    codec, other = ValueCodec(kind, schema_id), ValueCodec(kind, 77)
    samples = {"bigint": [1, 2], "string": ["a", ""], "map<string,int>": [{"a": 1}]}.get(ddl) or [
        codec.coerce((1, None))
    ]
    encoded = codec.encode_many(samples)
    assert {item[:2] for item in encoded} == {bytes([0, schema_id])}
    assert same(codec.decode_many(encoded), samples)
    for decode in (other.decode_many, other.decode_arrow, lambda items: other.decode(items[0])):
        with pytest.raises(CorruptionError, match=f"schema id {schema_id}, expected 77"):
            decode(encoded)


def test_the_schema_id_255_is_reserved() -> None:
    with pytest.raises(ConfigurationError, match="expected 0 to 254"):
        ValueCodec(LongType(), 255)


@pytest.mark.parametrize(
    ("ddl", "raw", "why"),
    [
        ("bigint", "", "no bigint|less than its header"),
        ("bigint", "00", "less than its header"),
        ("bigint", "0000", "no bigint"),
        ("bigint", "000001", "no bigint"),
        ("bigint", "00000100000000000000ff", "no bigint"),
        ("bigint", "02000100000000000000", "flags 0x02"),
        ("bigint", "01000100000000000000", "no bigint"),
        ("string", "0000", "no string"),
        ("string", "0000a261", "no string"),
        ("string", "0000a16100", "no string"),
        ("string", "0000a1ff", "no string"),
        ("decimal(5,1)", "0000a178", "no decimal"),
        ("array<date>", "000001", "no array"),
        ("map<string,int>", "000081a161", "no map"),
        ("map<string,int>", "000091a161", "no map"),
        ("string", "000005", "no string"),
        ("binary", "0000a161", "no binary"),
        ("array<int>", "0000a161", "no array"),
        ("struct<a:string,b:int>", "000091a161", "has 1 fields, expected 2"),
    ],
)
def test_damaged_bytes_are_reported(ddl: str, raw: str, why: str) -> None:
    codec = ValueCodec(parse_type(ddl))
    data = bytes.fromhex(raw)
    for decode in (codec.decode, lambda item: codec.decode_many([item]), lambda item: codec.decode_arrow([item, None])):
        with pytest.raises(CorruptionError, match=why):
            decode(data)


@pytest.mark.parametrize(
    ("ddl", "raw"),
    [("date", "0000ffffff7f"), ("timestamp", "0000ffffffffffffff7f"), ("timestamp_ntz", "00000000000000000080")],
)
def test_moments_beyond_python_are_reported(ddl: str, raw: str) -> None:
    codec = ValueCodec(parse_type(ddl))
    data = bytes.fromhex(raw)
    for decode in (codec.decode, lambda item: codec.decode_many([item])):
        with pytest.raises(CorruptionError, match="outside the years 1 to 9999"):
            decode(data)
    # Arrow can hold them, and so none is stored that it was given.
    with pytest.raises(UserCodeError, match="outside the years 1 to 9999"):
        codec.encode_arrow(codec.decode_arrow([data]))


# -- what users assign

NEW_YORK = zoneinfo.ZoneInfo("America/New_York")


class Pair(NamedTuple):
    b: int
    a: int


class Row(tuple[Any, ...]):
    """As pyspark's Row: names in __fields__."""

    __fields__ = ("b", "a")


PAIR = "struct<a:int,b:int>"


@pytest.mark.parametrize(
    ("ddl", "given", "expected"),
    [
        ("bigint", np.int64(5), 5),
        ("tinyint", np.uint8(5), 5),
        ("boolean", np.True_, True),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("double", np.int16(3), 3.0),
        ("float", 0.1, float(np.float32(0.1))),
        ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("decimal(5,2)", Decimal("-0"), Decimal("0.00")),
        ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"x"), b"x"),
        ("binary", memoryview(b"x"), b"x"),
        ("timestamp", dt.datetime(2024, 7, 1, 8, tzinfo=NEW_YORK), dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)),
        ("timestamp", pd.Timestamp("2024-07-01 12:00", tz="UTC"), dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)),
        ("timestamp_ntz", pd.Timestamp("2024-07-01 12:00"), dt.datetime(2024, 7, 1, 12)),
        ("array<int>", (1, None), [1, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("map<array<int>,array<int>>", {(1, 2): [3]}, {(1, 2): [3]}),
        (PAIR, {"b": 2, "a": None}, (None, 2)),
        (PAIR, [1, 2], (1, 2)),
        (PAIR, (1, 2), (1, 2)),
        (PAIR, Pair(b=2, a=1), (1, 2)),
        (PAIR, Row((2, 1)), (1, 2)),
        (PAIR, record_type(["b", "a"])._make([2, 1]), (1, 2)),
    ],
)
def test_coerces(ddl: str, given: Any, expected: Any) -> None:
    found = ValueCodec(parse_type(ddl)).coerce(given)
    if ddl == PAIR:
        assert type(found) is record_type(["a", "b"])
        expected = found._make(expected)
    assert same(found, expected)


@pytest.mark.parametrize(
    ("ddl", "given", "why"),
    [
        ("bigint", True, "a boolean is no number"),
        ("bigint", 1.0, "got 1.0 (float): convert it with int()"),
        ("bigint", np.float64(1), "convert it with int()"),
        ("bigint", "1", "expected bigint, got '1' (str)"),
        ("bigint", 2**63, "the range is -9223372036854775808 to 9223372036854775807"),
        ("tinyint", 128, "the range is -128 to 127"),
        ("smallint", -32769, "the range is"),
        ("int", np.int64(2**31), "the range is"),
        ("boolean", 1, "expected boolean, got 1 (int)"),
        ("double", True, "expected double"),
        ("double", "1.5", "expected double"),
        ("double", Decimal("1.5"), "convert it with float()"),
        ("double", 10**400, "too large"),
        ("float", 1e39, "too large for 32 bits"),
        ("decimal(5,2)", 1.5, "give a Decimal"),
        ("decimal(5,2)", "1.5", "expected decimal(5,2)"),
        ("decimal(5,2)", Decimal("1.555"), "not exact with 2 digits"),
        ("decimal(5,2)", Decimal("1000"), "more than 3 digits before the point"),
        ("decimal(5,2)", Decimal("1E+900000"), "not exact"),
        ("decimal(5,2)", Decimal("NaN"), "NaN"),
        ("decimal(5,2)", Decimal("Infinity"), "Infinity"),
        ("decimal(5,2)", True, "expected decimal(5,2)"),
        ("string", b"x", "decode it first"),
        ("string", 5, "expected string"),
        ("string", "\ud800", "half a surrogate pair"),
        ("binary", "x", "encode it first"),
        ("binary", 3, "expected binary"),
        ("date", dt.datetime(2024, 1, 1), "take its .date()"),
        ("date", "2024-01-01", "expected date"),
        ("timestamp", dt.datetime(2024, 1, 1), "give an aware datetime"),
        ("timestamp", dt.date(2024, 1, 1), "give a datetime with a time zone"),
        ("timestamp", 1_700_000_000, "give a datetime"),
        ("timestamp", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "outside the years"),
        ("timestamp", pd.Timestamp(1, tz="UTC"), "nanoseconds"),
        ("timestamp_ntz", pd.NaT, "it is not a valid time"),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "it has a time zone"),
        ("array<int>", "ab", "give a list"),
        ("array<int>", {1, 2}, "give a list"),
        ("array<int>", [1, "x"], "expected int at [1], got 'x'"),
        ("map<string,int>", [("a", 1)], "give a dict"),
        ("map<string,int>", {None: 1}, "at .keys(), got None (NoneType): the keys of a map are never null"),
        ("map<string,int>", {5: 1}, "expected string at .keys(), got 5"),
        ("map<string,array<int>>", {"a": [1, 1.5]}, "expected int at ['a'][1], got 1.5"),
        (PAIR, {"a": 1}, "it misses b"),
        (PAIR, {"a": 1, "b": 2, "c": 3}, "it has unknown c"),
        (PAIR, {"a": 1, "c": 3}, "it misses b and it has unknown c"),
        (PAIR, (1,), "it has 1 values for 2 fields"),
        (PAIR, (1, 2, 3), "it has 3 values for 2 fields"),
        (PAIR, (1, 2**31), "expected int at .b"),
        (PAIR, record_type(["a", "x"])._make([1, 2]), "it misses b and it has unknown x"),
        (PAIR, 5, "give a dict, a tuple or a Record"),
        ("struct<a:array<struct<b:date>>>", {"a": [None, {"b": 5}]}, "expected date at .a[1].b, got 5"),
        ("bigint", None, "expected bigint, got None"),
    ],
)
def test_refuses(ddl: str, given: Any, why: str) -> None:
    with pytest.raises(StateTypeError) as caught:
        ValueCodec(parse_type(ddl)).coerce(given)
    assert why in caught.value.message
    assert caught.value.expected == parse_type(ddl).ddl
    assert f"declared type {parse_type(ddl).ddl}" in caught.value.message


@pytest.mark.parametrize(
    ("ddl", "good", "bad"),
    [
        ("bigint", 1, 2**63),
        ("tinyint", 1, 128),
        ("tinyint", 1, 1.5),
        ("string", "x", "\ud800"),
        ("date", dt.date.max, 5),
        ("struct<a:tinyint,b:int>", (1, None), (128, None)),
        ("decimal(3,1)", Decimal("1.5"), Decimal("1.55")),
    ],
)
def test_encoding_reports_what_does_not_fit(ddl: str, good: Any, bad: Any) -> None:
    codec = ValueCodec(parse_type(ddl))
    with pytest.raises(StateTypeError, match="does not fit the declared type"):
        codec.encode(bad)
    with pytest.raises(StateTypeError, match="does not fit the declared type"):
        codec.encode_many([good, bad, good])


@given(TYPED_VALUES)
def test_exact_values_need_no_coercion(typed: tuple[DataType, list[Any]]) -> None:
    kind, some = typed
    codec = ValueCodec(kind)
    if codec.exact is not None:
        assert all(type(value) is codec.exact for value in some)
        assert not codec.mutable


def test_exact() -> None:
    exact = {ddl: ValueCodec(parse_type(ddl)).exact for ddl in ("smallint", "double", "float", "timestamp", PAIR)}
    assert exact == {"smallint": int, "double": float, "float": None, "timestamp": None, PAIR: None}


@pytest.mark.parametrize(
    ("ddl", "value", "change"),
    [
        ("array<int>", [1], lambda v: v.append(2)),
        ("array<array<int>>", [[1], None], lambda v: v[0].append(2)),
        ("map<string,array<int>>", {"a": [1]}, lambda v: v["a"].append(2)),
        ("map<string,int>", {"a": 1}, lambda v: v.clear()),
        ("struct<a:int,b:array<int>>", (1, [1]), lambda v: v.b.append(2)),
    ],
)
def test_copies_share_nothing(ddl: str, value: Any, change: Any) -> None:
    codec = ValueCodec(parse_type(ddl))
    assert codec.mutable
    ours = codec.coerce(value)
    before = codec.encode(ours)
    change(codec.copy(ours))
    if isinstance(value, list | dict):
        change(value)
    assert codec.encode(ours) == before


def test_arrow_columns_must_have_the_type() -> None:
    codec = ValueCodec(LongType())
    assert codec.encode_arrow(pa.array([1], pa.int32())) == [codec.encode(1)]
    with pytest.raises(StateTypeError, match="expected an Arrow column of bigint"):
        codec.encode_arrow(pa.array([1.0]))
    with pytest.raises(StateTypeError, match="the column has nulls"):
        codec.encode_arrow(pa.array([1, None]))


def test_the_fixed_layout_byte_for_byte() -> None:
    codec = ValueCodec(parse_type("struct<a:bigint,b:double>"))
    assert struct.unpack("<HBqd", codec.encode(codec.coerce((5, None)))) == (0, 0b10, 5, 0.0)


def test_nan_and_minus_zero_are_kept() -> None:
    codec = ValueCodec(parse_type("double"))
    found = codec.decode_many(codec.encode_many([-0.0, math.nan]))
    assert math.copysign(1, found[0]) == -1
    assert math.isnan(found[1])
