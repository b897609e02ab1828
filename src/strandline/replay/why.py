"""The cause of an output row: the call, the events and timers of its key, and the state before and after each.

The epoch that gave the row runs again with some of the calls alone: the row comes as long as the call that gives it is
among them. So it does not matter which steps are between a function and the sink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, NotFoundError, UserCodeError
from strandline.format.epochs import EpochRecord
from strandline.plan.columns import quoted
from strandline.plan.graph import Node, operators_above
from strandline.plan.pipeline import Operator
from strandline.replay.breaks import Breaks, Call
from strandline.replay.engine import EpochOutput
from strandline.replay.history import Change, changes_by_call, changes_by_epoch, event_nodes, has_calls
from strandline.replay.recorded import START, Recorded, find_recorded
from strandline.replay.session import Replay
from strandline.spark.base.ddl import first_line, schema_of
from strandline.spark.base.empty import no_rows
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.job.job import Job
from strandline.spark.keepers.exchange import clone_session
from strandline.testing.events import AT
from strandline.testing.nodes import Rows


@dataclass(frozen=True)
class Explanation:
    """A row of a sink, and what has given it."""

    sink: str
    row: dict[str, Any]
    epoch: int
    now_us: int
    watermark_us: int | None
    matches: int
    """The number of rows that match the condition; this is the first one."""
    operator: str = ""
    """The uid of the operator that gave it; "" if none did, or it is not known."""
    function: str = ""
    key: Any = None
    call: Call | None = None
    """The call that gave it; None for a built-in operator, of which only the epoch is known."""
    why_not: str = ""
    """The reason why the call or the key is not known."""
    history: tuple[Change, ...] = ()
    """The calls of the key up to that one, or the changes of a built-in operator's results."""


def oldest_recorded(jobdir: JobDirectory, options: Mapping[str, str]) -> Recorded:
    """Return the most epochs of a job that can be replayed; raise ConfigurationError if there are none."""
    starts = [START, *map(str, sorted(read_catalog(jobdir).live))]
    for start in starts[:-1]:
        try:
            return find_recorded(jobdir, start, None, options)
        except (ConfigurationError, NotFoundError):
            continue
    return find_recorded(jobdir, starts[-1], None, options)


def explain_row(job: Job, recorded: Recorded, sink: str, condition: str) -> Explanation | None:
    """Explain the first row of a sink that an SQL condition is true for; return None if there is none.

    Raises ConfigurationError for a condition that Spark refuses, and NotFoundError for an unknown sink. The replay
    ends, without an error, at an epoch that fails again.
    """
    explanation = _find(job, recorded, sink, condition)
    if explanation is None or not explanation.operator or explanation.why_not:
        return explanation
    history = tuple(_history_of(job, recorded, explanation))
    return replace(explanation, history=history)


def _find(job: Job, recorded: Recorded, sink: str, condition: str) -> Explanation | None:
    node = next((node for name, _, node in job._plan.sinks if name == sink), None)
    if node is None:
        names = ", ".join(name for name, _, _ in job._plan.sinks)
        raise NotFoundError(f"the job has no sink '{sink}'", hint=f"its sinks are {names}")
    matching = _Matching(job._plan.sources.session, node, condition)
    breaks, calls = Breaks(None), list[Call]()

    def note(call: Call, view: Any) -> None:
        calls.append(call)

    breaks.on_call = note
    explanation, matches = None, 0
    with Replay(job, recorded, breaks) as replay:
        for record in recorded.epochs:
            rows = replay.rows(record)
            calls.clear()
            try:
                output = replay.run_once(record, rows)
            except UserCodeError:
                break
            rows_found = matching.rows(output.sinks[sink])
            matches += len(rows_found)
            if rows_found and explanation is None:
                explanation = Explanation(sink, rows_found[0], record.epoch, record.now_us, record.watermark_us, 0)
                tracing = _Tracing(replay, breaks, record, rows, explanation, list(calls))
                explanation = tracing.trace(operators_above(node))
                replay.run_once(record, rows)
            replay.run.commit()
    return None if explanation is None else replace(explanation, matches=matches)


