"""Evaluation of each kind of stateless node on Arrow batches, in the test's process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.plan.aggregation import FIRST, LAST, PANE
from strandline.plan.columns import Columns
from strandline.plan.graph import (
    KeylessNode,
    LateNode,
    MapNode,
    Node,
    OutputNode,
    PairNode,
    PartialNode,
    UnionNode,
    WatermarkNode,
)
from strandline.runtime.rowlayout import FIRED, ORIGIN, ROWS, SIDE, TIME
from strandline.runtime.task.rowfunction import Report
from strandline.runtime.task.task import EpochTimes
from strandline.testing.events import AT
from strandline.types.columns import arrow_schema, to_python
from strandline.types.datatypes import StructType, parse_schema
from strandline.types.ordering import comparable

Rows: TypeAlias = pa.RecordBatch
"""A batch with a node's columns, its hidden columns, and AT."""


def evaluate(node: Node, parents: Sequence[Rows], times: EpochTimes, report: Report | None = None) -> Rows:
    """Return the rows of a node without state; `report` counts those that fail."""
    rows = parents[0]
    match node:
        case MapNode():
            return _map(node, rows, report)
        case KeylessNode():
            return _with(rows.filter(_has_no_key(node, rows)), {}, node.columns)
        case WatermarkNode():
            return _set_times(node, rows)
        case OutputNode():
            return _output(node, rows)
        case PartialNode():
            return _accumulators(node, rows)
        case PairNode():
            return _pairs(node, *parents)
        case UnionNode():
            return _union(node, parents)
        case LateNode():
            return _late(node, rows, times)
    raise NotImplementedError(type(node).__name__)


def schema_of(columns: Columns) -> pa.Schema:
    """Return the schema of a node's rows."""
    return arrow_schema(parse_schema(columns.ddl)).append(pa.field(AT, pa.int64()))


def sort_rows(rows: Rows, order_by: Sequence[str], schema: StructType) -> Rows:
    """Return rows sorted as Spark sorts them."""
    if not order_by:
        return rows
    columns = zip(map(rows.column, order_by), schema.types_of(order_by), strict=True)
    keys = [list(map(comparable(kind), to_python(column, kind))) for column, kind in columns]
    order = sorted(range(rows.num_rows), key=lambda at: [key[at] for key in keys])
    return rows.take(pa.array(order, pa.int64()))


def _map(node: MapNode, rows: Rows, report: Report | None) -> Rows:
    passed = [*node.columns.hidden, AT]
    function = node.row_function(passed, report if node.is_counted else None)
    batches = list(function(iter([rows.select([*parse_schema(node.input).names, *passed])])))
    return concat(batches, arrow_schema(parse_schema(node.raw_ddl)).append(pa.field(AT, pa.int64())))


def _set_times(node: WatermarkNode, rows: Rows) -> Rows:
    spec = node.spec
    added = {TIME: rows.column(spec.column).cast(pa.int64())}
    if spec.per is not None:
        added[ORIGIN] = rows.column(spec.per).cast(pa.string())
    return _with(rows, added, node.columns)


def _output(node: OutputNode, rows: Rows) -> Rows:
    rows = rows.filter(pc.equal(rows.column(SIDE), node.side))
    if not node.side:
        return _with(rows, {}, node.columns)
    parts = rows.column(f"{SIDE}_{node.side}").flatten()
    return _with(rows, dict(zip(node.columns.names, parts, strict=True)), node.columns)


def _accumulators(node: PartialNode, rows: Rows) -> Rows:
    """Return an accumulator for each row."""
    cut = node.cut
    if cut.every_us:
        rows = rows.filter(pc.is_valid(rows.column(TIME)))
    n = rows.num_rows
    of = dict(zip(rows.schema.names, rows.columns, strict=True))
    added = {name: part.make(of, n) for name, part in node.parts.items()}
    added[ROWS] = pa.array(np.ones(n, np.int64))
    if cut.sends_pane:
        added[PANE] = pa.array(_ends(rows, cut.offset_us, cut.every_us, cut.every_us))
    if cut.sends_span:
        added |= {FIRST: of[TIME], LAST: of[TIME]}
    return _with(rows, added, node.columns)


