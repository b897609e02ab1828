"""The keepers of one run, as the driver sees them: their programs, their acks, polling and stopping them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from pyspark import Accumulator, AccumulatorParam, Broadcast
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import KeeperError, UnavailableError, VersionMismatchError
from strandline.core.ids import Epoch, Generation, Partition
from strandline.keeper import protocol as p
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack, Instructions, LookupAnswer
from strandline.keeper.spawning import NURSERY
from strandline.runtime.program import Program
from strandline.runtime.state.lookups import LookupEntries, LookupRequest
from strandline.spark.base.ddl import schema_of
from strandline.spark.base.mapping import map_batches
from strandline.spark.base.session import has_one_process, is_this_python
from strandline.spark.base.task_errors import SEAL
from strandline.spark.keepers.death_report import death_of, is_dead
from strandline.spark.keepers.exchange import Exchange, Exchanges
from strandline.spark.keepers.watch import ExecutorWatch, JobWatch, KeeperWatch, Slot
from strandline.spark.keepers.worker import ControlWorker, EpochWorker, Executor, KeeperRef, LookupWorker

_END_S = 5.0
_PINGS_A_LEASE = 4
_EXEC_S = 2.0
_EXEC_LOOK_S = 0.001
_EXECUTORS_S = 1.0
_STOP_S = 20.0
"""How long keepers of other machines are told to end: a task that is to tell them waits for its executor."""
_JOB_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
"""What Spark keeps of a thread's job group."""


