"""Process functions about times. Keepers import this module: nothing in here that needs Spark or pytest."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import strandline as sl

DAY = dt.timedelta(days=1)
SLOWLY = 77


class Waiting(sl.KeyedProcess):
    """Behind windows: gives a key's sum a day later, and sets timers for ever. Its keeper dies at a drain, if asked to."""

    total = sl.Value("bigint", default=0)

    def __init__(self, dies: str = "") -> None:
        self.dies = dies

    def on_event(self, event: Any, ctx: Any) -> Any:
        assert not ctx.is_late
        self.total.value += event.total
        ctx.timers.set(ctx.timestamp + DAY)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        assert ctx.is_draining
        if self.dies and not Path(self.dies).exists():
            Path(self.dies).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.total.value:
            yield ctx.key, self.total.value
            self.total.clear()
        # On and on.
        ctx.timers.set(timer.timestamp + DAY)


class Dated(sl.KeyedProcess):
    """Reads the time of each event."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, event.at.year


class Reminder(sl.KeyedProcess):
    """Says so when a user was silent for a quarter of a second of processing time."""

    last = sl.Value("timestamp")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        if self.last.value is not None:
            ctx.timers.delete_processing(self.last.value)
        self.last.value = ctx.now + dt.timedelta(milliseconds=250)
        ctx.timers.set_processing(self.last.value)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any]:
        assert timer.is_processing_time
        assert timer.timestamp <= ctx.now
        yield ctx.key, 1


class Silent(sl.KeyedProcess):
    """Gives nothing, and may take its time."""

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        if event.v == SLOWLY:
            time.sleep(0.6)
