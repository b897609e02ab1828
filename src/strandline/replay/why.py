"""The cause of an output row: the calls, events, timers and state behind it, operator by operator, back to the sources.

Within an epoch, `origins.py` finds the rows and the call that a row comes of. A timer was set, and the rows of a window
came, in earlier epochs: the epochs are run again for these, once for each operator on the way that has such a memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from strandline.api.windows import WINDOW_END, WINDOW_START
from strandline.checkpoint.catalog import read_catalog
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError, UserCodeError
from strandline.format.epochs import EpochRecord
from strandline.format.manifest import FixedWindows, SessionWindows
from strandline.plan.columns import quoted
from strandline.plan.graph import Node, OperatorNode
from strandline.plan.pipeline import Operator
from strandline.replay.breaks import Breaks, Call
from strandline.replay.engine import EpochOutput
from strandline.replay.history import (
    Change,
    changes_by_call,
    changes_by_epoch,
    event_node,
    event_nodes,
    has_calls,
    note_changes,
)
from strandline.replay.keys import keys_in
from strandline.replay.origins import Origins, UnknownOriginError, plain_rows
from strandline.replay.recorded import START, Recorded, find_recorded
from strandline.replay.session import KeptInput, Replay, SourceInput, jobdir_of
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import LEFT, RIGHT, TimedJoin
from strandline.runtime.rowlayout import TIME
from strandline.spark.base.ddl import first_line, schema_of
from strandline.spark.base.empty import no_rows
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.job.job import Job
from strandline.spark.keepers.exchange import clone_session
from strandline.testing.events import AT
from strandline.testing.nodes import Rows

MOST_ROWS = 5
"""The most rows of one operator's input that are followed: the newest ones."""
MOST_CAUSES = 100
"""The most causes of a row, all in all."""


@dataclass
class Cause:
    """A row on the way from the sources to a sink, with what gave it; or the call that set a timer, without a row."""

    kind: Literal["sink", "source", "operator"]
    name: str
    """The name of the sink or source, "" for the only one, or the uid of the operator."""
    epoch: int
    row: dict[str, Any] | None = None
    function: str = ""
    """The class of the operator."""
    key: Any = None
    call: Change | None = None
    """The call of a function that gave it, with the states before and after; None for other operators."""
    read: int | None = None
    """The number of the rows of its key that it was made of, where an operator computes a row of many."""
    notes: list[str] = field(default_factory=list)
    """What is not known exactly, and why."""
    causes: list[Cause] = field(default_factory=list)
    """What it comes of."""
    left_out: int = 0
    """The number of further ones, which are not followed."""


@dataclass(frozen=True)
class Explanation:
    """A row of a sink, and what has given it."""

    sink: str
    row: dict[str, Any]
    epoch: int
    now_us: int
    watermark_us: int | None
    cause: Cause
    """The row, with its causes."""
    matches: int = 0
    """The number of rows that match the condition; this is the first one."""
    history: tuple[Change, ...] = ()
    """Of the operator that gave the row: the calls of the key up to that one, or the changes of its results."""

    @property
    def last(self) -> Cause | None:
        """The operator that gave the row, if there is one."""
        return next((each for each in self.cause.causes if each.kind == "operator"), None)


def explain_since_oldest(
    job: Job, options: Mapping[str, str], sink: str, condition: str
) -> tuple[Explanation | None, Recorded]:
    """Explain a row as `explain_row` does, with as many epochs as are recorded and can be read again; return them, too.

    Raises ConfigurationError if there are none.
    """
    _Matching.of(job, sink, condition)
    jobdir = jobdir_of(job)
    unread: StrandlineError | None = None
    for start in [START, *map(str, sorted(read_catalog(jobdir).live))]:
        try:
            recorded = find_recorded(jobdir, start, None, options)
        except (ConfigurationError, NotFoundError) as error:
            unread = unread or error
            continue
        try:
            return explain_row(job, recorded, sink, condition), recorded
        except ConfigurationError as error:
            # Input of the first epochs may be gone.
            unread = error
    assert unread is not None
    raise unread


def explain_row(job: Job, recorded: Recorded, sink: str, condition: str) -> Explanation | None:
    """Explain the first row of a sink that an SQL condition is true for; return None if there is none.

    Raises ConfigurationError for a condition that Spark refuses, and NotFoundError for an unknown sink. The replay
    ends, without an error, at an epoch that fails again.
    """
    matching = _Matching.of(job, sink, condition)
    with KeptInput(SourceInput(job, recorded)) as source:
        chain = _Chain(job, recorded, source)
        explanation = chain.find(matching, sink)
        if explanation is None:
            return None
        chain.follow()
        last = explanation.last
        if last is None or last.key is None:
            return explanation
        return replace(explanation, history=tuple(chain.history_of(last)))


