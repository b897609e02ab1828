"""Waiting for the end of a job, with interrupts at each of its steps; beside a run that a test makes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import CheckpointError, UnavailableError
from strandline.spark.job.attending import attend


class MadeRun:
    """It does what a test says, in order, and notes what it was asked for."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self._left = list(outcomes)
        self.asked: list[str] = []
        self._supervisor = SimpleNamespace(is_live=True)
        self._panel = SimpleNamespace(showing=self._showing, keeps_note=False)

    @contextlib.contextmanager
    def _showing(self) -> Iterator[None]:
        self.asked.append("show")
        try:
            yield
        finally:
            self.asked.append("hide")

    def _next(self, what: str) -> None:
        self.asked.append(what)
        if (outcome := self._left.pop(0)) is not None:
            self._supervisor.is_live = what != "start"
            raise outcome

    def start(self) -> None:
        self._next("start")

    def await_termination(self) -> None:
        self._next("await")

    def stop(self, *, checkpoint: bool = False) -> None:
        self._next("checkpoint and stop" if checkpoint else "stop")

    def _stop_at_once(self) -> None:
        self._next("stop at once")


INTERRUPT = KeyboardInterrupt
LAST = CheckpointError("storage is away", checkpoint=7)


@pytest.mark.parametrize(
    ("outcomes", "asked", "words"),
    [
        ([INTERRUPT()], ["start"], "was stopped while it started"),
        ([None, INTERRUPT(), None], ["start", "await", "checkpoint and stop"], "its last checkpoint has everything"),
        ([None, INTERRUPT(), LAST, None], ["start", "await", "checkpoint and stop", "stop"], "without a last checkpoint"),
        (
            [None, INTERRUPT(), UnavailableError("it takes long"), None],
            ["start", "await", "checkpoint and stop", "stop"], "without a last checkpoint",
        ),
        (
            [None, INTERRUPT(), INTERRUPT(), None],
            ["start", "await", "checkpoint and stop", "stop at once"], "without a last checkpoint",
        ),
        (
            [None, INTERRUPT(), LAST, INTERRUPT(), None],
            ["start", "await", "checkpoint and stop", "stop", "stop at once"], "without a last checkpoint",
        ),
    ],
)  # fmt: skip
def test_interrupts(outcomes: list[Any], asked: list[str], words: str) -> None:
    run: Any = MadeRun(*outcomes)
    with pytest.raises(KeyboardInterrupt) as caught:
        attend(run, "shop")
    assert run.asked == ["show", *asked, "hide"]
    (line,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert line.startswith("KeyboardInterrupt: job 'shop' was stopped")
    assert words in line


def test_the_end_and_an_error_of_the_job() -> None:
    ended: Any = MadeRun(None, None)
    attend(ended, "shop")
    assert ended.asked == ["show", "start", "await", "hide"]
    for outcomes in ([ValueError("refused")], [None, ValueError("failed")]):
        run: Any = MadeRun(*outcomes)
        with pytest.raises(ValueError):
            attend(run, "shop")
        assert run.asked[-1] == "hide"


def test_an_interrupt_that_no_stop_waits_for_is_raised() -> None:
    run: Any = MadeRun(None, INTERRUPT(), INTERRUPT(), INTERRUPT())
    with pytest.raises(KeyboardInterrupt):
        attend(run, "shop")
    assert run.asked[-2:] == ["stop at once", "hide"]


def of_spark(number: int, frame: object) -> None:
    """Stand for the handler that cancels all jobs of Spark."""


def of_the_program(number: int, frame: object) -> None:
    """Stand for a handler that a program has set."""


@pytest.mark.parametrize("handler", [of_spark, of_the_program, signal.SIG_IGN, signal.default_int_handler])
def test_only_the_handler_of_spark_is_set_aside(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_spark, "__module__", "pyspark.core.context")
    during: list[Any] = []
    run: Any = MadeRun(None, None)
    run.await_termination = lambda: during.append(signal.getsignal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, handler)
    try:
        attend(run, "shop")
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert during == [signal.default_int_handler if handler is of_spark else handler]
