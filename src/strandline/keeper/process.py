"""The keeper: a long-lived process that owns one operator partition. The first Spark task that needs it starts it.

    python -m strandline.keeper.process SOCKET STATE_DIR WATCHED_PID WATCHED_START GENERATION

The main thread runs epochs, answers polls and stops the process, one request after the other. Each connection has a
thread that reads the request, answers pings and look-ups, and passes other requests to the main thread.
"""

from __future__ import annotations

import _thread
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
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import KeeperError, StrandlineError, discreet
from strandline.core.failure import format_error, shortened, to_failure
from strandline.core.ids import Generation
from strandline.keeper import protocol as p
from strandline.keeper.forks import CloseOnFork
from strandline.keeper.gil_interval import SwitchInterval
from strandline.keeper.lean import defer_pandas
from strandline.keeper.lock import PartitionLock
from strandline.keeper.protocol import Begin, Connection, Instructions, Lookup, Profile, ProfileAnswer
from strandline.keeper.sampling import Sampler
from strandline.keeper.service import PartitionService
from strandline.keeper.watchdog import Watchdog
from strandline.runtime.task.usererrors import refuse_breakpoint

log = logging.getLogger("strandline.keeper")

_FIRST_LEASE_MS = 60_000
_COLLECTION_S = 60.0
_CLOSE_S = 5.0
_ACCEPT_PAUSE_S = 0.1
_REQUEST_WAIT_S = 0.02
_REST_S = 0.05


