"""Watermarks, keys and keyed operators of the user's functions: checks arguments and makes nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, OnError
from strandline.api.options import OperatorOptions, check_options
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.uids import Uid
from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.format.keycolumns import key_column
from strandline.plan.checks import check_inputs, check_numbers, check_on_error, check_process, check_sides, check_uid
from strandline.plan.columns import Columns, check_unlike
from strandline.plan.graph import (
    Keyed,
    KeylessNode,
    LateNode,
    MapNode,
    Movers,
    Node,
    OperatorNode,
    OutputNode,
    PairNode,
    UnionNode,
    WatermarkNode,
    sources_of,
)
from strandline.runtime.program import check_ttl, pickle_process, state_infos
from strandline.runtime.rowlayout import FIRED, ORIGIN, TIME
from strandline.runtime.watermarks import WatermarkSpec
from strandline.types.datatypes import Field, StructType, parse_schema
from strandline.types.ordering import check_order
from strandline.types.spark_schema import SparkType, resolve_schema


def watermark_on(node: Node, column: str, delay: Duration, per: str | None, idle: Duration | None) -> WatermarkNode:
    """Check the arguments of watermark() and return its node."""
    columns = node.columns
    for what, name in (("column", column), ("per", per)):
        if name is not None and (not isinstance(name, str) or name not in columns.names):
            raise ConfigurationError(
                f"watermark: {what}={name!r} is no column; the stream has {', '.join(columns.names)}"
            )
    kind = columns.ddl_of(column)
    if per is not None:
        columns.ddl_of(per)
    if kind != "timestamp":
        raise ConfigurationError(
            f"watermark: the column '{column}' is {kind}, expected timestamp",
            hint=f'make one first: with_column("{column}", expression).watermark("{column}")',
        )
    if columns.is_timed:
        raise ConfigurationError(
            "watermark: the stream has a watermark already",
            hint="call it once, before the first key_by: what operators give has the time of the event it came of",
        )
    idle_us = None if idle is None else parse_duration_ms(idle, "watermark: idle") * 1000
    if idle_us == 0:
        raise ConfigurationError(
            f"watermark: idle is {idle!r}, expected more than 0",
            hint="write after how long without events a source is not waited for, like '1 min'; leave it out to wait",
        )
    spec = WatermarkSpec(column, parse_duration_ms(delay, "watermark: delay") * 1000, per, idle_us)
    return WatermarkNode(columns.with_hidden(TIME, *([ORIGIN] if per else [])), node, spec)


def keyed_by(node: Node, keys: Sequence[Any], order: Sequence[Any]) -> Keyed:
    """Return rows partitioned by key; refuse columns that are missing, repeated, or of a type that no key has."""
    if not keys:
        raise ConfigurationError("key_by() needs at least one column", hint='write key_by("customer")')
    columns = node.columns
    for what, names in (("key_by", keys), ("order_by", order)):
        for name in names:
            if not isinstance(name, str):
                raise ConfigurationError(
                    f"{what} was given {name!r}, expected a column's name",
                    hint='write key_by("a", "b")'
                    if isinstance(name, list | tuple)
                    else 'compute the column first: .with_column("k", expression).key_by("k")',
                )
            if name not in columns.names:
                raise ConfigurationError(
                    f"{what}: there is no column '{name}'; the stream has {', '.join(columns.names)}"
                )
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigurationError(f"key_by: the column '{key}' is given more than once")
        try:
            key_column(columns.type_of(key))
        except ConfigurationError as error:
            raise ConfigurationError(f"key_by: '{key}' cannot be a key: {error.message}", hint=error.hint) from None
    if order:
        named = StructType(tuple(Field(name, columns.type_of(name)) for name in dict.fromkeys(order)))
        check_order(named, order, "key_by", "the stream")
    return Keyed(node, tuple(keys), tuple(order))


def process_on(
    keyed: Keyed,
    process: KeyedProcess | KeyedBatchProcess,
    output: str | SparkType,
    uid: str,
    *,
    sides: Mapping[str, str | SparkType] | None = None,
    keeps_key: bool = False,
    **options: Unpack[OperatorOptions],
) -> OperatorNode:
    """Check the arguments of process() and return its node."""
    check_options("process", options)
    check_uid(f"process() of {type(process).__name__}", uid)
    check_process(process, uid)
    check_sides(uid, sides or {})
    policy = check_on_error(process, uid, options.get("on_error", "fail"), sides or {})
    check_inputs(process, uid, keyed.method)
    state_infos(process)
    schema = resolve_schema(output, f"operator '{uid}': output").ddl
    raw_sides = {
        side: resolve_schema(ddl, f"operator '{uid}': the side output '{side}'").ddl
        for side, ddl in (sides or {}).items()
    }
    for what, ddl in (("output", schema), *((f"the side output '{side}'", ddl) for side, ddl in raw_sides.items())):
        check_unlike(parse_schema(ddl).names, f"operator '{uid}': {what}: ")
    if keeps_key is not False:
        _check_keeps_key(keyed, keeps_key, parse_schema(schema), uid)
    check_ttl(process, uid, timed=keyed.columns.is_timed)
    # Pickle it here, so that an error names the line that made the operator.
    pickle_process(process, uid)
    return make_operator(
        keyed.node,
        uid,
        schema,
        process=process,
        name=options.get("name") or type(process).__name__,
        keys=keyed.keys,
        order_by=keyed.order_by,
        sides=with_dead_letters(raw_sides, policy),
        on_error=policy,
        parallelism=options.get("parallelism"),
        max_parallelism=options.get("max_parallelism"),
        keeps_key=keeps_key,
    )


def _check_keeps_key(keyed: Keyed, keeps_key: object, output: StructType, uid: str) -> None:
    if keeps_key is not True:
        raise ConfigurationError(f"operator '{uid}': keeps_key is {keeps_key!r}, expected True or False")
    types = {field.name: field.type for field in output.fields}
    for key in keyed.keys:
        kind = keyed.columns.type_of(key)
        if types.get(key) != kind:
            actual = f"it is {types[key].ddl}" if key in types else "there is no such column"
            raise ConfigurationError(
                f"operator '{uid}': keeps_key needs the key in the output, as '{key} {kind.ddl}'; {actual}",
                hint="add the key's columns to `output`, or leave keeps_key out",
            )


def with_dead_letters(sides: Mapping[str, str], on_error: OnError) -> dict[str, str]:
    """Return side outputs by name, with dead letters if the policy gives them."""
    letters = {DEAD_LETTERS: resolve_schema(DEAD_LETTER, "dead letters").ddl} if on_error.has_dead_letters else {}
    return {**sides, **letters}


def make_operator(
    parent: Node,
    uid: str,
    output: str,
    *,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    **fields: Any,
) -> OperatorNode:
    """Return the node of an operator on the rows of another; `output` is checked DDL."""
    check_numbers(uid, parallelism, max_parallelism)
    hidden = (TIME, FIRED) if parent.columns.is_timed else ()
    operator = OperatorNode(
        Columns.of(output, hidden),
        parent,
        uid=str(uid),
        was=uid.was if isinstance(uid, Uid) else "",
        input_schema=parent.columns.schema(f"operator '{uid}'").ddl,
        output_schema=output,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        **fields,
    )
    for source in sources_of(parent):
        source.operators.append(operator)
    return operator


def output_of(operator: OperatorNode | MapNode, side: str | None = None) -> Node:
    """Return the main output or a side output of an operator or of a MapNode."""
    if isinstance(operator, MapNode):
        return _output_of_rows(operator, side)
    if side is not None and side in operator.sides_before:
        return operator.sides_before[side]
    if side is not None and side not in operator.sides:
        known = ", ".join([*operator.sides, *operator.sides_before]) or "none"
        raise ConfigurationError(
            f"operator '{operator.uid}' has no side output '{side}', known: {known}",
            hint="declare it in `sides` of process(), or with late= of window()",
        )
    if not operator.sides:
        return operator
    number = 0 if side is None else 1 + list(operator.sides).index(side)
    ddl = operator.output_schema if side is None else operator.sides[side]
    return OutputNode(Columns.of(ddl, operator.columns.hidden), operator, number)


def _output_of_rows(node: MapNode, side: str | None) -> Node:
    if not node.on_error.has_dead_letters:
        return node
    if side is None:
        return OutputNode(node.columns, node)
    return OutputNode(Columns.of(DEAD_LETTER, node.columns.hidden), node, 1)


def movers_above(node: Node | None) -> Movers:
    """Return the watermark, or the watermarks, that a node's rows advance: those with no operator between."""
    while node is not None and not isinstance(node, OperatorNode | LateNode | KeylessNode):
        if isinstance(node, WatermarkNode):
            return node
        if isinstance(node, PairNode | UnionNode):
            return node.movers[0] if len(node.movers) == 1 else node.movers
        node = node.parent
    return None


def branches_above(node: Node | None, branch: str) -> Iterator[tuple[WatermarkNode, str]]:
    """Yield the watermarks of movers_above, each with the name of its branch, which begins with `branch`.

    Names number the inputs of a pair, since its state depends on them. The inputs of a union may change places.
    """
    while node is not None and not isinstance(node, OperatorNode | LateNode | KeylessNode):
        if isinstance(node, WatermarkNode):
            yield node, branch
            return
        if isinstance(node, PairNode | UnionNode):
            for index, parent in enumerate(node.parents):
                yield from branches_above(parent, f"{branch}.{index}" if isinstance(node, PairNode) else branch)
            return
        node = node.parent


def movers_of(inputs: Sequence[Node]) -> tuple[Movers, ...]:
    """Return the watermarks that the rows of several inputs advance: one entry for all, or one for each input."""
    movers = tuple(map(movers_above, inputs))
    return movers[:1] if all(each == movers[0] for each in movers) else movers


def watermarks_in(movers: Movers) -> set[WatermarkNode]:
    """Return all watermarks that rows advance."""
    if isinstance(movers, tuple):
        return set().union(*map(watermarks_in, movers))
    return set() if movers is None else {movers}
