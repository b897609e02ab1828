"""What a driver can tell, without Spark: when timers get an epoch, when everything is processed, whose ack it is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, CorruptionError, KeeperError, UnavailableError
from strandline.core.failure import from_failure, to_failure
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.times import END_US
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack, Report
from strandline.spark.job.epochs import BatchHandler, EpochDriver
from strandline.spark.job.progress import JobProgress
from tests.spark.runs import attempt, run_of
from tests.spark.test_silence import Reading, query_of


@pytest.mark.parametrize(
    ("given", "ticks"),
    [
        ({"active": False, "idle_s": 0.3}, 1),
        ({"active": True, "idle_s": 0.3}, 0),
        ({"active": True, "idle_s": 3.0}, 1),
        ({"active": False, "idle_s": 0.01}, 0),
        ({"active": False, "idle_s": 0.3, "due": False}, 0),
        ({"active": False, "idle_s": 0.3, "running": True}, 0),
    ],
)
def test_a_tick_does_not_come_before_an_epoch_with_rows(given: dict[str, Any], ticks: int) -> None:
    made = attempt(**given)
    made._poll_if_idle()
    assert len(made.ticks) == ticks


@pytest.mark.parametrize(("batch", "has_begun", "polls"), [(-1, False, False), (-1, True, True), (4, False, True)])
def test_no_checkpoint_waits_for_the_first_look_at_the_sources(batch: int, has_begun: bool, polls: bool) -> None:
    """A listing that takes longer than a checkpoint may would end each attempt of a new job."""
    made, polled = attempt(active=True, idle_s=0.3, due=False), list[bool]()
    made.coordinator.is_due, made.driver.batch = True, batch
    made._sources = SimpleNamespace(has_begun=lambda has_looked: has_begun)
    made.driver.poll = lambda may_trigger: polled.append(may_trigger)
    made._poll_if_idle()
    assert polled == [True] * polls


@pytest.mark.parametrize(("batch", "has_begun", "waits"), [(-1, False, True), (-1, True, False), (4, False, False)])
def test_a_checkpoint_of_a_tick_does_not_time_out_before_the_first_look(
    batch: int, has_begun: bool, waits: bool
) -> None:
    """Timers that a snapshot has are due at once: the tick triggers it, whether sources have begun or not."""
    made, postponed = attempt(active=True, idle_s=0.01, due=False), list[int]()
    made.driver.failed, made.driver.epoch_carries_trigger, made.driver.batch = threading.Event(), False, batch
    made.driver.progress, made._has_reported = JobProgress(Epoch(0)), True
    made.driver.watermarks.reached_us, made.driver.is_running = 0, True
    made.coordinator = SimpleNamespace(
        pending=CheckpointId(1),
        is_due=False,
        advance=lambda: None,
        postpone=lambda: postponed.append(1),
        take_ended=list,
    )
    made._sources = SimpleNamespace(has_begun=lambda has_looked: has_begun, deliver=lambda has_looked: None)
    looks = iter([False, True])
    made._query_finished = lambda: False
    assert not made._watch_until(lambda: next(looks))
    assert bool(postponed) == waits


class Panic(BaseException):
    """As a library in Rust raises it."""


def call(driver: EpochDriver, df: Any, batch: int) -> None:
    """Do what Spark does with a batch."""
    batches = BatchHandler()
    batches.begin(driver)
    batches(df, batch)


def test_a_batch_waits_until_keepers_have_restored_and_ends_if_the_run_does_not_start() -> None:
    driver, ran = gated()
    batches = BatchHandler()
    calling = threading.Thread(target=batches, args=("rows", 6))
    calling.start()
    calling.join(0.05)
    assert calling.is_alive()
    assert not ran
    batches.begin(driver)
    calling.join()
    batches.give_up()
    batches("more", 7)
    assert ran == ["rows", "more"]
    refused = BatchHandler()
    refused.give_up()
    with pytest.raises(KeeperError, match="the run did not start"):
        refused("rows", 6)


@pytest.mark.parametrize("error", [KeeperError("a sink failed at the end"), Panic("a sink failed at the end")])
def test_after_a_tick_that_failed_no_epoch_has_its_number(error: BaseException) -> None:
    """Spark's thread waits for its turn meanwhile: keepers without rows would take its epoch for the tick's, again."""
    reading = Reading()
    driver: Any = reading.driver
    driver.has_due, driver._no_rows = lambda by_us: True, SimpleNamespace()
    driver._run = lambda df, epoch, looked_us=None: (_ for _ in ()).throw(error)
    with pytest.raises(type(error), match="a sink failed"):
        driver.tick()
    with pytest.raises(KeeperError, match="has ended already"):
        call(driver, SimpleNamespace(), 1)
    assert driver.error is error


@pytest.mark.parametrize("error", [Panic("no unwrap"), SystemExit(1)])
def test_spark_has_an_answer_where_an_epoch_ends_with_what_is_no_exception(error: BaseException) -> None:
    """Py4J gives none then: the JVM waits for it for ever, and so does who stops the query."""
    driver: Any = Reading().driver
    driver._run = lambda df, epoch, looked_us=None: (_ for _ in ()).throw(error)
    with pytest.raises(KeeperError):
        call(driver, None, 6)
    assert driver.error is error
    assert driver.failed.is_set()


@pytest.mark.parametrize("batch", [0, 5, 7])
def test_a_query_that_does_not_go_on_where_the_checkpoint_was_processes_nothing(batch: int) -> None:
    """Spark finds no progress where it is gone by the time that it looks: it would begin anew, and all count twice."""
    reading = Reading()
    with pytest.raises(KeeperError, match=f"began with batch {batch} of the sources, expected 6"):
        call(reading.driver, None, batch)
    assert isinstance(reading.driver.error, CorruptionError)
    assert reading.driver.failed.is_set()
    assert reading.driver.progress.epoch == 0


def test_no_tick_comes_after_a_last_checkpoint() -> None:
    driver: Any = object.__new__(EpochDriver)
    driver._lock, driver.paused, driver.failed = threading.Lock(), threading.Event(), threading.Event()
    driver.sealed, driver.is_draining, driver.drained = threading.Event(), False, False
    driver.progress, driver._no_rows = JobProgress(Epoch(7)), object()
    driver.has_due = lambda by_us: True
    ran: list[Epoch] = []
    driver._run = lambda df, epoch: ran.append(epoch)
    driver.paused.set()
    assert not driver.tick()
    assert not ran
    driver.paused.clear()
    assert driver.tick()
    assert ran == [8]
    driver._lock = Turns(driver.paused.set)
    assert not driver.tick(), "paused after the first look, and before the lock"
    assert ran == [8]


class Turns:
    """A lock before whose turns something happens, in this order: what a thread has seen may not be so any more."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self._happens = iter(happens)

    def acquire(self, *, blocking: bool = True) -> bool:
        del blocking
        next(self._happens, lambda: None)()
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        pass


