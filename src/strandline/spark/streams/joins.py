"""Two keyed streams as the input of one operator: their rows are packed into one stream of pairs, of which one is null.

A pair has the key, both rows as structs, and what either stream carries in hidden columns. Routing, order and state
are then those of any keyed stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from strandline.api.windows import WINDOW_END, WINDOW_START, Sliding, Tumbling, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.runtime.operators.joins import HOWS, LEFT, RIGHT, How, IntervalJoin, Layout, TimedJoin, WindowJoin
from strandline.runtime.rowlayout import FIRED, ORIGIN, TIME
from strandline.spark.base.ddl import ddl_of, input_schema, quoted
from strandline.spark.base.hidden import visible, without_hidden
from strandline.spark.streams.late import LateNode
from strandline.spark.streams.nodes import Keyed, Node, OperatorNode, WatermarkNode
from strandline.spark.streams.operators import process_on
from strandline.types.datatypes import parse_schema
from strandline.types.ordering import check_order

_ORDER = "__strandline_order"

TO = "__strandline_to"
"""Of what every partition hears of: to which one this copy goes."""

Pack = Callable[[int, DataFrame, DataFrame], DataFrame]


@dataclass(frozen=True, eq=False)
class PairNode(Node):
    """Two streams packed into one."""

    other: Node | None = None
    pack: Pack = field(default=lambda parallelism, left, right: left)
    movers: tuple[WatermarkNode | None, ...] = ()
    """Whose watermark the rows move: one for all of them, or each input's, and then `ORIGIN` begins with its number."""
    broadcast_order: tuple[str, ...] | None = None
    """If the right rows are for every partition: by which of their columns they are sorted."""

    @property
    def parents(self) -> tuple[Node, ...]:
        """The nodes whose rows it gets."""
        return tuple(node for node in (self.parent, self.other) if node is not None)


def broadcast(left: Keyed, rules: Node, order_by: tuple[str, ...]) -> Keyed:
    """Bring keyed rows together with others that every partition hears of."""
    _check_rules(left, rules, order_by)
    nulls = [
        [f"cast(null as {ddl_of(left.probe.schema[n].dataType)})" for n in names]
        for names in (left.keys, left.order_by)
    ]
    node = _pair_node(left, _input(left), _Input(rules, tuple(nulls[0]), tuple(nulls[1])), "broadcast", order_by)
    return Keyed(node, left.keys, _order_names(left), "broadcast")


def connect(left: Keyed, right: Keyed, what: str = "connect") -> Keyed:
    """Bring together rows that are keyed alike."""
    _check_alike(left, right, what)
    node = _pair_node(left, _input(left), _input(right), what)
    return Keyed(node, left.keys, _order_names(left), "connect")


def interval_join(
    left: Keyed,
    right: Keyed,
    within: tuple[str, str],
    uid: str,
    how: How,
    prefixes: tuple[str, str],
    max_parallelism: int | None,
) -> OperatorNode:
    """Join two keyed streams by how far their times are apart."""
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
    pairs = connect(left, right, "join")
    layout = _layout(left, right, "join", how)
    columns = _columns(layout, prefixes, "join")
    return _join_on(pairs, IntervalJoin(layout, lower, upper, how), columns, uid, max_parallelism)


def window_join(
    left: Keyed,
    right: Keyed,
    kind: WindowKind,
    uid: str,
    how: How,
    prefixes: tuple[str, str],
    max_parallelism: int | None,
) -> OperatorNode:
    """Join two keyed streams by windows."""
    if not isinstance(kind, Tumbling | Sliding):
        raise ConfigurationError(
            f"window_join: the windows are {kind!r}, expected Tumbling or Sliding ones",
            hint='write window_join(other, Tumbling("10s"), …); for bursts of events use join() or connect()',
        )
    pairs = connect(left, right, "window_join")
    layout = _layout(left, right, "window_join", how)
    window = [(WINDOW_START, "timestamp"), (WINDOW_END, "timestamp")]
    columns = _columns(layout, prefixes, "window_join", window)
    return _join_on(pairs, WindowJoin(layout, kind, how), columns, uid, max_parallelism)


