"""What a driver can tell, without Spark: when timers get an epoch, when everything is processed, whose ack it is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, CorruptionError, KeeperError, SparkError, UnavailableError
from strandline.core.failure import from_failure, to_failure
from strandline.core.ids import Epoch, Partition
from strandline.core.times import END_US
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Ack
from strandline.runtime.watermarks import Watermarks, WatermarkSpec
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.draining import Draining
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.progress import JobProgress
from strandline.spark.job.sourcewatch import SourceWatch
from tests.spark.runs import run_of


def context_that(*, stopped: bool) -> Any:
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped)))


def attempt(*, active: bool, idle_s: float, due: bool = True, running: bool = False) -> Any:
    """Return an attempt whose epochs ended some time ago, and whose query is at work or rests."""
    ticks: list[float] = []
    made: Any = object.__new__(Attempt)
    made.driver = SimpleNamespace(
        last_contact=time.monotonic() - idle_s,
        has_due=lambda by_us: due,
        is_running=running,
        tick=lambda by_us: not ticks.append(0),
        watermarks=SimpleNamespace(may_be_idle=False),
        drained=False,
    )
    status = SimpleNamespace(isTriggerActive=lambda: active)
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
    made._watch = SourceWatch(query, 0)
    made.coordinator = SimpleNamespace(is_due=False, pending=None)
    made._b = SimpleNamespace(settings=SimpleNamespace(keeper_lease_ms=1 << 40), draining=Draining())
    made._b.spark = SimpleNamespace(sparkContext=context_that(stopped=False))
    made.restored = None
    made._finished_us = None
    made._times = SimpleNamespace(check=lambda late_rows, reached_us, now_us: None)
    made.driver.now_us = 0
    made.ticks = ticks
    return made


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


def query_of(*, active: bool = True, found_nothing: bool = False, process: Callable[[], None] = lambda: None) -> Any:
    streaming = SimpleNamespace(noNewData=lambda: found_nothing)
    return SimpleNamespace(
        isActive=active, exception=lambda: None, processAllAvailable=process, awaitTermination=lambda: None,
        _jsq=SimpleNamespace(streamingQuery=lambda: streaming),
    )  # fmt: skip


@pytest.mark.parametrize(("ends", "found_nothing"), [(False, True), (False, False), (True, False), (True, True)])
def test_only_a_query_whose_last_look_found_nothing_has_ended_by_itself(ends: bool, found_nothing: bool) -> None:
    """Spark says the same of one that somebody has stopped: what the sources still have would stay unread."""
    assert not SourceWatch(query_of(), 0, ends=ends).has_ended()
    asked: list[str] = []
    query = query_of(active=False, found_nothing=found_nothing, process=lambda: asked.append("processAllAvailable"))
    watch = SourceWatch(query, 0, ends=ends)
    if ends and found_nothing:
        assert watch.has_ended()
    else:
        with pytest.raises(SparkError, match="query of the job was stopped, and not by the job"):
            watch.has_ended()
    run = run_of(trigger={"availableNow": True} if ends else {})
    driver = SimpleNamespace(now_us=0, has_due=lambda by_us: False, failed=threading.Event())
    run._supervisor.attempt = SimpleNamespace(query=query, driver=driver)
    if not found_nothing:
        with pytest.raises(UnavailableError, match="was not exhausted"):
            run.process_all_available(0.2)
    else:
        run.process_all_available(10)
    # It would have Spark forget that the last look found nothing.
    assert bool(asked) == (not ends)


def test_a_job_whose_session_was_stopped_does_not_wait_for_its_query() -> None:
    """A query that waits for rows does not notice: Spark says that it is active."""
    made = attempt(active=False, idle_s=0.01)
    made.driver.failed, made.driver.epoch_carries_trigger = threading.Event(), False
    made.driver.progress = SimpleNamespace(epochs=0, late_rows=0)
    made.driver.watermarks.reached_us = 0
    made.coordinator.advance, made._sources = lambda: None, SimpleNamespace(deliver=lambda looked: None)
    made._watch = SourceWatch(query_of(), 0)
    made._watch.has_looked = made._poll_if_idle = lambda: None
    made._b.spark = SimpleNamespace(sparkContext=context_that(stopped=True))
    with pytest.raises(SparkError, match="session has been stopped"):
        made._watch_until(lambda: False)


def test_a_query_that_is_stopped_since_its_attempt_failed_has_not_processed_everything() -> None:
    run = run_of()
    supervisor = run._supervisor

    def attempt_with(process: Callable[[], None]) -> Any:
        driver = SimpleNamespace(now_us=0, has_due=lambda by_us: False, failed=threading.Event())
        return SimpleNamespace(query=query_of(process=process), driver=driver)

    processed: list[int] = []
    again = attempt_with(lambda: processed.append(1))

    def restart() -> None:
        supervisor.attempt, supervisor.state = again, "running"

    def stopped() -> None:
        # Spark's call returns when the query is stopped; the next attempt takes a moment.
        supervisor.state = "restarting"
        threading.Timer(0.1, restart).start()

    supervisor.attempt = attempt_with(stopped)
    run.process_all_available(10)
    assert processed


def test_silence_is_known_up_to_sparks_last_look_that_found_nothing() -> None:
    looks: list[int] = []

    def notice(between_ms: int, *, active: bool = False, available: bool = False, said: str = "Waiting") -> None:
        status = SimpleNamespace(
            isTriggerActive=lambda: active, isDataAvailable=lambda: available, message=lambda: said
        )
        query: Any = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
        watch, now_us = SourceWatch(query, between_ms), 9_000_000
        for _ in range(2):
            watch._checked_s = 0
            looks.extend(at for at in (watch.silent_since(now_us), watch.silent_since(now_us)) if at is not None)
            # The machine stands still for an hour, and Spark has not looked since.
            now_us += 3_600_000_000

    notice(0)
    notice(2000)
    assert looks == [9_000_000, 7_000_000]
    notice(0, active=True)
    notice(0, available=True)
    notice(0, said="Initializing sources")
    assert len(looks) == 2


def test_sources_are_not_silent_while_spark_waits_for_a_clock_that_was_set_back() -> None:
    """Spark waits for its next trigger by the clock, and looks at nothing meanwhile."""
    status = SimpleNamespace(isTriggerActive=lambda: False, isDataAvailable=lambda: False, message=lambda: "Waiting")
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
    clocks = Clocks()
    watch, steadily = SourceWatch(query, 2000, clock=clocks), SourceWatch(query, 2000)

    def silent_since(passed_s: float) -> int | None:
        clocks.now_s, clocks.passed_s = clocks.now_s + passed_s, clocks.passed_s + passed_s
        for each in (watch, steadily):
            each.check_clock()
            each._checked_s = 0
        silent_us = [each.silent_since(driver_time(clocks)) for each in (watch, steadily)]
        assert (silent_us[1] is None) == (passed_s == 0)
        return silent_us[0]

    assert silent_since(0) is None
    assert silent_since(5) == 999_998_000_000
    clocks.now_s -= 30
    assert silent_since(5) is None
    assert silent_since(30) is None
    # It has looked again.
    assert silent_since(3) is None
    assert silent_since(5) == 1_000_041_000_000
    clocks.now_s += 7200
    assert silent_since(5) == 1_000_046_000_000
    clocks.now_s -= 7200
    steadily.check_clock()
    with pytest.raises(SparkError, match="was set back by 7200 s"):
        watch.check_clock()


class Clocks:
    """A clock that is set, and the time that passes."""

    def __init__(self) -> None:
        self.now_s = self.passed_s = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_ms(self) -> float:
        return self.passed_s * 1000


class Reading:
    """An epoch driver whose epochs bring event times of two origins, the one of which is idle after ten seconds."""

    def __init__(self) -> None:
        self.clock = Clocks()
        spec = WatermarkSpec("t", per="device", idle_us=10_000_000)
        driver: Any = object.__new__(EpochDriver)
        self.driver: EpochDriver = driver
        driver._clock, driver._looked_us, driver._has_looked = self.clock, driver_time(self.clock), False
        driver.watermarks = Watermarks([spec], {}, driver_time(self.clock))
        driver._lock, driver.paused, driver.sealed = threading.Lock(), threading.Event(), threading.Event()
        driver.failed, driver.progress = threading.Event(), JobProgress(Epoch(0))
        driver.is_draining = driver.drained = False
        driver._sources, driver._operators = SimpleNamespace(begin=lambda batch: None), {}
        driver._trigger = lambda epoch: None
        driver._coordinator = SimpleNamespace(pending=None, confirmed=None)
        driver._generation, driver._no_rows, driver._batch = 1, None, 5
        driver._plan = SimpleNamespace(
            build=lambda df, run, operators, reports: SimpleNamespace(close=lambda: None),
            reductions={},
            pipeline=SimpleNamespace(counting={}, measuring={"op"}, moved=lambda uid, newest_us: {0: newest_us}),
        )
        driver._fleet = SimpleNamespace(slots={("op", 0)})
        driver._failed_rows = SimpleNamespace(reports=lambda epoch: {}, take=lambda epoch, now_us: 0)
        driver._write = lambda built, epoch: {("op", 0): self.ack}
        driver._record_failures = lambda *_: nullcontext()

    def epoch(self, **newest_us: int) -> None:
        self.ack = Ack(uid="op", partition=0, epoch=1, pid=1, host="h", keeper="k", newest_us=newest_us)
        conf = SimpleNamespace(set=lambda *_: None, get=lambda *_: "")
        df: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
        self.driver(df, self.driver._batch + 1)


def driver_time(clock: Clocks) -> int:
    return int(clock.monotonic_ms() * 1000)


@pytest.mark.parametrize("set_by_s", [-3600, 3600])
def test_a_source_is_not_idle_because_the_clock_was_set(set_by_s: int) -> None:
    reading = Reading()
    reading.epoch(fast=900, slow=100)
    assert reading.driver.watermarks.reached_us == 100
    reading.clock.now_s += set_by_s
    reading.clock.passed_s += 1
    reading.epoch(fast=1000)
    reading.epoch(fast=1100, slow=100)
    assert reading.driver.watermarks.reached_us == 100


def test_rows_that_come_while_an_epoch_waits_for_its_turn_are_nobodys_silence() -> None:
    """A tick takes long, and Spark has the next epoch's rows already: what comes meanwhile is in the one after."""
    reading = Reading()
    reading.epoch(fast=900, slow=100)
    reading.clock.passed_s += 1

    class Lock:
        def __enter__(self) -> None:
            reading.clock.passed_s += 60
            reading.clock.now_s += 60

        def __exit__(self, *_: object) -> None:
            pass

    lock: Any = Lock()
    reading.driver._lock = lock
    reading.epoch(fast=1000)
    assert reading.driver.watermarks.reached_us == 100
    reading.epoch(fast=1000)
    assert reading.driver.watermarks.reached_us == 1000, "silent since before the look of this one"