def gated() -> tuple[Any, list[Any]]:
    """Return an epoch driver, and what its epochs are given."""
    driver: Any = Reading().driver
    ran: list[Any] = []
    driver._run = lambda df, epoch, looked_us=None: ran.append(df)
    driver._no_rows = "nothing"
    return driver, ran


def test_an_epochs_error_is_seen_with_its_reason_only() -> None:
    driver, _ = gated()
    seen: list[BaseException | None] = []

    def explain(error: BaseException) -> BaseException:
        seen.append(driver.error)
        return UnavailableError("the query was stopped")

    driver.error, driver.explain, driver._run = None, explain, lambda *given: 1 / 0
    with pytest.raises(KeeperError, match="the query was stopped"):
        call(driver, "rows", 6)
    assert seen == [None]
    assert type(driver.error) is UnavailableError


def test_a_batch_that_waits_for_the_lock_begins_no_epoch_of_a_run_that_was_paused_meanwhile() -> None:
    driver, ran = gated()
    before: list[list[Any]] = []
    driver._lock = Turns(driver.paused.set, lambda: (before.append([*ran]), driver.paused.clear()))
    call(driver, "rows", 6)
    assert (before, ran) == ([[]], ["rows"])


def test_a_batch_that_waits_for_the_lock_begins_no_epoch_behind_the_end_of_time() -> None:
    """All of its rows would be late, and the sources' place behind them."""
    driver, ran = gated()
    driver._lock = Turns(driver.drain, lambda: None, driver.sealed.set)
    with pytest.raises(KeeperError, match="has ended already"):
        call(driver, "rows", 6)
    assert (driver.drained, ran) == (True, ["nothing"])


