"""Whoever asks for a checkpoint while the job restarts or is rescaled gets one of what it goes on as: without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.control.driverlog import DriverLog
from strandline.control.status import SinkStatus, State
from strandline.core.errors import CheckpointError, ConfigurationError, NotFoundError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.times import END_US
from strandline.plan.parallelism import ParallelismOverride
from strandline.runtime.watermarks import REACHED
from strandline.spark.job import requests, saving, supervision
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.draining import Draining
from strandline.spark.job.preparation import Preparation
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run as Keepers
from tests.checkpoint.helpers import every_epoch, late_clock, manifest
from tests.spark.runs import run_of


class Asked:
    """A run whose attempts are coordinators that a test drives by hand, and what came of asking it for a checkpoint."""

    def __init__(self, tmp: Path) -> None:
        self.run = run_of()
        self.supervisor = self.run._supervisor
        self.store, self.tmp = open_store("memory://"), tmp
        self.answer: Any = None
        self.become("starting")

    def begin(self, *, drained: bool = False) -> Keepers:
        keepers = Keepers(self.store, self.tmp, late_clock(), config=every_epoch(tolerable_failures=None))
        driver = SimpleNamespace(drained=drained)
        self.supervisor.attempt = SimpleNamespace(coordinator=keepers.coordinator, driver=driver)
        self.supervisor.state = "running"
        return keepers

    def become(self, state: State) -> None:
        self.supervisor.state, self.supervisor.attempt = state, None

    def ask(self, timeout: float | None = 30.0, **given: Any) -> threading.Thread:
        def ask() -> None:
            try:
                self.answer = self.run.checkpoint(timeout, **given)
            except StrandlineError as error:
                self.answer = error

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        return asking


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("state", ["starting", "restarting", "rescaling"])
def test_asked_before_the_job_works(asked: Asked, state: State) -> None:
    asked.become(state)
    asking = asked.ask()
    time.sleep(0.1)
    assert asking.is_alive(), asked.answer
    keepers = asked.begin()
    until(lambda: keepers.coordinator._requests)
    keepers.checkpoint()
    asking.join(20)
    assert asked.answer.status == "completed"


def test_whether_all_is_shown_is_asked_of_the_attempt_after_a_rescale(asked: Asked) -> None:
    """It may share its checkpoint with a savepoint, which a job that restores it must not show less of."""
    asked.become("rescaling")
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(asked.run._requests._shows_all)
        with pytest.raises(TimeoutError):
            shown.result(0.1)
        asked.begin().coordinator._unshown = manifest(1)
        assert shown.result(20) is False


@pytest.mark.parametrize("is_triggered", [False, True])
@pytest.mark.parametrize("given", [{}, {"progress": lambda stats: None}], ids=lambda given: next(iter(given), "plain"))
def test_asked_of_an_attempt_that_ends(asked: Asked, is_triggered: bool, given: dict[str, Any]) -> None:
    keepers = asked.begin()
    asking = asked.ask(**given)
    until(lambda: keepers.coordinator._requests)
    if is_triggered:
        assert keepers.trigger() is not None
    keepers.coordinator.close("the run ended")
    keepers.coordinator.advance()
    time.sleep(0.05)
    asked.become("restarting")
    time.sleep(0.05)
    assert asking.is_alive(), asked.answer
    keepers = asked.begin()
    until(lambda: keepers.coordinator._requests)
    keepers.checkpoint()
    asking.join(20)
    assert asked.answer.status == "completed"


def test_a_checkpoint_that_fails_is_no_reason_to_wait(asked: Asked) -> None:
    keepers = asked.begin()
    asking = asked.ask()
    until(lambda: keepers.coordinator._requests)
    checkpoint = keepers.trigger()
    assert checkpoint is not None
    keepers.coordinator.fail(checkpoint, "no space")
    keepers.coordinator.advance()
    asking.join(20)
    assert "no space" in str(asked.answer)


@pytest.mark.parametrize("state", ["restarting", "running"])
def test_a_job_that_ends_is_not_waited_for(asked: Asked, state: State) -> None:
    keepers = asked.begin() if state == "running" else None
    if keepers is None:
        asked.become(state)
    asking = asked.ask(None)
    time.sleep(0.05)
    asked.supervisor.ended.set()
    asked.supervisor.state = "failed"
    if keepers is not None:
        keepers.coordinator.close("the run ended")
    asking.join(20)
    assert isinstance(asked.answer, CheckpointError)


@pytest.mark.parametrize("finished", [True, False])
def test_a_stop_with_a_checkpoint_of_a_job_that_comes_to_its_end_meanwhile(asked: Asked, finished: bool) -> None:
    """A job that has finished has a checkpoint of everything; one that has failed has none of what came last."""
    keepers, run = asked.begin(), asked.run
    asked.supervisor.thread = asked.supervisor._control = SimpleNamespace(join=lambda *_: None)
    answers: list[Any] = []

    def stop() -> None:
        try:
            answers.append(run.stop(checkpoint=True))
        except CheckpointError as error:
            answers.append(error)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    until(lambda: keepers.coordinator._requests)
    keepers.coordinator.close("the run ended")
    asked.supervisor.state = "finished" if finished else "failed"
    asked.supervisor.ended.set()
    stopping.join(20)
    assert [type(answer) for answer in answers] == [type(None) if finished else CheckpointError]


def test_who_has_no_time_is_told_what_the_job_is_at(asked: Asked) -> None:
    asked.become("rescaling")
    asked.ask(0.05).join(20)
    assert str(asked.answer).startswith("job 'job' is still rescaling after 0.05 s: no checkpoint was taken")


def test_a_rescale_without_time(asked: Asked) -> None:
    asked.become("restarting")
    asked.run._requests._b.plan = SimpleNamespace(pipeline=SimpleNamespace(operators=[]))
    with pytest.raises(UnavailableError, match="job 'job' is still restarting: the rescale to 2 did not begin"):
        asked.run.rescale(2, timeout=0.05)
    asked.supervisor.state = "finished"
    asked.supervisor.ended.set()
    with pytest.raises(UnavailableError, match="job 'job' is finished: it cannot be rescaled"):
        asked.run.rescale(2, timeout=0.05)
    asked.begin()
    with pytest.raises(CheckpointError, match=r"not complete within 0\.05 s"):
        asked.run.checkpoint(0.05)
    with pytest.raises(CheckpointError, match="no time was left for the checkpoint"):
        asked.run.checkpoint(0.0)


def test_the_savepoint_of_a_drain_is_of_an_attempt_that_has_drained(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes its place gives its windows once more: they would come again behind a savepoint of before that."""
    made: list[Any] = []
    monkeypatch.setattr(requests, "target_of", lambda *_: None)
    monkeypatch.setattr(requests, "save", lambda blueprint, take, *_: made.append(take()))
    keepers = asked.begin(drained=True)
    deadline = time.monotonic() + 30
    saving = threading.Thread(
        target=asked.run._requests._save_drained, args=(deadline, "url", "native", None), daemon=True
    )
    saving.start()
    until(lambda: keepers.coordinator._requests)
    keepers.coordinator.close("the run ended")
    asked.become("restarting")
    keepers = asked.begin()
    time.sleep(0.1)
    assert not keepers.coordinator._requests
    asked.supervisor.attempt.driver.drained = True
    until(lambda: keepers.coordinator._requests)
    keepers.checkpoint()
    saving.join(20)
    assert [stats.status for stats in made] == ["completed"]


