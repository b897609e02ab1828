"""What polls and stops make of keepers that fail, are gone, or cannot be reached. Without Spark."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from strandline.core.errors import KeeperError, StrandlineError
from strandline.core.failure import to_failure
from strandline.core.ids import Epoch, Generation, Partition
from strandline.keeper import protocol as p
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack, Connection, Instructions, LookupAnswer
from strandline.runtime.state.lookups import LookupEntries
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.keepers import worker
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.keepers.watch import Slot
from strandline.spark.keepers.worker import ControlWorker, Executor, KeeperRef

Answer = Callable[[Connection], None]


class Answering(KeeperRef):
    """A keeper whose answer is there already."""

    def __init__(self, places: Places, answer: Answer) -> None:
        super().__init__(places, "op", Generation(1))
        self._answer = answer

    def connect(self, partition: Partition, timeout_s: float | None = None) -> Connection | None:
        ours, its = socket.socketpair()
        self._answer(Connection(its))
        its.shutdown(socket.SHUT_WR)
        self._its = its
        return Connection(ours)

    def close(self) -> None:
        self._its.close()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, "file:///c", "job")


def ask(keeper: KeeperRef) -> list[bytes]:
    asking = ControlWorker([keeper], Instructions(generation=1, epoch=1), p.STOP)
    found: list[bytes] = []
    for batch in asking(iter([pa.record_batch({"partition": [0]})])):
        found += batch.column(0).to_pylist()
    return found


def marked(keeper: KeeperRef) -> StrandlineError:
    with pytest.raises(RuntimeError) as caught:
        ask(keeper)
    error = unwrap_error(caught.value)
    assert isinstance(error, StrandlineError)
    return error


def test_an_ack_is_an_answer(places: Places) -> None:
    ack = Ack(uid="op", partition=0, epoch=1, pid=1, host="h", keeper="k")
    with closing(Answering(places, lambda keeper: keeper.send(p.ACK, ack))) as keeper:
        assert ask(keeper) == [msgspec.msgpack.encode(ack)]


@pytest.mark.parametrize("answer", [lambda keeper: None, lambda keeper: keeper.send(p.NEED_PROGRAM)])
def test_a_keeper_that_went_or_knows_nothing_gives_no_answer(places: Places, answer: Answer) -> None:
    with closing(Answering(places, answer)) as keeper:
        assert ask(keeper) == []


def test_a_keeper_that_is_not_there_gives_no_answer(places: Places) -> None:
    assert ask(KeeperRef(places, "op", Generation(1))) == []


def test_a_keepers_failure_is_an_answer(places: Places) -> None:
    failure = to_failure(KeeperError("the keeper failed: disk on fire"))
    with closing(Answering(places, lambda keeper: keeper.send(p.FAILED, failure))) as keeper:
        error = marked(keeper)
    assert isinstance(error, KeeperError)
    assert "disk on fire" in error.message


@pytest.fixture
def silent(places: Places) -> Iterator[KeeperRef]:
    """A keeper that the machine does not let run: it can be connected to, and never answers."""
    places.make()
    keeper = KeeperRef(places, "op", Generation(1))
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(places.socket("op", Partition(0), Generation(1))))
        listener.listen(16)
        yield keeper


@pytest.mark.parametrize("kind", [p.PING, p.STOP])
def test_what_a_keeper_answers_at_once_is_not_waited_for_for_ever(
    silent: KeeperRef, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_TIMEOUTS_S", {kind: 0.1})
    assert ControlWorker([silent], Instructions(generation=1, epoch=1), kind).ask(silent, Partition(0)) == []


def test_a_look_at_reports_ends_with_a_keeper_that_does_not_answer(
    silent: KeeperRef, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the supervisor's loop: on an overloaded machine, each keeper would delay a stop by its time-out."""
    monkeypatch.setattr(worker, "_TIMEOUTS_S", {p.PING: 0.1})
    fleet._only_executor, fleet._refs = Executor(1, {}), {"op": silent}
    asked: list[Partition] = []
    connect = KeeperRef.connect

    def note(keeper: KeeperRef, partition: Partition, timeout_s: float | None = None) -> Connection | None:
        asked.append(partition)
        return connect(keeper, partition, timeout_s)

    monkeypatch.setattr(KeeperRef, "connect", note)
    slots = [("op", Partition(0)), ("op", Partition(1))]
    assert list(fleet.look(slots)) == []
    assert asked == [0]


def test_a_keeper_that_does_not_answer_costs_the_others_no_lease(
    silent: KeeperRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PING_S", 0.1)
    renewed: list[int] = []

    def answer(listener: socket.socket) -> None:
        with closing(Connection(listener.accept()[0])) as connection:
            renewed.append(connection.expect(p.PING)[0])
            connection.send(p.ACK, Ack(uid="op", partition=1, epoch=1, pid=1, host="h", keeper="k"))

    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(silent.places.socket("op", Partition(1), Generation(1))))
        listener.listen(16)
        answering = threading.Thread(target=answer, args=(listener,))
        answering.start()
        silent.renew_all()
        answering.join()
    assert renewed == [p.PING]


