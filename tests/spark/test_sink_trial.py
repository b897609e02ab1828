"""The checks for sinks notice what they are for: a sink that is right passes, and each of its faults fails one of them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

import strandline as sl
from strandline.core.ids import unique_name
from strandline.testing.sinks.conformance import (
    Check,
    Promise,
    Trial,
    checks,
    name_of,
    rows_are_read_once_and_to_their_end,
)
from strandline.testing.sinks.trial import Crash, CrashingLines
from tests.ends.filesinks import NEED_SPARK, frame

Staged = tuple[str, int, int, list[int]]
"""Whose, of which generation and epoch, and the rows."""


@dataclass
class Shelf:
    """Stands in for a place that outlives drivers. Each line of the sink below is one step that is done or not."""

    runs: dict[str, int] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)
    shown: dict[str, Staged] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    is_away: bool = False
    is_mute: bool = False

    @contextmanager
    def being(self, what: str) -> Iterator[None]:
        """Be away, or mute, for as long as the context lasts."""
        setattr(self, what, True)
        yield
        setattr(self, what, False)


class Shelving(sl.sinks.Sink):
    """A sink as it should be, but for its faults."""

    def __init__(self, shelf: Shelf, faults: Collection[str]) -> None:
        super().__init__(visibility="checkpoint")
        self.shelf, self.faults = shelf, faults

    def open(self, context: sl.sinks.SinkContext) -> None:
        self.mine = "mine" if "knows no lives" in self.faults else context.identity
        self.generation = context.generation
        self.thread = threading.get_ident()

    def close(self) -> None:
        if "closes what it never opened" in self.faults:
            del self.mine

    def write(self, df: Any, epoch: int) -> list[str]:
        tasks = [list(rows) for rows in df._files if rows]
        if "fails without rows" in self.faults:
            assert tasks
        found = []
        for i, rows in enumerate(tasks[:1] if "writes one task" in self.faults else tasks):
            name = f"{self.mine} {epoch} {i}" if "gives names again" in self.faults else unique_name()
            if "stages in two steps" in self.faults:
                self.shelf.staged[name] = None  # type: ignore[assignment]
            self.shelf.staged[name] = (self.mine, self.generation, epoch, rows)
            if "shows at once" in self.faults:
                self.shelf.shown[name] = self.shelf.staged[name]
            found.append(name)
        return found

    def commit(self, pending: Sequence[str]) -> Sequence[str]:
        if self.shelf.is_away and "reaches what is away" not in self.faults:
            return [] if "forgets what waits" in self.faults else pending
        self._check("commits unfenced", self.shelf.runs.get(self.mine) == self.generation)
        assert "is one thread's" not in self.faults or self.thread == threading.get_ident()
        self._show(pending)
        if self.shelf.is_mute:
            if "shows again what nobody confirmed" in self.faults:
                self.shelf.done.clear()
            raise ConnectionError("no answer")
        return []

    def recover(self, pending: Sequence[str], epoch: int, *, fresh: bool) -> None:
        if self.shelf.is_away and pending and "starts without what waits" not in self.faults:
            raise sl.errors.UnavailableError("it is away")
        self._check("starts unfenced", self.shelf.runs.get(self.mine, 0) <= self.generation)
        self.shelf.runs[self.mine] = self.generation
        self._show(pending)
        if "leaves what is staged" not in self.faults:
            for name in [name for name, (mine, run, *_) in self.shelf.staged.items() if mine == self.mine]:
                if self.shelf.staged[name][1] < self.generation:
                    del self.shelf.staged[name]
        if "takes nothing back" not in self.faults:
            for name in [name for name, (mine, _, of, _) in self.shelf.shown.items() if mine == self.mine]:
                if self.shelf.shown[name][2] > epoch:
                    del self.shelf.shown[name]

    def _check(self, fault: str, holds: bool) -> None:
        if not holds and fault not in self.faults:
            raise sl.errors.FencedError("another run")

    def _show(self, pending: Sequence[str]) -> None:
        shelf, faults = self.shelf, self.faults
        if "shows all that is staged" in faults and pending:
            pending = list(shelf.staged)
        if "shows all of an epoch" in faults:
            epochs = {shelf.staged[name][2] for name in pending if name in shelf.staged}
            pending = [name for name, staged in shelf.staged.items() if staged[2] in epochs]
        for name in pending:
            if "keeps no record" in faults:
                shelf.shown[unique_name()] = shelf.staged.get(name) or shelf.shown[name]
                shelf.shown[name] = (self.mine, 0, 0, [])
            elif name not in shelf.done:
                self._show_one(name)

    def _show_one(self, name: str) -> None:
        shelf = self.shelf
        if "forgets first" in self.faults:
            shelf.done.add(name)
        if "shows row by row" in self.faults:
            for row in shelf.staged[name][3]:
                shelf.shown[unique_name()] = (*shelf.staged[name][:3], [row])
        else:
            shelf.shown[name] = shelf.staged[name]
        shelf.done.add(name)
        del shelf.staged[name]


def failing(faults: Collection[str], *, tidy: bool = True) -> set[str]:
    """Return which checks a sink with these faults does not pass; with `tidy`, also for what it leaves staged."""
    found = set()
    for check in checks(*Promise):
        if check not in NEED_SPARK and not passes(check, faults, tidy):
            found.add(name_of(check))
    return found


def passes(check: Check, faults: Collection[str], tidy: bool) -> bool:
    shelf = Shelf()
    trial = Trial(
        None,  # type: ignore[arg-type]
        make=lambda: Shelving(shelf, faults),
        visible=lambda: [row for staged in shelf.shown.values() for row in staged[3]],
        left=lambda: tidy and shelf.staged,
        frame=frame,
        away=lambda: shelf.being("is_away"),
        mute=lambda: shelf.being("is_mute"),
        crashes=100,
    )
    try:
        check(trial)
    except Exception:
        return False
    return True


def test_a_sink_as_it_should_be_passes() -> None:
    assert not failing(())


@pytest.mark.parametrize(
    ("fault", "notices"),
    [
        ("closes what it never opened", "it_runs_and_closes"),
        ("fails without rows", "an_epoch_without_rows"),
        ("reaches what is away", "a_target_that_is_away_is_caught_up_with"),
        ("forgets what waits", "a_target_that_is_away_is_caught_up_with"),
        ("starts without what waits", "a_target_that_is_away_is_caught_up_with"),
        ("shows again what nobody confirmed", "an_answer_that_is_lost_is_asked_for"),
        ("is one thread's", "commits_come_from_another_thread"),
        ("writes one task", "every_row_of_every_task_is_seen"),
        ("shows at once", "nothing_is_visible_before_its_commit"),
        ("shows all that is staged", "nothing_is_visible_before_its_commit"),
        ("shows all of an epoch", "an_epoch_that_is_written_again_counts_once"),
        ("keeps no record", "a_commit_may_come_again"),
        ("leaves what is staged", "a_restart_shows_what_is_listed_and_nothing_later"),
        ("stages in two steps", "a_crash_anywhere_in_a_write"),
        ("shows row by row", "a_crash_anywhere_in_a_commit_and_in_the_restart"),
        ("forgets first", "a_crash_anywhere_in_a_commit_and_in_the_restart"),
        ("starts unfenced", "a_run_that_was_stopped_while_it_started_takes_nothing_back"),
        ("knows no lives", "lives_and_sinks_share_a_place"),
        ("takes nothing back", "an_older_checkpoint_takes_back_what_came_later"),
        ("gives names again", "an_older_checkpoint_takes_back_what_came_later"),
    ],
)
def test_a_fault_is_noticed(fault: str, notices: str) -> None:
    assert notices in failing({fault})


def test_a_driver_that_was_replaced_is_noticed() -> None:
    """Whatever it staged is gone, unless the restart has left it."""
    assert failing({"commits unfenced", "leaves what is staged"}, tidy=False) >= {"an_older_run_changes_nothing_more"}


def test_who_promises_more_is_asked_more() -> None:
    asked = [checks(), checks(Promise.SEEN), checks(Promise.EXACTLY_ONCE), checks(Promise.LASTING), checks(*Promise)]
    assert all(set(less) < set(more) for less, more in pairwise(asked))
    assert set(checks(Promise.EXACTLY_ONCE)) < set(checks(Promise.TAKES_BACK))


class Locking(sl.sinks.Sink):
    """Counts how far it came, within blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.done, self.lock = 0, threading.Lock()

    def write(self, df: Any, epoch: int) -> None:
        for _ in range(2):
            with (
                self.lock,
            ):
                self.done += 1
                self.done += 1


