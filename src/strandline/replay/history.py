"""History of a key's state: each change, with its epoch, the call that made it and the rows that the call gave."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.core.errors import ConfigurationError, NotFoundError, StateTypeError
from strandline.core.ids import Epoch
from strandline.format.names import StatePath, matching_names, name_in
from strandline.plan.graph import Node, OperatorNode, PartialNode
from strandline.plan.pipeline import Operator
from strandline.replay.breaks import Breaks, Call, StateView, is_key
from strandline.replay.engine import EpochOutput
from strandline.replay.keys import QueryKey, keys_in
from strandline.replay.recorded import Recorded
from strandline.replay.session import Replay
from strandline.runtime.builtin import BuiltinOperator
from strandline.spark.job.job import Job
from strandline.testing.operator import Partitions

IsWanted = Callable[[Call], bool]
_PLAIN = frozenset((bool, int, float, str, bytes, Decimal, dt.date, dt.datetime, type(None)))
"""Types whose values nothing can change."""


@dataclass(frozen=True)
class Change:
    """A change of a key's value."""

    epoch: int
    now_us: int
    """The clock of the epoch."""
    call: str
    """The method that made it; "epoch" for built-in operators, of which only the epoch is known."""
    event: Any
    """The event, or the time of the timer; for built-in operators the key's events in the epoch, as dicts."""
    before: Any
    after: Any
    rows: tuple[Any, ...]
    """The rows that the call gave; for built-in operators those of the key in the epoch, if its columns are in them."""
    made_by: Call | None = None
    """The call, with its timers and the rows of side outputs; None for built-in operators."""


def history_of(
    job: Job,
    recorded: Recorded,
    state: str,
    key: str,
    report: Callable[[int, int], object] = lambda done, total: None,
) -> Iterator[Change]:
    """Yield the changes of a key in recorded epochs: of a state, or of all states, timers and rows of an operator.

    `report` is called with the numbers of epochs that have run, and of all. Raises NotFoundError for an unknown state;
    the replay ends, without an error, at an epoch that fails again.
    """
    breaks = Breaks(None)
    # The state is not compared with checkpoints, which a running job may delete meanwhile.
    with Replay(job, replace(recorded, checkpoints={}), breaks, also=event_nodes, report=report) as run:
        uid, name = find_state(run.operators, state)
        operator = run.operator(uid)
        if not has_calls(operator):
            query_key = QueryKey.of(operator.node)
            text = key if query_key is None else query_key.parse(key)
            yield from changes_by_epoch(run, operator, run.run.find(uid).parse_key(text))
            return
        names = [name] if name else [*operator.declared]
        for change in changes_by_call(run, breaks, uid, names, _is_of(key, run.run.find(uid))):
            call = change.made_by
            assert call is not None
            if name and change.before[name] != change.after[name]:
                yield replace(change, before=change.before[name], after=change.after[name])
            elif not name and (change.before != change.after or change.rows or call.timer_changes or call.emitted):
                yield change


def _is_of(text: str, partitions: Partitions) -> IsWanted:
    """Return a check whether a call is for the key that a text means."""
    try:
        key = partitions.parse_key(text)
    except StateTypeError:
        return lambda call: is_key(text, call.key)
    return lambda call: bool(call.key == key) or repr(call.key) == repr(key)


def has_calls(operator: Operator) -> bool:
    """Whether an operator is a function that is called for each event."""
    process = operator.node.process
    return isinstance(process, KeyedProcess) and not isinstance(process, BuiltinOperator)


def changes_by_call(
    run: Replay, breaks: Breaks, uid: str, names: Sequence[str], is_wanted: IsWanted
) -> Iterator[Change]:
    """Yield the wanted calls of a function, with its states of these names before and after, as dicts."""
    times = {record.epoch: record.now_us for record in run.recorded.epochs}
    changes = note_changes(breaks, {uid: names}, is_wanted, times)
    for result in run:
        if result.output is not None:
            yield from changes
        changes.clear()


