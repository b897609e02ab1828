"""Waits for the end of a job, as `Job.run` does: an interrupt, in a terminal or a notebook, stops the job in order."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator

from strandline.control.announcements import tell_always
from strandline.core.errors import CheckpointError, UnavailableError
from strandline.spark.job.run import Run

log = logging.getLogger(__name__)


def attend(run: Run, name: str) -> None:
    """Start a run and wait until it ends; a notebook shows its panel meanwhile. Raises the job's error.

    An interrupt stops the job with a last checkpoint, and a second one, meanwhile, without waiting for it; then the
    KeyboardInterrupt is raised.
    """
    outcome = "was not started"
    try:
        with run._panel.showing(), _without_handler_of_spark():
            try:
                run.start()
                run.await_termination()
            except KeyboardInterrupt:
                outcome = _stop(run, name)
                raise
    except KeyboardInterrupt as interrupt:
        # IPython shows this in place of a stack trace.
        interrupt._render_traceback_ = lambda: [  # type: ignore[attr-defined]
            f"KeyboardInterrupt: job '{name}' {outcome}"
        ]
        raise


def _stop(run: Run, name: str) -> str:
    """Stop a job that was interrupted; return what became of it."""
    if not run._supervisor.is_live:
        return "was stopped while it started"
    run._panel.keeps_note = True
    try:
        try:
            tell_always(f"job '{name}' takes a last checkpoint and stops; a second interrupt stops it at once")
            run.stop(checkpoint=True)
            return "was stopped, and its last checkpoint has everything"
        except (CheckpointError, UnavailableError) as error:
            log.warning("job '%s' stops without a last checkpoint: %s", name, error)
            run.stop()
    except KeyboardInterrupt:
        tell_always(f"job '{name}' stops at once, without a last checkpoint")
        run._stop_at_once()
    return "was stopped without a last checkpoint: its next start repeats rows"


@contextlib.contextmanager
def _without_handler_of_spark() -> Iterator[None]:
    """Let an interrupt reach the block as it is: Spark's handler would first cancel the epoch in progress."""
    is_ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_ours else None
    if not getattr(before, "__module__", "").startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
