"""A program that adds, changes or takes away a TTL, and goes on from its checkpoint."""

from __future__ import annotations

import tracemalloc
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, List, Map, Value
from strandline.backends.options import MIB
from strandline.core.ids import CheckpointId, Epoch
from strandline.core.times import END_US
from strandline.runtime.program import Restore
from tests.runtime.bench import Bench, Event
from tests.runtime.conftest import Make
from tests.runtime.living import Living, S, answers, epoch, stored
from tests.snapshot.partitions import operator_info


def then(make: Make, kind: Any, bench: Bench, **given: Any) -> Bench:
    files, number = bench.snapshot(), bench.epoch
    after = make(kind, **given)
    restored = Restore(checkpoint=CheckpointId(1), epoch=Epoch(number), stored=operator_info(bench))
    after.program = replace(after.program, restore=restored)
    after.restore(files, number)
    return after


READ_ALL = ("k", "read", 0, 0)
WRITE_ALL: list[Event] = [
    ("k", op, 1, 1) for op in ("set_value", "set_pair", "add_tag", "append", "put", "reduce", "average")
]
ALL = repr(((1, True, (1, "1"), [1], 1, 1), (1, True, [1]), (1, [(1, 1)])))
NONE = repr(((7, False, None, None, None, None), (0, False, []), (0, [])))


@pytest.mark.parametrize("expires", ["element", "list"])
def test_a_ttl_that_is_added_later_counts_from_the_next_write(make: Make, expires: str) -> None:
    bench = make(Living(None))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(TTL("10s"), expires), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=1000)) == [ALL]
    assert "ttl.processing" not in stored(bench)
    rows = answers(epoch(bench, [*WRITE_ALL, READ_ALL], now_s=1000))
    assert rows[-1] == repr(((1, True, (1, "1"), [1, 1], 1, 1), (2, True, [1, 1]), (1, [(1, 1)])))
    # What is in a list is written again with the list alone.
    left = repr(((7, False, None, None, None, None), (1, True, [1]), (0, [])))
    assert answers(epoch(bench, [READ_ALL], now_s=1010)) == [NONE if expires == "list" else left]
    epoch(bench, [("k", "set_list", 0, 1)], now_s=1010)
    epoch(bench, now_s=1030)
    assert stored(bench) == {}


@pytest.mark.parametrize(("before", "after"), [("element", "list"), ("list", "element")])
def test_lists_may_change_how_they_expire(make: Make, before: str, after: str) -> None:
    """What is there keeps the time that it had; what is added then follows the program."""
    bench = make(Living(TTL("10s"), before))

    def lists(events: list[Event], now_s: float) -> Any:
        rows = answers(epoch(bench, [*events, ("k", "read", 0, 0)], now_s=now_s))
        return literal_eval(rows[-1])[1][2]

    add: list[Event] = [("k", "append", 1, 0)]
    assert [lists(add, 100), lists(add, 105)] == [[1], [1, 1]]
    bench = then(make, Living(TTL("10s"), after), bench)
    add = [("k", "append", 2, 0)]
    if before == "element":
        # Of those that were there, one goes at 110 and one at 115; what is added prolongs what was added.
        assert [lists(add, 109), lists(add, 112), lists([], 116), lists([], 121)] == [
            [1, 1, 2],
            [1, 2, 2],
            [2, 2],
            [2, 2],
        ]
    else:
        # Those that were there go at 115, together.
        assert [lists(add, 109), lists(add, 112), lists([], 116), lists([], 121)] == [
            [1, 1, 2],
            [1, 1, 2, 2],
            [2, 2],
            [2],
        ]
    assert lists([], 122) == []
    epoch(bench, now_s=200)
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


def test_what_expires_by_another_time_now_is_cleaned_by_that(make: Make) -> None:
    """At the end of event time too, as it may begin anew; and where there is no event time any more."""
    by_clock, by_events = Living(TTL("10s")), Living(TTL("10s", time="event"))
    bench = make(by_clock, timed=True)
    epoch(bench, WRITE_ALL, now_s=100, times_s=[0] * len(WRITE_ALL))
    bench = then(make, by_events, bench, timed=True)
    bench.apply([], END_US, 101 * S)
    assert stored(bench) == {}
    bench = make(by_events, timed=True)
    epoch(bench, WRITE_ALL, now_s=100, times_s=[95] * len(WRITE_ALL))
    bench = then(make, by_clock, bench)
    assert answers(epoch(bench, [READ_ALL], now_s=104)) == [ALL]
    epoch(bench, now_s=130)
    assert stored(bench) == {}


