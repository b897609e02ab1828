"""State that expires: until when it is there, what prolongs it, by which time, and what is no TTL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, Aggregating, List, Map, Reducing, Value
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.runtime.program import check_ttl, state_infos
from strandline.runtime.state.table import ObjectTable
from strandline.runtime.state.ttl import cleaning as expiry
from strandline.runtime.task.task import EpochTimes
from tests.runtime.bench import Bench, Everything, batch_of
from tests.runtime.conftest import Make
from tests.runtime.living import WAKE_S, Asked, S, answers, epoch, stored

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
    assert answers(epoch(bench, [("k", "", 0, 0)], now_s=127)) == [repr(((5, 5, True, [5]), [5], 1, True, {5: 6}, 1))]
    assert answers(epoch(bench, [("k", "clear", 0, 0)], now_s=127)) == [
        repr(((5, -1, False, [5]), [], 0, False, {}, 0))
    ]
    assert sorted(stored(bench)) == ["plain", "tags", "ttl.processing"]
    epoch(bench, now_s=129)
    assert sorted(stored(bench)) == ["plain"]


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
        task.begin(Epoch(bench.epoch + 1), EpochTimes(now_us=int(now_s * S)))
        list(task.fire())
        list(task.process(batch_of([("k", "", 0, 0)])))
        count = sum(len(list(table.changed())) for table in task.store._tables if isinstance(table, ObjectTable))
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
        (lambda: TTL("40000 days"), "at most 100 years"),
        (lambda: Map("int", "int", ttl=3600), "Map: its ttl is 3600, expected a TTL"),
    ],
)
def test_what_is_no_ttl(make_it: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_it()
