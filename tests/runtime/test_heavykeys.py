"""The keys with the most rows lately: no heavy one is missed, shares are as near as they say, and memory is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.api.badrecords import OnError
from strandline.core.heavykey import LEAST_ROWS, MOST_KEYS
from strandline.runtime import heavykeys
from strandline.runtime.heavykeys import HeavyKeys
from strandline.types.records import record_type
from tests.runtime.bench import KINDS, Bench, Event, batch_of
from tests.soak import examples

SECOND = 1_000_000
NOW_US = 1_700_000_000 * SECOND


def count(keys: HeavyKeys, batch: Sequence[Any]) -> None:
    """Count a batch if it is due, as a task does."""
    keys.add([batch[at] for at in keys.sample(len(batch))])


def size(keys: HeavyKeys) -> int:
    return len(keys._counts)


@examples(150)
@given(
    st.integers(0, 2**32),
    st.floats(1.05, 4.0),
    st.integers(2, 5_000),
    st.lists(st.integers(1, 32), min_size=1, max_size=250),
    st.integers(1, 20),
)
def test_of_batches_that_are_counted_in_full_no_heavy_key_is_missed(
    seed: int, skew: float, distinct: int, batches: list[int], seconds: int
) -> None:
    """Misra and Gries' bound holds for rows that weigh less as they grow old."""
    random = np.random.default_rng(seed)
    keys, exact, now_us = HeavyKeys(["k"], 0), Counter[int](), NOW_US
    keys.begin(now_us)
    for rows in batches:
        batch = (random.zipf(skew, rows) % distinct).tolist()
        count(keys, batch)
        exact.update(batch)
        assert size(keys) <= 2 * heavykeys._COUNTERS
        now_us += seconds * SECOND
        keys.begin(now_us)
        exact = Counter({key: number * 2.0 ** (-seconds / 30) for key, number in exact.items()})  # type: ignore[misc]
    rows = sum(exact.values())
    assert keys.rows == pytest.approx(rows)
    for key, number in exact.items():
        counted = keys._counts.get(key, 0.0) / keys._weight
        assert counted * (1 - 1e-9) <= number <= (counted + keys._lost / keys._weight) * (1 + 1e-9) + 1e-9
    assert keys._lost <= keys._all / heavykeys._COUNTERS
    shown = keys.heaviest()
    assert len(shown) <= MOST_KEYS
    for each in shown:
        assert each.share == pytest.approx(exact[int(each.key["k"])] / rows, abs=each.error + 1e-4)
    if rows >= LEAST_ROWS:
        (heaviest, number), *_ = exact.most_common(1)
        assert (
            number / rows < 0.03
            or str(heaviest) in [each.key["k"] for each in shown[:1]]
            or exact[int(shown[0].key["k"])] > 0.9 * number
        )


@examples(40)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.05, 0.31, 0.8]),
    st.sampled_from([100, 3_000, 10_000, 262_144]),
    st.booleans(),
)
def test_of_large_batches_a_sample_is_enough(partition: int, share: float, rows: int, takes_turns: bool) -> None:
    random = np.random.default_rng(partition)
    keys = HeavyKeys(["card"], partition)
    for n in range(20):
        keys.begin(NOW_US + n * SECOND)
        batch = random.integers(0, 500_000, rows)
        # As rows may come: a key's in turns with others', which a sample of each n-th row would miss, or all.
        hot = np.arange(rows) % round(1 / share) == 0 if takes_turns else random.random(rows) < share
        count(keys, np.where(hot, -1, batch).tolist())
        assert size(keys) <= 2 * heavykeys._COUNTERS + 1024
    true = 1 / round(1 / share) if takes_turns else share
    first, *others = keys.heaviest()
    assert first.key == {"card": "-1"}
    # Two standard deviations are exceeded now and then; and of the drawn rows not just this share has the key.
    assert abs(first.share - true) <= 2 * first.error + 3 * (share * (1 - share) / rows / 20) ** 0.5
    assert first.error < 0.05
    assert (first.partition, others) == (partition, [])


def test_lately_is_about_a_minute() -> None:
    keys = HeavyKeys(["k"], 0)
    for second in range(3600):
        keys.begin(NOW_US + second * SECOND)
        count(keys, ["old"] * 20)
    assert [each.key for each in keys.heaviest()] == [{"k": "old"}]
    for second in range(3600, 3690):
        keys.begin(NOW_US + second * SECOND)
        count(keys, ["new"] * 20)
    new, old = keys.heaviest()
    assert (new.key["k"], old.key["k"]) == ("new", "old")
    assert new.share == pytest.approx(7 / 8, abs=0.01)
    keys.begin(NOW_US + 4600 * SECOND)
    assert keys.heaviest() == [], "nothing has come lately"
    # Weights grow for as long as a keeper lives, and a clock may go back.
    keys.begin(NOW_US + 10**9 * SECOND)
    keys.begin(NOW_US)
    for n in range(1, 11):
        keys.begin(NOW_US + n * SECOND)
        count(keys, ["late"] * 20)
    assert [(each.key["k"], each.share, each.error) for each in keys.heaviest()] == [("late", 1.0, 0.0)]


