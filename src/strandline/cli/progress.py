"""Progress bars of commands that take long, on standard error if it is a terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from strandline.cli.output import console
from strandline.control.wire import ProgressMessage
from strandline.core.texts import size_text


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[ProgressMessage], object]]:
    """Yield a function that shows progress on standard error; without a terminal, it does nothing."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    # Other output keeps its stream: rich would redirect it to the terminal.
    with Progress(*columns, console=screen, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("waiting", total=None, amount="")
        displayed_step = ""

        def report(progress: Any) -> None:
            nonlocal displayed_step
            bar.update(
                task,
                description=progress.step or "waiting",
                total=progress.total or None,
                completed=progress.done,
                amount=_amount(progress),
                # Show each new step at once, even a short one.
                refresh=progress.step != displayed_step,
            )
            displayed_step = progress.step

        yield report


class ByteCounter:
    """Counts the bytes that several threads read or write, and reports the sum."""

    def __init__(self, report: Callable[[ProgressMessage], object], total: int) -> None:
        self.step = ""
        """The step in progress, as text."""
        self._report, self._total = report, total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Add bytes that are done, and report the sum."""
        with self._lock:
            self._done += size_bytes
            self._report(ProgressMessage(self.step, self._done, self._total, "bytes"))


def _amount(progress: ProgressMessage) -> str:
    if not progress.total:
        return ""
    if progress.unit == "bytes":
        return f"{size_text(progress.done)} of {size_text(progress.total)}"
    return f"{progress.done} of {progress.total} {progress.unit}"
