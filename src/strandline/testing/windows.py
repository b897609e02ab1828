"""Windows in a harness: functions of a window's events, written as on a windowed stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.api.aggregates import Aggregate
from strandline.api.windows import WindowKind
from strandline.runtime.operators.aggregates import functions as aggfunctions
from strandline.runtime.operators.windows import functions as windowfunctions
from strandline.runtime.operators.windows.functions import WindowFunction
from strandline.runtime.operators.windows.operator import Rules
from strandline.testing.aggregates import Aggregated
from strandline.testing.plans import Planned, Prepared, check_timed
from strandline.types.datatypes import StructType


def window(
    kind: WindowKind,
    *,
    lateness: str = "0s",
    late: str | None = None,
    early: str | None = None,
    time: windowfunctions.Time = "event",
) -> Windows:
    """Cut events into windows as `KeyedStream.window` does; its methods give what a Harness runs, or `then` adds.

    >>> from strandline import Tumbling
    >>> from strandline.testing import Harness, window
    >>> totals = window(Tumbling("10s")).fold("total bigint", 0, lambda total, e: total + e.amount)
    >>> sales = dict(schema="user string, amount bigint, ts timestamp", key="user", event_time="ts", watermark="0s")
    >>> with Harness(totals, **sales) as h:
    ...     start = h.now
    ...     for second, amount in [(1, 5), (7, 6), (12, 7)]:
    ...         before = h.push({"user": "ann", "amount": amount, "ts": start.replace(second=second)})
    ...     rows = h.tick()
    >>> [(row.user, row.window_end.second, row.total) for row in rows]
    [('ann', 10, 11)]
    """
    return Windows(kind, windowfunctions.rules_of(kind, lateness, late, early, time))


@dataclass(frozen=True, slots=True)
class Windowed(Prepared):
    """A function of windows."""

    kind: WindowKind
    rules: Rules
    make: Callable[[StructType, Sequence[str], str], WindowFunction]
    """Gets the stream's schema, its keys and the operator's uid."""

    def plan(self, schema: StructType, keys: Sequence[str], uid: str, *, timed: bool) -> Planned:
        """Return the operator on a stream."""
        check_timed(self.kind, self.rules, timed=timed)
        function = self.make(schema, keys, uid)
        plan = windowfunctions.plan_windows(self.kind, self.rules, function, schema, keys, uid)
        return Planned(plan.operator, plan.output, plan.sides)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows: the place for a function of their events. What the methods take is as in a job, apart from the uid."""

    kind: WindowKind
    rules: Rules

    def fold(
        self,
        output: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> Windowed:
        """Fold each window's events into one value: `function(value, event)` gives the next value."""
        return self._with(lambda schema, keys, uid: windowfunctions.fold(output, initial, function, merge, uid))

    def reduce(self, function: Callable[[Any, Any], Any]) -> Windowed:
        """Reduce each window's events to one: `function(event, event)` gives a row of the same columns."""
        return self._with(lambda schema, keys, uid: windowfunctions.reduce(schema, keys, function, uid))

    def aggregate(
        self,
        type: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        merge: Callable[[Any, Any], Any] | None = None,
        output: str,
    ) -> Windowed:
        """Aggregate each window's events: `create()`, `add(acc, event) -> acc`, `result(acc)`."""
        return self._with(lambda schema, keys, uid: windowfunctions.aggregate(type, create, add, result, merge, output))

    def process(self, function: Callable[[Any, Any, list[Any]], Iterable[Any] | None], output: str) -> Windowed:
        """Keep each window's events and call `function(key, window, events)` with all of them."""
        return self._with(lambda schema, keys, uid: windowfunctions.process(schema, function, output))

    def agg(self, results: Mapping[str, Aggregate] | None = None, /, **more: Aggregate) -> Aggregated:
        """Compute built-in aggregates of each window's events, over columns of the stream."""
        return Aggregated(self.kind, self.rules, aggfunctions.named(results, more))

    def count(self) -> Aggregated:
        """Count each window's events into the column `count`."""
        return self.agg(count=Aggregate("count"))

    def sum(self, column: str) -> Aggregated:
        """Add up a column; the sum has its name."""
        return self.agg({column: Aggregate("sum", column)})

    def avg(self, column: str) -> Aggregated:
        """Compute a column's mean, which has its name."""
        return self.agg({column: Aggregate("avg", column)})

    def min(self, column: str) -> Aggregated:
        """Find a column's least value, which has its name."""
        return self.agg({column: Aggregate("min", column)})

    def max(self, column: str) -> Aggregated:
        """Find a column's greatest value, which has its name."""
        return self.agg({column: Aggregate("max", column)})

    def _with(self, make: Callable[[StructType, Sequence[str], str], WindowFunction]) -> Windowed:
        return Windowed(self.kind, self.rules, make)
