"""Failpoints: named places where a test makes the program crash, fail or wait. They do nothing unless armed.

The environment arms those of a real process: STRANDLINE_FAILPOINTS="name=kill;other=error@3".
The action runs at the n-th hit (`@n`, default the first), once in a process. If STRANDLINE_FAILPOINTS_DIR is set, it
runs once among all processes that share that directory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from strandline.core.errors import UnavailableError

_armed: dict[str, tuple[Callable[[], None], int]] = {}
_hits: dict[str, int] = {}


def hit(name: str) -> None:
    """Run the action armed for this place, if any."""
    if _armed and name in _armed:
        action, at = _armed[name]
        _hits[name] = _hits.get(name, 0) + 1
        if _hits[name] == at and _first_in_group(name):
            action()


def arm(name: str, action: Callable[[], None], *, at: int = 1) -> None:
    """Arm a failpoint in this process: `action` runs at the `at`-th hit."""
    _armed[name] = (action, at)
    _hits.pop(name, None)


def disarm_all() -> None:
    """Disarm all failpoints and reset their counts."""
    _armed.clear()
    _hits.clear()


def arm_from_environment() -> None:
    """Arm the failpoints in STRANDLINE_FAILPOINTS; each process's entry point calls this once."""
    for item in filter(None, os.environ.get("STRANDLINE_FAILPOINTS", "").split(";")):
        name, _, action = item.partition("=")
        action, _, at = action.partition("@")
        arm(name.strip(), _action(name, action.strip()), at=int(at or 1))


def _action(name: str, action: str) -> Callable[[], None]:
    if action == "kill":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if action == "error":
        return lambda: _raise(name)
    if action.startswith("sleep:"):
        return lambda: time.sleep(float(action.removeprefix("sleep:")))
    raise ValueError(f"failpoint '{name}': unknown action '{action}', expected kill, error or sleep:<seconds>")


def _raise(name: str) -> None:
    raise UnavailableError(f"failpoint '{name}' is armed")


def _first_in_group(name: str) -> bool:
    directory = os.environ.get("STRANDLINE_FAILPOINTS_DIR")
    if not directory:
        return True
    try:
        (Path(directory) / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