class _Matching:
    """Finds the rows of a sink that a condition is true for."""

    @classmethod
    def of(cls, job: Job, sink: str, condition: str) -> _Matching:
        """Raise NotFoundError for an unknown sink, and ConfigurationError for a condition that Spark refuses."""
        node = next((node for name, _, node in job._plan.sinks if name == sink), None)
        if node is None:
            names = ", ".join(name for name, _, _ in job._plan.sinks)
            raise NotFoundError(f"the job has no sink '{sink}'", hint=f"its sinks are {names}")
        return cls(job._plan.sources.session, node, condition)

    def __init__(self, session: SparkSession, node: Node, condition: str) -> None:
        self.node = node
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

    def places(self, batch: pa.RecordBatch) -> list[int]:
        """Return the numbers of the matching rows, in their order."""
        if not batch.num_rows:
            return []
        table = pa.Table.from_batches([batch]).append_column(AT, pa.array(range(batch.num_rows), pa.int64()))
        df = self._session.createDataFrame(table, self._schema)
        return sorted(row[0] for row in df.where(self._condition).select(AT).collect())


@dataclass(frozen=True)
class _Link:
    """A row whose origin is to be found in its epoch, or a call whose event's is."""

    epoch: int
    cause: Cause
    """That gets the causes."""
    node: Node
    """The node of the row; of a call, the function's."""
    row: Rows | None = None
    call: Call | None = None


@dataclass
class _Memory:
    """A search of what an operator had read when it gave a row: the call that set a timer, or the rows of its key."""

    operator: Operator
    cause: Cause
    """That gets the causes."""
    row: Rows
    timer: Call | None = None
    """The call of on_timer; None: rows are wanted."""
    first: int = 0
    """The first epoch whose rows are wanted."""
    setters: list[Change] = field(default_factory=list)
    """The calls of the key before that one which set timers."""
    count: int = 0
    newest: deque[_Link] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))

    def note(self, change: Change) -> None:
        """Take a call that has run."""
        call, timer = change.made_by, self.timer
        assert call is not None
        if timer is None or call.operator != timer.operator or not call.timers or repr(call.key) != repr(timer.key):
            return
        if (call.epoch, call.number) < (timer.epoch, timer.number):
            self.setters.append(change)

    def take(self, record: EpochRecord, output: EpochOutput) -> None:
        """Take the rows of the key in an epoch."""
        node, operator = event_node(self.operator), self.operator.node
        rows = None if node is None else output.nodes.get(node)
        if self.timer is not None or not self.first <= record.epoch <= self.cause.epoch or node is None or rows is None:
            return
        is_mine = [repr(key) == repr(self.cause.key) for key in keys_in(operator, rows)]
        rows = _made_of(operator, self.row, rows.filter(pa.array(is_mine, pa.bool_())), record)
        self.count += rows.num_rows
        for at in range(max(0, rows.num_rows - MOST_ROWS), rows.num_rows):
            self.newest.append(_Link(record.epoch, self.cause, node, rows.slice(at, 1)))

    def links(self) -> list[_Link]:
        """Return what is to be followed, and note what is not."""
        cause = self.cause
        if self.timer is None:
            cause.read, cause.left_out = self.count, cause.left_out + self.count - len(self.newest)
            return list(self.newest)
        setter, hops = _setter_of(self.timer, self.setters), 0
        while setter is not None and setter.call == "on_timer":
            assert setter.made_by is not None
            setter, hops = _setter_of(setter.made_by, self.setters), hops + 1
        if hops:
            cause.notes.append(f"its timer was set by a timer, and that one by another: {hops} calls are left out")
        if setter is None:
            cause.notes.append("its timer was set before the first epoch that is run: it is in the first state")
            return []
        call = Cause("operator", cause.name, setter.epoch, None, cause.function, cause.key, setter)
        cause.causes.append(call)
        return [_Link(setter.epoch, call, self.operator.node, call=setter.made_by)]


def _setter_of(timer: Call, setters: Sequence[Change]) -> Change | None:
    """Return the last call before a timer's that set it."""
    for each in reversed(setters):
        call = each.made_by
        assert call is not None
        if (call.epoch, call.number) < (timer.epoch, timer.number) and timer.event in call.timers:
            return each
    return None