def note_changes(
    breaks: Breaks, states: Mapping[str, Sequence[str]], is_wanted: IsWanted, times: Mapping[Epoch, int]
) -> list[Change]:
    """Return a list to which the wanted calls are added; one that fails leaves the states as they were.

    `states` has the names of the states of each function, by uid, and `times` the clock of each epoch.
    """
    changes: list[Change] = []

    def on_call(call: Call, view: StateView) -> Callable[[list[Any]], None] | None:
        if call.operator not in states or not is_wanted(call):
            return None

        def values() -> dict[str, Any]:
            return {name: _copied(getattr(view, name)) for name in states[call.operator]}

        before, at = values(), len(changes)
        now_us = times[Epoch(call.epoch)]
        changes.append(Change(call.epoch, now_us, call.method, call.event, before, before, (), call))

        def after(rows: list[Any]) -> None:
            changes[at] = replace(changes[at], after=values(), rows=tuple(rows))

        return after

    breaks.on_call = on_call
    return changes


def _copied(value: Any) -> Any:
    """Return a copy of a state's value; large collections of plain values are common, and copied at once."""
    if type(value) is list and _PLAIN.issuperset(map(type, value)):
        return value[:]
    if type(value) is dict and _PLAIN.issuperset(map(type, value.values())):
        return dict(value)
    return copy.deepcopy(value)


def changes_by_epoch(run: Replay, operator: Operator, key: Any) -> Iterator[Change]:
    """Yield a built-in operator's results for a key before and after each epoch that changes them, or has its events
    or rows.

    The replay is one with `also=event_nodes`.
    """
    before = run.run.find(operator.uid).state(key)
    for result in run:
        if result.output is None:
            return
        after = run.run.find(operator.uid).state(key)
        events = _events_of(result.output, operator, key)
        rows = _rows_of(result.output, operator, key)
        if events or rows or after != before:
            yield Change(result.record.epoch, result.record.now_us, "epoch", events, before, after, rows)
        before = after


def event_nodes(operators: Sequence[Operator]) -> list[Node]:
    """Return the nodes with the events of each operator: not the accumulators that Spark makes of them."""
    return [node for operator in operators if (node := event_node(operator)) is not None]


def event_node(operator: Operator) -> Node | None:
    """Return the node with the events of an operator."""
    parent = operator.node.parent
    return parent.parents[0] if isinstance(parent, PartialNode) else parent


def _events_of(output: EpochOutput, operator: Operator, key: Any) -> list[dict[str, Any]]:
    """Return the events of a key in an epoch, without hidden columns; of a join, without the empty side.

    The key of a view's operator is in the columns of the query.
    """
    node, keys, query_key = event_node(operator), operator.node.keys, QueryKey.of(operator.node)
    rows = None if node is None else output.nodes.get(node)
    if node is None or rows is None or not {*keys} <= {*rows.schema.names}:
        return []
    names = [name for name in node.columns.names if name in rows.schema.names]
    of_key = rows.filter(_has_key(operator.node, rows, key)).to_pylist()
    events = [{name: row[name] for name in names if row[name] is not None} for row in of_key]
    return events if query_key is None else [*map(query_key.row, events)]


def _rows_of(output: EpochOutput, operator: Operator, key: Any) -> tuple[dict[str, Any], ...]:
    """Return the rows of a key that a built-in operator gave in an epoch, if the key is in its output."""
    node, rows = operator.node, output.operators[operator.uid]
    if not isinstance(node.process, BuiltinOperator) or not {*node.keys} <= {*node.columns.names}:
        return ()
    return tuple(rows.filter(_has_key(node, rows, key)).select(node.columns.names).to_pylist())


def _has_key(node: OperatorNode, rows: pa.RecordBatch, key: Any) -> pa.Array:
    return pa.array([repr(each) == repr(key) for each in keys_in(node, rows)], pa.bool_())


def find_state(operators: list[Operator], name: str) -> tuple[str, str]:
    """Return the operator and the state of a name: `uid.state`, or a state that one operator has; for a uid, ""."""
    paths = [
        StatePath(operator.uid, state)
        for operator in operators
        for state in (operator.declared if has_calls(operator) else [each.name for each in operator.states])
    ]
    matches = matching_names(name, paths) or [path for path in paths if path.state == name]
    if not matches and any(operator.uid == name for operator in operators):
        return name, ""
    if len(matches) == 1:
        return matches[0].uid, matches[0].state
    known = ", ".join(name_in(paths, path) for path in matches or paths)
    if matches:
        raise ConfigurationError(f"the state '{name}' is one of {known}", hint="give the name with its operator")
    raise NotFoundError(f"the job has no state '{name}'", hint=f"its states are {known}")
