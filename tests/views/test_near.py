"""Joins of rows whose times are near, against plain Python: what is given adds up, and state ends with its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.core.times import END_US
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.near import Near, NearJoining
from strandline.types.datatypes import parse_schema
from tests.runtime.looking import find, first
from tests.soak import BACKENDS, examples
from tests.views.operators import KEY, KEY_TYPES, Bag, Life, Operator, cut, exact

HOWS = ("inner", "left", "right", "full", "semi", "anti", "existence")
LEFTS, RIGHTS = "n bigint, s string", "m bigint, y double"
LEFT_ROWS: list[Any] = [(1, "a"), (1, None), (None, "")]
RIGHT_ROWS: list[Any] = [(1, 0.0), (2, -0.0), (None, None)]
OUTPUTS = {"semi": LEFTS, "anti": LEFTS, "existence": f"{LEFTS}, e boolean"}
Arrival = tuple[Any, Any, int | None]
"""A key, a row and its time."""


class Watched(Operator):
    """A partition whose watermark moves."""

    watermark_us: int | None = None
    fired_us: int | None = None
    late_rows = 0

    def apply(self, batches: Iterable[pa.RecordBatch], *given: Any, abort: bool = False) -> list[pa.RecordBatch]:
        found = super().apply(batches, self.watermark_us, fired_us=self.fired_us, abort=abort)
        self.late_rows = self.task.late_rows
        return found


def near_joining(how: Any, near: Near, final: bool, key_type: str, kind: str, root: Path) -> Watched:
    left = "struct<n: bigint, s: string, at: bigint>"
    right = "struct<m: bigint, y: double, at: bigint>"
    output = OUTPUTS.get(how, f"{LEFTS}, {RIGHTS}")
    process = NearJoining(how, parse_schema(LEFTS), parse_schema(RIGHTS), parse_schema(output), near, final=final)
    return Watched(kind, root, process, key_type, f"left {left}, right {right}", output)


def joined(how: str, near: Near, lefts: Sequence[Arrival], rights: Sequence[Arrival], reached: int | None) -> Bag:
    """Return the result of a join; rows without a partner are those that can have none if `reached` is the watermark."""
    found: list[Any] = []
    paired: tuple[set[int], set[int]] = (set(), set())
    for i, (key, row, at) in enumerate(lefts):
        for j, (other_key, other, other_at) in enumerate(rights):
            if exact(key) != exact(other_key) or at is None or other_at is None:
                continue
            if near.lower_us <= other_at - at <= near.upper_us:
                paired[0].add(i)
                paired[1].add(j)
                if how not in OUTPUTS:
                    found.append((*row, *other))
    for i, (_, row, at) in enumerate(lefts):
        is_over = at is None or reached is None or at + near.upper_us + near.lags_us[1] < reached
        if i in paired[0]:
            found += {"semi": [row], "existence": [(*row, True)]}.get(how, [])
        elif is_over:
            nothing = (*row, None, None)
            found += {"left": [nothing], "full": [nothing], "anti": [row], "existence": [(*row, False)]}.get(how, [])
    for j, (_, row, at) in enumerate(rights):
        is_over = at is None or reached is None or at - near.lower_us + near.lags_us[0] < reached
        if j not in paired[1] and is_over and how in ("right", "full"):
            found.append((None, None, *row))
    return Counter(map(exact, found))


@st.composite
def arrivals(draw: st.DrawFn, keys: Sequence[Any], rows: Sequence[Any], around: int) -> list[Arrival]:
    """Return the rows of an epoch of one side, whose times are near a time, or missing."""
    times = st.one_of(st.none(), *[st.integers(around - 6, around + 14)] * 6)
    return draw(st.lists(st.tuples(st.sampled_from(keys), st.sampled_from(rows), times), max_size=8))


@pytest.mark.parametrize("final", [True, False], ids=["final", "changes"])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", BACKENDS)
@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_near_joins(
    tmp_path_factory: pytest.TempPathFactory, kind: str, how: str, final: bool, data: st.DataObject
) -> None:
    """Late rows take no part. Results of rows that have no partner are given when the watermark has passed them."""
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    lower = data.draw(st.integers(-12, 8))
    near = Near(lower, lower + data.draw(st.integers(0, 9)), data.draw(st.sampled_from([(0, 0), (3, 0), (0, 4)])))
    bench = near_joining(how, near, final, key_type, kind, tmp_path_factory.mktemp("near"))
    life, lefts, rights = Life(data, bench), [], []
    watermark: int | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        bench.fired_us = watermark
        if data.draw(st.integers(0, 3)):
            watermark = (-5 if watermark is None else watermark) + data.draw(st.integers(0, 9))
        bench.watermark_us = watermark
        some = [data.draw(arrivals(keys, rows, watermark or 0)) for rows in (LEFT_ROWS, RIGHT_ROWS)]
        pairs = [*(((*row, at), None, key) for key, row, at in some[0])]
        pairs += [(None, (*row, at), key) for key, row, at in some[1]]
        given = life.epoch(cut(data.draw, data.draw(st.permutations(pairs))))
        next_us, _ = bench.task.next_timers_us
        # A timer that is due already would have the driver run epochs for ever.
        assert next_us is None or watermark is None or next_us >= watermark
        late = 0
        for number, (all_rows, new) in enumerate(zip((lefts, rights), some, strict=True)):
            first = None if watermark is None else watermark - near.lags_us[number]
            counting = [each for each in new if each[2] is None or first is None or each[2] >= first]
            all_rows += counting
            late += len(new) - len(counting)
        assert bench.late_rows == late
        assert {row[-1] for row in given} <= ({1} if final else {1, -1})
        reached = (watermark if watermark is not None else -END_US) if final else None
        assert life.given == joined(how, near, lefts, rights, reached)
    bench.fired_us, bench.watermark_us = watermark, END_US
    life.epoch([])
    assert life.given == joined(how, near, lefts, rights, None)
    if kind == "rocksdb":
        assert not bench.left()
    bench.close()


def test_rows_are_in_state_for_as_long_as_partners_can_come(tmp_path: Path) -> None:
    """A row of each side is there until the watermark has passed the last time of a partner, to the microsecond."""
    near = Near(-3, 5)
    bench = near_joining("inner", near, True, "struct<k0: bigint>", "rocksdb", tmp_path)
    for number, rows in enumerate(([((1, "a", 100), None, (7,))], [(None, (1, 0.0, 100), (7,))])):
        bench.watermark_us = 100 + number * 1000
        rows = [
            tuple(None if half is None else (*half[:-1], half[-1] + number * 1000) for half in row[:2]) + row[2:]
            for row in rows
        ]
        bench.epoch_of([rows])
        end = bench.watermark_us + (5, 3)[number]
        # Buckets are as wide as the interval.
        for bench.watermark_us, is_there in ((end, True), (end + 9, False)):
            bench.epoch_of([])
            assert bool(bench.left()) == is_there
    bench.close()
    assert WEIGHT in bench.program.output_schema


@pytest.mark.parametrize("kind", BACKENDS)
def test_look_ups_have_the_rows_that_can_have_partners(kind: str, tmp_path: Path) -> None:
    """By the bucket of their times: in memory, written, after an epoch that was given up, and until they are dropped."""
    key_type, near = "struct<k0: bigint>", Near(-3, 4)
    bench = near_joining("left", near, True, key_type, kind, tmp_path)

    def found(side: str, key: Any) -> dict[int, list[tuple[Any, ...]]]:
        looked_up = find(bench, side, key, key_schema=f"`{KEY}` {key_type}")
        return {
            bucket: sorted((each["at"], each["matched"], *each["row"]) for each in rows)
            for bucket, rows in looked_up.value.items()
        }

    bench.watermark_us = 0
    assert near.width_us == 8
    bench.epoch_of([[((1, "a", 5), None, (7,)), ((2, "b", 17), None, (7,)), ((3, "c", 5), None, (8,))]])
    bench.epoch_of([[(None, (1, 0.5, 2), (7,))]])
    lefts = {0: [(5, True, 1, "a")], 2: [(17, False, 2, "b")]}
    for step in ("memory", "given up", "written"):
        if step == "given up":
            bench.epoch_of([[((9, "x", 6), None, (7,)), (None, (9, 9.5, 17), (7,))]], abort=True)
        elif step == "written":
            bench.write(bench.freeze())
            bench.keep_nothing_in_memory(True)
            bench.epoch_of([])
        assert found("left", (7,)) == lefts, step
        assert found("right", (7,)) == {0: [(2, False, 1, 0.5)]}, step
        assert found("left", (8,)) == {0: [(5, False, 3, "c")]}, step
        assert not found("right", (8,)), step
    listed = first(bench, "left", 10, key_schema=f"`{KEY}` {key_type}")
    assert sorted(listed.keys) == [((7,),), ((8,),)]
    bench.watermark_us = 16
    bench.epoch_of([])
    assert found("left", (7,)) == {2: lefts[2]}
    assert not found("left", (8,))
    assert not found("right", (7,))
    bench.close()
