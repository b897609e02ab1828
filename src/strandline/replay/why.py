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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

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
from strandline.replay.history import Change, changes_by_call, changes_by_epoch, event_node, event_nodes, has_calls
from strandline.replay.keys import QueryKey, keys_in
from strandline.replay.origins import Origins, UnknownOriginError, plain_rows
from strandline.replay.recorded import START, Recorded, find_recorded
from strandline.replay.session import KeptInput, Replay, SourceInput, jobdir_of
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.aggregates.running import RunningAggregation
from strandline.runtime.operators.joins import LEFT, RIGHT, TimedJoin
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
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
    """In the end, that of a view's operator is a dict of the query's columns."""
    call: Change | None = None
    """The call of a function that gave it, with the states before and after; None for other operators."""
    read: int | None = None
    """The number of the rows of its key that it was made of, or of all of them if a note says so."""
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
    _Matching(job, sink, condition)
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
        except _ConditionError:
            raise
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
    matching = _Matching(job, sink, condition)
    with KeptInput(SourceInput(job, recorded)) as source:
        chain = _Chain(job, recorded, source)
        explanation = chain.find(matching, sink)
        if explanation is None:
            return None
        chain.follow()
        last = explanation.last
        if last is not None and last.key is not None:
            explanation = replace(explanation, history=tuple(chain.history_of(last)))
        keys = {node.uid: key for node in job._plan.pipeline.operators if (key := QueryKey.of(node)) is not None}
        _name_columns(explanation.cause, keys)
        return explanation


def _name_columns(cause: Cause, keys: Mapping[str, QueryKey]) -> None:
    """Put the columns of the query in place of the keys of views' operators."""
    key = keys.get(cause.name) if cause.kind == "operator" else None
    if key is not None:
        cause.key = None if cause.key is None else key.columns(cause.key)
        cause.row = None if cause.row is None else key.row(cause.row)
    for each in cause.causes:
        _name_columns(each, keys)


class _ConditionError(ConfigurationError):
    """A condition that Spark refuses."""


