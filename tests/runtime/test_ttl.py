"""State that expires: against a dict with expiry, over every backend; and that what expired goes away."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Aggregating, List, Map, Reducing, State, Value
from strandline.api.ttl import TTL
from strandline.backends.heap import HeapBackend
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.runtime import expiry, timers
from strandline.runtime.program import check_ttl, state_infos
from tests.runtime.bench import ANSWERS, BUDGET, KINDS, OPS, Bench, Event, Everything, Model, batch_of
from tests.runtime.conftest import Make

S = 1_000_000
WAKE_S = 60
OUTPUT = {"output_schema": ANSWERS}


def epoch(
    bench: Bench,
    events: Sequence[Event] = (),
    *,
    now_s: float = 0,
    watermark_s: float | None = None,
    times_s: Sequence[float | None] = (),
    abort: bool = False,
) -> list[tuple[Any, ...]]:
    """Run an epoch at a time; return its rows."""
    task = bench.task
    task.begin(Epoch(bench.epoch + 1), None if watermark_s is None else int(watermark_s * S), now_us=int(now_s * S))
    batches = list(task.fire())
    if events:
        batch = batch_of(events, bench.program.input_schema, bench.program.key_columns)
        if bench.program.timed:
            stamps = pa.array([None if t is None else int(t * S) for t in times_s], pa.int64())
            batch = batch.add_column(1, "time", stamps)
        batches += task.process(batch)
    batches += task.finish()
    if abort:
        task.abort()
    else:
        task.check()
        task.commit()
        task.tidy()
        bench.epoch += 1
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def answers(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [row[1] for row in rows]


def stored(bench: Bench) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return what a snapshot holds, by state; states without entries are left out."""
    directory = bench.place()
    directory.mkdir()
    for file in bench.snapshot():
        shutil.copyfile(file.path, directory / file.name)
    names = [info.name for info in state_infos(bench.process)]
    backend: Any = (
        RocksDBBackend(directory, names, memory=BUDGET)
        if bench.kind == "rocksdb"
        else HeapBackend(directory, names, inline=False, limit_bytes=None)
    )
    found = {name: list(backend.scan(name)) for name in names}
    backend.close()
    return {name: entries for name, entries in found.items() if entries}


# -- against a model


class Living(Everything):
    """Everything, with one TTL for all of it."""

    def __init__(self, ttl: TTL | None) -> None:
        mean = Everything.__dict__["mean"]
        self.own_states: dict[str, State] = {
            "value": Value("bigint", default=7, ttl=ttl),
            "pair": Value("struct<a: bigint, s: string>", ttl=ttl),
            "tags": Value("array<bigint>", ttl=ttl),
            "history": List("bigint", ttl=ttl),
            "by_kind": Map("bigint", "bigint", ttl=ttl),
            "top": Reducing("bigint", max, ttl=ttl),
            "mean": Aggregating(mean.value_type, create=mean.create, add=mean.add, result=mean.result, ttl=ttl),
        }


WRITES = {
    "set_value": "value", "set_pair": "pair", "add_tag": "tags", "append": "list", "extend": "list", "set_list": "list",
    "put": "map", "reduce": "top", "average": "mean",
}  # fmt: skip
READS: dict[str, tuple[str, ...]] = {
    "get": ("map",), "read_map": ("maps",), "read_list": ("list",),
    "read": ("value", "pair", "tags", "top", "mean", "list", "maps"),
}  # fmt: skip