def _made_of(node: OperatorNode, row: Rows, rows: Rows, record: EpochRecord) -> Rows:
    """Return the rows of a key that an operator has made a row of: those of its window, or those that a join gives."""
    process = node.process
    if isinstance(process, TimedJoin):
        halves = process.layout.halves(tuple(column[0].as_py() for column in row.columns))
        return rows.filter(pa.array([_is_half(pair, halves) for pair in rows.to_pylist()], pa.bool_()))
    windows = process.own_windows if isinstance(process, BuiltinOperator) else None
    if not isinstance(windows, FixedWindows | SessionWindows) or WINDOW_END not in row.schema.names:
        return rows
    start, end = (row.column(name).cast(pa.int64())[0].as_py() for name in (WINDOW_START, WINDOW_END))
    if windows.time == "processing":
        return rows if start <= record.now_us < end else rows.slice(0, 0)
    if TIME not in rows.schema.names or (
        record.watermark_us is not None and end + windows.lateness_ms * 1000 <= record.watermark_us
    ):
        # What comes after its end is late.
        return rows.slice(0, 0)
    times = rows.column(TIME)
    return rows.filter(pc.and_(pc.greater_equal(times, start), pc.less(times, end)).fill_null(False))


def _is_half(pair: Mapping[str, Any], halves: tuple[Mapping[str, Any], Mapping[str, Any]]) -> bool:
    """Whether a result of a join has the columns of a pair's row."""
    for side, values in zip((LEFT, RIGHT), halves, strict=True):
        if pair[side] is not None:
            return all(repr(value) == repr(values[name]) for name, value in pair[side].items() if name in values)
    return False


_BATCHES = (
    "a vectorised function gets many rows in one call: which of its key's rows in this epoch gave this one is not known"
)
_ALL_OF_KEY = "these are all rows of its key: which of them it was made of is not known"


def _is_exact(process: BuiltinOperator) -> bool:
    """Whether it is known of which rows of a key an operator makes a row."""
    windows = process.own_windows
    return (
        isinstance(process, TimedJoin)
        or isinstance(windows, FixedWindows | SessionWindows)
        or (windows is None and process.own_aggregated is not None)
    )


def _find(replay: Replay, node: Node) -> Operator:
    return next(each for each in replay.operators if each.node is node)


