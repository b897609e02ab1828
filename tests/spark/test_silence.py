"""What a job knows of its query and its sources: whether they are silent, and whether they have ended."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters, PythonProxyPool

from strandline.core.errors import SparkError, UnavailableError
from strandline.core.ids import Epoch
from strandline.keeper.protocol import Ack
from strandline.runtime.watermarks import Watermarks, WatermarkSpec
from strandline.spark.base.session import keep_accepting_calls
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.progress import JobProgress
from strandline.spark.job.sourcewatch import SourceWatch
from tests.spark.harness import eventually
from tests.spark.runs import attempt, context_that, run_of


def query_of(*, active: bool = True, found_nothing: bool = False, process: Callable[[], None] = lambda: None) -> Any:
    executor = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: "MultiBatchExecutor"))
    streaming = SimpleNamespace(noNewData=lambda: found_nothing, triggerExecutor=lambda: executor)
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


@pytest.mark.parametrize("executor", ["SingleBatchExecutor", "MultiBatchExecutor"])
@pytest.mark.parametrize("has_read", [True, False])
def test_a_query_whose_sources_spark_can_only_read_at_once_ends_after_its_batch(executor: str, has_read: bool) -> None:
    """It looks for no more rows, as sources in Python cannot say what is there now."""
    query, kind = (
        query_of(active=False),
        SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: executor)),
    )
    query._jsq.streamingQuery().triggerExecutor = lambda: kind
    watch = SourceWatch(query, 0, ends=True, has_read=lambda: has_read)
    if has_read and executor == "SingleBatchExecutor":
        assert watch.has_ended()
    else:
        with pytest.raises(SparkError, match="was stopped, and not by the job"):
            watch.has_ended()


def test_a_job_whose_session_was_stopped_does_not_wait_for_its_query() -> None:
    """A query that waits for rows does not notice: Spark says that it is active."""
    made = attempt(active=False, idle_s=0.01)
    made.driver.failed, made.driver.epoch_carries_trigger = threading.Event(), False
    made.driver.progress = JobProgress(Epoch(0))
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


def test_a_source_is_not_silent_since_spark_waited_for_another_one_and_found_nothing() -> None:
    """A trigger of 10 s, and a source that takes 30 s to answer: Spark asked the others before that."""
    at_work = threading.Event()
    status = SimpleNamespace(isTriggerActive=at_work.is_set, isDataAvailable=lambda: False, message=lambda: "Waiting")
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
    watch = SourceWatch(query, 10_000)

    def silent_since(now_s: int) -> int | None:
        watch._checked_s = 0
        return watch.silent_since(now_s * 1_000_000)

    assert silent_since(100) is None
    assert silent_since(109) == 90_000_000
    at_work.set()
    assert silent_since(110) is None
    assert silent_since(139) is None
    at_work.clear()
    assert silent_since(140) is None
    assert [silent_since(now_s) for now_s in (141, 149, 155)] == [109_000_000] * 3
    assert silent_since(156) == 145_000_000


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
        driver._asked_us = driver._looked_us
        driver.watermarks = Watermarks([spec], {}, driver_time(self.clock))
        driver._lock, driver.paused, driver.sealed = threading.Lock(), threading.Event(), threading.Event()
        driver.failed, driver.progress = threading.Event(), JobProgress(Epoch(0))
        driver.is_draining = driver.drained = False
        driver._sources, driver._operators = SimpleNamespace(begin=lambda *_: None), {}
        driver._trigger = lambda epoch: None
        driver._coordinator = SimpleNamespace(in_flight=[], confirmed=None)
        driver._generation, driver._no_rows, driver._batch = 1, None, 5
        driver._frames = SimpleNamespace(build=lambda df, work: SimpleNamespace(close=lambda: None))
        driver._plan = SimpleNamespace(
            reductions={},
            pipeline=SimpleNamespace(
                nodes=[], counting={}, measuring={"op"}, moved=lambda uid, newest_us: {0: newest_us}
            ),
        )
        driver._fleet = SimpleNamespace(slots={("op", 0)}, may_have_lost_one=lambda: False, is_local=False)
        driver._failed_rows = SimpleNamespace(reports=lambda epoch: {}, take=lambda epoch, now_us: 0)
        driver._write = lambda built, epoch, applied: {("op", 0): self.ack}
        driver._record_failures = lambda *_: nullcontext()

    def epoch(self, **newest_us: int) -> None:
        self.ack = Ack(uid="op", partition=0, epoch=1, pid=1, host="h", keeper="k", newest_us=newest_us)
        conf = SimpleNamespace(set=lambda *_: None, get=lambda *_: "")
        df: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
        self.driver.process(df, self.driver._batch + 1)


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


def test_a_source_is_not_silent_while_spark_waits_for_another_ones_answer() -> None:
    """Spark asks one after the other: what comes of the first one meanwhile is in the next epoch."""
    reading = Reading()
    reading.epoch(fast=900, slow=100)
    reading.clock.passed_s += 60
    reading.epoch(fast=1000)
    assert reading.driver.watermarks.reached_us == 100
    reading.epoch(fast=1000)
    assert reading.driver.watermarks.reached_us == 1000, "silent since before Spark asked for the rows of this one"


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


def test_calls_of_functions_are_accepted_again_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """As that no file descriptor is free: epochs, which are such calls, would wait for ever."""
    # Tests that run a program as the command line does have silenced it in this process.
    caplog.set_level(logging.WARNING, logger="py4j")
    given = CallbackServerParameters(port=0, daemonize=True)
    server: Any = CallbackServer(PythonProxyPool(), None, callback_server_parameters=given)
    accepted: list[Any] = []

    def refuse(*connection: Any) -> None:
        accepted.append(connection)
        raise OSError(errno.EMFILE, "too many open files")

    def connect() -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        return None

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]

    server._create_connection = refuse
    server.start()
    address = ("127.0.0.1", server.get_listening_port())
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(_callback_server=server)))
    keep_accepting_calls(spark)
    with eventually(connect, "it listens"):
        server.thread.join(20)
    (line,) = lines()
    assert "too many open files" in line
    with socket.create_connection(address):
        assert len(accepted) == 1
        keep_accepting_calls(spark)
        server.thread.join(20)
    assert len(accepted) == 2
    assert lines() == [line], "the reason is the same, and has been logged"
    keep_accepting_calls(spark)
    keep_accepting_calls(spark)
    with socket.create_connection(address):
        server.thread.join(20)
    assert lines() == [line, line], "calls were accepted in between"
    server.shutdown()
    keep_accepting_calls(spark)
    assert server.thread is None
    for each in (each for connection in accepted for each in connection):
        each.close()
