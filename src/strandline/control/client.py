"""How running jobs of this machine are found and asked for something, without Spark."""

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
    MOST_ANSWER_BYTES,
    MOST_REQUEST_BYTES,
    Answer,
    Hello,
    ProgressMessage,
    Refused,
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

PATIENCE_S = 15.0
"""How long a driver may be silent. One that works on a request says so each second."""
_FIND_S = 5.0
_PAUSE_S = 0.01
_LONGEST_HELLO_BYTES = 64 << 10


@dataclass(frozen=True)
class Driver:
    """A driver that has a job running on this machine."""

    socket: Path
    pid: int
    engine: str = ""
    """Its version; empty if it does not answer, and then nothing else is known of it."""
    job: str = ""
    directory: str = ""
    """The job's checkpoint directory, as a url."""
    since_ms: int = 0

    @property
    def answers(self) -> bool:
        """Whether it has said who it is."""
        return bool(self.engine)


def find_drivers(local_dir: Path, timeout_s: float = _FIND_S) -> list[Driver]:
    """Return the drivers of our user whose jobs have this local_dir, by job; those that do not answer come last.

    What killed drivers left is passed over. Takes as long as `timeout_s` if a driver does not answer.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as open_:
        connected = []
        # All are asked before the first is waited for.
        for path in run_sockets(local_dir):
            with contextlib.suppress(OSError):
                connected.append((path, open_.enter_context(_connected(path, timeout_s))))
        found = [_identified(path, sock, deadline) for path, sock in connected]
    drivers = [driver for driver in found if driver is not None]
    return sorted(drivers, key=lambda driver: (not driver.answers, driver.job, driver.directory, driver.since_ms))


def find_driver(local_dir: Path, job: str, directory: str | None = None, timeout_s: float = _FIND_S) -> Driver:
    """Return the driver of a job; of its checkpoint directory, where several jobs have its name.

    Where an older driver of the same job has not noticed yet that it was replaced, the newer one is returned. Raises
    NotFoundError if there is none, and ConfigurationError if there are several.
    """
    drivers = find_drivers(local_dir, timeout_s)
    url = None if directory is None else as_url(directory)
    found = [driver for driver in drivers if driver.job == job and url in (None, driver.directory)]
    if not found:
        raise _none(local_dir, job, url, drivers)
    directories = sorted({driver.directory for driver in found})
    if len(directories) > 1:
        raise ConfigurationError(
            f"{len(directories)} jobs with the name '{job}' run on this machine, with the checkpoint directories "
            f"{', '.join(directories)}",
            hint="say which one with --directory",
        )
    return max(found, key=lambda driver: driver.since_ms)


def call(
    driver: Driver,
    command: Command[A, R],
    arguments: A,
    *,
    on_progress: Callable[[ProgressMessage], object] = lambda _: None,
    patience_s: float = PATIENCE_S,
    timeout_s: float = float("inf"),
) -> R:
    """Ask a driver for something, and wait for it as long as the driver says that it works on it, or for `timeout_s`.

    Raises what the driver raised; UnavailableError if it does not answer, or ends before it has, and
    ConfigurationError if it is of another version. Whoever is interrupted takes nothing back.
    """
    request = line(Request(command=command.name, arguments=raw(arguments)))
    if len(request) > MOST_REQUEST_BYTES:
        raise ConfigurationError(
            f"'{command.name}': a request of {len(request)} bytes, and a driver takes {MOST_REQUEST_BYTES} at most",
            hint="ask for less at once",
        )
    deadline = time.monotonic() + timeout_s
    for answer in _answers(driver, request, patience_s):
        if isinstance(answer, Refused):
            raise from_failure(answer.failure)
        if isinstance(answer, Result):
            result: R = _understood(driver, answer.value, command.result)
            return result
        on_progress(answer)
        if time.monotonic() > deadline:
            raise _late(driver, timeout_s)
    raise UnavailableError(
        f"the driver of job '{driver.job}' (process {driver.pid}) ended before it answered to '{command.name}'",
        hint="`strandline jobs` shows what runs, `strandline checkpoints list` what it has left",
    )


def _answers(driver: Driver, request: bytes, patience_s: float) -> Iterator[Answer]:
    """Send a request, and yield what comes back until the driver has nothing more to say."""
    try:
        with _connected(driver.socket, patience_s) as sock, sock.makefile("rb") as lines:
            if said := lines.readline(_LONGEST_HELLO_BYTES):
                hello: Hello = _understood(driver, said, Hello)
                if hello.engine != VERSION:
                    raise version_error(VERSION, hello.engine)
            sock.sendall(request)
            while answer := lines.readline(MOST_ANSWER_BYTES):
                yield _understood(driver, answer, Answer)
    except (TimeoutError, BlockingIOError):
        raise _late(driver, patience_s) from None
    except (FileNotFoundError, ConnectionError):
        return  # It has ended since it was found, or while it worked.


def _understood(driver: Driver, said: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(said, type=kind)
    except msgspec.DecodeError as error:
        raise StrandlineError(
            f"the driver of job '{driver.job}' (process {driver.pid}) answers in no known way: {error}",
            hint="use the `strandline` command of the environment that the job runs in",
        ) from None


def _late(driver: Driver, after_s: float) -> UnavailableError:
    return UnavailableError(
        f"the driver of job '{driver.job}' (process {driver.pid}) has not answered within {after_s:g} s",
        hint="its machine may be overloaded, or the process stopped: `ps` shows its state",
    )


@contextlib.contextmanager
def _connected(path: Path, timeout_s: float) -> Iterator[socket.socket]:
    """Connect to a process of our own user."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                sock.connect(str(path))
                break
            except BlockingIOError:
                # Many others are being heard at this moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
        if not is_our_user(sock):
            raise PermissionError(f"{path} is another user's")
        yield sock


def _identified(path: Path, sock: socket.socket, deadline: float) -> Driver | None:
    """Hear who somebody is; None if he has gone."""
    pid, _ = peer(sock)
    # What has come already is read even if time is up.
    sock.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        with sock.makefile("rb") as lines:
            said = lines.readline(_LONGEST_HELLO_BYTES)
        if not said:
            return None
        hello = msgspec.json.decode(said, type=Hello)
    except TimeoutError:
        return Driver(path, pid)
    except (OSError, msgspec.DecodeError):
        return None
    return Driver(path, pid, hello.engine, hello.job, hello.directory, hello.since_ms)


def as_url(directory: str) -> str:
    """Return a checkpoint directory as drivers name it."""
    parts = urlsplit(check_url(directory))
    if "://" not in directory or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme == "file" else directory)
        return path.expanduser().absolute().as_uri()
    return remote_url(directory)


def _none(local_dir: Path, job: str, url: str | None, drivers: Sequence[Driver]) -> NotFoundError:
    others = sorted({f"'{driver.job}' ({driver.directory})" for driver in drivers if driver.answers})
    silent = [str(driver.pid) for driver in drivers if not driver.answers]
    of = f" with the checkpoint directory {url}" if url is not None else ""
    says_nothing = f"; process {', '.join(silent)} listens there and does not answer" if silent else ""
    ended = any(record.fate and url in (None, record.directory) for record in records(local_dir, job))
    fate = f"what became of it: `strandline status {quote(job)}`; " if ended else ""
    return NotFoundError(
        f"{local_dir}: no driver of job '{job}'{of} runs on this machine{says_nothing}",
        hint=fate
        + (
            f"what runs is {', '.join(others)}"
            if others
            else "give the job's Settings.local_dir with --local-dir; ask on its driver's machine, as its driver's user"
        ),
    )
