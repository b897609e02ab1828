"""The keeper: a long-lived process that owns one operator partition. Started by the first Spark task that needs it.

    python -m strandline.keeper.process SOCKET STATE_DIR WATCHED_PID WATCHED_START GENERATION

The main thread runs epochs, one after the other. Each connection is read by a thread of its own, which answers polls
and stops itself and hands epochs to the main thread.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import KeeperError, StrandlineError, VersionMismatchError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition, unique_name
from strandline.keeper import protocol as p
from strandline.keeper.forks import Unshared
from strandline.keeper.kept import KeptOutput
from strandline.keeper.lean import defer_pandas
from strandline.keeper.lock import PartitionLock
from strandline.keeper.opening import Opened, open_partition
from strandline.keeper.protocol import Ack, Begin, Connection, Instructions
from strandline.keeper.tally import Whole
from strandline.keeper.watchdog import Watchdog
from strandline.runtime.partition import EpochTimes
from strandline.runtime.program import Program

log = logging.getLogger("strandline.keeper")

_FIRST_LEASE_MS = 60_000
_COLLECTION_S = 60.0
_METRICS_S = 2.0
_CLOSE_S = 5.0
_ACCEPT_PAUSE_S = 0.1


class Keeper:
    """The process's state: nothing until the first conversation brings the program."""

    def __init__(
        self, socket_path: Path, directory: Path, watched_pid: int, watched_start: str, generation: Generation
    ) -> None:
        self._socket_path = socket_path
        self._generation = generation
        self._name = unique_name()
        self._directory = directory
        self._unshared = Unshared(_bound_name(socket_path))
        self._lock = PartitionLock(directory, generation, self._unshared)
        self._partition = Partition(int(directory.name.rpartition("-")[2]))
        self._opened: Opened | None = None
        self._kept: KeptOutput | None = None
        self._ack: Ack | None = None
        self._brought: dict[str, Any] = {}
        """What the last epoch brought, as its ack said."""
        self._restore_ms = 0.0
        self._work: queue.SimpleQueue[tuple[Connection, int, pa.Buffer]] = queue.SimpleQueue()
        self._serving: Connection | None = None
        self._watchdog = Watchdog(watched_pid, watched_start, _FIRST_LEASE_MS, self._end)
        self._collected = time.monotonic()
        self._collect_due = False
        self._figures: dict[str, int] = {}
        self._measured = -_METRICS_S

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
            except OSError as error:
                # Out of files, perhaps, which passes; without this thread nobody could talk to the keeper again.
                log.error("a connection could not be accepted: %s", error)
                time.sleep(_ACCEPT_PAUSE_S)
                continue
            try:
                threading.Thread(target=self._receive, args=(connection,), daemon=True).start()
            except RuntimeError as error:
                # Out of threads: likewise. Whoever has connected hears that nobody is there for him.
                log.error("a connection could not be read: %s", error)
                connection.close()
                time.sleep(_ACCEPT_PAUSE_S)

    def _receive(self, connection: Connection) -> None:
        try:
            kind, payload = connection.expect(p.BEGIN, p.POLL, p.STOP, p.PING)
            self._watchdog.renew()
            if kind == p.PING:
                connection.send(p.ACK, self._ack_of_ping())
                connection.close()
                return
            serving = self._serving
            if kind != p.POLL and serving is not None:
                # Spark runs the task again: the attempt before it is dead, though its connection may not know yet.
                serving.close()
            self._work.put((connection, kind, payload))
            if kind == p.STOP:
                # The main thread is in the user's function, perhaps for ever: it is not waited for beyond this.
                time.sleep(_CLOSE_S)
                self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))
        except (KeeperError, OSError):
            connection.close()

    def _converse(self, connection: Connection, kind: int, payload: pa.Buffer) -> None:
        self._serving = connection if kind == p.BEGIN else None
        self._watchdog.hold()
        try:
            if kind == p.BEGIN:
                self._begin(connection, msgspec.msgpack.decode(payload, type=Begin))
            elif kind == p.STOP:
                self._close_process()
                self._stop(connection, msgspec.msgpack.decode(payload, type=Instructions))
            else:
                self._poll(connection, msgspec.msgpack.decode(payload, type=Instructions))
        except (KeeperError, OSError) as error:
            log.warning("epoch given up at version %d: %s", self._version, error)
        except StrandlineError as error:
            self._say_failed(connection, error)
        except Exception as error:
            log.exception("internal error")
            self._say_failed(connection, KeeperError(f"the keeper failed: {type(error).__name__}: {error}"))
        finally:
            self._serving = None
            connection.close()
            self._watchdog.release()

    def _say_failed(self, connection: Connection, error: StrandlineError) -> None:
        log.error("%s", error)
        try:
            connection.send(p.FAILED, p.to_failure(error))
        except OSError:
            pass

    # -- epochs

    def _begin(self, connection: Connection, begin: Begin) -> None:
        instructions = begin.instructions
        self._get_program(connection, Epoch(instructions.epoch - 1))
        opened = self._checked(instructions)
        epoch = Epoch(instructions.epoch)
        if epoch == self._version and self._kept is not None and self._ack is not None:
            self._replay(connection)
            return
        if epoch != self._version + 1:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self._version}, and epoch {epoch} was to be processed: it restarted, or missed an epoch",
                operator=opened.program.uid,
            )
        self._heed(instructions)
        opened.snapshots.raise_error()
        connection.send(p.READY)
        self._process(connection, opened, begin, epoch)

    def _process(self, connection: Connection, opened: Opened, begin: Begin, epoch: Epoch) -> None:
        started = time.perf_counter()
        told, partition = begin.instructions, opened.partition
        times = EpochTimes(told.watermark_us, told.now_us, told.fired_us)
        kept = KeptOutput(self._directory)
        rows_out = 0
        try:
            # 1. Apply the epoch, and give what comes of it at once.
            with closing(partition.run(epoch, times, self._received(connection, begin, kept))) as outputs:
                for output in outputs:
                    rows_out += output.num_rows
                    frame = output.serialize()
                    kept.add(frame)
                    connection.send(p.OUTPUT, frame)
        except BaseException:
            # The state stays at the version before: whoever tries again starts from there.
            with _or_end():
                partition.abort()
            kept.close()
            raise
        # 2. Keep it, and what it gave. Until the epoch has its own ack there is nothing to replay.
        with _or_end():
            partition.commit()
            if self._kept is not None:
                self._kept.close()
            self._kept, self._ack = kept, None
        # 3. Freeze the state, if a checkpoint is to have it.
        pause_ms = 0.0 if told.trigger is None else opened.snapshots.trigger(told.trigger)
        failpoints.hit("keeper.applied")
        # 4. Say so.
        task = partition.task
        self._brought = {
            "rows_in": kept.input.rows,
            "rows_out": rows_out,
            "late_rows": task.late_rows,
            "source_rows": task.source_rows,
            "newest_us": task.newest_us,
            "process_ms": round((time.perf_counter() - started) * 1000, 3),
        }
        self._ack = self._make_ack(**self._brought, pause_ms=round(pause_ms, 3))
        connection.send(p.ACK, self._ack)
        opened.snapshots.write_behind()
        self._collect_due = True

    def _received(self, connection: Connection, begin: Begin, kept: KeptOutput) -> Iterator[pa.RecordBatch]:
        """Give the epoch's rows as they come, and note which they were; raise KeeperError if some are missing."""
        schema = pa.ipc.read_schema(pa.py_buffer(begin.schema))
        came = 0
        while True:
            kind, payload = connection.expect(p.ROWS, p.END)
            if kind == p.END:
                break
            batch = pa.ipc.read_record_batch(payload, schema)
            came += batch.num_rows
            yield batch
            failpoints.hit("keeper.epoch.middle")
        kept.input = msgspec.msgpack.decode(payload, type=Whole)
        if came != kept.input.rows:
            raise KeeperError(f"epoch {begin.instructions.epoch}: {came} rows came, and {kept.input.rows} were sent")

    def _replay(self, connection: Connection) -> None:
        assert self._kept is not None
        assert self._ack is not None
        connection.send(p.REPLAY)
        _, payload = connection.expect(p.END)
        self._refuse_other_rows(self._kept.input, msgspec.msgpack.decode(payload, type=Whole))
        log.info("epoch %d is replayed", self._version)
        for frame in self._kept.frames():
            connection.send(p.OUTPUT, frame)
        connection.send(p.ACK, self._ack)

    def _refuse_other_rows(self, applied: Whole, again: Whole) -> None:
        if again == applied:
            return
        raise VersionMismatchError(
            f"operator '{self._uid}', partition {self._partition}: epoch {self._version} came again with other rows: "
            f"{again.rows}, and {applied.rows} were applied; the steps before it give other rows each time",
            hint="the job goes back to its last checkpoint; leave out what is random before key_by(), such as rand(), "
            "sample() and limit() without an order",
        )

    def _poll(self, connection: Connection, instructions: Instructions) -> None:
        """Answer without processing; take a checkpoint here when no epoch comes that could carry it."""
        self._get_program(connection, Epoch(instructions.epoch))
        opened = self._checked(instructions)
        self._heed(instructions)
        opened.snapshots.raise_error()
        if instructions.epoch != self._version:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self._version}, and the job at epoch {instructions.epoch}: it restarted, or missed an epoch"
            )
        if instructions.trigger is not None:
            opened.snapshots.trigger(instructions.trigger)
        # What the epoch brought, too: its own ack may have been lost.
        connection.send(p.ACK, self._make_ack(**self._brought))

    def _checked(self, instructions: Instructions) -> Opened:
        assert self._opened is not None
        if instructions.generation != self._opened.program.generation:
            raise VersionMismatchError(
                f"operator '{self._opened.program.uid}', partition {self._partition}: the keeper belongs to generation "
                f"{self._opened.program.generation} of the job, and generation {instructions.generation} asked"
            )
        return self._opened

    def _heed(self, instructions: Instructions) -> None:
        assert self._opened is not None
        confirmed, pending = instructions.confirmed, instructions.pending
        self._opened.snapshots.heed(
            None if confirmed is None else CheckpointId(confirmed), None if pending is None else CheckpointId(pending)
        )

    @property
    def _version(self) -> Epoch:
        return self._opened.partition.version if self._opened else Epoch(0)

    @property
    def _uid(self) -> str:
        return self._opened.program.uid if self._opened else ""

    def _ack_of_ping(self) -> Ack:
        return Ack(
            uid=self._uid, partition=self._partition, epoch=self._version,
            pid=os.getpid(), host=socket.gethostname(), keeper=self._name,
        )  # fmt: skip

    def _make_ack(self, **figures: Any) -> Ack:
        opened = self._opened
        next_event_us, next_processing_us = opened.partition.task.next_timers_us if opened else (None, None)
        return Ack(
            uid=self._uid,
            partition=self._partition,
            epoch=self._version,
            pid=os.getpid(),
            host=socket.gethostname(),
            keeper=self._name,
            restore_ms=round(self._restore_ms, 3),
            reports=opened.snapshots.reports() if opened else [],
            next_event_us=next_event_us,
            next_processing_us=next_processing_us,
            metrics=self._metrics(),
            **figures,
        )

    def _metrics(self) -> dict[str, int]:
        """Asking RocksDB for its figures costs more than a small epoch: they may be a moment old."""
        if self._opened is not None and time.monotonic() - self._measured > _METRICS_S:
            self._figures = self._opened.partition.task.store.metrics()
            self._measured = time.monotonic()
        return self._figures

    # -- life and death

    def _get_program(self, connection: Connection, expected: Epoch) -> None:
        """In the first conversation of this process, learn what to run, and open it.

        A keeper that could only be at another epoch than expected refuses before it restores: that may take long.
        """
        if self._opened is not None:
            return
        connection.send(p.NEED_PROGRAM)
        _, payload = connection.expect(p.PROGRAM)
        program = msgspec.msgpack.decode(payload, type=Program)
        restored = Epoch(program.restore.epoch if program.restore else 0)
        if restored != expected:
            raise VersionMismatchError(
                f"operator '{program.uid}', partition {self._partition}: the keeper would start at epoch {restored}, "
                f"and was expected to be at epoch {expected}: the one before it is gone",
                operator=program.uid,
            )
        started = time.perf_counter()
        self._opened = open_partition(program, self._partition, self._directory)
        self._watchdog.lease_ms = program.lease_ms
        self._restore_ms = (time.perf_counter() - started) * 1000
        log.info("opened at epoch %d in %.0f ms", self._version, self._restore_ms)

    def _close_process(self) -> None:
        """Let the user's function end in an orderly way."""
        try:
            if self._opened is not None:
                self._opened.partition.task.close()
        except StrandlineError as error:
            log.error("%s", error)

    def _stop(self, connection: Connection, instructions: Instructions) -> None:
        """End because the driver says so. The ack is the last thing it hears, and it does not wait for more."""
        # Nothing about its state, which the main thread may be changing.
        ack = self._ack_of_ping()
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


def _bound_name(socket_path: Path) -> Path:
    return socket_path.with_suffix(".tmp")


@contextmanager
def _or_end() -> Iterator[None]:
    """End the process if state was left half changed: whatever it did next would be wrong."""
    try:
        yield
    except BaseException:
        log.exception("the state is of no epoch any more: ending")
        logging.shutdown()
        os._exit(1)


def main() -> None:
    """Run a keeper until it is not needed any more."""
    socket_path, directory, watched_pid, watched_start, generation = sys.argv[1:6]
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(process)d %(levelname)s %(message)s"
    )
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
    main()
