"""Built-in aggregation of keyed and windowed streams: checks its arguments and makes its nodes.

Spark turns an epoch's rows into partial accumulators before it sends them to keepers: with a group-by if that reduces
them, else one for each row. Both have the same columns, so that each epoch can choose either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strandline.api.aggregates import Aggregate
from strandline.api.badrecords import DEAD_LETTERS, OnError, on_error_of
from strandline.api.windows import Global, Session, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.plan.aggregates import PREFIX, plan_results
from strandline.plan.callables import check_function
from strandline.plan.checks import check_on_error, check_uid
from strandline.plan.columns import Columns, quoted
from strandline.plan.graph import Cut, Keyed, LateNode, Node, OperatorNode, PartialNode, sources_of
from strandline.plan.maps import keyless
from strandline.plan.operators import make_operator
from strandline.plan.windows import bounds_of, check_window_keys, operator_of
from strandline.runtime.operators.aggregates.accumulators import Accumulators, ResultSpec
from strandline.runtime.operators.aggregates.folded import Accumulating, OfRow
from strandline.runtime.operators.aggregates.running import CountedAggregation, RunningAggregation
from strandline.runtime.operators.aggregates.sessions import SessionAggregation
from strandline.runtime.operators.aggregates.windows import WindowedAggregation
from strandline.runtime.operators.windows.operator import Rules, WindowOperator
from strandline.runtime.rowlayout import ORIGIN, ROWS
from strandline.runtime.state.columnar import ColumnarProcess
from strandline.types.datatypes import Field, StructType, TimestampType, parse_type

PANE = "__strandline_pane"
FIRST, LAST = "__strandline_first", "__strandline_last"


def combine_aggregates(results: Mapping[str, Aggregate] | None, more: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Return the aggregates of a dict and of keywords as one dict."""
    if results is not None and not isinstance(results, Mapping):
        raise ConfigurationError(
            f"agg() was given {results!r}, expected aggregates by their names",
            hint='write agg(n=sl.agg.count(), …), or give a dict: agg({"n": sl.agg.count()}, …)',
        )
    return {**(results or {}), **more}


def aggregate_on(
    keyed: Keyed,
    kind: WindowKind | None,
    rules: Rules,
    aggregates: Mapping[str, Aggregate],
    uid: str,
    name: str,
    parallelism: int | None,
    max_parallelism: int | None,
    on_error: OnError | str = "fail",
) -> OperatorNode:
    """Return the node of an aggregation of keyed rows, or of windows of them."""
    columns, keys = keyed.columns, keyed.keys
    _check(kind, rules, keys, aggregates, uid)
    (source, *_) = sources_of(keyed.node)
    plan = plan_results(columns, aggregates, uid, lambda expression, what: source.type_of(keyed.node, expression, what))
    accumulators = Accumulators(plan.fields, plan.results)
    key_fields = [Field(key, columns.type_of(key)) for key in keys]
    folded = _is_folded(kind, rules)
    if folded:
        _check_folded(aggregates, uid, on_error)
        cut = Cut(order_by=keyed.order_by, is_whole=True)
        extra = columns.names if _function_of(kind) else cut.order_by
        more = tuple(column for column in extra if column not in keys)
        operator: Any = _folded(kind, rules, keys, plan.parts, more, accumulators, columns.names)
    else:
        operator = _operator_of(kind, rules, StructType(tuple(key_fields)), accumulators)
        cut = _cut_of(kind, rules, operator, keyed.order_by)
        more = tuple(column for column in cut.order_by if column not in keys)
    times = [PANE] * cut.sends_pane + [ROWS] + [FIRST, LAST] * cut.sends_span
    types = [(key, columns.ddl_of(key)) for key in keys]
    types += [(time, "bigint") for time in times]
    types += [(name, part.type.ddl) for name, part in plan.parts.items()]
    types += [(column, columns.ddl_of(column)) for column in more]
    sent = Columns(tuple(types), columns.hidden)
    late: dict[str, Node] = {}
    policy = check_on_error(operator, uid, on_error, [] if rules.late is None else [rules.late])
    read = [(quoted(name), columns.type_of(name)) for name in (*keys, *more)]
    read += [(part.one, part.type) for part in plan.parts.values()]
    if rules.late is not None:
        unseen = (hidden for hidden in columns.hidden if hidden != ORIGIN)
        bad = ((), ()) if policy.fails else (keys, tuple(read))
        late[rules.late] = LateNode(columns.with_hidden(*unseen), keyed.node, kind, rules.lateness_us, uid, *bad)
    if policy.has_dead_letters:
        late[DEAD_LETTERS] = keyless(keyed, uid, tuple(read))
    bounds = [Field(bound, TimestampType()) for bound in bounds_of(kind)]
    results = [Field(result.name, parse_type(result.ddl)) for result in accumulators.results]
    return make_operator(
        PartialNode(sent, keyed.node, keys, cut, plan.parts, more, () if policy.fails else tuple(read)),
        uid,
        StructType((*key_fields, *bounds, *results)).ddl,
        process=operator,
        name=name,
        keys=keys,
        order_by=cut.order_by,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        sides_before=late,
        on_error=policy,
        keeps_key=True,
    )


