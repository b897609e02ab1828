"""Keepers are forked from a process that has imported what they need: imports are most of a keeper's start.

    python -m strandline.keeper.nursery CHANNEL WATCHED_PID ROOM

The driver starts it with its first keeper, and it serves all jobs of the driver. It ends with the driver, or when it
has had nothing to do for a minute and none of its keepers is alive; keepers go on without it. As their parent it knows
how each of them ended. Where there is none, keepers are started as programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import socket
import sys
import time
import traceback
from pathlib import Path

import msgspec

from strandline.keeper import process
from strandline.keeper.lean import ready_to_fork, renew_randomness
from strandline.keeper.spawning import MESSAGE_BYTES, Birth

_IDLE_S = 60.0
_REAP_S = 1.0
_MOST_ENDS = 1000


def main() -> None:
    """Give birth to keepers until nobody wants one."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    # What arrives while modules are imported waits. The driver's end is closed when it dies, unless it was forked.
    held = [channel.fileno()]
    with contextlib.suppress(OSError):
        held.append(os.pidfd_open(int(sys.argv[2])))
    waiting = select.poll()
    for descriptor in held:
        waiting.register(descriptor, select.POLLIN)
    ready_to_fork()
    born, used = Born(), time.monotonic()
    while True:
        found = waiting.poll((_REAP_S if born.alive else _IDLE_S) * 1000)
        # Also those that are found to have ended: their job may be about to restart.
        used = time.monotonic() if found or born.alive else used
        born.look()
        if not found and (born.alive or time.monotonic() - used < _IDLE_S):
            continue
        if found != [(held[0], select.POLLIN)] or not (data := channel.recv(MESSAGE_BYTES)):
            break
        asked = msgspec.msgpack.decode(data, type=Birth | int)
        if isinstance(asked, int):
            channel.send(str(born.ends.get(asked, "")).encode() or b" ")
        else:
            channel.send(_born(asked, held, born))


class Born:
    """The keepers that were born here, and how those ended that are not alive."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.ends: dict[int, int] = {}
        """Exit codes, and numbers of signals, negative."""

    def look(self) -> None:
        """Find out who has ended."""
        for pid in list(self.alive):
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                self.ends.pop(pid, None)
                self.ends[pid] = os.waitstatus_to_exitcode(status)
            self.alive.discard(pid)
        for oldest in list(self.ends)[: len(self.ends) - _MOST_ENDS]:
            del self.ends[oldest]


def _born(birth: Birth, held: list[int], born: Born) -> bytes:
    """Return a new keeper's pid, once others can see what it is."""
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for descriptor in (told, *held):
                os.close(descriptor)
            _become(birth, tells)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tells)
    born.alive.add(child)
    with os.fdopen(told, "rb") as pipe:
        return pipe.read()


def _become(birth: Birth, tells: int) -> None:
    os.setsid()
    os.umask(birth.umask)
    os.chdir(birth.directory)
    os.environb.clear()
    os.environb.update(birth.environment)
    time.tzset()
    renew_randomness()
    if not sys.flags.safe_path:
        # Where a program's own modules are looked for first.
        sys.path[0] = os.fsdecode(birth.directory)
    importlib.invalidate_caches()
    log = os.open(birth.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    _be_called([*map(os.fsencode, (sys.executable, "-m", "strandline.keeper.process")), *birth.arguments])
    os.write(tells, str(os.getpid()).encode())
    os.close(tells)
    sys.argv = [process.__file__, *map(os.fsdecode, birth.arguments)]
    process.serve(sys.argv[1:])


def _be_called(arguments: list[bytes]) -> None:
    """Have other processes see these arguments as the ones that this one was started with."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    name = b"\0".join(arguments) + b"\0"
    if not 0 < len(name) <= end - start:
        raise OSError(f"{len(name)} bytes of arguments do not fit between {start} and {end}")
    ctypes.memmove(start, name.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