class _Chain:
    """Follows a row back to the sources, in runs of the recorded epochs."""

    def __init__(self, job: Job, recorded: Recorded, source: KeptInput) -> None:
        self._job, self._recorded, self._source = job, recorded, source
        self._names: dict[Node, str] = {node: node.name for node in job._plan.sources.nodes}
        self._links: list[_Link] = []
        self._memories: list[_Memory] = []
        self._causes = 0

    def find(self, matching: _Matching, sink: str) -> Explanation | None:
        """Return the first row that matches, followed within its epoch."""
        explanation, matches, breaks = None, 0, Breaks(None)
        with self._replay(self._recorded, breaks) as replay:
            for record in self._recorded.epochs:
                rows = replay.rows(record)
                try:
                    output = replay.run_once(record, rows)
                except UserCodeError:
                    break
                places = matching.places(output.sinks[sink])
                matches += len(places)
                if places and explanation is None:
                    row = output.nodes[matching.node].slice(places[0], 1)
                    plain = output.sinks[sink].slice(places[0], 1).to_pylist()[0]
                    cause = Cause("sink", sink, record.epoch, plain)
                    if (equal := [repr(each) for each in output.sinks[sink].to_pylist()].count(repr(plain))) > 1:
                        cause.notes.append(f"{equal} equal rows are in this epoch: this is about one of them")
                    explanation = Explanation(sink, plain, record.epoch, record.now_us, record.watermark_us, cause)
                    self._links.append(_Link(record.epoch, cause, matching.node, row))
                    self._follow_within(replay, breaks, record, rows, output)
                replay.run.commit()
        return None if explanation is None else replace(explanation, matches=matches)

    def follow(self) -> None:
        """Follow all that operators remember of earlier epochs, and what that comes of."""
        while self._memories:
            self._remember()
            if not self._links:
                continue
            breaks, epochs = Breaks(None), {link.epoch for link in self._links}
            with self._replay(self._until(max(epochs)), breaks) as replay:
                for record in replay.recorded.epochs:
                    rows = replay.rows(record)
                    output = replay.run_once(record, rows)
                    if record.epoch in epochs:
                        self._follow_within(replay, breaks, record, rows, output)
                    replay.run.commit()

    def _follow_within(
        self, replay: Replay, breaks: Breaks, record: EpochRecord, rows: Mapping[Node, Rows], output: EpochOutput
    ) -> None:
        """Follow the links of an epoch that has run, which then has run again."""
        replay.run.abort()
        origins = Origins(replay, self._source, breaks, record, output)
        mine = [link for link in self._links if link.epoch == record.epoch]
        self._links = [link for link in self._links if link.epoch != record.epoch]
        while mine:
            link = mine.pop()
            if self._causes == MOST_CAUSES:
                link.cause.left_out += 1
                continue
            self._causes += 1
            try:
                node, row = self._row_behind(origins, link)
            except UnknownOriginError as error:
                link.cause.notes.append(f"what it comes of is not known: {error}")
                continue
            cause = Cause("source", self._names.get(node, ""), record.epoch, plain_rows(node, row)[0])
            link.cause.causes.append(cause)
            if isinstance(node, OperatorNode):
                cause.kind, cause.name, cause.function = "operator", node.uid, node.name
                try:
                    mine += self._of_operator(origins, _find(replay, node), row, cause)
                except UnknownOriginError as error:
                    cause.notes.append(f"the call that gave it is not known: {error}")
        replay.run_once(record, rows)

    def _row_behind(self, origins: Origins, link: _Link) -> tuple[Node, Rows]:
        """Return the row that a row, or the event of a call, comes of."""
        if link.call is None:
            assert link.row is not None
            return origins.row_behind(link.node, link.row)
        assert link.node.parent is not None
        return origins.row_behind(link.node.parent, origins.event_behind(_find(origins.replay, link.node), link.call))

    def _of_operator(self, origins: Origins, operator: Operator, row: Rows, cause: Cause) -> list[_Link]:
        """Find what gave a row of an operator; return its event, if it is in this epoch."""
        if has_calls(operator):
            change = origins.call_behind(operator, row)
            call = change.made_by
            assert call is not None
            cause.call, cause.key = change, call.key
            if call.method != "on_timer":
                return [_Link(cause.epoch, cause, operator.node, call=call)]
            self._memories.append(_Memory(operator, cause, row, call))
            return []
        cause.key, first = origins.key_behind(operator, row), 0
        if not isinstance(operator.node.process, BuiltinOperator):
            first = cause.epoch
            cause.notes.append(_BATCHES)
        elif not _is_exact(operator.node.process):
            cause.notes.append(_ALL_OF_KEY)
        self._memories.append(_Memory(operator, cause, row, first=first))
        return []

    def _remember(self) -> None:
        """Run the epochs again, to find what operators had read; make links of it."""
        memories, self._memories = self._memories, []
        breaks, recorded = Breaks(None), self._until(max(each.cause.epoch for each in memories))
        times = {record.epoch: record.now_us for record in recorded.epochs}
        with self._replay(recorded, breaks) as replay:
            keys = {(each.operator.uid, repr(each.cause.key)) for each in memories if each.timer is not None}
            states = {operator.uid: [*operator.declared] for operator in replay.operators}
            changes = note_changes(breaks, states, lambda call: (call.operator, repr(call.key)) in keys, times)
            for result in replay:
                for memory in memories:
                    if result.output is not None:
                        memory.take(result.record, result.output)
                    for change in changes:
                        memory.note(change)
                changes.clear()
        for memory in memories:
            self._links += memory.links()

    def history_of(self, last: Cause) -> Iterator[Change]:
        """Yield the calls of the key, or the changes of its results, up to the epoch and the call that gave the row."""
        breaks = Breaks(None)
        with self._replay(self._until(last.epoch), breaks) as replay:
            operator = next(each for each in replay.operators if each.uid == last.name)
            if not has_calls(operator):
                yield from changes_by_epoch(replay, operator, last.key)
                return
            made_by = last.call.made_by if last.call else None
            assert made_by is not None
            names = list(operator.declared)
            for change in changes_by_call(replay, breaks, operator.uid, names, lambda call: call.key == last.key):
                assert change.made_by is not None
                if change.epoch < last.epoch or change.made_by.number <= made_by.number:
                    yield change

    def _until(self, epoch: int) -> Recorded:
        return replace(self._recorded, epochs=[each for each in self._recorded.epochs if each.epoch <= epoch])

    def _replay(self, recorded: Recorded, breaks: Breaks) -> Replay:
        return Replay(self._job, recorded, breaks, source=self._source, also=event_nodes)
