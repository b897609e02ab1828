"""Built-in aggregation of keyed and windowed streams: partial results in Spark's JVM, merged by keepers in Arrow.

An epoch's rows become rows of partial accumulators before they are sent to their keepers: by a group-by where that
makes them fewer, else each row on its own. Both have the same columns, so it can be decided anew for every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.api.aggregates import Aggregate
from strandline.api.windows import Global, Session, WindowKind
from strandline.runtime.operators.aggregates import functions as aggfunctions
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec
from strandline.runtime.operators.aggregates.windows import WindowedAggregation
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.rowlayout import ORIGIN, TIME
from strandline.runtime.state.columnar import ColumnarProcess
from strandline.spark.base.ddl import ddl_of, quoted
from strandline.spark.base.hidden import end_of, hidden_of
from strandline.spark.streams.late import LateNode
from strandline.spark.streams.nodes import Keyed, Node, OperatorNode, StepNode, make_operator
from strandline.spark.streams.partials import Partial, declare
from strandline.spark.streams.reduction import Reduction
from strandline.types.datatypes import parse_schema

PANE, ROWS = "__strandline_pane", "__strandline_rows"
FIRST, LAST = "__strandline_first", "__strandline_last"
_DEFAULT_SHUFFLE_PARTITIONS = "200"


@dataclass(frozen=True)
class Cut:
    """How rows are told apart by time before they are aggregated."""

    by: str | None = None
    """Rows of one key with the same value are aggregated into one."""
    is_sent: bool = False
    """Whether keepers get that value, in the column PANE."""
    columns: Mapping[str, Partial] = field(default_factory=dict)
    """What they get of the rows' times."""
    order_by: tuple[str, ...] = ()
    """In which order rows count, where each is one: these columns are sent too."""
    is_whole: bool = False
    """Whether rows are not to be aggregated at all."""


class Partials:
    """The step that makes rows of partial accumulators."""

    def __init__(
        self,
        keys: tuple[str, ...],
        cut: Cut,
        columns: Mapping[str, Partial],
        ddls: Mapping[str, str],
        reduction: Reduction,
    ) -> None:
        self._keys = [quoted(key) for key in keys]
        self._more = [quoted(column) for column in cut.order_by if column not in keys]
        self._cut = cut
        self._columns = {**cut.columns, **columns}
        self._ddls = {**dict.fromkeys(cut.columns, "bigint"), **ddls}
        self._reduction = reduction

    def __call__(self, df: DataFrame) -> DataFrame:
        hidden = hidden_of(df)
        cut = self._cut
        if cut.by is not None:
            df = df.where(f"{TIME} is not null")
        if not self._reduction.on:
            pane = [f"{cut.by} as {PANE}"] if cut.is_sent else []
            ones = [f"cast({p.of_one} as {self._ddls[name]}) as {name}" for name, p in self._columns.items()]
            return df.selectExpr(*self._keys, *pane, f"1L as {ROWS}", *ones, *self._more, *hidden)
        by = [] if cut.by is None else [f"{cut.by} as {PANE}"]
        many = [f"max({TIME}) as {TIME}"] if hidden else []
        many += [f"count(1) as {ROWS}", *(f"{p.of_many} as {name}" for name, p in self._columns.items())]
        groups = [*self._keys, *by, *(name for name in hidden if name != TIME)]
        grouped = df.groupBy(*map(F.expr, groups)).agg(*map(F.expr, many))
        return grouped.select(*self._keys, *([PANE] if cut.is_sent else []), ROWS, *self._columns, *hidden)


def aggregate_on(
    keyed: Keyed,
    kind: WindowKind | None,
    rules: Rules,
    given: Mapping[str, Aggregate],
    uid: str,
    name: str,
    max_parallelism: int | None,
) -> OperatorNode:
    """Return the node of an aggregation of keyed rows, or of a kind of window of them."""
    probe, keys = keyed.probe, keyed.keys
    aggfunctions.check(kind, rules, keys, given, uid)
    key_schema = parse_schema(", ".join(f"{quoted(key)} {ddl_of(probe.schema[key].dataType)}" for key in keys))
    columns, ddls, results = declare(probe, given, uid)
    fields = [FieldSpec(at, ddls[at], partial.merge) for at, partial in columns.items()]
    plan = aggfunctions.plan(kind, rules, key_schema, Accumulators(fields, results))
    cut = _cut_of(kind, rules, plan.operator, keyed.order_by)
    reduction = Reduction(possible=not cut.is_whole)
    step = Partials(keys, cut, columns, ddls, reduction)
    partials = StepNode(step(probe), keyed.node, step)
    late: dict[str, Node] = {}
    if rules.late is not None:
        late[rules.late] = LateNode(probe.drop(ORIGIN), keyed.node, kind, rules.lateness_us, uid)
    return make_operator(
        partials,
        plan.operator,
        uid,
        name=name,
        keys=keys,
        output=plan.output,
        order_by=cut.order_by,
        max_parallelism=max_parallelism,
        reduction=reduction,
        sides_before=late,
    )


def _cut_of(kind: WindowKind | None, rules: Rules, operator: ColumnarProcess, order_by: tuple[str, ...]) -> Cut:
    """Return what Spark does before keepers get the rows."""
    if isinstance(kind, Global):
        return Cut(order_by=order_by, is_whole=True)
    if kind is None or rules.processing:
        return Cut()
    if isinstance(kind, Session):
        # Events of one such stretch are less than the gap apart.
        times = {FIRST: Partial(f"min({TIME})", TIME, "min"), LAST: Partial(f"max({TIME})", TIME, "max")}
        return Cut(end_of(0, kind.gap_us, kind.gap_us), columns=times)
    assert isinstance(operator, WindowedAggregation)
    return Cut(end_of(kind.offset_us, operator.pane_us, operator.pane_us), is_sent=True)


def limit_shuffle(session: Any, parallelism: int) -> None:
    """Have group-bys of an epoch's session give few partitions, unless the user has said how many."""
    name = "spark.sql.shuffle.partitions"
    if session.conf.get(name) == _DEFAULT_SHUFFLE_PARTITIONS:
        session.conf.set(name, str(parallelism))