def movers_of(operator: OperatorNode) -> tuple[WatermarkNode | None, ...]:
    """Return whose watermarks an operator's events move: one for all, or one an input."""
    node = operator.parent
    return node.movers if isinstance(node, PairNode) else (_watermark_of(node),)


def _join_on(
    pairs: Keyed, process: TimedJoin, columns: list[tuple[str, str]], uid: str, max_parallelism: int | None
) -> OperatorNode:
    output = ", ".join(f"{quoted(name)} {ddl}" for name, ddl in columns)
    return process_on(pairs, process, output, uid, max_parallelism=max_parallelism)


# -- packing


@dataclass(frozen=True)
class _Input:
    """One of two inputs: where its rows come from, and expressions of their key and order."""

    node: Node
    keys: tuple[str, ...]
    order: tuple[str, ...]

    @property
    def is_timed(self) -> bool:
        return TIME in self.node.probe.columns


def _input(stream: Keyed) -> _Input:
    return _Input(stream.node, tuple(map(quoted, stream.keys)), tuple(map(quoted, stream.order_by)))


def _order_names(left: Keyed) -> tuple[str, ...]:
    return tuple(f"{_ORDER}_{at}" for at in range(len(left.order_by)))


def _pair_node(
    stream: Keyed, left: _Input, right: _Input, what: str, broadcast_order: tuple[str, ...] | None = None
) -> PairNode:
    """Pack two inputs into one: both halves, key and order by the left names, and hidden columns."""
    inputs = left, right
    probes = left.node.probe, right.node.probe
    hidden = [name for name in (TIME, FIRED) if any(name in probe.columns for probe in probes)]
    movers = _watermark_of(left.node), _watermark_of(right.node)
    is_one = movers[0] is movers[1] or not right.is_timed
    if any(movers) and (not is_one or ORIGIN in probes[0].columns):
        hidden.append(ORIGIN)
    rows = [_struct_type(probe, what) for probe in probes]
    names = [LEFT, RIGHT, *stream.keys, *_order_names(stream), *hidden]
    selected: list[list[str]] = []
    for at, each in enumerate(inputs):
        own = f"struct({', '.join(map(quoted, visible(probes[at].columns)))})"
        halves = [own if at == half else f"cast(null as {rows[half]})" for half in (0, 1)]
        carried = [_carried(name, probes[at], None if is_one else at) for name in hidden]
        values = [*halves, *each.keys, *each.order, *carried]
        selected.append([f"{value} as {quoted(name)}" for value, name in zip(values, names, strict=True)])

    def pack(parallelism: int, lefts: DataFrame, rights: DataFrame) -> DataFrame:
        if broadcast_order is None:
            return lefts.selectExpr(*selected[0]).unionAll(rights.selectExpr(*selected[1]))
        everywhere = f"explode(sequence(0, {parallelism - 1})) as {TO}"
        return lefts.selectExpr(*selected[0], f"cast(null as int) as {TO}").unionAll(
            rights.selectExpr(*selected[1], everywhere)
        )

    return PairNode(
        probe=pack(1, *probes).drop(TO),
        parent=left.node,
        other=right.node,
        pack=pack,
        movers=movers[:1] if is_one else movers,
        broadcast_order=broadcast_order,
    )


def _carried(name: str, probe: DataFrame, input_: int | None) -> str:
    """Return the expression of a hidden column, which this input may lack."""
    if name == ORIGIN and input_ is not None:
        return f"concat('{input_}/', coalesce({ORIGIN}, ''))" if ORIGIN in probe.columns else f"'{input_}/'"
    nothing = {TIME: "cast(null as bigint)", FIRED: "false", ORIGIN: "cast(null as string)"}
    return name if name in probe.columns else nothing[name]


