"""Client of the drivers on this machine: finds running jobs and sends them requests, without Spark."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from strandline.control.commands import Command
from strandline.control.journal import records
from strandline.control.wire import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    Answer,
    Hello,
    ProgressMessage,
    Refusal,
    Request,
    Result,
    is_our_user,
    line,
    peer,
    raw,
    version_error,
)
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError, UnavailableError
from strandline.core.failure import from_failure
from strandline.core.urls import check_url
from strandline.core.version import VERSION
from strandline.keeper.paths import run_sockets
from strandline.storage.remote import remote_url

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")

MAX_SILENCE_S = 15.0
"""How long a driver may be silent. While it works on a request, it sends a line each second."""
_FIND_TIMEOUT_S = 5.0
_PAUSE_S = 0.01
_MAX_HELLO_BYTES = 64 << 10


@dataclass(frozen=True)
class Driver:
    """A driver whose job runs on this machine."""

    socket: Path
    pid: int
    engine: str = ""
    """Its version; empty if it does not answer, and then `job` and `directory` are empty, too."""
    job: str = ""
    directory: str = ""
    """The job's checkpoint directory, as a url."""
    since_ms: int = 0

    @property
    def answers(self) -> bool:
        """Whether it has sent its Hello."""
        return bool(self.engine)


def find_drivers(local_dir: Path, timeout_s: float = _FIND_TIMEOUT_S) -> list[Driver]:
    """Return the drivers of our user whose jobs have this local_dir, by job; those that do not answer come last.

    Sockets of killed drivers are ignored. Takes `timeout_s` if a driver does not answer.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as open_:
        connected = []
        # Connect to all before waiting for the first Hello.
        for path in run_sockets(local_dir):
            with contextlib.suppress(OSError):
                connected.append((path, open_.enter_context(_connect(path, timeout_s))))
        identities = [_identify(path, sock, deadline) for path, sock in connected]
    drivers = [driver for driver in identities if driver is not None]
    return sorted(drivers, key=lambda driver: (not driver.answers, driver.job, driver.directory, driver.since_ms))


def find_driver(local_dir: Path, job: str, directory: str | None = None, timeout_s: float = _FIND_TIMEOUT_S) -> Driver:
    """Return the driver of a job. `directory`, its checkpoint directory, tells jobs of one name apart.

    If an older driver of the same job has not yet noticed that it was replaced, return the newer one. Raises
    NotFoundError if there is none, and ConfigurationError if several jobs match.
    """
    drivers = find_drivers(local_dir, timeout_s)
    matches = [driver for driver in drivers if driver.job == job and is_directory(driver.directory, directory)]
    if not matches:
        raise _not_found(local_dir, job, directory, drivers)
    directories = sorted({driver.directory for driver in matches})
    if len(directories) > 1:
        raise ConfigurationError(
            f"{len(directories)} jobs with the name '{job}' run on this machine, with the checkpoint directories "
            f"{', '.join(directories)}",
            hint="say which one with --directory",
        )
    return max(matches, key=lambda driver: driver.since_ms)


def call(
    driver: Driver,
    command: Command[A, R],
    arguments: A,
    *,
    on_progress: Callable[[ProgressMessage], object] = lambda _: None,
    silence_s: float = MAX_SILENCE_S,
    timeout_s: float = float("inf"),
) -> R:
    """Send a command to a driver, and wait for the result while the driver reports progress, for at most `timeout_s`.

    Raises the driver's error; UnavailableError if it does not answer, or ends before it does; and ConfigurationError
    if it is of another version. Interrupting the call does not cancel the command.
    """
    request = line(Request(command=command.name, arguments=raw(arguments)))
    if len(request) > MAX_REQUEST_BYTES:
        raise ConfigurationError(
            f"'{command.name}': a request of {len(request)} bytes, and a driver takes {MAX_REQUEST_BYTES} at most",
            hint="ask for less at once",
        )
    deadline = time.monotonic() + timeout_s
    for answer in _answers(driver, request, silence_s):
        if isinstance(answer, Refusal):
            raise from_failure(answer.failure)
        if isinstance(answer, Result):
            result: R = _decode(driver, answer.value, command.result)
            return result
        on_progress(answer)
        if time.monotonic() > deadline:
            raise _timeout_error(driver, timeout_s)
    raise UnavailableError(
        f"the driver of job '{driver.job}' (process {driver.pid}) ended before it answered to '{command.name}'",
        hint="`strandline jobs` shows what runs, `strandline snapshots list` what it has left",
    )


def _answers(driver: Driver, request: bytes, silence_s: float) -> Iterator[Answer]:
    """Send a request, and yield the driver's answers until it closes the connection."""
    try:
        with _connect(driver.socket, silence_s) as sock, sock.makefile("rb") as lines:
            if greeting := lines.readline(_MAX_HELLO_BYTES):
                hello: Hello = _decode(driver, greeting, Hello)
                if hello.engine != VERSION:
                    raise version_error(VERSION, hello.engine)
            sock.sendall(request)
            while answer := lines.readline(MAX_ANSWER_BYTES):
                yield _decode(driver, answer, Answer)
    except (TimeoutError, BlockingIOError):
        raise _timeout_error(driver, silence_s) from None
    except (FileNotFoundError, ConnectionError):
        return  # The driver ended before or during the request.


