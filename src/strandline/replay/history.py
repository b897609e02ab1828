"""History of a key's state: each change, with its epoch, the call that made it and the rows that the call gave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.format.names import StatePath, matching_names, name_in
from strandline.plan.pipeline import Operator
from strandline.replay.breaks import Breaks, Call, StateView, is_key
from strandline.replay.recorded import Recorded
from strandline.replay.session import Input, Replay
from strandline.runtime.builtin import BuiltinOperator
from strandline.spark.job.job import Job


@dataclass(frozen=True)
class Change:
    """A change of a key's value."""

    epoch: int
    now_us: int
    """The clock of the epoch."""
    call: str
    """The method that made it; "epoch" for built-in operators, of which only the epoch is known."""
    event: Any
    """The event, or the time of the timer; None for built-in operators."""
    before: Any
    after: Any
    rows: tuple[Any, ...]
    """The rows that the call gave; for built-in operators none."""


def history_of(job: Job, recorded: Recorded, state: str, key: str, source: Input | None = None) -> Iterator[Change]:
    """Yield the changes of a state of a key in recorded epochs.

    Raises NotFoundError for an unknown state; the replay ends, without an error, at an epoch that fails again.
    """
    changes: list[Change] = []
    epochs = {record.epoch: record.now_us for record in recorded.epochs}
    breaks = Breaks(None)
    with Replay(job, recorded, breaks, source=source) as run:
        uid, name = find_state(run.operators, state)
        operator = next(each for each in run.operators if each.uid == uid)
        if isinstance(operator.node.process, BuiltinOperator) or not operator.declared:
            yield from _by_epoch(run, uid, key)
            return

        def on_call(call: Call, view: StateView) -> Callable[[list[Any]], None] | None:
            if call.operator != uid or not is_key(key, call.key):
                return None
            before = copy.deepcopy(getattr(view, name))

            def after(rows: list[Any]) -> None:
                value = copy.deepcopy(getattr(view, name))
                if value != before:
                    change = call.epoch, epochs[call.epoch], call.method, call.event, before, value, tuple(rows)  # type: ignore[index]
                    changes.append(Change(*change))

            return after

        breaks.on_call = on_call
        for result in run:
            if result.output is not None:
                yield from changes
            changes.clear()


def _by_epoch(run: Replay, uid: str, key: str) -> Iterator[Change]:
    """Yield the changes of a built-in operator's results for a key, epoch by epoch."""
    partitions = run.run.find(uid)
    wanted = partitions.parse_key(key)
    before = partitions.state(wanted)
    for result in run:
        if result.output is None:
            return
        after = partitions.state(wanted)
        if after != before:
            yield Change(result.record.epoch, result.record.now_us, "epoch", None, before, after, ())
        before = after


def find_state(operators: list[Operator], name: str) -> tuple[str, str]:
    """Return the operator and the state of a name: `uid.state`, a state that one operator has, or a uid."""
    paths = [StatePath(operator.uid, state.name) for operator in operators for state in operator.states]
    matches = matching_names(name, paths) or [path for path in paths if path.state == name]
    if not matches and any(operator.uid == name for operator in operators):
        matches = [next(path for path in paths if path.uid == name)]
    if len(matches) == 1:
        return matches[0].uid, matches[0].state
    known = ", ".join(name_in(paths, path) for path in matches or paths)
    if matches:
        raise ConfigurationError(f"the state '{name}' is one of {known}", hint="give the name with its operator")
    raise NotFoundError(f"the job has no state '{name}'", hint=f"its states are {known}")
