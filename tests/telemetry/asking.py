"""Metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from strandline.control.status import SinkStatus, Status, Totals
from strandline.telemetry.figures import Figures
from strandline.telemetry.prometheus import exposition
from tests.control.fake import RECENT, STATS, FakeRun

TOTALS = Totals(
    epochs=9, epoch_ms=4500.0, rows=1250, late_rows=3, failed_events=2, replaced_keepers=1, checkpoints_completed=4,
    checkpoints_failed=1, checkpoint_ms=1200, uploaded_bytes=4096, rescales=1, down_ms=2500, repeated_rows=250,
)  # fmt: skip
SINKS = [SinkStatus("pg", 70, 2, 5, 512, 1500, "refused")]
LAST = replace(
    STATS, status="completed", completed_ms=3_000, end_to_end_ms=2_000, total_bytes=2048, uploaded_bytes=1024
)
STATUS = replace(
    FakeRun().status(),
    last_checkpoint=LAST,
    totals=TOTALS,
    sinks=SINKS,
    attempt_ms=5_000,
    watermark="2026-01-01T00:00:00+00:00",
)


def figures_of(status: Status | None = STATUS, **more: Any) -> Figures:
    """Return the figures of a job with everything that a job can have."""
    given = {"job": "alerts", "directory": "file:///ck", "state": "running", "since_ms": 1_000, "at_ms": 9_000}
    return Figures(**{**given, "version": "0.1", "status": status, "recent": RECENT, **more})


class Scrape:
    """The values of an answer in Prometheus' text format."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    @classmethod
    def of(cls, *jobs: Figures) -> Scrape:
        return cls(exposition(lambda: jobs))

    @property
    def series(self) -> list[tuple[str, dict[str, str]]]:
        """Return the name and the labels of each value."""
        return [(name, dict(labels)) for name, labels in self.values]

    def __call__(self, name: str, **labels: str) -> float:
        """Return the only value with these labels, and any others."""
        (value,) = self.all(name, **labels)
        return value

    def all(self, name: str, **labels: str) -> list[float]:
        """Return the values with these labels, and any others."""
        wanted: Iterable[tuple[str, str]] = labels.items()
        return [value for (found, its), value in self.values.items() if found == name and set(wanted) <= set(its)]
