"""Comparison of two trials, or of one with the job's checkpoint: the rows of sinks, the state, and failures."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from strandline.replay.trial import COMPARED, STATE, TrialResult
from strandline.snapshot.opening.snapshot import Snapshot, open_snapshot
from strandline.snapshot.tools.diff import SnapshotDiff, diff_snapshots


@dataclass(frozen=True)
class RowDifference:
    """A row that only one program gives, as often as `count`."""

    side: str
    """"before" or "after"."""
    epoch: int
    row: dict[str, Any]
    count: int


@dataclass(frozen=True)
class SinkDiff:
    """The differences between the rows of a sink in two trials, epoch by epoch, in any order."""

    sink: str
    only: str = ""
    """"before" or "after": only this program has the sink."""
    notes: tuple[str, ...] = ()
    """Columns that only one program has, without which rows are compared, and columns of other types."""
    before: int = 0
    after: int = 0
    """The numbers of rows."""
    only_before: int = 0
    only_after: int = 0
    moved: int = 0
    """Of these rows, how many of each side the other side has in another epoch."""
    rows: tuple[RowDifference, ...] = ()
    """Some rows that differ, those of one epoch together."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.only or self.notes or self.only_before or self.only_after)


@dataclass(frozen=True)
class Outcome:
    """The differences between two trials; with one alone, between its state and the job's checkpoint."""

    sinks: tuple[SinkDiff, ...]
    states: SnapshotDiff | None
    """None if there is nothing to compare the state with; `why_not` says why."""
    why_not: str
    failures: tuple[str, ...]
    """Sentences on functions that fail in one program alone, or elsewhere."""

    @property
    def verdict(self) -> str:
        """The verdict: equal, differs, or unknown if there was nothing to compare."""
        states = self.states is None or self.states.is_equal
        if self.failures or not states or not all(each.is_equal for each in self.sinks):
            return "differs"
        return "unknown" if self.states is None else "equal"


def compare_trials(
    before: TrialResult, after: TrialResult, folders: tuple[Path, Path], most: int, scratch: Path
) -> Outcome:
    """Compare two trials of the same input; show up to `most` rows of each sink and keys of each state."""
    # Behind files, epochs without rows follow as long as timers are due: in one program perhaps more than in the other.
    is_whole = before.failed is None and after.failed is None
    last = (max if is_whole else min)(before.last, after.last)
    sinks = []
    for name in dict.fromkeys([*before.sinks, *after.sinks]):
        if name not in before.sinks or name not in after.sinks:
            sinks.append(SinkDiff(name, only="before" if name in before.sinks else "after"))
        else:
            paths = _rows_of(before, folders[0], name), _rows_of(after, folders[1], name)
            sinks.append(_compare_rows(name, before.sinks[name], after.sinks[name], paths, last, most))
    failures = []
    if (before.failed, before.failure) != (after.failed, after.failure):
        for which, each in (("the old program", before), ("the new program", after)):
            failures.append(_fate(which, each))
    states, why_not = None, ""
    if before.last != after.last and not is_whole:
        why_not = f"one program came to epoch {before.last}, the other to epoch {after.last}"
    elif last < before.first:
        why_not = "no epoch has run to its end in both programs"
    else:
        ours, theirs = (open_snapshot(str(folder / STATE)) for folder in folders)
        states = _diff(ours, theirs, most, scratch)
    return Outcome(tuple(sinks), states, why_not, tuple(failures))


def compare_with_job(result: TrialResult, folder: Path, options: Mapping[str, str], most: int) -> TrialResult:
    """Return a trial's result with the differences from the job's newest checkpoint among its epochs, if it has one."""
    if not result.checkpoint:
        return result
    job_state = open_snapshot(result.checkpoint, options, fsync=False)
    return structs.replace(result, states=_diff(job_state, open_snapshot(str(folder / COMPARED)), most, folder))


def outcome_alone(result: TrialResult) -> Outcome:
    """Return the outcome of a trial that was compared with the job itself: its state, and its failure."""
    failures: tuple[str, ...] = ()
    if result.failed != result.failed_in_job:
        in_job = f"the job failed in epoch {result.failed_in_job}" if result.failed_in_job else "the job did not fail"
        failures = (f"{in_job}, and {_fate('the new program', result)}",)
    why_not = "" if result.states else "the job has no checkpoint of an epoch that has run"
    return Outcome((), result.states, why_not, failures)


def _fate(which: str, result: TrialResult) -> str:
    if result.failed is None:
        return f"{which} does not fail"
    return f"{which} fails in epoch {result.failed}: {result.failure}"


def _diff(before: Snapshot, after: Snapshot, most: int, scratch: Path) -> SnapshotDiff:
    return diff_snapshots(before, after, most_keys=most, scratch=scratch)


def _rows_of(result: TrialResult, folder: Path, sink: str) -> Path:
    return folder / "rows" / f"{list(result.sinks).index(sink)}.jsonl"


def _compare_rows(
    sink: str, ours: Mapping[str, str], theirs: Mapping[str, str], paths: tuple[Path, Path], last: int, most: int
) -> SinkDiff:
    left_out = {name for name in {**ours, **theirs} if name not in ours or name not in theirs}
    notes = [
        f"the column {name} is {theirs.get(name, 'gone')}, was {ours.get(name, 'not there')}"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    ]
    differing: Counter[tuple[int, str]] = Counter()
    counts = [0, 0]
    for side, (path, sign) in enumerate(zip(paths, (1, -1), strict=True)):
        for row in _read(path, left_out, last):
            counts[side] += 1
            differing[row] += sign
    by_row: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (_, text), count in differing.items():
        by_row[text][count < 0] += abs(count)
    rows = [
        RowDifference("before" if count > 0 else "after", epoch, json.loads(text), abs(count))
        for (epoch, text), count in sorted(differing.items(), key=lambda item: (*item[0], -item[1]))
        if count
    ]
    return SinkDiff(
        sink, notes=tuple(notes), before=counts[0], after=counts[1],
        only_before=sum(one for one, _ in by_row.values()), only_after=sum(other for _, other in by_row.values()),
        moved=sum(map(min, by_row.values())), rows=tuple(rows[:most]),
    )  # fmt: skip


def _read(path: Path, left_out: set[str], last: int) -> Iterator[tuple[int, str]]:
    """Yield the epoch and the text of each row."""
    with path.open() as file:
        for line in file:
            epoch, row = json.loads(line)
            if epoch <= last:
                common = {name: value for name, value in row.items() if name not in left_out}
                yield epoch, json.dumps(common, sort_keys=True)
