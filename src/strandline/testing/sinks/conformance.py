"""Conformance checks for sinks, by the promises of a sink.

    @pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING), ids=name_of)
    def test_my_sink(check, spark, tmp_path):
        check(Trial(spark, make=lambda: MySink(tmp_path), visible=lambda: numbers_in(tmp_path)))

Each check needs a separate place, and a session that retries tasks: `local[2,4]`, not `local[2]`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum
from pathlib import Path

from strandline.core.errors import UnavailableError
from strandline.core.ids import Epoch
from strandline.spark.sinks.base import Sink
from strandline.testing.sinks.trial import CrashingLines, Trial, failing_once, noting_ends

__all__ = ["Check", "Promise", "Trial", "checks", "name_of"]

Check = Callable[[Trial], None]
"""Raises AssertionError if a sink does not keep a promise."""


class Promise(Enum):
    """A promise of a sink about its rows. A sink without promises must only run."""

    SEEN = "every row is visible at least once when its epoch is committed"
    EXACTLY_ONCE = "and not before; exactly once after any crash: `visibility` is 'checkpoint'"
    LASTING = "staged and visible rows outlive their driver, in a place for several drivers, jobs and sinks"
    WAITS = "rows wait while the target is unavailable, and are written when it is back; needs `away` of the trial"
    TAKES_BACK = "a restore to an earlier checkpoint removes the visible rows of later ones"


_CHECKS: list[tuple[Promise | None, Check]] = []


def checks(*promises: Promise) -> list[Check]:
    """Return the checks of a sink with these promises. Later promises include the first ones."""
    kept = {None, *promises}
    if kept & {Promise.LASTING, Promise.WAITS, Promise.TAKES_BACK}:
        kept.add(Promise.EXACTLY_ONCE)
    if Promise.EXACTLY_ONCE in kept:
        kept.add(Promise.SEEN)
    return [check for needed, check in _CHECKS if needed in kept]


def name_of(check: Check) -> str:
    """Return the name of a check, for a test's id."""
    return check.__name__


def _needs(promise: Promise | None) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        _CHECKS.append((promise, check))
        return check

    return add


# -- every sink


@_needs(None)
def it_runs_and_closes(trial: Trial) -> None:
    """It closes also if it was never opened, or twice: a run may end before it begins."""
    trial.make().close()
    sink = trial.start()
    sink.commit([])
    sink.commit(trial.stage(sink, 1, 2))
    sink.close()
    sink.close()


@_needs(None)
def an_epoch_without_rows(trial: Trial) -> None:
    """No rows are visible, and nothing stays staged."""
    sink = trial.start()
    nothing = trial.rows(1).where("n < 0")
    pending = [*trial.write(sink, 1, nothing), *trial.write(sink, 2, nothing)]
    sink.commit(pending)
    trial.expect()
    trial.start(pending, 2)
    trial.expect()


@_needs(None)
def rows_are_read_once_and_to_their_end(trial: Trial) -> None:
    """The rows are read once, as an operator updates state then; with `reads_once = False` the engine caches them."""
    sink = trial.start()
    with tempfile.TemporaryDirectory(prefix="strandline-") as directory:
        trial.write(sink, 1, noting_ends(trial.rows(1), Path(directory)))
        read = sorted(path.name.partition("-")[0] for path in Path(directory).iterdir())
    assert read == ["0", "1", "2"] or (not sink.reads_once and read), f"partitions that were read to their end: {read}"


# -- SEEN


@_needs(Promise.SEEN)
def every_row_of_every_task_is_seen(trial: Trial) -> None:
    """With one task, and with many of which some have no rows; the same object continues after its run fails."""
    sink = trial.start()
    pending = [*trial.stage(sink, 1), *trial.stage(sink, 2, tasks=1)]
    sink.commit(pending)
    sink.close()
    sink = trial.start(pending, 2, sink)
    sink.commit(trial.stage(sink, 3, tasks=8))
    trial.expect(1, 2, 3, at_least=sink.visibility == "epoch")


@_needs(Promise.SEEN)
def rows_of_a_task_that_fails_are_seen(trial: Trial) -> None:
    """The task fails after its last row, and Spark retries it."""
    sink = trial.start()
    with tempfile.TemporaryDirectory(prefix="strandline-") as directory:
        marker = Path(directory) / "failed"
        pending = trial.write(sink, 1, failing_once(trial.rows(1), marker))
        assert marker.exists(), "write has not read all rows"
    sink.commit(pending)
    trial.expect(1, at_least=sink.visibility == "epoch")
    trial.start(pending, 1)


