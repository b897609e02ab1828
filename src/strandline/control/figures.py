"""Live figures of a running job: its status from moment to moment, the rates between two of them, the bottleneck."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from strandline.control.bottleneck import Bottleneck, find_bottleneck
from strandline.control.client import Driver, call
from strandline.control.commands import RECENT, STATUS, NoArguments
from strandline.control.recent import Recent
from strandline.control.status import GraphNode, KeeperStatus, SinkStatus, SourceStatus, Status
from strandline.runtime.reached import WatermarkStatus

_KEPT = 900
"""Samples: a quarter of an hour, with one a second."""
_TIMEOUT_S = 5.0
_WINDOW_S = 15.0
"""Of rates. Figures of keepers change once an epoch, so it is longer where epochs are."""
_EPOCHS = 3

Slot = tuple[str, int]


@dataclass(frozen=True)
class Sample:
    """The figures of a job at one moment, as far as rates need them."""

    at_s: float
    at_ms: int
    attempt: tuple[int, int]
    """Generation and restarts: counters begin again with each attempt."""
    rows_per_s: float
    state_bytes: int
    memory_bytes: int
    uncovered_ms: int
    keepers: dict[Slot, tuple[int, int, float]]
    """Rows in, rows out, and time at work."""


@dataclass(frozen=True)
class Rates:
    """The rates of one partition."""

    uid: str
    partition: int
    rows_in_per_s: float
    rows_out_per_s: float
    busy: float
    """The share of the time in which it works, without waiting for rows."""


@dataclass(frozen=True)
class Figures:
    """A job's status and recent past, with what follows from them."""

    sample: Sample
    status: Status
    recent: Recent
    rates: list[Rates]
    """Of each partition; none before two looks at an attempt."""
    bottleneck: Bottleneck


@dataclass(frozen=True)
class OperatorFigures:
    """The figures of an operator: sums over its partitions. None: not known yet."""

    partitions: int
    rows_in_per_s: float | None
    rows_out_per_s: float | None
    busiest: float | None
    """The busy share of the busiest partition."""
    state_bytes: int | None
    late_rows: int
    failed_events: int


@dataclass
class FigureSeries:
    """The looks at one job, and the rates between them. Not thread-safe."""

    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)

    def add(self, status: Status, recent: Recent) -> Figures:
        """Return the figures of a look at the job now."""
        now = _sample(status)
        self._samples.append(now)
        rates = list(self._rates(now, status))
        return Figures(now, status, recent, rates, find_bottleneck(status, recent.epochs))

    @property
    def samples(self) -> list[Sample]:
        """All samples, oldest first."""
        return list(self._samples)

    def _rates(self, now: Sample, status: Status) -> Iterator[Rates]:
        """Yield the rates of each partition; none before two samples of an attempt."""
        window_s = max(_WINDOW_S, _EPOCHS * status.last_epoch_ms / 1000)
        before = next(
            (each for each in self._samples if each.attempt == now.attempt and now.at_s - each.at_s <= window_s), now
        )
        took_s = now.at_s - before.at_s
        for slot, (rows_in, rows_out, busy_ms) in now.keepers.items() if took_s > 0 else ():
            rows_in_before, rows_out_before, busy_ms_before = before.keepers.get(slot, (0, 0, 0.0))
            # A keeper that was replaced alone begins again.
            yield Rates(
                *slot,
                rows_in_per_s=max(0.0, (rows_in - rows_in_before) / took_s),
                rows_out_per_s=max(0.0, (rows_out - rows_out_before) / took_s),
                busy=min(1.0, max(0.0, (busy_ms - busy_ms_before) / took_s / 1000)),
            )


def ask(driver: Driver) -> tuple[Status, Recent]:
    """Ask a driver for its status and its recent past."""
    return (
        call(driver, STATUS, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S),
        call(driver, RECENT, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S),
    )


def keepers_of(status: Status, rates: Sequence[Rates], uid: str) -> list[tuple[KeeperStatus, Rates | None]]:
    """Return the keepers of an operator, each with its rates, if they are known."""
    by_slot = {(each.uid, each.partition): each for each in rates}
    return [(each, by_slot.get((uid, each.partition))) for each in status.keepers if each.uid == uid]


def operator_figures(status: Status, rates: Sequence[Rates], uid: str) -> OperatorFigures:
    """Return the figures of an operator of the job."""
    keepers = keepers_of(status, rates, uid)
    known = [each for _, each in keepers if each is not None]
    sizes = [keeper.state_bytes for keeper, _ in keepers if keeper.state_bytes is not None]
    return OperatorFigures(
        partitions=len(keepers),
        rows_in_per_s=sum(each.rows_in_per_s for each in known) if known else None,
        rows_out_per_s=sum(each.rows_out_per_s for each in known) if known else None,
        busiest=max((each.busy for each in known), default=None),
        state_bytes=sum(sizes) if sizes else None,
        late_rows=sum(keeper.late_rows for keeper, _ in keepers),
        failed_events=sum(keeper.failed_events for keeper, _ in keepers),
    )


def source_figures(status: Status, node: GraphNode) -> tuple[SourceStatus | None, WatermarkStatus | None]:
    """Return the progress of a source, and of its watermark, as far as they are known."""
    progress = next((each for each in status.source_progress if each.name == node.name), None)
    return progress, next((each for each in status.watermarks if each.source == node.name), None)


def sink_figures(status: Status, recent: Recent, node: GraphNode) -> tuple[SinkStatus | None, float | None]:
    """Return a sink's deliveries, if it writes to another system, and the age in ms that rows had when it showed them.

    That is the age of the oldest rows of the newest checkpoint whose rows it has shown; None before that.
    """
    sink = next((each for each in status.sinks if each.name == node.name), None)
    ages_ms = [each.age_ms for stats in recent.checkpoints for each in stats.sinks if each.name == node.name]
    return sink, ages_ms[-1] if ages_ms else None


def _sample(status: Status) -> Sample:
    return Sample(
        time.monotonic(), int(time.time() * 1000), (status.generation, status.restarts), status.rows_per_s,
        sum(keeper.state_bytes or 0 for keeper in status.keepers),
        sum(keeper.memory_bytes or 0 for keeper in status.keepers), status.uncovered_ms,
        {(k.uid, k.partition): (k.all_rows_in, k.all_rows_out, k.all_busy_ms) for k in status.keepers},
    )  # fmt: skip
