"""Output of the command line: tables for people, JSON for programs, messages on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TIME_FIELDS = frozenset(["since_ms", "created_ms", "triggered_ms", "completed_ms", "last_failure_ms", "ended_ms"])
# Wide enough that no cell of a table in a file or a pipe is wrapped.
_FILE_WIDTH = 400


def console(*, stderr: bool = False) -> Console:
    """Return a rich console: colours and line breaks only for a terminal."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, highlight=False, force_terminal=False, no_color=True, width=_FILE_WIDTH)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; the columns named in `right` hold numbers."""
    from rich import box
    from rich.table import Table

    output = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        output.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return output


def add_row(to: Table, *cells: object) -> None:
    """Add a row of plain text, without markup."""
    from rich.text import Text

    to.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))


def say(message: str) -> None:
    """Print a message on standard error: standard output is for data."""
    print(message, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON value as one line."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def with_times(data: Any) -> Any:
    """Return data with each time in ms, such as `created_ms`, also in ISO 8601 with an offset, as `created_at`."""
    if isinstance(data, Mapping):
        result = {}
        for name, value in data.items():
            result[name] = with_times(value)
            if name in _TIME_FIELDS:
                result[name.removesuffix("_ms") + "_at"] = time_text(value) if value else None
        return result
    if isinstance(data, list | tuple):
        return [with_times(value) for value in data]
    return data


def json_text(value: Any) -> str:
    """Return a JSON value as one line."""
    return json.dumps(value, separators=(", ", ": "))


def size_text(size_bytes: int) -> str:
    """Return a size with a unit."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def duration_text(ms: float) -> str:
    """Return a duration with a unit."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes = int(ms // 60_000)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def age_text(seconds: float) -> str:
    """Return an age in whole seconds, or in larger units."""
    return f"{seconds:.0f} s" if seconds < 120 else duration_text(seconds * 1000)


def rate_text(per_s: float) -> str:
    """Return a rate per second."""
    return f"{per_s:,.0f}/s" if per_s >= 10 or not per_s else f"{per_s:.1f}/s"


def time_text(ms: int) -> str:
    """Return a time in this machine's time zone, in ISO 8601 with its offset."""
    return moment_text(ms * 1000) if ms else "-"


def moment_text(us: int) -> str:
    """Return an event time in this machine's time zone; any value of a timestamp is allowed."""
    try:
        return datetime.fromtimestamp(us // 1_000_000).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if us > 0 else "before the year 1"
