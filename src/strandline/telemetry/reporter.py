"""Reports of a running job from its own driver: a server of metrics, a collector of OpenTelemetry, and lineage."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandline.api.telemetry import Telemetry
from strandline.control.announcements import tell
from strandline.control.commands import RunningJob
from strandline.core.errors import ConfigurationError
from strandline.core.version import VERSION
from strandline.telemetry.figures import Figures
from strandline.telemetry.lineage import EventType, LineageRun, emit

if TYPE_CHECKING:
    from strandline.telemetry.otlp import Collector
    from strandline.telemetry.prometheus import MetricsServer

log = logging.getLogger(__name__)

_END_S = 12.0
"""How long the end of a job waits for its last reports."""
_POLL_S = 0.2


class Reporter:
    """Reports one run, in a thread, until the run has ended: also its end."""

    def __init__(
        self, options: Telemetry, run: RunningJob, directory: str, since_ms: int, ended: threading.Event,
        lineage: Callable[[], LineageRun],
    ) -> None:  # fmt: skip
        self._options, self._run, self._directory, self._since_ms = options, run, directory, since_ms
        self._ended, self._make_lineage = ended, lineage
        self._given_up = threading.Event()
        self._server: MetricsServer | None = None
        self._collector: Collector | None = None
        self._lineage: LineageRun | None = None
        self._thread = threading.Thread(target=self._report, name="strandline-telemetry", daemon=True)

    def start(self) -> None:
        """Begin. Raises ConfigurationError for an address that cannot be used, or if a package is missing."""
        options = self._options
        try:
            if options.prometheus is not None:
                from strandline.telemetry.prometheus import MetricsServer

                self._server = MetricsServer.start(*options.address, lambda: [self.read()])
                tell(f"metrics of job '{self._run.status().job}' are at {self._server.address}")
            if options.otlp is not None:
                from strandline.telemetry.otlp import Collector

                self._collector = Collector(options.otlp, self._since_ms)
            if options.lineage is not None:
                self._lineage = self._make_lineage()
            self._thread.start()
        except BaseException as error:
            self._close()
            name = getattr(error, "name", None) or ""
            if isinstance(error, ModuleNotFoundError) and name.partition(".")[0] in (
                "prometheus_client", "opentelemetry",
            ):  # fmt: skip
                raise ConfigurationError(
                    f"telemetry needs {name}, which is not installed", hint="pip install 'strandline[metrics]'"
                ) from None
            raise

    @property
    def address(self) -> str:
        """The address at which Prometheus finds the metrics; "" if they are not served."""
        return self._server.address if self._server is not None else ""

    def join(self) -> None:
        """Wait until the end is reported; call it when the run has ended."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    def end(self) -> None:
        """End after a start that has failed."""
        self._given_up.set()
        self.join()

    def read(self, *, spans: bool = False) -> Figures:
        """Return the figures of now; with `spans`, with the recent past."""
        status = self._run.status()
        return Figures(
            status.job, self._directory, status.state, self._since_ms, int(time.time() * 1000), VERSION, status,
            self._run.recent() if spans else None,
        )  # fmt: skip

    # -- in the thread

    def _report(self) -> None:
        try:
            self._emit("START", self._since_ms)
            due_s = time.monotonic() + self._options.interval_s
            while not self._given_up.is_set() and not self._ended.wait(_POLL_S):
                if time.monotonic() >= due_s:
                    self._send(is_last=False)
                    due_s = time.monotonic() + self._options.interval_s
            self._send(is_last=True)
            status, now_ms = self._run.status(), int(time.time() * 1000)
            if status.state == "failed" or self._given_up.is_set():
                self._emit("FAIL", now_ms, status.last_failure or "the job did not start")
            else:
                self._emit("COMPLETE", now_ms)
        finally:
            self._close()

    def _send(self, *, is_last: bool) -> None:
        if self._collector is not None:
            # A status is read while the job changes: an attempt may have ended meanwhile.
            try:
                self._collector.send([self.read(spans=True)], is_last=is_last)
            except Exception as error:
                log.warning("metrics of job '%s' were not sent: %s", self._run.status().job, type(error).__name__)

    def _emit(self, kind: EventType, at_ms: int, failure: str = "") -> None:
        if self._lineage is not None and self._options.lineage is not None:
            emit(self._options.lineage, self._lineage.event(kind, at_ms, failure))

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            if self._server is not None:
                self._server.end()
        with contextlib.suppress(Exception):
            if self._collector is not None:
                self._collector.close()