def test_a_crash_comes_before_each_line_and_holds_nothing() -> None:
    sink, reached = Locking(), []
    with CrashingLines(sink) as whole:
        sink.write(None, 1)
    assert sink.done == 4
    for step in range(whole.count):
        sink = Locking()
        with CrashingLines(sink, step):
            sink.write(None, 1)
            raise AssertionError("no crash")
        assert not sink.lock.locked(), f"a crash at step {step}"
        reached.append(sink.done)
    assert set(reached) == {0, 1, 2, 3, 4}


def test_a_crash_is_no_error_that_a_sink_would_handle() -> None:
    assert not issubclass(Crash, Exception)


class Looking(sl.sinks.memory):
    """Looks whether there are rows before it reads them."""

    def write(self, df: Any, epoch: Any) -> str | None:
        return None if df.isEmpty() else super().write(df, epoch)


class Half(sl.sinks.memory):
    """Reads some of the rows, and stages all the same."""

    def write(self, df: Any, epoch: Any) -> str | None:
        return super().write(df.limit(2), epoch)


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Looking, Half])
def test_rows_that_are_not_read_once_are_noticed(spark: Any, kind: Any) -> None:
    sink = kind()
    with pytest.raises(AssertionError, match="read to their end"):
        rows_are_read_once_and_to_their_end(Trial(spark, make=lambda: sink))
