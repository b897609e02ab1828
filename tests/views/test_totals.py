"""Totals in a partition, against plain Python: counts and sums of rows that come and go, and extremes of rows that stay."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import CorruptionError
from strandline.runtime.operators.aggregates.accumulators import FieldSpec
from strandline.runtime.operators.views.totals import COUNT, Totals
from strandline.runtime.rowlayout import ROWS
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS, examples
from tests.views.operators import KEY, KEY_TYPES, Life, Operator, bag, changes, cut, exact

SUMS = [
    FieldSpec(COUNT, "bigint", "sum"), FieldSpec("count_n", "bigint", "sum"), FieldSpec("sum_n", "bigint", "sum"),
    FieldSpec("count_d", "bigint", "sum"), FieldSpec("sum_d", "decimal(20,2)", "sum"),
]  # fmt: skip
COUNTED = ["", "count_n", "", "count_d"]
EXTREMES = [
    FieldSpec(COUNT, "bigint", "sum"), FieldSpec("max_x", "double", "max"), FieldSpec("min_x", "double", "min"),
    FieldSpec("max_s", "string", "max"), FieldSpec("min_s", "string", "min"), FieldSpec("sum_x", "double", "sum"),
]  # fmt: skip
NAN = float("nan")
NUMBERS: list[Any] = [(0, 5, Decimal("1.50")), (0, None, Decimal("-2.25")), (0, -5, None), (0, None, None)]
VALUES: list[Any] = [(0, 1.5, "b"), (0, -0.5, ""), (0, NAN, "é"), (0, None, None), (0, None, "\U0001f600")]


def totals(kind: str, root: Path, key_type: str, fields: list[FieldSpec], counted: list[str], **given: Any) -> Operator:
    key = f"{KEY} {key_type}"
    columns = ", ".join(f"{field.name} {field.ddl}" for field in fields)
    results = ", ".join(f"{field.name} {field.ddl}" for field in fields[1:])
    process = Totals(parse_schema(key), fields, counted, **given)
    return Operator(kind, root, process, key_type, f"{ROWS} bigint, {columns}", f"{key}, {results}")


def added(key: Any, row: Any, weight: int) -> tuple[Any, ...]:
    """Return what a row of NUMBERS adds, or takes back."""
    _, n, d = row
    return (
        key, 1, weight, weight * (n is not None), None if n is None else n * weight,
        weight * (d is not None), None if d is None else d * weight,
    )  # fmt: skip


def summed(rows: list[Any]) -> tuple[Any, ...]:
    """Return the result of rows of NUMBERS."""
    ns, ds = ([row[at] for row in rows if row[at] is not None] for at in (1, 2))
    return len(ns), sum(ns) if ns else None, len(ds), sum(ds) if ds else None


@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_sums_of_rows_that_come_and_go(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    # The only key of an aggregate without groups has a result without rows, too.
    is_whole = len(keys) == 1 and data.draw(st.booleans())
    bench = totals(kind, tmp_path_factory.mktemp("totals"), key_type, SUMS, COUNTED, is_whole=is_whole)
    life, counts = Life(data, bench), {}
    for _ in range(data.draw(st.integers(1, 6))):
        given = [added(*change) for change in data.draw(changes(keys, NUMBERS, counts))]
        given += [(keys[0], 1, 0, 0, None, 0, None)] * is_whole
        found = life.epoch(cut(data.draw, data.draw(st.permutations(given))))
        assert {row[-1] for row in found} <= {1, -1}
        assert sum(abs(n) for n in bag(found).values()) == len(found)
        by_key: dict[int, list[Any]] = {0: []} if is_whole else {}
        for (at_key, at_row), count in counts.items():
            if count:
                by_key.setdefault(at_key, []).extend([NUMBERS[at_row]] * count)
        assert life.given == Counter(exact((keys[at], *summed(rows))) for at, rows in by_key.items())
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_extremes_of_rows_that_stay(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    """NaN is the greatest number, and null is none."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    bench = totals(kind, tmp_path_factory.mktemp("totals"), key_type, EXTREMES, [""] * 5)
    life = Life(data, bench)
    there: dict[int, list[Any]] = {}
    entries = st.tuples(st.integers(0, len(keys) - 1), st.sampled_from(VALUES))
    for _ in range(data.draw(st.integers(1, 6))):
        epoch = data.draw(st.lists(entries, max_size=8))
        rows = [(keys[at], 1, 1, x, x, s, s, x) for at, (_, x, s) in epoch]
        life.epoch(cut(data.draw, rows))
        for at, row in epoch:
            there.setdefault(at, []).append(row)
        assert life.given == Counter(exact((keys[at], *extremes(rows))) for at, rows in there.items())
    bench.close()


def extremes(rows: list[Any]) -> tuple[Any, ...]:
    """Return the result of rows of VALUES."""
    xs = sorted((x for _, x, _ in rows if x is not None), key=lambda x: (x != x, x))
    texts = sorted((s for _, _, s in rows if s is not None), key=str.encode)
    return (
        xs[-1] if xs else None, xs[0] if xs else None, texts[-1] if texts else None, texts[0] if texts else None,
        sum(xs) if xs else None,
    )  # fmt: skip


def test_more_rows_are_taken_back_than_there_are(tmp_path: Path) -> None:
    key_type, keys = KEY_TYPES["text"]
    bench = totals("rocksdb", tmp_path, key_type, SUMS, COUNTED)
    bench.epoch_of([[added(keys[0], NUMBERS[0], 1)]])
    with pytest.raises(CorruptionError, match="operator 'op': more rows of a key were taken back than it has"):
        bench.epoch_of([[added(keys[0], NUMBERS[0], -1), added(keys[0], NUMBERS[0], -1)]])
    assert bench.epoch_of([[added(keys[0], NUMBERS[0], -1)]])[-1][-1] == -1
    bench.close()


def test_the_key_with_most_rows_is_known(tmp_path: Path) -> None:
    bench = totals("memory", tmp_path, "struct<k0: string, side: int>", SUMS, COUNTED)
    rows = [added(("hot" if n % 2 else f"k{n}", 0), NUMBERS[0], 1) for n in range(400)]
    bench.epoch_of([rows])
    assert bench.task.heavy_keys.heaviest()[0].key == {"k0": "hot"}