def _is_folded(kind: WindowKind | None, rules: Rules) -> bool:
    """Whether a result depends on each event in turn, so that Spark must not aggregate events before."""
    by_event = rules.early_events > 0 or rules.early_by_event_time or not rules.accumulate
    early_by_clock = isinstance(kind, Global) and rules.early_us > 0
    return kind is not None and (by_event or early_by_clock or _function_of(kind) is not None)


def _function_of(kind: WindowKind | None) -> Any:
    """Return the user's function that decides when a window ends, or None."""
    if isinstance(kind, Session):
        return kind.gap if callable(kind.gap) else None
    return kind.when if isinstance(kind, Global) else None


def _check_folded(aggregates: Mapping[str, Aggregate], uid: str, on_error: OnError | str) -> None:
    """Refuse options that aggregates do not support when each window's state is one value."""
    for result, aggregate in aggregates.items():
        if aggregate.was:
            raise ConfigurationError(
                f"operator '{uid}': the aggregate '{result}' is renamed, and windows that look at each event, as with "
                "early=Early(events=…) or accumulate=False, cannot tell whose state it was",
                hint="leave .renamed(…) out: it begins empty; or go on with the old name, and rename the column behind",
            )
    if not on_error_of(f"operator '{uid}'", on_error).fails:
        raise ConfigurationError(
            f"operator '{uid}': on_error is not for agg() of windows that look at each event, as with "
            "early=Early(events=…) or accumulate=False",
            hint='drop rows without a key before key_by, as with where("key is not null"), or use fold() of the window',
        )


def _folded(
    kind: WindowKind | None,
    rules: Rules,
    keys: Sequence[str],
    parts: Mapping[str, Any],
    more: Sequence[str],
    accumulators: Accumulators,
    names: Sequence[str],
) -> WindowOperator:
    """Return an operator that keeps one accumulator for each window and looks at each event."""
    assert kind is not None
    # In the order of PartialNode: the key, the number of rows, the accumulator, and other columns.
    sent = [*keys, ROWS, *parts, *more]
    function = _function_of(kind)
    if function is not None:
        what = "the function of a session's gap" if isinstance(kind, Session) else "when= of Global windows"
        check_function(what, function, ["event"] if isinstance(kind, Session) else ["event", "n"])
        of_row = OfRow(function, names, [sent.index(name) for name in names])
        kind = Global(kind.count, of_row) if isinstance(kind, Global) else Session(of_row)
    # LateNode takes late events from the stream's rows.
    rules = replace(rules, several_keys=len(keys) > 1, late=None)
    operator = operator_of(kind, Accumulating(accumulators, len(keys) + 1), rules)
    state = operator.own_states["windows"]
    unsaid = {f"value.{column}": _unsaid(r) for r in accumulators.results if not r.is_added for column in r.fields}
    state.hints = replace(state.hints, refused=unsaid)
    operator.own_function, operator.own_step, operator.own_hides_events = "", "agg", True
    return operator


