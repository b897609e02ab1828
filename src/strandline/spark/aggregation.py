"""Built-in aggregation of keyed and windowed streams: partial results in Spark's JVM, merged by keepers in Arrow.

An epoch's rows become rows of partial accumulators before they are sent to their keepers: by a group-by where that
makes them fewer, else each row on its own. Both have the same columns, so it can be decided anew for every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.api.aggregates import Aggregate
from strandline.api.windows import WINDOW_END, WINDOW_START, Session, Sliding, Tumbling
from strandline.core.errors import ConfigurationError
from strandline.format.types import parse_schema
from strandline.runtime.aggregates import Accumulators, FieldSpec
from strandline.runtime.aggregation import RunningAggregation, WindowedAggregation
from strandline.runtime.columnar import ColumnarProcess
from strandline.spark.ddl import ddl_of, quoted
from strandline.spark.late import LateNode
from strandline.spark.nodes import StepNode, make_operator
from strandline.spark.partials import Partial, declare
from strandline.spark.times import ORIGIN, TIME, end_of, hidden_of

if TYPE_CHECKING:
    from strandline.spark.stream import KeyedStream, Stream

PANE, ROWS = "__strandline_pane", "__strandline_rows"
_DEFAULT_SHUFFLE_PARTITIONS = "200"
_WORTHWHILE = 0.6
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class Reduction:
    """Whether to aggregate an epoch's rows before they are sent: as long as that makes them notably fewer.

    Where it does not, it is tried again after a while, and ever more rarely.
    """

    def __init__(self) -> None:
        self.on = True
        self._pause = _FIRST_PAUSE
        self._epochs_off = 0

    def observe(self, source_rows: int, sent_rows: int) -> None:
        """Take in how many rows an epoch had, and how many of them were sent."""
        if not source_rows:
            return
        if not self.on:
            self._epochs_off += 1
            self.on = self._epochs_off >= self._pause
            return
        if sent_rows <= _WORTHWHILE * source_rows:
            self._pause = _FIRST_PAUSE
            return
        if self._epochs_off:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.on, self._epochs_off = False, 0


class Partials:
    """The step that makes rows of partial accumulators."""

    def __init__(
        self,
        keys: tuple[str, ...],
        pane: str | None,
        columns: Mapping[str, Partial],
        ddls: Mapping[str, str],
        reduction: Reduction,
    ) -> None:
        self._keys = [quoted(key) for key in keys]
        self._pane = pane
        self._columns = dict(columns)
        self._ddls = dict(ddls)
        self._reduction = reduction

    def __call__(self, df: DataFrame) -> DataFrame:
        hidden = hidden_of(df)
        if self._pane is not None:
            df = df.where(f"{TIME} is not null")
        pane = [] if self._pane is None else [f"{self._pane} as {PANE}"]
        if not self._reduction.on:
            ones = [f"cast({p.of_one} as {self._ddls[name]}) as {name}" for name, p in self._columns.items()]
            return df.selectExpr(*self._keys, *pane, f"1L as {ROWS}", *ones, *hidden)
        by = [*self._keys, *pane, *(name for name in hidden if name != TIME)]
        many = [f"max({TIME}) as {TIME}"] if hidden else []
        many += [f"count(1) as {ROWS}", *(f"{p.of_many} as {name}" for name, p in self._columns.items())]
        grouped = df.groupBy(*map(F.expr, by)).agg(*map(F.expr, many))
        return grouped.select(*self._keys, *([PANE] if pane else []), ROWS, *self._columns, *hidden)


class Aggregates:
    """The methods that keyed and windowed streams have for built-in aggregation."""

    def _cut(self) -> tuple[KeyedStream, Any, int, str | None]:
        """Return the keyed stream, the kind of window if there is one, the allowed lateness, the late rows' name."""
        raise NotImplementedError

    def agg(
        self,
        results: Mapping[str, Aggregate] | None = None,
        /,
        *,
        uid: str,
        name: str | None = None,
        max_parallelism: int | None = None,
        **more: Aggregate,
    ) -> Stream:
        """Compute built-in aggregates, at the speed of Spark and Arrow: no Python runs per row.

        Gives the key columns, of a windowed stream window_start and window_end, and each result by its name. Without
        windows, each epoch gives the new results of the keys it changed. A window's results come once the watermark has
        reached its end; with `lateness`, those that late events change come again. Results that cannot be keywords are
        given as a dict first. `uid` names the state in every checkpoint: choose it once, never change it.
        """
        keyed, kind, lateness_us, late = self._cut()
        given = {**(results or {}), **more}
        return build(keyed, kind, lateness_us, late, given, uid, name or "agg", max_parallelism)

    def count(self, *, uid: str) -> Stream:
        """Count events into the column `count`."""
        return self.agg({"count": Aggregate("count")}, uid=uid, name="count")

    def sum(self, column: str, *, uid: str) -> Stream:
        """Add up a column; the sum has its name."""
        return self.agg({column: Aggregate("sum", column)}, uid=uid, name="sum")

    def avg(self, column: str, *, uid: str) -> Stream:
        """Compute a column's mean, which has its name."""
        return self.agg({column: Aggregate("avg", column)}, uid=uid, name="avg")

    def min(self, column: str, *, uid: str) -> Stream:
        """Find a column's least value, which has its name."""
        return self.agg({column: Aggregate("min", column)}, uid=uid, name="min")

    def max(self, column: str, *, uid: str) -> Stream:
        """Find a column's greatest value, which has its name."""
        return self.agg({column: Aggregate("max", column)}, uid=uid, name="max")