class _Matching:
    """Finds the rows of a sink that a condition is true for."""

    def __init__(self, job: Job, sink: str, condition: str) -> None:
        """Raise NotFoundError for an unknown sink, and ConfigurationError for a condition that Spark refuses."""
        nodes = {name: node for name, _, node in job._plan.sinks}
        if sink not in nodes:
            raise NotFoundError(f"the job has no sink '{sink}'", hint=f"its sinks are {', '.join(nodes)}")
        self.node = nodes[sink]
        self._session = clone_session(job._plan.sources.session)
        columns = [*self.node.columns.types, (AT, "bigint")]
        self._schema = schema_of(", ".join(f"{quoted(name)} {ddl}" for name, ddl in columns))
        self._condition = condition
        self._places_in(no_rows(self._session, self._schema))

    def places(self, batch: pa.RecordBatch) -> list[int]:
        """Return the numbers of the matching rows, in their order."""
        if not batch.num_rows:
            return []
        table = pa.Table.from_batches([batch]).append_column(AT, pa.array(range(batch.num_rows), pa.int64()))
        return self._places_in(self._session.createDataFrame(table, self._schema))

    def _places_in(self, df: DataFrame) -> list[int]:
        try:
            with suppress_error_logs():
                return sorted(row[0] for row in df.where(self._condition).select(AT).collect())
        except PySparkException as error:
            raise _ConditionError(
                f"the condition {self._condition!r}: {first_line(error)}",
                hint=f"write an SQL condition, as card = 'c1'; the columns are {', '.join(self.node.columns.names)}",
            ) from None


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
    count: int = 0
    newest: deque[_Link] = field(default_factory=lambda: deque(maxlen=MOST_ROWS))

    def take(self, record: EpochRecord, output: EpochOutput, keys: dict[Node, list[str]]) -> None:
        """Take the rows of the key in an epoch; `keys` keeps the keys that operators read in it, for all searches."""
        node, operator = event_node(self.operator), self.operator.node
        if self.timer is not None or not self.first <= record.epoch <= self.cause.epoch or node is None:
            return
        rows, wanted = output.nodes[node], repr(self.cause.key)
        if operator not in keys:
            keys[operator] = [*map(repr, keys_in(operator, rows))]
        rows = rows.filter(pa.array([key == wanted for key in keys[operator]], pa.bool_()))
        if record.epoch == self.cause.epoch and _are_fired(self.row)[0].as_py():
            # Timers fire before the epoch's rows, but for those of timers further up.
            rows = rows.filter(_are_fired(rows))
        if _is_exact(operator, self.row):
            rows = _made_of(operator, self.row, rows, record)
        self.count += rows.num_rows
        for at in range(max(0, rows.num_rows - MOST_ROWS), rows.num_rows):
            self.newest.append(_Link(record.epoch, self.cause, node, rows.slice(at, 1)))

    def links(self, calls: Sequence[Call]) -> list[_Link]:
        """Return what is to be followed, and note what is not; `calls` are those that have run, in their order."""
        cause, process = self.cause, self.operator.node.process
        if self.timer is None:
            cause.read, cause.left_out = self.count, cause.left_out + self.count - len(self.newest)
            if isinstance(process, TimedJoin) and _is_exact(self.operator.node, self.row):
                sides = [half for half in _halves(process, self.row) if any(each is not None for each in half.values())]
                if self.count > len(sides):
                    cause.notes.append("these are all rows with its columns: it was made of one of each side")
            return list(self.newest)
        setter, hops = _setter_of(self.timer, calls), 0
        while setter is not None and setter.method == "on_timer":
            setter, hops = _setter_of(setter, calls), hops + 1
        if hops:
            cause.notes.append(f"timers set one another: {hops} calls of on_timer before this one are left out")
        if setter is None:
            cause.notes.append("the call that set its timer is not in the epochs that are run")
            return []
        call = Cause("operator", cause.name, setter.epoch, None, cause.function, cause.key)
        cause.causes.append(call)
        return [_Link(setter.epoch, call, self.operator.node, call=setter)]


def _setter_of(timer: Call, calls: Sequence[Call]) -> Call | None:
    """Return the last call before a timer's that set it."""
    function, timer_set = (timer.operator, repr(timer.key)), (timer.event, timer.read.is_processing_time)
    before = (each for each in reversed(calls) if (each.epoch, each.number) < (timer.epoch, timer.number))
    mine = (each for each in before if (each.operator, repr(each.key)) == function)
    return next((each for each in mine if timer_set in each.timers), None)


def _made_of(node: OperatorNode, row: Rows, rows: Rows, record: EpochRecord) -> Rows:
    """Return the rows of a key that an operator has made a row of: those of its window, or those that a join gives."""
    process = node.process
    if isinstance(process, TimedJoin):
        halves = _halves(process, row)
        return rows.filter(pa.array([_is_half(pair, halves) for pair in rows.to_pylist()], pa.bool_()))
    windows = process.own_windows if isinstance(process, BuiltinOperator) else None
    if not isinstance(windows, FixedWindows | SessionWindows):
        return rows
    start, end = (row.column(name).cast(pa.int64())[0].as_py() for name in (WINDOW_START, WINDOW_END))
    if windows.time == "processing":
        return rows if start <= record.now_us < end else rows.slice(0, 0)
    times, fired = rows.column(TIME), _are_fired(rows)
    is_in = pc.and_(pc.greater_equal(times, start), pc.less(times, end)).fill_null(False)
    # A session ends a microsecond after its window.
    over_us = end + windows.lateness_ms * 1000 + isinstance(windows, SessionWindows)
    for reached_us, are_these in ((record.fired_us, fired), (record.watermark_us, pc.invert(fired))):
        if reached_us is not None and over_us <= reached_us:
            is_in = pc.and_not(is_in, are_these)
    return rows.filter(is_in)


def _are_fired(rows: Rows) -> pa.Array:
    """Return which rows timers gave: they come before the watermark moves on."""
    return rows.column(FIRED).fill_null(False) if FIRED in rows.schema.names else pa.repeat(False, rows.num_rows)


