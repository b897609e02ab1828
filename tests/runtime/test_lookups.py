"""Look-ups of keys while epochs run: what was kept last, of one epoch, wherever it lies; and nobody waits."""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import TTL, Value
from strandline.api.windows import Sliding
from strandline.core.errors import ConfigurationError, KeeperError, NotFoundError, StateTypeError, UnavailableError
from strandline.core.ids import Epoch, Generation
from strandline.keeper import protocol as p
from strandline.keeper.gil_interval import SwitchInterval
from strandline.keeper.lookups import MAX_KEYS, table_of
from strandline.keeper.protocol import Lookup
from strandline.runtime.program import EVENT_TIMERS
from strandline.runtime.state.lookups import LookupRequest
from strandline.runtime.state.sequence_lock import SequenceLock
from strandline.runtime.task.task import EpochTimes
from tests.runtime import test_broadcast, test_evolution
from tests.runtime.aggregating import COUNTS, Aggregating
from tests.runtime.bench import OPS, Bench, Event, Model, batch_of
from tests.runtime.clients import Nursery, eventually
from tests.runtime.living import Living
from tests.runtime.looking import find, first, operator_of, value_of
from tests.soak import BACKENDS, examples

KEYS = ["a", "b", "c"]
S = 1_000_000
FIRST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def everything(bench: Bench, key: str, now_us: int = 0) -> dict[str, Any]:
    """Look up every state of a key; return those that are there as the model names them."""
    names = {"history": "list", "by_kind": "map"}
    states = ("value", "pair", "tags", "history", "by_kind", "top", "mean")
    found = {names.get(name, name): value_of(bench, name, key, now_us) for name in states}
    return {name: value for name, value in found.items() if value is not None}


# -- what is found


events = st.tuples(st.sampled_from(KEYS), st.sampled_from(OPS), st.integers(0, 3), st.integers(0, 3))
epochs = st.lists(st.tuples(st.sampled_from(["keep", "abort", "freeze", "write"]), st.lists(events, max_size=8)))


@pytest.mark.parametrize("kind", BACKENDS)
@examples(12)
@given(epochs)
def test_what_was_kept_is_found_before_within_and_after_each_epoch(
    kind: str, tmp_path_factory: Any, epochs: Sequence[tuple[str, Sequence[Event]]]
) -> None:
    bench, model, flying = Bench(kind, tmp_path_factory.mktemp("b"), cache_bytes=500), Model(), []

    def check() -> None:
        for key in KEYS:
            assert everything(bench, key) == {"list": [], "map": {}, **model.keys.get(key, {})}
        # A list of all keys has the same of each, and no others.
        for state in ("value", "tags", "history", "by_kind", "mean"):
            listed = first(bench, state, 100)
            shown = {key: value for (key,), value in zip(listed.keys, listed.values, strict=True)}
            there = {key: value for key in KEYS if (value := value_of(bench, state, key)) not in (None, [], {})}
            assert (shown, len(listed.keys), listed.has_more) == (there, len(there), False)

    try:
        for what, some in epochs:
            for _ in bench.partition.run(Epoch(bench.epoch + 1), EpochTimes(), [batch_of([one]) for one in some]):
                check()
            bench.end(abort=what == "abort")
            for event in () if what == "abort" else some:
                model.answer(*event)
            check()
            if what in ("freeze", "write"):
                flying.append(bench.freeze())
                check()
            if what == "write":
                for frozen in flying:
                    bench.persist(frozen) if bench.backend.keeps_all else bench.write(frozen)
                    check()
                flying = []
    finally:
        bench.close()


@pytest.fixture(params=BACKENDS)
def kind(request: Any) -> str:
    found: str = request.param
    return found


class Steady(KeyedProcess):
    """Sets all that a key has to the same number."""

    value = Value("bigint")
    tags = Value("array<bigint>")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.value.value = event.a
        self.tags.value = [event.a]
        ctx.timers.set(FIRST + dt.timedelta(hours=event.a))
        if event.a > 1:
            ctx.timers.delete(FIRST + dt.timedelta(hours=event.a - 1))

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        return None


