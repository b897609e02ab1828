"""A running pipeline in a harness: its nodes run in order, and all its operators commit an epoch, or none."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
from strandline.testing.nodes import Rows, evaluate
from strandline.testing.operator import Hooks, Partitions
from strandline.testing.stored import StoredState
from strandline.testing.times import Times
from strandline.types.columns import to_python
from strandline.types.records import record_type

Output = dict[Node, list[Any]]
"""Rows of the last stream, and of every side output."""


class PipelineRun:
    """A pipeline, and the temporary directory of its operators' backends."""

    def __init__(self, backend: BackendName, parallelism: int | None, stored: StoredState | None = None) -> None:
        self._backend = backend
        self._parallelism = parallelism
        self._stored = stored
        self._partitions: dict[OperatorNode, Partitions] = {}
        self._directory = Path(tempfile.mkdtemp(prefix="strandline-harness-"))
        # Without a call of `close`, garbage collection removes the directory.
        self._remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._closed = False
        self._failed_rows = 0
        """The number of rows of the last epoch for which stateless steps failed."""

    # -- life

    def extend(self, end: Node, *, in_full: bool = False) -> None:
        """Run the pipeline up to this node from now on, and open its new operators.

        With `in_full`, it is to have all operators of the stored state, if there is any.
        """
        operators = [node for node in with_ancestors(end) if isinstance(node, OperatorNode)]
        pipeline = Pipeline([end, *(side for node in operators for side in node.sides_before.values())])
        if any(isinstance(node, StepNode) for node in pipeline.nodes):
            raise ConfigurationError(
                "Harness: the pipeline has a step that only Spark can run",
                hint="begin the test's pipeline after that step, with strandline.testing.events()",
            )
        stored, hooks = self._stored, None
        known = stored.manifest.operators if stored else ()
        planned = pipeline.settle(Parallelism(default=1, job=self._parallelism), known)
        if stored is not None:
            planned = stored.continued_by(planned, in_full=in_full)
            hooks = Hooks(restoring=stored.restoring(planned))
        new = [each for each in planned if each.node not in self._partitions]
        places = (self._directory / str(at) for at in range(len(self._partitions), len(pipeline.operators)))
        opened = [Partitions(each, self._backend, place, hooks) for each, place in zip(new, places, strict=True)]
        self.end, self.pipeline = end, pipeline
        with stored.reading() if stored else nullcontext():
            for each in opened:
                self._partitions[each.node] = each
                each.open(None, stored.manifest.epoch if stored else Epoch(0))
        self.sides = {
            (node.uid, name): output_of(node, name)
            for node in self.pipeline.operators
            for name in (*node.sides, *node.sides_before)
        }
        with_sides = {side.parent for side in self.sides.values()}
        for at, node in enumerate(self.pipeline.nodes):
            if isinstance(node, MapNode) and node.on_error.has_dead_letters and node not in with_sides:
                # A step has no uid.
                self.sides[str(at), DEAD_LETTERS] = output_of(node, DEAD_LETTERS)

    def check_open(self) -> None:
        """Raise ConfigurationError after `close`."""
        if self._closed:
            raise ConfigurationError("Harness: it is closed already", hint="use it inside of its `with` block")

    def snapshot(self) -> list[list[list[LocalFile]]]:
        """Write a snapshot of every operator; its files do not change later."""
        return [each.snapshot() for each in self._partitions.values()]

    def fits(self, files: Sequence[Sequence[object]]) -> bool:
        """Whether a snapshot has the same numbers of operators and partitions."""
        counts = [each.program.parallelism for each in self._partitions.values()]
        return [len(partitions) for partitions in files] == counts

    def restore(self, files: Sequence[Sequence[Sequence[LocalFile]]] | None, epoch: Epoch) -> None:
        """Open every operator again, with a snapshot's files or empty."""
        for at, each in enumerate(self._partitions.values()):
            each.open(files[at] if files else None, epoch)

    def close(self) -> None:
        """Call each function's `close`, and remove the directory."""
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
        """Run one epoch and return its output; if it raises, no operator has applied the epoch."""
        results: dict[Node, Rows] = {**events}
        now = times.of_epoch
        self._failed_rows = 0

        def report(count: int, last: str) -> None:
            self._failed_rows += count

        try:
            for node in self.pipeline.nodes:
                parents = [results[parent] for parent in node.parents]
                if isinstance(node, OperatorNode):
                    results[node] = self._partitions[node].run(epoch, now, *parents)
                elif node not in results:
                    results[node] = evaluate(node, parents, now, report)
            output = {}
            for node in {self.end, *self.sides.values()}:
                if node not in results:
                    results[node] = evaluate(node, [results[parent] for parent in node.parents], now)
                output[node] = _records(node, results[node])
        except BaseException:
            for each in self._partitions.values():
                each.abort()
            raise
        for each in self._partitions.values():
            each.commit()
        times.end_epoch([self.pipeline.moved(node.uid, each.newest_us) for node, each in self._partitions.items()])
        return output

    def is_due(self, times: EpochTimes) -> bool:
        """Whether any timer may be due."""
        return any(each.is_due(times) for each in self._partitions.values())

    # -- lookup

    @property
    def late_rows(self) -> int:
        """The number of events of the last epoch that were late at their first operator."""
        return sum(each.late_rows for node, each in self._partitions.items() if node.uid in self.pipeline.measuring)

    @property
    def failed_events(self) -> int:
        """The number of events of the last epoch that failed and were skipped."""
        return self._failed_rows + sum(each.failed_events for each in self._partitions.values())

    @property
    def broadcasting(self) -> Partitions:
        """The operator with broadcast rules, or the first one."""
        self._check_operators()
        broadcasting = [each for node, each in self._partitions.items() if node.broadcast_order is not None]
        return (broadcasting or list(self._partitions.values()))[0]

    def side(self, name: str) -> Node:
        """Return a side output; if several have the name, the last operator's."""
        self._check_operators()
        sides = [node for (_, known), node in self.sides.items() if known == name]
        return sides[-1] if sides else output_of(self.pipeline.operators[-1], name)

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
                "Harness: the pipeline has no operator, so it has no state and no side outputs",
                hint="use the result of push(), or `output`",
            )


def _records(node: Node, rows: Rows) -> list[Any]:
    """Return a node's rows as records."""
    schema = node.columns.schema("Harness")
    values = [to_python(rows.column(field.name), field.type) for field in schema.fields]
    return list(map(record_type(schema.names)._make, zip(*values, strict=True)))
