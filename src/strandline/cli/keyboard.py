"""Keys of a terminal, read one by one without waiting for the end of a line."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator

_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right", "\x1bOC": "right",
    "\x1b[D": "left", "\x1bOD": "left", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "back", "\x08": "back",
    "\x1a": "suspend",
}  # fmt: skip
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_MOST_BYTES = 1024

Read = Callable[[float], list[str]]
"""Waits for keys at most so many seconds, and returns them: characters, or names such as "up"."""


@contextlib.contextmanager
def keys() -> Iterator[Read | None]:
    """Yield a function that reads keys, and restore the terminal afterwards; None if standard input is no terminal.

    Ctrl-C interrupts as always; Ctrl-Z is a key, since the screen has to be left first.
    """
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        changed = termios.tcgetattr(fd)
        changed[6][termios.VSUSP] = bytes([os.fpathconf(fd, "PC_VDISABLE")])
        termios.tcsetattr(fd, termios.TCSADRAIN, changed)
        yield lambda timeout_s: _read(fd, timeout_s)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _read(fd: int, timeout_s: float) -> list[str]:
    if not select.select([fd], [], [], timeout_s)[0]:
        return []
    text = os.read(fd, _MOST_BYTES).decode(errors="replace")
    # At its end, a terminal that is gone can be read, and has nothing.
    return [_NAMES.get(key, key) for key in _KEY.findall(text)] if text else ["q"]
