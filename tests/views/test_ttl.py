"""Operators of views that forget: joins by when rows come, against plain Python, and the state of idle keys of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.near import Near, NearJoining
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.runtime.operators.views.top import Order, Top
from strandline.types.datatypes import parse_schema
from tests.soak import BACKENDS, examples
from tests.views.operators import COLUMNS, KEY, KEY_TYPES, Life, Operator, bag, cut
from tests.views.test_near import HOWS, LEFT_ROWS, LEFTS, OUTPUTS, RIGHT_ROWS, RIGHTS, arrivals, joined
from tests.views.test_operators import halves, joining

KEY_TYPE = "struct<k0: bigint>"
MINUTE_MS = 60_000
ROW = (1, 0.5, "a", None)


class Clocked(Operator):
    """A partition whose clock moves."""

    now_us = 0

    def apply(self, batches: Iterable[pa.RecordBatch], *given: Any, abort: bool = False) -> list[pa.RecordBatch]:
        return super().apply(batches, None, self.now_us, abort=abort)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", BACKENDS)
@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_joins_by_when_rows_come(
    tmp_path_factory: pytest.TempPathFactory, kind: str, how: Any, data: st.DataObject
) -> None:
    """A row meets those that come within its time to live; rows without a partner are taken back when one comes."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    near = Near(-data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9)), by_clock=True)
    left = "struct<n: bigint, s: string>"
    right = "struct<m: bigint, y: double>"
    output = OUTPUTS.get(how, f"{LEFTS}, {RIGHTS}")
    process = NearJoining(how, parse_schema(LEFTS), parse_schema(RIGHTS), parse_schema(output), near, final=False)
    root = tmp_path_factory.mktemp("ttl")
    bench = Clocked(kind, root, process, key_type, f"left {left}, right {right}", output)
    life, lefts, rights = Life(data, bench), [], []
    for _ in range(data.draw(st.integers(1, 6))):
        bench.now_us += data.draw(st.integers(0, 6))
        some = [data.draw(arrivals(keys, rows, 0)) for rows in (LEFT_ROWS, RIGHT_ROWS)]
        pairs = [*((row, None, key) for key, row, _ in some[0])]
        pairs += [(None, row, key) for key, row, _ in some[1]]
        life.epoch(cut(data.draw, data.draw(st.permutations(pairs))))
        lefts += [(key, row, bench.now_us) for key, row, _ in some[0]]
        rights += [(key, row, bench.now_us) for key, row, _ in some[1]]
        assert life.given == joined(how, near, lefts, rights, None)
    bench.now_us += 100
    life.epoch([])
    if kind == "rocksdb":
        assert not bench.left()
    bench.close()


def operators(root: Path) -> dict[str, tuple[Operator, Any]]:
    """Return operators that forget after a minute, and a row of each, without its weight."""
    key, columns = parse_schema(f"{KEY} {KEY_TYPE}"), parse_schema(COLUMNS)
    top = Top(key, columns, [Order(0, False, False)], 2, "row_number", "number", appends=False)
    made: dict[str, tuple[Any, str, str, Any]] = {
        "rows": (Collecting(key, columns), f"{COLUMNS}, {WEIGHT} bigint", f"{KEY} {KEY_TYPE}, {COLUMNS}", ((7,), *ROW)),
        "results": (Comparing(key, columns), f"{COLUMNS}, {WEIGHT} bigint", COLUMNS, ((7,), *ROW)),
        "top": (top, f"{COLUMNS}, {WEIGHT} bigint", f"{COLUMNS}, number int", ((7,), *ROW)),
    }
    found: dict[str, tuple[Operator, Any]] = {}
    for name, (process, columns_in, output, row) in made.items():
        process.keep_for(MINUTE_MS)
        found[name] = Clocked("rocksdb", root / name, process, KEY_TYPE, columns_in, output), row
    return found


@pytest.mark.parametrize("name", ["rows", "results", "top"])
def test_an_idle_key_is_forgotten(tmp_path: Path, name: str) -> None:
    """State ends with its time to live, and what it is told to take back after that is not taken back."""
    bench, row = operators(tmp_path)[name]
    assert isinstance(bench, Clocked)
    first = bag(bench.epoch_of([[(*row, 1)]]))
    assert len(first) == 1
    bench.now_us = 50_000_000
    # A change keeps it.
    assert len(bag(bench.epoch_of([[(*row, 1), (*row, 0)]]))) <= 1
    bench.now_us = 100_000_000
    bench.epoch_of([[((8,), *row[1:], 1)]])
    assert len([entry for entry in bench.left() if b"rows" not in entry]) == 2
    bench.now_us = 300_000_000
    bench.epoch_of([])
    assert not bench.left()
    if name != "results":
        assert bag(bench.epoch_of([[(*row, -1)]])) == Counter()
        assert not bench.left()
    assert bag(bench.epoch_of([[(*row, 1)]])) == first
    bench.close()


def test_a_join_forgets_the_rows_of_an_idle_key(tmp_path: Path) -> None:
    bench = joining("left", KEY_TYPE, "rocksdb", tmp_path)
    process = bench.program.load()
    process.keep_for(MINUTE_MS)
    left, right = (each.type.ddl for each in bench.shape.schema.fields[:2])
    clocked = Clocked(
        "rocksdb",
        tmp_path / "clocked",
        process,
        KEY_TYPE,
        f"left {left}, right {right}",
        "n bigint, x double, s string, l array<double>, m bigint, y double",
    )
    bench.close()
    clocked.epoch_of([halves([((7,), ROW, 1)], [])])
    clocked.now_us = 61_000_000
    # The left row is forgotten: no pair, and what was given of it stays.
    assert clocked.epoch_of([halves([], [((7,), (1, 0.0), 1)])]) == []
    # To take it back changes nothing.
    assert clocked.epoch_of([halves([((7,), ROW, -1)], [])]) == []
    assert len(clocked.epoch_of([halves([((7,), ROW, 1)], [])])) == 1
    clocked.now_us = 300_000_000
    clocked.epoch_of([])
    assert not clocked.left()
    clocked.close()
