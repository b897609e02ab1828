"""The service of one partition in its keeper: opens it, applies each epoch once, and answers polls and look-ups."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import (
    CorruptionError,
    KeeperError,
    StrandlineError,
    UnavailableError,
    VersionMismatchError,
    local_files_hint,
)
from strandline.core.failure import format_error
from strandline.core.ids import Epoch, Partition, unique_name
from strandline.keeper import protocol as p
from strandline.keeper.opening import OpenPartition, open_partition, resume_partition
from strandline.keeper.output import KeptOutput, in_pieces
from strandline.keeper.paths import drop_copies
from strandline.keeper.protocol import Ack, Begin, Connection, Instructions, Lookup, LookupAnswer
from strandline.keeper.rowproof import RowProof
from strandline.runtime.program import Program
from strandline.runtime.task.task import EpochTimes, Task

log = logging.getLogger("strandline.keeper")

_METRICS_S = 2.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WARN_S = 10.0


class PartitionService:
    """Runs a partition's epochs and polls, one after the other. The first request brings the program."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._partition = Partition(int(directory.name.rpartition("-")[2]))
        self._name = unique_name()
        self._opened: OpenPartition | None = None
        self._kept_output: KeptOutput | None = None
        self._ack: Ack | None = None
        self._figures: dict[str, Any] = {}
        """Fields of the last epoch's ack."""
        self._restore_ms = 0.0
        self._measured: dict[str, Any] = {}
        """Fields of acks that are measured now and then."""
        self._measured_at = -_METRICS_S
        self._position = ""
        """The epoch and the rows in progress, in the words of `activity`."""
        self._failed_events = self._unreported_events = 0
        self._warned_at = -_WARN_S

    @property
    def version(self) -> Epoch:
        """The last epoch that was applied."""
        return self._opened.partition.version if self._opened else Epoch(0)

    @property
    def lease_ms(self) -> int | None:
        """The time that the keeper stays without requests; None before it has the program."""
        return self._opened.program.lease_ms if self._opened else None

    @property
    def log_values(self) -> bool:
        """Whether the program allows keys and events in the log; False before the keeper has it."""
        return self._opened is not None and self._opened.program.log_values

    @property
    def activity(self) -> str:
        """The operator, partition, epoch and rows that the keeper works on, for messages of unexpected errors."""
        if self._opened is None:
            return "the keeper"
        return f"the keeper of operator '{self._uid}', partition {self._partition}{self._position},"

    @property
    def _uid(self) -> str:
        return self._opened.program.uid if self._opened else ""

    def identify(self) -> Ack:
        """Return who the keeper is, with its reports. Any thread may call it: it reads no state of the partition."""
        return Ack(
            uid=self._uid, partition=self._partition, epoch=self.version,
            pid=os.getpid(), host=socket.gethostname(), keeper=self._name,
            follows=self._opened.follows if self._opened else "",
            reports=self._opened.snapshots.reports() if self._opened else [],
            standbys=self._opened.standby.states() if self._opened and self._opened.standby else [],
        )  # fmt: skip

    def close_function(self) -> None:
        """Close the user's function."""
        try:
            if self._opened is not None:
                self._opened.partition.task.close()
        except StrandlineError as error:
            log.error("%s", error if self.log_values else error.discreet)

    def forget_standbys(self) -> None:
        """Remove the files of other machines' partitions."""
        if self._opened is not None and self._opened.standby is not None:
            self._opened.standby.forget()

    def drop_damaged(self, error: StrandlineError) -> None:
        """Delete the local copies if the open state is damaged: the job restarts, and restores it from storage."""
        if self._opened is None:
            return
        if not isinstance(error, CorruptionError) and not self._opened.partition.task.store.has_unread:
            return
        error.fields["is_local"] = True
        drop_copies(self._directory, keep=())
        if self._opened.restoring is not None:
            self._opened.restoring.drop_copies()

    def begin(self, connection: Connection, begin: Begin) -> None:
        """Process an epoch, or replay its output; raise VersionMismatchError if another epoch is next."""
        instructions = begin.instructions
        opened = self._open(connection, instructions, Epoch(instructions.epoch - 1))
        epoch = instructions.epoch
        if epoch == self.version and self._kept_output is not None and self._ack is not None:
            self._replay(connection, self._kept_output, self._ack)
            return
        if epoch != self.version + 1:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self.version}, and was to process epoch {epoch}: the keeper restarted, or missed an epoch",
                operator=opened.program.uid,
            )
        self._apply_driver_state(opened, instructions)
        connection.send(p.READY)
        self._process(connection, opened, begin, epoch)

    def _open(self, connection: Connection, instructions: Instructions, expected: Epoch) -> OpenPartition:
        """Return the partition; the first request gets the program and opens it.

        Raises VersionMismatchError if the restore would not lead to the expected epoch; before it, as it may take long.
        """
        if self._opened is None:
            connection.send(p.NEED_PROGRAM)
            _, payload = connection.expect(p.PROGRAM)
            program = msgspec.msgpack.decode(payload, type=Program)
            restored = program.restore.epoch if program.restore else Epoch(0)
            if restored != expected and not instructions.resume:
                raise VersionMismatchError(
                    f"operator '{program.uid}', partition {self._partition}: the keeper would start at epoch "
                    f"{restored}, expected {expected}: the keeper that was at that epoch has ended",
                    operator=program.uid,
                )
            started = time.perf_counter()
            try:
                if instructions.resume:
                    self._opened = self._resume(program, expected)
                else:
                    self._opened = open_partition(program, self._partition, self._directory, self._name)
            except OSError as error:
                # As an OSError, it would be taken for the connection's, and the driver would not hear of it.
                raise UnavailableError(
                    f"operator '{program.uid}', partition {self._partition}: its state cannot be restored on "
                    f"{socket.gethostname()}: {error}",
                    hint=local_files_hint(error),
                ) from error
            self._restore_ms = (time.perf_counter() - started) * 1000
            log.info("opened at epoch %d in %.0f ms", self.version, self._restore_ms)
        if instructions.generation != self._opened.program.generation:
            raise VersionMismatchError(
                f"operator '{self._uid}', partition {self._partition}: the keeper belongs to generation "
                f"{self._opened.program.generation} of the job, and the request to generation {instructions.generation}"
            )
        return self._opened

    def _resume(self, program: Program, version: Epoch) -> OpenPartition:
        try:
            return resume_partition(program, self._partition, self._directory, self._name, version)
        except (UnavailableError, CorruptionError) as error:
            raise VersionMismatchError(
                f"operator '{program.uid}', partition {self._partition}: the keeper that was at epoch {version} has "
                f"ended, and none can go on in its place: {error.message}",
                operator=program.uid,
            ) from error

    def _apply_driver_state(self, opened: OpenPartition, instructions: Instructions) -> None:
        opened.snapshots.apply_driver_state(instructions.confirmed, instructions.in_flight)
        if opened.standby is not None:
            opened.standby.follow(instructions.confirmed)
        opened.snapshots.raise_error()

    def _process(self, connection: Connection, opened: OpenPartition, begin: Begin, epoch: Epoch) -> None:
        started = time.perf_counter()
        instructions, partition = begin.instructions, opened.partition
        times = EpochTimes(instructions.watermark_us, instructions.now_us, instructions.fired_us)
        kept = KeptOutput(self._directory)
        rows_out = 0
        self._position = f", in epoch {epoch}"
        try:
            # 1. Apply the epoch, and send its output at once.
            with closing(partition.run(epoch, times, self._receive_rows(connection, begin, kept))) as outputs:
                for output in outputs:
                    rows_out += output.num_rows
                    for piece in in_pieces(output, opened.program.uid, opened.program.max_row_bytes):
                        frame = piece.serialize()
                        kept.add(frame)
                        connection.send(p.OUTPUT, frame)
        except BaseException:
            # Return to the previous version, from which a retry starts.
            with self._exit_on_error():
                partition.abort()
            kept.close()
            raise
        self._position = ""
        # 2. Commit the epoch, and keep its output. It can be replayed once there is an ack.
        with self._exit_on_error():
            partition.commit()
            if self._kept_output is not None:
                self._kept_output.close()
            self._kept_output, self._ack = kept, None
        # 3. Freeze the state for a checkpoint, if one is due.
        pause_ms = 0.0 if instructions.trigger is None else opened.snapshots.trigger(instructions.trigger, epoch)
        failpoints.hit("keeper.applied")
        # 4. Acknowledge the epoch.
        task = partition.task
        self._figures = {
            "rows_in": kept.input.rows,
            "rows_out": rows_out,
            "late_rows": task.late_rows,
            "failed_events": task.failed_events,
            "source_rows": task.source_rows,
            "newest_us": task.newest_us,
            "findings": [*(str(each.error) for each in task.findings), *opened.snapshots.find_excess()],
            "process_ms": round((time.perf_counter() - started) * 1000, 3),
            "wait_ms": round(kept.wait_s * 1000, 3),
        }
        self._count_failed(task)
        self._ack = self._make_ack(opened, **self._figures, pause_ms=round(pause_ms, 3))
        connection.send(p.ACK, self._ack)
        opened.snapshots.write_behind(epoch)

    def write_behind(self) -> bool:
        """Write changes that the backend lacks, as after an epoch; return whether it has all that it is to have."""
        return self._opened is None or self._opened.snapshots.write_behind(self.version)

    def _count_failed(self, task: Task) -> None:
        """Log the number of failed events and the last error, without events, at most once in _WARN_S."""
        self._failed_events += task.failed_events
        self._unreported_events += task.failed_events
        if self._unreported_events and task.failures is not None and time.monotonic() - self._warned_at > _WARN_S:
            log.warning(
                "operator '%s', partition %d: %d events failed and were left out (%d since this process began); the "
                "last one: %s",
                self._uid, self._partition, self._unreported_events, self._failed_events, task.failures.last,
            )  # fmt: skip
            self._warned_at, self._unreported_events = time.monotonic(), 0

    def _receive_rows(self, connection: Connection, begin: Begin, kept: KeptOutput) -> Iterator[pa.RecordBatch]:
        """Yield the epoch's rows as they come, and keep their proof. Raises KeeperError if rows are missing."""
        schema = pa.ipc.read_schema(pa.py_buffer(begin.schema))
        rows = 0
        while True:
            begun_s = time.perf_counter()
            kind, payload = connection.expect(p.ROWS, p.END)
            kept.wait_s += time.perf_counter() - begun_s
            if kind == p.END:
                break
            batch = pa.ipc.read_record_batch(payload, schema)
            self._position = f", in epoch {begin.instructions.epoch}, at its rows {rows} to {rows + batch.num_rows - 1}"
            rows += batch.num_rows
            yield batch
            failpoints.hit("keeper.epoch.middle")
        kept.input = msgspec.msgpack.decode(payload, type=RowProof)
        if rows != kept.input.rows:
            raise KeeperError(f"epoch {begin.instructions.epoch}: {rows} rows came, and {kept.input.rows} were sent")

    def _replay(self, connection: Connection, kept: KeptOutput, ack: Ack) -> None:
        connection.send(p.REPLAY)
        _, payload = connection.expect(p.END)
        proof = msgspec.msgpack.decode(payload, type=RowProof)
        if proof != kept.input:
            raise VersionMismatchError(
                f"operator '{self._uid}', partition {self._partition}: epoch {self.version} came again with "
                f"{proof.rows} rows, not the {kept.input.rows} that were applied: the steps before the operator give "
                "other rows each time",
                hint="the job restarts from its last checkpoint; before key_by(), use nothing random, such as rand() "
                "and sample()",
            )
        log.info("epoch %d is replayed", self.version)
        for frame in kept.frames():
            connection.send(p.OUTPUT, frame)
        connection.send(p.ACK, ack)

    def poll(self, connection: Connection, instructions: Instructions) -> None:
        """Answer a poll, by which the driver triggers a checkpoint if there is no epoch."""
        self._position = ""
        opened = self._open(connection, instructions, instructions.epoch)
        self._apply_driver_state(opened, instructions)
        is_between = instructions.resume and instructions.trigger is None
        newest = instructions.epoch + 1 if is_between else instructions.epoch
        if not instructions.epoch <= self.version <= newest:
            raise VersionMismatchError(
                f"operator '{opened.program.uid}', partition {self._partition}: the keeper is at epoch "
                f"{self.version}, and the job at epoch {instructions.epoch}: the keeper restarted, or missed an epoch"
            )
        if instructions.trigger is not None:
            opened.snapshots.trigger(instructions.trigger, self.version)
        # Include the epoch's figures: the driver may not have got its ack.
        connection.send(p.ACK, self._make_ack(opened, **self._figures))

    def look_up(self, lookup: Lookup) -> LookupAnswer | None:
        """Return the state of keys after the last applied epoch. Any thread may call it, also during an epoch.

        Returns None if the state changes too often to be read, which cannot happen in the main thread. Raises
        UnavailableError while the partition is not open.
        """
        opened = self._opened
        if opened is None or opened.program.generation != lookup.generation:
            raise UnavailableError(
                f"partition {self._partition} is not open for generation {lookup.generation} of the job",
                hint="the job is restarting: ask again once it runs",
            )
        entries = opened.partition.look_up(lookup.request)
        return None if entries is None else LookupAnswer(keeper=self._name, entries=entries)

    def _make_ack(self, opened: OpenPartition, **figures: Any) -> Ack:
        task = opened.partition.task
        if time.monotonic() - self._measured_at > _METRICS_S:
            # RocksDB's metrics cost more than a small epoch, so most acks repeat the last ones.
            metrics = task.store.metrics() | {"process_bytes": _resident_bytes()}
            if task.failures is not None:
                metrics["failed_events"] = self._failed_events
            keys = task.heavy_keys
            self._measured = {
                "metrics": metrics, "recent_rows": round(keys.rows, 1), "heaviest_keys": keys.heaviest(),
            }  # fmt: skip
            self._measured_at = time.monotonic()
        next_event_us, next_processing_us = task.next_timers_us
        return msgspec.structs.replace(
            self.identify(), restore_ms=round(self._restore_ms, 3),
            next_event_us=next_event_us, next_processing_us=next_processing_us, **self._measured, **figures,
        )  # fmt: skip

    @contextmanager
    def _exit_on_error(self) -> Iterator[None]:
        """End the process if the block raises: the state is half changed then."""
        try:
            yield
        except BaseException as error:
            summary = "the epoch is half applied: this process ends, and the job goes on without it"
            # Without memory, the log may fail, too.
            try:
                log.error("%s", format_error(summary, error, with_values=self.log_values))
                logging.shutdown()
            finally:
                os._exit(1)


def _resident_bytes() -> int:
    """Return the resident memory of this process, as `ps` and a container's limit count it; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0