@_needs(Promise.SEEN)
def commits_come_from_another_thread(trial: Trial) -> None:
    """Another thread than the one that opened the sink commits while the next epoch is written."""
    sink = trial.start()
    pending = trial.stage(sink, 1)
    with ThreadPoolExecutor(1) as other:
        for epoch in (2, 3):
            committing = other.submit(sink.commit, pending)
            pending = trial.stage(sink, epoch)
            committing.result()
        other.submit(sink.commit, pending).result()
    trial.expect(1, 2, 3, at_least=sink.visibility == "epoch")


# -- EXACTLY_ONCE


@_needs(Promise.EXACTLY_ONCE)
def nothing_is_visible_before_its_commit(trial: Trial) -> None:
    """A commit makes visible only the rows that it lists, the first and later ones."""
    sink = trial.start()
    assert sink.visibility == "checkpoint", f"visibility is {sink.visibility!r}, expected 'checkpoint'"
    first, second = trial.stage(sink, 1), trial.stage(sink, 2)
    trial.expect()
    sink.commit(first)
    trial.expect(1)
    trial.stage(sink, 3)
    sink.commit(second)
    trial.expect(1, 2)


@_needs(Promise.EXACTLY_ONCE)
def a_commit_may_come_again(trial: Trial) -> None:
    """A checkpoint that was triggered during a commit lists the same rows, and more."""
    sink = trial.start()
    pending = trial.stage(sink, 1, 2)
    sink.commit(pending)
    sink.commit(pending)
    sink.commit([])
    trial.expect(1, 2)
    sink.commit([*pending, *trial.stage(sink, 3)])
    trial.expect(1, 2, 3)
    fourth = trial.stage(sink, 4)
    sink.commit([*fourth, *fourth])
    trial.start([*fourth, *fourth], 4)
    trial.expect(1, 2, 3, 4)


@_needs(Promise.EXACTLY_ONCE)
def a_restart_shows_what_is_listed_and_nothing_later(trial: Trial) -> None:
    """Any number of restarts does, and epochs are replayed with other rows."""
    sink = trial.start()
    trial.stage(sink, 1, 2)
    # Without a checkpoint, none of these rows count.
    sink = trial.start()
    trial.expect()
    pending = trial.stage(sink, 1, version=1)
    pending += trial.stage(sink, 2, version=1)
    trial.stage(sink, 3)
    for _ in range(3):
        sink = trial.start(pending, 2)
        trial.expect((1, 1), (2, 1))
    sink.commit([*pending, *trial.stage(sink, 3, version=1)])
    trial.expect((1, 1), (2, 1), (3, 1))


@_needs(Promise.EXACTLY_ONCE)
def an_epoch_that_is_written_again_counts_once(trial: Trial) -> None:
    """The operator discarded the first attempt: no checkpoint lists the rows that it staged."""
    sink = trial.start()
    trial.stage(sink, 1)
    pending = trial.stage(sink, 1, version=1)
    sink.commit(pending)
    trial.expect((1, 1))
    trial.start(pending, 1)
    trial.expect((1, 1))


@_needs(Promise.EXACTLY_ONCE)
def a_crash_anywhere_in_a_write(trial: Trial) -> None:
    """No row of the epoch is visible or stays staged; the epoch is replayed with other rows."""
    sink = trial.start()
    pending, epoch = trial.stage(sink, 1), 1
    sink.commit(pending)
    with CrashingLines(sink) as whole:
        trial.stage(sink, 2, version=1)
    for moment in trial.moments(whole.count):
        sink = trial.start(pending, epoch)
        with CrashingLines(sink, moment):
            trial.stage(sink, epoch + 1, version=1)
        sink = trial.start(pending, epoch)
        trial.expect(*range(1, epoch + 1))
        epoch += 1
        pending = trial.stage(sink, epoch)
        sink.commit(pending)
    trial.expect(*range(1, epoch + 1))


@_needs(Promise.EXACTLY_ONCE)
def a_crash_anywhere_in_a_commit_and_in_the_restart(trial: Trial) -> None:
    """Part of the listed rows are visible: a restart shows the rest, also after a restart that crashed."""
    sink = trial.start()
    pending, epoch = trial.stage(sink, 1, 2), 2
    with CrashingLines(sink) as commit:
        sink.commit(pending)
    with CrashingLines(sink) as restart:
        trial.start(pending, epoch, sink)
    for moment, another in zip(trial.moments(commit.count), reversed([*trial.moments(restart.count)]), strict=False):
        sink = trial.start(pending, epoch)
        pending = trial.stage(sink, epoch + 1, epoch + 2)
        epoch += 2
        with CrashingLines(sink, moment):
            sink.commit(pending)
        trial.expect_none_twice()
        with CrashingLines(sink, another):
            trial.start(pending, epoch)
        trial.expect_none_twice()
        trial.start(pending, epoch)
        trial.expect(*range(1, epoch + 1))


# -- LASTING


