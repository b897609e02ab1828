"""What a run says of its event time, once each: that rows were late, and that an event has come from the future."""

from __future__ import annotations

import logging

from strandline.control.announcements import tell
from strandline.core.times import END_US, as_datetime

log = logging.getLogger(__name__)

_AHEAD_US = 86_400_000_000
"""How far event time may be ahead of the clock before something is wrong: sources in other zones are within a day."""


class TimeWatch:
    """Looks at how late rows become more, and how far event time has come. A look costs two comparisons."""

    def __init__(self, job: str, late_rows: int, reached_us: int | None, now_us: int) -> None:
        """`late_rows` and `reached_us` are what the run began with: of that, an earlier one has spoken."""
        self._job = job
        self._late_rows = late_rows
        self._is_late_told = False
        self._is_ahead_told = _is_ahead(reached_us, now_us)

    def look(self, late_rows: int, reached_us: int | None, now_us: int) -> None:
        """Say what is new."""
        if not self._is_late_told and late_rows > self._late_rows:
            self._is_late_told = True
            tell(
                f"job '{self._job}': {late_rows - self._late_rows:,} rows came late, older than the watermark. Windows "
                "and joins leave such rows out, or send them where late= says; a longer delay in watermark() waits for "
                "them, and the status counts them"
            )
        if not self._is_ahead_told and _is_ahead(reached_us, now_us):
            self._is_ahead_told = True
            log.warning(
                "job '%s': event time has come to %s, which is in the future: all events before it are late from now "
                "on. If an event is dated wrongly, leave such events out before watermark(), as with "
                'where("at < current_timestamp() + interval 1 hour"), and go back to a checkpoint of before',
                self._job, as_datetime(reached_us or 0).isoformat(timespec="seconds"),
            )  # fmt: skip


def _is_ahead(reached_us: int | None, now_us: int) -> bool:
    # At its end, it was brought there.
    return reached_us is not None and reached_us != END_US and reached_us > now_us + _AHEAD_US