class ExpiringModel:
    """What Living does: a Model, and when what is in it expires."""

    def __init__(self, ttl: TTL, model: Model | None = None, expires: dict[Any, float] | None = None) -> None:
        self.ttl = ttl
        self.duration = ttl.duration_ms / 1000
        self.model = model or Model()
        self.expires: dict[Any, float] = expires or {}

    def copy(self) -> ExpiringModel:
        states = self.model.copy()
        return ExpiringModel(self.ttl, states, dict(self.expires))

    def answer(self, event: Any, now: float, reached: float | None, time: float) -> Any:
        k, op, a, b = event
        passed = reached if self.ttl.time == "event" else now
        base = max(time, reached if reached is not None else time) if self.ttl.time == "event" else now
        state = self.model.keys.setdefault(k, {"list": [], "map": {}})
        for name in [n for n, at in self.expires.items() if n[0] == k and passed is not None and passed >= at]:
            self.forget(state, name)
        if self.ttl.refresh == "read":
            for name in READS.get(op, ()):
                self.touch(state, k, name, a, base, reading=True)
        found = self.model.answer(k, op, a, b)
        if op in WRITES:
            self.touch(state, k, WRITES[op], a, base, reading=False)
        for name in [n for n in self.expires if n[0] == k and not self.there(state, n)]:
            del self.expires[name]
        return found

    def touch(self, state: Any, k: str, name: str, a: int, base: float, *, reading: bool) -> None:
        subs = list(state["map"]) if name == "maps" else [a]
        for sub in subs:
            at = (k, "map", sub) if name.startswith("map") else (k, name)
            if not self.there(state, at):
                continue
            renewed = base + self.duration
            if self.ttl.time == "event":
                renewed = max(renewed, self.expires.get(at, renewed))
            if not reading or (renewed - self.expires[at]) * 16 > self.duration:
                self.expires[at] = renewed

    def there(self, state: Any, at: Any) -> bool:
        return at[2] in state["map"] if at[1] == "map" else bool(state["list"]) if at[1] == "list" else at[1] in state

    def forget(self, state: Any, at: Any) -> None:
        del self.expires[at]
        if at[1] == "map":
            del state["map"][at[2]]
        elif at[1] == "list":
            state["list"] = []
        else:
            del state[at[1]]


events_at = st.tuples(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(OPS), st.integers(0, 2), st.integers(0, 3)),
    st.integers(-10, 10),
)
epochs_at = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(events_at, max_size=6),
        st.sampled_from(["keep", "keep", "abort", "snapshot", "write", "restore"]),
    ),
    min_size=1,
    max_size=25,
)
ttls = st.builds(
    TTL, st.just("16s"), refresh=st.sampled_from(["write", "read"]), time=st.sampled_from(["processing", "event"])
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(ttl=ttls, epochs=epochs_at, cache_bytes=st.sampled_from([1, 1 << 20]))
def test_against_a_dict_with_expiry(
    tmp_path_factory: pytest.TempPathFactory, kind: str, ttl: TTL, epochs: Any, cache_bytes: int
) -> None:
    timed = ttl.time == "event"
    bench = Bench(kind, tmp_path_factory.mktemp("ttl"), Living(ttl), cache_bytes=cache_bytes, timed=timed)
    model = ExpiringModel(ttl)
    files, then, number, now = bench.snapshot(), model.copy(), 0, 1000
    for passes, events, end in epochs:
        now += passes
        after = model.copy()
        watermark = now if timed else None
        wanted = [repr(after.answer(event, now, watermark, now + offset)) for event, offset in events]
        rows = epoch(
            bench, [event for event, _ in events], now_s=now, watermark_s=watermark, abort=end == "abort",
            times_s=[now + offset for _, offset in events],
        )  # fmt: skip
        assert answers(rows) == wanted
        model = model if end == "abort" else after
        if end == "snapshot":
            files, then, number = bench.snapshot(), model.copy(), bench.epoch
        if end == "write":
            bench.write(bench.freeze())
        if end == "restore":
            bench.restore(files, number)
            model = then.copy()
    epoch(bench, now_s=now + 1000, watermark_s=now + 1000 if timed else None)
    assert stored(bench) == {}
    bench.close()


# -- one thing at a time


class Asked(KeyedProcess):
    """Keeps and gives what it is told; of two states one expires."""

    plain = Value("bigint")
    short = Value("bigint", default=-1, ttl=TTL("10s"))
    tags = Value("array<bigint>", default=[0], ttl=TTL("10s"))
    log = List("bigint", ttl=TTL("10s"))
    seen = Map("bigint", "bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op == "set":
            self.plain.value = self.short.value = event.a
            self.tags.value = [event.a]
            self.log.append(event.a)
            self.seen[event.a] = event.b
        if event.op == "append":
            self.log.append(event.a)
        if event.op == "clear":
            self.short.clear()
            self.log.clear()
            self.seen.clear()
        one = self.plain.value, self.short.value, self.short.exists(), self.tags.value
        yield ctx.key, repr((one, list(self.log), len(self.log), bool(self.log), dict(self.seen), len(self.seen)))


FULL = repr(((5, 5, True, [5]), [5], 1, True, {5: 6}, 1))
EMPTY = repr(((5, -1, False, [0]), [], 0, False, {}, 0))


def test_a_value_is_there_until_its_time_and_not_then(make: Make) -> None:
    bench = make(Asked())
    ask = [("k", "", 0, 0)]
    assert answers(epoch(bench, [("k", "set", 5, 6)], now_s=100)) == [FULL]
    assert answers(epoch(bench, ask, now_s=109.999)) == [FULL]
    # Not cleaned yet: that is in steps of a second, and the last epoch's.
    files, number = bench.snapshot(), bench.epoch
    assert answers(epoch(bench, ask, now_s=110, abort=True)) == [EMPTY]
    bench.restore(files, number)
    assert answers(epoch(bench, ask, now_s=110)) == [EMPTY]
    assert answers(epoch(bench, ask, now_s=111)) == [EMPTY]
    assert list(stored(bench)) == ["plain"]


def test_what_has_expired_does_not_come_back_with_what_is_added(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make(Asked())
    # As if cleaning were late, as it may be.
    monkeypatch.setattr(expiry.Expiry, "clean", lambda *_: None)
    epoch(bench, [("k", "set", 5, 6)], now_s=100)
    bench.write(bench.freeze())
    assert answers(epoch(bench, [("k", "append", 8, 0)], now_s=110)) == [
        repr(((5, -1, False, [0]), [8], 1, True, {}, 0))
    ]
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=119)) == [repr(((5, -1, False, [0]), [8], 1, True, {}, 0))]
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=120)) == [EMPTY]


