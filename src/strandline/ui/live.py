"""Live figures of running jobs for browsers: each driver is asked once a second, and each browser gets what is new."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from strandline.control.client import Driver
from strandline.control.figures import FigureSeries, Sample, ask
from strandline.control.recent import Recent
from strandline.control.skew import skew_text, without_keys
from strandline.control.status import Status
from strandline.core.errors import StrandlineError

_LEAST_S = 0.8


@dataclass
class LiveJob:
    """The samples of one job. Thread-safe."""

    ask: Callable[[Driver], tuple[Status, Recent]] = lambda driver: ask(driver)
    shows_values: bool = False
    """Whether keys are named."""
    _series: FigureSeries = field(default_factory=FigureSeries, init=False)
    _newest: dict[str, Any] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def look(self, driver: Driver) -> dict[str, Any]:
        """Ask a driver, unless that was just done; return the figures, or why there are none."""
        with self._lock:
            if self._newest and time.monotonic() - self._newest["asked_s"] < _LEAST_S:
                return self._newest
            try:
                status, recent = self.ask(driver)
                figures = self._series.add(status if self.shows_values else without_keys(status), recent)
            except StrandlineError as error:
                self._newest = {"asked_s": time.monotonic(), "error": error.message, "hint": error.hint}
                return self._newest
            now, status = figures.sample, figures.status
            self._newest = {
                "asked_s": now.at_s, "at_ms": now.at_ms, "status": asdict(status),
                "rates": [asdict(each) for each in figures.rates],
                "epochs": [asdict(each) for each in recent.epochs],
                "checkpoints": [asdict(each) for each in recent.checkpoints],
                "interruptions": [asdict(each) for each in recent.interruptions],
                "bottleneck": figures.bottleneck,
                "skews": {each.uid: skew_text(status, each.uid) for each in status.operators},
                "point": _point(now),
            }  # fmt: skip
            return self._newest

    def points(self) -> list[list[float]]:
        """Return the points of all samples, oldest first."""
        with self._lock:
            return [_point(sample) for sample in self._series.samples]


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


def _point(sample: Sample) -> list[float]:
    """Return a sample as a point of the page's charts."""
    return [
        sample.at_ms / 1000, sample.rows_per_s, sample.state_bytes, sample.memory_bytes, sample.uncovered_ms / 1000
    ]  # fmt: skip
