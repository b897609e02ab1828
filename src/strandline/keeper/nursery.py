"""The nursery: a process that has imported keepers' modules, and forks keepers. Imports are most of a keeper's start.

    python -m strandline.keeper.nursery CHANNEL WATCHED_PID PADDING

The driver starts it with its first keeper, for all of its jobs; CHANNEL is a descriptor. On an executor, Spark's first
worker that starts a keeper of a job with standbys starts it; CHANNEL is the path at which it listens to all workers. It
ends with the driver or executor, or after a minute without requests and without living keepers; keepers continue
without it. As their parent it knows their exit codes. If it cannot start a keeper, the caller starts one as a program.
Keepers overwrite PADDING with their own arguments.
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
from strandline.keeper.spawning import MESSAGE_BYTES, Beat, KeeperStart
from strandline.keeper.watchdog import process_start

_IDLE_S = 60.0
_REAP_S = 1.0
_BEAT_S = 0.1
_REQUEST_S = 0.5
"""How long a worker may take to send what it has connected for: heartbeats wait for it."""
_ENDING_S = 1.0
_MAX_EXIT_CODES = 1000


def main() -> None:
    """Answer requests for keepers and exit codes until the driver ends, or needs none for a while."""
    channel = socket.socket(fileno=int(sys.argv[1])) if sys.argv[1].isdigit() else _listen(Path(sys.argv[1]))
    listens = bool(channel.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    # Also watch the driver's process: if it dies, the channel stays open as long as a fork of the driver has it.
    descriptors = [channel.fileno()]
    with contextlib.suppress(OSError):
        descriptors.append(os.pidfd_open(int(sys.argv[2])))
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready_to_fork()
    children, heart, last_used = Children(), Heart(), time.monotonic()
    while True:
        if children.alive:
            heart.send()
        wait_s = _IDLE_S if not children.alive else _BEAT_S if heart.beats else _REAP_S
        events = poll.poll(wait_s * 1000)
        # Before `reap`: a keeper that has just died counts as use, since its job may be about to restart.
        last_used = time.monotonic() if events or children.alive else last_used
        children.reap()
        if not events and (children.alive or time.monotonic() - last_used < _IDLE_S):
            continue
        if events != [(descriptors[0], select.POLLIN)]:
            break
        if listens:
            # A worker that ends meanwhile must not end the nursery of others.
            with contextlib.suppress(OSError), channel.accept()[0] as connection:
                connection.settimeout(_REQUEST_S)
                _answer(connection, [*descriptors, connection.fileno()], children, heart)
        elif not _answer(channel, descriptors, children, heart):
            break
    if listens:
        Path(sys.argv[1]).unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path, in the place of one that is left there."""
    listener, temporary = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), path.with_suffix(f".{os.getpid()}.tmp")
    listener.bind(str(temporary))
    temporary.chmod(0o600)
    listener.listen(16)
    temporary.rename(path)
    return listener


def _answer(channel: socket.socket, descriptors: list[int], children: Children, heart: Heart) -> bool:
    """Answer one request; return False if the other side has ended."""
    if not (data := channel.recv(MESSAGE_BYTES)):
        return False
    request = msgspec.msgpack.decode(data, type=KeeperStart | int)
    if isinstance(request, int):
        # An empty message would mean the end of the nursery.
        channel.send(str(children.exit_code(request)).encode())
    else:
        channel.send(_fork_keeper(request, descriptors, children))
        heart.follow(request.beat)
    return True


class Heart:
    """Sends heartbeats to the driver of the newest attempt."""

    def __init__(self) -> None:
        self._beat: Beat | None = None
        self._socket: socket.socket | None = None

    @property
    def beats(self) -> bool:
        """Whether there are heartbeats to send."""
        return self._socket is not None

    def follow(self, beat: Beat | None) -> None:
        """Send to this driver from now on; an attempt's first name counts."""
        if beat is None or not beat.port or (self._beat is not None and self._beat.token == beat.token):
            return
        self._beat = beat
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        # Without an address, only Spark notices a loss of this host.
        with contextlib.suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(beat.host, beat.port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setblocking(False)
            self._socket.connect(address)

    def send(self) -> None:
        """Send one, if there is a driver; one that cannot be sent is as good as lost."""
        if self._socket is not None and self._beat is not None:
            with contextlib.suppress(OSError):
                self._socket.send(f"{self._beat.token} {self._beat.name}".encode())


class Children:
    """The keepers that this process forked, and the exit codes of dead ones."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.exit_codes: dict[int, int] = {}
        """By pid: the exit code, or the negative number of the signal that killed it."""

    def exit_code(self, pid: int) -> int | str:
        """Return a keeper's exit code; a space if it runs or is unknown."""
        deadline = time.monotonic() + _ENDING_S
        # A killed process may look dead before its last thread ends; only then does `waitpid` return its exit code.
        while pid in self.alive and not process_start(pid) and time.monotonic() < deadline:
            time.sleep(0.001)
            self.reap()
        return self.exit_codes.get(pid, " ")

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
        for oldest in list(self.exit_codes)[: len(self.exit_codes) - _MAX_EXIT_CODES]:
            del self.exit_codes[oldest]


def _fork_keeper(start: KeeperStart, descriptors: list[int], children: Children) -> bytes:
    """Fork a keeper; return its pid once `ps` shows its arguments, or nothing if it fails before that."""
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
        # As `python -m` does, look for modules in the working directory first.
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
    """Replace the arguments of this process that other processes see: its memory from arg_start to arg_end, proc(5)."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    packed = b"\0".join(arguments) + b"\0"
    if not 0 < len(packed) <= end - start:
        raise OSError(f"{len(packed)} bytes of arguments do not fit between {start} and {end}")
    ctypes.memmove(start, packed.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