class Keeper:
    """The process: its lock, its socket, its connections and its end. `PartitionService` processes the requests."""

    def __init__(
        self, socket_path: Path, directory: Path, watched_pid: int, watched_start: str, generation: Generation
    ) -> None:
        self._socket_path = socket_path
        self._directory = directory
        self._close_on_fork = CloseOnFork(_temporary_name(socket_path))
        self._lock = PartitionLock(directory, generation, self._close_on_fork)
        self._service = PartitionService(directory)
        self._work: queue.SimpleQueue[tuple[Connection, int, pa.Buffer]] = queue.SimpleQueue()
        self._epoch_connection: Connection | None = None
        self._sampler = Sampler()
        self._switch_interval = SwitchInterval()
        self._watchdog = Watchdog(watched_pid, watched_start, _FIRST_LEASE_MS, self._end)
        self._collected_at = time.monotonic()
        self._is_restless = False
        """Whether something is to be done before a wait for the next request that may be long."""

    def run(self) -> None:
        """Serve until the process ends."""
        self._lock.take()
        listener = socket.socket(socket.AF_UNIX)
        self._close_on_fork.add(listener)
        self._socket_path.unlink(missing_ok=True)
        # Rename the socket once it listens: tasks can connect as soon as it has its name.
        temporary = _temporary_name(self._socket_path)
        temporary.unlink(missing_ok=True)
        listener.bind(str(temporary))
        temporary.chmod(0o600)
        listener.listen(16)
        temporary.rename(self._socket_path)
        self._watchdog.start()
        threading.Thread(target=self._accept, args=(listener,), name="strandline-accept", daemon=True).start()
        gc.disable()
        while True:
            try:
                connection, kind, payload = self._work.get(timeout=_REST_S if self._is_restless else None)
            except queue.Empty:
                self._rest()
                continue
            self._answer(connection, kind, payload)

    # -- connections

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
                self._close_on_fork.add(sock)
                # The user's function may have set a default time-out.
                sock.settimeout(None)
                connection = Connection(sock)
                connection.check_peer(self._socket_path)
            except KeeperError as error:
                log.error("a connection was refused: %s", error.message)
                continue
            except (OSError, MemoryError) as error:
                # The process may have no free descriptors or memory for a while. Without this thread, no client could
                # connect.
                log.error("a connection could not be accepted: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            self._switch_interval.shorten()
            try:
                # Thread.start() would wait for ever for a thread that lacks memory to begin (gh-140746 of CPython).
                # This one is dropped then, and so its connection is closed.
                _thread.start_new_thread(self._receive, (connection,))
                del connection, sock
            except (RuntimeError, MemoryError) as error:
                self._switch_interval.restore()
                # The process cannot start threads now: close the connection, so that the client does not wait.
                log.error("a connection could not be read: %s", error)
                connection.close()
                time.sleep(_ACCEPT_PAUSE_S)

    def _receive(self, connection: Connection) -> None:
        try:
            try:
                # Shorten the interval only for a client that sends its request at once.
                is_ready = connection.wait(_REQUEST_WAIT_S)
                request = self._read_request(connection) if is_ready else None
            finally:
                self._switch_interval.restore()
            if not is_ready:
                request = self._read_request(connection)
            if request is not None:
                self._enqueue(connection, *request)
        except (KeeperError, OSError):
            connection.close()

    def _read_request(self, connection: Connection) -> tuple[int, pa.Buffer] | None:
        """Read a request and answer it; return it if only the main thread can answer."""
        kind, payload = connection.expect(p.BEGIN, p.POLL, p.STOP, p.PING, p.LOOKUP, p.PROFILE)
        self._watchdog.renew()
        if kind == p.PING:
            connection.send(p.ACK, self._service.identify())
        elif kind == p.PROFILE:
            self._profile(connection, msgspec.msgpack.decode(payload, type=Profile))
        elif kind != p.LOOKUP or not self._look_up(connection, payload):
            return kind, payload
        connection.close()
        return None

    def _enqueue(self, connection: Connection, kind: int, payload: pa.Buffer) -> None:
        previous = self._epoch_connection
        if kind in (p.BEGIN, p.STOP) and previous is not None:
            # Spark runs the task again: the previous attempt is dead, even if its connection is still open.
            previous.close()
        self._work.put((connection, kind, payload))
        if kind == p.STOP:
            # The main thread may be in the user's function for ever: then this thread stops the process.
            time.sleep(_CLOSE_S)
            self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))

    def _look_up(self, connection: Connection, payload: pa.Buffer) -> bool:
        """Answer a look-up; return False if that is only possible between epochs."""
        try:
            answer = self._service.look_up(msgspec.msgpack.decode(payload, type=Lookup))
        except Exception as error:
            if not isinstance(error, StrandlineError):
                self._log_unexpected("a look-up failed", error)
                error = _keeper_error("the look-up", error)
            connection.send(p.FAILED, to_failure(error))
            return True
        if answer is not None:
            connection.send(p.LOOKUP_ANSWER, answer)
        return answer is not None

    def _profile(self, connection: Connection, profile: Profile) -> None:
        samples = None
        try:
            if profile.seconds is None:
                samples = self._sampler.take()
            else:
                self._sampler.begin(profile.seconds)
        except RuntimeError as error:
            # The process cannot start threads now.
            connection.send(p.FAILED, to_failure(_keeper_error("the profile", error)))
        else:
            answer = ProfileAnswer(keeper=self._service.identify().keeper, samples=samples)
            connection.send(p.PROFILE_ANSWER, answer)

    def _answer(self, connection: Connection, kind: int, payload: pa.Buffer) -> None:
        self._epoch_connection = connection if kind == p.BEGIN else None
        self._watchdog.hold()
        try:
            if kind == p.BEGIN:
                self._service.begin(connection, msgspec.msgpack.decode(payload, type=Begin))
                self._is_restless = True
            elif kind == p.STOP:
                self._service.close_function()
                self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))
            elif kind == p.LOOKUP:
                self._look_up(connection, payload)
            else:
                self._service.poll(connection, msgspec.msgpack.decode(payload, type=Instructions))
        except (KeeperError, OSError) as error:
            log.warning("epoch given up at version %d: %s", self._service.version, self._loggable(error))
        except StrandlineError as error:
            self._service.drop_damaged(error)
            self._send_failure(connection, error)
        except Exception as error:
            self._log_unexpected("internal error", error)
            self._send_failure(connection, _keeper_error(self._service.activity, error))
        finally:
            self._epoch_connection = None
            connection.close()
            if (lease_ms := self._service.lease_ms) is not None:
                self._watchdog.lease_ms = lease_ms
            self._watchdog.release()

    def _loggable(self, error: BaseException) -> str:
        """Return an error's text for the log, without keys and events unless the program allows them."""
        return str(error) if self._service.log_values else discreet(error)

    def _log_unexpected(self, summary: str, error: Exception) -> None:
        log.error("%s", format_error(summary, error, with_values=self._service.log_values))

    def _send_failure(self, connection: Connection, error: StrandlineError) -> None:
        log.error("%s", self._loggable(error))
        with suppress(OSError):
            connection.send(p.FAILED, to_failure(error))

    # -- end of the process

    def _stop(self, connection: Connection, instructions: Instructions) -> None:
        """End at the driver's request. The driver waits for nothing after the ack."""
        ack = self._service.identify()
        self._clear(everything=instructions.forget)
        # Log before the ack: the driver may kill this process as soon as it gets it.
        log.info("ending: the job was stopped")
        with suppress(OSError):
            connection.send(p.ACK, ack)
        self._exit()

    def _clear(self, *, everything: bool) -> None:
        """Remove the socket and the working state; with `everything`, also the last checkpoint's copy and the lock."""
        self._socket_path.unlink(missing_ok=True)
        if not self._lock.is_held:
            # The directory was removed, and may be another keeper's now.
            return
        # Twice, since background threads may have added a file meanwhile.
        for _ in range(2):
            for path in list(self._directory.glob("*" if everything else "db-*")):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
        if everything:
            self._service.forget_standbys()
            # Remove the lock last: the next keeper may start as soon as it is gone.
            self._lock.remove()

    def _end(self, reason: str) -> None:
        log.info("ending: %s", reason)
        self._exit()

    def _exit(self) -> None:
        self._clear(everything=False)
        logging.shutdown()
        os._exit(0)

    def _rest(self) -> None:
        """Between epochs: write what the local log lacks, and collect garbage.

        That is seldom: it walks the whole cache, and reference counts free most.
        """
        self._is_restless = False
        # The next request gets its error.
        with suppress(Exception):
            self._is_restless = not self._service.write_behind()
        if time.monotonic() - self._collected_at > _COLLECTION_S:
            gc.collect()
            self._collected_at = time.monotonic()


