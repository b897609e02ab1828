from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConfigurationError, OutputError, StateTypeError, UserCodeError
from strandline.types.columns import (
    arrow_schema,
    check_readable,
    from_arrow_type,
    from_python,
    to_arrow_type,
    to_python,
    to_readable,
)
from strandline.types.datatypes import DataType, LongType, parse_schema, parse_type
from strandline.types.records import record_type
from tests.format.strategies import same, types, values


class Raising(list[Any]):
    """A list that cannot be read."""

    def __iter__(self) -> Any:
        raise RuntimeError("not now")


TYPED_COLUMN = types().flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.one_of(st.none(), values(kind)), max_size=6))
)


@given(types())
def test_types_round_trip(kind: DataType) -> None:
    assert from_arrow_type(to_arrow_type(kind)) == kind


@given(TYPED_COLUMN, st.integers(0, 3), st.integers(0, 3))
def test_columns_round_trip(typed: tuple[DataType, list[Any]], start: int, length: int) -> None:
    kind, some = typed
    column = from_python(some, kind, "c")
    column.validate(full=True)
    assert column.type == to_arrow_type(kind)
    assert same(to_python(column, kind), some)
    assert same(to_python(column.slice(start, length), kind), some[start : start + length])
    chunks = pa.chunked_array([column.slice(start), column.slice(0, start)])
    assert same(to_python(chunks, kind), some[start:] + some[:start])


@given(TYPED_COLUMN)
def test_equals_pyarrow_where_that_is_faithful(typed: tuple[DataType, list[Any]]) -> None:
    kind, some = typed
    column = from_python(some, kind, "c")

    def as_pyarrow(value: Any, of: Any) -> Any:
        if value is None:
            return None
        if hasattr(of, "fields"):
            return {f.name: as_pyarrow(v, f.type) for f, v in zip(of.fields, tuple(value), strict=True)}
        if hasattr(of, "element"):
            return [as_pyarrow(v, of.element) for v in value]
        if hasattr(of, "key"):
            return [(as_pyarrow(k, of.key), as_pyarrow(v, of.value)) for k, v in value.items()]
        return value

    assert same(to_python(pa.array([as_pyarrow(v, kind) for v in some], column.type), kind), some)


def test_schema() -> None:
    schema = arrow_schema(parse_schema("id bigint, at timestamp, tags array<string>"))
    assert schema.names == ["id", "at", "tags"]
    assert schema.types == [pa.int64(), pa.timestamp("us", "UTC"), pa.list_(pa.string())]


def test_other_zones_units_and_layouts() -> None:
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    for arrow in (pa.timestamp("us", "America/New_York"), pa.timestamp("ns", "UTC"), pa.timestamp("s", "+05:30")):
        assert same(to_python(pa.array([moment, None], arrow), parse_type("timestamp")), [moment, None])
    assert to_python(pa.array(["x", None], pa.large_string()), parse_type("string")) == ["x", None]
    assert to_python(pa.array([[b"x"]], pa.large_list(pa.large_binary())), parse_type("array<binary>")) == [[b"x"]]
    assert to_python(pa.array([1], pa.int32()), LongType()) == [1]
    assert from_arrow_type(pa.decimal256(20, 2)).ddl == "decimal(20,2)"


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        (pa.array([1.0]), "bigint"),
        (pa.array([1]), "string"),
        (pa.array([300]), "tinyint"),
        (pa.array([True]), "int"),
        (pa.array([1], pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.array([1], pa.timestamp("us")), "timestamp"),
        (pa.array([dt.datetime(2024, 1, 1)]), "date"),
        (pa.array([Decimal("1.55")]), "decimal(3,1)"),
    ],
)
def test_columns_of_other_types_are_refused(column: pa.Array, ddl: str) -> None:
    with pytest.raises(StateTypeError, match="expected an Arrow column of"):
        to_python(column, parse_type(ddl))


@pytest.mark.parametrize(
    "arrow", [pa.uint8(), pa.float16(), pa.duration("s"), pa.null(), pa.dictionary(pa.int8(), pa.string())]
)
def test_arrow_types_without_counterpart(arrow: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="no counterpart"):
        from_arrow_type(arrow)


def test_moments_beyond_python_are_reported() -> None:
    for kind, number, arrow in (("date", 2**31 - 1, pa.int32()), ("timestamp_ntz", -(2**62), pa.int64())):
        column = pa.array([number], arrow).view(to_arrow_type(parse_type(kind)))
        with pytest.raises(UserCodeError, match="outside the years 1 to 9999"):
            to_python(column, parse_type(kind))