def test_writing_prolongs_and_clearing_forgets(make: Make) -> None:
    bench = make(Asked())
    for now in (100, 109, 118):
        epoch(bench, [("k", "set", 5, 6)], now_s=now)
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=127)) == [
        repr(((5, 5, True, [5]), [5, 5, 5], 3, True, {5: 6}, 1))
    ]
    assert answers(epoch(bench, [("k", "clear", 0, 0)], now_s=127)) == [
        repr(((5, -1, False, [5]), [], 0, False, {}, 0))
    ]
    assert sorted(stored(bench)) == ["plain", "tags", "ttl.processing"]
    epoch(bench, now_s=129)
    assert sorted(stored(bench)) == ["plain"]


def test_cleaning_follows_in_memory_too(make: Make) -> None:
    bench = make(Asked())
    epoch(bench, [(f"k{n}", "set", n, n) for n in range(50)], now_s=100)
    bench.write(bench.freeze())
    epoch(bench, now_s=111)
    task = bench.task
    if bench.backend.keeps_all:
        assert not task.store._values["short"].live
        assert not task.store._maps["log"].cells
        assert not task.store._maps["seen"].cells
    assert list(stored(bench)) == ["plain"]
    assert not any(task.next_timers_us)


def test_an_idle_partition_wants_to_be_woken_at_most_once_a_minute(make: Make) -> None:
    bench = make(Asked())
    assert bench.task.next_timers_us == (None, None)
    epoch(bench, [("k", "set", 5, 6)], now_s=WAKE_S + 1)
    assert bench.task.next_timers_us == (None, 2 * WAKE_S * S)
    epoch(bench, now_s=2 * WAKE_S)
    assert bench.task.next_timers_us == (None, None)


def test_the_bytes_are_those_of_the_format(make: Make) -> None:
    """As docs/format.md says; what a reader without Strandline relies on."""
    bench = make(Asked())
    epoch(bench, [("k", "append", 8, 0)], now_s=100)
    epoch(bench, [("k", "append", 9, 0)], now_s=101.5)
    found = stored(bench)
    group, key = found["log"][0][0][:2], b"k\0\0"
    chunks = [(entry.removeprefix(group + key).hex(), value.hex()) for entry, value in found["log"]]
    head = "0100" + (int(111.5 * S) | 1 << 63).to_bytes(8, "big").hex() + "90"
    assert chunks == [
        ("7f" + "ff" * 7, head),
        ("80" + "00" * 6 + "01", "00009108"),
        ("80" + "00" * 6 + "02", "00009109"),
    ]
    assert found["ttl.processing"] == [(group + (110 * S | 1 << 63).to_bytes(8, "big") + b"log\0" + key, b"\0\0")]