def _keeper_error(activity: str, error: Exception) -> KeeperError:
    if isinstance(error, MemoryError):
        return KeeperError(
            f"{activity} ran out of memory{f': {error}' if str(error) else ''}",
            hint="lower state_memory in Settings, have functions hold less, or give the machine or container more",
        )
    return KeeperError(
        f"{activity} failed: {type(error).__name__}: {shortened(str(error))}",
        discreet=f"{activity} failed: {discreet(error)}",
        hint="the keeper's log says where: `strandline logs JOB`",
    )


def _temporary_name(socket_path: Path) -> Path:
    return socket_path.with_suffix(".tmp")


class ZonedFormatter(logging.Formatter):
    """Formats times in ISO 8601 with offsets, so that logs of several machines compare."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def serve(arguments: Sequence[str]) -> None:
    """Run a keeper until it ends."""
    socket_path, directory, watched_pid, watched_start, generation = arguments
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(ZonedFormatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    # Write a stack to the log if native code crashes.
    faulthandler.enable()
    failpoints.arm_from_environment()
    defer_pandas()
    # Let RocksDB keep its files open: to reopen them costs reads.
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # Ignore a keyboard interrupt, which is for the driver: the keeper ends with its executor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.breakpointhook = refuse_breakpoint
    # pyspark fails on this text. Without it, a SparkSession in the user's function would start a JVM in this process.
    os.environ["PYSPARK_GATEWAY_PORT"] = "none, since a keeper has no Spark"
    keeper = Keeper(Path(socket_path), Path(directory), int(watched_pid), watched_start, Generation(int(generation)))
    try:
        keeper.run()
    except KeeperError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    serve(sys.argv[1:6])