def _decode(driver: Driver, message: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(message, type=kind)
    except msgspec.DecodeError as error:
        raise StrandlineError(
            f"the driver of job '{driver.job}' (process {driver.pid}) answers in no known way: {error}",
            hint="use the `strandline` command of the environment that the job runs in",
        ) from None


def _timeout_error(driver: Driver, after_s: float) -> UnavailableError:
    return UnavailableError(
        f"the driver of job '{driver.job}' (process {driver.pid}) has not answered within {after_s:g} s",
        hint="its machine may be overloaded, or the process stopped: `ps` shows its state",
    )


@contextlib.contextmanager
def _connect(path: Path, timeout_s: float) -> Iterator[socket.socket]:
    """Connect to a process of our own user."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                sock.connect(str(path))
                break
            except BlockingIOError:
                # The driver's queue of new connections is full.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
        if not is_our_user(sock):
            raise PermissionError(f"{path} is another user's")
        yield sock


def _identify(path: Path, sock: socket.socket, deadline: float) -> Driver | None:
    """Return the driver that has sent its Hello over a connection; None if it has closed it."""
    pid, _ = peer(sock)
    # A Hello that has arrived is read even after the deadline.
    sock.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        with sock.makefile("rb") as lines:
            greeting = lines.readline(_MAX_HELLO_BYTES)
        if not greeting:
            return None
        hello = msgspec.json.decode(greeting, type=Hello)
    except TimeoutError:
        return Driver(path, pid)
    except (OSError, msgspec.DecodeError):
        return None
    return Driver(path, pid, hello.engine, hello.job, hello.directory, hello.since_ms)


def is_directory(url: str, wanted: str | None) -> bool:
    """Whether a job's checkpoint directory is the wanted one, which may be written otherwise; None: any is."""
    return wanted is None or _as_url(url) == _as_url(wanted)


def _as_url(directory: str) -> str:
    """Return a checkpoint directory as a url; of a local one, without links and `..`."""
    parts = urlsplit(check_url(directory))
    if "://" not in directory or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme == "file" else directory)
        return path.expanduser().resolve().as_uri()
    return remote_url(directory)


def _not_found(local_dir: Path, job: str, directory: str | None, drivers: Sequence[Driver]) -> NotFoundError:
    others = sorted({f"'{driver.job}' ({driver.directory})" for driver in drivers if driver.answers})
    silent = [str(driver.pid) for driver in drivers if not driver.answers]
    of = f" with the checkpoint directory {_as_url(directory)}" if directory is not None else ""
    no_answer = f"; process {', '.join(silent)} listens there and does not answer" if silent else ""
    ended = any(record.fate and is_directory(record.directory, directory) for record in records(local_dir, job))
    fate = f"what became of it: `strandline status {quote(job)}`; " if ended else ""
    return NotFoundError(
        f"{local_dir}: no driver of job '{job}'{of} runs on this machine{no_answer}",
        hint=fate
        + (
            f"what runs is {', '.join(others)}"
            if others
            else "give the job's Settings.local_dir with --local-dir; ask on its driver's machine, as its driver's user"
        ),
    )
