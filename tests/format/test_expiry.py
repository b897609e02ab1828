"""Values that expire: the bytes, byte for byte as first released, and what is no such value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import CorruptionError, StateTypeError
from strandline.format.manifest import StateInfo, TTLInfo
from strandline.format.values import (
    ExpiringCodec,
    ValueCodec,
    expiry_of,
    pack_expiry,
    packed_expiry,
    with_expiry,
    without_expiry,
)
from strandline.types.datatypes import parse_type
from tests.format.samples import VALUES
from tests.format.strategies import same

GOLDEN = [
    ("bigint", (1_700_000_000_000_000, 1), "0100" "80060a24181e4000" "0100000000000000"),
    ("bigint", (-1, -1), "0100" "7fffffffffffffff" "ffffffffffffffff"),
    ("string", (0, "ab"), "0100" "8000000000000000" "a26162"),
    ("string", (None, "ab"), "0000" "a26162"),
    ("array<bigint>", (1, []), "0100" "8000000000000001" "90"),
]  # fmt: skip
times = st.integers(-(1 << 62), 1 << 62)


@pytest.mark.parametrize(("ddl", "pair", "raw"), GOLDEN)
def test_golden_bytes(ddl: str, pair: Any, raw: str) -> None:
    codec = ExpiringCodec(ValueCodec(parse_type(ddl)))
    assert codec.encode(pair).hex() == raw
    assert codec.encode_many([pair, pair]) == [codec.encode(pair)] * 2
    assert codec.decode(bytes.fromhex(raw)) == pair
    assert codec.decode_many([bytes.fromhex(raw), None]) == [pair, None]


@pytest.mark.parametrize(("ddl", "samples"), VALUES)
@pytest.mark.parametrize("schema_id", [0, 254])
def test_every_type_can_expire(ddl: str, samples: list[Any], schema_id: int) -> None:
    values = ValueCodec(parse_type(ddl), schema_id)
    codec = ExpiringCodec(values)
    pairs = [(n if n % 2 else None, value) for n, value in enumerate(samples, 1)]
    found = codec.decode_many([*codec.encode_many(pairs), None])
    assert found.pop() is None
    assert [expires for expires, _ in found] == [expires for expires, _ in pairs]
    assert same([value for _, value in found], samples)
    # A program without the TTL reads the values all the same.
    assert same(values.decode_many(codec.encode_many(pairs)), samples)


@given(one=times, other=times)
def test_times_compare_as_bytes(one: int, other: int) -> None:
    assert (pack_expiry(one) < pack_expiry(other)) == (one < other)
    plain = b"\x00\x07payload"
    dated = with_expiry(plain, pack_expiry(one))
    assert (expiry_of(dated), without_expiry(dated)) == (one, plain)
    assert packed_expiry(dated) == pack_expiry(one)
    assert (expiry_of(plain), packed_expiry(plain), without_expiry(plain)) == (None, None, plain)


@pytest.mark.parametrize("raw", ["", "00", "01", "0100", "010080060a24181e40", "010080060a24181e4000", "03"])
def test_damaged_bytes_are_reported(raw: str) -> None:
    codec = ExpiringCodec(ValueCodec(parse_type("bigint")))
    for decode in (codec.decode, lambda data: codec.decode_many([data])):
        with pytest.raises(CorruptionError):
            decode(bytes.fromhex(raw))


def test_an_unknown_flag_is_refused() -> None:
    codec = ExpiringCodec(ValueCodec(parse_type("bigint")))
    with pytest.raises(CorruptionError, match="flags 0x02"):
        codec.decode(bytes.fromhex("0300" "80060a24181e4000" "0100000000000000"))  # fmt: skip


def test_what_does_not_fit_is_reported() -> None:
    codec = ExpiringCodec(ValueCodec(parse_type("tinyint")))
    for encode in (codec.encode, lambda pair: codec.encode_many([pair])):
        with pytest.raises(StateTypeError, match="tinyint"):
            encode((1, 1000))


def test_the_manifest_has_a_ttl_only_where_there_is_one() -> None:
    plain = StateInfo(name="seen", kind="value", value_type="bigint")
    dated = msgspec.structs.replace(plain, ttl=TTLInfo(duration_ms=1000, refresh="read", time="event"))
    common = b'{"name":"seen","kind":"value","value_type":"bigint","key_type":"","schema_id":0'
    assert msgspec.json.encode(plain) == common + b"}"
    assert msgspec.json.encode(dated) == common + b',"ttl":{"duration_ms":1000,"refresh":"read","time":"event"}}'
    for info in (plain, dated):
        assert msgspec.json.decode(msgspec.json.encode(info), type=StateInfo) == info