def test_much_is_cleaned_over_several_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_MOST", 10)
    monkeypatch.setattr(timers, "_CHUNK", 7)
    bench = Bench("rocksdb", tmp_path, Asked())
    epoch(bench, [(f"k{n}", "set", n, n) for n in range(50)], now_s=100)
    bench.write(bench.freeze())
    # What was made since the last call counts twice.
    epoch(bench, now_s=101)
    left = []
    for number in range(40):
        epoch(bench, now_s=120, abort=number % 3 == 0)
        if number % 3:
            bench.write(bench.freeze())
        left.append(len(stored(bench).get("ttl.processing", ())))
        if not left[-1]:
            break
    assert left[0] == 200
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 5
    assert left[-1] == 0
    assert list(stored(bench)) == ["plain"]
    bench.close()


def test_cleaning_keeps_pace_with_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_MOST", 1)
    monkeypatch.setattr(timers, "_CHUNK", 5)
    bench = Bench("rocksdb", tmp_path, Asked())
    for now in range(100, 140):
        epoch(bench, [(f"k{now}-{n}", "set", n, n) for n in range(5)], now_s=now)
        bench.write(bench.freeze())
    # Four states expire, ten seconds after their five keys were written.
    assert len(stored(bench)["ttl.processing"]) == 4 * 5 * 10
    bench.close()


class Read(KeyedProcess):
    value = Value("bigint", ttl=TTL("16s", refresh="read"))
    log = List("bigint", ttl=TTL("16s", refresh="read"))
    seen = Map("bigint", "bigint", ttl=TTL("16s", refresh="read"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op == "set":
            self.value.value = 1
            self.log.append(1)
            self.seen[1] = 1
        yield ctx.key, repr((self.value.value, self.log.get(), self.seen.get(1)))


def test_reading_prolongs_but_is_not_always_a_write(make: Make) -> None:
    bench = make(Read())

    def written(now_s: float) -> int:
        task = bench.task
        task.begin(Epoch(bench.epoch + 1), None, int(now_s * S))
        list(task.fire())
        list(task.process(batch_of([("k", "", 0, 0)])))
        count = sum(len(list(table.changed())) for table in (*task.store._values.values(), *task.store._maps.values()))
        task.commit()
        bench.epoch += 1
        return count

    epoch(bench, [("k", "set", 0, 0)], now_s=100)
    assert written(101) == 0
    assert written(101.1) == 3
    assert written(101.1) == 0
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=117)) == [repr((1, [1], 1))]
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=132.9)) == [repr((1, [1], 1))]
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=148.9)) == [repr((None, [], None))]


