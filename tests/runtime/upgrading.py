"""All partitions of an operator of built-in aggregates, upgraded again and again: at any parallelism, on any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from strandline.api.aggregates import Aggregate
from strandline.api.windows import WindowKind
from strandline.core.ids import Epoch
from strandline.core.keygroups import partition_of
from strandline.format.manifest import OperatorInfo
from strandline.plan.graph import with_ancestors
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator, Pipeline
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.runtime.program import Program
from strandline.runtime.rowlayout import FIRED, HIDDEN, TIME
from strandline.runtime.task.task import EpochTimes
from strandline.testing import events
from strandline.testing.events import Events, EventSource
from strandline.testing.nodes import evaluate
from strandline.types.datatypes import parse_schema, parse_type
from strandline.types.murmur import key_group
from strandline.types.scalars import us_to_timestamp
from tests.runtime.bench import MAX_PARALLELISM
from tests.runtime.rescaling import Job
from tests.soak import MODE, SMALL_LOG

SECOND = 1_000_000
STRING = parse_type("string")
Row = tuple[str, int, int | None]
"""Key, time in seconds, value."""


def operator_of(window: WindowKind | None, aggregates: Mapping[str, Aggregate], uid: str = "op") -> Operator:
    """Return the operator of a program that is written so, at parallelism 1."""
    keyed: Any = events("k string, t timestamp, v bigint, w double").watermark("t").key_by("k")
    windowed = keyed if window is None else keyed.window(window)
    node = windowed.agg(aggregates, uid=uid, max_parallelism=MAX_PARALLELISM)._node
    return Pipeline([node]).settle(Parallelism(default=1))[0]


def info_of(operator: Operator, backend: str = "rocksdb") -> OperatorInfo:
    """Return what is read of an operator in a manifest."""
    return msgspec.json.decode(msgspec.json.encode(operator.info(backend)), type=OperatorInfo)


class Upgrading(Job):
    """A job of one operator of aggregates, which `upgrade` starts."""

    operator: Operator

    def __init__(self, root: Path, window: WindowKind | None) -> None:
        super().__init__(root)
        self._window = window

    def upgrade(self, aggregates: Mapping[str, Aggregate], parallelism: int, backend: str, *drop: str) -> Upgrade:
        """Start with other aggregates from the newest snapshot, if there is one."""
        operator = operator_of(self._window, aggregates)
        found = plan_upgrade([self.stored] if self.restore else [], [operator], drop)
        assert not found.refusals
        self.operator = replace(operator, parallelism=parallelism, migration=found.migrations["op"])
        self.start(parallelism, backend)
        return found

    def program(self, **run: Any) -> Program:
        del run["parallelism"]
        memory = {"partition_memory_bytes": 64 << 20, "limit_bytes": 64 << 20, "lease_ms": 60_000}
        return self.operator.program(job="job", mode=MODE, changelog=SMALL_LOG, **memory, **run)

    def info(self) -> OperatorInfo:
        return info_of(self.operator, self.opened[0].program.backend)

    def epoch_of(self, rows: Sequence[Row], watermark: int | None) -> list[dict[str, Any]]:
        """Process an epoch; return its rows, with times in seconds and without hidden columns."""
        self.epoch += 1
        batch, found = self._sent(rows), []
        groups = batch.column(0).to_pylist()
        times = EpochTimes(None if watermark is None else watermark * SECOND, 0)
        for index, opened in enumerate(self.opened):
            mine = [partition_of(group, MAX_PARALLELISM, self.parallelism) == index for group in groups]
            some = batch.filter(pa.array(mine, pa.bool_()))
            for output in opened.partition.run(Epoch(self.epoch), times, [some] if some.num_rows else []):
                found += [_plain(row) for row in output.to_pylist()]
            opened.partition.commit()
        return found

    def evict(self) -> None:
        """Have nothing in memory that the backend has."""
        for opened in self.opened:
            for table in opened.partition.task.store._tables:
                table._cache_bytes = 0  # type: ignore[attr-defined]

    def _sent(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return rows as keepers get them, if Spark does not aggregate them before."""
        node = self.operator.node
        source, *steps = [step for step in with_ancestors(node) if step is not node]
        assert isinstance(source, EventSource)
        given = [(k, us_to_timestamp(t * SECOND), v, None if v is None else v / 4) for k, t, v in rows]
        batch = Events(source).rows(list(enumerate(given)))
        for step in steps:
            batch = evaluate(step, [batch], EpochTimes())
        names = parse_schema(node.input_schema).names
        groups = [int(key_group((k,), [STRING], MAX_PARALLELISM)) for k in batch.column("k").to_pylist()]
        hidden = [batch.column(name) if name in node.hidden else None for name in HIDDEN]
        columns = [batch.column(name) for name in names]
        return node.layout.lay_out(pa.array(groups, pa.int32()), hidden, columns, names)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in row.items() if name not in (TIME, FIRED)}
    for name in {"window_start", "window_end"} & found.keys():
        found[name] = int(found[name].timestamp())
    return found
