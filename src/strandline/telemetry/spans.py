"""Spans of a job's epochs, checkpoints and interruptions, made of its recent past: each once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from strandline.checkpoint.history import CheckpointStats
from strandline.control.recent import EpochStats, Interruption, Recent

Attributes = dict[str, str | int | float]
_MOST_PARTITIONS = 20
"""How many partitions of a checkpoint a span has: those that took longest."""
SETTLING_MS = 5_000
"""How old a checkpoint must be: its sinks show their rows after it is complete."""


@dataclass(frozen=True)
class Moment:
    """Something within a span that has no time of its own: an event of OpenTelemetry."""

    name: str
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """A time in which something was done."""

    name: str
    start_ms: float
    end_ms: float
    attributes: Attributes = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    error: str = ""
    """Why it failed."""
    children: tuple[Span, ...] = ()


@dataclass
class SpanMaker:
    """Makes the spans of one job. What ended before `since_ms` has none."""

    since_ms: int = 0

    def __post_init__(self) -> None:
        self._epoch = self._checkpoint = (self.since_ms, 0)
        self._resumed_ms = self.since_ms

    def take(self, recent: Recent, now_ms: int, *, is_last: bool = False) -> list[Span]:
        """Return the spans of what has ended since the last call; with `is_last`, of checkpoints without a delay."""
        return [
            *self._of_epochs([*recent.earlier_epochs, *recent.epochs]),
            *self._of_checkpoints(
                [*recent.earlier_checkpoints, *recent.checkpoints], now_ms if is_last else now_ms - SETTLING_MS
            ),
            *self._of_interruptions(recent.interruptions),
        ]

    def _of_epochs(self, epochs: Iterable[EpochStats]) -> Iterator[Span]:
        for each in epochs:
            if (key := (each.ended_ms, each.epoch)) > self._epoch:
                self._epoch = key
                yield _of_epoch(each)

    def _of_checkpoints(self, checkpoints: Iterable[CheckpointStats], until_ms: int) -> Iterator[Span]:
        ended = [(each.completed_ms, each.checkpoint, each) for each in checkpoints if each.completed_ms is not None]
        for completed_ms, number, each in sorted(ended, key=lambda one: one[:2]):
            if completed_ms <= until_ms and (completed_ms, number) > self._checkpoint:
                self._checkpoint = (completed_ms, number)
                yield _of_checkpoint(each, completed_ms)

    def _of_interruptions(self, interruptions: Iterable[Interruption]) -> Iterator[Span]:
        for each in interruptions:
            if (resumed_ms := each.at_ms + each.down_ms) > self._resumed_ms:
                self._resumed_ms = resumed_ms
                yield _of_interruption(each)


def _of_epoch(epoch: EpochStats) -> Span:
    start_ms = epoch.ended_ms - epoch.took_ms
    planned_ms = min(start_ms + epoch.plan_ms, epoch.ended_ms)
    attributes: Attributes = {
        "strandline.epoch": epoch.epoch, "strandline.rows": epoch.rows, "strandline.pause": epoch.pause_ms / 1000,
    }  # fmt: skip
    if epoch.checkpoint is not None:
        attributes["strandline.checkpoint"] = epoch.checkpoint
    operators = tuple(
        Moment("operator", {
            "strandline.operator": each.uid, "strandline.partition": each.partition,
            "strandline.busy": each.busy_ms / 1000, "strandline.wait": each.wait_ms / 1000,
            "strandline.mean_busy": each.mean_busy_ms / 1000,
        })
        for each in epoch.operators
    )  # fmt: skip
    children = (
        Span("plan", start_ms, planned_ms), Span("process", planned_ms, epoch.ended_ms, moments=operators),
    )  # fmt: skip
    return Span("epoch", start_ms, epoch.ended_ms, attributes, children=children)


def _of_checkpoint(stats: CheckpointStats, completed_ms: int) -> Span:
    attributes: Attributes = {
        "strandline.checkpoint": stats.checkpoint, "strandline.epoch": stats.epoch, "strandline.mode": stats.mode,
        "strandline.status": stats.status, "strandline.uploaded_bytes": stats.uploaded_bytes,
        "strandline.total_bytes": stats.total_bytes,
    }  # fmt: skip
    children: list[Span] = []
    if (phases := stats.phases) is not None:
        attributes["strandline.waits"] = phases.waits_ms / 1000
        lengths = (stats.triggered_ms, phases.epoch_ms, phases.durable_ms, phases.published_ms)
        names = ("finish epoch", "make durable", "publish")
        moments = list(accumulate(lengths))
        children = [Span(name, *times) for name, times in zip(names, pairwise(moments), strict=True)]
        at_ms = moments[-1]
        for sink in stats.sinks:
            of_sink: Attributes = {"strandline.sink": sink.name, "strandline.row_age": sink.age_ms / 1000}
            children.append(Span("show rows", at_ms, at_ms + sink.shown_ms, of_sink))
            at_ms += sink.shown_ms
    slowest = sorted(stats.partitions, key=lambda part: -(part.sync_ms + part.async_ms))[:_MOST_PARTITIONS]
    parts = tuple(
        Moment("partition", {
            "strandline.operator": part.uid, "strandline.partition": part.partition,
            "strandline.sync": part.sync_ms / 1000, "strandline.async": part.async_ms / 1000,
            "strandline.uploaded_bytes": part.uploaded_bytes,
        })
        for part in slowest
    )  # fmt: skip
    return Span("checkpoint", stats.triggered_ms, completed_ms, attributes, parts, stats.failure, tuple(children))


def _of_interruption(interruption: Interruption) -> Span:
    attributes: Attributes = {"strandline.repeated_rows": interruption.repeated_rows}
    if interruption.checkpoint is not None:
        attributes["strandline.checkpoint"] = interruption.checkpoint
    is_failure = interruption.kind == "failure"
    if not is_failure:
        attributes["strandline.cause"] = interruption.cause
    return Span(
        "restart" if is_failure else "rescale", interruption.at_ms, interruption.at_ms + interruption.down_ms,
        attributes, error=interruption.cause if is_failure else "",
    )  # fmt: skip
