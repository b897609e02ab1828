"""The first rows of each key in a partition, against plain Python: numbers, ties, nulls and NaN in both directions."""

from __future__ import annotations

from collections import Counter
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.top import Numbering, Order, Top
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS, examples
from tests.views.operators import KEY, KEY_TYPES, Life, Operator, bag, changes, cut, exact, row_of

COLUMNS = "k bigint, x double, s string, d decimal(4,1), b boolean"
NAN = float("nan")
ROWS: list[Any] = [
    (0, 0.0, "a", None, True), (0, -0.0, "a", None, None), (0, NAN, "\U0001f600", None, False), (0, None, "\uffff", None, True),
    (0, -1.5, None, None, False), (0, 1.5, "", None, None),
]  # fmt: skip


def first(rows: list[Any], orders: list[Order], numbering: Numbering, count: int | None) -> list[tuple[Any, ...]]:
    """Return the first rows and their numbers."""

    def compare(a: Any, b: Any) -> int:
        return next((found for order in orders if (found := compared(a[order.at], b[order.at], order))), 0)

    found: list[tuple[Any, ...]] = []
    number = distinct = 0
    before: Any = None
    for place, row in enumerate(sorted(rows, key=cmp_to_key(compare)), 1):
        if before is None or compare(before, row):
            number, distinct = place, distinct + 1
        before = row
        found.append((*row, {"row_number": place, "rank": number, "dense_rank": distinct}[numbering]))
    return [row for row in found if count is None or row[-1] <= count]


def compared(a: Any, b: Any, order: Order) -> int:
    """Compare values as Spark sorts them: NaN is the greatest number, and texts are bytes."""
    if a is None or b is None:
        greater = (a is None) - (b is None)
        return greater if order.nulls_last else -greater
    a, b = (
        value.encode() if isinstance(value, str) else (value != value, 0 if value != value else value)
        for value in (a, b)
    )
    found = (a > b) - (a < b)
    return -found if order.is_descending else found


@pytest.mark.parametrize("numbering", ["row_number", "rank", "dense_rank"])
@pytest.mark.parametrize("kind", BACKENDS)
@examples(60)
@given(data=st.data())
def test_the_first_rows(
    tmp_path_factory: pytest.TempPathFactory, kind: str, numbering: Numbering, data: st.DataObject
) -> None:
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    count = data.draw(st.sampled_from([None, 1, 2, 0]))
    columns = data.draw(st.lists(st.sampled_from([1, 2, 4]), unique=True, max_size=2))
    orders = [Order(at, data.draw(st.booleans()), data.draw(st.booleans())) for at in columns]
    appends = data.draw(st.booleans())
    if numbering == "row_number":
        # Otherwise, which of the rows that are equal in the order come first is a matter of their arrival.
        orders += [Order(at, False, False) for at in (1, 2, 4) if at not in columns]
    rows = [row for row in ROWS if numbering != "row_number" or exact(row[1]) != "-0.0"]
    process = Top(
        parse_schema(f"{KEY} {key_type}"), parse_schema(COLUMNS), orders, count, numbering, "number", appends=appends
    )
    bench = Operator(
        kind, tmp_path_factory.mktemp("top"), process, key_type, f"{COLUMNS}, {WEIGHT} bigint", f"{COLUMNS}, number int"
    )
    life = Life(data, bench)
    counts: dict[tuple[int, int], int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        before = dict(counts)
        added = data.draw(changes(keys, rows, counts))
        if appends:
            # Of what comes, nothing is taken back.
            added = [(key, row, weight) for key, row, weight in added if weight > 0]
            counts = before
            places = {exact((keys[k], row_of(k, rows[r]))): (k, r) for k in range(len(keys)) for r in range(len(rows))}
            for key, row, weight in added:
                at = places[exact((key, row))]
                counts[at] = counts.get(at, 0) + weight
        found = life.epoch(cut(data.draw, [(key, *row, weight) for key, row, weight in added]))
        assert sum(abs(n) for n in bag(found).values()) == len(found)
        there: dict[int, list[Any]] = {}
        for (at_key, at_row), n in counts.items():
            there.setdefault(at_key, []).extend([row_of(at_key, rows[at_row])] * n)
        wanted = [row for some in there.values() for row in first(some, orders, numbering, count)]
        assert life.given == Counter(map(exact, wanted))
    bench.close()