def _check_rules(left: Keyed, rules: Node, order_by: tuple[str, ...]) -> None:
    check_order(parse_schema(input_schema(rules.probe, "broadcast")), order_by, "broadcast", "the broadcast stream")
    if TIME in rules.probe.columns and not left.is_timed:
        raise ConfigurationError(
            "broadcast: only the broadcast stream has event time",
            hint='call watermark("column") on the keyed stream too, or on neither',
        )


def _check_alike(left: Keyed, right: Keyed, what: str) -> None:
    for whose in ("keys", "order_by"):
        lists = [list(stream.keys if whose == "keys" else stream.order_by) for stream in (left, right)]
        kinds = [
            [ddl_of(stream.probe.schema[name].dataType) for name in names]
            for stream, names in zip((left, right), lists, strict=True)
        ]
        if kinds[0] != kinds[1]:
            said = [
                ", ".join(map(" ".join, zip(names, types, strict=True))) or "nothing"
                for names, types in zip(lists, kinds, strict=True)
            ]
            raise ConfigurationError(
                f"{what}: the {whose} of the streams differ: {said[0]} here, {said[1]} there",
                hint="both need as many columns of the same types, in the same order: cast one before key_by",
            )
    times = [stream.is_timed for stream in (left, right)]
    if times[0] != times[1]:
        raise ConfigurationError(
            f"{what}: only the {'left' if times[0] else 'right'} stream has event time",
            hint='call watermark("column") on both, or on the stream that both branches come from, or on neither',
        )


def _struct_type(probe: DataFrame, what: str) -> str:
    input_schema(probe, what)
    return ddl_of(without_hidden(probe).schema)


def _watermark_of(node: Node | None) -> WatermarkNode | None:
    """Return the watermark that rows come straight from."""
    while node is not None and not isinstance(node, OperatorNode | WatermarkNode | LateNode):
        node = node.parent
    return node if isinstance(node, WatermarkNode) else None


# -- what a join gives


def _layout(left: Keyed, right: Keyed, what: str, how: How) -> Layout:
    if how not in HOWS:
        raise ConfigurationError(f"{what}: how={how!r}, expected one of {', '.join(HOWS)}")
    if not left.is_timed:
        raise ConfigurationError(
            f"{what}: the streams have no event time, and the join is by time",
            hint='call watermark("column") before key_by; connect() works without',
        )
    schemas = [parse_schema(input_schema(stream.probe, what)) for stream in (left, right)]
    shared = [mine for mine, theirs in zip(left.keys, right.keys, strict=True) if mine == theirs]
    return Layout(schemas[0], schemas[1], shared)


def _columns(
    layout: Layout, prefixes: tuple[str, str], what: str, more: list[tuple[str, str]] | None = None
) -> list[tuple[str, str]]:
    """Return the result's columns; Spark does not tell upper from lower case in names."""
    is_pair = isinstance(prefixes, tuple | list) and len(prefixes) == 2
    if not is_pair or not all(isinstance(prefix, str) for prefix in prefixes):
        raise ConfigurationError(f"{what}: prefixes={prefixes!r}, expected a pair of texts, as in ('', 'right_')")
    columns = [*layout.columns((prefixes[0], prefixes[1])), *(more or [])]
    names = [name.lower() for name, _ in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{what}: the result would have the column {', '.join(twice)} twice",
            hint="tell them apart with prefixes=('', 'right_'), or select other columns before key_by",
        )
    return columns


def _signed_us(bound: Any) -> int:
    """Return the microseconds of '5 min' or '-10 min'."""
    text = bound.strip() if isinstance(bound, str) else bound
    if isinstance(text, str) and text.startswith(("-", "+")):
        return (-1 if text[0] == "-" else 1) * parse_duration_ms(text[1:], "join: within") * 1000
    if isinstance(text, int | float) and text < 0:
        return -parse_duration_ms(-text, "join: within") * 1000
    return parse_duration_ms(text, "join: within") * 1000