def _unsaid(result: ResultSpec) -> str:
    return (
        f"the aggregate '{result.name}' is new, or has a state of its own now: of windows in the snapshot it would "
        f"have only what comes from now on; if that will do, write .added() behind sl.agg.{result.kind}(…)"
    )


def _operator_of(
    kind: WindowKind | None, rules: Rules, keys: StructType, accumulators: Accumulators
) -> ColumnarProcess:
    if kind is None:
        return RunningAggregation(keys.names, accumulators)
    if isinstance(kind, Global):
        assert kind.count is not None
        return CountedAggregation(keys.names, accumulators, kind.count)
    if isinstance(kind, Session):
        return SessionAggregation(keys.ddl, accumulators, kind, rules)
    return WindowedAggregation(keys.ddl, accumulators, kind, rules)


def _cut_of(kind: WindowKind | None, rules: Rules, operator: ColumnarProcess, order_by: tuple[str, ...]) -> Cut:
    """Return how Spark splits rows by time before it aggregates them."""
    if isinstance(kind, Global):
        return Cut(order_by=order_by, is_whole=True)
    if kind is None or rules.processing:
        return Cut()
    if isinstance(kind, Session):
        # Events of one interval are less than the gap apart.
        return Cut(kind.gap_us, sends_span=True)
    assert isinstance(operator, WindowedAggregation)
    return Cut(operator.pane_us, kind.offset_us, sends_pane=True)


def _check(kind: WindowKind | None, rules: Rules, keys: Sequence[str], aggregates: Mapping[str, Any], uid: str) -> None:
    """Refuse an invalid aggregation."""
    check_uid("agg()", uid)
    if not aggregates:
        raise ConfigurationError(f"operator '{uid}': agg() was given no aggregate", hint="write n=sl.agg.count()")
    for result, aggregate in aggregates.items():
        if not isinstance(result, str) or not result.strip() or result.startswith(PREFIX):
            raise ConfigurationError(
                f"operator '{uid}': {result!r} is no name for a result", hint=f"write one, not beginning with {PREFIX}"
            )
        if not isinstance(aggregate, Aggregate):
            raise ConfigurationError(
                f"operator '{uid}': the aggregate '{result}' is {aggregate!r}, expected one of sl.agg",
                hint=f'write {result}=sl.agg.sum("amount")',
            )
    for result, aggregate in aggregates.items():
        rivals = [other for other, its in aggregates.items() if its.was == aggregate.was and other != result]
        if aggregate.was and (aggregate.was in aggregates or rivals):
            other = aggregate.was if aggregate.was in aggregates else rivals[0]
            raise ConfigurationError(
                f"operator '{uid}': the aggregate '{result}' was '{aggregate.was}', and so "
                f"{'is' if aggregate.was in aggregates else 'was'} '{other}'",
                hint="one of them goes on from that state: leave renamed(was=…) out of the other",
            )
    bounds = bounds_of(kind)
    if bounds:
        check_window_keys(keys, uid)
    for at, result in enumerate(aggregates):
        others = [*keys, *bounds, *list(aggregates)[:at]]
        if result.lower() in [column.lower() for column in others]:
            raise ConfigurationError(
                f"operator '{uid}': the result '{result}' has the name of another column of the output",
                hint=f"the output has {', '.join(others)} already: give the result another name",
            )
    _check_window(kind, rules, uid)


def _check_window(kind: WindowKind | None, rules: Rules, uid: str) -> None:
    """Refuse late events of sessions."""
    if isinstance(kind, Session) and rules.late is not None:
        raise ConfigurationError(
            f"operator '{uid}': agg() of sessions has no late events to give: which they are shows when they have "
            "been aggregated",
            hint="leave late= out, they are counted in any case; or use fold(), aggregate() or process()",
        )
