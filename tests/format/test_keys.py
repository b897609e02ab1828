from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError, UserCodeError
from strandline.format.keys import KeyCodec
from strandline.types.columns import from_python, to_python
from strandline.types.datatypes import DataType, DecimalType, LongType, StringType, parse_type
from tests.format.samples import KEYS
from tests.format.strategies import key_types, same, values

GOLDEN = json.loads((Path(__file__).parent / "golden" / "bytes.json").read_text())["keys"]
GROUPS = st.integers(0, 32767)


def keys_of(types: list[DataType], *, ordered: bool = False) -> st.SearchStrategy[Any]:
    if len(types) == 1:
        return values(types[0], ordered=ordered)
    return st.tuples(*[values(kind, ordered=ordered) for kind in types])


TYPED_KEYS = st.lists(key_types(), min_size=1, max_size=3).flatmap(
    lambda types: st.tuples(st.just(types), st.lists(st.tuples(GROUPS, keys_of(types)), max_size=5))
)
COMPARABLE = st.lists(key_types(), min_size=1, max_size=3).flatmap(
    lambda types: st.tuples(st.just(types), keys_of(types, ordered=True), keys_of(types, ordered=True))
)


@given(TYPED_KEYS)
def test_round_trips(typed: tuple[list[DataType], list[tuple[int, Any]]]) -> None:
    types, some = typed
    codec = KeyCodec(types)
    groups, keys = [group for group, _ in some], codec.normalise([key for _, key in some])
    encoded = codec.encode_many(groups, keys)
    assert encoded == [codec.encode(group, key) for group, key in some]
    assert same(codec.decode_many(encoded), keys)
    for data, group, key in zip(encoded, groups, keys, strict=True):
        found = codec.decode(data + b"more")
        assert (found[0], found[2]) == (group, len(data))
        assert same(found[1], key)
    columns = list(zip(*keys, strict=True)) if len(types) > 1 else [keys]
    arrow = [from_python(list(column), kind, "k") for column, kind in zip(columns, types, strict=False)]
    if keys:
        assert codec.encode_arrow(pa.array(groups, pa.int32()), arrow) == encoded
    found_groups, found_columns = codec.decode_arrow(encoded)
    assert found_groups.tolist() == groups
    for kind, column, wanted in zip(types, found_columns, columns, strict=bool(keys)):
        column.validate(full=True)
        assert same(to_python(column, kind), list(wanted))


@given(TYPED_KEYS, st.data())
def test_damaged_columns_are_no_keys(typed: tuple[list[DataType], list[tuple[int, Any]]], draw: st.DataObject) -> None:
    types, some = typed
    codec = KeyCodec(types)
    encoded = [codec.encode(group, key) for group, key in some]
    if not encoded:
        return
    at = draw.draw(st.integers(0, len(encoded) - 1))
    cut = draw.draw(st.integers(0, len(encoded[at])))
    encoded[at] = draw.draw(st.sampled_from([encoded[at][:cut], encoded[at] + b"\0", b"\0" + encoded[at]]))

    def as_columns() -> list[Any]:
        return [to_python(column, kind) for column, kind in zip(codec.decode_arrow(encoded)[1], types, strict=True)]

    try:
        wanted = codec.decode_many(encoded)
    except CorruptionError:
        # Arrow has room for times that Python has not: it is as rows that they are refused.
        with pytest.raises((CorruptionError, UserCodeError)):
            as_columns()
        return
    columns = as_columns()
    assert same(columns[0] if len(types) == 1 else list(zip(*columns, strict=True)), wanted)


def test_a_key_that_begins_elsewhere_has_no_decimal_of_too_many_digits() -> None:
    codec = KeyCodec([DecimalType(1, 0), StringType()])
    encoded = [b"\0" + codec.encode(0, (Decimal(1), ""))]
    with pytest.raises(CorruptionError, match=r"has more digits than decimal\(1,0\)"):
        codec.decode_many(encoded)
    with pytest.raises(CorruptionError):
        codec.decode_arrow(encoded)


@given(COMPARABLE)
def test_bytes_have_the_order_of_values(typed: tuple[list[DataType], Any, Any]) -> None:
    types, left, right = typed
    codec = KeyCodec(types)
    one, other = codec.encode(1, left), codec.encode(1, right)
    assert (one < other) == (left < right)
    assert (one == other) == (left == right)
    # Prefix-free: what follows a key never decides between two keys.
    assert one == other or not one.startswith(other)
    assert codec.encode(2, left) > one


@given(st.lists(st.text(st.sampled_from("\0\x01a\xff"), max_size=4), min_size=2, max_size=2))
def test_zeros_in_strings_keep_the_order(pair: list[str]) -> None:
    codec = KeyCodec([StringType(), LongType()])
    one, other = codec.encode_many([0, 0], [(pair[0], -1), (pair[1], 1)])
    assert (one < other) == ((pair[0], -1) < (pair[1], 1))


