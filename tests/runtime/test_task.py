"""A task: vectorised functions, keys of every kind, limits, and what is let go of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Map, Value
from strandline.core.errors import NullKeyError, StateLimitError, StateTypeError, UserCodeError
from strandline.core.ids import Epoch
from strandline.runtime.state import livekeys
from strandline.runtime.task import task as task_module
from strandline.runtime.task.task import EpochTimes
from tests.runtime.bench import Bench, Everything, batch_of
from tests.runtime.conftest import Make
from tests.soak import BACKENDS, examples


class Totals(KeyedBatchProcess):
    """Keeps a total and a text a key; a total of zero is cleared."""

    total = Value("bigint", default=0)
    text = Value("string")

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        added = np.zeros(len(keys), dtype=np.int64)
        np.add.at(added, row_of, batch.column("a").to_numpy())
        new = np.array(self.total.get_many(keys)) + added
        self.total.put_many(keys, pa.array(new, mask=new == 0))
        self.text.put_many(ctx.keys, batch.column("op"), last=True)
        texts = self.text.get_many(keys)
        answers = [f"{n} {t}" for n, t in zip(new.tolist(), texts.to_pylist(), strict=True)]
        return pa.RecordBatch.from_pydict({"k": keys.columns[0], "answer": answers})


class TotalsOfEvents(KeyedProcess):
    """The same states, an event at a time."""

    total = Value("bigint", default=0)
    text = Value("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, f"{self.total.value} {self.text.value}"


vector_events = st.tuples(st.sampled_from(["x", "y", "zz"]), st.sampled_from("abc"), st.integers(-2, 2), st.just(0))
vector_epochs = st.lists(
    st.tuples(st.lists(vector_events, min_size=1, max_size=8), st.sampled_from(["keep", "abort", "snapshot", "restore"])),
    min_size=1,
    max_size=12,
)  # fmt: skip


@pytest.mark.parametrize("kind", BACKENDS)
@examples(10)
@given(epochs=vector_epochs, cache_bytes=st.sampled_from([1, 1 << 20]))
def test_a_vectorised_function_against_a_dict(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, cache_bytes: int
) -> None:
    bench = Bench(kind, tmp_path_factory.mktemp("vectors"), Totals(), cache_bytes=cache_bytes)
    model: dict[str, tuple[int, str]] = {}
    files, then, epoch = bench.snapshot(), dict(model), 0
    for events, end in epochs:
        after = dict(model)
        for k, op, a, _ in events:
            after[k] = (after.get(k, (0, ""))[0] + a, op)
        wanted = {k: f"{after[k][0]} {after[k][1]}" for k, *_ in events}
        # In two batches, which the task puts together again.
        half = len(events) // 2
        assert dict(bench.run(events[:half], events[half:], abort=end == "abort")) == wanted
        model = model if end == "abort" else after
        if end == "snapshot":
            files, then, epoch = bench.snapshot(), dict(model), bench.epoch
        if end == "restore":
            bench.restore(files, epoch)
            model = dict(then)
    bench.close()


class Assigning(Everything):
    """Assigns to the attribute that an event names."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op in vars(Everything):
            setattr(self, event.op, event.a)
        else:
            self.noted = event.a
        yield ctx.key, f"{self.noted} {self.value.value}"


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("value", "self.value.value = …"),
        ("history", "self.history.set(…)"),
        ("by_kind", "self.by_kind[key] = …"),
        ("top", "self.top.add(…)"),
        ("mean", "self.mean.add(…)"),
    ],
)
def test_an_assignment_does_not_replace_a_state(make: Make, state: str, hint: str) -> None:
    bench = make(Assigning())
    with pytest.raises(UserCodeError, match=f"state '{state}' was assigned 5, which would replace the state") as caught:
        bench.run([("x", state, 5, 0)])
    assert f"write {hint}" in caught.value.hint
    assert "setattr(self, event.op, event.a)" in caught.value.fields["traceback"]
    assert bench.run([("x", "", 6, 0)]) == [("x", "6 7")], "the state is there, and other attributes can be assigned to"


