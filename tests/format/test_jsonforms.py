"""Keys and values as JSON and as text: what was written is read again."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.format.keys import KeyCodec
from strandline.types.coercion import MisfitError
from strandline.types.datatypes import parse_type
from strandline.types.jsonforms import from_json, from_text, to_json
from tests.format.strategies import key_types, same, values


@given(key_types().flatmap(lambda kind: st.tuples(st.just(kind), values(kind))))
def test_a_key_written_as_json_is_that_key_again(typed: tuple[Any, Any]) -> None:
    kind, key = typed
    codec = KeyCodec([kind])
    again = from_json(json.loads(json.dumps(to_json(key))), kind)
    assert same(codec.coerce(again), codec.coerce(key))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "17", "17"),
        ("string", '"ann"', '"ann"'),
        ("bigint", "17", 17),
        ("boolean", "true", True),
        ("double", "2", 2.0),
        ("decimal(9,2)", "7.50", Decimal("7.50")),
        ("binary", "eA==", b"x"),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("timestamp", "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp", "2026-01-02T03:04:05+00:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp_ntz", "2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5)),
        ("struct<a: int, t: timestamp_ntz>", '[1, "2026-01-02"]', (1, datetime(2026, 1, 2))),
    ],
)
def test_a_text_is_read_by_its_type(kind: str, text: str, value: Any) -> None:
    found = from_text(text, parse_type(kind))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("bigint", "ann", "expected a bigint as JSON, got 'ann'"),
        ("binary", "x", "expected a binary in base64, got 'x'"),
        ("date", "today", "expected a date in ISO 8601, got 'today'"),
        ("decimal(9,2)", "much", "expected a decimal\\(9,2\\), got 'much'"),
    ],
)
def test_a_text_that_says_nothing_of_its_type_is_refused(kind: str, text: str, said: str) -> None:
    with pytest.raises(MisfitError, match=said):
        from_text(text, parse_type(kind))


def test_maps_whose_keys_are_no_texts_become_pairs() -> None:
    assert to_json({"a": [1, None]}) == {"a": [1, None]}
    assert to_json({1: b"x", 2: Decimal("0.10")}) == [[1, "eA=="], [2, "0.10"]]
