"""The driver's access to all keepers of one run: start, programs, acks, polls, look-ups, leases, stop."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pyspark import Accumulator, Broadcast
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import KeeperError, UnavailableError, VersionMismatchError
from strandline.core.ids import Epoch, Generation, Partition
from strandline.keeper import protocol as p
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack, Instructions, Lookup, LookupAnswer, ProfileAnswer
from strandline.keeper.sampling import Samples
from strandline.keeper.spawning import NURSERY
from strandline.runtime.program import Program
from strandline.runtime.state.lookups import LookupEntries, LookupRequest
from strandline.spark.base.ddl import schema_of
from strandline.spark.base.mapping import BatchFunction, Messages
from strandline.spark.base.session import has_one_process, is_this_python
from strandline.spark.base.task_errors import SEAL
from strandline.spark.keepers.death_report import death_of, is_dead
from strandline.spark.keepers.exchange import Exchange, Exchanges
from strandline.spark.keepers.losses import LossWatch
from strandline.spark.keepers.watch import KeeperWatch, Slot
from strandline.spark.keepers.worker import ControlWorker, EpochWorker, Executor, KeeperRef, RequestWorker

A = TypeVar("A", LookupAnswer, ProfileAnswer)
_END_S = 5.0
_REQUEST_S = 0.5
"""The time in which a request fails whose keeper was killed."""
_PINGS_A_LEASE = 4
_EXEC_S = 2.0
_EXEC_POLL_S = 0.001
_STOP_S = 20.0
"""Time-out of stop requests through Spark, whose tasks wait for busy executors."""
_JOB_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
"""The local properties in which Spark stores a thread's job group."""