class Panic(BaseException):
    """As a library in Rust raises it."""


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
        driver(SimpleNamespace(), 1)
    assert driver.error is error


@pytest.mark.parametrize("error", [Panic("no unwrap"), SystemExit(1)])
def test_spark_has_an_answer_where_an_epoch_ends_with_what_is_no_exception(error: BaseException) -> None:
    """Py4J gives none then: the JVM waits for it for ever, and so does who stops the query."""
    driver: Any = Reading().driver
    driver._run = lambda df, epoch, looked_us=None: (_ for _ in ()).throw(error)
    with pytest.raises(KeeperError):
        driver(None, 6)
    assert driver.error is error
    assert driver.failed.is_set()


@pytest.mark.parametrize("batch", [0, 5, 7])
def test_a_query_that_does_not_go_on_where_the_checkpoint_was_processes_nothing(batch: int) -> None:
    """Spark finds no progress where it is gone by the time that it looks: it would begin anew, and all count twice."""
    reading = Reading()
    with pytest.raises(KeeperError, match=f"began with batch {batch} of the sources, expected 6"):
        reading.driver(None, batch)  # type: ignore[arg-type]
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


def test_a_batch_that_waits_for_the_lock_begins_no_epoch_of_a_run_that_was_paused_meanwhile() -> None:
    driver, ran = gated()
    before: list[list[Any]] = []
    driver._lock = Turns(driver.paused.set, lambda: (before.append([*ran]), driver.paused.clear()))
    driver("rows", 6)
    assert (before, ran) == ([[]], ["rows"])


