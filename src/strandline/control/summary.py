"""A job's status in words, each part short enough for a line."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from strandline.control.status import SourceStatus, Status
from strandline.core.texts import age_text, rate_text, size_text


def progress_text(status: Status) -> str:
    """Return a job's status in one line of plain text."""
    return f"job '{status.job}' is {status.state}: {figures_text(status)}"


def figures_text(status: Status) -> str:
    """Return the figures of a job in one line."""
    parts = [f"epoch {status.epoch}", f"{status.rows_in:,} rows, {rate_text(status.rows_per_s)}"]
    if status.watermark:
        parts.append(f"watermark {watermark_text(status.watermark)}")
    parts.append(checkpoint_text(status))
    if status.restarts:
        parts.append("1 restart" if status.restarts == 1 else f"{status.restarts} restarts")
    return " · ".join(parts)


def watermark_text(watermark: str) -> str:
    """Return the watermark, and its lag behind the clock if the lag is at most about a day."""
    time_of_it = datetime.fromisoformat(watermark)
    lag_s = (datetime.now(UTC) - time_of_it).total_seconds()
    text = time_of_it.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{text}, {age_text(lag_s)} behind" if 0 <= lag_s < 100_000 else text


def checkpoint_text(status: Status) -> str:
    """Return the newest checkpoint and its age, or that it covers everything: its age does not matter then."""
    newest = status.last_checkpoint
    if newest is None:
        return "no checkpoint yet"
    if not status.uncovered_ms:
        return f"checkpoint {newest.checkpoint} has everything"
    age_ms = max(0.0, time.time() * 1000 - newest.triggered_ms)
    return f"checkpoint {newest.checkpoint}, {age_text(age_ms / 1000)} old"


def lag_text(source: SourceStatus) -> str:
    """Return the backlog of a source."""
    if source.files_behind is not None:
        if not source.files_behind:
            return "nothing"
        files = "1 file" if source.files_behind == 1 else f"{source.files_behind:,} files"
        return f"{files}, {size_text(source.bytes_behind or 0)}, for {age_text((source.waiting_ms or 0) / 1000)}"
    if source.offsets_behind is not None:
        return f"{source.offsets_behind:,} offsets" if source.offsets_behind else "nothing"
    return "not known"