@pytest.mark.parametrize(("drains", "hint"), [(False, "take it when the target is"), (True, "start the job")])
def test_how_a_savepoint_comes_about_though_rows_wait(drains: bool, hint: str) -> None:
    """After a drain, there is no job left to take it of."""
    sink = SimpleNamespace(status=lambda: SinkStatus("out", waiting_rows=3, failure="nobody listens"))
    blueprint: Any = SimpleNamespace(name="job", draining=Draining(), plan=SimpleNamespace(sinks=[("out", sink, None)]))
    if drains:
        blueprint.draining.requested.set()
    with pytest.raises(CheckpointError, match="while 3 rows of sink 'out' wait") as caught:
        saving._check_delivered(blueprint, lambda: False)
    assert hint in (caught.value.hint or "")


class Attempts:
    """A run whose supervisor is real, and whose attempts say what they have begun with. Storage is `go_back`'s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[int | None, list[int]]] = []
        self.gone_back: list[int] = []
        self.failures: dict[str, list[BaseException]] = {"go_back": [], "start": [], "watch": []}
        noop = lambda *_, **__: None  # noqa: E731
        self.verified = SimpleNamespace(checkpoint=2, watermarks={REACHED: 0})
        self.run = run = run_of(
            draining=Draining(), holds=nullcontext(), jobdir=None, clock=late_clock(), plan=SimpleNamespace(sinks=[]),
            places=SimpleNamespace(lock_again=lambda lock: lock),
        )  # fmt: skip
        self.supervisor = job = run._supervisor
        job.excluded, job.least_id, job.claim, job._failed_at, job.state = frozenset({2}), 1, None, 0.0, "starting"
        job._held = None
        job._enter = lambda state: setattr(job, "state", state)
        job._report_begin = job._end_attempt = job._interrupt = job._resume = noop
        job._forget_attempt = lambda: setattr(job, "attempt", None)
        job._recover = lambda error: (job._enter("restarting"), job._forget_attempt())
        run._requests._checkpoint_of = lambda *_: None
        monkeypatch.setattr(supervision, "Starting", self._starting)
        monkeypatch.setattr(supervision, "go_back", self._go_back)
        monkeypatch.setattr(requests, "verify_own", lambda *_: self.verified)
        monkeypatch.setattr(Preparation, "check_rollback", noop)

    def _fail(self, what: str) -> None:
        if self.failures[what]:
            raise self.failures[what].pop(0)

    def _go_back(self, jobdir: Any, checkpoint: int, clock: Any, claim: Any) -> Any:
        self._fail("go_back")
        self.gone_back.append(checkpoint)

    def _starting(self, preparation: Any) -> Any:
        def start() -> Any:
            self._fail("start")
            self.begun.append((preparation.override.job, [*self.gone_back]))
            return SimpleNamespace(watch=watch, coordinator=SimpleNamespace(next_id=1))

        def watch(is_over: Callable[[], bool]) -> bool:
            while not is_over():
                self._fail("watch")
                time.sleep(0.001)
            return False

        return SimpleNamespace(start=start, claim=None)

    def __enter__(self) -> Attempts:
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()
        until(lambda: self.supervisor.state == "running")
        return self

    def _supervise(self) -> None:
        self.supervisor._has_begun.set_result(None)
        self.supervisor._run_attempts()
        self.supervisor._enter("stopped")
        self.supervisor.ended.set()

    def __exit__(self, *_: object) -> None:
        self.supervisor.stopping.set()
        self._thread.join(20)


class Panic(BaseException):
    """As a library in Rust raises it."""


def test_a_panic_at_an_attempts_end_leaves_nothing_at_work() -> None:
    """It would come instead of the failure that is recovered from, and end the job."""
    ended: list[str] = []

    def panics(name: str) -> Any:
        def panic(*_: object, **__: object) -> None:
            ended.append(name)
            raise Panic("no unwrap")

        return panic

    attempt: Any = object.__new__(Attempt)
    attempt._cleanup = ExitStack()
    attempt._cleanup.callback(panics("exchanges"))
    attempt._b = SimpleNamespace(
        plan=SimpleNamespace(sinks=[(name, SimpleNamespace(close=panics(name)), None) for name in ("one", "other")]),
        places=SimpleNamespace(forget_failures=panics("failures")),
    )
    attempt._watch = SimpleNamespace(query=SimpleNamespace(stop=panics("query")))
    attempt.coordinator = SimpleNamespace(close=lambda why: None, advance=panics("coordinator"))
    # Keepers are looked for in /proc, which takes a file descriptor.
    attempt._fleet = SimpleNamespace(stop=panics("fleet"))
    attempt.driver, attempt.claim = None, SimpleNamespace(generation=1)
    attempt.close(forget=False)
    assert ended == ["query", "coordinator", "fleet", "one", "other", "exchanges", "failures"]


@pytest.mark.parametrize("refuses", ["the log", "the socket"])
def test_the_end_is_heard_of_where_the_disk_refuses_whatever_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refuses: str
) -> None:
    attempts = Attempts(monkeypatch)
    run, supervisor = attempts.run, attempts.supervisor

    def fail() -> None:
        raise UnavailableError("no room on the disk")

    def refuse() -> None:
        raise OSError("no room on the disk")

    supervisor._begin_first, supervisor._run_attempts = lambda: None, fail
    supervisor._reporter = SimpleNamespace(to_program=lambda error: error, in_logs=str)
    run._b.clock, supervisor._held = late_clock(), SimpleNamespace(close=lambda: None)
    supervisor._log = DriverLog(tmp_path / "gone" / "driver.log")
    supervisor._control = run._control = SimpleNamespace(
        end=refuse if refuses == "the socket" else lambda: None, join=lambda: None
    )
    with suppress(OSError):
        supervisor._supervise()
    with pytest.raises(UnavailableError, match="no room on the disk"):
        run.await_termination(1)


@pytest.mark.parametrize("fails", ["the session", "the text of the error", "the socket"])
def test_a_start_that_fails_is_heard_of_whatever_fails_with_it(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    attempts = Attempts(monkeypatch)
    supervisor = attempts.supervisor

    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(*_: object) -> Any:
        raise error

    error: Exception = Unreadable() if fails == "the text of the error" else UnavailableError("it fails")
    if fails == "the session":
        supervisor._inheriting = lambda _: fail
    supervisor._begin_first = fail
    supervisor._reporter = SimpleNamespace(in_logs=repr)
    attempts.run._b.clock, supervisor._held = late_clock(), SimpleNamespace(close=lambda: None)
    supervisor._log = SimpleNamespace(note=lambda text: None, close=lambda: None)
    supervisor._control = SimpleNamespace(end=fail if fails == "the socket" else lambda: None)
    with suppress(ValueError, UnavailableError):
        supervisor._supervise()
    assert supervisor._has_begun.exception(0) is error
    assert supervisor.ended.is_set()


@pytest.mark.parametrize("at", ["go_back", "start"])
def test_a_rollback_survives_the_attempts_that_fail_before_it_is_carried_out(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    with Attempts(monkeypatch) as attempts:
        attempts.failures[at] = [UnavailableError("storage is away"), UnavailableError("storage is away")]
        attempts.run.rollback(2)
        assert attempts.begun == [(None, []), (None, [2])]
        assert not attempts.supervisor.excluded, "it was found damaged once, and is whole now"
        # Carried out once, whatever comes later; and again when it is asked for again.
        attempts.failures["watch"] = [UnavailableError("a keeper died")]
        until(lambda: len(attempts.begun) == 3)
        assert attempts.gone_back == [2]
        attempts.run.rollback(2)
        assert attempts.gone_back == [2, 2]


def test_a_rollback_that_comes_while_the_job_starts_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch)
    run, noop = attempts.run, lambda *_: None
    run._b.places, run._b.settings = (
        SimpleNamespace(lock_shared=noop, lock_again=noop, local_dir=None, root=None),
        SimpleNamespace(follows=None),
    )
    run._b.jobdir, run._b.spark = SimpleNamespace(store=SimpleNamespace(url="memory://")), None
    supervisor = attempts.supervisor
    supervisor._log, run._control = SimpleNamespace(open=noop), SimpleNamespace(start=noop)
    supervisor.thread = attempts._thread = threading.Thread(target=attempts._supervise, daemon=True)
    asking = threading.Thread(target=lambda: run.rollback(2, timeout=20.0), daemon=True)

    def initial_override(*_: object, wait: bool) -> ParallelismOverride:
        asking.start()
        asking.join(0.2)
        return ParallelismOverride()

    monkeypatch.setattr(supervision, "sweep", noop)
    monkeypatch.setattr(supervision, "remove_abandoned", noop)
    monkeypatch.setattr(supervision, "initial_override", initial_override)
    monkeypatch.setattr(supervision, "inheritable_thread_target", noop)
    run.start()
    until(lambda: attempts.gone_back == [2])
    asking.join(20)
    attempts.__exit__()


def test_a_rollback_that_storage_refuses_is_an_error_and_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Attempts(monkeypatch) as attempts:
        attempts.failures["go_back"] = [NotFoundError("it is gone")]
        with pytest.raises(NotFoundError, match="it is gone"):
            attempts.run.rollback(CheckpointId(2))
        assert (attempts.supervisor.state, attempts.gone_back) == ("running", [])
        assert not attempts.run._b.paused.is_set()


def test_a_job_does_not_go_back_to_a_checkpoint_that_it_was_drained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be finished at once, with its input unread."""
    with Attempts(monkeypatch) as attempts:
        attempts.verified.watermarks = {REACHED: END_US}
        with pytest.raises(ConfigurationError, match="does not go back to checkpoint 2: it was drained with that one"):
            attempts.run.rollback(2)
        assert (attempts.supervisor.state, attempts.gone_back) == ("running", [])


