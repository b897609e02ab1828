"""Windows and built-in aggregates for a harness, said before it is known which stream they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.api.aggregates import Aggregate
from strandline.api.windows import WindowKind
from strandline.plan.aggregation import named
from strandline.plan.windows import Time, rules_of
from strandline.spark.streams.stream import KeyedStream, Stream


@dataclass(frozen=True, slots=True)
class Prepared:
    """A method of a keyed stream that is yet to be called."""

    on: Callable[[KeyedStream, str, int | None], Stream]
    """Gets the stream, the operator's uid and its max_parallelism."""


def agg(results: Mapping[str, Aggregate] | None = None, /, **more: Aggregate) -> Prepared:
    """Compute built-in aggregates of all events so far, as `KeyedStream.agg` does; those of windows, see `window`.

    They are over columns of the stream: an SQL expression would be Spark's to compute.

    >>> import strandline as sl
    >>> from strandline.testing import Harness, agg
    >>> spent = agg(n=sl.agg.count(), total=sl.agg.sum("amount"))
    >>> with Harness(spent, schema="user string, amount int", key="user") as h:
    ...     first = h.push(("ann", 5), ("bob", 7), ("ann", 1))
    ...     second = h.push(("ann", 2))
    >>> second
    [Record(user='ann', n=3, total=8)]
    """
    return Prepared(lambda keyed, uid, most: keyed.agg(named(results, more), uid=uid, max_parallelism=most))


def window(
    kind: WindowKind,
    *,
    lateness: str = "0s",
    late: str | None = None,
    early: str | None = None,
    time: Time = "event",
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
    rules_of(kind, lateness, late, early, time)
    return Windows(lambda keyed: keyed.window(kind, lateness=lateness, late=late, early=early, time=time))


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows: the place for a function of their events. What the methods take is as in a job, apart from the uid."""

    of: Callable[[KeyedStream], Any]

    def fold(
        self,
        output: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        *,
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> Prepared:
        """Fold each window's events into one value: `function(value, event)` gives the next value."""
        return self._calling("fold", output, initial, function, merge=merge)

    def reduce(self, function: Callable[[Any, Any], Any]) -> Prepared:
        """Reduce each window's events to one: `function(event, event)` gives a row of the same columns."""
        return self._calling("reduce", function)

    def aggregate(self, type: str, **functions: Any) -> Prepared:
        """Aggregate each window's events: `create()`, `add(acc, event) -> acc`, `result(acc)`, `merge`; `output`."""
        return self._calling("aggregate", type, **functions)

    def process(self, function: Callable[[Any, Any, list[Any]], Iterable[Any] | None], output: str) -> Prepared:
        """Keep each window's events and call `function(key, window, events)` with all of them."""
        return self._calling("process", function, output)

    def agg(self, results: Mapping[str, Aggregate] | None = None, /, **more: Aggregate) -> Prepared:
        """Compute built-in aggregates of each window's events, over columns of the stream."""
        return self._calling("agg", named(results, more))

    def count(self) -> Prepared:
        """Count each window's events into the column `count`."""
        return self.agg(count=Aggregate("count"))

    def sum(self, column: str) -> Prepared:
        """Add up a column; the sum has its name."""
        return self.agg({column: Aggregate("sum", column)})

    def avg(self, column: str) -> Prepared:
        """Compute a column's mean, which has its name."""
        return self.agg({column: Aggregate("avg", column)})

    def min(self, column: str) -> Prepared:
        """Find a column's least value, which has its name."""
        return self.agg({column: Aggregate("min", column)})

    def max(self, column: str) -> Prepared:
        """Find a column's greatest value, which has its name."""
        return self.agg({column: Aggregate("max", column)})

    def _calling(self, method: str, *args: Any, **given: Any) -> Prepared:
        return Prepared(
            lambda keyed, uid, most: getattr(self.of(keyed), method)(*args, uid=uid, max_parallelism=most, **given)
        )
