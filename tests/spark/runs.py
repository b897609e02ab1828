"""Runs and attempts that no query of Spark's is behind: a test sets their state by hand."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from strandline.control.status import Totals
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.draining import Draining
from strandline.spark.job.requests import Requests
from strandline.spark.job.run import Run
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.job.supervision import Desired, Supervisor


def run_of(**blueprint: Any) -> Any:
    """Return a run at work, with a real supervisor that has no attempt and no thread."""
    run: Any = object.__new__(Run)
    supervisor: Any = object.__new__(Supervisor)
    known = {"name": "job", "trigger": {}, "paused": threading.Event()}
    run._b = supervisor.blueprint = SimpleNamespace(**{**known, **blueprint})
    supervisor.stopping, supervisor.ended = threading.Event(), threading.Event()
    supervisor.changing, supervisor._has_begun = threading.Lock(), Future()
    supervisor._inheriting = lambda function: function
    supervisor.desired = supervisor.begun_with = Desired()
    supervisor.state, supervisor.attempt, supervisor._starting, supervisor._error = "running", None, None, None
    supervisor._counting, supervisor._ended_totals, supervisor.attempt_ms = threading.Lock(), Totals(), 0
    run._supervisor, run._requests, run._telemetry = supervisor, Requests(supervisor), None
    return run


def context_that(*, stopped: bool) -> Any:
    context = SimpleNamespace(isStopped=lambda: stopped)
    return SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), _gateway=SimpleNamespace())


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
        batch=0,
        collect_reports=lambda: None,
    )
    status = SimpleNamespace(isTriggerActive=lambda: active)
    query: Any = SimpleNamespace(_jsq=SimpleNamespace(status=lambda: status))
    made._watch = SourceWatch(query, 0)
    made._watch.check_logs = lambda: None
    made.coordinator = SimpleNamespace(is_due=False, pending=None, take_ended=list)
    made._b = SimpleNamespace(
        settings=SimpleNamespace(keeper_lease_ms=1 << 40), checkpoints=SimpleNamespace(standbys=0), draining=Draining()
    )
    made._fleet = SimpleNamespace(check_executors=lambda: None, may_have_lost_one=lambda: False, is_local=False)
    made._b.spark = SimpleNamespace(sparkContext=context_that(stopped=False))
    made.restored = None
    made._finished_us = None
    made._times = SimpleNamespace(check=lambda late_rows, reached_us, now_us: None)
    made.driver.now_us = 0
    made.ticks = ticks
    return made
