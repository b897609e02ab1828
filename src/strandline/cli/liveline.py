"""What `strandline run` shows of its jobs: what they tell, and between, on a terminal, a line that lives."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from strandline.cli.output import age_text, console, rate_text
from strandline.control.announcements import listening

if TYPE_CHECKING:
    from rich.text import Text

    from strandline.control.status import Status

_PAINT_S = 0.25
_LOOK_S = 1.0
_FIRST_S, _EVERY_S = 10.0, 60.0
_STYLES = {"running": "green", "failed": "red", "finished": "dim", "stopped": "dim"}


@contextlib.contextmanager
def showing_progress(*, quiet: bool) -> Iterator[None]:
    """Show on standard error what this process's jobs do, unless it is to be quiet."""
    if quiet:
        with listening(lambda text, detail: None, shows=True):
            yield
        return
    screen = console(stderr=True)
    shown = _Terminal() if screen.is_terminal and not screen.is_dumb_terminal else _Lines()
    with listening(shown.hear, shows=True), shown.shown():
        yield


class _Lines:
    """Lines in a file or a pipe: what is told, and now and then how far the jobs are."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._began_s = time.monotonic()
        self._due_s = _FIRST_S
        self._said: dict[str, tuple[int, str]] = {}

    def hear(self, text: str, detail: bool) -> None:
        if not detail:
            _say(f"strandline: {text}")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show how far the jobs are meanwhile."""
        thread = threading.Thread(target=self._show, name="strandline-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(5)

    def _show(self) -> None:
        while not self._done.wait(_LOOK_S):
            if time.monotonic() - self._began_s >= self._due_s:
                # Nobody reads the log of a job that does nothing.
                for status in _statuses():
                    now = (status.epoch, status.state)
                    if status.epochs and self._said.get(status.job) != now:
                        self._said[status.job] = now
                        _say(f"strandline: {progress_text(status)}")
                        self._due_s = time.monotonic() - self._began_s + _EVERY_S


class _Terminal(_Lines):
    """The last line of a terminal shows what the jobs do; what is written meanwhile stands above it."""

    def __init__(self) -> None:
        super().__init__()
        self._out = sys.stderr
        self._text = ""
        self._painted = 0
        self._at_start = True
        self._last = "starting"
        self._last_s = time.monotonic()
        self._lock = threading.RLock()

    def hear(self, text: str, detail: bool) -> None:
        if not detail:
            self._last, self._last_s = text, time.monotonic()
        super().hear(text, detail)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show how far the jobs are meanwhile, and have what others write give way to it."""
        before = sys.stdout, sys.stderr
        with super().shown():
            sys.stderr = self._beside(sys.stderr)
            if sys.stdout.isatty():
                sys.stdout = self._beside(sys.stdout)
            try:
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
                    # Somebody's line that is not ended, as a question, stays as it is.
                    if self._at_start and not self._done.is_set():
                        self._paint(lines)

    def _lines(self) -> list[Text]:
        from rich.text import Text

        found = [status_line(status) for status in _statuses()]
        waits = f"{self._last} · {time.monotonic() - self._last_s:.0f} s"
        return found or [Text(waits, style="dim")]

    def _paint(self, lines: list[Text]) -> None:
        screen = console(stderr=True)
        for line in lines:
            # One that is as long as the terminal is wide would make it go on to the next.
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
    """A stream of this process that gives way to the line that lives."""

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
    """Return what a job does, for a terminal."""
    from rich.text import Text

    return Text.assemble(
        (status.job, "bold"), "  ", (status.state, _STYLES.get(status.state, "yellow")), "  ", _figures(status)
    )


def progress_text(status: Status) -> str:
    """Return what a job does, in a line."""
    return f"job '{status.job}' is {status.state}: {_figures(status)}"


def _figures(status: Status) -> str:
    found = [f"epoch {status.epoch}", f"{status.rows_in:,} rows, {rate_text(status.rows_per_s)}"]
    if status.watermark:
        found.append(f"watermark {watermark_text(status.watermark)}")
    found.append(checkpoint_text(status))
    if status.restarts:
        found.append("1 restart" if status.restarts == 1 else f"{status.restarts} restarts")
    return " · ".join(found)


def watermark_text(watermark: str) -> str:
    """Return how far event time is, and how far behind the clock, if that is about a day or less."""
    behind = (datetime.now(UTC) - datetime.fromisoformat(watermark)).total_seconds()
    text = watermark.replace("+00:00", "Z")
    return f"{text}, {age_text(behind)} behind" if 0 <= behind < 100_000 else text


def checkpoint_text(status: Status) -> str:
    """Return how old the newest checkpoint is: one that covers everything is as good as new."""
    newest = status.last_checkpoint
    if newest is None:
        return "no checkpoint yet"
    if not status.uncovered_ms:
        return f"checkpoint {newest.checkpoint} has everything"
    age_ms = max(0.0, time.time() * 1000 - newest.triggered_ms)
    return f"checkpoint {newest.checkpoint}, {age_text(age_ms / 1000)} old"


def _statuses() -> list[Status]:
    """Return what the jobs of this process do; a program that has started none has not imported them."""
    runs = sys.modules.get("strandline.spark.job.run")
    # The program may be importing it.
    live_runs = getattr(runs, "live_runs", tuple)
    return [run.glance() for run in live_runs()]


def _say(line: str) -> None:
    # One write: lines of several threads stay apart.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
