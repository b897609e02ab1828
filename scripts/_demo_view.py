"""The demo on a terminal, as one live screen, or anywhere else, as plain lines."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.payments.dashboard import Dashboard
from examples.payments.monitor import Monitor

_LIVE_EVERY_S = 0.25
_PLAIN_EVERY_S = 3.0
_PLAIN_LATER_S = 60.0
"""After the story, when it stays."""
_PLAIN_FIRST_S = 1.0
_PIPELINE = "payments → key_by(card) → FraudDetector, state in RocksDB → alerts"


class View:
    """Shows what the dashboard knows, from a thread of its own, while the story goes on."""

    def __init__(self, dashboard: Dashboard, address: str, *, plain: bool) -> None:
        self._dashboard = dashboard
        self._address = address
        self._console = Console(highlight=False)
        self._plain = plain or not self._console.is_terminal
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show_plain if self._plain else self._show_live, daemon=True)

    def __enter__(self) -> View:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(10)

    def _show_live(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=False) as live:
            while True:
                last = self._done.wait(_LIVE_EVERY_S)
                live.update(render(self._dashboard, self._address), refresh=True)
                if last:
                    return

    def _show_plain(self) -> None:
        journal = self._dashboard.journal
        said, due = 0, _PLAIN_FIRST_S
        print(f"demo: {_PIPELINE}", flush=True)
        while True:
            last = self._done.wait(_LIVE_EVERY_S)
            for message in journal.messages[said:]:
                print(f"demo: {message}", flush=True)
                said += 1
            if journal.elapsed_s > due:
                due = journal.elapsed_s + (_PLAIN_LATER_S if self._dashboard.passed else _PLAIN_EVERY_S)
                print(f"demo: {journal.elapsed_s:5.1f} s  {progress_line(self._dashboard)}", flush=True)
            if last:
                return


def progress_line(dashboard: Dashboard) -> str:
    """Return everything that moves, in one line."""
    monitor = dashboard.main.monitor
    status = monitor.status
    if status is None:
        return f"{dashboard.main.books.payments:,} payments wait"
    newest = status.last_checkpoint
    checkpoint = f"checkpoint {newest.checkpoint} (+{_size(newest.uploaded_bytes)})" if newest else "no checkpoint yet"
    return (
        f"{status.state}: epoch {status.epoch}, {monitor.rate:,.0f} events/s, "
        f"{monitor.alerts.total():,} alerts visible, {checkpoint}"
    )


def render(dashboard: Dashboard, address: str) -> Group:
    """Draw the whole screen; it fits 24 lines of 80 characters."""
    monitor = dashboard.main.monitor
    return Group(
        Text(address, no_wrap=True, style="bold"),
        Panel(_figures(dashboard), title=_PIPELINE, title_align="left", border_style="cyan", padding=(0, 1)),
        _checkpoints(monitor),
        Text(),
        _keepers(monitor),
        Text(),
        *(Text(message, style="dim", no_wrap=True, overflow="ellipsis") for message in dashboard.journal.messages[-4:]),
    )


def _figures(dashboard: Dashboard) -> Table:
    grid = Table.grid(padding=(0, 3))
    monitor = dashboard.main.monitor
    status = monitor.status
    state = status.state if status else "starting Spark"
    cells: dict[str, Any] = {
        "state": Text(state, style="green" if state in ("running", "stopped") else "bold yellow"),
        "time": f"{dashboard.journal.elapsed_s:.0f} s",
        "written": f"{dashboard.main.books.payments:,}",
        "processed": f"{status.rows_in if status else 0:,}",
        "rows/s": f"{monitor.rate:,.0f}",
        "epoch": str(status.epoch if status else 0),
        "restarts": str(status.restarts if status else 0),
        "alerts": Text(f"{monitor.alerts.total():,}", style="bold red"),
    }
    for _ in cells:
        grid.add_column(justify="left", min_width=6)
    grid.add_row(*(Text(name, style="dim") for name in cells))
    grid.add_row(*cells.values())
    return grid


def _checkpoints(monitor: Monitor) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title="checkpoints", title_justify="left", title_style="bold")
    for name in ("id", "epoch", "status", "duration", "pause", "increment", "full size"):
        table.add_column(name, justify="left" if name == "status" else "right")
    newest = monitor.checkpoints()[-5:]
    for stats in newest:
        pause = max((part.sync_ms for part in stats.partitions), default=0.0)
        complete = stats.status == "completed"
        table.add_row(
            str(stats.checkpoint), str(stats.epoch), Text(stats.status, style="green" if complete else "yellow"),
            f"{stats.end_to_end_ms} ms" if complete else "", f"{pause:.2f} ms" if stats.partitions else "",
            _size(stats.uploaded_bytes) if complete else "", _size(stats.total_bytes) if complete else "",
        )  # fmt: skip
    for _ in range(5 - len(newest)):
        table.add_row()
    return table


def _keepers(monitor: Monitor) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title="keepers", title_justify="left", title_style="bold")
    for name in ("partition", "pid", "epoch", "restores", "last restore took"):
        table.add_column(name, justify="right")
    for k in monitor.keepers:
        took = f"{k.restore_ms:.0f} ms" if k.restores else ""
        table.add_row(str(k.partition), str(k.pid), str(k.epoch), str(k.restores), took)
    return table


def _size(count: float) -> str:
    for unit in ("B", "kB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} MB"