class InEventTime(KeyedProcess):
    total = Reducing("bigint", lambda old, new: old + new, ttl=TTL("10s", time="event"))
    mean = Aggregating("array<bigint>", create=list, add=lambda acc, x: [*acc, x], ttl=TTL("10s", time="event"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op == "add":
            self.total.add(event.a)
            self.mean.add(event.a)
        yield ctx.key, repr((self.total.value, self.mean.result()))


def test_event_time_passes_with_the_watermark(make: Make) -> None:
    bench = make(InEventTime(), timed=True)
    add, ask = ("k", "add", 1, 0), ("k", "", 0, 0)
    # No watermark yet: nothing expires, however far event times have come.
    assert answers(epoch(bench, [add, add], now_s=9e5, times_s=[100, 50])) == [repr((1, [1])), repr((2, [1, 1]))]
    assert answers(epoch(bench, [ask], now_s=9e6, watermark_s=109.999, times_s=[500])) == [repr((2, [1, 1]))]
    # An event that is late by more than the TTL is kept for as long, from the watermark on.
    late = epoch(bench, [ask, add], watermark_s=110, times_s=[110, 3])
    assert answers(late) == [repr((None, None)), repr((1, [1]))]
    assert bench.task.next_timers_us == (2 * WAKE_S * S, None)
    assert answers(epoch(bench, [ask], watermark_s=119, times_s=[None])) == [repr((1, [1]))]
    assert answers(epoch(bench, [ask], watermark_s=120, times_s=[None])) == [repr((None, None))]
    assert stored(bench) == {}


def test_event_time_needs_event_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'op': state 'total' of InEventTime expires by event time, and the"):
        Bench("memory", tmp_path, InEventTime())
    check_ttl(InEventTime(), "op", timed=True)
    check_ttl(Asked(), "op", timed=False)


class Totals(KeyedBatchProcess):
    total = Value("bigint", default=0, ttl=TTL("16s"))
    read = Value("string", ttl=TTL("16s", refresh="read"))

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        added = np.zeros(len(keys), dtype=np.int64)
        np.add.at(added, row_of, batch.column("a").to_numpy())
        new = np.array(self.total.get_many(keys)) + added
        self.total.put_many(keys, pa.array(new, mask=new == 0))
        said = batch.column("op").filter(pa.array(np.array(batch.column("op")) != ""))
        if len(said):
            self.read.put_many(ctx.keys, batch.column("op"))
        texts = self.read.get_many(keys).to_pylist()
        return pa.RecordBatch.from_pydict(
            {"k": keys.columns[0], "answer": [f"{n} {t}" for n, t in zip(new.tolist(), texts, strict=True)]}
        )


class BatchInEventTime(KeyedBatchProcess):
    last = Value("bigint", ttl=TTL("10s", time="event"))

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        before = self.last.get_many(ctx.keys)
        self.last.put_many(ctx.keys, pa.array([a or None for a in batch.column("a").to_pylist()], pa.int64()))
        return pa.RecordBatch.from_pydict({"k": ctx.keys.columns[0], "answer": [repr(v) for v in before.to_pylist()]})


def test_values_of_batches_expire(make: Make) -> None:
    bench = make(Totals())
    assert epoch(bench, [("x", "a", 1, 0), ("y", "b", 2, 0)], now_s=100) == [("x", "1 a"), ("y", "2 b")]
    assert epoch(bench, [("x", "", 1, 0)], now_s=110) == [("x", "2 a")]
    files, number = bench.snapshot(), bench.epoch
    for _ in range(2):
        # y was neither written nor read since; of x the text was read.
        assert epoch(bench, [("y", "", 5, 0)], now_s=116, abort=True) == [("y", "5 None")]
        assert epoch(bench, [("x", "", 5, 0), ("y", "", 5, 0)], now_s=116) == [("x", "7 a"), ("y", "5 None")]
        assert epoch(bench, [("x", "", 5, 0), ("y", "", -5, 0)], now_s=131) == [("x", "12 a"), ("y", "0 None")]
        assert epoch(bench, [("x", "", 5, 0)], now_s=146.9) == [("x", "17 a")]
        assert epoch(bench, [("x", "", 5, 0)], now_s=162.9) == [("x", "5 None")]
        assert list(stored(bench)) == ["total", "ttl.processing"]
        bench.restore(files, number)
    assert epoch(bench, now_s=200) == []
    assert stored(bench) == {}


def test_values_of_batches_expire_by_event_time(make: Make) -> None:
    bench = make(BatchInEventTime(), timed=True)
    assert answers(epoch(bench, [("x", "", 1, 0), ("y", "", 1, 0)], times_s=[100, 90])) == ["None", "None"]
    # Of older events than those before.
    assert answers(epoch(bench, [("x", "", 2, 0)], watermark_s=80, times_s=[85])) == ["1"]
    assert answers(epoch(bench, [("x", "", 2, 0)], watermark_s=109, times_s=[None], abort=True)) == ["2"]
    assert answers(epoch(bench, [("x", "", 0, 0), ("y", "", 0, 0)], watermark_s=110, times_s=[110] * 2)) == ["None"] * 2
    assert stored(bench) == {}


# -- a program that changes


def then(make: Make, kind: Any, bench: Bench, **given: Any) -> Bench:
    files, number = bench.snapshot(), bench.epoch
    after = make(kind, **given)
    after.restore(files, number)
    return after


READ_ALL = ("k", "read", 0, 0)
WRITE_ALL: list[Event] = [
    ("k", op, 1, 1) for op in ("set_value", "set_pair", "add_tag", "append", "put", "reduce", "average")
]
ALL = repr(((1, True, (1, "1"), [1], 1, 1), (1, True, [1]), (1, [(1, 1)])))
NONE = repr(((7, False, None, None, None, None), (0, False, []), (0, [])))


def test_a_ttl_that_is_added_later_counts_from_the_next_write(make: Make) -> None:
    bench = make(Living(None))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(TTL("10s")), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=1000)) == [ALL]
    assert "ttl.processing" not in stored(bench)
    rows = answers(epoch(bench, [*WRITE_ALL, READ_ALL], now_s=1000))
    assert rows[-1] == repr(((1, True, (1, "1"), [1, 1], 1, 1), (2, True, [1, 1]), (1, [(1, 1)])))
    assert answers(epoch(bench, [READ_ALL], now_s=1010)) == [NONE]
    assert stored(bench) == {}


