"""What an operations team gets of a real job: metrics, spans, events and lineage, also while its keepers die."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.cli.metrics import Machine
from strandline.control import journal
from strandline.control.events import (
    AttemptBegin,
    CheckpointEnd,
    EpochsEnd,
    InterruptionEnd,
    KeeperReplacement,
    RunKilled,
    SavepointEnd,
    StateChange,
    read_events,
)
from strandline.control.journal import JournalEntry
from strandline.keeper.paths import Places
from strandline.telemetry.metrics import METRICS
from strandline.telemetry.prometheus import exposition
from strandline.ui.jobs import Jobs
from tests.spark import small
from tests.spark.harness import Case, eventually, settle
from tests.telemetry.asking import Scrape
from tests.telemetry.collecting import collecting
from tests.telemetry.test_deploy import EXPRESSIONS, selectors
from tests.telemetry.test_lineage import parsed

pytestmark = pytest.mark.spark

NOT_OF_FILES = (
    "strandline_sink_", "strandline_source_backlog_offsets", "strandline_watermark_", "strandline_source_watermark_",
    "strandline_operator_standbys_",
)  # fmt: skip
COUNTERS = [metric.name for metric in METRICS if metric.since == "driver"]


def scrape(run: sl.Run) -> Scrape:
    """Ask the driver as Prometheus does."""
    with urllib.request.urlopen(run.metrics_address, timeout=30) as answer:
        return Scrape(answer.read().decode())


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "telemetry" in thread.name}


def lineage_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_restart_is_seen_in_metrics_spans_events_and_lineage(spark: Any, case: Case) -> None:
    case.short = True
    case.add(3)
    lineage = case.root / "lineage.jsonl"
    with collecting() as kept:
        telemetry = sl.Telemetry(prometheus=0, otlp=kept.url, every="200ms", lineage=lineage, namespace="tests")
        checkpoints = case.checkpoints(local_log=False)
        with case.job(spark, checkpoints=checkpoints, telemetry=telemetry).start(spark) as run:
            assert run.metrics_address.startswith("http://127.0.0.1:")
            settle(run)
            before = scrape(run)
            assert before("strandline_up", job="pipeline") == 1
            assert before("strandline_job_state", state="running") == 1
            assert before("strandline_rows_total") == before("strandline_life_rows") == len(case.events)
            assert before("strandline_restarts_total") == before("strandline_repeated_rows_total") == 0
            assert before("strandline_epochs_total") >= 3
            assert sum(before.all("strandline_partition_rows_in_total", operator="profile")) == len(case.events)

            os.kill(run.status().keepers[0].pid, signal.SIGKILL)
            case.add(1)
            eventually(lambda: run.status().restarts and run.status().state == "running", "it has restarted")
            settle(run)
            eventually(lambda: run.status().uncovered_ms == 0, "all is in a checkpoint")
            after = scrape(run)
            assert after("strandline_restarts_total") == 1
            assert after("strandline_downtime_seconds_total") > 0
            # What was read again counts again, and the job's life has each row once.
            repeated = after("strandline_repeated_rows_total")
            assert after("strandline_rows_total") == len(case.events) + repeated
            assert after("strandline_life_rows") == len(case.events)
            for name in COUNTERS:
                for key, value in before.values.items():
                    assert key[0] != name or after.values[key] >= value, key
            # What the board and the alerts select is there, but for what this job does not have.
            selected = {each.name for _, expression, _ in EXPRESSIONS for each in selectors(expression)}
            missing = selected - {name for name, _ in after.series}
            assert missing <= {name for name in selected if name.startswith(NOT_OF_FILES)}
            # From its socket, a job has the same metrics for `strandline metrics`.
            machine = Scrape(exposition(Machine(Jobs(case.local_dir)).read))
            assert {key[0] for key in machine.values} == {key[0] for key in after.values}
            assert machine("strandline_restarts_total") == 1
            assert {labels["directory"] for _, labels in machine.series + after.series} == {
                case.directory.parent.as_uri()
            }
        spans = [span.name for span in kept.spans if not span.parent_span_id]
        assert {"epoch", "checkpoint", "restart"} <= set(spans)
        epochs = [
            attribute.value.int_value
            for span in kept.spans
            if span.name == "epoch"
            for attribute in span.attributes
            if attribute.key == "strandline.epoch"
        ]
        # Every epoch of both attempts, in order: none was lost with the attempt that failed.
        assert set(epochs) == set(range(1, max(epochs) + 1))
        assert kept.metrics["strandline.restarts"]["sum"]["dataPoints"][0]["asDouble"] == 1
    assert not threads()

    begin, end = lineage_of(lineage)
    assert parsed(begin).eventType.value == "START"
    assert parsed(end).eventType.value == "COMPLETE"
    assert begin["run"]["runId"] == end["run"]["runId"]
    assert begin["job"]["namespace"] == "tests"
    assert [each["name"] for each in begin["inputs"]] == [str(case.root / "in")]
    assert {each["namespace"] for each in begin["outputs"]} == {"file"}
    assert all(each["name"].startswith(str(case.out)) for each in begin["outputs"])

    events = read_events(Places(case.local_dir, (case.root / "ck").as_uri(), "pipeline").event_log)
    states = [event.state for event in events if isinstance(event, StateChange)]
    assert states == ["starting", "running", "restarting", "running", "stopped"]
    begins = [event for event in events if isinstance(event, AttemptBegin)]
    assert [each.checkpoint is None for each in begins] == [True, False]
    assert begins[1].generation > begins[0].generation
    (interruption,) = (event for event in events if isinstance(event, InterruptionEnd))
    assert (interruption.kind, interruption.repeated_rows) == ("failure", repeated)
    assert "signal 9" in interruption.cause
    ended = [event for event in events if isinstance(event, CheckpointEnd)]
    assert {event.status for event in ended} >= {"completed"}
    assert [event.checkpoint for event in ended] == sorted(event.checkpoint for event in ended)
    # No epoch of either attempt is missing, and their times are those of the operators.
    of_epochs = [event for event in events if isinstance(event, EpochsEnd)]
    numbers = {number for event in of_epochs for number in range(event.first, event.last + 1)}
    assert numbers == set(range(1, max(epochs) + 1))
    assert sum(event.rows for event in of_epochs) == len(case.events) + repeated
    assert all(sum(each.busy_ms for each in event.operators) > 0 for event in of_epochs if event.rows)


def test_a_keeper_that_is_replaced_alone_is_counted_and_a_savepoint_is_an_event(spark: Any, case: Case) -> None:
    case.short = True
    case.add(2)
    places = Places(case.local_dir, (case.root / "ck").as_uri(), "pipeline")
    places.make()
    journal.write(places, JournalEntry(
        job="pipeline", directory=places.store_url, pid=7, born="1", since_ms=1, state="restarting", at_ms=2
    ))  # fmt: skip
    telemetry = sl.Telemetry(prometheus=0)
    with case.job(spark, checkpoints=case.checkpoints(local_log=True), telemetry=telemetry).start(spark) as run:
        settle(run)
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        case.add(1)
        eventually(lambda: scrape(run)("strandline_replaced_keepers_total") >= 1, "it is counted", every_s=0.1)
        assert scrape(run)("strandline_restarts_total") == 0
        run.savepoint(case.root / "sp")
        run.rescale(3)
        settle(run)
        after = scrape(run)
        # The attempt that replaced it is over, and its count is not.
        assert after("strandline_replaced_keepers_total") >= 1
        assert after("strandline_rescales_total") == 1
        assert after("strandline_operator_parallelism", operator="profile") == 3
        assert len(after.all("strandline_partition_state_bytes", operator="profile")) == 3
        assert after("strandline_rows_total") == len(case.events)
    events = read_events(places.event_log)
    # The driver before, which could not say it itself; a rescale says it no second time.
    assert events[0] == RunKilled(killed_pid=7, began_ms=1, last_state="restarting", last_state_ms=2)
    assert not [event for event in events[1:] if isinstance(event, RunKilled)]
    replaced = next(event for event in events if isinstance(event, KeeperReplacement))
    assert replaced.operator == "profile"
    (savepoint,) = (event for event in events if isinstance(event, SavepointEnd))
    assert savepoint.url.endswith("/sp")
    assert not threads()


def test_a_start_that_fails_is_the_end_of_its_run(spark: Any, case: Case) -> None:
    directory, lineage = case.root / "in", case.root / "lineage.jsonl"
    small.write_rows(directory, 0, [("ann", "a", 1)])
    telemetry = sl.Telemetry(prometheus=0, lineage=lineage)

    def job(output: str) -> sl.Job:
        stream = sl.stream(small.source(spark, directory))
        return small.job(stream, case.root, case.local_dir, output=output, telemetry=telemetry, max_parallelism=number)

    number: int | None = 8
    run = job(small.OUTPUT).start(spark)
    run.stop(checkpoint=True)
    number = 16
    with pytest.raises(sl.errors.ConfigurationError):
        job(small.OUTPUT).start(spark)
    kinds = [event["eventType"] for event in lineage_of(lineage)]
    assert kinds == ["START", "COMPLETE", "START", "FAIL"]
    failure = parsed(lineage_of(lineage)[-1]).run.facets["errorMessage"]
    assert "max_parallelism" in failure.message
    assert not threads()


def test_an_address_that_another_program_has_is_refused_before_anything_begins(spark: Any, case: Case) -> None:
    directory = case.root / "in"
    small.write_rows(directory, 0, [("ann", "a", 1)])
    with collecting() as other:
        port = int(other.url.rpartition(":")[2])
        job = small.job(
            sl.stream(small.source(spark, directory)), case.root, case.local_dir,
            telemetry=sl.Telemetry(prometheus=port),
        )  # fmt: skip
        with pytest.raises(sl.errors.ConfigurationError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            job.start(spark)
    assert not threads()