def test_what_batches_wrote_events_read(make: Make) -> None:
    bench = make(Totals())
    bench.run([("x", "a", 5, 0), ("y", "b", 0, 0)])
    files = bench.snapshot()
    after = make(TotalsOfEvents())
    after.restore(files, 1)
    assert after.run([("x", "", 0, 0), ("y", "", 0, 0), ("z", "", 0, 0)]) == [
        ("x", "5 a"),
        ("y", "0 b"),
        ("z", "0 None"),
    ]


def test_batches_are_gathered_up_to_some_bytes_and_what_several_wrote_is_undone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(Totals())
    bench.run([("x", "a", 1, 0)])
    monkeypatch.setattr(task_module, "_GATHER_BYTES", 1)
    batches = [[("x", "b", 1, 0), ("y", "b", 1, 0)], [("y", "c", 1, 0), ("x", "c", 1, 0), ("z", "c", 1, 0)]]
    wanted = [("x", "2 b"), ("y", "1 b"), ("y", "2 c"), ("x", "3 c"), ("z", "1 c")]
    assert bench.run(*batches, abort=True) == wanted
    assert bench.run(*batches) == wanted


class Wrong(KeyedBatchProcess):
    total = Value("int")
    values: Any = None

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.total.put_many(ctx.keys, type(self).values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([1]), "put_many got 1 values for 2 keys"),
        (pa.array([1.5, 2.0]), "put_many got double, expected int32"),
        (pa.array(["x", "y"]), "put_many got string, expected int32"),
        (pa.array([1 << 40, 1]), "put_many got int64, expected int32"),
        (pa.array([True, False]), "put_many got bool, expected int32"),
        (pa.array([1, 2], pa.uint32()), "put_many got uint32, expected int32"),
    ],
)
def test_arrays_that_do_not_fit_name_operator_and_state(make: Make, values: pa.Array, said: str) -> None:
    bench = make(Wrong(), uid="detect")
    vars(bench.process)["on_batch"] = lambda batch, ctx: bench.process.total.put_many(ctx.keys, values)  # type: ignore[union-attr]
    with pytest.raises(StateTypeError) as caught:
        bench.run([("x", "", 1, 0), ("y", "", 1, 0)])
    assert f"operator 'detect', state 'total': {said}" in caught.value.message
    assert "on_batch of Wrong raised" in caught.value.message


