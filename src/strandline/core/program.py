"""The user's program: where in it something was written."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent.parent) + "/"


def line_of_program() -> str:
    """Return the file and line that called Strandline, as `app.py:12`; "" if nobody else did.

    Costs a microsecond for each call in between.
    """
    frame: FrameType | None = sys._getframe(1)
    # What a dataclass makes stands in no file.
    while frame is not None and (frame.f_code.co_filename.startswith(_OURS) or frame.f_code.co_filename == "<string>"):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
