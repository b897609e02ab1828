"""Keyed operators of the user's functions: checked, and as nodes."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.joins import check_inputs
from strandline.runtime.program import check_process, check_sides, check_ttl, state_infos
from strandline.runtime.rowlayout import SIDE
from strandline.spark.base.ddl import quoted
from strandline.spark.base.hidden import hidden_of
from strandline.spark.streams.nodes import Keyed, Node, OperatorNode, StepNode, make_operator
from strandline.types.datatypes import parse_schema


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
    if not isinstance(uid, str) or not uid.strip():
        raise ConfigurationError(
            f"process() of {type(process).__name__} has no uid",
            hint="give it a name of its own that never changes, for example uid='detect': state is found by it",
        )
    check_process(process, uid)
    check_sides(uid, sides or {})
    check_inputs(process, uid, keyed.made_by)
    state_infos(process)
    schema = parse_schema(output).ddl
    raw_sides = {side: parse_schema(ddl).ddl for side, ddl in (sides or {}).items()}
    check_ttl(process, uid, timed=keyed.is_timed)
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


def output_of(operator: OperatorNode, side: int) -> Node:
    """Return the main output of an operator, or a side output."""
    if not operator.sides:
        return operator
    ddl = [operator.output_schema, *operator.sides.values()][side]
    names = [quoted(name) for name in parse_schema(ddl).names]
    wanted = names if side == 0 else [f"{SIDE}_{side}.{name}" for name in names]
    hidden = hidden_of(operator.probe)

    def step(df: DataFrame) -> DataFrame:
        return df.where(f"{SIDE} = {side}").select(*wanted, *hidden)

    return StepNode(step(operator.probe), operator, step)
