"""Two keyed streams as the input of one operator: one stream of pairs, in each of which one row is null.

A pair has the key, both rows as structs, and the hidden columns of both streams. Routing, order and state are then
those of any keyed stream.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.api.options import OperatorOptions, check_options
from strandline.api.process import KeyedProcess
from strandline.api.windows import Session, Sliding, Tumbling, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.plan.callables import check_function, check_shippable
from strandline.plan.checks import check_on_error, check_uid
from strandline.plan.columns import Columns, quoted
from strandline.plan.graph import Keyed, Node, OperatorNode, PairNode
from strandline.plan.operators import make_operator, movers_of, with_dead_letters
from strandline.plan.windows import bounds_of
from strandline.runtime.operators.asof import AS_OF_HOWS, AsOfJoin
from strandline.runtime.operators.joins import (
    BOUNDS,
    HOWS,
    LEFT,
    RIGHT,
    Bounds,
    IntervalJoin,
    JoinColumns,
    WindowJoin,
)
from strandline.runtime.operators.sessionjoin import SessionJoin
from strandline.runtime.rowlayout import FIRED, ORIGIN, TIME
from strandline.types.datatypes import parse_schema
from strandline.types.ordering import check_order

_ORDER = "__strandline_order"


def broadcast(left: Keyed, rules: Node, order_by: tuple[str, ...]) -> Keyed:
    """Pair keyed rows with the rows of another stream, which every partition gets."""
    check_order(rules.columns.schema("broadcast"), order_by, "broadcast", "the broadcast stream")
    if rules.columns.is_timed and not left.columns.is_timed:
        raise ConfigurationError(
            "broadcast: only the broadcast stream has event time",
            hint='call watermark("column") on the keyed stream too, or on neither',
        )
    return _pair(left, Keyed(rules, ()), "broadcast", order_by)


def connect(left: Keyed, right: Keyed, what: str = "connect", *, keys_once: bool = False) -> Keyed:
    """Pair the rows of two streams with equal keys; with `keys_once`, the rows in the pairs are without them."""
    _check_alike(left, right, what)
    return _pair(left, right, what, keys_once=keys_once)


Late = tuple[str | None, str | None]
"""Names of the side outputs of late left rows and late right rows; None to drop them."""


@dataclass(frozen=True)
class JoinOptions:
    """Options of every join."""

    what: str
    """The method that the user called."""
    uid: str
    how: Any
    prefixes: Any
    late: Any
    operator: OperatorOptions


def interval_join(
    left: Keyed, right: Keyed, within: tuple[Duration, Duration], bounds: Bounds, options: JoinOptions
) -> OperatorNode:
    """Join rows of two keyed streams whose times differ by at most some duration."""
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise ConfigurationError(
            f"join: within is {within!r}, expected a pair of durations",
            hint='write how much earlier and later the other row may be: within=("-10 min", "5 min")',
        )
    lower, upper = (_signed_us(bound) for bound in within)
    if lower > upper:
        raise ConfigurationError(
            f"join: within is {tuple(within)!r}, and its first bound is the later one",
            hint='the earlier bound comes first: within=("-10 min", "5 min")',
        )
    if bounds not in BOUNDS:
        raise ConfigurationError(
            f"join: bounds is {bounds!r}, expected one of {', '.join(BOUNDS)}",
            hint="a round bracket excludes the bound: '[)' is from the earlier one on, up to before the later one",
        )
    if bounds != "[]" and lower == upper:
        raise ConfigurationError(
            f"join: within is {tuple(within)!r} with bounds={bounds!r}, and no two rows are that near",
            hint="leave bounds out: with '[]', rows are joined that are exactly that far apart",
        )
    pairs, layout, output = _join(left, right, options, HOWS)
    join = IntervalJoin(layout, lower, upper, options.how, bounds, options.late)
    return _operator(pairs, join, layout, output, options)


def window_join(left: Keyed, right: Keyed, kind: WindowKind, options: JoinOptions) -> OperatorNode:
    """Join two keyed streams by windows."""
    if not isinstance(kind, Tumbling | Sliding | Session):
        raise ConfigurationError(
            f"window_join: the windows are {kind!r}, expected Tumbling, Sliding or Session ones",
            hint='write window_join(other, Tumbling("10s"), …); without time, use connect()',
        )
    if isinstance(kind, Session) and callable(kind.gap):
        check_function("window_join: the function of the sessions' gap", kind.gap, ["row"])
        check_shippable("window_join: the function of the sessions' gap", kind.gap)
    pairs, layout, output = _join(left, right, options, HOWS, *bounds_of(kind))
    join: KeyedProcess
    if isinstance(kind, Session):
        join = SessionJoin(layout, kind, options.how, options.late)
    else:
        join = WindowJoin(layout, kind, options.how, options.late)
    return _operator(pairs, join, layout, output, options)


def as_of_join(
    left: Keyed, versions: Keyed, max_age: Duration | None, deleted: str | None, options: JoinOptions
) -> OperatorNode:
    """Join each row with the version that was valid at its time."""
    max_age_us = None if max_age is None else parse_duration_ms(max_age, "as_of_join: max_age") * 1000
    if deleted is not None:
        _check_deleted(versions, deleted)
    pairs, layout, output = _join(left, versions, options, AS_OF_HOWS, without=() if deleted is None else (deleted,))
    return _operator(pairs, AsOfJoin(layout, options.how, max_age_us, options.late, deleted), layout, output, options)


def _check_deleted(versions: Keyed, column: Any) -> None:
    """Refuse an unsuitable column for the end of a version."""
    columns = versions.columns
    kind = columns.ddl_of(column) if isinstance(column, str) and column in columns.names else None
    if kind == "boolean" and column not in versions.keys:
        return
    known = ", ".join(columns.names)
    what = f"is {kind}, expected a boolean" if kind else f"is no column of the versions, which have {known}"
    raise ConfigurationError(
        f"as_of_join: deleted={column!r} " + ("is a column of the key" if column in versions.keys else what),
        hint="give the name of a boolean column that is true in a row from whose time on its key has no version",
    )


def _operator(pairs: Keyed, join: KeyedProcess, layout: JoinColumns, output: str, options: JoinOptions) -> OperatorNode:
    late = zip(options.late, (layout.left.ddl, layout.right.ddl), strict=True)
    sides = {name: parse_schema(ddl).ddl for name, ddl in late if name is not None}
    policy = check_on_error(join, options.uid, options.operator.get("on_error", "fail"), sides)
    return make_operator(
        pairs.node,
        options.uid,
        parse_schema(output).ddl,
        process=join,
        name=options.operator.get("name") or options.what,
        keys=pairs.keys,
        order_by=pairs.order_by,
        sides=with_dead_letters(sides, policy),
        on_error=policy,
        parallelism=options.operator.get("parallelism"),
        max_parallelism=options.operator.get("max_parallelism"),
    )


# -- packing


def _pair(
    left: Keyed,
    right: Keyed,
    what: str,
    broadcast_order: tuple[str, ...] | None = None,
    *,
    keys_once: bool = False,
) -> Keyed:
    """Return the pairs of two inputs, with key and order under the left names, and hidden columns."""
    both = left.columns, right.columns
    movers = movers_of([left.node, right.node] if both[1].is_timed else [left.node])
    hidden = [name for name in (TIME, FIRED) if any(name in columns.hidden for columns in both)]
    if len(movers) > 1 or ORIGIN in both[0].hidden:
        hidden.append(ORIGIN)
    for columns in both:
        columns.schema(what)
    order = tuple(f"{_ORDER}_{at}" for at in range(len(left.order_by)))
    sort_columns = zip((*left.keys, *order), map(both[0].ddl_of, (*left.keys, *left.order_by)), strict=True)
    rows = [half.columns.without(half.keys) if keys_once else half.columns for half in (left, right)]
    node = PairNode(
        Columns(((LEFT, rows[0].struct), (RIGHT, rows[1].struct), *sort_columns)).with_hidden(*hidden),
        left.node,
        other=right.node,
        halves=(left, right),
        names=(*left.keys, *order),
        movers=movers,
        broadcast_order=broadcast_order,
        has_keys_once=keys_once,
    )
    return Keyed(node, left.keys, order, "connect" if broadcast_order is None else "broadcast")


def _check_alike(left: Keyed, right: Keyed, what: str) -> None:
    for whose, mine, theirs in (("keys", left.keys, right.keys), ("order_by", left.order_by, right.order_by)):
        here, there = _types(left, mine), _types(right, theirs)
        if here != there:
            raise ConfigurationError(
                f"{what}: the {whose} of the streams differ: {_text(mine, here)} here, {_text(theirs, there)} there",
                hint="both need as many columns of the same types, in the same order: cast one before key_by",
            )
    times = [stream.columns.is_timed for stream in (left, right)]
    if times[0] != times[1]:
        raise ConfigurationError(
            f"{what}: only the {'left' if times[0] else 'right'} stream has event time",
            hint='call watermark("column") on both, or on the stream that both branches come from, or on neither',
        )


def _types(stream: Keyed, names: Sequence[str]) -> list[str]:
    return [stream.columns.type_of(name).ddl for name in names]


def _text(names: Sequence[str], types: Sequence[str]) -> str:
    return ", ".join(map(" ".join, zip(names, types, strict=True))) or "nothing"


# -- output


def _join(
    left: Keyed, right: Keyed, options: JoinOptions, hows: Sequence[str], *bounds: str, without: Sequence[str] = ()
) -> tuple[Keyed, JoinColumns, str]:
    """Return the pairs, the layout and the DDL of the result; `bounds` are a window's columns."""
    what, prefixes = options.what, options.prefixes
    check_uid(f"{what}()", options.uid)
    check_options(what, options.operator)
    pairs = connect(left, right, what)
    if options.how not in hows:
        raise ConfigurationError(f"{what}: how={options.how!r}, expected one of {', '.join(hows)}")
    if not left.columns.is_timed:
        raise ConfigurationError(
            f"{what}: the streams have no event time, and the join is by time",
            hint='call watermark("column") before key_by; connect() works without',
        )
    if not _is_pair(prefixes) or None in prefixes:
        raise ConfigurationError(f"{what}: prefixes={prefixes!r}, expected a pair of texts, as in ('', 'right_')")
    if (
        not _is_pair(options.late)
        or "" in options.late
        or (options.late[0] == options.late[1] and options.late[0] is not None)
    ):
        raise ConfigurationError(
            f"{what}: late={options.late!r}, expected the names of two side outputs",
            hint="name that of this stream's late rows, and that of the other's, or None: late=('late_orders', None)",
        )
    shared = [mine for mine, theirs in zip(left.keys, right.keys, strict=True) if mine == theirs]
    layout = JoinColumns(left.columns.schema(what), right.columns.schema(what), shared, without)
    columns = [*layout.columns((prefixes[0], prefixes[1])), *((bound, "timestamp") for bound in bounds)]
    # Spark does not tell upper from lower case in names.
    names = [name.lower() for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{what}: the result would have the column {', '.join(twice)} twice",
            hint="tell them apart with prefixes=('', 'right_'), or select other columns before key_by",
        )
    return pairs, layout, ", ".join(f"{quoted(name)} {ddl}" for name, ddl in columns)


def _is_pair(value: Any) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and all(part is None or isinstance(part, str) for part in value)


def _signed_us(bound: Any) -> int:
    """Return the microseconds of '5 min' or '-10 min'."""
    text = bound.strip() if isinstance(bound, str) else bound
    if isinstance(text, str) and text.startswith(("-", "+")):
        return (-1 if text[0] == "-" else 1) * parse_duration_ms(text[1:], "join: within") * 1000
    if isinstance(text, dt.timedelta) and text < dt.timedelta(0):
        return -parse_duration_ms(-text, "join: within") * 1000
    return parse_duration_ms(text, "join: within") * 1000