def _pairs(node: PairNode, *inputs: Rows) -> Rows:
    schema = schema_of(node.columns)
    batches = []
    for half, (input_, rows) in enumerate(zip(node.halves, inputs, strict=True)):
        columns = [pa.nulls(rows.num_rows, field.type) for field in schema]
        packed = schema.field(half).type
        columns[half] = pa.StructArray.from_arrays(
            [rows.column(name) for name in node.row_of(input_).names], fields=list(packed)
        )
        for at, name in enumerate((*input_.keys, *input_.order_by), 2):
            columns[at] = rows.column(name)
        for name in (*node.columns.hidden, AT):
            if name in rows.schema.names:
                columns[schema.get_field_index(name)] = rows.column(name)
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return _merge(node, batches, schema)


def _union(node: UnionNode, inputs: Sequence[Rows]) -> Rows:
    schema = schema_of(node.columns)
    batches = []
    for rows in inputs:
        by_name = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns = [by_name.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in schema]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return _merge(node, batches, schema)


def _merge(node: PairNode | UnionNode, inputs: Sequence[Rows], schema: pa.Schema) -> Rows:
    """Return the rows of several inputs in one batch, with their origins, in the order in which they were pushed."""
    batches = []
    for at, rows in enumerate(inputs):
        if node.tells_inputs_apart and ORIGIN in node.columns.hidden:
            origins = rows.column(ORIGIN).fill_null("")
            rows = rows.set_column(
                schema.get_field_index(ORIGIN), schema.field(ORIGIN), pc.binary_join_element_wise(f"{at}/", origins, "")
            )
        batches.append(rows)
    rows = concat(batches, schema)
    return rows.take(pc.sort_indices(rows, sort_keys=[(AT, "ascending")]))


def _late(node: LateNode, rows: Rows, times: EpochTimes) -> Rows:
    """Return the late rows. Rows from timers of upstream operators come before the watermark advances."""
    at = rows.column(TIME)
    reached = pa.array([times.watermark_us] * rows.num_rows, pa.int64())
    if FIRED in rows.schema.names:
        reached = pc.if_else(rows.column(FIRED).fill_null(False), pa.scalar(times.fired_us, pa.int64()), reached)
    kind = node.kind
    end = pa.array(_ends(rows, kind.offset_us, kind.every_us, kind.size_us))
    is_over = pc.less_equal(pc.add(end, node.lateness_us), reached).fill_null(False)
    # A row in a gap between windows is not late.
    is_late = pc.and_(pc.less(at, end), is_over)
    mask = pc.or_(pc.is_null(at), is_late.fill_null(False))
    if node.keys:
        mask = pc.and_not(mask, _has_no_key(node, rows))
    return _with(rows.filter(mask), {}, node.columns)


def _has_no_key(node: KeylessNode | LateNode, rows: Rows) -> pa.Array:
    return reduce(pc.or_, [rows.column(key).is_null() for key in node.keys])


def _ends(rows: Rows, offset_us: int, every_us: int, size_us: int) -> np.ndarray:
    """Return the end of the last window, or pane, that contains each row's time."""
    at = rows.column(TIME).fill_null(0).to_numpy()
    return np.asarray(at - (at - offset_us) % every_us + size_us)


def _with(rows: Rows, added: dict[str, pa.Array], columns: Columns) -> Rows:
    """Return rows with the columns of a node."""
    schema = schema_of(columns)
    arrays = [added[name] if name in added else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)


def concat(batches: Sequence[Rows], schema: pa.Schema) -> Rows:
    """Return the rows of any number of batches in one batch."""
    return pa.concat_batches([pa.RecordBatch.from_pylist([], schema), *(batch.cast(schema) for batch in batches)])
