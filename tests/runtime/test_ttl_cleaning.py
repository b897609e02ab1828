"""What has expired goes away: from memory and from disk, a part at a time, without anything being scanned."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, List, Value
from strandline.core.times import END_US
from strandline.runtime.state import timers
from strandline.runtime.state.table import ObjectTable
from strandline.runtime.state.ttl import cleaning as expiry
from tests.runtime.bench import Bench
from tests.runtime.conftest import Make
from tests.runtime.living import WAKE_S, Asked, Living, S, answers, epoch, stored


def test_cleaning_follows_in_memory_too(make: Make) -> None:
    bench = make(Asked())
    epoch(bench, [(f"k{n}", "set", n, n) for n in range(50)], now_s=100)
    bench.write(bench.freeze())
    epoch(bench, now_s=111)
    task = bench.task
    if bench.backend.keeps_all:
        live = {table.name: table.live for table in task.store._tables if isinstance(table, ObjectTable)}
        assert not any(live[name] for name in ("short", "log", "seen"))
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
    times = [(int(at * S) | 1 << 63).to_bytes(8, "big") for at in (110, 111.5, 112)]
    assert chunks == [
        ("8000000010000000", f"0100{times[0].hex()}9108"),
        ("8000000020000000", f"0100{times[1].hex()}9109"),
    ]
    assert found["ttl.processing"] == [
        (group + times[0] + b"log\0" + key + bytes.fromhex("8000000010000000"), b"\0\0"),
        (group + times[2] + b"log\0" + key + bytes.fromhex("8000000020000000"), b"\0\0"),
    ]


class Whole(KeyedProcess):
    """Its list expires as a whole."""

    log = List("bigint", ttl=TTL("10s"), expires="list")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.log.append(event.a)
        yield ctx.key, repr(list(self.log))


def test_the_bytes_of_a_list_that_expires_as_a_whole(make: Make) -> None:
    """When stands with its head, and its chunks are as without a TTL."""
    bench = make(Whole())
    epoch(bench, [("k", "append", 8, 0)], now_s=100)
    assert answers(epoch(bench, [("k", "append", 9, 0)], now_s=101.5)) == ["[8, 9]"]
    found = stored(bench)
    group, key = found["log"][0][0][:2], b"k\0\0"
    chunks = [(entry.removeprefix(group + key).hex(), value.hex()) for entry, value in found["log"]]
    head = "0100" + (int(111.5 * S) | 1 << 63).to_bytes(8, "big").hex() + "90"
    assert chunks == [
        ("7f" + "ff" * 7, head),
        ("8000000010000000", "00009108"),
        ("8000000020000000", "00009109"),
    ]
    assert found["ttl.processing"] == [(group + (110 * S | 1 << 63).to_bytes(8, "big") + b"log\0" + key, b"\0\0")]
    assert answers(epoch(bench, [("k", "append", 7, 0)], now_s=111.5)) == ["[7]"]


def test_much_is_cleaned_over_several_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_FIRED_AT_ONCE", 10)
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


def test_a_drain_cleans_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event time may begin anew after it: nothing that has expired may be there then."""
    monkeypatch.setattr(expiry, "_FIRED_AT_ONCE", 10)
    monkeypatch.setattr(timers, "_CHUNK", 7)
    bench = Bench("rocksdb", tmp_path, Living(TTL("10s", time="event")), timed=True)
    fill = [(f"k{n}", "set_value", n, n) for n in range(50)]
    epoch(bench, fill, watermark_s=99, times_s=[100] * 50)
    bench.write(bench.freeze())
    # What was made since the last call counts twice.
    epoch(bench, watermark_s=100)
    assert len(stored(bench)["ttl.event"]) == 50
    epoch(bench, watermark_s=END_US / S)
    assert stored(bench) == {}
    assert bench.task.next_timers_us == (None, None)
    bench.close()


def test_cleaning_keeps_pace_with_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_FIRED_AT_ONCE", 1)
    monkeypatch.setattr(timers, "_CHUNK", 5)
    bench = Bench("rocksdb", tmp_path, Asked())
    for now in range(100, 140):
        epoch(bench, [(f"k{now}-{n}", "set", n, n) for n in range(5)], now_s=now)
        bench.write(bench.freeze())
    # Four states expire, ten seconds after their five keys were written.
    assert len(stored(bench)["ttl.processing"]) == 4 * 5 * 10
    bench.close()


class Both(KeyedProcess):
    value = Value("bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
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