def test_a_batch_that_waits_for_the_lock_begins_no_epoch_behind_the_end_of_time() -> None:
    """All of its rows would be late, and the sources' place behind them."""
    driver, ran = gated()
    driver._lock = Turns(driver.drain, lambda: None, driver.sealed.set)
    with pytest.raises(KeeperError, match="has ended already"):
        driver("rows", 6)
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
    made.driver.progress = SimpleNamespace(epochs=0, late_rows=0)
    made.driver.watermarks.reached_us, made.driver.sealed = 0, threading.Event()
    made._fleet = SimpleNamespace(may_have_lost_one=lambda: False, check_executors=lambda: None)
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


def test_timers_that_set_others_for_later_do_not_hold_up_who_waits_for_those_that_are_due() -> None:
    run = run_of()
    run._supervisor.attempt = SimpleNamespace(query=query_of(), driver=Beating())
    run.process_all_available(10)


def test_timers_that_set_others_for_later_do_not_hold_up_the_end() -> None:
    made = attempt(active=False, idle_s=0.01)
    made.driver = Beating()
    made._fleet = SimpleNamespace(may_have_lost_one=lambda: False, check_executors=lambda: None)
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
    driver._coordinator = SimpleNamespace(retake=lambda uid, partition: retaken.append((uid, partition)))
    driver._fleet = SimpleNamespace(death_of=lambda ack: None)

    def heard(keepers: str, trigger: Any = None) -> list[Any]:
        known = enumerate(keepers)
        acks = {("op", at): Ack(uid="op", partition=at, epoch=0, pid=1, host="h", keeper=name) for at, name in known}
        driver._apply_acks(acks, trigger)
        return retaken

    assert heard("ab") == []
    assert heard("ab") == []
    assert heard("cb", 1) == [], "the new one has been told"
    assert heard("cd") == [("op", 1)]
    assert heard("cd") == [("op", 1)]


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
    with pytest.raises(UnavailableError, match="is restarting"):
        run.rescale(4, timeout=0.05)
    run._supervisor.ended.set()