@pytest.mark.parametrize(("position", "types"), list(enumerate(types for types, _ in KEYS)))
def test_golden_bytes(position: int, types: list[str]) -> None:
    assert GOLDEN[position]["types"] == types
    codec = KeyCodec(list(map(parse_type, types)))
    keys = KEYS[position][1]
    found = codec.encode_many([258] * len(keys), keys)
    assert [item.hex() for item in found] == GOLDEN[position]["hex"]
    assert found == sorted(found)
    assert same(codec.decode_many(found), codec.normalise(keys))


def test_every_sample_has_golden_bytes() -> None:
    assert len(GOLDEN) == len(KEYS)


def test_floats_are_grouped_as_spark_groups_them() -> None:
    codec = KeyCodec([parse_type("double")])
    other_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0].item()
    assert codec.encode(0, other_nan) == codec.encode(0, math.nan) == codec.encode(0, -math.nan)
    assert codec.encode(0, -0.0) == codec.encode(0, 0.0)
    first, second = codec.decode_many([codec.encode(0, math.nan)] * 2)
    assert {first: 1}[second] == 1
    normal = codec.normalise([other_nan, -0.0])
    assert normal[0] is math.nan
    assert math.copysign(1, normal[1]) == 1


def test_sub_keys_follow_a_key() -> None:
    key, sub = KeyCodec([StringType()]), KeyCodec([parse_type("timestamp_ntz")])
    moment = dt.datetime(1969, 5, 4, 3, 2, 1)
    entry = key.encode(7, "user\0") + sub.encode_sub(moment)
    group, found, end = key.decode(entry)
    assert (group, found, sub.decode_sub(entry, end)) == (7, "user\0", moment)
    with pytest.raises(CorruptionError, match="1 bytes follow it"):
        sub.decode_sub(entry + b"x", end)
    with pytest.raises(StateTypeError, match="expected timestamp_ntz"):
        sub.encode_sub("x")


@pytest.mark.parametrize(
    ("types", "key", "why"),
    [
        (["bigint"], "x", "expected bigint, got 'x'"),
        (["bigint"], 1.5, "expected bigint, got 1.5"),
        (["bigint"], None, "keys are never null"),
        (["tinyint"], 128, "the range is -128 to 127"),
        (["string"], b"x", "decode it first"),
        (["string"], "\ud800", "half a surrogate"),
        (["binary"], 3, "expected binary"),
        (["timestamp"], dt.datetime(2024, 1, 1), "aware"),
        (["decimal(5,2)"], Decimal("1.555"), "not exact"),
        (["decimal(38,2)"], Decimal("1.555"), "not exact"),
        (["bigint", "string"], (1,), "expected a tuple of 2 values"),
        (["bigint", "string"], (1, None), "keys are never null"),
        (["struct<a:int>"], (1, 2), "2 values for 1 fields"),
    ],
)
def test_keys_that_do_not_fit(types: list[str], key: Any, why: str) -> None:
    codec = KeyCodec(list(map(parse_type, types)))
    for encode in (codec.coerce, lambda k: codec.encode(0, k), lambda k: codec.encode_many([0], [k])):
        with pytest.raises(StateTypeError, match="the key does not fit") as caught:
            encode(key)
        assert why in caught.value.message


def test_coerces() -> None:
    assert KeyCodec([LongType()]).coerce(np.int32(5)) == 5
    found = KeyCodec([parse_type("struct<a:int,b:double>"), StringType()]).coerce([{"a": 1, "b": -0.0}, "x"])
    assert found == ((1, 0.0), "x")
    assert math.copysign(1, found[0].b) == 1


@pytest.mark.parametrize("ddl", ["map<int,int>", "array<int>", "struct<a:array<int>>"])
def test_types_that_cannot_be_keys(ddl: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be keys"):
        KeyCodec([parse_type(ddl)])


def test_a_key_needs_a_column() -> None:
    with pytest.raises(ConfigurationError, match="no columns"):
        KeyCodec([])


@pytest.mark.parametrize(
    ("ddl", "raw"),
    [
        ("bigint", "00"),
        ("bigint", "0001"),
        ("bigint", "000180000000000000"),
        ("string", "000161"),
        ("string", "00016100"),
        ("string", "00016100ff"),
        ("string", "0001610001"),
        ("string", "0001ff0000"),
        ("binary", "000100"),
        ("decimal(38,0)", "000180"),
        ("struct<a:int>", "0001"),
        ("struct<a:int>", "000103"),
        ("struct<a:int>", "000102800000"),
        ("date", "0001ffffffff"),
        ("boolean", "0001"),
    ],
)
def test_damaged_keys_are_reported(ddl: str, raw: str) -> None:
    codec = KeyCodec([parse_type(ddl)])
    with pytest.raises(CorruptionError):
        codec.decode(bytes.fromhex(raw))
    with pytest.raises(CorruptionError):
        codec.decode_many([bytes.fromhex(raw)])
