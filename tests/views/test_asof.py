"""As-of joins against plain Python: each row with the version that was valid at its time, and state that ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.core.times import END_US
from strandline.runtime.operators.views.asof import AsOfJoining
from strandline.types.datatypes import parse_schema
from tests.soak import examples
from tests.views.operators import KEY, KEY_TYPES, Bag, Life, cut, exact
from tests.views.test_near import LEFT_ROWS, LEFTS, RIGHT_ROWS, RIGHTS, Arrival, arrivals
from tests.views.watched import KINDS, watched


def as_of(
    how: Any,
    lags: tuple[int, int],
    final: bool,
    is_strict: bool,
    key_type: str,
    kind: str,
    root: Path,
    *,
    is_phased: bool = False,
) -> Any:
    left = "struct<n: bigint, s: string, at: bigint>"
    right = "struct<m: bigint, y: double, at: bigint, gone: boolean>"
    key, lefts, rights, both = map(parse_schema, (f"{KEY} {key_type}", LEFTS, RIGHTS, f"{LEFTS}, {RIGHTS}"))
    process = AsOfJoining(key, how, lefts, rights, both, lags, final=final, is_strict=is_strict)
    columns = f"left {left}, right {right}"
    return watched(kind, root, process, key_type, columns, f"{LEFTS}, {RIGHTS}", is_phased=is_phased)


def answer(how: str, is_strict: bool, left: Arrival, versions: list[tuple[Arrival, bool]]) -> list[str]:
    key, row, at = left
    newest: tuple[int, Any, bool] | None = None
    for (its_key, version, since), gone in versions:
        if at is None or since is None or exact(its_key) != exact(key) or since > at - is_strict:
            continue
        if newest is None or newest[0] <= since:
            newest = since, version, gone
    if newest is None or newest[2]:
        return [exact((*row, None, None))] if how == "left" else []
    return [exact((*row, *newest[1]))]


@pytest.mark.parametrize("final", [True, False], ids=["final", "changes"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("kind", KINDS)
@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_as_of_joins(
    tmp_path_factory: pytest.TempPathFactory, kind: str, how: str, final: bool, data: st.DataObject
) -> None:
    key_type, keys = KEY_TYPES[data.draw(st.sampled_from(sorted(KEY_TYPES)))]
    lags, is_strict = data.draw(st.sampled_from([(0, 0), (3, 0), (0, 4)])), data.draw(st.booleans())
    is_phased = data.draw(st.booleans(), label="is_phased")
    root = tmp_path_factory.mktemp("asof")
    bench = as_of(how, lags, final, is_strict, key_type, kind, root, is_phased=is_phased)
    life = Life(data, bench)
    waiting: list[Arrival] = []
    versions: list[tuple[Arrival, bool]] = []
    fixed: Bag = Counter()
    watermark: int | None = None

    def settle() -> None:
        """Answer the rows that the watermark has passed, for good."""
        for left in [*waiting]:
            if left[2] is None or (watermark is not None and left[2] + lags[1] < watermark):
                waiting.remove(left)
                fixed.update(answer(how, is_strict, left, versions))

    late = 0

    def arrive() -> list[Any]:
        """Return the input of some rows, of which those count that are not late, and all versions."""
        nonlocal late
        lefts = data.draw(arrivals(keys, LEFT_ROWS, watermark or 0))
        rights = [(each, data.draw(st.booleans())) for each in data.draw(arrivals(keys, RIGHT_ROWS, watermark or 0))]
        firsts = [None if watermark is None else watermark - lag for lag in lags]
        on_time = [each for each in lefts if each[2] is None or firsts[0] is None or each[2] >= firsts[0]]
        late += len(lefts) - len(on_time)
        late += sum(each[2] is not None and firsts[1] is not None and each[2] < firsts[1] for each, _ in rights)
        waiting.extend(on_time)
        versions.extend(rights)
        settle()
        return [
            *(((*row, at), None, key) for key, row, at in lefts),
            *((None, (*row, at, gone), key) for (key, row, at), gone in rights),
        ]

    for _ in range(data.draw(st.integers(1, 6))):
        bench.fired_us, late = watermark, 0
        # What timers of an operator before give comes before the watermark moves.
        bench.fired = arrive() if is_phased else ()
        if data.draw(st.integers(0, 3)):
            watermark = (-5 if watermark is None else watermark) + data.draw(st.integers(0, 9))
        bench.watermark_us = watermark
        settle()
        # Of equal times, the version that comes last counts.
        given = life.epoch(cut(data.draw, arrive()))
        next_us = bench.next_us
        # A timer that is due already would have the driver run epochs for ever.
        assert next_us is None or watermark is None or next_us >= watermark
        assert bench.late_rows == late
        now = fixed if final else fixed + Counter(x for each in waiting for x in answer(how, is_strict, each, versions))
        assert life.given == now
        assert {row[-1] for row in given} <= ({1} if final else {1, -1})
    bench.fired_us, bench.watermark_us, bench.fired = watermark, END_US, ()
    life.epoch([])
    watermark = END_US
    settle()
    assert life.given == fixed
    if kind == "rocksdb":
        # The newest version of each key is there, and nothing else.
        newest = {exact(key) for (key, _, at), _ in versions if at is not None}
        assert len(bench.left()) == len(newest)
    bench.close()


@pytest.mark.parametrize("is_strict", [True, False], ids=["before", "at or before"])
def test_a_version_is_kept_for_the_oldest_row_that_may_come(tmp_path: Path, is_strict: bool) -> None:
    bench = as_of("inner", (3, 0), False, is_strict, "struct<k0: bigint>", "rocksdb", tmp_path)
    key, version = (1,), (1, 0.0)
    bench.watermark_us = bench.fired_us = 8
    # Rows may come from 5 on.
    bench.epoch_of([[(None, (1, 0.0, 2, False), key), (None, (2, 0.0, 5, False), key)]])
    given = bench.epoch_of([[((1, "a", 5), None, key)]])
    assert [row[:-1] for row in given] == [(1, "a", *(version if is_strict else (2, 0.0)))]
    bench.close()


@pytest.mark.parametrize("far_us", [(1 << 63) - 1, -(1 << 63)])
def test_times_that_are_the_longest_way_off(tmp_path: Path, far_us: int) -> None:
    """A sum of such a time and a lag does not fit into 64 bits: a row waits all the same."""
    bench = as_of("left", (4, 5), True, False, "struct<k0: bigint>", "rocksdb", tmp_path)
    assert bench.epoch_of([[((1, "a", far_us), None, (7,))]]) == []
    assert bench.epoch_of([[(None, (1, 0.0, far_us, False), (7,)), ((2, "b", None), None, (7,))]]) == [
        (2, "b", None, None, 1)
    ]
    bench.watermark_us = END_US
    assert bench.epoch_of([]) == [(1, "a", 1, 0.0, 1)]
    bench.close()
