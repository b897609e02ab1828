"""Keyed operators of the user's functions: checked, and as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.core.errors import ConfigurationError
from strandline.format.keycolumns import key_column
from strandline.plan.checks import check_inputs, check_process, check_sides, check_uid
from strandline.plan.columns import Columns
from strandline.plan.graph import Keyed, Node, OperatorNode, OutputNode
from strandline.runtime.program import check_ttl, state_infos
from strandline.runtime.rowlayout import FIRED, TIME
from strandline.types.datatypes import Field, StructType, parse_schema
from strandline.types.ordering import check_order


def keyed_by(node: Node, keys: Sequence[Any], order: Sequence[Any]) -> Keyed:
    """Return rows partitioned by key; refuse columns that are not there, or twice, or of a type that no key has."""
    if not keys:
        raise ConfigurationError("key_by() needs at least one column", hint='write key_by("customer")')
    columns = node.columns
    for what, names in (("key_by", keys), ("order_by", order)):
        for name in names:
            if not isinstance(name, str):
                raise ConfigurationError(
                    f"{what} was given {name!r}, expected a column's name",
                    hint='compute the column first: .with_column("k", expression).key_by("k")',
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
    output: str,
    uid: str,
    *,
    sides: Mapping[str, str] | None = None,
    name: str | None = None,
    max_parallelism: int | None = None,
) -> OperatorNode:
    """Return the node of a function with state; raise ConfigurationError for what cannot run."""
    check_uid(f"process() of {type(process).__name__}", uid)
    check_process(process, uid)
    check_sides(uid, sides or {})
    check_inputs(process, uid, keyed.made_by)
    state_infos(process)
    schema = parse_schema(output).ddl
    raw_sides = {side: parse_schema(ddl).ddl for side, ddl in (sides or {}).items()}
    check_ttl(process, uid, timed=keyed.columns.is_timed)
    return make_operator(
        keyed.node,
        process,
        uid,
        name=name or type(process).__name__,
        keys=keyed.keys,
        order_by=keyed.order_by,
        output=schema,
        sides=raw_sides,
        max_parallelism=max_parallelism,
    )


def make_operator(
    parent: Node,
    process: KeyedProcess | KeyedBatchProcess,
    uid: str,
    *,
    name: str,
    keys: tuple[str, ...],
    output: str,
    order_by: tuple[str, ...] = (),
    sides: Mapping[str, str] = MappingProxyType({}),
    sides_before: Mapping[str, Node] = MappingProxyType({}),
    max_parallelism: int | None = None,
) -> OperatorNode:
    """Return the node of an operator on the rows of another; `output` and `sides` are checked DDL."""
    hidden = (TIME, FIRED) if parent.columns.is_timed else ()
    return OperatorNode(
        Columns.of(output, hidden),
        parent,
        uid=uid,
        name=name,
        keys=keys,
        order_by=order_by,
        process=process,
        input_schema=parent.columns.schema(f"operator '{uid}'").ddl,
        output_schema=output,
        sides=dict(sides),
        sides_before=dict(sides_before),
        max_parallelism=max_parallelism,
    )


def output_of(operator: OperatorNode, side: str | None = None) -> Node:
    """Return the main output of an operator, or a side output."""
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
