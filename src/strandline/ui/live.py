"""Live figures of running jobs: their status each second, and the rates between two of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from strandline.control.client import Driver, call
from strandline.control.commands import RECENT, STATUS, NoArguments
from strandline.control.recent import Recent
from strandline.control.status import Status
from strandline.core.errors import StrandlineError
from strandline.ui.bottleneck import find_bottleneck

_KEPT = 900
"""Samples: a quarter of an hour, with one a second."""
_TIMEOUT_S = 5.0
_LEAST_S = 0.8
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

    def point(self) -> list[float]:
        """Return the sample as a point of the page's charts."""
        return [self.at_ms / 1000, self.rows_per_s, self.state_bytes, self.memory_bytes, self.uncovered_ms / 1000]


@dataclass
class LiveJob:
    """The samples of one job. Thread-safe."""

    ask: Callable[[Driver], tuple[Status, Recent]] = lambda driver: ask(driver)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    _newest: dict[str, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def look(self, driver: Driver) -> dict[str, Any]:
        """Ask a driver, unless that was just done; return the figures, or why there are none."""
        with self._lock:
            if self._newest and time.monotonic() - self._newest["asked_s"] < _LEAST_S:
                return self._newest
            try:
                status, recent = self.ask(driver)
            except StrandlineError as error:
                self._newest = {"asked_s": time.monotonic(), "error": error.message, "hint": error.hint}
                return self._newest
            now = _sample(status)
            self._samples.append(now)
            rates = self._rates(now, status)
            self._newest = {
                "asked_s": now.at_s, "at_ms": now.at_ms, "status": asdict(status), "rates": rates,
                "epochs": [asdict(each) for each in recent.epochs],
                "checkpoints": [asdict(each) for each in recent.checkpoints],
                "interruptions": [asdict(each) for each in recent.interruptions],
                "bottleneck": find_bottleneck(status, recent.epochs),
                "point": now.point(),
            }  # fmt: skip
            return self._newest

    def points(self) -> list[list[float]]:
        """Return the points of all samples, oldest first."""
        with self._lock:
            return [sample.point() for sample in self._samples]

    def _rates(self, now: Sample, status: Status) -> list[dict[str, Any]]:
        """Return for each partition its rows a second and its busy share; none before two samples of an attempt."""
        window_s = max(_WINDOW_S, _EPOCHS * status.last_epoch_ms / 1000)
        before = next(
            (each for each in self._samples if each.attempt == now.attempt and now.at_s - each.at_s <= window_s), now
        )
        took_s = now.at_s - before.at_s
        rates = []
        for slot, (rows_in, rows_out, busy_ms) in now.keepers.items() if took_s > 0 else ():
            rows_in_before, rows_out_before, busy_ms_before = before.keepers.get(slot, (0, 0, 0.0))
            # A keeper that was replaced alone begins again.
            rates.append({
                "uid": slot[0], "partition": slot[1],
                "rows_in_per_s": max(0.0, (rows_in - rows_in_before) / took_s),
                "rows_out_per_s": max(0.0, (rows_out - rows_out_before) / took_s),
                "busy": min(1.0, max(0.0, (busy_ms - busy_ms_before) / took_s / 1000)),
            })  # fmt: skip
        return rates


@dataclass
class Viewer:
    """One browser that looks at a job: it gets the recent past once, and then what is new."""

    live: LiveJob
    _attempt: tuple[int, int] | None = field(default=None, init=False)
    _epoch: int = field(default=0, init=False)
    _checkpoint: int = field(default=0, init=False)
    """All older ones have ended."""

    def look(self, driver: Driver) -> dict[str, Any]:
        """Return the figures, with epochs and checkpoints that are new or have changed; `anew`: with all."""
        figures = self.live.look(driver)
        if "status" not in figures:
            return figures
        status = figures["status"]
        attempt = (status["generation"], status["restarts"])
        anew = attempt != self._attempt
        if anew:
            self._attempt, self._epoch, self._checkpoint = attempt, 0, 0
        epochs = [each for each in figures["epochs"] if each["epoch"] > self._epoch]
        checkpoints = [each for each in figures["checkpoints"] if each["checkpoint"] >= self._checkpoint]
        self._epoch = max((each["epoch"] for each in epochs), default=self._epoch)
        # The newest one that has ended comes again: its sinks show its rows later.
        ended = [each["checkpoint"] for each in checkpoints if each["status"] not in ("triggered", "in_progress")]
        self._checkpoint = max(ended, default=self._checkpoint)
        points = self.live.points() if anew else [figures["point"]]
        return figures | {"anew": anew, "epochs": epochs, "checkpoints": checkpoints, "points": points}


def ask(driver: Driver) -> tuple[Status, Recent]:
    """Ask a driver for its status and its recent past."""
    return (
        call(driver, STATUS, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S),
        call(driver, RECENT, NoArguments(), silence_s=_TIMEOUT_S, timeout_s=_TIMEOUT_S),
    )


def _sample(status: Status) -> Sample:
    return Sample(
        time.monotonic(), int(time.time() * 1000), (status.generation, status.restarts), status.rows_per_s,
        sum(keeper.state_bytes or 0 for keeper in status.keepers),
        sum(keeper.memory_bytes or 0 for keeper in status.keepers), status.uncovered_ms,
        {(k.uid, k.partition): (k.all_rows_in, k.all_rows_out, k.all_busy_ms) for k in status.keepers},
    )  # fmt: skip
