"""The keeper: a long-lived process that owns one operator partition. Started by whoever needs it first.

    python -m strandline.keeper.process SOCKET STATE_DIR WATCHED_PID WATCHED_START GENERATION

The main thread runs epochs, one after the other. Each connection is read by a thread of its own, which answers polls
and stops itself and hands epochs to the main thread.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import resource
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import KeeperError, StrandlineError, discreet
from strandline.core.failure import shortened, to_failure, whole
from strandline.core.ids import Generation
from strandline.keeper import protocol as p
from strandline.keeper.forks import Unshared
from strandline.keeper.gil_interval import Hurry
from strandline.keeper.lean import defer_pandas
from strandline.keeper.lock import PartitionLock
from strandline.keeper.protocol import Begin, Connection, Instructions, Lookup
from strandline.keeper.service import PartitionService
from strandline.keeper.watchdog import Watchdog

log = logging.getLogger("strandline.keeper")

_FIRST_LEASE_MS = 60_000
_COLLECTION_S = 60.0
_CLOSE_S = 5.0
_ACCEPT_PAUSE_S = 0.1
_SOON_S = 0.02


class Keeper:
    """The process: its lock, its socket, whoever talks to it, and its end. What it does is its service's."""

    def __init__(
        self, socket_path: Path, directory: Path, watched_pid: int, watched_start: str, generation: Generation
    ) -> None:
        self._socket_path = socket_path
        self._directory = directory
        self._unshared = Unshared(_bound_name(socket_path))
        self._lock = PartitionLock(directory, generation, self._unshared)
        self._service = PartitionService(directory)
        self._work: queue.SimpleQueue[tuple[Connection, int, pa.Buffer]] = queue.SimpleQueue()
        self._serving: Connection | None = None
        self._hurry = Hurry()
        self._watchdog = Watchdog(watched_pid, watched_start, _FIRST_LEASE_MS, self._end)
        self._collected = time.monotonic()
        self._collect_due = False

    def run(self) -> None:
        """Serve until the process ends."""
        self._lock.take()
        listener = socket.socket(socket.AF_UNIX)
        self._unshared.add(listener)
        self._socket_path.unlink(missing_ok=True)
        # Bound under another name first: whoever finds the socket can connect to it.
        hidden = _bound_name(self._socket_path)
        hidden.unlink(missing_ok=True)
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen(16)
        hidden.rename(self._socket_path)
        self._watchdog.start()
        threading.Thread(target=self._accept, args=(listener,), name="strandline-accept", daemon=True).start()
        gc.disable()
        while True:
            try:
                connection, kind, payload = self._work.get(timeout=0.05 if self._collect_due else None)
            except queue.Empty:
                self._collect_garbage()
                continue
            self._converse(connection, kind, payload)

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
                self._unshared.add(sock)
                # The user's function may have set a time-out for every new one.
                sock.settimeout(None)
                connection = Connection(sock)
                connection.check_peer(self._socket_path)
            except KeeperError as error:
                log.error("a connection was refused: %s", error.message)
                continue
            except OSError as error:
                # Out of files, perhaps, which passes; without this thread nobody could talk to the keeper again.
                log.error("a connection could not be accepted: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            self._hurry.begin()
            try:
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()
            except RuntimeError as error:
                self._hurry.end()
                # Out of threads: likewise. Whoever has connected hears that nobody is there for him.
                log.error("a connection could not be read: %s", error)
                connection.close()
                time.sleep(_ACCEPT_PAUSE_S)

    def _receive(self, connection: Connection) -> None:
        try:
            try:
                # Who says nothing at once is in no hurry.
                is_coming = connection.is_coming(_SOON_S)
                heard = self._hear(connection) if is_coming else None
            finally:
                self._hurry.end()
            if not is_coming:
                heard = self._hear(connection)
            if heard is not None:
                self._hand_over(connection, *heard)
        except (KeeperError, OSError):
            connection.close()

    def _hear(self, connection: Connection) -> tuple[int, pa.Buffer] | None:
        """Return what somebody wants of the main thread; None if he has his answer."""
        kind, payload = connection.expect(p.BEGIN, p.POLL, p.STOP, p.PING, p.LOOKUP)
        self._watchdog.renew()
        if kind == p.PING:
            connection.send(p.ACK, self._service.identify())
        elif kind != p.LOOKUP or not self._look_up(connection, payload):
            return kind, payload
        connection.close()
        return None

    def _hand_over(self, connection: Connection, kind: int, payload: pa.Buffer) -> None:
        serving = self._serving
        if kind in (p.BEGIN, p.STOP) and serving is not None:
            # Spark runs the task again: the attempt before it is dead, though its connection may not know yet.
            serving.close()
        self._work.put((connection, kind, payload))
        if kind == p.STOP:
            # The main thread is in the user's function, perhaps for ever: it is not waited for beyond this.
            time.sleep(_CLOSE_S)
            self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))

    def _look_up(self, connection: Connection, payload: pa.Buffer) -> bool:
        """Answer at once; return False if that is only possible between epochs."""
        try:
            found = self._service.look_up(msgspec.msgpack.decode(payload, type=Lookup))
        except Exception as error:
            if not isinstance(error, StrandlineError):
                self._log_whole("a look-up failed", error)
                error = _failed("the look-up", error)
            connection.send(p.FAILED, to_failure(error))
            return True
        if found is not None:
            connection.send(p.FOUND, found)
        return found is not None

    def _converse(self, connection: Connection, kind: int, payload: pa.Buffer) -> None:
        self._serving = connection if kind == p.BEGIN else None
        self._watchdog.hold()
        try:
            if kind == p.BEGIN:
                self._service.begin(connection, msgspec.msgpack.decode(payload, type=Begin))
                self._collect_due = True
            elif kind == p.STOP:
                self._service.close_function()
                self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))
            elif kind == p.LOOKUP:
                self._look_up(connection, payload)
            else:
                self._service.poll(connection, msgspec.msgpack.decode(payload, type=Instructions))
        except (KeeperError, OSError) as error:
            log.warning("epoch given up at version %d: %s", self._service.version, self._logged(error))
        except StrandlineError as error:
            self._say_failed(connection, error)
        except Exception as error:
            self._log_whole("internal error", error)
            self._say_failed(connection, _failed(self._service.at_work, error))
        finally:
            self._serving = None
            connection.close()
            if (lease_ms := self._service.lease_ms) is not None:
                self._watchdog.lease_ms = lease_ms
            self._watchdog.release()

    def _logged(self, error: BaseException) -> str:
        """Return what the log may have of an error: it is no place for keys and events, unless somebody says so."""
        return str(error) if self._service.log_values else discreet(error)

    def _log_whole(self, what: str, error: Exception) -> None:
        log.error("%s", whole(what, error, with_values=self._service.log_values))

    def _say_failed(self, connection: Connection, error: StrandlineError) -> None:
        log.error("%s", self._logged(error))
        try:
            connection.send(p.FAILED, to_failure(error))
        except OSError:
            pass

    # -- life and death

    def _stop(self, connection: Connection, instructions: Instructions) -> None:
        """End because the driver says so. The ack is the last thing it hears, and it does not wait for more."""
        ack = self._service.identify()
        self._clear(everything=instructions.forget)
        # Before the ack: whoever hears it may end this process at once.
        log.info("ending: the job was stopped")
        try:
            connection.send(p.ACK, ack)
        except OSError:
            pass
        self._exit()

    def _clear(self, *, everything: bool) -> None:
        """Working state dies with its keeper; the copy of the last checkpoint speeds up the next one."""
        self._socket_path.unlink(missing_ok=True)
        if not self._lock.is_held:
            # Removed already: what is there now is another keeper's.
            return
        # Twice, since background threads may have added a file meanwhile.
        for _ in range(2):
            for path in list(self._directory.glob("*" if everything else "db-*")):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
        if everything:
            # The lock last, and nothing after it: the next keeper that finds none may be at work at once.
            self._lock.remove()

    def _end(self, reason: str) -> None:
        log.info("ending: %s", reason)
        self._exit()

    def _exit(self) -> None:
        self._clear(everything=False)
        logging.shutdown()
        os._exit(0)

    def _collect_garbage(self) -> None:
        """Between epochs, and seldom: a collection walks the whole cache. Most objects are freed without one."""
        self._collect_due = False
        if time.monotonic() - self._collected > _COLLECTION_S:
            gc.collect()
            self._collected = time.monotonic()


