"""Error for a keeper that has died: its operator and partition, the cause, and the last lines of its log."""

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
_LINE_CHARS = 300
_SOON_S = 1.0
_HEAD = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+\S* (\d+) ")
"""The start of a line in a keeper's log: the time and the process id."""


def is_dead(pid: int, within_s: float = _SOON_S) -> bool:
    """Whether a process of this machine has ended, or ends within `within_s`: its sockets are closed before its end."""
    deadline = time.monotonic() + within_s
    while process_start(pid):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def death_of(uid: str, partition: Partition, pid: int, log: Path, exit_code: int | None = None) -> KeeperError:
    """Return the error for a keeper of this machine that has died.

    `exit_code` is negative for a signal, as in `subprocess`, and None if it is unknown.
    """
    host = socket.gethostname()
    end = _describe(exit_code)
    summary = f"the keeper of operator '{uid}', partition {partition}, died: process {pid} on {host} {end}"
    lines = _last_lines(log, pid)
    tail = " ends:" + "".join(f"\n  {line}" for line in lines) if lines else " has no lines of this process"
    return KeeperError(
        f"{summary}; its log {log}{tail}",
        hint=_hint(exit_code, lines),
        discreet=f"{summary}; its log is {log}",
        operator=uid,
        partition=partition,
        pid=pid,
        host=host,
    )


def _describe(exit_code: int | None) -> str:
    if exit_code is None:
        return "has ended, and its exit code is unknown"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was ended by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was ended by signal {-exit_code}"


def _hint(exit_code: int | None, lines: Iterable[str]) -> str:
    if exit_code == -signal.SIGKILL or (exit_code is None and not any(" ERROR " in line for line in lines)):
        return (
            "if no user killed it, the system did because memory ran out (see dmesg, journalctl -k or the limit of the "
            "container): lower state_memory in Settings, let an epoch have fewer rows, or add memory"
        )
    if exit_code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE):
        return "native code of a library has crashed: the log has the Python stack"
    if exit_code is not None and exit_code >= 0:
        return "a function or a library in it ended the process, for example with os._exit()"
    return ""


def _last_lines(log: Path, pid: int) -> list[str]:
    """Return the last lines of a process, or those of its crash; the log also has lines of earlier processes."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 64_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    is_of_process, lines = False, []
    for line in text.splitlines():
        # A line without a time continues the line before it.
        if head := _HEAD.match(line):
            is_of_process = int(head[1]) == pid
        if is_of_process and line.strip():
            lines.append(line[:_LINE_CHARS])
    crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    return lines[-_LAST_LINES:] if crash is None else lines[crash : crash + _LAST_LINES]