def test_what_the_clock_has_made_due_comes_before_the_end_of_event_time() -> None:
    """Rows that get their event time behind such timers would be late; and what is due later comes not at all."""
    reading = Reading()
    driver: Any = reading.driver
    driver._no_rows = "nothing"
    began_us = driver.now_us
    ran: list[tuple[bool, int]] = []
    # As if the first epoch, which passes, had set another timer, and the second one for a moment later.
    following = iter([began_us, began_us + 1, None])

    def run(df: Any, epoch: Epoch) -> None:
        ran.append((driver.watermarks.reached_us == END_US, driver.now_us))
        reading.clock.now_s += 60
        due_us = next(following)
        driver.progress.acks["op", 0] = SimpleNamespace(uid="op", next_event_us=None, next_processing_us=due_us)

    driver._run = run
    driver.progress.acks["op", 0] = SimpleNamespace(uid="op", next_event_us=None, next_processing_us=began_us - 5)
    assert [driver.drain() for _ in range(3)] == [False, False, True]
    assert ran == [(False, began_us), (False, began_us), (True, began_us)]


def test_no_tick_comes_for_what_is_not_due_since_the_clock_was_set_back() -> None:
    """No timer would fire in it, and as it stays due, another one would follow, until the clock is there again."""
    reading = Reading()
    driver: Any = reading.driver
    driver._run, driver._no_rows = lambda df, epoch: None, "nothing"
    finished_us = driver.now_us
    driver.progress.acks["op", 0] = SimpleNamespace(uid="op", next_event_us=None, next_processing_us=finished_us - 5)
    assert driver.tick(finished_us)
    reading.clock.now_s -= 3600
    assert not driver.tick(finished_us)
    assert not driver.has_due(finished_us)


def test_a_run_that_is_paused_is_not_drained() -> None:
    """Its last checkpoint becomes a savepoint: what a drain gives would be shown, and come again behind that."""
    driver, ran = gated()
    driver._lock = Turns(driver.paused.set)
    assert not driver.drain()
    assert (driver.drained, ran) == (False, [])


def test_a_job_whose_source_has_ended_waits_for_timers_while_it_is_paused() -> None:
    made = attempt(active=False, idle_s=0.01)
    over = iter([False, False, True])
    made.driver.failed, made.driver.paused = threading.Event(), threading.Event()
    made.driver.paused.set()
    made.driver.epoch_carries_trigger, made._finished_us = False, 1
    made.driver.progress = JobProgress(Epoch(0))
    made.driver.watermarks.reached_us, made.driver.sealed = 0, threading.Event()
    made.driver.tick = lambda by_us: False
    made._final_checkpoint_done = lambda: True
    made.coordinator.advance = lambda: None
    made._sources = SimpleNamespace(deliver=lambda looked: None)
    assert not made._watch_until(lambda: next(over))
    made.driver.paused.clear()
    assert made._watch_until(lambda: False)


def test_a_job_that_has_ended_but_for_what_it_writes_to_is_not_restarted() -> None:
    """It would come to its end again, and wait again, for ever: each time with another checkpoint."""
    made = attempt(active=False, idle_s=0.0)
    made._b.name, made.coordinator.shows_all, made._undelivered_since = "job", False, time.monotonic() - 3600
    with pytest.raises(UnavailableError, match="does not accept its last rows") as caught:
        made._is_delivered()
    supervisor = run_of()._supervisor
    assert not supervisor._may_restart(caught.value)
    assert supervisor._may_restart(UnavailableError("storage is away"))