class AckList(AccumulatorParam[list[bytes]]):
    """Collects acks; a stage that is retried may bring one twice."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1.extend(value2)
        return value1


class Fleet:
    """All keepers of one generation."""

    def __init__(
        self,
        spark: SparkSession,
        places: Places,
        generation: Generation,
        programs: Sequence[Program],
        exchanges: Exchanges,
    ) -> None:
        sc: Any = spark.sparkContext
        self._spark = spark
        self._sc = sc
        self._places = places
        self._exchanges = exchanges
        self._generation = generation
        self._refs = {program.uid: KeeperRef(places, program.uid, self._generation) for program in programs}
        # Here, too: a broadcast's value is read from a file, and where Spark encrypts that, anew each time and not for
        # two threads at once.
        self._programs = {program.uid: msgspec.msgpack.encode(program) for program in programs}
        # What cleans up in /tmp takes Spark's directory away where a driver has not used it for days.
        Path(sc._temp_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._broadcasts: dict[str, Broadcast[bytes]] = {
            uid: sc.broadcast(SEAL.encrypt(program)) for uid, program in self._programs.items()
        }
        self._only_executor = _only_executor(spark)
        self._acks: Accumulator[list[bytes]] = sc.accumulator([], AckList())
        self.slots: set[Slot] = {
            (prog.uid, part) for prog in programs for part in map(Partition, range(prog.parallelism))
        }
        self.last: dict[Slot, Ack] = {}
        self._restored = Epoch(0)
        self._watch = KeeperWatch()
        self._executors = None if self._only_executor else ExecutorWatch(sc)
        self._is_suspicious = False
        """Whether a keeper may be gone, for whatever reason, since all have answered."""
        self._renew_s = min((program.lease_ms for program in programs), default=0) / 1000 / _PINGS_A_LEASE
        # For all exchanges, also while another thread asks them. Each thread has a connection to the JVM.
        self._pool = ThreadPoolExecutor(2 * max(1, len(programs)), thread_name_prefix="strandline-ask")
        self._over = threading.Event()
        self._loss = ""
        """What went with an executor, or waits for it."""
        self._threads: list[threading.Thread] = []

    def run(self, uid: str, routed: DataFrame, instructions: Instructions, output_schema: str) -> DataFrame:
        """Return what an operator's keepers give for an epoch's rows, as `Exchange.route` made them."""
        renew_s = 0.0 if self._only_executor else self._renew_s
        worker = EpochWorker(self._refs[uid], instructions, self._broadcasts[uid], self._acks, output_schema, renew_s)
        return map_batches(routed, worker, schema_of(output_schema))

    def take_acks(self, epoch: int) -> dict[Slot, Ack]:
        """Return this epoch's acks, one a slot, and forget all others."""
        found: dict[Slot, Ack] = {}
        taken, self._acks.value = self._acks.value, []
        for data in taken:
            ack = msgspec.msgpack.decode(data, type=Ack)
            if ack.epoch == epoch:
                slot = (ack.uid, ack.partition)
                self._refuse_other_keeper(ack, found.get(slot) or self.last.get(slot))
                found[slot] = ack
        self.last.update(found)
        return found

    def open(self, epoch: Epoch) -> dict[Slot, Ack]:
        """Start every keeper and have it restore its state; raise what goes wrong there."""
        self._restored = epoch
        return self.poll(Instructions(generation=self._generation, epoch=epoch), start=True)

    def poll(self, instructions: Instructions, *, start: bool = False) -> dict[Slot, Ack]:
        """Ask every keeper without an epoch; those that are not there do not answer, unless they are to be started."""
        found = {(ack.uid, ack.partition): ack for ack in self._control(instructions, p.POLL, start=start) if ack.uid}
        for slot, ack in found.items():
            self._refuse_other_keeper(ack, self.last.get(slot))
        self.last.update(found)
        if found.keys() >= self.slots:
            self._is_suspicious = False
        return found

    @property
    def is_as_restored(self) -> bool:
        """Whether no epoch has been applied since the restore: a keeper that dies can be started anew from it."""
        return all(ack.epoch == self._restored for ack in self.last.values())

    def may_have_lost_one(self) -> bool:
        """Whether a keeper may have died since all have answered; for the thread that looks after the run.

        The process of one on this machine is watched, elsewhere its executor, and who has not renewed its lease.
        """
        return self._is_suspicious or self._watch.has_lost_one(dict(self.last))

    def death_of(self, ack: Ack) -> KeeperError | None:
        """Return what became of the keeper that has answered so, if it was of this machine and is dead."""
        if ack.host != socket.gethostname() or not is_dead(ack.pid, 0):
            return None
        log = self._places.log(ack.uid, ack.partition)
        return death_of(ack.uid, ack.partition, ack.pid, log, NURSERY.exit_code(ack.pid))

    def explained(self, error: BaseException) -> BaseException:
        """Return why the keepers failed at something: one of them has died, if one has."""
        if not isinstance(error, KeeperError | VersionMismatchError):
            return error
        if (pid := error.fields.get("pid")) is not None:
            if error.fields["host"] != socket.gethostname() or (ended := NURSERY.exit_code(pid)) is None:
                return error
            uid, partition = error.fields["operator"], error.fields["partition"]
            return death_of(uid, partition, pid, self._places.log(uid, partition), ended)
        died = [death for ack in self.last.values() if (death := self.death_of(ack)) is not None]
        return died[0] if died else error

    def keep_alive(self) -> None:
        """Renew every keeper's lease from now on, however long restores, epochs, sinks and storage take."""
        if self.slots:
            self._threads.append(threading.Thread(target=self._renew, name="strandline-lease", daemon=True))
        if self._executors is not None:
            watch = threading.Thread(target=self._watch_executors, name="strandline-executors", daemon=True)
            self._threads.append(watch)
        for thread in self._threads:
            thread.start()

    def _watch_executors(self) -> None:
        """Break off what the job asks of Spark once an executor is gone that has keepers, or that tasks wait for.

        Spark may let tasks that were to run there wait for it as long as for one that is busy.
        """
        assert self._executors is not None
        before: list[list[str]] = []
        jobs, has_lost_one = None, False
        while not self._over.is_set():
            # The session may be gone already.
            with contextlib.suppress(Exception):
                before = before or self._exchanges.places
                # A look later: Spark has then forgotten what was there.
                if has_lost_one:
                    jobs = jobs or JobWatch(self._spark)
                    if self._exchanges.places != before:
                        self._loss = "an executor has gone, and its keepers with it"
                if jobs is not None and jobs.are_stalled():
                    self._loss = self._loss or "an executor has gone, and tasks wait for it"
                if self._loss:
                    self._cancel(self._exchanges.job_group)
                has_lost_one = self._executors.has_lost_one()
                self._is_suspicious |= has_lost_one
            self._over.wait(_EXECUTORS_S)

    def check_executors(self) -> None:
        """Raise KeeperError if an executor has gone with keepers, or while tasks wait for it."""
        if self._loss:
            raise KeeperError(self._loss)

    def _renew(self) -> None:
        while not self._over.wait(self._renew_s):
            with contextlib.suppress(Exception):
                self._is_suspicious |= not self.ping()

    def ping(self) -> bool:
        """Renew every keeper's lease, whatever it is doing: directly here, through Spark where others may be.

        Return whether all have heard it.
        """
        instructions = Instructions(generation=self._generation, epoch=Epoch(0))
        direct = ControlWorker(list(self._refs.values()), instructions, p.PING)
        answered: set[Slot] = set()
        for uid, partition in self.slots:
            # One that cannot be reached from here is asked through Spark.
            with contextlib.suppress(Exception):
                if direct.ask(self._refs[uid], partition):
                    answered.add((uid, partition))
        if answered != self.slots:
            answered |= {(ack.uid, ack.partition) for ack in self._control(instructions, p.PING)}
        return answered >= self.slots

    def look_up(self, uid: str, asked: Mapping[Partition, LookupRequest]) -> dict[Partition, LookupEntries]:
        """Have keepers of an operator answer from what they last applied, in any thread, without waiting for epochs.

        Those of other machines are asked through Spark. Raises UnavailableError if one does not answer.
        """
        found = self._answers(uid, LookupWorker(self._refs[uid], asked).ask(asked))
        rest = {partition: each for partition, each in asked.items() if partition not in found}
        if rest and not self._only_executor:
            schema, worker = schema_of("partition int, found binary"), LookupWorker(self._refs[uid], rest)
            with self.breakable():
                rows: list[Any] = self._exchanges.of(uid).partitions.mapInArrow(worker, schema).collect()
            found |= self._answers(uid, {Partition(row.partition): bytes(row.found) for row in rows})
        missing = sorted(asked.keys() - found.keys())
        if missing:
            raise UnavailableError(
                f"operator '{uid}', partition {missing[0]}: its keeper does not answer",
                hint="the job may be about to restart: ask again once it runs",
            )
        return found

    def _answers(self, uid: str, replies: Mapping[Partition, bytes]) -> dict[Partition, LookupEntries]:
        """Return what keepers answered, but for those that were replaced and live on."""
        found = {}
        for partition, data in replies.items():
            reply, last = msgspec.msgpack.decode(data, type=LookupAnswer), self.last.get((uid, partition))
            if last is None or last.keeper == reply.keeper:
                found[partition] = reply.entries
        return found

    @contextlib.contextmanager
    def breakable(self, group: str = "") -> Iterator[None]:
        """Meanwhile, what this thread asks of keepers through Spark can be broken off."""
        before = {name: self._sc.getLocalProperty(name) for name in _JOB_GROUP}
        try:
            self._sc.setJobGroup(group or self._exchanges.job_group, "strandline: keepers", interruptOnCancel=True)
            yield
        finally:
            with contextlib.suppress(Exception):
                for name, value in before.items():
                    self._sc.setLocalProperty(name, value)

    @contextlib.contextmanager
    def _limited(self, group: str, limit_s: float | None) -> Iterator[None]:
        """Meanwhile, break off what a group asks through Spark when it has taken so long."""
        if limit_s is None:
            yield
            return
        timer = threading.Timer(limit_s, self._cancel, [group])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def break_off(self) -> None:
        """End every keeper of this machine, and what was asked through Spark: whoever waits hears that it is over."""
        self._cancel(self._exchanges.job_group)
        self.kill()

    def _cancel(self, group: str) -> None:
        # The session may be gone already.
        with contextlib.suppress(Exception):
            self._sc.cancelJobGroup(group)

    def stop(self, *, forget: bool) -> None:
        """End every keeper at once. With `forget`, their local copies go too."""
        self._over.set()
        instructions = Instructions(generation=self._generation, epoch=Epoch(0), forget=forget)
        try:
            with self.breakable():
                self._control(instructions, p.STOP)
        except Exception:
            # The session may be gone already. Keepers of this machine can be ended without it; others end by
            # themselves, with their executor or their lease.
            pass
        self.kill()

    def kill(self) -> None:
        """End every keeper of this machine, whatever it is doing; whoever waits for its answer hears that it died."""
        self._kill_here()
        # Also one that is just being started, which has no name yet; when this returns, none is left.
        with NURSERY.paused(_END_S):
            self._kill_here()

    def _kill_here(self) -> None:
        deadline = time.monotonic() + _END_S
        while (left := _keepers_here(self._places.root, self._generation)) and time.monotonic() < deadline:
            for pid in left:
                # Gone already, or somebody else's that was only given a keeper's name.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def close(self) -> None:
        """Let go of what the driver holds for the keepers."""
        self._over.set()
        self._watch.close()
        for thread in self._threads:
            thread.join(_END_S)
        self._pool.shutdown(wait=False)
        for broadcast in self._broadcasts.values():
            # Spark keeps a broadcast's bytes in a temporary file until it is destroyed.
            with contextlib.suppress(Exception):
                broadcast.destroy()

    def _refuse_other_keeper(self, ack: Ack, before: Ack | None) -> None:
        """A partition has one keeper: that whose ack was the first to be used after the restore.

        Until an epoch is applied, one that dies is started anew from the checkpoint, perhaps elsewhere, and the one
        before may live on, with an epoch that it applied for a task that failed. Were it asked again, its state would
        go on where the other's output was used.
        """
        if before is None or before.epoch == self._restored or ack.keeper == before.keeper:
            return
        raise KeeperError(
            f"operator '{ack.uid}', partition {ack.partition}: epoch {before.epoch} was applied by process "
            f"{before.pid} on {before.host}, and epoch {ack.epoch} by another keeper, process {ack.pid} on {ack.host}",
            hint="the job goes back to its last checkpoint, with one of them",
        )

    def _control(self, instructions: Instructions, kind: int, *, start: bool = False) -> list[Ack]:
        if not self._refs:
            return []
        ask = self._ask_here if self._only_executor else self._ask_spark
        try:
            found = ask(instructions, kind, start)
        except Exception:
            self.check_executors()
            raise
        return [msgspec.msgpack.decode(ack, type=Ack) for ack in found]

    def _ask_here(self, instructions: Instructions, kind: int, start: bool) -> list[bytes]:
        """Ask every keeper from here: a Spark job takes a hundred times as long, and in a cold JVM seconds."""
        worker = ControlWorker(
            list(self._refs.values()), instructions, kind, self._programs if start else None, self._only_executor
        )
        with ThreadPoolExecutor(len(self.slots), thread_name_prefix="strandline-ask") as pool:
            asked = [pool.submit(worker.ask, self._refs[uid], part) for uid, part in sorted(self.slots)]
            return [ack for answer in asked for ack in answer.result()]

    def _ask_spark(self, instructions: Instructions, kind: int, start: bool) -> list[bytes]:
        # Its tasks wait for executors that others keep busy. Those of other machines are to be pinged meanwhile.
        limit_s = {p.PING: self._renew_s, p.STOP: _STOP_S}.get(kind)
        group = f"{self._exchanges.job_group}-lease" if kind == p.PING else self._exchanges.job_group

        def ask(exchange: Exchange, uids: Sequence[str]) -> list[bytes]:
            refs = [self._refs[uid] for uid in uids]
            worker = ControlWorker(refs, instructions, kind, self._broadcasts if start else None, renew_s=self._renew_s)
            with self.breakable(group), self._limited(group, limit_s):
                rows: list[Any] = exchange.partitions.mapInArrow(worker, schema_of("ack binary")).collect()
            return [bytes(row.ack) for row in rows]

        (first, *others) = self._exchanges.shared
        if not others:
            return ask(*first)
        # At once: what is restored takes as long as the slowest, not as long as all.
        asked = [self._pool.submit(ask, *each) for each in (first, *others)]
        return [ack for answer in asked for ack in answer.result()]


def _only_executor(spark: SparkSession) -> Executor | None:
    """Return the JVM as the executor when it runs all tasks itself, on this machine and in this Python; else None."""
    sc: Any = spark.sparkContext
    if not has_one_process(sc.master) or not is_this_python(sc.pythonExec):
        return None
    return Executor(int(sc._jvm.java.lang.ProcessHandle.current().pid()), sc.environment)


def _keepers_here(root: Path, generation: Generation) -> list[int]:
    """Return the processes of this machine that are a run's keepers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = _command_of(process)
            if command[1:3] == ["-m", "strandline.keeper.process"] and len(command) > 7:
                listens_at, generation_of = command[3], command[7]
                if Path(listens_at).parent == root and generation_of == str(generation):
                    found.append(int(process.name))
    return found


def _command_of(process: Path) -> list[str]:
    """Return what a process was started with.

    Between a process' old program and its new one the kernel knows no arguments; then it has a program all the same,
    which one that has ended, or one of the kernel's, has not.
    """
    deadline = time.monotonic() + _EXEC_S
    while not (command := (process / "cmdline").read_text(errors="replace")) and time.monotonic() < deadline:
        (process / "exe").readlink()
        time.sleep(_EXEC_LOOK_S)
    return command.split("\0")
