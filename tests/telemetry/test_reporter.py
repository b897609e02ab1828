"""Reports from the driver: they begin and end with the run, and disturb nobody."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError
from strandline.telemetry import reporter
from strandline.telemetry.lineage import LineageRun
from strandline.telemetry.reporter import Reporter
from tests.control.fake import FakeRun
from tests.control.talking import wait_until
from tests.telemetry.asking import Scrape
from tests.telemetry.collecting import collecting

LINEAGE = LineageRun("n", "alerts", (Dataset("file", "/in"),), ())


class Reported:
    """A run whose end a test says, and its reporter."""

    def __init__(self, **options: Any) -> None:
        self.run, self.ended = FakeRun(), threading.Event()
        self.reporter = Reporter(
            sl.Telemetry(**{"every": "20ms", **options}), self.run, "file:///ck", 1_000, self.ended, lambda: LINEAGE
        )

    def end(self, state: Any = "stopped") -> None:
        self.run.state = state
        self.ended.set()
        self.reporter.join()


@pytest.fixture(autouse=True)
def _no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reporter, "_POLL_S", 0.01)
    yield
    left = [thread.name for thread in threading.enumerate() if "telemetry" in thread.name]
    assert left == []


@pytest.mark.parametrize(("state", "kind"), [("stopped", "COMPLETE"), ("finished", "COMPLETE"), ("failed", "FAIL")])
def test_a_run_is_reported_from_its_start_to_its_end(tmp_path: Path, state: Any, kind: str) -> None:
    path = tmp_path / "lineage.jsonl"
    with collecting() as kept:
        reported = Reported(prometheus=0, otlp=kept.url, lineage=path)
        reported.reporter.start()
        with urllib.request.urlopen(reported.reporter.address, timeout=10) as answer:
            assert Scrape(answer.read().decode())("strandline_job_state", state="running") == 1
        wait_until(lambda: len(kept.bodies("/v1/metrics")) >= 2)
        reported.end(state)
        points = kept.metrics["strandline.job_state"]["gauge"]["dataPoints"]
        states = [each["attributes"][-1]["value"]["stringValue"] for each in points if each["asDouble"] == 1]
    # The last message has the end.
    assert states == [state]
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["eventType"] for event in events] == ["START", kind]
    failures = [event["run"]["facets"].get("errorMessage") for event in events]
    assert (failures[1] is not None) == (state == "failed")
    with pytest.raises(OSError):
        urllib.request.urlopen(reported.reporter.address, timeout=1)


def test_a_start_that_fails_ends_its_reports(tmp_path: Path) -> None:
    path = tmp_path / "lineage.jsonl"
    reported = Reported(prometheus=0, lineage=path)
    reported.run.state = "starting"
    reported.reporter.start()
    reported.reporter.end()
    assert [json.loads(line)["eventType"] for line in path.read_text().splitlines()] == ["START", "FAIL"]
    assert not reported.ended.is_set()


def test_a_collector_that_never_answers_holds_up_the_end_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strandline.telemetry.otlp._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING, "strandline"):
        reported = Reported(otlp=f"http://127.0.0.1:{silent.getsockname()[1]}")
        reported.reporter.start()
        wait_until(lambda: "does not take metrics" in caplog.text)
        reported.end()


def test_a_status_that_cannot_be_had_ends_no_reports(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as kept, caplog.at_level(logging.WARNING, "strandline"):
        reported = Reported(otlp=kept.url)

        def fail() -> Any:
            raise RuntimeError("it is between two attempts")

        monkeypatch.setattr(reported.run, "recent", fail)
        reported.reporter.start()
        wait_until(lambda: "were not sent: RuntimeError" in caplog.text)
        monkeypatch.undo()
        monkeypatch.setattr(reporter, "_POLL_S", 0.01)
        wait_until(lambda: kept.bodies("/v1/metrics"))
        reported.end()


@pytest.mark.parametrize("package", ["prometheus_client", "opentelemetry"])
def test_without_its_packages_it_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("strandline.telemetry.", package))]:
        if name != "strandline.telemetry.reporter":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    reported = Reported(prometheus=0, otlp="http://127.0.0.1:4318")
    with pytest.raises(ConfigurationError, match="telemetry needs") as caught:
        reported.reporter.start()
    assert caught.value.hint == "pip install 'strandline[metrics]'"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prometheus": "localhost"}, "expected a port, or an address with its port"),
        ({"prometheus": 70000}, "expected a port, or an address with its port"),
        ({"prometheus": True}, "expected a port, or an address with its port"),
        ({"prometheus": ":9464"}, "expected a port, or an address with its port"),
        ({"otlp": "localhost:4318"}, "expected the address of a server"),
        ({"otlp": 4318}, "expected the address of a collector"),
        ({"lineage": "ftp://here/x"}, "expected the address of a server"),
        ({"lineage": 7}, "expected a file or a server"),
        ({"lineage": "http://ann:secret@here/"}, "the address of lineage has a user or password"),
        ({"otlp": "ftp://ann:secret@here/"}, r"ftp://\*\*\*@here/"),
        ({"every": "0s"}, "expected more than 0"),
        ({"every": 5}, "expected a duration with its unit"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        sl.Telemetry(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("prometheus", "address"),
    [(9464, ("127.0.0.1", 9464)), ("0.0.0.0:9464", ("0.0.0.0", 9464)), ("[::1]:0", ("::1", 0))],
)
def test_a_port_alone_is_one_of_loopback(prometheus: Any, address: tuple[str, int]) -> None:
    assert sl.Telemetry(prometheus=prometheus).address == address
