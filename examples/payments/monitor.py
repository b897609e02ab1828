"""What is known of a running job, sampled from its public status and from the files that a reader of its sink sees."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from examples.payments.model import Alert

_RATE_WINDOW_S = 5.0
_SHOWN = 12


@dataclass(frozen=True)
class Keeper:
    """One keeper, and how often its partition was restored while the monitor looked."""

    partition: int
    pid: int
    epoch: int
    rows: int
    restores: int
    restore_ms: float


class Monitor:
    """Samples a job, also when it is started again. Thread-safe."""

    def __init__(self, sink: Path) -> None:
        self.status: sl.Status | None = None
        self.keepers: list[Keeper] = []
        self.rate = 0.0
        self.alerts: Counter[str] = Counter()
        """The visible ones, by kind."""
        self.newest_alerts: list[Alert] = []
        self.lives = 1
        """How often the job has begun to take another way: by one more each time it goes back."""
        self._run: sl.Run | None = None
        self._sink = sink
        self._files: dict[str, list[Alert]] = {}
        self._checkpoints: dict[int, Any] = {}
        """Figures by number, without those that became void when the job went back."""
        self._void = 0
        self._pids: dict[int, list[int]] = {}
        self._points: deque[tuple[float, int]] = deque()
        self._life: tuple[sl.Run, int] | None = None
        self._lock = threading.Lock()

    def watch(self, run: sl.Run) -> None:
        """Sample this run from now on."""
        with self._lock:
            self._run = run

    def sample(self) -> None:
        """Look at everything once."""
        with self._lock:
            if self._run is None:
                return
            self.status = self._run.glance()
            for stats in self._run.checkpoints():
                if stats.checkpoint > self._void:
                    self._checkpoints[stats.checkpoint] = stats
            self._sample_rate(self._run, self.status)
            self._sample_keepers(self.status)
            self._sample_alerts()

    def checkpoints(self) -> list[Any]:
        """Return the figures of all checkpoints that are not void, oldest first."""
        with self._lock:
            return [stats for _, stats in sorted(self._checkpoints.items())]

    def completed(self) -> list[Any]:
        """Return those that are complete."""
        return [stats for stats in self.checkpoints() if stats.status == "completed"]

    def newest(self) -> int | None:
        """Return the newest complete checkpoint."""
        completed = self.completed()
        return completed[-1].checkpoint if completed else None

    def forget_after(self, checkpoint: int) -> None:
        """Note that the job goes back to a checkpoint, or with 0 to a savepoint: later checkpoints are void."""
        with self._lock:
            self.lives += 1
            self._void = max(self._checkpoints, default=0)
            self._checkpoints = {number: stats for number, stats in self._checkpoints.items() if number <= checkpoint}

    def visible(self) -> Counter[Alert]:
        """Return all alerts that a reader of the sink sees."""
        with self._lock:
            self._sample_alerts()
            return Counter(alert for alerts in self._files.values() for alert in alerts)

    def _sample_rate(self, run: sl.Run, status: sl.Status) -> None:
        now = time.monotonic()
        if (life := (run, status.generation)) != self._life:
            self._life = life
            self._points.clear()
        self._points.append((now, status.rows_in))
        while now - self._points[0][0] > _RATE_WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        (then, before), (_, rows) = self._points[0], self._points[-1]
        self.rate = (rows - before) / (now - then) if now > then else 0.0

    def _sample_keepers(self, status: sl.Status) -> None:
        if not status.keepers:
            return
        for keeper in status.keepers:
            pids = self._pids.setdefault(keeper.partition, [])
            if keeper.pid not in pids:
                pids.append(keeper.pid)
        self.keepers = [
            Keeper(k.partition, k.pid, k.epoch, k.all_rows_in, len(self._pids[k.partition]) - 1, k.restore_ms)
            for k in status.keepers
        ]

    def _sample_alerts(self) -> None:
        names = {path.name for path in self._sink.glob("part-*.parquet")}
        if names == self._files.keys():
            return
        for name in names - self._files.keys():
            try:
                # Spark writes times without their zone, which is UTC, in nanoseconds.
                table = pq.read_table(self._sink / name, coerce_int96_timestamp_unit="us")
            except FileNotFoundError:
                continue
            times = table.column("ts").cast(pa.timestamp("us", tz="UTC"))
            rows = table.set_column(table.column_names.index("ts"), "ts", times).to_pylist()
            self._files[name] = [Alert(**{**row, "ts": row["ts"].astimezone(UTC)}) for row in rows]
        for name in self._files.keys() - names:
            del self._files[name]
        alerts = [alert for some in self._files.values() for alert in some]
        self.alerts = Counter(alert.kind for alert in alerts)
        self.newest_alerts = heapq.nlargest(_SHOWN, alerts, key=lambda alert: alert.ts)
