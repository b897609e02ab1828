"""A small client of a keeper's socket, and keepers as real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.api.states import Value
from strandline.core.ids import Epoch, Generation, Partition
from strandline.format.keys import KeyCodec
from strandline.format.manifest import FileRef, OperatorInfo
from strandline.format.values import ValueCodec
from strandline.keeper import protocol as p
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack, Begin, Connection, Instructions, Lookup, LookupAnswer, Report
from strandline.keeper.rowproof import RowCounter
from strandline.keeper.spawning import NURSERY
from strandline.keeper.watchdog import process_start
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.program import Program, Restore
from strandline.runtime.state.lookups import LookupEntries, LookupRequest
from strandline.runtime.state.sequence_lock import SequenceLock
from strandline.runtime.state.store import Store
from strandline.runtime.task.task import EpochTimes, Task
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import LongType, StringType, parse_schema
from strandline.types.murmur import key_group
from tests.runtime.bench import ANSWERS, MAX_PARALLELISM, Event, batch_of, program

TIMEOUT_S = 30.0


def eventually(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until the condition holds; return its value."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(0.01)
    return found


class Counter(KeyedProcess):
    """Counts the events of a key, and does what an event says."""

    seen = Value("bigint", default=0)
    filling = Value("string")

    def open(self) -> None:
        if os.environ.get("TEST_NOT_OPENED"):
            raise ValueError("not today")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        getattr(self, event.op)(event.a)
        yield ctx.key, str(self.seen.value) + "." * (event.b if event.op == "big" else 0)

    def count(self, a: int) -> None:
        pass

    big = count

    def fill(self, a: int) -> None:
        self.filling.value = os.urandom(a).hex()

    def fail(self, a: int) -> None:
        raise LookupError(f"no {a} here")

    def wait(self, a: int) -> None:
        time.sleep(a / 1000)

    def break_task(self, a: int) -> None:
        def broken(it: Task | Store) -> None:
            raise MemoryError("broken by a test")

        # The class of this keeper's process, which ends with it.
        setattr(*((Task, "commit"), (Store, "tidy"))[a], broken)

    def break_acks(self, a: int) -> None:
        def broken(task: Task) -> None:
            raise IndexError("changed by the main thread meanwhile")

        name = "next_timers_us"
        setattr(Task, name, property(broken))
        self.wait(a)

    def disturb(self, a: int) -> None:
        """Have look-ups find that the state has changed, wherever it can."""

        def read(turns: SequenceLock, of: Callable[[], Any]) -> Any:
            return of() if threading.current_thread() is threading.main_thread() else None

        SequenceLock.read = read  # type: ignore[method-assign]

    def hurry(self, a: int) -> None:
        socket.setdefaulttimeout(a / 1000)

    def leave(self, a: int) -> None:
        sys.exit(a)

    def fork(self, a: int) -> None:
        if not os.fork():
            time.sleep(a / 1000)
            os._exit(0)

    def close(self) -> None:
        if marker := os.environ.get("TEST_CLOSED"):
            Path(marker).touch()


def count_events(partition: OperatorPartition, epoch: int, counts: dict[str, int], keys: Sequence[str]) -> None:
    """Have a partition in this process count an event of each key in an epoch; check the counts, and add them."""
    found: list[tuple[Any, ...]] = []
    for output in partition.run(Epoch(epoch), EpochTimes(), [batch_of([(key, "count", 0, 0) for key in keys])]):
        found += [tuple(row.values()) for row in output.to_pylist()]
    partition.commit()
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    assert sorted(found) == sorted((key, str(counts[key])) for key in keys)


class Talk:
    """One conversation."""

    def __init__(self, connection: Connection, program: Program) -> None:
        self.connection = connection
        self.counter = RowCounter()
        self.is_replay = False
        self._program = program

    def ask(self, kind: int, message: Any, *answers: int) -> tuple[int, pa.Buffer]:
        """Send the first frame, and the program if it is wanted; return the answer."""
        self.connection.send(kind, message)
        answer, payload = self.connection.expect(p.NEED_PROGRAM, *answers)
        if answer == p.NEED_PROGRAM:
            self.connection.send(p.PROGRAM, self._program)
            answer, payload = self.connection.expect(*answers)
        return answer, payload

    def begin(self, instructions: Instructions) -> int:
        schema = batch_of([], self._program.input_schema).schema
        answer, _ = self.ask(
            p.BEGIN, Begin(instructions=instructions, schema=schema.serialize().to_pybytes()), p.READY, p.REPLAY
        )
        self.is_replay = answer == p.REPLAY
        return answer

    def rows(self, *batches: Sequence[Event]) -> None:
        for events in batches:
            batch = batch_of(events)
            self.counter.add(batch.column(0))
            if not self.is_replay:
                self.connection.send(p.ROWS, batch.serialize())

    def end(self) -> None:
        self.connection.send(p.END, self.counter.proof)

    def finish(self) -> tuple[list[bytes], Ack]:
        """Read the rest; return the output's frames and the ack."""
        frames = []
        while True:
            kind, payload = self.connection.expect(p.OUTPUT, p.ACK)
            if kind == p.ACK:
                return frames, msgspec.msgpack.decode(payload, type=Ack)
            frames.append(payload.to_pybytes())

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process:
    """A keeper's process, a fork as those of a driver are: most of a program's start is imports."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        pid = NURSERY.start(arguments, log, environment)
        assert pid is not None
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess` has it; None if it is alive."""
        if self._code is None:
            self._code = NURSERY.exit_code(self.pid)
        return self._code

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        eventually(lambda: self.poll() is not None, "the keeper has ended", timeout_s)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Keeper:
    """A keeper's process, its places, and what its driver would know of it."""

    def __init__(
        self, root: Path, storage: Path, *, watched: int = 0, env: dict[str, str] | None = None, **given: Any
    ) -> None:
        given.setdefault("store_url", f"file://{storage}")
        self.program = program(Counter(), **given)
        self.generation = self.program.generation
        self.epoch = self.program.restore.epoch if self.program.restore else 0
        self.last: Sequence[Sequence[Event]] = ()
        """The batches of the last epoch."""
        self.places = Places(root, self.program.store_url, self.program.job)
        self.places.make()
        self.socket = self.places.socket(self.program.uid, Partition(0), Generation(self.generation))
        self.directory = self.places.state(self.program.uid, Partition(0))
        self.log = root / f"log-{self.generation}"
        watched = watched or os.getpid()
        self.process = Process(
            [str(self.socket), str(self.directory), str(watched), process_start(watched), str(self.generation)],
            self.log,
            {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self) -> Talk:
        def connected() -> socket.socket | None:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(TIMEOUT_S)
            try:
                sock.connect(str(self.socket))
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                assert self.process.poll() is None, self.log.read_text()
                return None
            return sock

        return Talk(Connection(eventually(connected, "the keeper listens")), self.program)

    def instructions(self, epoch: int, pending: int | Sequence[int] | None = None, **given: Any) -> Instructions:
        in_flight = [pending] if isinstance(pending, int) else list(pending or ())
        return Instructions(generation=self.generation, epoch=epoch, in_flight=in_flight, **given)

    def run(self, *batches: Sequence[Event], epoch: int = 0, **given: Any) -> tuple[list[bytes], Ack]:
        """Have an epoch processed, the next one if none is given, or replayed."""
        epoch = epoch or self.epoch + 1
        with self.connect() as talk:
            talk.begin(self.instructions(epoch, **given))
            # A keeper that gives up closes its side; why, it has said before.
            with contextlib.suppress(OSError):
                talk.rows(*(batches or self.last if talk.is_replay else batches))
                talk.end()
            if not talk.is_replay:
                self.last = batches
            found = talk.finish()
        self.epoch = epoch
        return found

    def counts(self, *keys: str) -> list[tuple[str, str]]:
        """Count an event of each key; return what is counted."""
        return answers(self.run([(key, "count", 0, 0) for key in keys])[0])

    def look_up(self, state: str, *keys: str, now_us: int = 0, most: int = 0) -> LookupEntries:
        """Look up keys of the only key column; with `most`, list so many."""
        types = [StringType()]
        codec = KeyCodec(types)
        encoded = [codec.encode(key_group([key], types, MAX_PARALLELISM), key) for key in keys]
        asked = LookupRequest(state=state, keys=encoded, now_us=now_us, most=most)
        with self.connect() as talk:
            talk.connection.send(p.LOOKUP, Lookup(generation=self.generation, request=asked))
            _, payload = talk.connection.expect(p.LOOKUP_ANSWER)
        return msgspec.msgpack.decode(payload, type=LookupAnswer).entries

    def first_seen(self, most: int) -> tuple[int, dict[str, int]]:
        """List keys that were counted, with their counts; return the epoch that this is of, too."""
        answered, codec = self.look_up("seen", most=most), ValueCodec(LongType())
        keys = KeyCodec([StringType()]).decode_many(answered.keys)
        return answered.epoch, {key: codec.decode(of[0][1]) for key, of in zip(keys, answered.entries, strict=True)}

    def seen(self, *keys: str) -> tuple[int, list[int | None]]:
        """Look up how often keys were counted; return the epoch that this is of, too."""
        answered, codec = self.look_up("seen", *keys), ValueCodec(LongType())
        return answered.epoch, [codec.decode(found[0][1]) if found else None for found in answered.entries]

    def poll(self, epoch: int | None = None, **given: Any) -> Ack:
        with self.connect() as talk:
            _, payload = talk.ask(p.POLL, self.instructions(self.epoch if epoch is None else epoch, **given), p.ACK)
        return msgspec.msgpack.decode(payload, type=Ack)

    def checkpoint(self, number: int, confirmed: int | None = None) -> Report:
        """Take a checkpoint without an epoch; return its report."""
        self.poll(trigger=number, pending=number, confirmed=confirmed)
        return self.report(number)

    def report(self, number: int) -> Report:
        def reported() -> Report | None:
            found = [r for r in self.poll(pending=number).reports if r.checkpoint == number]
            return found[0] if found else None

        report: Report = eventually(reported, f"a report of checkpoint {number}")
        return report

    def stop(self, *, forget: bool = False) -> None:
        with self.connect() as talk:
            talk.connection.send(p.STOP, self.instructions(0, forget=forget))
            talk.connection.expect(p.ACK)
        assert self.ended() == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> int:
        """Wait until the process has ended by itself; return its code."""
        return self.process.wait(TIMEOUT_S)

    def opened(self) -> tuple[int, int]:
        """Return how many files and threads the process has."""
        return len(self.files()), len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def files(self) -> list[str]:
        """Return what the process holds open."""
        found = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(str(link.readlink()))
        return found

    def restored(self) -> tuple[int, int]:
        """Return how many bytes the keeper restored from its local copy, and from storage, as its log says."""
        words = next(line for line in self.log.read_text().splitlines() if "restored checkpoint" in line).split()
        at = words.index("bytes")
        return int(words[at - 1]), int(words[words.index("storage") - 2])


def answers(frames: Sequence[bytes]) -> list[tuple[str, str]]:
    """Return the rows of an output."""
    schema = arrow_schema(parse_schema(ANSWERS))
    batches = [pa.ipc.read_record_batch(pa.py_buffer(frame), schema) for frame in frames]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def restore_of(report: Report, epoch: int, backend: str = "rocksdb") -> Restore:
    assert report.info is not None, report.failure
    stored = OperatorInfo(
        uid="op", backend=backend, parallelism=1, max_parallelism=MAX_PARALLELISM, key_schema="`k` string", states=[],
        partitions=[report.info],
    )  # fmt: skip
    return Restore(checkpoint=report.checkpoint, epoch=epoch, stored=stored)


def shared(files: Sequence[FileRef]) -> dict[str, str]:
    return {ref.name: ref.path for ref in files if ref.shared}


class Nursery:
    """Starts keepers of one job on one machine, and leaves none behind."""

    def __init__(self, root: Path) -> None:
        # A socket has only so long a path, and names of tests are long.
        self.root = root / "l"
        self.storage = root / "storage"
        self._keepers: list[Keeper] = []

    def start(self, **given: Any) -> Keeper:
        self._keepers.append(Keeper(self.root, self.storage, **given))
        return self._keepers[-1]

    def objects(self) -> set[str]:
        """Return the paths of everything in storage."""
        found = self.storage.rglob("*")
        return {str(path.relative_to(self.storage)) for path in found if path.is_file()}

    def close(self) -> None:
        for keeper in self._keepers:
            keeper.kill()
        shutil.rmtree(self.root, ignore_errors=True)
