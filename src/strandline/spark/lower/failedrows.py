"""Counts rows that fail in stateless steps, in Spark's tasks, and compares the counts with the limits of `on_error`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import Accumulator, TaskContext

from strandline.api.badrecords import FAIL, OnError
from strandline.core.errors import UserCodeError
from strandline.core.ids import Epoch
from strandline.plan.graph import FailedNode, MapNode, Node
from strandline.runtime.task.rowfunction import Report
from strandline.spark.base.mapping import Messages


class _Message(msgspec.Struct, frozen=True):
    """A task's message about its failed rows."""

    step: int
    epoch: int
    partition: int
    count: int
    last: str


@dataclass(frozen=True)
class _Reporter:
    """Sends a task's count of failed rows to the driver."""

    messages: Accumulator[list[bytes]]
    step: int
    epoch: int

    def __call__(self, count: int, last: str) -> None:
        context = TaskContext.get()
        assert context is not None
        message = _Message(self.step, self.epoch, context.partitionId(), count, last)
        self.messages.add([msgspec.msgpack.encode(message)])


@dataclass(frozen=True)
class CountFailed:
    """Reports each row as failed, and passes the rows on unchanged."""

    report: Report
    reason: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count += batch.num_rows
            yield batch
        if count:
            self.report(count, self.reason)


class FailedRows:
    """The failed rows of a pipeline's steps, epoch by epoch."""

    def __init__(self, context: Any, nodes: Iterable[Node]) -> None:
        self._steps = [node for node in nodes if not on_error_of_step(node).fails]
        self._messages: Accumulator[list[bytes]] | None = context.accumulator([], Messages()) if self._steps else None
        self._counts: dict[int, tuple[int, int]] = {}
        """By step: the number of the period `OnError.per`, and the count of failed rows in it."""

    def reports(self, epoch: Epoch) -> Mapping[Node, Report]:
        """Return the reporter of each step for an epoch."""
        if self._messages is None:
            return {}
        return {node: _Reporter(self._messages, step, epoch) for step, node in enumerate(self._steps)}

    def take(self, epoch: Epoch, now_us: int) -> int:
        """Return the count of an epoch's failed rows; raise UserCodeError if a step exceeds its limit."""
        if self._messages is None:
            return 0
        encoded, self._messages.value = self._messages.value, []
        messages = [msgspec.msgpack.decode(each, type=_Message) for each in encoded]
        # Of a task that was retried, the last message counts.
        latest = {(each.step, each.partition): each for each in messages if each.epoch == epoch}
        for step, node in enumerate(self._steps):
            failed = [each for each in latest.values() if each.step == step]
            if failed:
                self._check_limit(step, node, sum(each.count for each in failed), failed[-1].last, now_us)
        return sum(each.count for each in latest.values())

    def _check_limit(self, step: int, node: Node, count: int, last: str, now_us: int) -> None:
        on_error = on_error_of_step(node)
        last_period, before = self._counts.get(step, (0, 0))
        period = now_us // (on_error.per_ms * 1000)
        total = (before if last_period == period else 0) + count
        self._counts[step] = period, total
        if on_error.at_most is None or total <= on_error.at_most:
            return
        assert isinstance(node, MapNode | FailedNode)
        message = (
            f"{node.step} ({node.name}): {total} rows failed within {on_error.per}, expected at most "
            f"{on_error.at_most}; the last one: {last}"
        )
        hint = "this may be an outage, not a bad record: look at what fails, or give OnError a larger at_most"
        raise UserCodeError(message, hint=hint, discreet=message)


def on_error_of_step(node: Node) -> OnError:
    """Return the policy for rows that fail in a step."""
    if isinstance(node, FailedNode):
        return node.on_error
    return node.on_error if isinstance(node, MapNode) and node.is_counted else FAIL
