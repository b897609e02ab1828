"""What a keeper does for its driver: it opens its partition, applies each epoch once, and answers for it."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import KeeperError, StrandlineError, UnavailableError, VersionMismatchError
from strandline.core.failure import whole
from strandline.core.ids import Epoch, Partition, unique_name
from strandline.keeper import protocol as p
from strandline.keeper.memory import resident_bytes
from strandline.keeper.opening import OpenPartition, open_partition
from strandline.keeper.pieces import in_pieces
from strandline.keeper.protocol import Ack, Begin, Connection, Instructions, Lookup, LookupAnswer
from strandline.keeper.replay import KeptOutput
from strandline.keeper.rowproof import RowProof
from strandline.runtime.program import Program
from strandline.runtime.task.task import EpochTimes, Task

log = logging.getLogger("strandline.keeper")

_METRICS_S = 2.0
_TELL_S = 10.0


class PartitionService:
    """One partition's epochs and polls, one after the other. It is nothing until the first one brings the program."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partition = Partition(int(directory.name.rpartition("-")[2]))
        self._name = unique_name()
        self._opened: OpenPartition | None = None
        self._kept: KeptOutput | None = None
        self._ack: Ack | None = None
        self._brought: dict[str, Any] = {}
        """What the last epoch brought, as its ack said."""
        self._restore_ms = 0.0
        self._metrics: dict[str, int] = {}
        self._measured = -_METRICS_S
        self._at_work = ""
        self._failed = self._failed_untold = 0
        self._told = -_TELL_S

    @property
    def version(self) -> Epoch:
        """The last epoch that was applied."""
        return self._opened.partition.version if self._opened else Epoch(0)

    @property
    def lease_ms(self) -> int | None:
        """For how long the keeper stays though nobody asks for it; None before the program is known."""
        return self._opened.program.lease_ms if self._opened else None

    @property
    def log_values(self) -> bool:
        """Whether keys and events may stand in the log: not before the program says so."""
        return self._opened is not None and self._opened.program.log_values

    @property
    def at_work(self) -> str:
        """Whose keeper this is, and at which rows of which epoch it is or was last: for errors that nobody expected."""
        if self._opened is None:
            return "the keeper"
        return f"the keeper of operator '{self._uid}', partition {self._partition}{self._at_work},"

    @property
    def _uid(self) -> str:
        return self._opened.program.uid if self._opened else ""

    def identify(self) -> Ack:
        """Return who this is, for any thread: nothing about its state, which the main thread may be changing."""
        return Ack(
            uid=self._uid, partition=self._partition, epoch=self.version,
            pid=os.getpid(), host=socket.gethostname(), keeper=self._name,
        )  # fmt: skip

    def close_function(self) -> None:
        """Let the user's function end in an orderly way."""
        try:
            if self._opened is not None:
                self._opened.partition.task.close()
        except StrandlineError as error:
            log.error("%s", error if self.log_values else error.discreet)

    def begin(self, connection: Connection, begin: Begin) -> None:
        """Process an epoch, or give again what came of it; raise VersionMismatchError if it is another one's turn."""
        instructions = begin.instructions
        opened = self._open(connection, instructions, Epoch(instructions.epoch - 1))
        epoch = instructions.epoch
        if epoch == self.version and self._kept is not None and self._ack is not None:
            self._replay(connection, self._kept, self._ack)
            return
        if epoch != self.version + 1:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self.version}, and epoch {epoch} was to be processed: it restarted, or missed an epoch",
                operator=opened.program.uid,
            )
        opened.snapshots.apply_driver_state(instructions.confirmed, instructions.pending)
        opened.snapshots.raise_error()
        connection.send(p.READY)
        self._process(connection, opened, begin, epoch)

    def _open(self, connection: Connection, instructions: Instructions, expected: Epoch) -> OpenPartition:
        """Return the partition; in the first conversation of this process, learn what to run, and open it.

        A keeper that could only be at another epoch than expected refuses before it restores: that may take long.
        """
        if self._opened is None:
            connection.send(p.NEED_PROGRAM)
            _, payload = connection.expect(p.PROGRAM)
            program = msgspec.msgpack.decode(payload, type=Program)
            restored = program.restore.epoch if program.restore else Epoch(0)
            if restored != expected:
                raise VersionMismatchError(
                    f"operator '{program.uid}', partition {self._partition}: the keeper would start at epoch "
                    f"{restored}, and was expected to be at epoch {expected}: the one before it is gone",
                    operator=program.uid,
                )
            started = time.perf_counter()
            self._opened = open_partition(program, self._partition, self._directory)
            self._restore_ms = (time.perf_counter() - started) * 1000
            log.info("opened at epoch %d in %.0f ms", self.version, self._restore_ms)
        if instructions.generation != self._opened.program.generation:
            raise VersionMismatchError(
                f"operator '{self._uid}', partition {self._partition}: the keeper belongs to generation "
                f"{self._opened.program.generation} of the job, and generation {instructions.generation} asked"
            )
        return self._opened

    def _process(self, connection: Connection, opened: OpenPartition, begin: Begin, epoch: Epoch) -> None:
        started = time.perf_counter()
        told, partition = begin.instructions, opened.partition
        times = EpochTimes(told.watermark_us, told.now_us, told.fired_us)
        kept = KeptOutput(self._directory)
        rows_out = 0
        self._at_work = f", in epoch {epoch}"
        try:
            # 1. Apply the epoch, and give what comes of it at once.
            with closing(partition.run(epoch, times, self._received(connection, begin, kept))) as outputs:
                for output in outputs:
                    rows_out += output.num_rows
                    for piece in in_pieces(output, opened.program.uid, opened.program.max_row_bytes):
                        frame = piece.serialize()
                        kept.add(frame)
                        connection.send(p.OUTPUT, frame)
        except BaseException:
            # The state stays at the version before: whoever tries again starts from there.
            with self._or_end():
                partition.abort()
            kept.close()
            raise
        self._at_work = ""
        # 2. Keep it, and what it gave. Until the epoch has its own ack there is nothing to replay.
        with self._or_end():
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
            "failed_events": task.failed_events,
            "source_rows": task.source_rows,
            "newest_us": task.newest_us,
            "findings": [str(each.error) for each in task.findings],
            "process_ms": round((time.perf_counter() - started) * 1000, 3),
        }
        self._count_failed(task)
        self._ack = self._make_ack(opened, **self._brought, pause_ms=round(pause_ms, 3))
        connection.send(p.ACK, self._ack)
        opened.snapshots.write_behind()

    def _count_failed(self, task: Task) -> None:
        """Say once in a while that events fail: what, where and how many, and nothing of the events themselves."""
        self._failed += task.failed_events
        self._failed_untold += task.failed_events
        if self._failed_untold and task.failures is not None and time.monotonic() - self._told > _TELL_S:
            log.warning(
                "operator '%s', partition %d: %d events failed and were left out (%d since this process began); the "
                "last one: %s", self._uid, self._partition, self._failed_untold, self._failed, task.failures.last,
            )  # fmt: skip
            self._told, self._failed_untold = time.monotonic(), 0

    def _received(self, connection: Connection, begin: Begin, kept: KeptOutput) -> Iterator[pa.RecordBatch]:
        """Give the epoch's rows as they come, and note which they were; raise KeeperError if some are missing."""
        schema = pa.ipc.read_schema(pa.py_buffer(begin.schema))
        came = 0
        while True:
            kind, payload = connection.expect(p.ROWS, p.END)
            if kind == p.END:
                break
            batch = pa.ipc.read_record_batch(payload, schema)
            self._at_work = f", in epoch {begin.instructions.epoch}, at its rows {came} to {came + batch.num_rows - 1}"
            came += batch.num_rows
            yield batch
            failpoints.hit("keeper.epoch.middle")
        kept.input = msgspec.msgpack.decode(payload, type=RowProof)
        if came != kept.input.rows:
            raise KeeperError(f"epoch {begin.instructions.epoch}: {came} rows came, and {kept.input.rows} were sent")

    def _replay(self, connection: Connection, kept: KeptOutput, ack: Ack) -> None:
        connection.send(p.REPLAY)
        _, payload = connection.expect(p.END)
        again = msgspec.msgpack.decode(payload, type=RowProof)
        if again != kept.input:
            raise VersionMismatchError(
                f"operator '{self._uid}', partition {self._partition}: epoch {self.version} came again with other "
                f"rows: {again.rows}, and {kept.input.rows} were applied; the steps before it give other rows each "
                "time",
                hint="the job goes back to its last checkpoint; leave out what is random before key_by(), such as "
                "rand() and sample()",
            )
        log.info("epoch %d is replayed", self.version)
        for frame in kept.frames():
            connection.send(p.OUTPUT, frame)
        connection.send(p.ACK, ack)

    def poll(self, connection: Connection, instructions: Instructions) -> None:
        """Answer without processing; take a checkpoint here when no epoch comes that could carry it."""
        self._at_work = ""
        opened = self._open(connection, instructions, instructions.epoch)
        opened.snapshots.apply_driver_state(instructions.confirmed, instructions.pending)
        opened.snapshots.raise_error()
        if instructions.epoch != self.version:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self.version}, and the job at epoch {instructions.epoch}: it restarted, or missed an epoch"
            )
        if instructions.trigger is not None:
            opened.snapshots.trigger(instructions.trigger)
        # What the epoch brought, too: its own ack may have been lost.
        connection.send(p.ACK, self._make_ack(opened, **self._brought))

    def look_up(self, lookup: Lookup) -> LookupAnswer | None:
        """Return what the last applied epoch left of some keys. In any thread, whatever the main thread is doing.

        None if the state changes too often for that; in the main thread it never is. Raises UnavailableError while the
        partition is not open.
        """
        opened = self._opened
        if opened is None or opened.program.generation != lookup.generation:
            raise UnavailableError(
                f"partition {self._partition} is not open for generation {lookup.generation} of the job",
                hint="the job is restarting: ask again once it runs",
            )
        answered = opened.partition.look_up(lookup.asked)
        return None if answered is None else LookupAnswer(keeper=self._name, answered=answered)

    def _make_ack(self, opened: OpenPartition, **figures: Any) -> Ack:
        task = opened.partition.task
        if time.monotonic() - self._measured > _METRICS_S:
            # Asking RocksDB for its figures costs more than a small epoch: they may be a moment old.
            self._metrics = task.store.metrics() | {"process_bytes": resident_bytes()}
            if task.failures is not None:
                self._metrics["failed_events"] = self._failed
            self._measured = time.monotonic()
        next_event_us, next_processing_us = task.next_timers_us
        return msgspec.structs.replace(
            self.identify(), restore_ms=round(self._restore_ms, 3), reports=opened.snapshots.reports(),
            next_event_us=next_event_us, next_processing_us=next_processing_us, metrics=self._metrics, **figures,
        )  # fmt: skip

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """End the process if state was left half changed: whatever it did next would be wrong."""
        try:
            yield
        except BaseException as error:
            what = "the state is of no epoch any more: ending"
            log.error("%s", whole(what, error, with_values=self.log_values))
            logging.shutdown()
            os._exit(1)
