"""Faults that strike in the middle of an epoch: a keeper that has come to a certain row does the damage itself.

So the moment is exact, whatever the machine is busy with: the rows before it are with the keeper, and most of those
after it are still with Spark. A strike happens once; the attempt after it passes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_JVM = 3
"""Where a keeper's arguments name the executor that it watches."""
_DAEMON = "strandline.spark.keepers.daemon"
"""What forks Spark's Python workers."""


_passed = 0


def plan(directory: Path, uid: str, after: int, what: str, **given: Any) -> Path:
    """Have an operator strike after so many more events of one partition; return what will say what was hit."""
    path = directory / uid
    hit = path.with_suffix(".hit")
    hit.unlink(missing_ok=True)
    path.with_suffix(".new").write_text(json.dumps({"after": after, "what": what, **given}))
    path.with_suffix(".new").rename(path)
    return hit


def strike(directory: str, uid: str, seed: Any) -> None:
    """Called before each event: do what is planned, if anything is. It hits files or processes, which are written down."""
    global _passed
    path = Path(directory) / uid
    taken = path.with_suffix(".taken")
    try:
        given = json.loads(path.read_text())
        _passed += 1
        if _passed <= given.pop("after"):
            return
        path.rename(taken)
    except FileNotFoundError:
        _passed = 0
        return
    hit = _WHAT[given.pop("what")](random.Random(seed), **given)
    path.with_suffix(".hit").write_text(json.dumps(hit))


def _delete_shuffle_files(rng: random.Random, ending: str) -> list[str]:
    """Delete this executor's shuffle files: those that are open already can still be read."""
    found = _shuffle_files(ending)
    for path in found:
        # Spark deletes those of earlier epochs, too.
        path.unlink(missing_ok=True)
    return [str(path) for path in found]


def _garble_shuffle_files(rng: random.Random) -> list[str]:
    """Write over this executor's shuffle files, also over those that are being read."""
    found = _shuffle_files("data")
    for path in found:
        with suppress(FileNotFoundError), path.open("r+b") as file:
            file.write(rng.randbytes(path.stat().st_size))
    return [str(path) for path in found]


def _shuffle_files(ending: str) -> list[Path]:
    """Find where the executor has its blocks: it is reading one of them."""
    directories = set()
    for opened in Path(f"/proc/{sys.argv[_JVM]}/fd").iterdir():
        with contextlib.suppress(OSError):
            path = opened.readlink()
            if path.name.startswith("shuffle_"):
                directories.add(path.parent.parent)
    return sorted(path for directory in directories for path in directory.glob(f"*/shuffle_*.{ending}"))


def _kill_workers(rng: random.Random) -> list[str]:
    """Kill the Python workers of this executor, or some of them."""
    daemons = _children(int(sys.argv[_JVM]), _DAEMON)
    workers = [pid for daemon in daemons for pid in _children(daemon, _DAEMON)]
    return _kill(rng.sample(workers, rng.randint(max(1, len(workers) - 1), len(workers))))


def _kill_daemon(rng: random.Random) -> list[str]:
    """Kill what forks this executor's Python workers, and them: alone, nobody would miss it."""
    daemons = _children(int(sys.argv[_JVM]), _DAEMON)
    return _kill([*daemons, *(pid for daemon in daemons for pid in _children(daemon, _DAEMON))])


def _kill_executors(rng: random.Random, belongs: str) -> list[str]:
    """Kill executors that hold no keeper: one or all."""
    keepers = {argv[_JVM + 2] for argv in _processes(belongs).values() if "strandline.keeper.process" in argv}
    executors = [
        pid
        for pid, argv in _processes(belongs).items()
        if any("CoarseGrainedExecutorBackend" in word for word in argv) and str(pid) not in keepers
    ]
    return _kill(rng.sample(executors, rng.randint(1, len(executors))))


_WHAT = {
    "delete": _delete_shuffle_files,
    "garble": _garble_shuffle_files,
    "workers": _kill_workers,
    "daemon": _kill_daemon,
    "executors": _kill_executors,
}


def _kill(pids: list[int]) -> list[str]:
    for pid in pids:
        # A worker may have ended since it was found.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [str(pid) for pid in pids]


def _children(parent: int, needle: str) -> list[int]:
    found = []
    for pid, argv in _processes("").items():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if needle in argv and int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(pid)
    return found


def _processes(belongs: str) -> dict[int, list[str]]:
    """Return the command lines of processes whose environment names this."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if belongs in environment:
            found[int(entry.name)] = argv
    return found
