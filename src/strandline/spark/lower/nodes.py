"""Lowers each kind of node to a DataFrame of its parents' DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType as Schema

from strandline.plan.aggregates import AccumulatorColumn
from strandline.plan.aggregation import FIRST, LAST, PANE
from strandline.plan.columns import quoted
from strandline.plan.graph import (
    FailedNode,
    KeylessNode,
    LateNode,
    MapNode,
    Node,
    OperatorNode,
    OutputNode,
    PairNode,
    PartialNode,
    UnionNode,
    WatermarkNode,
)
from strandline.runtime.operators.joins import LEFT, RIGHT
from strandline.runtime.rowlayout import FIRED, ORIGIN, ROWS, SIDE, TIME
from strandline.runtime.task.rowfunction import Report
from strandline.spark.base.ddl import schema_of
from strandline.spark.base.expressions import aggregate_sql, select_sql
from strandline.spark.base.mapping import BatchFunction
from strandline.spark.base.spark_errors import raise_overflow
from strandline.spark.base.task_errors import SEAL, run_sealed
from strandline.spark.lower.failedrows import CountFailed
from strandline.spark.streams.frames import FrameStep, with_times
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    parse_schema,
)

TO = "__strandline_to"
"""A column of broadcast rows: the partition that a copy is sent to."""
_PART = "__strandline_part_"


def lower_node(node: Node, parents: Sequence[DataFrame], copies: int, *, is_reduced: bool) -> DataFrame:
    """Return the DataFrame of a node that needs neither keepers nor Python.

    `copies`: the number of partitions that get broadcast rows; `is_reduced`: whether rows are aggregated to
    accumulators, or each becomes one.
    """
    df = parents[0]
    match node:
        case FrameStep():
            return node.step(df)
        case KeylessNode():
            return df.where(_is_bad(node)).drop(ORIGIN)
        case WatermarkNode():
            return with_times(df, node.spec)
        case OutputNode():
            return _lower_output(node, df)
        case PartialNode():
            return _lower_reduced(node, df) if is_reduced else _lower_partial(node, df)
        case PairNode():
            return _lower_pair(node, copies, df, parents[1])
        case UnionNode():
            return _lower_union(node, parents)
    raise NotImplementedError(type(node).__name__)


def late_rows(node: LateNode, df: DataFrame, watermark_us: int | None, fired_us: int | None) -> DataFrame:
    """Return late rows. Rows that timers emitted upstream precede the watermark: they are compared with `fired_us`."""
    watermark = _literal(watermark_us)
    if FIRED in df.columns:
        watermark = f"if(coalesce({FIRED}, false), {_literal(fired_us)}, {watermark})"
    kind = node.kind
    end = _end_of(kind.offset_us, kind.every_us, kind.size_us)
    # If windows have gaps, a row may be in no window: it is not late.
    rows = df.where(f"{TIME} is null or ({TIME} < {end} and {end} + {node.lateness_us}L <= {watermark})")
    return (rows.where(f"not ({_is_bad(node)})") if node.keys else rows).drop(ORIGIN)


def _is_bad(node: KeylessNode | LateNode) -> str:
    """Return SQL that is true for a row without a key, or with a value that Python cannot represent."""
    bad = " or ".join(f"{quoted(key)} is null" for key in node.keys)
    readable = _are_readable(node.read)
    return f"{bad} or not ({readable})" if readable else bad


def function_of(node: MapNode | FailedNode, report: Report | None) -> BatchFunction:
    """Return the function of a node that Python computes; `report` is the reporter of failed rows, if it has one."""
    if isinstance(node, FailedNode):
        assert report is not None
        return BatchFunction(CountFailed(report, "it is malformed"), output_of(node))
    function = node.row_function(node.columns.hidden, report)
    return BatchFunction(partial(run_sealed, SEAL, function), output_of(node))


def output_of(node: Node) -> Schema:
    """Return the schema of what the function of a node returns."""
    match node:
        case OperatorNode():
            return schema_of(node.raw_schema)
        case MapNode():
            return schema_of(node.raw_ddl)
    return schema_of(node.columns.ddl)


def input_of(node: Node, df: DataFrame) -> DataFrame:
    """Return the rows for the function of a node, of its parent's rows."""
    if isinstance(node, MapNode):
        return select_sql(df, _same([*parse_schema(node.input).names, *node.columns.hidden]))
    return df