def test_commands_are_true_of_the_same_attempt_and_of_all_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that nobody waits for any more is not forgotten by a rescale, which waits for its turn."""
    with Attempts(monkeypatch) as attempts:
        run = attempts.run
        attempts.failures["go_back"] = [UnavailableError("storage is away")] * 3
        with pytest.raises(UnavailableError, match="the rollback to checkpoint 2 is not complete yet"):
            run.rollback(2, timeout=0.0)
        desired = attempts.supervisor.desired
        attempts.supervisor.desired = replace(desired, parallelism=desired.parallelism.merge(3))
        until(lambda: attempts.begun[-1] == (3, [2]))
        attempts.failures["watch"] = [UnavailableError("a keeper died")]
        until(lambda: attempts.begun[-2:] == [(3, [2])] * 2)


def test_a_run_that_is_stopped_with_a_checkpoint_stays_paused_in_whatever_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused: list[bool] = []
    with Attempts(monkeypatch) as attempts:
        run = attempts.run
        supervisor = attempts.supervisor
        supervisor.thread, supervisor._control = (
            threading.Thread(target=lambda: None),
            SimpleNamespace(join=lambda: None),
        )
        supervisor.thread.start()

        def fail_then_checkpoint(timeout: float) -> None:
            attempts.failures["watch"] = [UnavailableError("a keeper died")]
            until(lambda: len(attempts.begun) == 2)
            paused.append(run._b.paused.is_set())

        run._requests.checkpoint = fail_then_checkpoint
        run.stop(checkpoint=True)
        assert (paused, run._b.paused.is_set()) == ([True], True)
