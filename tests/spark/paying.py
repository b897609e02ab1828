"""Process functions for history. Keepers import this module: nothing in here that needs Spark or pytest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import strandline as sl


class PerMinute(sl.KeyedProcess):
    """Sums each minute, and gives it when it is over; what is silent for an hour by the clock is forgotten."""

    sums = sl.Map("timestamp", "bigint")
    seen = sl.Value("bigint", default=0, ttl=sl.TTL("1h"))
    last = sl.Value("timestamp")
    back = sl.Value("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        if self.last.value is not None and event.at < self.last.value:
            self.back.value = (self.back.value or 0) + 1
        self.last.value = event.at
        end = event.at - dt.timedelta(seconds=event.at.second) + dt.timedelta(minutes=1)
        self.sums[end] = self.sums.get(end, 0) + event.amount
        self.seen.value += 1
        ctx.timers.set(end)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any]:
        yield ctx.key, timer.timestamp, self.sums.pop(timer.timestamp)


class Ascending(sl.KeyedProcess):
    """Counts events, and how often one has come after a later one."""

    seen = sl.Value("bigint", default=0)
    last = sl.Value("bigint", default=-1)
    back = sl.Value("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        if event.seq < self.last.value:
            self.back.value = (self.back.value or 0) + 1
        self.last.value = event.seq
        yield (ctx.key, self.seen.value)
