"""The functions that run in Spark's Python workers: they carry rows between Spark and the keepers.

Passed to mapInArrow, so they are pickled for every epoch: they hold little, and the program is a broadcast that only
the worker which starts a keeper reads. Spark keeps broadcasts in files, which stay where a driver is killed: there the
program is encrypted, with the key of the worker's seal, which is in no file.
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

from strandline.core.errors import KeeperError
from strandline.core.ids import Epoch, Generation, Partition
from strandline.keeper import protocol as p
from strandline.keeper.lean import defer_pandas
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Begin, Connection, Instructions, Lookup
from strandline.keeper.spawning import NURSERY, start_program
from strandline.keeper.watchdog import process_start
from strandline.runtime.rowlayout import partition_of
from strandline.runtime.state.lookups import LookupRequest
from strandline.spark.base.task_errors import SEAL, Seal, sealed_errors
from strandline.spark.keepers.death_report import death_of, is_dead
from strandline.spark.keepers.feeder import Feeder
from strandline.spark.keepers.quiet_worker import end_quietly
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import parse_schema

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast

_START_TIMEOUT_S = 60.0
_PING_S = 2.0
_LOOKUP_S = 15.0
_PATIENCE_S = {p.PING: _PING_S, p.STOP: 15.0}
"""How long an answer is waited for that comes whatever the keeper does, unless the machine does not let it run. A poll,
which may have to restore state, has no limit."""


@dataclass(frozen=True)
class Executor:
    """Whose keepers are started: the JVM that they end with, and what its workers find in their environment."""

    pid: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class KeeperRef:
    """Which keeper: everything needed to find it on this machine, or to start it there."""

    places: Places
    uid: str
    generation: Generation

    def connect(self, partition: Partition, timeout_s: float | None = None) -> Connection | None:
        """Connect to the keeper if it is there; whatever it is then asked may take so long and no longer."""
        try:
            return _connect(self.places.socket(self.uid, partition, self.generation), timeout_s)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    def explained(self, error: Exception, partition: Partition, connection: Connection) -> Exception:
        """Return why a conversation broke off: the keeper has died, if it has."""
        broken = connection.is_broken or isinstance(error, OSError)
        if broken and is_dead(connection.peer_pid):
            return death_of(self.uid, partition, connection.peer_pid, self.places.log(self.uid, partition))
        return error

    def renew_all(self) -> None:
        """Renew the leases of all keepers of this run on this machine."""
        for path in self.places.sockets(self.generation):
            # One that does not answer must not cost the others their leases.
            with contextlib.suppress(OSError, KeeperError), closing(_connect(path, _PING_S)) as connection:
                connection.send(p.PING, Instructions(generation=self.generation, epoch=Epoch(0)))
                connection.expect(p.ACK)

    def start(self, partition: Partition, executor: Executor | None = None) -> Connection:
        """Start the keeper as a process of its own, watched over by nobody but itself, and connect to it.

        Without `executor`, this process is a worker of the executor.
        """
        self.places.make()
        log = self.places.log(self.uid, partition)
        jvm = executor.pid if executor else _executor_pid()
        listens_at = self.places.socket(self.uid, partition, self.generation)
        state = self.places.state(self.uid, partition)
        arguments = [str(listens_at), str(state), str(jvm), process_start(jvm), str(self.generation)]
        given = executor.environment if executor else {}
        environment = {**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A worker of Spark's starts few keepers, and is not there for long.
        pid = NURSERY.start(arguments, log, environment) if executor else None
        if pid is None:
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
            hint=f"look at the log {log}; strandline must be installed on every executor",
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
def _renewing(keeper: KeeperRef, every_s: float) -> Iterator[None]:
    """Renew the leases of this machine's keepers meanwhile: others wait for as long as one is at work."""
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
    """Gives a partition's rows of one epoch to its keeper, and the keeper's output to Spark."""

    keeper: KeeperRef
    instructions: Instructions
    program: Broadcast[bytes]
    acks: Accumulator[list[bytes]]
    output_schema: str
    renew_s: float = 0.0
    """How often to renew leases where the driver cannot; 0: it can."""
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        end_quietly()
        first = next(batches, None)
        if first is None:
            return
        partition = Partition(partition_of(first))
        with _talking(self.seal):
            connection = self.keeper.connect(partition) or self.keeper.start(partition)
            with closing(connection), _renewing(self.keeper, self.renew_s):
                try:
                    yield from self._epoch(connection, first, batches)
                except (KeeperError, OSError) as error:
                    raise self.keeper.explained(error, partition, connection) from None

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
    """Polls or stops a partition's keepers; gives their acks as rows. Starts them only if it has their programs."""

    keepers: list[KeeperRef]
    instructions: Instructions
    kind: int
    programs: Mapping[str, Broadcast[bytes] | bytes] | None = None
    executor: Executor | None = None
    renew_s: float = 0.0
    """How often to renew leases where the driver cannot: keepers that are ready wait for those that restore."""
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                found = [ack for keeper in self.keepers for ack in self.ask(keeper, partition)]
                yield pa.RecordBatch.from_pydict({"ack": pa.array(found, pa.binary())})

    def ask(self, keeper: KeeperRef, partition: Partition) -> list[bytes]:
        """Hold one control conversation; return the ack, or nothing if there is no answer."""
        connection = None
        with _talking(self.seal):
            try:
                connection = keeper.connect(partition, _PATIENCE_S.get(self.kind))
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
                    with _renewing(keeper, self.renew_s):
                        _, payload = connection.expect(p.ACK)
                return [payload.to_pybytes()]
            except (KeeperError, OSError) as error:
                if self.programs is None and connection is not None and not connection.has_received:
                    # It went before it said anything: it is as if it had not been there. A FAILED frame is an answer.
                    return []
                if connection is not None:
                    raise keeper.explained(error, partition, connection) from None
                raise
            finally:
                if connection is not None:
                    connection.close()


@dataclass(frozen=True)
class LookupWorker:
    """Looks up keys with an operator's keepers; gives what those of its machine answer as rows, in an executor."""

    keeper: KeeperRef
    asked: Mapping[Partition, LookupRequest]
    seal: Seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        defer_pandas()
        for batch in batches:
            here = [partition for partition in batch.column(0).to_pylist() if partition in self.asked]
            with _talking(self.seal):
                answers = self.ask(here)
            partitions, found = pa.array(answers.keys(), pa.int32()), pa.array(answers.values(), pa.binary())
            yield pa.RecordBatch.from_pydict({"partition": partitions, "found": found})

    def ask(self, partitions: Iterable[Partition]) -> dict[Partition, bytes]:
        """Return the answers of those keepers that are there."""
        answers: dict[Partition, bytes] = {}
        with ExitStack() as open_:
            asked = []
            # All are asked before the first is waited for.
            for partition in partitions:
                with suppress(OSError):
                    connection = self.keeper.connect(partition, _LOOKUP_S)
                    if connection is not None:
                        open_.enter_context(closing(connection))
                        lookup = Lookup(generation=self.keeper.generation, request=self.asked[partition])
                        connection.send(p.LOOKUP, lookup)
                        asked.append((partition, connection))
            for partition, connection in asked:
                try:
                    answers[partition] = connection.expect(p.LOOKUP_ANSWER)[1].to_pybytes()
                except (KeeperError, OSError):
                    if connection.has_received:
                        raise
        return answers


@contextmanager
def _talking(seal: Seal) -> Iterator[None]:
    """Raise what goes wrong between this process and a keeper so that the driver finds it again."""
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
