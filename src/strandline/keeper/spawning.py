"""Starts keepers as forks of a nursery (`nursery.py`), or as programs."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from strandline.keeper.watchdog import process_start

_ANSWER_S = 30.0
_LOOK_S = 0.01
_PADDING = " " * (1 << 14)
"""An argument of the nursery, which its keepers overwrite with theirs: more than twice the longest path."""
MESSAGE_BYTES = 1 << 17
"""The longest message that every socket takes. A larger environment needs a keeper started as a program."""
_STARTUP_VARIABLES = (
    "PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "MIMALLOC_", "JE_", "OMP_", "OPENBLAS_", "MKL_", "NPY_",
    "ARROW_",
)  # fmt: skip
"""Prefixes of variables that Python and a keeper's libraries read when they start: a fork cannot change them."""


class Beat(msgspec.Struct, frozen=True):
    """The address to which an executor's nursery sends heartbeats, as long as it has keepers, and their content."""

    host: str
    port: int
    """0: it sends none."""
    token: str
    """Known to the driver's executors alone; one for each attempt."""
    name: str = ""
    """The first keeper that the nursery started in the attempt: the driver knows its executor."""


class KeeperStart(msgspec.Struct, frozen=True):
    """A request to fork a keeper, with the attributes of a process."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes
    log: bytes
    umask: int
    beat: Beat | None = None


class Nursery:
    """The driver's end of the nursery, one for all jobs and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._start_key: tuple[int, dict[str, str]] | None = None

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> int | None:
        """Start a keeper; return its pid, or None if the nursery cannot start it."""
        if (request := _request(arguments, log, environment)) is None:
            return None
        # The pid: a fork of the driver would share the channel, and needs its own nursery.
        key = os.getpid(), {name: environment[name] for name in environment if name.startswith(_STARTUP_VARIABLES)}
        with self._lock:
            if self._channel is not None and self._start_key == key and (pid := self._request_start(request)):
                return pid
            # There is no nursery, or it has ended.
            if self._start_key is None:
                # Python reports sockets that it finds open at its end.
                atexit.register(self._close)
            self._open(log, environment)
            self._start_key = key
            return self._request_start(request)

    def exit_code(self, pid: int) -> int | None:
        """Return a keeper's exit code, or the negative number of its signal; None if it is alive, or unknown."""
        with self._lock:
            # The nursery may belong to the process that forked this one.
            if self._channel is None or self._start_key is None or self._start_key[0] != os.getpid():
                return None
            answer = self._exchange(msgspec.msgpack.encode(pid)).strip()
        return int(answer) if answer else None

    @contextlib.contextmanager
    def paused(self, timeout_s: float) -> Iterator[None]:
        """Prevent starts of keepers inside the block; wait up to `timeout_s` for one in progress."""
        is_locked = self._lock.acquire(timeout=timeout_s)
        try:
            yield
        finally:
            if is_locked:
                self._lock.release()

    def close(self) -> None:
        """End the nursery; the next start opens another."""
        with self._lock:
            self._close()

    def _open(self, log: Path, environment: Mapping[str, str]) -> None:
        self._close()
        driver_end, nursery_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        driver_end.settimeout(_ANSWER_S)
        with nursery_end:
            arguments = [str(nursery_end.fileno()), str(os.getpid()), _PADDING]
            start_program("strandline.keeper.nursery", arguments, log, environment, [nursery_end.fileno()])
        self._channel = driver_end

    def _request_start(self, request: bytes) -> int | None:
        pid = int(self._exchange(request) or 0)
        if not pid:
            self._close()
        return pid or None

    def _exchange(self, message: bytes) -> bytes:
        """Send a message and return the nursery's answer; empty if the nursery has ended."""
        assert self._channel is not None
        try:
            self._channel.send(message)
            return self._channel.recv(MESSAGE_BYTES)
        except OSError:
            return b""

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def start_beside(
    path: Path, watched_pid: int, arguments: Sequence[str], log: Path, environment: Mapping[str, str], beat: Beat
) -> int:
    """Start a keeper as a fork of the nursery that listens at a path, or as a program; return its pid.

    Starts the nursery if there is none. It ends with the process `watched_pid`.
    """
    if (request := _request(arguments, log, environment, beat)) is not None:
        if pid := _ask_at(path, request):
            return pid
        nursery = start_program("strandline.keeper.nursery", [str(path), str(watched_pid), _PADDING], log, environment)
        deadline = time.monotonic() + _ANSWER_S
        while process_start(nursery) and time.monotonic() < deadline:
            if pid := _ask_at(path, request):
                return pid
            time.sleep(_LOOK_S)
    return start_program("strandline.keeper.process", arguments, log, environment)


def _ask_at(path: Path, request: bytes) -> int:
    """Return the pid of the keeper that the nursery at a path has started; 0 if there is no nursery, or it cannot."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel, contextlib.suppress(OSError):
        channel.settimeout(_ANSWER_S)
        channel.connect(str(path))
        channel.send(request)
        return int(channel.recv(MESSAGE_BYTES) or 0)
    return 0


def _request(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], beat: Beat | None = None
) -> bytes | None:
    """Return the message by which a nursery starts a keeper; None if it would be too long."""
    encoded = [os.fsencode(argument) for argument in arguments]
    variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    start = KeeperStart(encoded, variables, _working_directory(), os.fsencode(log), _umask(), beat)
    request = msgspec.msgpack.encode(start)
    is_too_long = len(request) > MESSAGE_BYTES or sum(len(argument) + 1 for argument in encoded) > len(_PADDING)
    return None if is_too_long else request


def _working_directory() -> bytes:
    try:
        return os.fsencode(Path.cwd())
    except OSError:
        return b"/"


def _umask() -> int:
    """Return the umask without setting it, which would affect other threads."""
    status = Path("/proc/self/status").read_text(errors="replace")
    return next((int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:")), 0o022)


def start_program(
    module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str], keep_open: Sequence[int] = ()
) -> int:
    """Start a module whose output goes to a log, with the descriptors `keep_open`; return its pid.

    A shell that ends at once starts it, so that the caller, which may be a Spark worker, has no child to wait for.
    """
    program = shlex.join([sys.executable, "-m", module, *arguments])
    started = subprocess.run(
        ["/bin/sh", "-c", f"{program} >>{shlex.quote(str(log))} 2>&1 </dev/null & echo $!"],
        start_new_session=True, env=environment, capture_output=True, check=True, pass_fds=keep_open,
    )  # fmt: skip
    return int(started.stdout)


NURSERY = Nursery()
"""The nursery of this process."""
