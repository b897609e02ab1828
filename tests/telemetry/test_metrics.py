"""The table of metrics, and what Prometheus gets."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.registry import CollectorRegistry

from strandline.control.status import Totals
from strandline.core.errors import ConfigurationError
from strandline.telemetry.figures import JOB_STATES
from strandline.telemetry.metrics import JOB_LABELS, METRICS, as_markdown, samples
from strandline.telemetry.prometheus import JobCollector, MetricsServer
from tests.control.fake import KEEPER
from tests.telemetry.asking import STATUS, Scrape, figures_of

DOCS = Path(__file__).parents[2] / "docs/metrics.md"
_NAME = re.compile(r"strandline_[a-z]+(_[a-z]+)*")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_are_those_that_prometheus_expects(metric) -> None:  # type: ignore[no-untyped-def]
    assert _NAME.fullmatch(metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total") == bool(metric.since)
    assert not re.search(r"_(ms|us|kb|mb|minutes)\b", metric.name)
    assert set(metric.labels) <= {"operator", "partition", "source", "sink", "state", "status", "phase", "version"}
    assert "." not in metric.meaning
    # A unit in the text is the unit in the name.
    if re.search(r"\b[Tt]ime\b|[Ff]or how long|\bage\b", metric.meaning) and metric.kind == "counter":
        assert metric.unit == "seconds"


def test_no_name_comes_twice() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_job_that_has_everything_has_a_value_of_each_metric() -> None:
    status = replace(STATUS, keepers=[replace(KEEPER, metrics={"log_bytes": 7, "cache_hits": 3, "cache_misses": 1})])
    missing = {metric.name for metric in METRICS} - {sample.metric.name for sample in samples(figures_of(status))}
    assert missing == set()
    for sample in samples(figures_of(status)):
        assert list(sample.labels) == [*JOB_LABELS, *sample.metric.labels]


def test_each_total_of_the_status_is_in_a_metric() -> None:
    zero = {(s.metric.name, *s.labels.values()): s.value for s in samples(figures_of(replace(STATUS, totals=Totals())))}
    for each in fields(Totals):
        status = replace(STATUS, totals=replace(Totals(), **{each.name: 1000}))
        changed = {name for name, *_ in _changed(zero, samples(figures_of(status)))}
        assert len(changed) == 1, each.name


def _changed(before, now):  # type: ignore[no-untyped-def]
    return [key for sample in now if before[key := (sample.metric.name, *sample.labels.values())] != sample.value]


def test_prometheus_reads_the_values_in_base_units() -> None:
    scrape = Scrape.of(figures_of())
    assert scrape("strandline_up", job="alerts", directory="file:///ck") == 1
    assert scrape("strandline_rows_total") == 1250
    assert scrape("strandline_epoch_duration_seconds_total") == 4.5
    assert scrape("strandline_downtime_seconds_total") == 2.5
    assert scrape("strandline_checkpoints_total", status="failed") == 1
    assert scrape("strandline_uncovered_seconds") == 3
    assert scrape("strandline_last_checkpoint_phase_seconds", phase="waits") == 1.25
    assert scrape("strandline_source_backlog_offsets", source="orders") == 4
    assert scrape("strandline_source_backlog_files", source="clicks") == 2
    assert scrape("strandline_sink_waiting_seconds", sink="pg") == 1.5
    assert scrape("strandline_sink_row_age_seconds", sink="alerts") == 1.9772
    assert scrape("strandline_partition_rows_in_total", operator="detect", partition="1") == 100
    assert scrape("strandline_partition_state_bytes", operator="detect") == 3 << 20
    assert scrape("strandline_operator_standbys_behind", operator="detect") == 1
    assert scrape("strandline_operator_heaviest_key_share", operator="detect") == 0.72
    assert scrape("strandline_operator_heaviest_key_share", operator="top") == 0
    assert "ann" not in scrape.text.replace("channel", "")
    assert scrape("strandline_watermark_time_seconds") == 1767225600
    assert scrape("strandline_source_watermark_time_seconds", source="clicks") == 1767225600
    for family in scrape.families.values():
        assert family.type == ("counter" if f"{family.name}_total" in {m.name for m in METRICS} else "gauge")


def test_it_is_good_openmetrics_as_well() -> None:
    registry = CollectorRegistry()
    registry.register(JobCollector(lambda: [figures_of(), figures_of(directory="file:///other")]))
    families = list(of_openmetrics(as_openmetrics(registry).decode()))
    assert len(families) > 30


def test_a_job_that_is_down_is_visible_in_its_state() -> None:
    scrape = Scrape.of(figures_of(), figures_of(None, job="payments", state="killed"))
    assert scrape("strandline_up", job="payments") == 0
    assert scrape("strandline_job_state", job="payments", state="killed") == 1
    assert scrape("strandline_job_state", job="payments", state="running") == 0
    assert len(scrape.all("strandline_job_state", job="payments")) == len(JOB_STATES)
    assert scrape("strandline_job_state", job="alerts", state="running") == 1
    # Nothing else is known of it: no value of then is shown as one of now.
    names = {name for name, labels in scrape.series if labels["job"] == "payments"}
    assert names == {"strandline_up", "strandline_job_state"}


def test_two_jobs_of_one_name_differ_by_their_directory() -> None:
    scrape = Scrape.of(figures_of(), figures_of(directory="file:///other"))
    assert len(scrape.all("strandline_up", job="alerts")) == 2


@pytest.mark.parametrize("most", [0, 199])
def test_a_large_job_has_metrics_of_operators_and_not_of_partitions(most: int) -> None:
    keepers = [
        replace(KEEPER, uid=uid, partition=n, all_rows_in=n, metrics={"cache_hits": 1}, restore_ms=float(n))
        for uid in ("detect", "top")
        for n in range(100)
    ]
    scrape = Scrape.of(figures_of(replace(STATUS, keepers=keepers), most_partitions=most))
    assert len(scrape.all("strandline_partition_rows_in_total")) == 2
    assert scrape("strandline_partition_rows_in_total", operator="top", partition="all") == sum(range(100))
    # One of them may begin again alone, and a sum would then fall.
    assert scrape.all("strandline_partition_cache_hits_total") == []
    assert scrape("strandline_partition_restore_seconds", operator="detect", partition="all") == 0.099
    at_most = Scrape.of(figures_of(replace(STATUS, keepers=keepers), most_partitions=200))
    assert len(at_most.all("strandline_partition_rows_in_total")) == 200
    assert len(scrape.series) < 120


def test_the_table_in_the_documentation_is_that_of_the_definitions() -> None:
    assert as_markdown() in DOCS.read_text(), "put the output of `strandline metrics --names` into docs/metrics.md"


def test_the_server_answers_until_it_ends() -> None:
    server = MetricsServer.start("127.0.0.1", 0, lambda: [figures_of()])
    try:
        assert server.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert Scrape(answer.read().decode())("strandline_up") == 1
        port = int(server.address.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ConfigurationError, match=f"metrics cannot be served at 127.0.0.1:{port}"):
            MetricsServer.start("127.0.0.1", port, list)
    finally:
        server.end()