TEXT = ["ok", b"\xff\xfe", None, "", b"\xed\xa0\x80", "é"]
"""Strings as Spark has them, of which some are no UTF-8."""


def texts() -> pa.Array:
    return pa.array([t.encode() if isinstance(t, str) else t for t in TEXT], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("ddl", "make", "wrap"),
    [
        ("string", lambda column: column, lambda text: text),
        (
            "struct<a:string>",
            lambda column: pa.StructArray.from_arrays([column], ["a"]),
            lambda text: record_type(["a"])._make((text,)),
        ),
        (
            "array<string>",
            lambda column: pa.ListArray.from_arrays(range(len(column) + 1), column),
            lambda text: [text],
        ),
        (
            "map<string,string>",
            lambda column: pa.MapArray.from_arrays(range(len(column) + 1), column.fill_null("null"), column),
            lambda text: {"null" if text is None else text: text},
        ),
    ],
)
def test_strings_that_are_no_utf8_are_reported_and_can_be_shown(ddl: str, make: Any, wrap: Any) -> None:
    column, kind = make(texts()), parse_type(ddl)
    for at, text in enumerate(TEXT):
        one = column.slice(at, 1)
        assert to_readable(one, kind) == [wrap(text)]
        if isinstance(text, bytes):
            for read in (to_python, check_readable):
                with pytest.raises(UserCodeError, match=r"is no UTF-8: invalid .* at byte 0") as caught:
                    read(one, kind)
                assert 'where("is_valid_utf8(column)")' in caught.value.hint
        else:
            check_readable(one, kind)
            assert to_python(one, kind) == [wrap(text)]


@pytest.mark.parametrize(
    ("ddl", "given", "expected"),
    [
        ("bigint", np.int32(5), 5),
        ("double", 5, 5.0),
        ("float", 0.1, float(np.float32(0.1))),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))), dt.datetime(2023, 12, 31, 22, tzinfo=dt.UTC)),
        ("struct<a:int,b:string>", {"b": None, "a": 1}, record_type(["a", "b"])._make((1, None))),
        ("struct<a:int,b:string>", (1, "x"), record_type(["a", "b"])._make((1, "x"))),
        ("array<double>", (1, None), [1.0, None]),
        ("map<string,array<int>>", {"a": [1], "b": None}, {"a": [1], "b": None}),
    ],
)  # fmt: skip
def test_accepts(ddl: str, given: Any, expected: Any) -> None:
    kind = parse_type(ddl)
    assert same(to_python(from_python([None, given], kind, "c"), kind), [None, expected])


@pytest.mark.parametrize(
    ("ddl", "fine", "bad"),
    [
        ("bigint", 1, True),
        ("bigint", 1, 1.0),
        ("bigint", 1, "1"),
        ("bigint", 1, 2**63),
        ("int", 1, 2**31),
        ("boolean", True, 1),
        ("double", 1.0, True),
        ("double", 1.0, Decimal(1)),
        ("float", 1.0, 1e39),
        ("string", "x", b"x"),
        ("string", "x", 1),
        ("string", "x", "\ud800"),
        ("binary", b"x", "x"),
        ("date", dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)),
        ("date", dt.date(2024, 1, 1), 5),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1)),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1)),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), 5),
        ("timestamp_ntz", dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pd.NaT),
        ("decimal(5,2)", Decimal("1.5"), "1.5"),
        ("decimal(5,2)", Decimal("1.5"), 1.5),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1.555")),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1000")),
        ("array<int>", [1], [1, 2.0]),
        ("array<int>", [1], 5),
        ("array<int>", [1], np.array(5)),
        ("array<int>", [1], Raising([1])),
        ("map<string,int>", {"a": 1}, {"a": True}),
        ("struct<a:int,b:int>", {"a": 1, "b": 2}, {"a": 1}),
        ("struct<a:int,b:int>", {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}),
        ("struct<a:int,b:int>", {"a": 1, "b": 2}, (1, 2, 3)),
    ],
)
def test_refuses_what_would_change(ddl: str, fine: Any, bad: Any) -> None:
    with pytest.raises(OutputError) as caught:
        from_python([None, fine, bad, fine], parse_type(ddl), "amount")
    error = caught.value
    assert (error.column, error.expected, error.index) == ("amount", parse_type(ddl).ddl, 2)
    assert repr(bad) in error.actual
    assert "the output column 'amount'" in error.message
    assert "row 2" in error.message
