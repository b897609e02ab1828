"""The history of a job from the log of events that its drivers leave on this machine, also after they were killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from strandline.control.events import CheckpointEnd, EpochsEnd, InterruptionEnd, read_events
from strandline.control.recent import OperatorTime

_MOST_STEPS = 120
_STEPS_MS = tuple(1000 * each for each in (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 86_400))
_MOST_CHECKPOINTS = 100
_MOST_FAILED = 100
_MOST_INTERRUPTIONS = 50


def read_history(path: Path, is_wanted: Callable[[str], bool], hours: float = 0.0) -> dict[str, Any]:
    """Return what a log of events has of a job with such a checkpoint directory.

    The epochs of the last hours, or of all with 0, are summed up in steps of time, so that there are not many.
    """
    events = read_events(path, is_wanted)
    epochs = [each for each in events if isinstance(each, EpochsEnd)]
    checkpoints = [each for each in events if isinstance(each, CheckpointEnd)]
    failed = [each for each in checkpoints if each.status == "failed"]
    # A failed one of the last hundred is in both.
    kept = {id(each): each for each in (*failed[-_MOST_FAILED:], *checkpoints[-_MOST_CHECKPOINTS:])}
    interruptions = [each for each in events if isinstance(each, InterruptionEnd)]
    return {
        **_timeline(epochs, hours),
        "checkpoints": [to_builtins(each) for each in kept.values()],
        "interruptions": [
            {**to_builtins(each), "at_ms": each.began_ms} for each in interruptions[-_MOST_INTERRUPTIONS:]
        ],
    }


def _timeline(epochs: Sequence[EpochsEnd], hours: float) -> dict[str, Any]:
    """Return sums of epochs by steps of time; a step without an epoch is left out."""
    if not epochs:
        return {"step_ms": 0, "steps": []}
    # Not the latest: the clock may have been set back since.
    end_ms = epochs[-1].ended_ms
    begin_ms = max(min(each.began_ms for each in epochs), end_ms - int(hours * 3_600_000) if hours else 0)
    step_ms = next((each for each in _STEPS_MS if end_ms - begin_ms <= each * _MOST_STEPS), _STEPS_MS[-1])
    by_step: dict[int, list[EpochsEnd]] = {}
    for each in epochs:
        if begin_ms < each.ended_ms <= end_ms:
            for step, part in _divided(each, step_ms):
                by_step.setdefault(step, []).append(part)
    # The first is perhaps not whole. Should there be years, those are the newest.
    steps = sorted(step for step in by_step if (step + 1) * step_ms > begin_ms)[-_MOST_STEPS - 1 :]
    return {
        "step_ms": step_ms,
        "steps": [{**to_builtins(EpochsEnd.sum(by_step[step])), "at_ms": step * step_ms} for step in steps],
    }


def _divided(event: EpochsEnd, step_ms: int) -> Iterator[tuple[int, EpochsEnd]]:
    """Yield the parts of an event by steps of time: an epoch may be longer than a step."""
    first, last = event.began_ms // step_ms, (event.ended_ms - 1) // step_ms
    whole_ms = event.ended_ms - event.began_ms
    if first >= last:
        yield last, event
        return
    for step in range(max(first, last - _MOST_STEPS), last + 1):
        begin_ms, end_ms = max(event.began_ms, step * step_ms), min(event.ended_ms, (step + 1) * step_ms)
        before, until = ((ms - event.began_ms) / whole_ms for ms in (begin_ms, end_ms))
        share = until - before
        # Each row and each epoch is in one step.
        rows = round(event.rows * until) - round(event.rows * before)
        yield step, structs.replace(
            event, began_ms=begin_ms, ended_ms=end_ms, rows=rows, epochs=event.epochs if step == last else 0,
            took_ms=event.took_ms * share, plan_ms=event.plan_ms * share,
            operators=tuple(
                OperatorTime(each.uid, each.partition, each.busy_ms * share, each.wait_ms * share,
                             each.mean_busy_ms * share)
                for each in event.operators
            ),
        )  # fmt: skip
