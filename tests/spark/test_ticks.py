"""When timers get an epoch of their own: while the source gives nothing, not while Spark prepares an epoch with rows."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.spark.attempt import Attempt


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