def test_a_job_is_restarted_while_its_local_dir_cannot_be_written(tmp_path: Path) -> None:
    """Its disk may be read-only for a while, after an error. A wrong `local_dir` has been refused at the start."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        Places(tmp_path / "file", "file:///checkpoints", "job").make()
    supervisor = run_of()._supervisor
    assert supervisor._may_restart(from_failure(to_failure(caught.value)))
    assert not supervisor._may_restart(ConfigurationError("the program is wrong"))


def test_a_drained_job_that_is_restarted_waits_for_what_it_writes_to() -> None:
    made = attempt(active=False, idle_s=0.0)
    made.driver.drained, made.driver.progress = True, JobProgress(Epoch(7))
    made.restored, made._undelivered_since = SimpleNamespace(epoch=7), 0.0
    made.coordinator.shows_all = False
    assert not made._is_drained()
    made.coordinator.shows_all = True
    assert made._is_drained()


class Beating:
    """A driver whose timers set others on and on, each for a millisecond after it fires: sooner than an epoch takes."""

    def __init__(self) -> None:
        self.failed, self.paused, self.sealed = threading.Event(), threading.Event(), threading.Event()
        self.drained = self.is_running = self.epoch_carries_trigger = False
        self.watermarks: Any = SimpleNamespace(advance=lambda looked_us: None, reached_us=None)
        self.progress = JobProgress(Epoch(0))
        self._looked_us, self._passed_us, self._due_us = 0, 0, 1000

    @property
    def now_us(self) -> int:
        self._passed_us += 5000
        return self._passed_us

    def has_due(self, by_us: int | None = None) -> bool:
        """As the driver has it; where one is due, a tick comes."""
        ack: Any = SimpleNamespace(next_event_us=None, next_processing_us=self._due_us)
        self.progress.acks = {("beat", Partition(0)): ack}
        found = EpochDriver.has_due(self, by_us)  # type: ignore[arg-type]
        self._due_us = self.now_us + 1000 if found else self._due_us
        return found

    def tick(self, by_us: int | None = None) -> bool:
        return self.has_due(by_us)

    def collect_reports(self) -> None:
        pass


def test_timers_that_set_others_for_later_do_not_hold_up_who_waits_for_those_that_are_due() -> None:
    run = run_of()
    run._supervisor.attempt = SimpleNamespace(query=query_of(), driver=Beating())
    run.process_all_available(10)


def test_timers_that_set_others_for_later_do_not_hold_up_the_end() -> None:
    made = attempt(active=False, idle_s=0.01)
    made.driver = Beating()
    made._query_finished = lambda: True
    made._final_checkpoint_done = lambda: True
    made._poll_if_idle = made._report_first_epoch = lambda: None
    made.coordinator.advance = lambda: None
    made._sources = SimpleNamespace(deliver=lambda looked: None)
    looks = iter(range(50))
    assert made._watch_until(lambda: next(looks, None) is None)
    assert next(looks) > 1, "the timer that was due has fired before"


def test_a_keeper_that_was_started_anew_is_noticed_by_its_process() -> None:
    """Only before any epoch since a restore: after one, it would not be at the state that is expected."""
    retaken: list[Any] = []
    driver: Any = object.__new__(EpochDriver)
    driver.progress = JobProgress(Epoch(0))
    driver._coordinator = SimpleNamespace(retake=lambda *slot, known: retaken.append((*slot, known)))
    driver._fleet = SimpleNamespace(death_of=lambda ack: None)

    def heard(keepers: str, trigger: Any = None) -> list[Any]:
        known = enumerate(keepers)
        acks = {("op", at): Ack(uid="op", partition=at, epoch=0, pid=1, host="h", keeper=name) for at, name in known}
        driver._apply_acks(acks, trigger)
        return retaken

    assert heard("ab") == []
    assert heard("ab") == []
    assert heard("cb", 1) == [("op", 0, 1)], "the new one knows of the checkpoint that begins with it"
    assert heard("cd")[1:] == [("op", 1, None)]
    assert heard("cd")[2:] == []


def test_busy_keepers_are_asked_for_snapshots_of_output_that_was_used() -> None:
    """One that was killed and started anew for the next epoch is not open yet: its answer has no operator."""
    driver: Any = object.__new__(EpochDriver)
    driver.progress, reported = JobProgress(Epoch(3)), list[Any]()

    def ack(partition: int, keeper: str, uid: str = "op", epoch: int = 3) -> Ack:
        failure = Report(checkpoint=CheckpointId(7), failure="of " + keeper)
        return Ack(uid=uid, partition=partition, epoch=epoch, pid=1, host="h", keeper=keeper, reports=[failure])

    driver.progress.acks = {("op", at): ack(at, f"k{at}") for at in range(3)} | {("op", 3): ack(3, "k3", epoch=2)}
    driver._coordinator = SimpleNamespace(
        unreported=[(3, [("op", at) for at in range(4)])], report_failure=lambda *each: reported.append(each)
    )
    asked: list[Any] = []
    answers = [ack(0, "new", uid="", epoch=0), ack(1, "new"), ack(2, "k2", epoch=4)]
    driver._fleet = SimpleNamespace(look=lambda slots: asked.extend(slots) or answers)
    driver.collect_reports()
    assert (asked, reported) == ([("op", 0), ("op", 1), ("op", 2)], [("op", 2, 7, "of k2")])


def rescalable() -> Any:
    """Return a run, and have a thread begin it again with what it was told."""
    pipeline = SimpleNamespace(operators=[], settle=lambda said, stored: [])
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    run = run_of(settings=sl.Settings(), spark=spark, plan=SimpleNamespace(pipeline=pipeline))
    supervisor = run._supervisor
    run._requests._checkpoint_of = lambda attempt, deadline, progress: time.sleep(0.05)

    def attempt() -> Any:
        return SimpleNamespace(has=supervisor.begun_with.parallelism.job, driver=SimpleNamespace(operators=[]))

    def supervise() -> None:
        while not supervisor.ended.wait(0.01):
            if supervisor._is_over():
                time.sleep(0.05)
                supervisor.state, supervisor.attempt = "rescaling", None
                supervisor.begun_with = supervisor.desired
                supervisor.attempt, supervisor.state = attempt(), "running"

    supervisor.attempt = attempt()
    threading.Thread(target=supervise, daemon=True).start()
    return run


def test_a_signal_that_another_thread_gets_ends_the_wait_for_the_job() -> None:
    """As the system may hand it out: what only waits for an event does not wake for that."""
    program = """
