"""Runs that no attempt of Spark's is behind: a test sets their supervisor's state by hand."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from strandline.spark.job.requests import Requests
from strandline.spark.job.run import Run
from strandline.spark.job.supervision import Desired, Supervisor


def run_of(**blueprint: Any) -> Any:
    """Return a run at work, with a real supervisor that has no attempt and no thread."""
    run: Any = object.__new__(Run)
    supervisor: Any = object.__new__(Supervisor)
    known = {"name": "job", "trigger": {}, "paused": threading.Event()}
    run._b = supervisor.blueprint = SimpleNamespace(**{**known, **blueprint})
    supervisor.stopping, supervisor.ended = threading.Event(), threading.Event()
    supervisor.changing = threading.Lock()
    supervisor.desired = supervisor.begun_with = Desired()
    supervisor.state, supervisor.attempt, supervisor._starting, supervisor._error = "running", None, None, None
    run._supervisor, run._requests = supervisor, Requests(supervisor)
    return run
