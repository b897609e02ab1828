"""How far something is that takes long: on a terminal, on standard error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from strandline.cli.output import console, size_text
from strandline.control.wire import ProgressMessage


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[ProgressMessage], object]]:
    """Give what is told how far something is: on a terminal it is shown, on standard error."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    # What is printed meanwhile goes where it always goes: rich would take it to the terminal.
    with Progress(*columns, console=screen, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("waiting", total=None, said="")
        shown = ""

        def tell(heard: Any) -> None:
            nonlocal shown
            bar.update(
                task,
                description=heard.step or "waiting",
                total=heard.total or None,
                completed=heard.done,
                said=_said(heard),
                # A step is shown, however soon it is done.
                refresh=heard.step != shown,
            )
            shown = heard.step

        yield tell


class BytesTold:
    """Adds up bytes that several threads read or write, and tells the sum."""

    def __init__(self, tell: Callable[[ProgressMessage], object], total: int) -> None:
        self.step = ""
        """What is being done."""
        self._tell, self._total = tell, total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Tell that so many more are done."""
        with self._lock:
            self._done += size_bytes
            self._tell(ProgressMessage(self.step, self._done, self._total, "bytes"))


def _said(heard: ProgressMessage) -> str:
    if not heard.total:
        return ""
    if heard.unit == "bytes":
        return f"{size_text(heard.done)} of {size_text(heard.total)}"
    return f"{heard.done} of {heard.total} {heard.unit}"
