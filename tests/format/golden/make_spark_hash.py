"""Write spark_hash.json: what a real Spark gives for `hash(…)`. Needs a JVM; run by hand, from the repository's root:

python tests/format/golden/make_spark_hash.py
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

from pyspark.sql import SparkSession

TARGET = Path(__file__).with_name("spark_hash.json")

INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
TEXTS = ["", "a", "ab", "abc", "abcd", "abcde", "\0", "a\0b", "é", "日本語", "😀", "ÿþý", "user-0000001", "x" * 100]
FLOATS = ["0.0", "-0.0", "1.0", "-1.5", "0.1", "1e-40", "3.4e38", "nan", "inf", "-inf"]
DOUBLES = [*FLOATS, "1e300", "5e-324", "-123456.789"]
DATES = ["0001-01-01", "1582-10-15", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"]
TIMES = [f"{day} {time}" for day in DATES for time in ("00:00:00", "23:59:59.999999")]
DECIMALS = {
    "decimal(10,0)": ["0", "1", "-1", "9999999999"],
    "decimal(18,6)": ["0", "1.5", "-0.000001", "999999999999.999999"],
    "decimal(19,2)": ["0", "0.01", "-0.01", "1.27", "1.28", "-1.28", "-1.29", "99999999999999999.99"],
    "decimal(38,18)": ["0", "1", "-1", "12345678901234567890.123456789012345678", "-99999999999999999999"],
}


def rows() -> list[tuple[str, str, object]]:
    """Return (DDL type, SQL expression, the value as JSON)."""
    rng = random.Random(7)
    found: list[tuple[str, str, object]] = []
    for ddl, bits in INTEGERS.items():
        limit = 1 << (bits - 1)
        for value in [0, 1, -1, 42, limit - 1, -limit, *(rng.randrange(-limit, limit) for _ in range(20))]:
            found.append((ddl, f"cast('{value}' as {ddl})", value))
    found += [("boolean", str(value).lower(), value) for value in (True, False)]
    for ddl, texts in (("float", FLOATS), ("double", DOUBLES)):
        found += [(ddl, f"cast('{text}' as {ddl})", text) for text in texts]
    words = ["".join(rng.choices(string.printable + "äöü€😀", k=rng.randrange(20))) for _ in range(40)]
    for text in [*TEXTS, *words]:
        raw = text.encode().hex()
        found.append(("string", f"cast(unhex('{raw}') as string)", text))
        found.append(("binary", f"unhex('{raw}')", raw))
    found += [
        ("binary", f"unhex('{bytes(range(250 - n, 250)).hex()}')", bytes(range(250 - n, 250)).hex()) for n in range(9)
    ]
    found += [("date", f"date'{day}'", day) for day in DATES]
    found += [("timestamp", f"timestamp'{time} UTC'", time) for time in TIMES]
    found += [("timestamp_ntz", f"timestamp_ntz'{time}'", time) for time in TIMES]
    found += [(ddl, f"cast('{text}' as {ddl})", text) for ddl, texts in DECIMALS.items() for text in texts]
    found += [
        ("array<int>", "array(1, null, 3)", [1, None, 3]),
        ("array<int>", "cast(array() as array<int>)", []),
        ("array<string>", "array('a', '', null)", ["a", "", None]),
        ("struct<a:int,b:string>", "named_struct('a', 1, 'b', 'x')", [1, "x"]),
        ("struct<a:int,b:string>", "named_struct('a', cast(null as int), 'b', 'x')", [None, "x"]),
        ("array<struct<a:bigint,b:double>>", "array(named_struct('a', 1L, 'b', 2.5D), null)", [[1, "2.5"], None]),
        ("map<string,bigint>", "map('a', 1L, 'b', null)", [["a", 1], ["b", None]]),
    ]
    return found


def main() -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.legacy.allowHashOnMapType", "true")
        .getOrCreate()
    )
    single = rows()
    rng = random.Random(8)
    multi = [rng.sample(single, rng.randrange(2, 5)) for _ in range(30)]
    multi += [[row, ("int", "cast(null as int)", None)] for row in rng.sample(single, 5)]
    groups = [[row] for row in single] + multi
    cases = []
    # A few hundred expressions at a time: one statement with all of them would take Spark very long.
    for start in range(0, len(groups), 50):
        some = groups[start : start + 50]
        expressions = [f"hash({', '.join(sql for _, sql, _ in group)})" for group in some]
        hashes = spark.sql("select " + ", ".join(f"{e} as h{i}" for i, e in enumerate(expressions))).collect()[0]
        for group, value in zip(some, hashes, strict=True):
            cases.append({"types": [row[0] for row in group], "values": [row[2] for row in group], "hash": value})
    version = spark.version
    spark.stop()
    lines = ",\n".join(json.dumps(case) for case in cases)
    TARGET.write_text(f'{{"spark": "{version}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
