"""What the demo knows of its job, sampled from the run's public status and from the files a reader would see."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

import strandline as sl

_RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class KeeperRow:
    """One keeper in the view."""

    partition: int
    pid: int
    epoch: int
    restores: int
    restore_ms: float


class Monitor(logging.Handler):
    """Samples a run; also the place where warnings go, so that they do not tear the view."""

    def __init__(self, out: Path, payments: Path, per_file: int) -> None:
        super().__init__(logging.WARNING)
        self.started = time.monotonic()
        self.messages: list[str] = []
        self.checkpoints: dict[int, object] = {}
        self.alerts: Counter[str] = Counter()
        self.keepers: list[KeeperRow] = []
        self.rate = 0.0
        self.events = 0
        self.status: sl.Status | None = None
        self._run: sl.Run | None = None
        self.written = 0
        self._out = out
        self._payments = payments
        self._per_file = per_file
        self._sampling = threading.Lock()
        self._seen_files: dict[str, Counter[str]] = {}
        self._pids: dict[int, list[int]] = {}
        self._points: deque[tuple[float, int]] = deque()
        self._generation = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.started

    def watch(self, run: sl.Run) -> None:
        """Sample this run from now on."""
        self._run = run

    def say(self, text: str) -> None:
        """Add a message."""
        self.messages.append(f"{self.elapsed_s:5.1f} s  {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Show a warning of the engine's as a message."""
        if record.name.startswith("strandline"):
            self.say(record.getMessage().splitlines()[0])

    def sample(self) -> None:
        """Look at everything once. Called by the view's thread and by the story; one at a time."""
        with self._sampling:
            self.written = self._per_file * sum(1 for _ in self._payments.glob("[!.]*.json"))
            if self._run is None:
                return
            self.status = self._run.status()
            for stats in self._run.checkpoints():
                self.checkpoints[stats.checkpoint] = stats
            self._sample_rate(self.status)
            self._sample_keepers(self.status)
            self._sample_alerts()

    def completed(self) -> int:
        """How many checkpoints of this demo are complete."""
        return sum(getattr(stats, "status", "") == "completed" for stats in self.checkpoints.values())

    def _sample_rate(self, status: sl.Status) -> None:
        now = time.monotonic()
        if status.generation != self._generation:
            self._generation = status.generation
            self._points.clear()
        self._points.append((now, status.rows_in))
        while now - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        (then, before), (_, rows) = self._points[0], self._points[-1]
        self.rate = (rows - before) / (now - then) if now > then else 0.0
        self.events = rows

    def _sample_keepers(self, status: sl.Status) -> None:
        if not status.keepers:
            return
        for keeper in status.keepers:
            pids = self._pids.setdefault(keeper.partition, [])
            if keeper.pid not in pids:
                pids.append(keeper.pid)
        self.keepers = [
            KeeperRow(k.partition, k.pid, k.epoch, len(self._pids[k.partition]) - 1, k.restore_ms)
            for k in status.keepers
        ]

    def _sample_alerts(self) -> None:
        """Count what a reader of the sink's directory would see now."""
        names = {path.name for path in self._out.glob("part-*.parquet")}
        for name in names - self._seen_files.keys():
            try:
                kinds = pq.read_table(self._out / name, columns=["kind"]).column("kind").to_pylist()
            except FileNotFoundError:
                continue
            self._seen_files[name] = Counter(kinds)
        self.alerts = sum((self._seen_files[name] for name in names & self._seen_files.keys()), Counter())
