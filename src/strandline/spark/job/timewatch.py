"""Reports of late rows and of event time in the future, once each for a run."""

from __future__ import annotations

import logging

from strandline.control.announcements import tell
from strandline.core.times import END_US, as_datetime

log = logging.getLogger(__name__)

_AHEAD_US = 86_400_000_000
"""The most that event time may be ahead of the clock: time zones explain a difference of up to a day."""


class TimeWatch:
    """Checks the number of late rows and the event time. A check costs two comparisons."""

    def __init__(self, job: str, late_rows: int, reached_us: int | None, now_us: int) -> None:
        """`late_rows` and `reached_us` are the values at the start, which earlier runs have reported."""
        self._job = job
        self._late_rows = late_rows
        self._is_late_reported = False
        self._is_ahead_reported = _is_ahead(reached_us, now_us)

    def check(self, late_rows: int, reached_us: int | None, now_us: int) -> None:
        """Report late rows or a time in the future, if it is the first time."""
        if not self._is_late_reported and late_rows > self._late_rows:
            self._is_late_reported = True
            tell(
                f"job '{self._job}': {late_rows - self._late_rows:,} rows came late, older than the watermark. Windows "
                "and joins leave such rows out, or send them where late= says; a longer delay in watermark() waits for "
                "them, and the status counts them"
            )
        if not self._is_ahead_reported and _is_ahead(reached_us, now_us):
            self._is_ahead_reported = True
            log.warning(
                "job '%s': event time has come to %s, which is in the future: all events before it are late from now "
                "on. If an event is dated wrongly, leave such events out before watermark(), as with "
                'where("at < current_timestamp() + interval 1 hour"), and go back to a checkpoint of before',
                self._job, as_datetime(reached_us or 0).isoformat(timespec="seconds"),
            )  # fmt: skip


def _is_ahead(reached_us: int | None, now_us: int) -> bool:
    # A drain sets it to the end of time.
    return reached_us is not None and reached_us != END_US and reached_us > now_us + _AHEAD_US
