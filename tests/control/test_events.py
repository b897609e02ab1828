"""The log of a job's events: each line is an object of its own, and the documentation has all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from strandline.checkpoint.history import Phases
from strandline.control import rotated
from strandline.control.events import (
    AttemptBegin,
    CheckpointEnd,
    EpochsEnd,
    Event,
    EventLog,
    InterruptionEnd,
    KeeperReplacement,
    RunKilled,
    SavepointEnd,
    StateChange,
    as_markdown,
    read_events,
)
from strandline.control.recent import OperatorTime
from strandline.core.clock import SystemClock
from tests.control.fake import RECENT, STATS

DOCS = Path(__file__).parents[2] / "docs/metrics.md"
EVENTS: list[Event] = [
    StateChange(state="failed", failure="it broke\nbadly"),
    AttemptBegin(generation=3, checkpoint=None, epoch=0, parallelism={"detect": 2}),
    CheckpointEnd.of(STATS),
    EpochsEnd.of(RECENT.epochs),
    InterruptionEnd.of(RECENT.interruptions[0]),
    KeeperReplacement(operator="detect", partition=1, pid=7, host="here", cause="signal 9"),
    SavepointEnd(url="file:///sp", form="native", checkpoint=7, epoch=12, total_bytes=1, duration_ms=2),
    RunKilled(killed_pid=7, began_ms=1, last_state="running", last_state_ms=2),
]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl", "alerts", "file:///ck", SystemClock())


def test_each_line_is_an_event_and_says_whose_it_is(log: EventLog) -> None:
    for event in EVENTS:
        log.write(event)
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "state", "begin", "checkpoint", "epochs", "interruption", "keeper_replaced", "savepoint", "killed",
    ]  # fmt: skip
    for line in lines:
        assert (line["schema"], line["job"], line["directory"]) == (1, "alerts", "file:///ck")
        assert datetime.fromisoformat(line["at"]).utcoffset() is not None
    assert lines[2]["phases"] == {"waits_ms": 1250.0, "epoch_ms": 480.5, "durable_ms": 95.0, "published_ms": 21.7}
    assert lines[4] | {"cause": "it broke\nbadly", "down_ms": 2500, "repeated_rows": 250} == lines[4]
    assert read_events(log.path) == EVENTS
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_log_of_events_is_bounded(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated, "MAX_BYTES", 1000)
    for _ in range(50):
        log.write(EVENTS[0])
    older = log.path.with_name("events.jsonl.1")
    assert sorted(log.path.parent.iterdir()) == [log.path, older]
    assert older.stat().st_size <= 1000
    lines = len(log.path.read_bytes().splitlines()) + len(older.read_bytes().splitlines())
    assert 0 < len(log.path.read_bytes().splitlines()) < len(read_events(log.path)) == lines < 50


def test_a_part_of_a_line_spoils_no_other(log: EventLog) -> None:
    log.write(EVENTS[0])
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:20])
    log.write(EVENTS[1])
    log.write(EVENTS[2])
    first, part, *others = log.path.read_bytes().splitlines()
    assert (first + b"\n", part) == (whole, whole[:20])
    assert [json.loads(line)["event"] for line in others] == ["begin", "checkpoint"]
    assert read_events(log.path) == EVENTS[:3]


def test_events_of_others_and_of_other_versions_are_left_out(log: EventLog) -> None:
    log.write(EVENTS[0])
    other = replace(log, directory="file:///other")
    other.write(EVENTS[1])
    line = json.loads(log.path.read_bytes().splitlines()[0])
    with log.path.open("a") as file:
        file.write(json.dumps(line | {"event": "comes later"}) + "\n" + json.dumps(line | {"more": 1}) + "\n[7]\n")
    assert read_events(log.path) == [EVENTS[0], EVENTS[1], EVENTS[0]]
    assert read_events(log.path, lambda directory: directory == "file:///other") == [EVENTS[1]]


def test_the_sum_of_epochs() -> None:
    first, second = RECENT.epochs
    slow = replace(second, epoch=13, ended_ms=second.ended_ms + 1000, took_ms=900.0, pause_ms=7.0, operators=[
        OperatorTime("detect", 1, 500.0, 10.0, 300.0),
    ])  # fmt: skip
    event = EpochsEnd.of([first, second, slow])
    assert (event.first, event.last, event.epochs, event.rows) == (11, 13, 3, 1100 + 1200 + 1200)
    assert (event.began_ms, event.ended_ms) == (first.ended_ms - 400, slow.ended_ms)
    assert (event.took_ms, event.plan_ms, event.pause_ms) == (1700.0, 240.0, 7.0)
    assert (event.slowest, event.slowest_ms) == (13, 900.0)
    # Partition 1 was slowest only once, and for longer than partition 0 in two epochs.
    assert event.operators == (
        OperatorTime("detect", 1, 920.0, 70.0, 600.0), OperatorTime("top", 0, 80.0, 10.0, 80.0),
    )  # fmt: skip
    assert EpochsEnd.sum([EpochsEnd.of([first]), EpochsEnd.of([second, slow])]) == event


def test_a_log_without_its_directory_fails_for_nobody(tmp_path: Path) -> None:
    EventLog(tmp_path / "gone" / "events.jsonl", "alerts", "file:///ck", SystemClock()).write(EVENTS[0])
    assert read_events(tmp_path / "gone" / "events.jsonl") == []


def test_the_schema_is_stable() -> None:
    """Whoever changes this list changes what programs read: fields may only be added."""
    assert {kind.__name__: kind.__struct_fields__ for kind in map(type, EVENTS)} == {
        "StateChange": ("state", "failure"),
        "AttemptBegin": ("generation", "checkpoint", "epoch", "parallelism"),
        "CheckpointEnd": (
            "checkpoint", "status", "mode", "epoch", "triggered_ms", "duration_ms", "uploaded_bytes", "total_bytes",
            "phases", "failure", "acknowledged", "total_partitions",
        ),
        "EpochsEnd": (
            "first", "last", "epochs", "began_ms", "ended_ms", "rows", "took_ms", "plan_ms", "slowest", "slowest_ms",
            "pause_ms", "operators",
        ),
        "InterruptionEnd": ("kind", "began_ms", "down_ms", "cause", "checkpoint", "repeated_rows"),
        "KeeperReplacement": ("operator", "partition", "pid", "host", "cause"),
        "SavepointEnd": ("url", "form", "checkpoint", "epoch", "total_bytes", "duration_ms"),
        "RunKilled": ("killed_pid", "began_ms", "last_state", "last_state_ms"),
    }  # fmt: skip
    assert [*Phases.__dataclass_fields__] == ["waits_ms", "epoch_ms", "durable_ms", "published_ms"]


def test_the_table_in_the_documentation_is_that_of_the_definitions() -> None:
    assert as_markdown() in DOCS.read_text(), f"put this into docs/metrics.md:\n{as_markdown()}"
