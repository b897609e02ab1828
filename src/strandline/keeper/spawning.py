"""Starting keepers: as forks of a nursery (`nursery.py`), or each as a program of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

_ANSWER_S = 30.0
_ROOM = " " * (1 << 14)
"""An argument of the nursery's, in whose place its keepers' arguments are written: twice the longest path and more."""
MESSAGE_BYTES = 1 << 17
"""What is longer, sockets may not take: an environment of hundreds of kilobytes."""
_READ_AT_START = (
    "PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "MIMALLOC_", "JE_", "OMP_", "OPENBLAS_", "MKL_", "NPY_",
    "ARROW_",
)  # fmt: skip
"""What Python and the libraries of a keeper read of their environment once: forks cannot be given another."""


class Birth(msgspec.Struct, frozen=True):
    """What a keeper is to be, as if it had been started as a program."""

    arguments: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes
    log: bytes
    umask: int


class Nursery:
    """The driver's end: one for all jobs and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._made_for: tuple[int, dict[str, str]] | None = None

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> int | None:
        """Start a keeper; return its pid, or None if it has to be started otherwise."""
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        birth = msgspec.msgpack.encode(
            Birth(list(map(os.fsencode, arguments)), encoded, _working_directory(), os.fsencode(log), _umask())
        )
        if len(birth) > MESSAGE_BYTES or sum(len(os.fsencode(argument)) + 1 for argument in arguments) > len(_ROOM):
            return None
        # A fork of the driver would share its channel with it.
        made_for = os.getpid(), {name: environment[name] for name in environment if name.startswith(_READ_AT_START)}
        with self._lock:
            if self._channel is not None and self._made_for == made_for and (pid := self._ask(birth)):
                return pid
            # There was none, or it has ended meanwhile.
            self._open(log, environment)
            self._made_for = made_for
            return self._ask(birth)

    def ended(self, pid: int) -> int | None:
        """Return a keeper's exit code, or the signal that ended it, negative; None if it is alive, or nobody knows."""
        with self._lock:
            # The nursery may be that of another process, from which this one was forked.
            if self._channel is None or self._made_for is None or self._made_for[0] != os.getpid():
                return None
            answer = self._answer(msgspec.msgpack.encode(pid)).strip()
        return int(answer) if answer else None

    @contextlib.contextmanager
    def at_rest(self, patience_s: float) -> Iterator[None]:
        """Meanwhile no keeper is being started that does not yet have its name, unless that takes too long."""
        taken = self._lock.acquire(timeout=patience_s)
        try:
            yield
        finally:
            if taken:
                self._lock.release()

    def close(self) -> None:
        """End the nursery; the next keeper begins another."""
        with self._lock:
            self._close()

    def _open(self, log: Path, environment: Mapping[str, str]) -> None:
        self._close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_S)
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), _ROOM]
            start_program("strandline.keeper.nursery", arguments, log, environment, [theirs.fileno()])
        self._channel = ours

    def _ask(self, birth: bytes) -> int | None:
        pid = int(self._answer(birth) or 0)
        if not pid:
            self._close()
        return pid or None

    def _answer(self, message: bytes) -> bytes:
        """Return what the nursery says; nothing if it is gone."""
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


def _working_directory() -> bytes:
    try:
        return os.fsencode(Path.cwd())
    except OSError:
        return b"/"


def _umask() -> int:
    """Return what this process' new files are closed to, without setting it, which other threads would see."""
    status = Path("/proc/self/status").read_text(errors="replace")
    return next((int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:")), 0o022)


def start_program(
    module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str], keep: Sequence[int] = ()
) -> int:
    """Start a module whose output goes to a log, with these files kept open; return its pid.

    Through a shell that ends at once, so that whoever starts it, a worker of Spark's perhaps, has no child to wait for.
    """
    program = shlex.join([sys.executable, "-m", module, *arguments])
    started = subprocess.run(
        ["/bin/sh", "-c", f"{program} >>{shlex.quote(str(log))} 2>&1 </dev/null & echo $!"],
        start_new_session=True, env=environment, capture_output=True, check=True, pass_fds=keep,
    )  # fmt: skip
    return int(started.stdout)


NURSERY = Nursery()
"""All keepers that this process starts come of one nursery."""