def test_keepers_that_are_ready_live_on_while_another_restores(silent: KeeperRef) -> None:
    renewed = threading.Event()

    def listen(partition: int, converse: Callable[[Connection], None]) -> threading.Thread:
        path = silent.places.socket("op", Partition(partition), Generation(1))
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(16)

        def serve() -> None:
            with listener, closing(Connection(listener.accept()[0])) as connection:
                converse(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return thread

    def be_ready(connection: Connection) -> None:
        connection.expect(p.PING)
        renewed.set()
        connection.send(p.ACK, ack)

    def restore(connection: Connection) -> None:
        connection.expect(p.POLL)
        connection.send(p.NEED_PROGRAM)
        connection.expect(p.PROGRAM)
        failed = to_failure(KeeperError("the others were forgotten"))
        connection.send(*((p.ACK, ack) if renewed.wait(10) else (p.FAILED, failed)))

    ack = Ack(uid="op", partition=0, epoch=1, pid=1, host="h", keeper="k")
    threads = [listen(0, be_ready), listen(1, restore)]
    asking = ControlWorker([silent], Instructions(generation=1, epoch=1), p.POLL, {"op": b"program"}, renew_s=0.05)
    assert asking.ask(silent, Partition(1)) == [msgspec.msgpack.encode(ack)]
    for thread in threads:
        thread.join()


@pytest.fixture
def fleet(places: Places) -> Fleet:
    """A fleet whose Spark is not asked for anything but what a task has accumulated."""
    acks = SimpleNamespace(value=[])
    memory = SimpleNamespace(keys=lambda: SimpleNamespace(mkString=lambda between: "elsewhere:1"))
    java = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: memory))
    context = SimpleNamespace(
        master="spark://elsewhere", _temp_dir=str(places.root), accumulator=lambda *_: acks, _jsc=java
    )
    return Fleet(SimpleNamespace(sparkContext=context), places, Generation(1), [], None)  # type: ignore[arg-type]


def accumulated(fleet: Fleet, *acks: Ack) -> dict[Slot, Ack]:
    fleet._acks.value = [msgspec.msgpack.encode(ack) for ack in acks]
    return fleet.take_acks(2)


def test_a_retried_task_brings_the_same_keepers_ack_again(fleet: Fleet) -> None:
    first, again = (Ack(uid="op", partition=0, epoch=2, pid=7, host="h", keeper="a", pause_ms=ms) for ms in (1.0, 2.0))
    other = Ack(uid="op", partition=1, epoch=2, pid=8, host="h", keeper="b")
    before = Ack(uid="op", partition=0, epoch=1, pid=6, host="h", keeper="c")
    assert accumulated(fleet, before, first, other, again) == {("op", 0): again, ("op", 1): other}
    assert accumulated(fleet, again) == {("op", 0): again}


@pytest.mark.parametrize("at_once", [True, False])
def test_two_keepers_of_one_partition_are_refused(fleet: Fleet, at_once: bool) -> None:
    one = Ack(uid="op", partition=3, epoch=2, pid=7, host="here", keeper="a")
    two = msgspec.structs.replace(one, pid=8, keeper="b")
    if not at_once:
        accumulated(fleet, one)
    with pytest.raises(KeeperError) as caught:
        accumulated(fleet, *([one, two] if at_once else [two]))
    said = (
        "operator 'op', partition 3: epoch 2 was applied by process 7 on here, and epoch 2 by another keeper, process"
    )
    assert caught.value.message == f"{said} {two.pid} on {two.host}"


def test_a_keeper_that_was_replaced_and_lives_on_is_not_believed(fleet: Fleet) -> None:
    answered = LookupEntries(epoch=Epoch(2), entries=[])
    replies = {
        Partition(part): msgspec.msgpack.encode(LookupAnswer(keeper=f"k{part}", entries=answered)) for part in (0, 1, 2)
    }
    for partition, keeper in ((0, "k0"), (1, "another")):
        fleet.last["op", Partition(partition)] = Ack(
            uid="op", partition=partition, epoch=2, pid=1, host="h", keeper=keeper
        )
    believed = fleet._decode_answers("op", replies, LookupAnswer)
    assert {partition: answer.entries for partition, answer in believed.items()} == {0: answered, 2: answered}


class Told:
    """A fleet whose keepers answer what a test says."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        fleet._control = lambda *_, **__: [self.answer]  # type: ignore[method-assign]

    def open(self, ack: Ack) -> None:
        self.answer = ack
        self.fleet.open(Epoch(ack.epoch))

    def poll(self, ack: Ack) -> None:
        self.answer = ack
        self.fleet.poll(Instructions(generation=1, epoch=ack.epoch))


def test_a_keeper_is_replaced_before_the_first_epoch_after_a_restore_and_not_later(fleet: Fleet) -> None:
    """X applied epoch 2 for a task that failed, on a host that Spark left for a time; Y did for the one that counted."""
    told = Told(fleet)
    x, y = (Ack(uid="op", partition=0, epoch=1, pid=pid, host=host, keeper=host) for pid, host in ((7, "x"), (8, "y")))
    told.open(x)
    told.poll(y)
    told.poll(x)
    applied = [msgspec.structs.replace(ack, epoch=2) for ack in (x, y)]
    accumulated(fleet, applied[1])
    with pytest.raises(KeeperError, match="epoch 2 was applied by process 8 on y, and epoch 2 by another keeper"):
        told.poll(applied[0])
    # Not what X says of an epoch that it has, and nothing that it goes on with.
    fleet._acks.value = [msgspec.msgpack.encode(msgspec.structs.replace(x, epoch=3))]
    with pytest.raises(KeeperError, match="epoch 2 was applied by process 8 on y, and epoch 3 by another keeper"):
        fleet.take_acks(3)
    told.poll(applied[1])


def test_a_connection_that_cannot_be_made_is_told(places: Places) -> None:
    places.make()
    places.root.rmdir()
    # In the directory's place there is a file: another error than an absent socket.
    places.root.touch()
    error = marked(KeeperRef(places, "op", Generation(1)))
    assert isinstance(error, KeeperError)
    assert "Not a directory" in error.message
