"""Spans of a job's epochs, checkpoints and interruptions, made of its recent past: each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeVar

from strandline.checkpoint.history import CheckpointStats
from strandline.control.recent import EpochStats, Interruption, Recent

T = TypeVar("T")
Attributes = dict[str, str | int | float]
_Key = tuple[int, int]
"""The time of an end, and a number."""
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
    """Makes the spans of one job. What ended before `since_ms`, at the first look, has none."""

    since_ms: int = 0
    _known: dict[str, set[_Key]] = field(default_factory=dict, init=False)
    """What was there at the last look: a clock that is set back must not hide what ends afterwards."""

    def take(self, recent: Recent, now_ms: int, *, is_last: bool = False) -> list[Span]:
        """Return the spans of what has ended since the last call; with `is_last`, of checkpoints without a delay."""
        checkpoints = {
            (each.completed_ms, int(each.checkpoint)): each
            for each in [*recent.earlier_checkpoints, *recent.checkpoints]
            if each.completed_ms is not None and (is_last or not now_ms - SETTLING_MS < each.completed_ms <= now_ms)
        }
        epochs = {(each.ended_ms, each.epoch): each for each in [*recent.earlier_epochs, *recent.epochs]}
        interruptions = {(each.at_ms + each.down_ms, each.at_ms): each for each in recent.interruptions}
        return [
            *(_of_epoch(each) for _, each in self._new("epoch", epochs)),
            *(_of_checkpoint(each, key[0]) for key, each in sorted(self._new("checkpoint", checkpoints), key=_ended)),
            *(_of_interruption(each) for _, each in self._new("interruption", interruptions)),
        ]

    def _new(self, kind: str, ended: Mapping[_Key, T]) -> list[tuple[_Key, T]]:
        """Return what was not there at the last look; what is gone meanwhile does not come again."""
        known = self._known.get(kind, {key for key in ended if key[0] <= self.since_ms})
        self._known[kind] = {*ended}
        return [(key, each) for key, each in ended.items() if key not in known]


def _ended(entry: tuple[_Key, object]) -> _Key:
    return entry[0]


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
