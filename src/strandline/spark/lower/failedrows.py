"""Rows that steps without state fail for: counted in Spark's tasks, and borne by the driver as far as may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, TaskContext

from strandline.api.badrecords import FAIL, OnError
from strandline.core.errors import UserCodeError
from strandline.core.ids import Epoch
from strandline.plan.graph import FailedNode, MapNode, Node
from strandline.runtime.task.rowfunction import Report


class _Told(msgspec.Struct, frozen=True):
    """What a task says of the rows that failed in it."""

    step: int
    epoch: int
    partition: int
    count: int
    last: str


class _List(AccumulatorParam[list[bytes]]):
    """Collects what tasks say; one that is repeated says it twice."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class _Reporter:
    """Tells the driver of a task's rows that failed."""

    told: Accumulator[list[bytes]]
    step: int
    epoch: int

    def __call__(self, count: int, last: str) -> None:
        context = TaskContext.get()
        assert context is not None
        self.told.add([msgspec.msgpack.encode(_Told(self.step, self.epoch, context.partitionId(), count, last))])


@dataclass(frozen=True)
class CountFailed:
    """Gives rows on as they are, each of which has failed."""

    report: Report
    why: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count += batch.num_rows
            yield batch
        if count:
            self.report(count, self.why)


class FailedRows:
    """The failing rows of a pipeline's steps, epoch by epoch."""

    def __init__(self, context: Any, nodes: Iterable[Node]) -> None:
        self._steps = [node for node in nodes if not on_error_of_step(node).fails]
        self._told: Accumulator[list[bytes]] | None = context.accumulator([], _List()) if self._steps else None
        self._counted: dict[int, tuple[int, int]] = {}
        """By step: which stretch of the clock it is, and how many rows failed in it."""

    def reports(self, epoch: Epoch) -> Mapping[Node, Report]:
        """Return what each step's tasks tell of an epoch with."""
        if self._told is None:
            return {}
        return {node: _Reporter(self._told, at, epoch) for at, node in enumerate(self._steps)}

    def take(self, epoch: Epoch, now_us: int) -> int:
        """Return how many rows failed in an epoch; raise UserCodeError if they are more than a step is to bear."""
        if self._told is None:
            return 0
        said, self._told.value = self._told.value, []
        told = [msgspec.msgpack.decode(each, type=_Told) for each in said]
        # Of a task that was repeated, what it said last.
        found = {(each.step, each.partition): each for each in told if each.epoch == epoch}
        for at, node in enumerate(self._steps):
            failed = [each for each in found.values() if each.step == at]
            if failed:
                self._bear(at, node, sum(each.count for each in failed), failed[-1].last, now_us)
        return sum(each.count for each in found.values())

    def _bear(self, at: int, node: Node, count: int, last: str, now_us: int) -> None:
        on_error = on_error_of_step(node)
        stretch, before = self._counted.get(at, (0, 0))
        now = now_us // (on_error.per_ms * 1000)
        self._counted[at] = now, (before if stretch == now else 0) + count
        if on_error.at_most is None or self._counted[at][1] <= on_error.at_most:
            return
        assert isinstance(node, MapNode | FailedNode)
        message = (
            f"{node.step} ({node.name}): {self._counted[at][1]} rows failed within {on_error.per}, and at most "
            f"{on_error.at_most} may; the last one: {last}"
        )
        hint = "this may be an outage, not a bad record: look at what fails, or give OnError a larger at_most"
        raise UserCodeError(message, hint=hint, discreet=message)


def on_error_of_step(node: Node) -> OnError:
    """Return what becomes of a row that a step fails for."""
    if isinstance(node, FailedNode):
        return node.on_error
    return node.on_error if isinstance(node, MapNode) and node.is_counted else FAIL
