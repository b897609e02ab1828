"""Metrics and spans as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from strandline.telemetry.metrics import METRICS
from strandline.telemetry.otlp import Collector, name_of
from tests.control.fake import RECENT
from tests.telemetry.asking import figures_of
from tests.telemetry.collecting import Collecting, collecting


@pytest.fixture
def kept() -> Iterator[Collecting]:
    with collecting() as made:
        yield made


@pytest.fixture
def collector(kept: Collecting) -> Iterator[Collector]:
    made = Collector(kept.url, 0)
    yield made
    made.close()


def point(metric: dict[str, Any], **labels: str) -> dict[str, Any]:
    """Return the point of a metric with these labels."""
    points = metric.get("sum", metric.get("gauge"))["dataPoints"]
    for each in points:
        its = {attribute["key"]: attribute["value"]["stringValue"] for attribute in each.get("attributes", [])}
        if labels.items() <= its.items():
            return each  # type: ignore[no-any-return]
    raise AssertionError((labels, points))


def test_a_collector_gets_the_metrics_with_units_and_the_beginning_of_counters(
    kept: Collecting, collector: Collector
) -> None:
    assert collector.send([figures_of()])
    assert kept.resource["service.name"] == "alerts"
    assert kept.resource["service.instance.id"] == "file:///ck"
    rows = kept.metrics["strandline.rows"]
    assert (rows["sum"]["isMonotonic"], rows["sum"]["aggregationTemporality"]) == (
        True, "AGGREGATION_TEMPORALITY_CUMULATIVE",
    )  # fmt: skip
    assert point(rows, directory="file:///ck")["asDouble"] == 1250
    # Of the job since the driver began, of a partition since the attempt: so a restart is seen as a reset.
    assert point(rows)["startTimeUnixNano"] == str(1_000 * 10**6)
    partition = point(kept.metrics["strandline.partition_rows_in"], operator="detect", partition="0")
    assert (partition["asDouble"], partition["startTimeUnixNano"]) == (900, str(5_000 * 10**6))
    assert kept.metrics["strandline.uncovered"]["unit"] == "s"
    assert kept.metrics["strandline.last_checkpoint_uploaded"]["unit"] == "By"
    assert "unit" not in kept.metrics["strandline.epoch"]


def test_names_differ_after_their_units_have_been_taken_off() -> None:
    # With `_total`, the unit and the type, a collector makes Prometheus' name of it again.
    assert len({(name_of(metric), metric.unit, metric.kind) for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        name = name_of(metric).replace(".", "_")
        assert f"{name}{'_' if metric.unit else ''}{metric.unit}{'_total' if metric.kind == 'counter' else ''}" == (
            metric.name
        )


def test_a_collector_gets_each_span_once_and_those_within_it(kept: Collecting, collector: Collector) -> None:
    jobs = [figures_of(at_ms=2_000_000_000_000)]
    assert collector.send(jobs)
    assert collector.send(jobs)
    spans = kept.spans
    assert [span.name for span in spans if not span.parent_span_id] == ["epoch", "epoch", "restart"]
    epoch, plan, process = spans[:3]
    assert (plan.parent_span_id, plan.trace_id) == (epoch.span_id, epoch.trace_id)
    assert process.events[0].name == "operator"
    assert epoch.end_time_unix_nano - epoch.start_time_unix_nano == 400 * 10**6
    restart = next(span for span in spans if span.name == "restart")
    assert (restart.status.code, restart.status.message) == (2, RECENT.interruptions[0].cause)
    assert len({span.span_id for span in spans}) == len(spans)
    assert len(kept.bodies("/v1/metrics")) == 2


@pytest.mark.parametrize("trouble", ["it refuses", "it is away"])
def test_a_collector_that_takes_nothing_is_warned_of_once(
    kept: Collecting, trouble: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.telemetry.otlp._TIMEOUT_S", 0.2)
    kept.code = 400
    collector = Collector(kept.url if trouble == "it refuses" else "http://127.0.0.1:9", 0)
    with caplog.at_level(logging.WARNING, "strandline"):
        assert not collector.send([figures_of()])
        assert not collector.send([figures_of()])
    collector.close()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("strandline")]
    assert len(ours) == 1
    assert "does not take metrics and spans; jobs go on without it" in ours[0]
