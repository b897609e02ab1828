"""The live panel of a run in a notebook: an output that a thread renews until the job ends.

Only a notebook's kernel has it. It needs no package of notebooks: it uses IPython if the program runs in one.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

from strandline.control.announcements import listening
from strandline.control.figures import FigureSeries
from strandline.control.html import figures_html
from strandline.control.recent import Recent
from strandline.control.status import Status
from strandline.control.summary import progress_text

_RENEW_S = 1.0
_JOIN_S = 5.0


class WatchedRun(Protocol):
    """A run, as far as a panel shows it."""

    def glance(self) -> Status:
        """Return the status, without queries of the sources."""
        ...

    def recent(self) -> Recent:
        """Return the recent past."""
        ...


def notebook() -> Any:
    """Return IPython's shell if this program runs in a notebook's kernel; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if hasattr(shell, "kernel") else None


class Panel:
    """The panel of one run. It may be shown in several cells: all show the same."""

    def __init__(self, run: WatchedRun, ended: threading.Event) -> None:
        self._run, self._ended = run, ended
        self._id = uuid.uuid4().hex
        self._series = FigureSeries()
        self._last_html = self._note = ""
        self.keeps_note = False
        """Whether the last announcement is shown also while the job runs."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def show(self, shell: Any) -> None:
        """Show the panel in the cell that is executed, and renew it from now on until the job has ended."""
        with self._lock:
            self._publish(shell, update=False)
            if not (self._ended.is_set() or (self._thread is not None and self._thread.is_alive())):
                self._closing.clear()
                # The kernel tells by the context to which cell an output belongs.
                run = contextvars.copy_context().run
                self._thread = threading.Thread(
                    target=run, args=(self._renew, shell), name="strandline-panel", daemon=True
                )
                self._thread.start()

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Show the panel during the block, if this is a notebook, with the announcements of its jobs."""
        if (shell := notebook()) is None:
            yield
            return
        with listening(self._on_announcement, shows=True):
            try:
                self.show(shell)
                yield
            finally:
                self._closing.set()
                if self._thread is not None and self._thread.is_alive():
                    self._thread.join(_JOIN_S)

    def _on_announcement(self, text: str, detail: bool) -> None:
        if not detail:
            self._note = text

    def _renew(self, shell: Any) -> None:
        while not (self._ended.wait(_RENEW_S) or self._closing.is_set()):
            self._publish(shell, update=True)
        # The last figures stay.
        self._publish(shell, update=True)

    def _publish(self, shell: Any, *, update: bool) -> None:
        figures = self._series.add(self._run.glance(), self._run.recent())
        html = figures_html(figures, self._note if self.keeps_note or figures.status.state != "running" else "")
        if html == self._last_html and update:
            return
        self._last_html = html
        data = {"text/html": html, "text/plain": progress_text(figures.status)}
        # A closed notebook does not concern the job.
        with contextlib.suppress(Exception):
            shell.display_pub.publish(data, transient={"display_id": self._id}, update=update)
