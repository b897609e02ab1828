"""The log of a job's events: each line is an object of its own, and the documentation has all of them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from strandline.checkpoint.history import Phases
from strandline.control import rotated
from strandline.control.events import (
    AttemptBegin,
    CheckpointEnd,
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
from strandline.core.clock import SystemClock
from tests.control.fake import RECENT, STATS

DOCS = Path(__file__).parents[2] / "docs/metrics.md"
EVENTS: list[Event] = [
    StateChange(state="failed", failure="it broke\nbadly"),
    AttemptBegin(generation=3, checkpoint=None, epoch=0, parallelism={"detect": 2}),
    CheckpointEnd.of(STATS),
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
        "state", "begin", "checkpoint", "interruption", "keeper_replaced", "savepoint", "killed",
    ]  # fmt: skip
    for line in lines:
        assert (line["schema"], line["job"], line["directory"]) == (1, "alerts", "file:///ck")
        assert datetime.fromisoformat(line["at"]).utcoffset() is not None
    assert lines[2]["phases"] == {"waits_ms": 1250.0, "epoch_ms": 480.5, "durable_ms": 95.0, "published_ms": 21.7}
    assert lines[3] | {"cause": "it broke\nbadly", "down_ms": 2500, "repeated_rows": 250} == lines[3]
    assert read_events(log.path) == EVENTS
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_a_log_of_events_is_bounded(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated, "MAX_BYTES", 1000)
    for _ in range(50):
        log.write(EVENTS[0])
    older = log.path.with_name("events.jsonl.1")
    assert sorted(log.path.parent.iterdir()) == [log.path, older]
    assert older.stat().st_size <= 1000
    assert 0 < len(read_events(log.path)) < 50


def test_a_part_of_a_line_spoils_no_other(log: EventLog) -> None:
    log.write(EVENTS[0])
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:20])
    log.write(EVENTS[1])
    log.write(EVENTS[2])
    first, part, *others = log.path.read_bytes().splitlines()
    assert (first + b"\n", part) == (whole, whole[:20])
    assert [json.loads(line)["event"] for line in others] == ["begin", "checkpoint"]


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
            "phases", "failure",
        ),
        "InterruptionEnd": ("kind", "began_ms", "down_ms", "cause", "checkpoint", "repeated_rows"),
        "KeeperReplacement": ("operator", "partition", "pid", "host", "cause"),
        "SavepointEnd": ("url", "form", "checkpoint", "epoch", "total_bytes", "duration_ms"),
        "RunKilled": ("killed_pid", "began_ms", "last_state", "last_state_ms"),
    }  # fmt: skip
    assert [*Phases.__dataclass_fields__] == ["waits_ms", "epoch_ms", "durable_ms", "published_ms"]


def test_the_table_in_the_documentation_is_that_of_the_definitions() -> None:
    assert as_markdown() in DOCS.read_text(), f"put this into docs/metrics.md:\n{as_markdown()}"