@_needs(Promise.LASTING)
def an_older_run_changes_nothing_more(trial: Trial) -> None:
    """It was paused, and continues after another run has taken over. It may get any error."""
    older = trial.start()
    first, second = trial.stage(older, 1), trial.stage(older, 2)
    older.commit(first)
    newer = trial.start(first, 1)
    with suppress(Exception):
        older.commit([*first, *second])
    trial.expect(1)
    pending = trial.stage(newer, 2, version=1)
    with suppress(Exception):
        trial.stage(older, 2, version=2)
    newer.commit(pending)
    trial.expect(1, (2, 1))
    with suppress(Exception):
        older.commit(second)
    trial.expect(1, (2, 1))


@_needs(Promise.LASTING)
def a_run_that_was_stopped_while_it_started_takes_nothing_back(trial: Trial) -> None:
    """Another run has shown and staged more before it continues."""
    sink = trial.start()
    first = trial.stage(sink, 1)
    sink.commit(first)
    late = trial.open()
    newer = trial.start(first, 1)
    second, third = trial.stage(newer, 2), trial.stage(newer, 3)
    newer.commit(second)
    with suppress(Exception):
        late.recover(first, Epoch(1), fresh=False)
        late.commit(trial.stage(late, 2, version=1))
    trial.expect(1, 2)
    newer.commit(third)
    trial.expect(1, 2, 3)


@_needs(Promise.LASTING)
def lives_and_sinks_share_a_place(trial: Trial) -> None:
    """A new life of a job does not touch rows of the last one, nor a sink those of another."""
    mine = trial.start()
    first, second = trial.stage(mine, 1), trial.stage(mine, 2)
    mine.commit(first)
    for version, (life, name) in enumerate([("another life", "out"), ("life", "another sink")], 1):
        other = trial.open(life=life, name=name)
        other.recover([], Epoch(0), fresh=True)
        other.commit(trial.stage(other, 1, version=version))
    trial.expect(1, (1, 1), (1, 2))
    mine.commit(second)
    trial.start(second, 2)
    trial.expect(1, 2, (1, 1), (1, 2))


# -- WAITS


@_needs(Promise.WAITS)
def a_target_that_is_away_is_caught_up_with(trial: Trial) -> None:
    """The job continues, and may be restarted; a restart waits until the rows that its checkpoint lists are written."""
    sink = trial.start()
    first = trial.stage(sink, 1)
    sink.commit(first)
    second = trial.stage(sink, 2)
    with trial.away():
        left = _left(sink, second)
        third = trial.stage(sink, 3)
        left = _left(sink, [*left, *third])
        try:
            trial.start(left, 3)
        except UnavailableError:
            pass
        else:
            raise AssertionError(
                "a run began before all rows of its checkpoint were written: expected UnavailableError"
            )
    trial.expect(1)
    sink = trial.start(left, 3)
    trial.expect(1, 2, 3)
    fourth = trial.stage(sink, 4)
    with trial.away():
        left = _left(sink, fourth)
    assert not sink.commit([*left, *trial.stage(sink, 5)])
    trial.expect(1, 2, 3, 4, 5)


def _left(sink: Sink, pending: Sequence[str]) -> Sequence[str]:
    left = sink.commit(pending)
    assert left, "commit returned nothing, expected the committables that it could not write"
    assert set(left) <= set(pending), f"commit returned {left!r}, expected some of {pending!r}"
    return left


@_needs(Promise.WAITS)
def an_answer_that_is_lost_is_asked_for(trial: Trial) -> None:
    """The target has committed and the answer is lost: rows count once, in the same run and after a restart."""
    sink = trial.start()
    first = trial.stage(sink, 1)
    with trial.mute(), suppress(Exception):
        sink.commit(first)
    trial.expect_none_twice()
    sink.commit(first)
    trial.expect(1)
    second = trial.stage(sink, 2)
    with trial.mute(), suppress(Exception):
        sink.commit(second)
    trial.start(second, 2)
    trial.expect(1, 2)


# -- TAKES_BACK


@_needs(Promise.TAKES_BACK)
def an_older_checkpoint_takes_back_what_came_later(trial: Trial) -> None:
    """Also if the restart crashes at any line: the same epochs are replayed with other rows."""
    sink = trial.start()
    older = trial.stage(sink, 1, 2)
    sink.commit(older)
    sink.commit([*older, *trial.stage(sink, 3, 4)])
    trial.stage(sink, 5)
    again = trial.make()
    with CrashingLines(again) as whole:
        sink = trial.start(older, 2, again)
    trial.expect(1, 2)
    for version, moment in enumerate(trial.moments(whole.count), 1):
        sink.commit(trial.stage(sink, 3, version=version))
        trial.expect(1, 2, (3, version))
        again = trial.make()
        with CrashingLines(again, moment):
            trial.start(older, 2, again)
        sink = trial.start(older, 2)
        trial.expect(1, 2)