class Fleet:
    """All keepers of one generation."""

    def __init__(
        self,
        spark: SparkSession,
        places: Places,
        generation: Generation,
        programs: Sequence[Program],
        exchanges: Exchanges,
        silent: set[str] | None = None,
    ) -> None:
        """`silent` gets the executors of hosts that send no heartbeats; None: hosts send none, without standbys."""
        sc: Any = spark.sparkContext
        self._spark = spark
        self._sc = sc
        self._places = places
        self._exchanges = exchanges
        self._generation = generation
        self._only_executor = _only_executor(spark)
        self._silent = set[str]() if silent is None else silent
        self._losses = None if self._only_executor else LossWatch(spark, exchanges, silent, self._suspect)
        beat = None if self._losses is None else self._losses.beat
        self._refs = {program.uid: KeeperRef(places, program.uid, self._generation, beat) for program in programs}
        # Also kept in memory: a broadcast's value is read from a file; if Spark encrypts that, at each access, and not
        # thread-safely.
        self._programs = {program.uid: msgspec.msgpack.encode(program) for program in programs}
        # Clean-up of /tmp removes Spark's directory if the driver has not used it for days.
        Path(sc._temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._broadcasts: dict[str, Broadcast[bytes]] = {
            uid: sc.broadcast(SEAL.encrypt(program)) for uid, program in self._programs.items()
        }
        self._acks: Accumulator[list[bytes]] = sc.accumulator([], Messages())
        self.slots: set[Slot] = {
            (program.uid, partition) for program in programs for partition in map(Partition, range(program.parallelism))
        }
        self._have_local_logs = all(program.local_log for program in programs)
        self.last: dict[Slot, Ack] = {}
        self._restored = Epoch(0)
        self._watch = KeeperWatch()
        self._is_suspicious = False
        """Whether a keeper may have ended since all last answered."""
        self._renew_s = min((program.lease_ms for program in programs), default=0) / 1000 / _PINGS_A_LEASE
        # For all exchanges, from two threads at once. Each thread of the pool has a connection to the JVM.
        self._pool = ThreadPoolExecutor(2 * max(1, len(programs)), thread_name_prefix="strandline-ask")
        self._starts: list[Future[list[bytes]]] = []
        """The last requests that start keepers on this machine: after an error, some still wait for an answer."""
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def function(self, uid: str, instructions: Instructions, output_schema: str) -> BatchFunction:
        """Return the function of an epoch's rows, from `Exchange.route`, that returns the output of the keepers."""
        renew_s = 0.0 if self._only_executor else self._renew_s
        worker = EpochWorker(
            self._refs[uid],
            instructions,
            self._broadcasts[uid],
            self._acks,
            output_schema,
            self.is_as_restored,
            renew_s,
        )
        return BatchFunction(worker, schema_of(output_schema))

    def take_acks(self, epoch: int) -> dict[Slot, Ack]:
        """Return this epoch's acks, one for each slot, and discard all others."""
        acks: dict[Slot, Ack] = {}
        collected, self._acks.value = self._acks.value, []
        for data in collected:
            ack = msgspec.msgpack.decode(data, type=Ack)
            if ack.epoch == epoch:
                slot = (ack.uid, ack.partition)
                self._check_same_keeper(ack, acks.get(slot) or self.last.get(slot))
                acks[slot] = ack
        self.last.update(acks)
        return acks

    def open(self, epoch: Epoch) -> dict[Slot, Ack]:
        """Start every keeper and let it restore its state; raise the first error."""
        self._restored = epoch
        return self.poll(Instructions(generation=self._generation, epoch=epoch), start=True)

    def poll(self, instructions: Instructions, *, start: bool = False) -> dict[Slot, Ack]:
        """Poll every keeper, without an epoch; return the acks of those that run. With `start`, start the others."""
        acks = {(ack.uid, ack.partition): ack for ack in self._control(instructions, p.POLL, start=start) if ack.uid}
        for slot, ack in acks.items():
            self._check_same_keeper(ack, self.last.get(slot))
        self.last.update(acks)
        if acks.keys() >= self.slots:
            self._is_suspicious = False
        return acks

    @property
    def is_local(self) -> bool:
        """Whether the driver reaches all keepers itself."""
        return bool(self._only_executor)

    @property
    def hosts(self) -> dict[int, list[str]]:
        """By parallelism, the host of each partition, as Spark names it; "" if its executor is lost."""
        return self._exchanges.hosts

    @property
    def is_as_restored(self) -> bool:
        """Whether no epoch has been applied since the restore: a dead keeper can then restore the same state again."""
        return all(ack.epoch == self._restored for ack in self.last.values())

    @property
    def can_resume(self) -> bool:
        """Whether another keeper could go on with a dead one's state, which has changed: see `Instructions.resume`."""
        return self._have_local_logs and not self.is_as_restored

    def may_have_lost_one(self) -> bool:
        """Whether a keeper may have died since all last answered.

        On this machine, keepers' processes are checked; on others, executors and failed lease renewals.
        """
        return self._is_suspicious or self._watch.has_lost_one(dict(self.last))

    def death_of(self, ack: Ack) -> KeeperError | None:
        """Return the error for the keeper that sent this ack, if it is dead and ran on this machine."""
        if ack.host != socket.gethostname() or not is_dead(ack.pid, 0):
            return None
        log = self._places.log(ack.uid, ack.partition)
        return death_of(ack.uid, ack.partition, ack.pid, log, NURSERY.exit_code(ack.pid))

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of an error of keepers: the death of one if one has died, else the error itself."""
        if not isinstance(error, KeeperError | VersionMismatchError):
            return error
        if (pid := error.fields.get("pid")) is not None:
            if error.fields["host"] != socket.gethostname() or (exit_code := NURSERY.exit_code(pid)) is None:
                return error
            uid, partition = error.fields["operator"], error.fields["partition"]
            return death_of(uid, partition, pid, self._places.log(uid, partition), exit_code)
        deaths = (self.death_of(ack) for ack in self.last.values())
        return next((death for death in deaths if death is not None), error)

    def keep_alive(self) -> None:
        """Start the threads that renew all leases, also during long restores and epochs, and that watch executors."""
        if self.slots:
            self._threads.append(threading.Thread(target=self._renew, name="strandline-lease", daemon=True))
        if self._losses is not None:
            watch = threading.Thread(
                target=self._losses.watch, args=(self._over,), name="strandline-executors", daemon=True
            )
            self._threads.append(watch)
        for thread in self._threads:
            thread.start()

    @property
    def has_lost_host(self) -> bool:
        """Whether keepers were lost with their executor."""
        return self._losses is not None and self._losses.has_lost_keepers

    def check_executors(self) -> None:
        """Raise KeeperError if an executor was lost that had keepers or that tasks wait for."""
        if self._losses is not None and self._losses.loss:
            raise KeeperError(self._losses.loss)

    def _suspect(self) -> None:
        self._is_suspicious = True

    def _renew(self) -> None:
        while not self._over.wait(self._renew_s):
            with contextlib.suppress(Exception):
                self._is_suspicious |= not self.ping()

    def ping(self) -> bool:
        """Renew every keeper's lease, busy or not: directly on this machine, through Spark on others.

        Return whether all keepers have answered.
        """
        instructions = Instructions(generation=self._generation, epoch=Epoch(0))
        direct = ControlWorker(list(self._refs.values()), instructions, p.PING)
        answered: set[Slot] = set()
        for uid, partition in self.slots:
            # A keeper without an answer here is pinged through Spark.
            with contextlib.suppress(Exception):
                if direct.ask(self._refs[uid], partition):
                    answered.add((uid, partition))
        if answered != self.slots:
            answered |= {(ack.uid, ack.partition) for ack in self._control(instructions, p.PING)}
        return answered >= self.slots

    def look(self, slots: Iterable[Slot]) -> Iterator[Ack]:
        """Ask these keepers for their reports, busy or not; those of other machines, which take a Spark job, are not.

        Ends with the first that does not answer at once.
        """
        if self._only_executor:
            worker = ControlWorker([], Instructions(generation=self._generation, epoch=Epoch(0)), p.PING)
            with contextlib.suppress(Exception):
                for uid, partition in slots:
                    if not (acks := worker.ask(self._refs[uid], partition)):
                        return
                    yield from (msgspec.msgpack.decode(ack, type=Ack) for ack in acks)

    def look_up(self, uid: str, requests: Mapping[Partition, LookupRequest]) -> dict[Partition, LookupEntries]:
        """Send look-ups to an operator's keepers, which answer from the last applied epoch at once. Thread-safe.

        Keepers of other machines are reached through Spark. Raises UnavailableError if one does not answer.
        """
        lookups = {each: Lookup(generation=self._generation, request=request) for each, request in requests.items()}
        answers = self._ask(uid, p.LOOKUP, lookups, p.LOOKUP_ANSWER, LookupAnswer)
        return {partition: answer.entries for partition, answer in answers.items()}

    def profile(self, seconds: float | None) -> dict[Slot, Samples | None]:
        """Have every keeper begin to take samples of what it does; without `seconds`, end that and return them.

        Thread-safe. Raises UnavailableError if a keeper does not answer.
        """
        samples: dict[Slot, Samples | None] = {}
        for uid in self._refs:
            request = p.Profile(seconds=seconds)
            requests = {partition: request for its_uid, partition in self.slots if its_uid == uid}
            for partition, answer in self._ask(uid, p.PROFILE, requests, p.PROFILE_ANSWER, ProfileAnswer).items():
                samples[uid, partition] = answer.samples
        return samples

    def _ask(
        self, uid: str, kind: int, requests: Mapping[Partition, msgspec.Struct], answer: int, decoded: type[A]
    ) -> dict[Partition, A]:
        """Send requests to an operator's keepers, which answer at once; those of other machines, through Spark."""
        worker = RequestWorker(self._refs[uid], kind, answer, requests)
        answers = self._decode_answers(uid, worker.ask(requests), decoded)
        rest = {partition: request for partition, request in requests.items() if partition not in answers}
        if rest and not self._only_executor:
            schema = schema_of("partition int, answer binary")
            with self.cancellable():
                partitions = self._exchanges.of(uid).partitions
                rows: list[Any] = partitions.mapInArrow(replace(worker, requests=rest), schema).collect()
            replies = {Partition(row.partition): bytes(row.answer) for row in rows}
            answers |= self._decode_answers(uid, replies, decoded)
        missing = sorted(requests.keys() - answers.keys())
        if missing:
            raise UnavailableError(
                f"operator '{uid}', partition {missing[0]}: its keeper does not answer",
                hint="the job may be about to restart: try again when it runs",
            )
        return answers

    def _decode_answers(self, uid: str, replies: Mapping[Partition, bytes], decoded: type[A]) -> dict[Partition, A]:
        """Return the keepers' answers, except those of replaced keepers that still run."""
        answers = {}
        for partition, data in replies.items():
            reply, last = msgspec.msgpack.decode(data, type=decoded), self.last.get((uid, partition))
            if last is None or last.keeper == reply.keeper:
                answers[partition] = reply
        return answers

    @contextlib.contextmanager
    def cancellable(self, group: str = "") -> Iterator[None]:
        """Put this thread's Spark jobs into a job group meanwhile, so that they can be cancelled."""
        before = {name: self._sc.getLocalProperty(name) for name in _JOB_GROUP}
        try:
            self._sc.setJobGroup(group or self._exchanges.job_group, "strandline: keepers", interruptOnCancel=True)
            yield
        finally:
            with contextlib.suppress(Exception):
                for name, value in before.items():
                    self._sc.setLocalProperty(name, value)

    @contextlib.contextmanager
    def _cancel_after(self, timeout_s: float | None, group: str) -> Iterator[None]:
        """Cancel the job group after the time-out, unless the block ends before."""
        if timeout_s is None:
            yield
            return
        timer = threading.Timer(timeout_s, self._cancel, [group])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def abort(self) -> None:
        """Kill every keeper of this machine and cancel the Spark jobs: calls that wait for them fail."""
        self._cancel(self._exchanges.job_group)
        self.kill()

    def _cancel(self, group: str) -> None:
        # The session may have been stopped.
        with contextlib.suppress(Exception):
            self._sc.cancelJobGroup(group)

    def stop(self, *, forget: bool) -> None:
        """End every keeper at once. With `forget`, delete their local copies too."""
        self._over.set()
        instructions = Instructions(generation=self._generation, epoch=Epoch(0), forget=forget)
        # The session may have been stopped. Keepers of this machine are killed without it; others end with their
        # executor or their lease.
        with contextlib.suppress(Exception):
            if self.has_lost_host:
                self._stop_present(instructions)
            else:
                with self.cancellable():
                    self._control(instructions, p.STOP)
        self.kill()
        deadline = time.monotonic() + _END_S
        while wait(self._starts, _REQUEST_S).not_done and time.monotonic() < deadline:
            # One of them has started a keeper since.
            self.kill()

    def _stop_present(self, instructions: Instructions) -> None:
        """End the keepers of the hosts that are left, without a wait: those of the next attempt end theirs, too."""

        def ask(answers: DataFrame) -> None:
            group = self._exchanges.job_group
            with contextlib.suppress(Exception), self.cancellable(group), self._cancel_after(_STOP_S, group):
                answers.collect()

        for exchange, uids in self._exchanges.shared:
            worker = ControlWorker([self._refs[uid] for uid in uids], instructions, p.STOP)
            if (partitions := exchange.remaining_partitions(self._silent)) is not None:
                answers = partitions.mapInArrow(worker, schema_of("ack binary"))
                threading.Thread(target=ask, args=(answers,), name="strandline-stop", daemon=True).start()

    def kill(self) -> None:
        """Kill every keeper of this machine, busy or not; calls that wait for its answer fail."""
        self._kill_here()
        # A keeper that is starting has no arguments yet: check again while no start is in progress.
        with NURSERY.paused(_END_S):
            self._kill_here()

    def _kill_here(self) -> None:
        deadline = time.monotonic() + _END_S
        while (pids := _local_keepers(self._places.root, self._generation)) and time.monotonic() < deadline:
            for pid in pids:
                # It has ended, or belongs to another user and only has a keeper's arguments.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            # Looking at all processes of the machine costs more than the wait for these.
            while pids and time.monotonic() < deadline:
                time.sleep(0.005)
                pids = _local_keepers(self._places.root, self._generation, pids)

    def close(self) -> None:
        """Release the driver's resources for the keepers."""
        self._over.set()
        self._watch.close()
        for thread in self._threads:
            thread.join(_END_S)
        self._pool.shutdown(wait=False)
        if self._losses is not None:
            self._losses.close()
        for broadcast in self._broadcasts.values():
            # Spark keeps a temporary file of a broadcast until it is destroyed.
            with contextlib.suppress(Exception):
                broadcast.destroy()
                # A task that was just beginning may have stored the broadcast again. When memory is short, Spark moves
                # it to disk, with its file: without one, any query that needs the memory would fail.
                Path(broadcast._path).touch()

    def _check_same_keeper(self, ack: Ack, before: Ack | None) -> None:
        """Raise KeeperError if a partition's ack comes from another keeper than the ack before it.

        A keeper that dies before the first epoch is replaced by one that restores the checkpoint, perhaps on another
        machine. The old keeper may still run, in the state after an epoch that it applied for a failed task. The job
        must not continue with its state if it has used the other keeper's output. A keeper that `follows` the one
        before has that one's state.
        """
        if before is None or before.epoch == self._restored or before.keeper in (ack.keeper, ack.follows):
            return
        raise KeeperError(
            f"operator '{ack.uid}', partition {ack.partition}: epoch {before.epoch} was applied by process "
            f"{before.pid} on {before.host}, and epoch {ack.epoch} by another keeper, process {ack.pid} on {ack.host}",
            hint="the job restarts from its last checkpoint, with one keeper",
        )

    def _control(self, instructions: Instructions, kind: int, *, start: bool = False) -> list[Ack]:
        if not self._refs:
            return []
        ask = self._ask_directly if self._only_executor else self._ask_through_spark
        try:
            acks = ask(instructions, kind, start)
        except Exception:
            self.check_executors()
            raise
        return [msgspec.msgpack.decode(ack, type=Ack) for ack in acks]

    def _ask_directly(self, instructions: Instructions, kind: int, start: bool) -> list[bytes]:
        """Send the request to every keeper from the driver: a Spark job takes a hundred times as long."""
        worker = ControlWorker(
            list(self._refs.values()), instructions, kind, self._programs if start else None, self._only_executor
        )
        pool = ThreadPoolExecutor(len(self.slots), thread_name_prefix="strandline-ask")
        try:
            futures = [pool.submit(worker.ask, self._refs[uid], partition) for uid, partition in sorted(self.slots)]
            if start:
                self._starts = futures
            # As they are done: an error does not wait for other keepers, which may restore for long.
            for future in as_completed(futures):
                future.result()
            return [ack for future in futures for ack in future.result()]
        finally:
            pool.shutdown(wait=False)

    def _ask_through_spark(self, instructions: Instructions, kind: int, start: bool) -> list[bytes]:
        # Tasks wait for busy executors; a ping must not wait for one so long that other leases expire.
        timeout_s = {p.PING: self._renew_s, p.STOP: _STOP_S}.get(kind)
        group = f"{self._exchanges.job_group}-lease" if kind == p.PING else self._exchanges.job_group

        def ask(exchange: Exchange, uids: Sequence[str]) -> list[bytes]:
            refs = [self._refs[uid] for uid in uids]
            worker = ControlWorker(refs, instructions, kind, self._broadcasts if start else None, renew_s=self._renew_s)
            with self.cancellable(group), self._cancel_after(timeout_s, group):
                partitions = (
                    exchange.remaining_partitions(self._silent)
                    if kind == p.STOP and self.has_lost_host
                    else exchange.partitions
                )
                answers = partitions.mapInArrow(worker, schema_of("ack binary")) if partitions is not None else None
                rows: list[Any] = answers.collect() if answers is not None else []
            return [bytes(row.ack) for row in rows]

        (first, *others) = self._exchanges.shared
        if not others:
            return ask(*first)
        # In parallel: restores take as long as the slowest, and not as long as all together.
        futures = [self._pool.submit(ask, *shared) for shared in (first, *others)]
        return [ack for future in futures for ack in future.result()]


def _only_executor(spark: SparkSession) -> Executor | None:
    """Return the driver's JVM if it runs all tasks, on this machine and with this Python; else None."""
    sc: Any = spark.sparkContext
    if not has_one_process(sc.master) or not is_this_python(sc.pythonExec):
        return None
    return Executor(int(sc._jvm.java.lang.ProcessHandle.current().pid()), sc.environment)


def _local_keepers(root: Path, generation: Generation, among: Sequence[int] | None = None) -> list[int]:
    """Return the process ids of a run's keepers on this machine: all of them, or those among some processes."""
    pids = []
    for process in Path("/proc").glob("[0-9]*") if among is None else (Path(f"/proc/{pid}") for pid in among):
        with contextlib.suppress(OSError):
            command = _command_of(process)
            if command[1:3] == ["-m", "strandline.keeper.process"] and len(command) > 7:
                socket_path, generation_of = command[3], command[7]
                if Path(socket_path).parent == root and generation_of == str(generation):
                    pids.append(int(process.name))
    return pids


def _command_of(process: Path) -> list[str]:
    """Return the command line of a process.

    During exec(), the kernel has no arguments of the process; then it has an executable all the same, which ended
    processes and those of the kernel do not have.
    """
    deadline = time.monotonic() + _EXEC_S
    while not (command := (process / "cmdline").read_text(errors="replace")) and time.monotonic() < deadline:
        (process / "exe").readlink()
        time.sleep(_EXEC_POLL_S)
    return command.split("\0")
