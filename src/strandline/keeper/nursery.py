"""Process that forks keepers, with their modules already imported: imports are most of a keeper's start.

    python -m strandline.keeper.nursery CHANNEL WATCHED_PID ROOM

The driver starts it with its first keeper, for all of its jobs. It ends with the driver, or after a minute without
requests and without living keepers; keepers continue without it. As their parent it knows their exit codes. If it
cannot start a keeper, the driver starts the keeper as a program.
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
from strandline.keeper.spawning import MESSAGE_BYTES, KeeperStart

_IDLE_S = 60.0
_REAP_S = 1.0
_MOST_EXIT_CODES = 1000


def main() -> None:
    """Fork keepers until the driver ends, or needs none for a while."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    # The channel closes when the driver dies, unless a fork of the driver has it, too: so watch its process as well.
    descriptors = [channel.fileno()]
    with contextlib.suppress(OSError):
        descriptors.append(os.pidfd_open(int(sys.argv[2])))
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready_to_fork()
    children, used = Children(), time.monotonic()
    while True:
        events = poll.poll((_REAP_S if children.alive else _IDLE_S) * 1000)
        # Keepers that `reap` finds dead count, too: their job may be about to restart.
        used = time.monotonic() if events or children.alive else used
        children.reap()
        if not events and (children.alive or time.monotonic() - used < _IDLE_S):
            continue
        if events != [(descriptors[0], select.POLLIN)] or not (data := channel.recv(MESSAGE_BYTES)):
            break
        request = msgspec.msgpack.decode(data, type=KeeperStart | int)
        if isinstance(request, int):
            channel.send(str(children.exit_codes.get(request, "")).encode() or b" ")
        else:
            channel.send(_fork_keeper(request, descriptors, children))


class Children:
    """The keepers that this process forked, and the exit codes of dead ones."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.exit_codes: dict[int, int] = {}
        """By pid: the exit code, or the negative number of the signal that killed it."""

    def reap(self) -> None:
        """Collect the exit codes of keepers that have ended."""
        for pid in list(self.alive):
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                self.exit_codes.pop(pid, None)
                self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            self.alive.discard(pid)
        for oldest in list(self.exit_codes)[: len(self.exit_codes) - _MOST_EXIT_CODES]:
            del self.exit_codes[oldest]


def _fork_keeper(start: KeeperStart, descriptors: list[int], children: Children) -> bytes:
    """Return a new keeper's pid, once `ps` shows the keeper's arguments."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for descriptor in (read_end, *descriptors):
                os.close(descriptor)
            _run_keeper(start, write_end)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    children.alive.add(child)
    with os.fdopen(read_end, "rb") as pipe:
        return pipe.read()


def _run_keeper(start: KeeperStart, write_end: int) -> None:
    os.setsid()
    os.umask(start.umask)
    os.chdir(start.directory)
    os.environb.clear()
    os.environb.update(start.environment)
    time.tzset()
    renew_randomness()
    if not sys.flags.safe_path:
        # The first directory in which Python looks for modules.
        sys.path[0] = os.fsdecode(start.directory)
    importlib.invalidate_caches()
    log = os.open(start.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    _set_arguments([*map(os.fsencode, (sys.executable, "-m", "strandline.keeper.process")), *start.arguments])
    os.write(write_end, str(os.getpid()).encode())
    os.close(write_end)
    sys.argv = [process.__file__, *map(os.fsdecode, start.arguments)]
    process.serve(sys.argv[1:])


def _set_arguments(arguments: list[bytes]) -> None:
    """Replace the arguments of this process that other processes see."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    name = b"\0".join(arguments) + b"\0"
    if not 0 < len(name) <= end - start:
        raise OSError(f"{len(name)} bytes of arguments do not fit between {start} and {end}")
    ctypes.memmove(start, name.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