class Seen(KeyedProcess):
    times = Value("bigint", default=0)
    by = Map("string", "bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.times.value += 1
        self.by["n"] = self.by.get("n", 0) + 1
        yield {"n": self.times.value + self.by["n"]}


class SeenInBatches(KeyedBatchProcess):
    times = Value("bigint", default=0)

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        keys, row_of = ctx.keys.unique()
        counts = np.bincount(row_of, minlength=len(keys)) + np.array(self.times.get_many(keys))
        self.times.put_many(keys, pa.array(counts))
        return pa.RecordBatch.from_pydict({"n": pa.array(2 * counts)})


KEYS: dict[str, list[Any]] = {
    "k double": [(1.5,), (math.nan,), (math.nan,), (0.0,), (-0.0,)],
    "k string, j int": [("a", 1), ("a", 1), ("a", 2), ("", 1)],
    "k struct<a: int, b: string>": [((1, "x"),), ((1, "x"),), ((1, None),), ((1, None),)],
    "k decimal(20,2)": [(Decimal("1.00"),), (Decimal("1.00"),), (Decimal("2.00"),)],
    "k binary": [(b"",), (b"\0",), (b"\0",)],
    "k date, j boolean, l timestamp_ntz": [],
}
COUNTS = {"k double": [2, 2, 4, 2, 4], "k string, j int": [2, 4, 2, 2], "k struct<a: int, b: string>": [2, 4, 2, 4],
          "k decimal(20,2)": [2, 4, 2], "k binary": [2, 2, 4], "k date, j boolean, l timestamp_ntz": []}  # fmt: skip


DISTINCT = {"k double": 3, "k string, j int": 3, "k struct<a: int, b: string>": 2, "k decimal(20,2)": 2, "k binary": 2,
            "k date, j boolean, l timestamp_ntz": 0}  # fmt: skip


@pytest.mark.parametrize("schema", KEYS)
def test_equal_keys_are_one_key(make: Make, schema: str) -> None:
    columns = [part.split()[0] for part in schema.split(", ")] if "struct" not in schema else ["k"]
    bench = make(Seen(), input_schema=schema, output_schema="n bigint", key_columns=columns, cache_bytes=1)
    assert [row[0] for row in bench.run(KEYS[schema])] == COUNTS[schema]
    bench.restore(bench.snapshot(), 1)
    after = [row[0] for row in bench.run(KEYS[schema])]
    assert sum(after) - sum(COUNTS[schema]) == 2 * sum(_times(schema))


def _times(schema: str) -> list[int]:
    """For each event, how many of the epoch before had its key."""
    counts = COUNTS[schema]
    last: dict[Any, int] = {}
    names = ["nan" if key != key or key[0] != key[0] else repr(key).replace("-0.0", "0.0") for key in KEYS[schema]]
    for name, n in zip(names, counts, strict=True):
        last[name] = n // 2
    return [last[name] for name in names]


@pytest.mark.parametrize("schema", KEYS)
def test_equal_keys_are_one_key_for_batches_too(make: Make, schema: str) -> None:
    columns = [part.split()[0] for part in schema.split(", ")] if "struct" not in schema else ["k"]
    bench = make(SeenInBatches(), input_schema=schema, output_schema="n bigint", key_columns=columns)
    found = [row[0] for row in bench.run(KEYS[schema])]
    assert len(found) == DISTINCT[schema]
    assert sum(found) == 2 * len(KEYS[schema])


@pytest.mark.parametrize("process", [Everything(), Totals()])
def test_a_null_key_is_refused_with_its_event(make: Make, process: Any) -> None:
    bench = make(process)
    with pytest.raises(NullKeyError) as caught:
        bench.run([("k", "append", 1, 1), (None, "append", 2, 3)])
    assert "the key column 'k' is null in the event Record(k=None, op='append', a=2, b=3)" in caught.value.message
    assert caught.value.operator == "op"
    assert bench.run([]) == []


def test_an_epoch_that_would_pass_the_limit_is_not_applied(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, limit_bytes=600)
    bench.run([("k", "extend", 1, 2), ("k", "put", 1, 1), ("k", "set_value", 1, 1)])
    wanted = bench.run([("k", "read", 0, 0)])
    for _ in range(2):
        with pytest.raises(StateLimitError, match="the memory backend's limit is 600 bytes") as caught:
            bench.run([(str(n), "set_value", 1, 0) for n in range(100)])
        assert caught.value.limit_bytes == 600
        assert caught.value.size_bytes > 600
    assert bench.run([("k", "read", 0, 0)]) == wanted
    # What is cleared makes room again, over and over.
    for _ in range(10):
        bench.run([(str(n), "set_value", 1, 0) for n in range(15)])
        bench.run([(str(n), "clear_value", 1, 0) for n in range(15)])
    bench.restore(bench.snapshot(), bench.epoch)
    assert bench.run([("k", "read", 0, 0)]) == wanted
    bench.close()


def test_an_epoch_that_is_checked_and_then_aborted_counts_for_nothing(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, limit_bytes=600)
    for epoch in range(30):
        # As where another partition's check fails.
        bench.task.begin(Epoch(1), EpochTimes())
        list(bench.task.process(batch_of([(f"{epoch}/{n}", "set_value", 1, 0) for n in range(15)])))
        list(bench.task.finish())
        bench.task.store.check()
        bench.task.abort()
    bench.run([(str(n), "set_value", 1, 0) for n in range(15)])
    bench.close()


def test_an_error_in_one_epoch_leaves_the_state_as_it_was(make: Make) -> None:
    bench = make()
    wanted = bench.run([("k", "extend", 1, 2), ("k", "put", 1, 1), ("k", "read", 0, 0)])[-1]
    with pytest.raises(UserCodeError, match="AttributeError"):
        bench.run([("k", "append", 3, 0), ("k", "put", 1, 2), ("new", "put", 1, 2)], [("k", "no such thing", 0, 0)])
    assert bench.run([("k", "read", 0, 0)]) == [wanted]
    assert bench.run([("new", "read_map", 0, 0)]) == [("new", "(0, [])")]


@pytest.fixture
def rocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(livekeys, "_GROUPS_KEPT", 10)
    made = Bench("rocksdb", tmp_path, cache_bytes=1)
    yield made
    made.close()


def test_key_groups_are_forgotten_only_when_everything_is_written(rocks: Bench) -> None:
    def events(start: int, op: str = "append") -> Any:
        return batch_of([(str(n), op, n, n) for n in range(start, start + 100)])

    rocks.run(*[events(start) for start in (0, 100, 200)])
    frozen = rocks.freeze()
    rocks.run(*[events(start, "put") for start in (250, 350, 450)])
    rocks.run(*[events(start, "set_value") for start in (450, 550, 650)], abort=True)
    rocks.write(frozen)
    rocks.restore(rocks.snapshot(), rocks.epoch)
    found = rocks.run([(str(n), "read", 0, 0) for n in (0, 299, 300, 549, 550)])
    assert [answer.count(f"[{n}]") for (_, answer), n in zip(found[:2], (0, 299), strict=True)] == [1, 1]
    assert "(299, 299)" in found[1][1]
    assert "(549, 549)" in found[3][1]
    assert "(True" not in found[4][1]


def test_the_cache_keeps_to_its_budget(rocks: Bench) -> None:
    for start in range(0, 2000, 100):
        rocks.run([(str(n), "set_value", n, 0) for n in range(start, start + 100)])
        rocks.write(rocks.freeze())
        rocks.task.store.evict()
    figures = rocks.task.store.metrics()
    assert figures["cached_bytes"] < 200_000
    assert figures["cache_misses"] > 0


@pytest.mark.parametrize("op", ["set_value", "put"])
def test_what_an_epoch_wrote_is_not_gone_through_at_every_batch(rocks: Bench, op: str) -> None:
    tables = rocks.task.store._tables
    for table in tables:
        table._cache_bytes = 1 << 16
    rocks.task.begin(Epoch(1), EpochTimes())
    list(rocks.task.process(batch_of([(str(n), op, n, n) for n in range(3000)])))
    rocks.task.store.evict()
    caches: list[dict[Any, Any]] = [table.live for table in tables]
    assert max(map(len, caches)) == 3000
    for cache in caches:
        cache["read"] = {}
    rocks.task.store.evict()
    # What was read since is let go of whenever the cache is gone through.
    assert all("read" in cache for cache in caches)
    rocks.task.abort()
    rocks.task.store.evict()
    assert max(map(len, caches)) < 300
    assert all(table.cached_bytes <= 1 << 16 for table in tables)


@pytest.mark.parametrize("kind", ["memory", "filesystem"])
def test_keys_that_are_cleared_are_let_go_of(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends whose caller keeps all: memory follows the state, not every key there ever was."""
    monkeypatch.setattr(livekeys, "_GROUPS_KEPT", 10)
    bench = Bench(kind, tmp_path)
    for start in range(0, 3000, 500):
        keys = [str(n) for n in range(start, start + 500)]
        bench.run([(k, op, 1, 1) for op in ("set_value", "append", "put") for k in keys])
        bench.run([(k, op, 1, 1) for op in ("clear_value", "clear_list", "pop") for k in keys])
        bench.run([(k, "read", 1, 1) for k in keys])
    assert len(bench.task.store.keys._groups) <= 10 + 2 * 500 * len(bench.task.store._tables)
    held = sum(len(table.live) for table in bench.task.store._tables)
    assert held <= 500 * len(bench.task.store._tables)
    bench.close()


def test_a_cache_that_is_large_enough_for_all_keys_reads_each_of_them_once(rocks: Bench) -> None:
    (table,) = [table for table in rocks.task.store._tables if table.name == "value"]
    table._cache_bytes = 1 << 20
    for _ in range(4):
        for start in range(0, 3000, 1000):
            rocks.run([(str(n), "set_value", n, 0) for n in range(start, start + 1000)])
            rocks.write(rocks.freeze())
    assert table.cached_bytes > 1 << 19
    assert (table.misses, table.hits) == (3000, 9000)