class _Matching:
    """Finds the rows of a sink that a condition is true for."""

    def __init__(self, session: SparkSession, node: Node, condition: str) -> None:
        self._session = clone_session(session)
        columns = [*node.columns.types, (AT, "bigint")]
        self._schema = schema_of(", ".join(f"{quoted(name)} {ddl}" for name, ddl in columns))
        self._condition = condition
        try:
            with suppress_error_logs():
                no_rows(self._session, self._schema).where(condition)
        except (AnalysisException, ParseException) as error:
            raise ConfigurationError(
                f"the condition {condition!r}: {first_line(error)}",
                hint=f"write an SQL condition, as card = 'c1'; the columns are {', '.join(node.columns.names)}",
            ) from None

    def rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the matching rows, in their order."""
        if not batch.num_rows:
            return []
        table = pa.Table.from_batches([batch]).append_column(AT, pa.array(range(batch.num_rows), pa.int64()))
        df = self._session.createDataFrame(table, self._schema)
        places = sorted(row[0] for row in df.where(self._condition).select(AT).collect())
        rows: list[dict[str, Any]] = batch.take(pa.array(places, pa.int64())).to_pylist()
        return rows


@dataclass
class _Tracing:
    """Runs an epoch again, with some of its calls alone, and never commits it."""

    replay: Replay
    breaks: Breaks
    record: EpochRecord
    rows: Mapping[Node, Rows]
    explanation: Explanation
    calls: list[Call]

    def trace(self, operators: set[Any]) -> Explanation:
        """Return the explanation with the operator, the key and the call, as far as they can be known."""
        self.replay.run.abort()
        by_uid = {operator.uid: operator for operator in self.replay.operators}
        reasons = []
        for operator in sorted((by_uid[node.uid] for node in operators), key=lambda each: each.uid):
            explanation = self._by_call(operator) if has_calls(operator) else self._by_key(operator)
            if not explanation.why_not:
                return explanation
            reasons.append(explanation)
        return reasons[0] if reasons else replace(self.explanation, why_not="no operator is before the sink")

    def _by_call(self, operator: Operator) -> Explanation:
        explanation = replace(self.explanation, operator=operator.uid, function=operator.node.name)
        mine = [call for call in self.calls if call.operator == operator.uid]
        if self._comesreplace(operator, []):
            return replace(explanation, why_not=f"the row comes without a call of '{operator.uid}'")
        keys = list(dict.fromkeys(repr(call.key) for call in mine))
        while len(keys) > 1:
            halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            half = next((half for half in halves if self._comesreplace(operator, _of(mine, half))), None)
            if half is None:
                return replace(explanation, why_not=f"it needs the calls of several keys of '{operator.uid}'")
            keys = half
        of_key = _of(mine, keys)
        least, most = 0, len(of_key)
        while least + 1 < most:
            middle = (least + most) // 2
            if self._comesreplace(operator, of_key[:middle]):
                most = middle
            else:
                least = middle
        if not of_key:
            return replace(explanation, why_not=f"'{operator.uid}' is not called in this epoch")
        call = of_key[most - 1]
        return replace(explanation, key=call.key, call=call)

    def _by_key(self, operator: Operator) -> Explanation:
        """Take the key from the row: results of built-in operators have it."""
        explanation = replace(self.explanation, operator=operator.uid, function=operator.node.name)
        keys = operator.node.keys
        if missing := [name for name in keys if name not in explanation.row]:
            return replace(explanation, why_not=f"the row has no column {missing[0]}, a key of '{operator.uid}'")
        values = tuple(explanation.row[name] for name in keys)
        return replace(explanation, key=values[0] if len(values) == 1 else values)

    def _comesreplace(self, operator: Operator, calls: Sequence[Call]) -> bool:
        """Whether the row comes if these calls of an operator are made, and no others of it."""
        places = {call.place for call in calls}
        self.breaks.only = lambda call: call.operator != operator.uid or call.place in places
        try:
            output: EpochOutput = self.replay.run_once(self.record, self.rows)
        except UserCodeError:
            return False
        finally:
            self.breaks.only = None
            self.replay.run.abort()
        wanted = repr(self.explanation.row)
        return any(repr(row) == wanted for row in output.sinks[self.explanation.sink].to_pylist())


def _history_of(job: Job, recorded: Recorded, explanation: Explanation) -> Iterator[Change]:
    """Yield the calls of the key, or the changes of its results, up to the epoch and the call that gave the row."""
    epochs = [record for record in recorded.epochs if record.epoch <= explanation.epoch]
    some, breaks = replace(recorded, epochs=epochs), Breaks(None)
    with Replay(job, some, breaks, also=event_nodes) as replay:
        operator = next(each for each in replay.operators if each.uid == explanation.operator)
        if explanation.call is None:
            yield from changes_by_epoch(replay, operator, explanation.key)
            return
        last, names = explanation.call, list(operator.declared)
        for change in changes_by_call(
            replay, breaks, explanation.operator, names, lambda call: call.key == explanation.key
        ):
            if change.epoch < last.epoch or change.number <= last.number:
                yield change


def _of(calls: Sequence[Call], keys: Sequence[str]) -> list[Call]:
    wanted = set(keys)
    return [call for call in calls if repr(call.key) in wanted]