import signal, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from tests.spark.runs import run_of

run = run_of()
run._control = SimpleNamespace(join=print)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
assert not run.await_termination(0.01)

def terminated() -> None:
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(60)

threading.Thread(target=terminated, daemon=True).start()
run.await_termination()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 43


def test_of_two_who_rescale_at_once_each_gets_what_he_wanted() -> None:
    run = rescalable()
    got: dict[int, int] = {}

    def rescale(parallelism: int) -> None:
        run.rescale(parallelism, timeout=10)
        got[parallelism] = run._supervisor.attempt.has

    both = [threading.Thread(target=rescale, args=(parallelism,)) for parallelism in (3, 5)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    run._supervisor.ended.set()
    assert got == {3: 3, 5: 5}


def test_a_job_that_restarts_is_rescaled_when_it_is_back() -> None:
    run = rescalable()
    supervisor = run._supervisor
    back, supervisor.attempt, supervisor.state = supervisor.attempt, None, "restarting"

    def restarted() -> None:
        supervisor.attempt, supervisor.state = back, "running"

    threading.Timer(0.1, restarted).start()
    run.rescale(3, timeout=10)
    assert supervisor.attempt.has == 3
    supervisor.state, supervisor.attempt = "restarting", None
    with pytest.raises(UnavailableError, match="is still restarting: the rescale to 4 did not begin"):
        run.rescale(4, timeout=0.05)
    run._supervisor.ended.set()
