"""One operator in a harness: its partitions, each with a real backend and directory."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.api.joins import Broadcast
from strandline.api.states import State, declared_states
from strandline.backends.base import Backend, LocalFile
from strandline.core.errors import ConfigurationError, StateTypeError, UserCodeError
from strandline.core.ids import Epoch, Generation, KeyGroup, Partition
from strandline.core.keygroups import partition_of
from strandline.core.settings import BackendName
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.keeper.opening import open_task
from strandline.plan import pipeline
from strandline.plan.graph import OperatorNode
from strandline.runtime.operators.joins import RIGHT
from strandline.runtime.operators.views.inputs import EpochOperator
from strandline.runtime.operators.windows.operator import WindowOperator
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.program import Process
from strandline.runtime.rowlayout import HIDDEN
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, VectorValueHandle
from strandline.runtime.state.handles import AggregatingHandle, ListHandle, MapHandle
from strandline.runtime.state.timers import is_due
from strandline.runtime.task.task import EpochTimes, Task
from strandline.runtime.task.unsaved import Finding
from strandline.testing.events import AT
from strandline.testing.nodes import Rows, concat, sort_rows
from strandline.testing.stored import Restoring
from strandline.types.coercion import MisfitError
from strandline.types.columns import build, to_python
from strandline.types.datatypes import parse_schema, parse_type
from strandline.types.jsonforms import from_json, from_text
from strandline.types.murmur import key_group
from strandline.types.records import record_type

_BATCH_ROWS = 50_000
"""The most rows in a batch, as Spark sends them in a job: a vectorised function gets several as one."""
_RUN: dict[str, Any] = {
    "job": "harness",
    "generation": Generation(1),
    "mode": "full",
    "store_url": "memory://",
    "partition_memory_bytes": 64 << 20,
    "limit_bytes": 10 << 20,
    "lease_ms": 0,
}


def refuse(finding: Finding) -> None:
    """Raise the error of state that a function keeps outside of its states, or warn if that is not certain."""
    if finding.is_certain:
        raise finding.error
    warnings.warn_explicit(str(finding.error), UserWarning, finding.file, finding.line)


@dataclass(frozen=True)
class Hooks:
    """Functions that a caller adds to the opening of partitions and to their epochs."""

    loaded: Callable[[Process, str, Partition], None] = lambda process, uid, partition: None
    """Called with each new function before it is bound to its state."""
    restoring: Restoring = lambda program, partition, database: None
    """Called with each partition that opens without a snapshot of its own."""
    report: Callable[[Finding], None] = refuse
    """Called with each finding of data that a function keeps outside of its states."""


@dataclass(frozen=True, slots=True)
class _OpenPartition:
    partition: OperatorPartition
    process: Process
    backend: Backend

    @property
    def task(self) -> Task:
        return self.partition.task


class Partitions:
    """A process function bound to its state, all in the test's process."""

    def __init__(
        self, operator: pipeline.Operator, backend: BackendName, directory: Path, hooks: Hooks | None = None
    ) -> None:
        self.operator = operator
        self.node: OperatorNode = operator.node
        self.program = operator.program(backend=backend, **_RUN)
        self._hooks = hooks or Hooks()
        self._directory = directory
        self._places = 0
        self._schema = parse_schema(self.program.input_schema)
        self._key_types = self._schema.types_of(self.node.keys)
        self._record = record_type(parse_schema(self.program.output_schema).names)._make
        self._keys = KeyCodec(self._key_types)
        self._partitions: list[_OpenPartition] = []

    # -- life

    def open(self, snapshot: Sequence[Sequence[LocalFile]] | None, epoch: Epoch) -> None:
        """Open every partition with the state of a snapshot, or empty; abandon open ones, as in a crash."""
        self.abandon()
        for index in range(self.program.parallelism):
            database = self._place()
            database.mkdir(parents=True)
            for file in snapshot[index] if snapshot else ():
                (os.link if file.shared else shutil.copyfile)(file.path, database / file.name)
            process = self.program.load()
            self._hooks.loaded(process, self.program.uid, Partition(index))
            restoring = None if snapshot else self._hooks.restoring(self.program, Partition(index), database)
            if restoring is not None:
                restoring.fetch(database, copies=False)
            backend, task = open_task(self.program, process, Partition(index), database, restoring)
            if task.unsaved is not None:
                task.unsaved.epochs_left = math.inf
            self._partitions.append(_OpenPartition(OperatorPartition(task, epoch), process, backend))

    def snapshot(self) -> list[list[LocalFile]]:
        """Write a snapshot of every partition; its files do not change later."""
        snapshots = []
        for each in self._partitions:
            frozen = each.task.store.freeze()
            snapshots.append(each.backend.persist(frozen.changes(), self._place()))
            frozen.release()
        return snapshots

    def close(self) -> None:
        """Call the function's `close`, and close the backends."""
        try:
            for each in self._partitions:
                each.task.close()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the backends without a call of the function, as in a crash."""
        for each in self._partitions:
            each.backend.close()
        self._partitions = []

    # -- epochs

    def run(self, epoch: Epoch, times: EpochTimes, rows: Rows) -> Rows:
        """Process an epoch without the commit; return the raw output."""
        output = concat([*chain.from_iterable(self.outputs(epoch, times, rows))], self.output_schema)
        return output.append_column(AT, pa.array(range(output.num_rows), pa.int64()))

    def outputs(self, epoch: Epoch, times: EpochTimes, rows: Rows) -> Iterator[list[pa.RecordBatch]]:
        """Process an epoch without the commit; yield the raw output of each partition."""
        for each, part in zip(self._partitions, self._divide(rows), strict=True):
            pieces = (part.slice(at, _BATCH_ROWS) for at in range(0, part.num_rows, _BATCH_ROWS))
            yield list(each.partition.run(epoch, times, pieces))
            each.task.store.check(in_full=True)
            for finding in each.task.findings:
                self._hooks.report(finding)

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the raw output."""
        return self._partitions[0].task.output_schema

    def commit(self) -> None:
        """Commit the writes of the epoch."""
        for each in self._partitions:
            each.partition.commit()

    def abort(self) -> None:
        """Discard the writes of the epoch."""
        for each in self._partitions:
            each.partition.abort()

    @property
    def newest_us(self) -> dict[str, int]:
        """The newest event times of the last epoch, by origin."""
        newest: dict[str, int] = {}
        for each in self._partitions:
            for origin, at_us in each.task.newest_us.items():
                newest[origin] = max(at_us, newest.get(origin, at_us))
        return newest

    @property
    def late_rows(self) -> int:
        """The number of late events in the last epoch."""
        return sum(each.task.late_rows for each in self._partitions)

    @property
    def failed_events(self) -> int:
        """The number of events of the last epoch that failed and were skipped."""
        return sum(each.task.failed_events for each in self._partitions)

    def is_due(self, times: EpochTimes) -> bool:
        """Whether any timer may be due."""
        return any(is_due(*each.task.next_timers_us, times.watermark_us, times.now_us) for each in self._partitions)

    # -- reads

    def state(self, key: Any) -> dict[str, Any]:
        """Return the states of a key by name; for windows and built-in aggregates, their results so far."""
        key, group, each = self._find(key)
        each.task.store.turn_to(group, key)
        try:
            if isinstance(each.process, WindowOperator):
                return {"results": list(map(self._record, each.process.current_results(key)))}
            # Operators of views have no results apart from their states.
            if isinstance(each.process, ColumnarProcess) and not isinstance(each.process, EpochOperator):
                results = [batch.to_pylist() for batch, _ in each.process.current_results(self._batch_of(key, group))]
                return {"results": [self._record(row.values()) for rows in results for row in rows]}
            states = declared_states(each.process)
            return {name: self._read(vars(each.process)[name], state, group, key) for name, state in states.items()}
        finally:
            # A read compacts a long list. Discard that write, which belongs to no epoch.
            each.task.abort()

    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """Return the Broadcast states, which must be the same in all partitions."""
        states = declared_states(self._partitions[0].process)
        broadcast = {name: state for name, state in states.items() if isinstance(state, Broadcast)}
        if not broadcast:
            raise ConfigurationError(
                f"operator '{self.program.uid}' has no Broadcast states",
                hint="a KeyedBroadcastProcess has them; state(key) returns the states of other functions",
            )
        copies = [{name: dict(vars(each.process)[name]) for name in broadcast} for each in self._partitions]
        for partition, copy in enumerate(copies):
            for name, state in broadcast.items():
                if _encode(state, copy[name]) != _encode(state, copies[0][name]):
                    raise UserCodeError(
                        f"operator '{self.program.uid}': the Broadcast '{name}' is {copies[0][name]!r} in partition 0, "
                        f"and {copy[name]!r} in partition {partition}",
                        hint="on_broadcast must do the same in all partitions: use only the event and Broadcast states",
                        operator=self.program.uid,
                    )
        return copies[0]

    def timers(self, key: Any) -> list[tuple[int, bool]]:
        """Return the times of a key's timers, and whether they are processing times."""
        key, group, each = self._find(key)
        return each.task.store.timers_of(group, key)

    def parse_key(self, text: str) -> Any:
        """Return the key that a text means: plain text or JSON; of several columns a JSON list, or commas between them.

        Raises StateTypeError for a text that is no key.
        """
        try:
            if len(self._key_types) == 1:
                return self._keys.coerce(from_text(text, self._key_types[0]))
            if text.startswith("["):
                parts = [from_json(part, kind) for part, kind in zip(json.loads(text), self._key_types, strict=True)]
            else:
                parts = [from_text(part, kind) for part, kind in zip(text.split(","), self._key_types, strict=True)]
            return self._keys.coerce(tuple(parts))
        except (MisfitError, ValueError, StateTypeError) as error:
            raise StateTypeError(
                f"operator '{self.program.uid}': {text!r} is no key ({', '.join(self.node.keys)}): {error}",
                hint="a key of several columns is a JSON list, or has commas between its parts",
                operator=self.program.uid,
            ) from None

    def _coerced(self, key: Any) -> Any:
        try:
            return self._keys.coerce(key)
        except StateTypeError as error:
            message = f"operator '{self.program.uid}': {error.message}"
            raise StateTypeError(message, hint=error.hint, **error.fields) from None

    def _find(self, key: Any) -> tuple[Any, KeyGroup, _OpenPartition]:
        key = self._coerced(key)
        group = key_group(self._parts(key), self._key_types, self.program.max_parallelism)
        return key, group, self._partitions[self._partition(group)]

    def _read(self, handle: Any, state: State, group: KeyGroup, key: Any) -> Any:
        if isinstance(handle, VectorValueHandle):
            values = handle.get_many(self._batch_of(key, group))
            return to_python(values, parse_type(state.value_type))[0]
        if isinstance(handle, ListHandle):
            return handle.get()
        if isinstance(handle, MapHandle):
            return dict(handle)
        return handle.result() if isinstance(handle, AggregatingHandle) else handle.value

    def _batch_of(self, key: Any, group: KeyGroup) -> BatchKeys:
        columns = [build([part], kind) for part, kind in zip(self._parts(key), self._key_types, strict=True)]
        return BatchKeys(columns, pa.array([group], pa.int32()), self._keys)

    def _parts(self, key: Any) -> Sequence[Any]:
        return [key] if len(self._key_types) == 1 else key

    # -- assignment to partitions, as in Spark

    def _divide(self, rows: Rows) -> list[pa.RecordBatch]:
        """Return each partition's rows in the layout that its keeper receives."""
        rows = sort_rows(rows, self.node.order_by, self._schema)
        keys = zip(self.node.keys, self._key_types, strict=True)
        values = [to_python(rows.column(name), kind) for name, kind in keys]
        groups = [key_group(key, self._key_types, self.program.max_parallelism) for key in zip(*values, strict=True)]
        hidden = [rows.column(name) if name in self.node.hidden else None for name in HIDDEN]
        columns = [rows.column(name) for name in self._schema.names]
        whole = self.program.layout.lay_out(pa.array(groups, pa.int32()), hidden, columns, self._schema.names)
        for_all = [False] * len(groups)
        if self.node.broadcast_order is not None:
            for_all = rows.column(RIGHT).is_valid().to_pylist()
        indices: list[list[int]] = [[] for _ in self._partitions]
        for row, group in enumerate(groups):
            for each in indices if for_all[row] else (indices[self._partition(group)],):
                each.append(row)
        return [whole.take(pa.array(each, pa.int64())) for each in indices]

    def _partition(self, group: KeyGroup) -> Partition:
        return partition_of(group, self.program.max_parallelism, self.program.parallelism)

    def _place(self) -> Path:
        self._places += 1
        return self._directory / str(self._places)


def _encode(state: Broadcast, entries: Mapping[Any, Any]) -> dict[bytes, bytes]:
    """Return entries in their stored form, in which NaN equals NaN."""
    subs, values = KeyCodec([parse_type(state.key_type)]), ValueCodec(parse_type(state.value_type))
    return {subs.encode_sub(sub): values.encode(value) for sub, value in entries.items()}