def _lower_output(node: OutputNode, df: DataFrame) -> DataFrame:
    prefix = f"{SIDE}_{node.side}." if node.side else ""
    columns = {name: f"{prefix}{quoted(name)}" for name in node.columns.names}
    return select_sql(df.where(f"{SIDE} = {node.side}"), columns | _same(node.columns.hidden))


def _lower_partial(node: PartialNode, df: DataFrame) -> DataFrame:
    """Convert each row to an accumulator."""
    cut = node.cut
    if cut.every_us:
        df = df.where(f"{TIME} is not null")
    pane = {PANE: _end_of(cut.offset_us, cut.every_us, cut.every_us)} if cut.sends_pane else {}
    times = {FIRST: TIME, LAST: TIME} if cut.sends_span else {}
    ones = {name: f"cast({part.one} as {part.type.ddl})" for name, part in node.parts.items()}
    rest = _same([*node.more, *node.columns.hidden])
    return select_sql(df, _keys(node) | pane | {ROWS: "1L"} | times | ones | rest)


def _lower_reduced(node: PartialNode, df: DataFrame) -> DataFrame:
    """Aggregate the rows of each key and pane to an accumulator."""
    cut, hidden = node.cut, node.columns.hidden
    keys, made_again = _unpacked(_keys(node), node, df)
    by = keys | _same(name for name in hidden if name != TIME)
    if cut.every_us:
        df = df.where(f"{TIME} is not null")
        by[PANE] = _end_of(cut.offset_us, cut.every_us, cut.every_us)
    many = {TIME: f"max({TIME})"} if hidden else {}
    many |= {ROWS: "count(1)"}
    many |= {FIRST: f"min({TIME})", LAST: f"max({TIME})"} if cut.sends_span else {}
    # Overflow fails as in keepers, whatever the session's SQL mode: users do not see which of the two adds up.
    is_exact = df.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
    many |= {name: part.many if is_exact else _checked(part) for name, part in node.parts.items()}
    return select_sql(aggregate_sql(df, by, many), _same([*node.columns.names, *hidden]) | made_again)


def _unpacked(keys: dict[str, str], node: PartialNode, df: DataFrame) -> tuple[dict[str, str], dict[str, str]]:
    """Return keys with the values of structs in place of these, and SQL that makes the structs again.

    Spark groups faster by numbers and texts. A struct that may be null stays: it is not the one whose fields are null.
    """
    parts, made_again = dict[str, str](), dict[str, str]()
    for key, sql in keys.items():
        kind = node.columns.type_of(key)
        if not isinstance(kind, StructType) or sql != quoted(key) or df.schema[key].nullable or _are_alike(kind.names):
            parts[key] = sql
            continue
        values = {f"{_PART}{len(parts) + at}": quoted(name) for at, name in enumerate(kind.names)}
        parts |= {value: f"{sql}.{name}" for value, name in values.items()}
        made_again[key] = f"struct({', '.join(f'{value} as {name}' for value, name in values.items())})"
    return parts, made_again


def _keys(node: PartialNode) -> dict[str, str]:
    """Return the key's columns. Unreadable rows get a null key, so that they are not aggregated with others."""
    keys = _same(node.keys)
    readable = _are_readable(node.read)
    if readable:
        first = node.keys[0]
        keys[first] = f"if({readable}, {quoted(first)}, null)"
    return keys


def _are_readable(read: Iterable[tuple[str, DataType]]) -> str:
    """Return SQL that is true if Python can represent the values read from a row; "" if it always can."""
    return " and ".join(f"coalesce({sql}, true)" for c, kind in read if (sql := _is_readable(f"({c})", kind)))