def test_a_ttl_that_is_taken_away(make: Make) -> None:
    bench = make(Living(TTL("10s")))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(None), bench)
    assert answers(epoch(bench, [READ_ALL], now_s=1000)) == [ALL]
    assert bench.task.next_timers_us == (None, None)


@pytest.mark.parametrize("expires", ["element", "list"])
def test_a_ttl_that_was_taken_away_and_is_given_again_counts_from_the_next_write(make: Make, expires: str) -> None:
    bench = make(Living(TTL("10s"), expires))
    epoch(bench, WRITE_ALL, now_s=100)
    bench = then(make, Living(None), bench)
    epoch(bench, [("k", "set_value", 1, 1)], now_s=1000)
    bench = then(make, Living(TTL("10s"), expires), bench)
    epoch(bench, now_s=2000)
    assert answers(epoch(bench, [READ_ALL], now_s=2000)) == [ALL]
    epoch(bench, [*WRITE_ALL, ("k", "set_list", 0, 1)], now_s=2000)
    assert answers(epoch(bench, [READ_ALL], now_s=2010)) == [NONE]
    epoch(bench, now_s=2030)
    assert stored(bench) == {}


class Texts(KeyedProcess):
    kept = Map("string", "bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.kept[event.op] = event.a


class Numbers(KeyedProcess):
    kept = Map("bigint", "bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.kept[event.a] = event.b


class Elements(KeyedProcess):
    kept = List("bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.kept.append(event.a)


class Stateless(KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        pass


@pytest.mark.parametrize("other", [Numbers, Elements])
def test_what_the_cleaning_was_to_do_before_no_state_had_a_ttl_is_forgotten(
    make: Make, other: type[KeyedProcess]
) -> None:
    """A state of the same name may be another one by now, whose entries have other keys."""
    bench = make(Texts())
    epoch(bench, [("k", "x", 1, 1)], now_s=100)
    bench = then(make, Stateless(), bench, dropped=["kept"])
    bench = then(make, other(), bench)
    epoch(bench, [("k", "x", 1, 1)], now_s=111)
    assert stored(bench)
    epoch(bench, now_s=130)
    assert stored(bench) == {}


class Large(KeyedProcess):
    def __init__(self, ttl: TTL | None) -> None:
        self.own_states = {"text": Value("string", ttl=ttl)}

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.text.value = event.op * event.a  # type: ignore[attr-defined]


def test_taking_a_ttl_away_holds_little_of_the_state_in_memory(tmp_path: Path) -> None:
    roots = tmp_path / "before", tmp_path / "now"
    for root in roots:
        root.mkdir()
    before, now = Bench("rocksdb", roots[0], Large(TTL("10s"))), Bench("rocksdb", roots[1], Large(None))
    for number in range(60):
        before.run([(str(number), "x", MIB, 0)])
        before.write(before.freeze())
    assert most_memory(before, now) < 30 * MIB
    assert all(value[0] == 0 for _, value in now.backend.scan("text"))
    before.close()
    now.close()


def most_memory(before: Bench, now: Bench) -> int:
    """Return how much memory it takes at most to go on with another program."""
    tracemalloc.start()
    then(lambda _: now, None, before)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


class Renamed(KeyedProcess):
    def __init__(self, name: str) -> None:
        self.own_states = {name: Map("bigint", "bigint", ttl=TTL("10s"))}
        self.name = name

    def on_event(self, event: Any, ctx: Any) -> Any:
        kept = getattr(self, self.name)
        for number in range(event.a):
            kept[number] = event.b


@pytest.mark.long
def test_renaming_a_state_holds_few_of_the_timers_in_memory(tmp_path: Path) -> None:
    many, root = 60_000, tmp_path / "now"
    before, now = Bench("rocksdb", tmp_path, Renamed("kept")), Bench("rocksdb", root, Renamed("seen"))
    now.program = replace(now.program, was={"seen": "kept"})
    before.run([("k", "x", many, 0)])
    before.write(before.freeze())
    assert most_memory(before, now) < 8 * MIB
    assert sum(b"\0" in key and b"seen" in key for key, _ in now.backend.scan("ttl.processing")) == many
    epoch(now, now_s=130)
    assert stored(now) == {}
    before.close()
    now.close()
