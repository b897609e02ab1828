"""Values and keys whose bytes are kept in golden/bytes.json, in the same order."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from strandline.types.records import record_type

FIRST = dt.datetime(1, 1, 1)
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)


def utc(*moments: dt.datetime) -> list[dt.datetime]:
    return [moment.replace(tzinfo=dt.UTC) for moment in moments]


def records(names: str, *rows: tuple[Any, ...]) -> list[Any]:
    return list(map(record_type(names.split(","))._make, rows))


VALUES: list[tuple[str, list[Any]]] = [
    ("boolean", [False, True]),
    ("tinyint", [0, 127, -128]),
    ("smallint", [1, -2, 32767]),
    ("int", [1, -2, 2**31 - 1, -(2**31)]),
    ("bigint", [0, 1, -1, 2**63 - 1, -(2**63)]),
    ("float", [0.0, -0.0, 1.5, math.inf]),
    ("double", [0.1, -1e300, math.nan]),
    ("date", [dt.date.min, dt.date(1970, 1, 1), dt.date.max]),
    ("timestamp", utc(FIRST, BEFORE, LAST)),
    ("timestamp_ntz", [FIRST, BEFORE, LAST]),
    ("decimal(10,2)", [Decimal("0.00"), Decimal("-1.50"), Decimal("99999999.99")]),
    ("decimal(38,18)", [Decimal("-12345678901234567890.000000000000000001")]),
    ("string", ["", "a", "a\0é😀", "x" * 40]),
    ("binary", [b"", b"\0\xff"]),
    ("struct<cnt:bigint,sm:bigint>", records("cnt,sm", (1, 2), (None, -1), (None, None))),
    (
        "struct<a:boolean,b:date,c:timestamp,d:float>",
        records("a,b,c,d", (True, dt.date(2024, 2, 29), utc(BEFORE)[0], 1.5)),
    ),
    ("struct<a:string,b:int>", records("a,b", ("x", 1), (None, None))),
    ("array<int>", [[], [1, None, -300, 2**31 - 1]]),
    (
        "array<struct<ts:timestamp,v:decimal(5,1)>>",
        [[*records("ts,v", (utc(BEFORE)[0], Decimal("1.5")), (None, None)), None]],
    ),
    ("map<string,bigint>", [{}, {"b": 1, "a": None}]),
    ("map<array<date>,array<binary>>", [{(dt.date(1970, 1, 2), None): [b"x", None]}]),
]

KEYS: list[tuple[list[str], list[Any]]] = [
    (["boolean"], [False, True]),
    (["tinyint"], [-128, 0, 127]),
    (["smallint"], [-1, 1]),
    (["int"], [-1, 0, 1]),
    (["bigint"], [-(2**63), -1, 0, 1, 2**63 - 1]),
    (["float"], [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
    (["double"], [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
    (["date"], [dt.date.min, dt.date(1970, 1, 1), dt.date.max]),
    (["timestamp"], utc(FIRST, BEFORE, LAST)),
    (["timestamp_ntz"], [FIRST, BEFORE, LAST]),
    (["decimal(18,2)"], [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50")]),
    (["decimal(19,2)"], [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50")]),
    (["string"], ["", "\0", "a", "a\0", "ab", "é", "😀"]),
    (["binary"], [b"", b"\0\0", b"\xff"]),
    (["string", "bigint"], [("", -1), ("a", 1)]),
    (["bigint", "date"], [(5, dt.date(2024, 2, 29))]),
    (
        ["struct<a:int,b:string>", "int"],
        [(record, 7) for record in records("a,b", (None, None), (None, "x"), (1, "x"))],
    ),
]
