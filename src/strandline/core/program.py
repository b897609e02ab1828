"""Locates calls of Strandline in the user's program, for messages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

_OURS = str(Path(__file__).parent.parent) + "/"


def line_of_program() -> str:
    """Return the file and line that called Strandline, as `app.py:12`; "" if all callers are in Strandline.

    Takes a microsecond for each stack frame in between.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_ours(code: CodeType) -> bool:
    # The generated __init__ of a dataclass has no file.
    return code.co_filename.startswith(_OURS) or (code.co_filename == "<string>" and code.co_name == "__init__")
