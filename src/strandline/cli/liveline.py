"""The progress that `strandline run` prints: announcements of its jobs and, on a terminal, a live status line."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from strandline.cli.output import console
from strandline.control.announcements import listening
from strandline.control.summary import figures_text, progress_text

if TYPE_CHECKING:
    from rich.text import Text

    from strandline.control.status import Status

_PAINT_S = 0.25
_POLL_S = 1.0
_FIRST_S, _EVERY_S = 10.0, 60.0
_STYLES = {"running": "green", "failed": "red", "finished": "dim", "stopped": "dim"}


@contextlib.contextmanager
def showing_progress(*, quiet: bool) -> Iterator[None]:
    """Show the progress of this process's jobs on standard error, unless `quiet`."""
    if quiet:
        with listening(lambda text, detail: None, shows=True):
            yield
        return
    screen = console(stderr=True)
    display = _Terminal() if screen.is_terminal and not screen.is_dumb_terminal else _Lines()
    with listening(display.on_announcement, shows=True), display.refreshing():
        yield


class _Lines:
    """Progress as lines in a file or a pipe: announcements and, about each minute, the status of the jobs."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._began_s = time.monotonic()
        self._due_s = _FIRST_S
        self._printed: dict[str, tuple[int, str]] = {}

    def on_announcement(self, text: str, detail: bool) -> None:
        if not detail:
            _say(f"strandline: {text}")

    @contextlib.contextmanager
    def refreshing(self) -> Iterator[None]:
        """Show the status of the jobs meanwhile."""
        thread = threading.Thread(target=self._show, name="strandline-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(5)

    def _show(self) -> None:
        while not self._done.wait(_POLL_S):
            if time.monotonic() - self._began_s >= self._due_s:
                # Print only changes: an idle job adds no lines.
                for status in _statuses():
                    now = (status.epoch, status.state)
                    if status.epochs and self._printed.get(status.job) != now:
                        self._printed[status.job] = now
                        _say(f"strandline: {progress_text(status)}")
                        self._due_s = time.monotonic() - self._began_s + _EVERY_S


class _Terminal(_Lines):
    """Progress as a live line for each job at the bottom of a terminal; other output is printed above it.

    Not by rich.live: it would wrap lines of the program's output again, and end those that are not finished.
    """

    def __init__(self) -> None:
        super().__init__()
        self._out = sys.stderr
        self._text = ""
        self._painted = 0
        self._at_start = True
        self._last = "starting"
        self._last_s = time.monotonic()
        self._lock = threading.RLock()

    def on_announcement(self, text: str, detail: bool) -> None:
        if not detail:
            self._last, self._last_s = text, time.monotonic()
        super().on_announcement(text, detail)

    @contextlib.contextmanager
    def refreshing(self) -> Iterator[None]:
        """Show the status of the jobs meanwhile, and print other output above it."""
        before = sys.stdout, sys.stderr
        try:
            with super().refreshing():
                sys.stderr = self._beside(sys.stderr)
                if sys.stdout.isatty():
                    sys.stdout = self._beside(sys.stdout)
                yield
        finally:
            sys.stdout, sys.stderr = before
            with self._lock:
                self._erase()

    def _beside(self, stream: TextIO) -> Any:
        return _Beside(stream, self._write)

    def _write(self, stream: TextIO, text: str) -> int:
        with self._lock:
            self._erase()
            written = stream.write(text)
            if text:
                stream.flush()
                self._at_start = text.endswith("\n")
            return written

    def _show(self) -> None:
        while not self._done.wait(_PAINT_S):
            with contextlib.suppress(OSError, ValueError):
                lines = self._lines()
                with self._lock:
                    # Do not overwrite an unfinished line of the program, such as a prompt.
                    if self._at_start and not self._done.is_set():
                        self._paint(lines)

    def _lines(self) -> list[Text]:
        from rich.text import Text

        lines = [status_line(status) for status in _statuses()]
        waits = f"{self._last} · {time.monotonic() - self._last_s:.0f} s"
        return lines or [Text(waits, style="dim")]

    def _paint(self, lines: list[Text]) -> None:
        screen = console(stderr=True)
        for line in lines:
            # A line as wide as the terminal would wrap.
            line.truncate(max(1, screen.width - 1), overflow="ellipsis")
        with screen.capture() as painted:
            for line in lines:
                screen.print(line, no_wrap=True, crop=True)
        if (text := painted.get()) != self._text:
            self._erase()
            self._out.write(text)
            self._out.flush()
            self._text, self._painted = text, len(lines)

    def _erase(self) -> None:
        if self._painted:
            self._out.write(f"\x1b[{self._painted}A\r\x1b[J")
            self._out.flush()
            self._text, self._painted = "", 0


class _Beside:
    """A stream of this process whose output erases the live line first."""

    def __init__(self, stream: TextIO, write: Callable[[TextIO, str], int]) -> None:
        self._stream = stream
        self._write = write

    def write(self, text: str) -> int:
        return self._write(self._stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def status_line(status: Status) -> Text:
    """Return a job's status for a terminal."""
    from rich.text import Text

    return Text.assemble(
        (status.job, "bold"), "  ", (status.state, _STYLES.get(status.state, "yellow")), "  ", figures_text(status)
    )


def _statuses() -> list[Status]:
    """Return the status of this process's jobs, without importing the module of runs if no job has started."""
    runs = sys.modules.get("strandline.spark.job.run")
    # The module may be only half imported now.
    live_runs = getattr(runs, "live_runs", tuple)
    return [run.glance() for run in live_runs()]


def _say(line: str) -> None:
    # In one write, so that lines of several threads do not mix.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
