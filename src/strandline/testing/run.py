"""A pipeline at work in a harness: its nodes run in order, and its operators keep an epoch together or not at all."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strandline.api.badrecords import DEAD_LETTERS
from strandline.backends.base import LocalFile
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.core.settings import BackendName
from strandline.plan.graph import MapNode, Node, OperatorNode, StepNode, with_ancestors
from strandline.plan.operators import output_of
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Pipeline
from strandline.runtime.task.task import EpochTimes
from strandline.testing.nodes import Rows, lowered
from strandline.testing.operator import Partitions
from strandline.testing.times import Times
from strandline.types.columns import to_python
from strandline.types.records import record_type

Output = dict[Node, list[Any]]
"""Rows of the stream's end, and of every side output on the way."""


class PipelineRun:
    """A pipeline, and the temporary directory that its operators' backends are in."""

    def __init__(self, backend: BackendName, parallelism: int) -> None:
        self._backend = backend
        self._parallelism = parallelism
        self._partitions: dict[OperatorNode, Partitions] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="strandline-harness-"))
        # Also of a harness that nobody closes.
        self._remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._closed = False
        self._failed_rows = 0
        """Of the last epoch: those that steps without state failed for."""

    # -- life

    def extend(self, end: Node) -> None:
        """Run up to this node from now on; operators that are new are opened."""
        operators = [node for node in with_ancestors(end) if isinstance(node, OperatorNode)]
        pipeline = Pipeline([end, *(side for node in operators for side in node.sides_before.values())])
        if any(isinstance(node, StepNode) for node in pipeline.nodes):
            raise ConfigurationError(
                "Harness: the pipeline has a step that only Spark can run",
                hint="begin the test's pipeline with strandline.testing.events() behind it",
            )
        settled = pipeline.settle(Parallelism(default=self._parallelism))
        new = [each for each in settled if each.node not in self._partitions]
        places = (self._directory / str(at) for at in range(len(self._partitions), len(pipeline.operators)))
        made = [Partitions(each, self._backend, place) for each, place in zip(new, places, strict=True)]
        self.end, self.pipeline = end, pipeline
        for each in made:
            self._partitions[each.node] = each
            each.open(None, Epoch(0))
        self.sides = {
            (node.uid, name): output_of(node, name)
            for node in self.pipeline.operators
            for name in (*node.sides, *node.sides_before)
        }
        known = {side.parent for side in self.sides.values()}
        for at, node in enumerate(self.pipeline.nodes):
            if isinstance(node, MapNode) and node.on_error.has_dead_letters and node not in known:
                # Of a step, which has no uid.
                self.sides[str(at), DEAD_LETTERS] = output_of(node, DEAD_LETTERS)

    def check_open(self) -> None:
        """Refuse to go on after `close`."""
        if self._closed:
            raise ConfigurationError("Harness: it is closed already", hint="use it inside of its `with` block")

    def snapshot(self) -> list[list[list[LocalFile]]]:
        """Write a snapshot of every operator; its files stay as they are."""
        return [each.snapshot() for each in self._partitions.values()]

    def fits(self, files: Sequence[Sequence[object]]) -> bool:
        """Whether a snapshot is of as many operators and partitions."""
        there = [each.program.parallelism for each in self._partitions.values()]
        return [len(partitions) for partitions in files] == there

    def restore(self, files: Sequence[Sequence[Sequence[LocalFile]]] | None, epoch: Epoch) -> None:
        """Open every operator anew, with a snapshot's files or with nothing."""
        for at, each in enumerate(self._partitions.values()):
            each.open(files[at] if files else None, epoch)

    def close(self) -> None:
        """End in an orderly way: each function's `close` is called, and the directory removed."""
        if self._closed:
            return
        self._closed = True
        try:
            for each in self._partitions.values():
                each.close()
        finally:
            for each in self._partitions.values():
                each.abandon()
            self._remove()

    # -- epochs

    def run(self, epoch: Epoch, times: Times, events: Mapping[Node, Rows]) -> Output:
        """Run one epoch, and return what it gave; if it raises, no operator has applied it."""
        made: dict[Node, Rows] = {**events}
        now = times.of_epoch
        self._failed_rows = 0

        def report(count: int, last: str) -> None:
            self._failed_rows += count

        try:
            for node in self.pipeline.nodes:
                parents = [made[parent] for parent in node.parents]
                if isinstance(node, OperatorNode):
                    made[node] = self._partitions[node].run(epoch, now, *parents)
                elif node not in made:
                    made[node] = lowered(node, parents, now, report)
            found = {}
            for node in {self.end, *self.sides.values()}:
                rows = made[node] if node in made else lowered(node, [made[parent] for parent in node.parents], now)
                found[node] = _records(node, rows)
        except BaseException:
            for each in self._partitions.values():
                each.abort()
            raise
        for each in self._partitions.values():
            each.commit()
        times.ended([self.pipeline.moved(node.uid, each.newest_us) for node, each in self._partitions.items()])
        return found

    def is_due(self, times: EpochTimes) -> bool:
        """Whether some timer may be due."""
        return any(each.is_due(times) for each in self._partitions.values())

    # -- which one

    @property
    def late_rows(self) -> int:
        """How many events of the last epoch were late when they reached their first operator."""
        return sum(each.late_rows for node, each in self._partitions.items() if node.uid in self.pipeline.measuring)

    @property
    def failed_events(self) -> int:
        """How many events failed in the last epoch, and were left out."""
        return self._failed_rows + sum(each.failed_events for each in self._partitions.values())

    @property
    def broadcasting(self) -> Partitions:
        """The operator that has rules for every partition, or the first one."""
        self._check_operators()
        found = [each for node, each in self._partitions.items() if node.broadcast_order is not None]
        return (found or list(self._partitions.values()))[0]

    def side(self, name: str) -> Node:
        """Return a side output; of several with the name, the last operator's."""
        self._check_operators()
        having = [node for (_, known), node in self.sides.items() if known == name]
        return having[-1] if having else output_of(self.pipeline.operators[-1], name)

    @property
    def dead_letters(self) -> list[Node]:
        """The side outputs of dead letters, in the order of the operators."""
        return [node for (_, name), node in self.sides.items() if name == DEAD_LETTERS]

    def find(self, uid: str | None) -> Partitions:
        """Return the operator with a uid, or the only one."""
        self.check_open()
        self._check_operators()
        by_uid = {node.uid: each for node, each in self._partitions.items()}
        if uid is None and len(by_uid) == 1:
            (uid,) = by_uid
        if uid not in by_uid:
            known = ", ".join(by_uid)
            raise ConfigurationError(f"Harness: the operator's uid is {uid!r}, expected one of {known}")
        return by_uid[uid]

    def _check_operators(self) -> None:
        if not self._partitions:
            raise ConfigurationError(
                "Harness: the pipeline has no operator: there is no state, and nothing but its own rows",
                hint="look at what push() returns, or at `output`",
            )


def _records(node: Node, rows: Rows) -> list[Any]:
    """Return a node's rows as a test sees them."""
    schema = node.columns.schema("Harness")
    values = [to_python(rows.column(field.name), field.type) for field in schema.fields]
    return list(map(record_type(schema.names)._make, zip(*values, strict=True)))
