"""The user's program: its file and arguments, and the calls of Strandline in it, for messages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import msgspec

_SUFFIXES = (".py", ".sql")
_OURS = str(Path(__file__).parent.parent) + "/"


class ProgramFile(msgspec.Struct, frozen=True):
    """A program as it was started."""

    path: str
    arguments: list[str]
    folder: str
    """The working directory, to which arguments may be relative."""

    @classmethod
    def of_process(cls) -> ProgramFile | None:
        """Return the program that this process runs; None if it is no file, as in a notebook, or a module (`-m`)."""
        path, main = Path(sys.argv[0] if sys.argv else ""), sys.modules.get("__main__")
        # A notebook's kernel has a file of its own as its program.
        is_program = hasattr(main, "__file__") and getattr(main, "__spec__", None) is None
        is_file = is_program and path.suffix.lower() in _SUFFIXES
        try:
            return cls(str(path.absolute()), sys.argv[1:], str(Path.cwd())) if is_file and path.is_file() else None
        except OSError:
            # The working directory is gone.
            return None


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
