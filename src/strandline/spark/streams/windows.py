"""Keyed streams cut into windows: the place for functions of a window's events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.api.windows import WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.windows import functions as windowfunctions
from strandline.runtime.operators.windows.operator import Rules
from strandline.spark.base.hidden import TIME
from strandline.spark.streams.aggregation import Aggregates
from strandline.types.datatypes import StructType, parse_schema

if TYPE_CHECKING:
    from strandline.spark.streams.stream import KeyedStream, Stream


@dataclass(frozen=True)
class WindowedStream(Aggregates):
    """A keyed stream cut into windows: the place for functions of a window's events.

    What they give are rows of the key's columns, `window_start`, `window_end` (neither for Global windows) and the
    columns of the result. A row's time is the last one in its window, so that a following window of the same size
    takes it in.
    """

    keyed: KeyedStream
    kind: WindowKind
    rules: Rules = field(default_factory=Rules)

    def _cut(self) -> tuple[KeyedStream, WindowKind, Rules]:
        return self.keyed, self.kind, self.rules

    def fold(
        self,
        output: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        uid: str,
        *,
        merge: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Fold each window's events into one value: `function(value, event)` gives the next value.

        `output` is the DDL of the result's columns. Of one column, the value is what stands in it; of several, it is a
        row of them: read by name, given as a tuple or dict. Session windows need `merge(value, value)` too.

        >>> hours = sales.window(Tumbling("1h"))
        >>> totals = hours.fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        return self._run(windowfunctions.fold(output, initial, function, merge, uid), uid, name, max_parallelism)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        uid: str,
        *,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Reduce each window's events to one: `function(event, event)` gives a row of the same columns.

        >>> top = sales.window(Tumbling("1h")).reduce(lambda a, b: a if a.amount >= b.amount else b, uid="top")
        """
        reduced = windowfunctions.reduce(self._input(uid), self.keyed.keys, function, uid)
        return self._run(reduced, uid, name, max_parallelism)

    def aggregate(
        self,
        type: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        merge: Callable[[Any, Any], Any] | None = None,
        output: str,
        uid: str,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Aggregate each window's events: `create()`, `add(acc, event) -> acc`, `result(acc)`, as sl.Aggregating does.

        `type` is the accumulator's; the result is the value of the one column of `output`, or a tuple or dict of
        several. Session windows need `merge(acc, acc) -> acc` too.

        >>> mean = sales.window(Session("10 min")).aggregate(
        ...     "struct<n: bigint, total: bigint>", create=lambda: (0, 0),
        ...     add=lambda acc, e: (acc.n + 1, acc.total + e.amount),
        ...     merge=lambda a, b: (a.n + b.n, a.total + b.total), result=lambda acc: acc.total / acc.n,
        ...     output="mean double", uid="mean")
        """
        aggregated = windowfunctions.aggregate(type, create, add, result, merge, output)
        return self._run(aggregated, uid, name, max_parallelism)

    def process(
        self,
        function: Callable[[Any, Any, list[Any]], Iterable[Any] | None],
        output: str,
        uid: str,
        *,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Keep each window's events and call `function(key, window, events)` with all of them.

        They come in the order of the epochs they came in; within one as key_by() has them. `window` has `start` and
        `end`; it is None for Global windows. The function yields or returns rows, dicts or tuples, of the columns in
        `output`. It may be called more than once for a window: with `early`, with late events, after a failure.

        >>> def top3(key, window, events):
        ...     for event in sorted(events, key=lambda e: -e.amount)[:3]:
        ...         yield {"amount": event.amount}
        >>> best = sales.window(Tumbling("1h")).process(top3, output="amount bigint", uid="top3")
        """
        return self._run(windowfunctions.process(self._input(uid), function, output), uid, name, max_parallelism)

    def _run(self, function: windowfunctions.WindowFunction, uid: str, name: str | None, most: int | None) -> Stream:
        """Add the operator to the pipeline."""
        plan = windowfunctions.plan_windows(self.kind, self.rules, function, self._input(uid), self.keyed.keys, uid)
        return self.keyed.process(
            plan.operator,
            output=plan.output,
            uid=uid,
            sides=plan.sides,
            name=name or f"{type(self.kind).__name__}.{function.what}",
            max_parallelism=most,
        )

    def _input(self, uid: str) -> StructType:
        return parse_schema(self.keyed.input_schema(f"operator '{uid}'"))


def cut(
    keyed: KeyedStream, kind: WindowKind, lateness: str, late: str | None, early: str | None, time: windowfunctions.Time
) -> WindowedStream:
    """Return a keyed stream cut into windows."""
    rules = windowfunctions.rules_of(kind, lateness, late, early, time)
    if windowfunctions.follows_event_time(kind, rules) and TIME not in keyed.hidden:
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows need the events' times, and the stream has no watermark",
            hint='call watermark("column") before key_by, or window(…, time="processing")',
        )
    return WindowedStream(keyed, kind, rules)
