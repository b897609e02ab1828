"""Functions that run in Spark's Python workers and carry rows between Spark and the keepers.

Spark pickles them for every epoch, so they are small. The operator's program is a broadcast, which a worker reads only
when it starts a keeper. Spark stores broadcasts in files, which remain if the driver is killed; so the program is
encrypted with the key of the worker's seal, which is not in any file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from strandline.core.errors import KeeperError
from strandline.core.ids import Epoch, Generation, Partition
from strandline.keeper import protocol as p
from strandline.keeper.lean import defer_pandas
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Begin, Connection, Instructions
from strandline.keeper.spawning import NURSERY, Beat, start_beside, start_program
from strandline.keeper.watchdog import process_start
from strandline.runtime.rowlayout import partition_of
from strandline.spark.base.task_errors import SEAL, Seal, sealed_errors
from strandline.spark.keepers.death_report import death_of, is_dead
from strandline.spark.keepers.feeder import Feeder
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import parse_schema

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast

_START_TIMEOUT_S = 60.0
_PING_S = 2.0
_REQUEST_S = 15.0
_TIMEOUTS_S = {p.PING: _PING_S, p.STOP: 15.0}
"""Time-outs of requests that a keeper answers even while it is busy. A poll, which may restore state, has none."""


@dataclass(frozen=True)
class Executor:
    """The executor of keepers: its JVM, with which they end, and the environment of its workers."""

    pid: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class KeeperRef:
    """Reference to an operator's keepers: what is needed to connect to them on a machine, or to start them there."""

    places: Places
    uid: str
    generation: Generation
    beat: Beat | None = None
    """The heartbeats of executors' nurseries; None: executors have none, and keepers start as programs."""

    def connect(self, partition: Partition, timeout_s: float | None = None) -> Connection | None:
        """Connect to the keeper if it runs on this machine; the time-out also applies to each later request."""
        try:
            return _connect(self.places.socket(self.uid, partition, self.generation), timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    def explain(self, error: Exception, partition: Partition, connection: Connection) -> Exception:
        """Return the cause of a failed request: the keeper's death if it has died, else the error itself."""
        broken = connection.is_broken or isinstance(error, OSError)
        if broken and is_dead(connection.peer_pid):
            return death_of(self.uid, partition, connection.peer_pid, self.places.log(self.uid, partition))
        return error

    def renew_all(self) -> None:
        """Renew the leases of all keepers of this run on this machine."""
        for path in self.places.sockets(self.generation):
            # A keeper that does not answer must not prevent the renewal of other leases.
            with contextlib.suppress(OSError, KeeperError), closing(_connect(path, _PING_S)) as connection:
                connection.send(p.PING, Instructions(generation=self.generation, epoch=Epoch(0)))
                connection.expect(p.ACK)

    def start(self, partition: Partition, executor: Executor | None = None) -> Connection:
        """Start the keeper as an independent process, and connect to it.

        Without `executor`, this process is a worker of the executor.
        """
        self.places.make()
        log = self.places.log(self.uid, partition)
        jvm = executor.pid if executor else _executor_pid()
        listens_at = self.places.socket(self.uid, partition, self.generation)
        state = self.places.state(self.uid, partition)
        arguments = [str(listens_at), str(state), str(jvm), process_start(jvm), str(self.generation)]
        variables = executor.environment if executor else {}
        environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A worker of Spark is short-lived, and starts few keepers: its nursery has to outlive it.
        pid = NURSERY.start(arguments, log, environment) if executor else None
        if pid is None and self.beat is not None:
            beat = replace(self.beat, name=f"{self.uid}/{partition}")
            pid = start_beside(self.places.nursery(jvm), jvm, arguments, log, environment, beat)
        elif pid is None:
            pid = start_program("strandline.keeper.process", arguments, log, environment)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            connection = self.connect(partition)
            if connection is not None:
                return connection
            if not process_start(pid):
                break
            time.sleep(0.01)
        raise KeeperError(
            f"operator '{self.uid}', partition {partition}: its keeper did not start on {socket.gethostname()}: "
            f"{_tail(log)}",
            hint=f"see the log {log}; strandline must be installed on every executor",
        )


def _connect(path: Path, timeout_s: float | None) -> Connection:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(str(path))
    except BaseException:
        sock.close()
        raise
    connection = Connection(sock)
    connection.check_peer(path)
    return connection


@contextmanager
def _lease_renewal(keeper: KeeperRef, every_s: float) -> Iterator[None]:
    """Renew the leases of this machine's keepers meanwhile: the others wait while one works."""
    if not every_s:
        yield
        return
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every_s):
            keeper.renew_all()

    threading.Thread(target=renew, name="strandline-lease", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@dataclass(frozen=True)
class EpochWorker:
    """Sends a partition's rows of one epoch to its keeper, and yields the keeper's output to Spark."""

    keeper: KeeperRef
    instructions: Instructions
    program: Broadcast[bytes]
    acks: Accumulator[list[bytes]]
    output_schema: str
    may_start: bool
    """Whether a new keeper could take the place of one that is gone: it would restore the last checkpoint."""
    renew_s: float = 0.0
    """The interval of lease renewals if the driver cannot renew the leases itself, else 0."""
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        first = next(batches, None)
        if first is None:
            return
        partition = Partition(partition_of(first))
        with _keeper_errors(self.seal):
            connection = self.keeper.connect(partition)
            if connection is None:
                if not self.may_start:
                    where = f"operator '{self.keeper.uid}', partition {partition}"
                    raise KeeperError(f"{where}: its keeper has ended, or does not run on {socket.gethostname()}")
                connection = self.keeper.start(partition)
            with closing(connection), _lease_renewal(self.keeper, self.renew_s):
                try:
                    yield from self._epoch(connection, first, batches)
                except (KeeperError, OSError) as error:
                    raise self.keeper.explain(error, partition, connection) from None

    def _epoch(
        self, connection: Connection, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema(list(first.schema)[1:])
        connection.send(p.BEGIN, Begin(instructions=self.instructions, schema=schema.serialize().to_pybytes()))
        kind, _ = connection.expect(p.NEED_PROGRAM, p.READY, p.REPLAY)
        if kind == p.NEED_PROGRAM:
            connection.send(p.PROGRAM, self.seal.decrypt(self.program.value))
            kind, _ = connection.expect(p.READY, p.REPLAY)
        feeder = Feeder(connection, first, rest, self.instructions.epoch, is_replay=kind == p.REPLAY)
        feeder.start()
        output_schema = arrow_schema(parse_schema(self.output_schema))
        try:
            while True:
                kind, payload = connection.expect(p.OUTPUT, p.ACK)
                if kind == p.ACK:
                    break
                yield pa.ipc.read_record_batch(payload, output_schema)
        except KeeperError:
            feeder.raise_error()
            raise
        feeder.join()
        self.acks.add([payload.to_pybytes()])


@dataclass(frozen=True)
class ControlWorker:
    """Sends a control request to a partition's keepers and yields the acks. Starts keepers only if it has programs."""

    keepers: list[KeeperRef]
    instructions: Instructions
    kind: int
    programs: Mapping[str, Broadcast[bytes] | bytes] | None = None
    executor: Executor | None = None
    renew_s: float = 0.0
    """The interval of lease renewals: keepers that are ready wait for those that restore."""
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                acks = [ack for keeper in self.keepers for ack in self.ask(keeper, partition)]
                yield pa.RecordBatch.from_pydict({"ack": pa.array(acks, pa.binary())})

    def ask(self, keeper: KeeperRef, partition: Partition) -> list[bytes]:
        """Send the request to one keeper; return its ack, or an empty list if there is no answer."""
        connection = None
        with _keeper_errors(self.seal):
            try:
                connection = keeper.connect(partition, _TIMEOUTS_S.get(self.kind))
                if connection is None:
                    if self.programs is None:
                        return []
                    connection = keeper.start(partition, self.executor)
                connection.send(self.kind, self.instructions)
                kind, payload = connection.expect(p.ACK, p.NEED_PROGRAM)
                if kind == p.NEED_PROGRAM:
                    if self.programs is None:
                        return []
                    program = self.programs[keeper.uid]
                    plain = program if isinstance(program, bytes) else self.seal.decrypt(program.value)
                    connection.send(p.PROGRAM, plain)
                    with _lease_renewal(keeper, self.renew_s):
                        _, payload = connection.expect(p.ACK)
                return [payload.to_pybytes()]
            except (KeeperError, OSError) as error:
                if self.programs is None and connection is not None and not connection.has_received:
                    # It ended without an answer, like a keeper that did not run. A FAILED frame is an answer.
                    return []
                if connection is not None:
                    raise keeper.explain(error, partition, connection) from None
                raise
            finally:
                if connection is not None:
                    connection.close()


@dataclass(frozen=True)
class RequestWorker:
    """Sends requests to an operator's keepers; in an executor, yields the answers of those on its machine."""

    keeper: KeeperRef
    kind: int
    answer: int
    requests: Mapping[Partition, Struct]
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        for batch in batches:
            partitions = [partition for partition in batch.column(0).to_pylist() if partition in self.requests]
            with _keeper_errors(self.seal):
                answers = self.ask(partitions)
            numbers, payloads = pa.array(answers.keys(), pa.int32()), pa.array(answers.values(), pa.binary())
            yield pa.RecordBatch.from_pydict({"partition": numbers, "answer": payloads})

    def ask(self, partitions: Iterable[Partition]) -> dict[Partition, bytes]:
        """Return the answers of the keepers that run on this machine."""
        answers: dict[Partition, bytes] = {}
        with ExitStack() as open_:
            connections = []
            # Send all requests before the wait for the first answer.
            for partition in partitions:
                with suppress(OSError):
                    connection = self.keeper.connect(partition, _REQUEST_S)
                    if connection is not None:
                        open_.enter_context(closing(connection))
                        connection.send(self.kind, self.requests[partition])
                        connections.append((partition, connection))
            for partition, connection in connections:
                try:
                    answers[partition] = connection.expect(self.answer)[1].to_pybytes()
                except (KeeperError, OSError):
                    if connection.has_received:
                        raise
        return answers


@contextmanager
def _keeper_errors(seal: Seal) -> Iterator[None]:
    """Raise errors of requests to keepers in the sealed form that the driver decodes."""
    with sealed_errors(seal):
        try:
            yield
        except OSError as error:
            raise KeeperError(f"a keeper's connection broke: {error}") from None


def _executor_pid() -> int:
    """Return the nearest Java process above this one: the executor."""
    pid = os.getpid()
    while pid > 1:
        try:
            before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if before.partition("(")[2].startswith("java"):
            return pid
        pid = int(after.split()[1])
    return os.getppid()


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-600:].strip() or "its log is empty"
    except OSError as error:
        return str(error)
