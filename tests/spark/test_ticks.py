"""What a driver can tell, without Spark: when timers get an epoch, when everything is processed, whose ack it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.ids import Epoch
from strandline.runtime.protocol import Ack, Trigger
from strandline.spark.attempt import Attempt
from strandline.spark.epochs import EpochDriver, Progress
from strandline.spark.run import Run


def attempt(*, active: bool, idle_s: float, due: bool = True, running: bool = False) -> Any:
    """Return an attempt whose epochs ended some time ago, and whose query is at work or rests."""
    ticks: list[float] = []
    made: Any = object.__new__(Attempt)
    made.driver = SimpleNamespace(
        last_contact=time.monotonic() - idle_s,
        has_due=lambda by_us: due,
        is_running=running,
        tick=lambda by_us: not ticks.append(0),
        heeds_silence=False,
    )
    status = SimpleNamespace(isTriggerActive=lambda: active)
    made._query = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
    made.coordinator = SimpleNamespace(is_due=False, pending=None)
    made._b = SimpleNamespace(settings=SimpleNamespace(keeper_lease_ms=1 << 40))
    made._finished_us = None
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


def test_a_query_that_is_stopped_since_its_attempt_failed_has_not_processed_everything() -> None:
    run: Any = object.__new__(Run)
    run._state, run._error, run._ended = "running", None, threading.Event()

    def attempt_with(process: Callable[[], None]) -> Any:
        driver = SimpleNamespace(now_us=0, has_due=lambda by_us: False, failed=threading.Event())
        return SimpleNamespace(query=SimpleNamespace(processAllAvailable=process), driver=driver)

    processed: list[int] = []
    again = attempt_with(lambda: processed.append(1))

    def restart() -> None:
        run._attempt, run._state = again, "running"

    def stopped() -> None:
        # Spark's call returns when the query is stopped; the next attempt takes a moment.
        run._state = "restarting"
        threading.Timer(0.1, restart).start()

    run._attempt = attempt_with(stopped)
    run.process_all_available(10)
    assert processed


def test_silence_is_known_up_to_sparks_last_look_that_found_nothing() -> None:
    looks: list[int] = []

    def notice(
        trigger: dict[str, Any], *, active: bool = False, available: bool = False, said: str = "Waiting"
    ) -> None:
        made = attempt(active=active, idle_s=1)
        made.driver.heeds_silence, made.driver.now_us, made.driver.look = True, 9_000_000, looks.append
        status = SimpleNamespace(
            isTriggerActive=lambda: active, isDataAvailable=lambda: available, message=lambda: said
        )
        made._query, made._b.trigger, made._asked = (
            SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status)),
            trigger,
            0,
        )
        made._notice_silence()
        made._notice_silence()

    notice({})
    notice({"processingTime": "2000 milliseconds"})
    assert looks == [9_000_000, 7_000_000]
    notice({}, active=True)
    notice({}, available=True)
    notice({}, said="Initializing sources")
    assert len(looks) == 2


def test_a_keeper_that_was_started_anew_is_noticed_by_its_process() -> None:
    """Only before any epoch since a restore: after one, it would not be at the state that is expected."""
    retaken: list[Any] = []
    driver: Any = object.__new__(EpochDriver)
    driver.progress = Progress(Epoch(0))
    driver._coordinator = SimpleNamespace(retake=lambda uid, partition: retaken.append((uid, partition)))

    def heed(pids: list[int], trigger: Any = None) -> list[Any]:
        acks = {("op", at): Ack(uid="op", partition=at, epoch=0, pid=pid, host="h") for at, pid in enumerate(pids)}
        driver._heed(acks, trigger)
        return retaken

    assert heed([1, 2]) == []
    assert heed([1, 2]) == []
    assert heed([3, 2], Trigger(1, "full")) == [], "the new one has been told"
    assert heed([3, 4]) == [("op", 1)]
    assert heed([3, 4]) == [("op", 1)]