class Large(KeyedProcess):
    """Keeps much of each key."""

    text = Value("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.text.value = "x" * 200_000


class SteadyBatch(KeyedBatchProcess):
    """Likewise, whole batches at a time."""

    value = Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.value.put_many(ctx.keys, batch.column("a"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("process", [Steady, SteadyBatch])
def test_no_look_up_sees_a_part_of_an_epoch_or_one_that_was_aborted(kind: str, process: Any, tmp_path: Path) -> None:
    """Each epoch sets all keys to its number; what each look-up finds is one number, that of its epoch."""
    bench = Bench(kind, tmp_path, process(), cache_bytes=2000, timed=process is Steady)
    keys = [f"key {n}" for n in range(60)]
    over, wrong, seen = threading.Event(), [], set()

    def rows(number: int) -> list[pa.RecordBatch]:
        made = [batch_of([(key, "", number, 0) for key in keys[at : at + 20]]) for at in (0, 20, 40)]
        times = pa.array([0] * 20, pa.int64())
        return [batch.add_column(1, "time", times) if process is Steady else batch for batch in made]

    def look() -> None:
        while not over.is_set():
            for state in ("value", "tags", EVENT_TIMERS) if process is Steady else ("value",):
                try:
                    found = find(bench, state, keys)
                    number = found.epoch
                    wanted = {"value": number, "tags": [number], EVENT_TIMERS: [FIRST + dt.timedelta(hours=number)]}
                    if any(value != wanted[state] for value in found.value):
                        wrong.append((number, state, found.value))
                    seen.add(number)
                except Exception as error:
                    wrong.append((0, state, error))

    bench.apply(rows(1))
    looking = [threading.Thread(target=look) for _ in range(2)]
    writing: list[threading.Thread] = []
    for thread in looking:
        thread.start()
    until = time.monotonic() + 0.4
    while time.monotonic() < until or len(seen) < 3:
        bench.apply(rows(bench.epoch + 100), abort=True)
        bench.apply(rows(bench.epoch + 1))
        if bench.epoch % 3 == 0:
            for thread in writing:
                thread.join()
            writing = [threading.Thread(target=_in_background, args=(bench, bench.freeze()))]
            writing[0].start()
    over.set()
    for thread in (*looking, *writing):
        thread.join()
    bench.close()
    assert not wrong, wrong[:3]


def _in_background(bench: Bench, frozen: Any) -> None:
    if bench.backend.keeps_all:
        bench.persist(frozen)
    else:
        bench.write(frozen)


def test_what_has_expired_is_not_found(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, Living(TTL("10s")))
    bench.apply([batch_of([("a", op, 1, 1) for op in ("set_value", "set_pair", "add_tag", "append", "put", "reduce")])])
    there = {"value": 1, "pair": (1, "1"), "tags": [1], "list": [1], "map": {1: 1}, "top": 1}
    assert everything(bench, "a", 10 * S - 1) == there
    assert everything(bench, "a", 10 * S) == {"list": [], "map": {}}
    bench.close()


def test_what_has_expired_by_event_time_is_not_found(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, Living(TTL("10s", time="event")), timed=True)
    batch = batch_of([("a", "append", 1, 1)]).add_column(1, "time", pa.array([0], pa.int64()))
    bench.apply([batch], 0)
    bench.apply([], 10 * S - 1)
    assert value_of(bench, "history", "a", 1000 * S) == [1]
    bench.apply([], 10 * S, abort=True)
    assert value_of(bench, "history", "a") == [1]
    bench.apply([], 10 * S)
    assert value_of(bench, "history", "a") == []
    bench.close()


def test_rules_are_found_by_their_own_keys(kind: str, tmp_path: Path) -> None:
    bench = test_broadcast.make(kind, tmp_path)
    rules = [("x", 1, 7), ("y", 2, 8), ("y", 3, 9)]
    for written in range(2):
        bench.apply([test_broadcast.batch([("a", 1)], rules)])
        assert value_of(bench, "rules", ["y", "z", "x"]) == [(3, [9]), None, (1, [7])]
        if not written:
            bench.snapshot()
    bench.apply([test_broadcast.batch([], [("y", None, 0)])])
    assert value_of(bench, "rules", "y") is None
    bench.close()


def test_values_of_an_older_schema_are_found_in_the_present_one(tmp_path: Path) -> None:
    old, new = (
        test_evolution.states_of(test_evolution.OLD),
        test_evolution.states_of(test_evolution.NEW, **test_evolution.HINTS),
    )
    before = test_evolution.Keeping(old, lambda n: {"n": n, "town": f"t{n}"})
    bench = Bench("rocksdb", tmp_path, before, input_schema=test_evolution.INPUT)
    test_evolution.ask(bench, ("a", 1), ("b", 2))
    after = test_evolution.Keeping(new, lambda n: {"city": "new", "n": n, "more": []})
    test_evolution.upgrade(bench, test_evolution.manifest(operator_of(bench).states), after)
    test_evolution.ask(bench, ("a", 3))
    assert value_of(bench, "value", ["a", "b"]) == [("new", 3, []), ("t2", 2, [1, 2])]
    assert value_of(bench, "value", "b").city == "t2"
    assert value_of(bench, "history", "a") == [("t1", 1, [1, 2]), ("new", 3, [])]
    assert value_of(bench, "by", "b") == {2: ("t2", 2, [1, 2])}
    bench.close()


def test_panes_of_windows_are_found_with_their_accumulators(kind: str, tmp_path: Path) -> None:
    bench = Aggregating(kind, tmp_path, Sliding("10s", "5s"), accumulators=COUNTS)

    def panes(key: str) -> dict[int, tuple[Any, ...]]:
        return {int(end.timestamp()): tuple(has) for end, has in value_of(bench, "panes", key).items()}

    bench.epoch_of([("a", 1, 10), ("a", 2, 20), ("b", 1, 1), ("a", 7, 3)], watermark=0)
    bench.snapshot()
    frozen = []
    bench.epoch_of([("a", 1, 30)])
    assert panes("a") == {5: (3, 60), 10: (1, 3)}
    frozen.append(bench.freeze())
    bench.task.store._tables[0]._cache_bytes = 0  # type: ignore[attr-defined]
    bench.epoch_of([("a", 2, 1)])
    bench.epoch_of([("a", 2, 1000)], abort=True)
    assert panes("a") == {5: (4, 61), 10: (1, 3)}
    assert panes("nobody") == {}
    assert sorted(first(bench, "panes", 10).keys) == [("a",), ("b",)]
    bench.persist(frozen[0]) if bench.backend.keeps_all else bench.write(frozen[0])
    running = bench.partition.run(Epoch(bench.epoch + 1), EpochTimes(10 * S), [bench.rows_of([("b", 12, 1)])])
    list(running)
    # The epoch has given the window, and dropped its first pane; it is not kept yet.
    assert panes("a") == {5: (4, 61), 10: (1, 3)}
    bench.end(abort=False)
    assert panes("a") == {10: (1, 3)}
    listed = first(bench, "panes", 10)
    assert dict(zip(listed.keys, listed.values, strict=True)) == {
        (key,): value_of(bench, "panes", key) for key in ("a", "b")
    }
    bench.close()


def test_keys_of_several_columns(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, Steady(), key_columns=["k", "b"], timed=True)
    batch = batch_of([("a", "", 5, 1), ("a", "", 6, 2)], keys=["k", "b"])
    bench.apply([batch.add_column(1, "time", pa.array([0, 0], pa.int64()))])
    schema = "`k` string, `b` bigint"
    assert find(bench, "value", ("a", 2), key_schema=schema).value == 6
    assert find(bench, "value", [{"b": 1, "k": "a"}, ("b", 1)], key_schema=schema).value == [5, None]
    table = table_of([operator_of(bench, schema)], "op.value")
    assert table.key_of('["a", 2]') == ("a", 2)
    assert table.key_of('{"b": 2, "k": "a"}') == ("a", 2)
    bench.close()


def test_a_list_of_keys_is_bounded(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, Steady(), cache_bytes=2000, timed=True)

    def apply(some: Sequence[str], number: int) -> None:
        batch = batch_of([(key, "", number, 0) for key in some])
        bench.apply([batch.add_column(1, "time", pa.array([0] * len(some), pa.int64()))])

    keys = [f"key {n}" for n in range(1200)]
    apply(keys, 1)
    bench.snapshot()
    apply(keys[:100], 2)
    for state, value in {"value": 2, "timers.event": [FIRST + dt.timedelta(hours=2)]}.items():
        some = first(bench, state, 300)
        assert (len(some.keys), len(set(some.keys)), some.has_more, some.epoch) == (300, 300, True, bench.epoch)
        found = find(bench, state, [key for (key,) in some.keys]).value
        assert (found, sum(each == value for each in found) > 0) == (some.values, True)
    with pytest.raises(ConfigurationError, match="501 keys are to be listed, expected 1 to 500"):
        first(bench, "value", 501)
    bench.close()


def test_a_list_of_keys_ends_where_values_are_large(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, Large())
    bench.apply([batch_of([(f"key {n}", "", 0, 0) for n in range(20)])])
    some = first(bench, "text", 20)
    assert (0 < len(some.keys) < 20, some.has_more) == (True, True)
    bench.close()


def test_what_cannot_be_looked_up_is_refused_with_what_can(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, Living(TTL("10s")))
    for name in ("op.nothing", "value", "op.ttl.processing"):
        with pytest.raises(NotFoundError, match=r"no table '.*' in this job(.|\n)*op\.value, op\.pair, op\.tags"):
            table_of([operator_of(bench)], name)
    with pytest.raises(StateTypeError, match=r"table 'op\.value': a key is not \(k string\): .* 7 \(int\)"):
        find(bench, "value", 7)
    with pytest.raises(StateTypeError, match="it has the columns x"):
        find(bench, "value", {"x": "a"})
    for keys in ([], ["a"] * (MAX_KEYS + 1)):
        with pytest.raises(ConfigurationError, match=rf"{len(keys)} keys .* expected 1 to {MAX_KEYS}"):
            find(bench, "value", keys)
    bench.close()


def test_a_name_that_may_be_two_tables_is_written_with_quotes(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, Living(TTL("10s")))
    value = operator_of(bench).states[0]
    bench.close()
    of = {"op": "timers.event", "op.timers": "event"}
    ops = [replace(operator_of(bench), uid=uid, states=[replace(value, name=name)]) for uid, name in of.items()]
    with pytest.raises(
        NotFoundError, match=r"'op.timers.event' may be any of \"op\".\"timers.event\", \"op.timers\".\"event\""
    ):
        table_of(ops, "op.timers.event")
    assert {table_of(ops, f'"{uid}"."{name}"').uid for uid, name in of.items()} == {*of}


def test_a_reader_tries_again_until_nothing_changes_and_gives_up_where_something_always_does() -> None:
    turns, found = SequenceLock(), iter(range(100))

    def changing(times: int) -> int:
        number = next(found)
        if number < times:
            with turns.writing():
                pass
            if number % 2:
                raise RuntimeError("dictionary changed size during iteration")
        return number

    assert turns.read(lambda: changing(3)) == 3
    assert turns.read(lambda: changing(100)) is None
    with pytest.raises(KeyError):
        turns.read(lambda: {}["an error of its own"])
    with turns.writing():
        assert turns.read(lambda: 1) is None


# -- keepers


def test_a_keeper_answers_in_the_middle_of_an_epoch_from_the_one_before(nursery: Nursery) -> None:
    keeper = nursery.start()
    with pytest.raises(UnavailableError, match="partition 0 is not open for generation 1"):
        keeper.seen("a")
    keeper.counts("a", "a", "b")
    with keeper.connect() as running:
        running.begin(keeper.instructions(2))
        running.rows([("a", "count", 0, 0), ("c", "count", 0, 0)])
        running.connection.expect(p.OUTPUT)
        assert keeper.seen("a", "b", "c") == (1, [2, 1, None])
        # The main thread is in the user's function. What waited for the epoch would wait for ever: it has no end yet.
        running.rows([("b", "wait", 50, 0)])
        assert keeper.seen("b") == (1, [1])
        assert keeper.first_seen(10) == (1, {"a": 2, "b": 1})
        running.end()
        running.finish()
    keeper.epoch = 2
    assert keeper.seen("a", "b", "c") == (2, [3, 2, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_dirty_in_flight_and_in_the_backend_is_found(nursery: Nursery, backend: str) -> None:
    keeper = nursery.start(backend=backend, env={"STRANDLINE_FAILPOINTS": "keeper.persist.before=sleep:0.3@2"})
    keeper.counts("stored", "flying", "dirty")
    keeper.checkpoint(1)
    keeper.counts("flying", "dirty")
    keeper.poll(trigger=2, pending=2)
    keeper.counts("dirty")
    assert keeper.seen("stored", "flying", "dirty", "never") == (3, [1, 2, 3, None])
    keeper.report(2)
    assert keeper.seen("stored", "flying", "dirty", "never") == (3, [1, 2, 3, None])


def test_where_the_state_changes_all_the_time_a_look_up_comes_between_epochs(nursery: Nursery) -> None:
    keeper = nursery.start()
    keeper.run([("a", "disturb", 0, 0)])
    assert keeper.seen("a") == (1, [1])
    assert keeper.counts("a") == [("a", "2")]


def test_a_look_up_that_cannot_be_answered_says_why_and_leaves_nothing(nursery: Nursery) -> None:
    keeper = nursery.start()
    keeper.counts("a")
    before = keeper.opened()
    lookup = Lookup(generation=Generation(2), request=LookupRequest(state="seen", keys=[], now_us=0))
    for asked, error, said in [
        (lookup, UnavailableError, "generation 2"),
        (b"nonsense", KeeperError, "look-up failed"),
    ]:
        with keeper.connect() as talk:
            talk.connection.send(p.LOOKUP, asked)
            with pytest.raises(error, match=said):
                talk.connection.expect(p.LOOKUP_ANSWER)
    eventually(lambda: keeper.opened() <= before, "its files and threads are as before")
    assert keeper.seen("a") == (1, [1])


def test_turns_are_short_while_anybody_waits_and_only_then() -> None:
    interval, usual = SwitchInterval(), sys.getswitchinterval()
    interval.shorten()
    interval.shorten()
    interval.restore()
    assert sys.getswitchinterval() < usual
    interval.restore()
    assert sys.getswitchinterval() == usual
