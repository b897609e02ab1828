"""Dead letters as rows: which errors an event may have caused, and how a row describes them."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from strandline.core.errors import StrandlineError, UserCodeError
from strandline.core.failure import escape_surrogates, shortened
from strandline.core.times import as_datetime
from strandline.runtime.task.usererrors import find_backend_error, text_of
from strandline.types.jsonforms import to_json

_PACKAGE = str(Path(__file__).parent.parent.parent)
_MAX_REASON = 2_000
_MAX_TRACEBACK = 20_000


def is_event_error(error: BaseException) -> bool:
    """Whether one event may be the cause of an error, rather than memory, storage or the program's configuration."""
    if isinstance(error, MemoryError | SystemExit | KeyboardInterrupt | GeneratorExit):
        return False
    if isinstance(error, StrandlineError):
        return isinstance(error, UserCodeError)
    return find_backend_error(error) is None


def kind_and_place(error: BaseException) -> str:
    """Return an error's type and the line in the user's function that raised it, without any values."""
    # Not by extract_tb(), which looks at each file for every event.
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    program = [f"{file}:{line}" for file, line in places if not file.startswith(_PACKAGE)]
    return type(error).__name__ + (f" at {program[-1]}" if program else "")


def reason_of(error: BaseException) -> str:
    """Return the reason in a dead letter for an exception."""
    return error.message if isinstance(error, UserCodeError) else f"{type(error).__name__}: {text_of(error)}"


def dead_letter_row(
    operator: str, step: str, reason: str, key: Any, event: Any, time_us: int | None, trace: str | None
) -> tuple[Any, ...]:
    """Return a dead letter's row."""
    time = None if time_us is None else as_datetime(time_us)
    reason = escape_surrogates(shortened(reason, _MAX_REASON))
    trace = None if trace is None else escape_surrogates(shortened(trace, _MAX_TRACEBACK))
    return (operator or None, step, reason, _json(key), _json(event), time, trace)


def _json(value: Any) -> str | None:
    return None if value is None else escape_surrogates(json.dumps(to_json(value), ensure_ascii=False, default=repr))