def _is_readable(c: str, kind: DataType) -> str:
    match kind:
        case StringType():
            return f"is_valid_utf8({c})"
        case DateType():
            return f"{c} between date'0001-01-01' and date'9999-12-31'"
        case TimestampType():
            return f"{c} between timestamp'0001-01-01 00:00:00Z' and timestamp'9999-12-31 23:59:59.999999Z'"
        case TimestampNTZType():
            return f"{c} between timestamp_ntz'0001-01-01 00:00:00' and timestamp_ntz'9999-12-31 23:59:59.999999'"
        case ArrayType():
            element = _are_readable([("x", kind.element)])
            return f"forall({c}, x -> {element})" if element else ""
        case MapType():
            return _are_readable([(f"map_keys({c})", ArrayType(kind.key)), (f"map_values({c})", ArrayType(kind.value))])
        case StructType():
            return _are_readable((f"{c}.{quoted(field.name)}", field.type) for field in kind.fields)
    return ""


def _are_alike(names: Sequence[str]) -> bool:
    """Whether names are equal but for upper and lower case, so that Spark's SQL cannot tell them apart."""
    return len({name.lower() for name in names}) < len(names)


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: quoted(name) for name in names}


def _checked(part: AccumulatorColumn) -> str:
    """Return SQL that aggregates rows, and fails on an overflow, for which Spark returns another number or null."""
    c, kind = part.addend, part.type
    if not c:
        return part.many
    too_much = raise_overflow(f"the sum of {c} is too large for {kind.ddl}")
    if isinstance(kind, DecimalType):
        return f"if(sum({c}) is null and count({c}) > 0, {too_much}, sum({c}))"
    total = f"sum(cast({c} as decimal(38, 0)))"
    return f"if({total} not between {-(1 << 63)}BD and {(1 << 63) - 1}BD, {too_much}, cast({total} as bigint))"


def _lower_pair(node: PairNode, copies: int, *inputs: DataFrame) -> DataFrame:
    structs = [node.row_of(half).struct for half in node.halves]
    selected = []
    for at, half in enumerate(node.halves):
        columns = half.columns
        row = f"struct({', '.join(map(quoted, node.row_of(half).names))})"
        rows = [row if at == other else f"cast(null as {struct})" for other, struct in enumerate(structs)]
        nulls = [f"cast(null as {ddl})" for _, ddl in node.columns.types[2:]]
        keys = [quoted(name) for name in (*half.keys, *half.order_by)] or nulls
        input_ = at if node.tells_inputs_apart else None
        hidden = [_hidden_column(name, columns.hidden, input_) for name in node.columns.hidden]
        names = [LEFT, RIGHT, *node.names, *node.columns.hidden]
        selected.append(dict(zip(names, [*rows, *keys, *hidden], strict=True)))
    if node.broadcast_order is not None:
        selected[0][TO] = "cast(null as int)"
        selected[1][TO] = f"explode(sequence(0, {copies - 1}))"
    left, right = (select_sql(df, columns) for df, columns in zip(inputs, selected, strict=True))
    return left.unionAll(right)


def _lower_union(node: UnionNode, inputs: Sequence[DataFrame]) -> DataFrame:
    selected = []
    for at, (parent, df) in enumerate(zip(node.parents, inputs, strict=True)):
        input_ = at if node.tells_inputs_apart else None
        hidden = {name: _hidden_column(name, parent.columns.hidden, input_) for name in node.columns.hidden}
        selected.append(select_sql(df, _same(node.columns.names) | hidden))
    return reduce(DataFrame.unionAll, selected)


def _hidden_column(name: str, hidden: Sequence[str], input_: int | None) -> str:
    """Return the SQL of a hidden column, also for an input that does not have it."""
    if name == ORIGIN and input_ is not None:
        return f"concat('{input_}/', coalesce({ORIGIN}, ''))" if ORIGIN in hidden else f"'{input_}/'"
    defaults = {TIME: "cast(null as bigint)", FIRED: "false", ORIGIN: "cast(null as string)"}
    return name if name in hidden else defaults[name]


def _end_of(offset_us: int, every_us: int, size_us: int) -> str:
    """Return SQL for the end of the last window, or pane, with a row's time; a window begins every `every_us`."""
    return f"({TIME} - pmod({TIME} - {offset_us}L, {every_us}L) + {size_us}L)"


def _literal(time_us: int | None) -> str:
    return "cast(null as bigint)" if time_us is None else f"cast({time_us} as bigint)"
