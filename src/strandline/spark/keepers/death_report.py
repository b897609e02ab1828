"""A keeper that has died, in one message: which, how, and what it said last."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from strandline.core.errors import KeeperError
from strandline.core.ids import Partition
from strandline.keeper.watchdog import process_start

_LAST_LINES = 5
_LINE = 300
_SOON_S = 1.0
_HEAD = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+\S* (\d+) ")
"""How a line of a keeper's log begins: when, and which process."""


def is_dead(pid: int, within_s: float = _SOON_S) -> bool:
    """Whether a process of this machine has ended, or does so soon: its connections are closed before it is gone."""
    deadline = time.monotonic() + within_s
    while process_start(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def death_of(uid: str, partition: Partition, pid: int, log: Path, ended: int | None = None) -> KeeperError:
    """Return the error that says that a keeper of this machine has died.

    `ended` is its exit code, or the number of the signal that ended it, negative; None if nobody knows.
    """
    host = socket.gethostname()
    what = f"the keeper of operator '{uid}', partition {partition}, died: process {pid} on {host} {_how(ended)}"
    lines = _last_lines(log, pid)
    said = "".join(f"\n  {line}" for line in lines) or " says nothing of it"
    return KeeperError(
        f"{what}; its log {log} ends:{said}" if lines else f"{what}; its log {log}{said}",
        hint=_hint(ended, lines),
        discreet=f"{what}; its log is {log}",
        operator=uid,
        partition=partition,
        pid=pid,
        host=host,
    )


def _how(ended: int | None) -> str:
    if ended is None:
        return "is gone, and how it ended is not known"
    if ended >= 0:
        return f"ended with exit code {ended}"
    try:
        return f"was ended by signal {-ended} ({signal.Signals(-ended).name})"
    except ValueError:
        return f"was ended by signal {-ended}"


def _hint(ended: int | None, lines: Iterable[str]) -> str:
    if ended == -signal.SIGKILL or (ended is None and not any(" ERROR " in line for line in lines)):
        return (
            "if nobody killed it, the system did, for want of memory (dmesg or journalctl -k tell; in a container, its "
            "limit): lower state_memory in Settings, or give it more"
        )
    if ended in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE):
        return "a library in native code has crashed: the log has the stack of Python's side"
    if ended is not None and ended >= 0:
        return "something in it ended the process: a function or a library that calls os._exit()"
    return ""


def _last_lines(log: Path, pid: int) -> list[str]:
    """Return what a process wrote last, or where it crashed: the log has those before it, too."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 64_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    own, found = False, []
    for line in text.splitlines():
        # What has no time goes with the line before it.
        if head := _HEAD.match(line):
            own = int(head[1]) == pid
        if own and line.strip():
            found.append(line[:_LINE])
    crash = next((at for at, line in enumerate(found) if line.startswith("Fatal Python error")), None)
    return found[-_LAST_LINES:] if crash is None else found[crash : crash + _LAST_LINES]