def test_a_ttl_that_reading_refreshes_counts_from_the_next_read(make: Make) -> None:
    bench = make(Living(None))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(TTL("10s", refresh="read")), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=1000)) == [ALL]
    assert answers(epoch(bench, [READ_ALL], now_s=1010)) == [NONE]
    assert stored(bench) == {}


@pytest.mark.parametrize("longer", ["100s", "1s"])
def test_a_ttl_that_changes_counts_for_what_is_written_then(make: Make, longer: str) -> None:
    bench = make(Living(TTL("10s")))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(TTL(longer)), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=109)) == [ALL]
    assert answers(epoch(bench, [READ_ALL], now_s=110)) == [NONE]
    epoch(bench, WRITE_ALL, now_s=111)
    assert answers(epoch(bench, [READ_ALL], now_s=111.5)) == [ALL]
    assert answers(epoch(bench, [READ_ALL], now_s=112)) == [ALL if longer == "100s" else NONE]
    epoch(bench, now_s=300)
    assert stored(bench) == {}


def test_a_ttl_may_change_its_kind_of_time(make: Make) -> None:
    bench = make(Living(TTL("10s")), timed=True)
    epoch(bench, WRITE_ALL, now_s=100, times_s=[0] * len(WRITE_ALL))
    bench = then(make, Living(TTL("10s", time="event")), bench, timed=True)
    assert answers(epoch(bench, [READ_ALL], now_s=1000, watermark_s=109, times_s=[109])) == [ALL]
    assert answers(epoch(bench, [READ_ALL], now_s=1000, watermark_s=110, times_s=[110])) == [NONE]
    assert stored(bench) == {}


def test_a_ttl_that_is_taken_away(make: Make) -> None:
    bench = make(Living(TTL("10s")))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(None), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=1000)) == [ALL]
    assert bench.task.next_timers_us == (None, None)


# -- together with timers, and declarations


class Both(KeyedProcess):
    value = Value("bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        import datetime as dt

        self.value.value = 1
        ctx.timers.set_processing(ctx.now + dt.timedelta(seconds=event.a))

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, f"timer {self.value.value}"


def test_the_functions_own_timers_fire_as_ever(make: Make) -> None:
    bench = make(Both())
    epoch(bench, [("x", "", 3, 0), ("y", "", 10, 0)], now_s=100)
    assert bench.task.next_timers_us == (None, 103 * S)
    assert epoch(bench, now_s=103) == [("x", "timer 1")]
    assert epoch(bench, now_s=110) == [("y", "timer None")]
    epoch(bench, now_s=120)
    assert stored(bench) == {}


def test_the_manifest_says_what_expires() -> None:
    infos = {info.name: info for info in state_infos(InEventTime())}
    assert sorted(infos) == ["mean", "total", "ttl.event", "ttl.processing"]
    ttl = infos["total"].ttl
    assert (ttl.duration_ms, ttl.refresh, ttl.time) == (10_000, "write", "event")
    assert infos["ttl.event"].kind == "ttl"
    assert [info.name for info in state_infos(Everything()) if info.ttl] == []


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda: TTL("soon"), "its duration is 'soon', expected a duration"),
        (lambda: TTL("0s"), "expected more than 0 and at most 100 years"),
        (lambda: TTL("40000 days"), "at most 100 years"),
        (lambda: TTL("1h", refresh="never"), "refresh is 'never', expected 'write' or 'read'"),
        (lambda: TTL("1h", time="rows"), "time is 'rows', expected 'processing' or 'event'"),
        (lambda: Value("int", ttl="1h"), "Value: its ttl is '1h', expected a TTL"),
        (lambda: Map("int", "int", ttl=3600), "Map: its ttl is 3600, expected a TTL"),
    ],
)
def test_what_is_no_ttl(make_it: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_it()