def test_of_hardly_any_rows_nothing_is_said() -> None:
    keys = HeavyKeys(["k"], 0)
    assert keys.heaviest() == []
    for n in range(120):
        keys.begin(NOW_US + n * SECOND // 10)
        count(keys, ["a"])
        if n < 99:
            assert keys.heaviest() == []
    assert [each.share for each in keys.heaviest()] == [1.0]


def test_not_every_batch_is_sampled_and_the_next_one_counts_for_it() -> None:
    keys, sampled = HeavyKeys(["k"], 0), 0
    for epoch in range(100):
        keys.begin(NOW_US + epoch * SECOND // 100)
        if places := keys.sample(50):
            keys.add(["a"] * len(places))
            sampled += 1
    assert sampled == 10
    assert keys.rows == pytest.approx(100 * 50, rel=0.15)
    # A long epoch is sampled on its way.
    sampled = 0
    for _ in range(20):
        if places := keys.sample(10_000):
            keys.add(["b"] * len(places))
            sampled += 1
    assert sampled == 10
    assert keys.heaviest()[0].share == pytest.approx(200_000 / 205_000, abs=0.02)


def test_of_many_equal_keys_none_is_heavy() -> None:
    keys = HeavyKeys(["k"], 0)
    random = np.random.default_rng(5)
    for n in range(100):
        keys.begin(NOW_US + n * SECOND)
        count(keys, random.integers(0, 10**6, 10_000).tolist())
    assert keys.heaviest() == []


def test_long_keys_are_told_apart_and_take_little_memory() -> None:
    keys = HeavyKeys(["a", "b"], 0)
    for n in range(300):
        keys.begin(NOW_US + n * SECOND // 10)
        # They begin alike; each is a megabyte.
        count(keys, [("x" * 1_000_000 + str(min(n % 3, 1)), bytes(1_000_000))] * 2)
    first, second = keys.heaviest()
    assert (round(first.share, 2), round(second.share, 2)) == (0.67, 0.33)
    assert first.key["a"] == "x" * 100 + "…"
    assert sum(len(part.begins) for key in keys._counts for part in key) < 1000


@pytest.mark.parametrize(
    ("columns", "key", "text"),
    [
        (["card"], 17, {"card": "17"}),
        (["card", "shop"], (17, "oslo"), {"card": "17", "shop": "oslo"}),
        (["__strandline_key"], record_type(["k0", "side"])._make(("é", 0)), {"k0": "é"}),
        (["__strandline_key"], record_type(["side"])._make((0,)), {}),
        (["__strandline_key"], "ann", {"key": "ann"}),
        (["at"], record_type(["x", "side"])._make((None, 1)), {"at": '{"x": null, "side": 1}'}),
    ],
)
def test_keys_as_text(columns: list[str], key: Any, text: dict[str, str]) -> None:
    keys = HeavyKeys(columns, 0)
    count(keys, [key] * 100 if not isinstance(key, tuple) else [key for _ in range(100)])
    assert [each.key for each in keys.heaviest()] == [text]


# -- in a partition


def hot(rows: int, share: float) -> list[Event]:
    every = round(1 / share)
    return [("hot" if n % every == 0 else f"k{n}", "set_value", n, 0) for n in range(rows)]


def named(bench: Bench) -> list[tuple[dict[str, str], float]]:
    return [(each.key, each.share) for each in bench.task.heavy_keys.heaviest()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_names_a_hot_key_and_a_restored_one_begins_anew(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    for n in range(10):
        bench.apply([batch_of(hot(300, 0.25))], now_us=NOW_US + n * SECOND)
    (key, share), *rest = named(bench)
    assert key == {"k": "hot"}
    assert share == pytest.approx(0.25, abs=0.05)
    assert rest == []
    bench.restore(bench.snapshot(), bench.epoch)
    assert named(bench) == []


class Marks(sl.KeyedBatchProcess):
    seen = sl.Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.seen.put_many(ctx.keys, [1] * batch.num_rows, last=True)


def test_a_key_of_a_vectorised_function_may_have_several_columns(tmp_path: Path) -> None:
    bench = Bench("rocksdb", tmp_path, Marks(), key_columns=["k", "a"])
    rows = [(k, op, 7 if k == "hot" else a, b) for k, op, a, b in hot(4_000, 0.5)]
    bench.apply([batch_of(rows, keys=["k", "a"])], now_us=NOW_US)
    ((key, share),) = named(bench)
    assert key == {"k": "hot", "a": "7"}
    assert share == pytest.approx(0.5, abs=0.3)


def test_rows_without_a_key_are_not_counted(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, on_error=OnError("skip"))
    bench.apply([batch_of([(None, "set_value", 1, 0)] * 200)], now_us=NOW_US)
    assert bench.task.heavy_keys.rows == 0
    bench.apply([batch_of([("a", "set_value", 1, 0), (None, "set_value", 1, 0)] * 200)], now_us=NOW_US + SECOND)
    assert named(bench) == [({"k": "a"}, 1.0)]
    assert bench.task.heavy_keys.rows == 200