def _failed(who: str, error: Exception) -> KeeperError:
    if isinstance(error, MemoryError):
        return KeeperError(
            f"{who} ran out of memory{f': {error}' if str(error) else ''}",
            hint="lower state_memory in Settings, have functions hold less, or give the machine or container more",
        )
    return KeeperError(
        f"{who} failed: {type(error).__name__}: {shortened(str(error))}",
        discreet=f"{who} failed: {discreet(error)}",
    )


def _bound_name(socket_path: Path) -> Path:
    return socket_path.with_suffix(".tmp")


class Zoned(logging.Formatter):
    """Times in ISO 8601 with their offset: logs of several machines are read side by side."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def serve(arguments: Sequence[str]) -> None:
    """Run a keeper until it is not needed any more."""
    socket_path, directory, watched_pid, watched_start, generation = arguments
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Zoned("%(asctime)s %(process)d %(levelname)s %(message)s"))
    # What crashes in native code leaves a stack in the log.
    faulthandler.enable()
    failpoints.arm_from_environment()
    defer_pandas()
    # RocksDB keeps its files open where it may: closing and opening them again costs reads.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A keyboard interrupt is for the driver; the keeper ends when its executor does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(Path(socket_path), Path(directory), int(watched_pid), watched_start, Generation(int(generation)))
    try:
        keeper.run()
    except KeeperError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    serve(sys.argv[1:6])