def build(
    keyed: KeyedStream,
    kind: Any,
    lateness_us: int,
    late: str | None,
    given: Mapping[str, Aggregate],
    uid: str,
    name: str,
    max_parallelism: int | None,
) -> Stream:
    """Return the stream of an aggregation's results."""
    from strandline.spark.stream import Stream

    probe, keys = keyed._node.probe, keyed._keys
    _check(probe, keys, kind, given, uid)
    key_ddl = ", ".join(f"{quoted(key)} {ddl_of(probe.schema[key].dataType)}" for key in keys)
    columns, ddls, results = declare(probe, given, uid)
    fields = [FieldSpec(at, ddls[at], partial.merge) for at, partial in columns.items()]
    accumulators = Accumulators(fields, results)
    process: ColumnarProcess
    pane = None
    if kind is None:
        process = RunningAggregation(keys, accumulators)
    else:
        process = windowed = WindowedAggregation(key_ddl, accumulators, kind, lateness_us)
        pane = end_of(kind.offset_us, windowed.pane_us, windowed.pane_us)
    reduction = Reduction()
    step = Partials(keys, pane, columns, ddls, reduction)
    partials = StepNode(step(probe), keyed._node, step)
    edges = "" if kind is None else f", {WINDOW_START} timestamp, {WINDOW_END} timestamp"
    output = parse_schema(key_ddl + edges + "".join(f", {quoted(r.name)} {r.ddl}" for r in results)).ddl
    node = make_operator(
        partials,
        process,
        uid,
        name=name,
        keys=keys,
        output=output,
        max_parallelism=max_parallelism,
        reduction=reduction,
        sides_before={} if late is None else {late: LateNode(probe.drop(ORIGIN), keyed._node, kind, lateness_us, uid)},
    )
    return Stream(node, node)


def limit_shuffle(session: Any, parallelism: int) -> None:
    """Have group-bys of an epoch's session give few partitions, unless the user has said how many."""
    name = "spark.sql.shuffle.partitions"
    if session.conf.get(name) == _DEFAULT_SHUFFLE_PARTITIONS:
        session.conf.set(name, str(parallelism))


def _check(probe: DataFrame, keys: tuple[str, ...], kind: Any, given: Mapping[str, Any], uid: str) -> None:
    if not isinstance(uid, str) or not uid.strip():
        raise ConfigurationError(
            "agg() has no uid", hint="give it a name that never changes, for example uid='totals': state is found by it"
        )
    if not given:
        raise ConfigurationError(f"operator '{uid}': agg() was given no aggregate", hint="write n=sl.agg.count()")
    for result, aggregate in given.items():
        if not isinstance(aggregate, Aggregate):
            raise ConfigurationError(
                f"operator '{uid}': the aggregate '{result}' is {aggregate!r}, expected one of sl.agg",
                hint=f'write {result}=sl.agg.sum("amount")',
            )
    taken = [*keys, *((WINDOW_START, WINDOW_END) if kind is not None else ())]
    for result in given:
        if result.lower() in [column.lower() for column in taken]:
            raise ConfigurationError(
                f"operator '{uid}': the result '{result}' has the name of another column of the output",
                hint=f"the output has {', '.join(taken)} already: give the result another name",
            )
    if kind is None:
        return
    if not isinstance(kind, Tumbling | Sliding):
        what = "sessions" if isinstance(kind, Session) else f"{kind!r}"
        raise ConfigurationError(
            f"operator '{uid}': agg() is for tumbling and sliding windows, not for {what}",
            hint="use aggregate() or process() of the window",
        )