def _halves(process: TimedJoin, row: Rows) -> tuple[dict[str, Any], dict[str, Any]]:
    return process.layout.halves(tuple(column[0].as_py() for column in row.columns))


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
_FAILED = "rows that it could not process are among these, if there are any"


def _is_exact(node: OperatorNode, row: Rows) -> bool:
    """Whether it is known of which rows of a key an operator has made a row: not of a side output's."""
    process = node.process
    if not isinstance(process, BuiltinOperator) or (SIDE in row.schema.names and row.column(SIDE)[0].as_py()):
        return False
    has_window = isinstance(process.own_windows, FixedWindows | SessionWindows) and process.own_is_whole
    return has_window or isinstance(process, TimedJoin | RunningAggregation)


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
                    mine += self._of_operator(origins, replay.operator(node.uid), row, cause)
                except UnknownOriginError as error:
                    cause.notes.append(f"the call that gave it is not known: {error}")
        replay.run_once(record, rows)

    def _row_behind(self, origins: Origins, link: _Link) -> tuple[Node, Rows]:
        """Return the row that a row, or the event of a call, comes of."""
        if link.call is None:
            assert link.row is not None
            return origins.row_behind(link.node, link.row)
        assert link.node.parent is not None
        operator = origins.replay.operator(link.call.operator)
        link.cause.call = link.cause.call or origins.change_at(operator, link.call.place)
        return origins.row_behind(link.node.parent, origins.event_behind(operator, link.call))

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
        cause.key, first, origin = origins.key_behind(operator, row), 0, self._recorded.origin
        if not isinstance(operator.node.process, BuiltinOperator):
            first = cause.epoch
            cause.notes.append(_BATCHES)
        else:
            if not _is_exact(operator.node, row):
                cause.notes.append(_ALL_OF_KEY)
            if not operator.node.on_error.fails:
                cause.notes.append(_FAILED)
            if origin.manifest is not None:
                before = f"rows of epoch {origin.epoch} and before are in the first state: they are not among these"
                cause.notes.append(before)
        self._memories.append(_Memory(operator, cause, row, first=first))
        return []

    def _remember(self) -> None:
        """Run the epochs again, to find what operators had read; make links of it."""
        memories, self._memories = self._memories, []
        breaks, calls = Breaks(None), list[Call]()
        keys = {(each.operator.uid, repr(each.cause.key)) for each in memories if each.timer is not None}

        def note(call: Call, view: Any) -> None:
            if (call.operator, repr(call.key)) in keys:
                calls.append(call)

        breaks.on_call = note if keys else None
        with self._replay(self._until(max(each.cause.epoch for each in memories)), breaks) as replay:
            for result in replay:
                of_epoch: dict[Node, list[str]] = {}
                for memory in memories:
                    if result.output is not None:
                        memory.take(result.record, result.output, of_epoch)
        for memory in memories:
            self._links += memory.links(calls)

    def history_of(self, last: Cause) -> Iterator[Change]:
        """Yield the calls of the key, or the changes of its results, up to the epoch and the call that gave the row."""
        breaks = Breaks(None)
        with self._replay(self._until(last.epoch), breaks) as replay:
            operator = replay.operator(last.name)
            if not has_calls(operator):
                yield from changes_by_epoch(replay, operator, last.key)
                return
            made_by = last.call.made_by if last.call else None
            assert made_by is not None
            names, key = list(operator.declared), repr(last.key)
            for change in changes_by_call(replay, breaks, operator.uid, names, lambda call: repr(call.key) == key):
                assert change.made_by is not None
                if change.epoch < last.epoch or change.made_by.number <= made_by.number:
                    yield change

    def _until(self, epoch: int) -> Recorded:
        return replace(self._recorded, epochs=[each for each in self._recorded.epochs if each.epoch <= epoch])

    def _replay(self, recorded: Recorded, breaks: Breaks) -> Replay:
        return Replay(self._job, recorded, breaks, source=self._source, also=event_nodes)
