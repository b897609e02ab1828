"""Sinks for systems with transactions: targets that are away, that lose answers, that refuse; what waits and for how long."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.core.errors import FencedError, SinkError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends import delivery, staged
from strandline.spark.sinks import transactional
from strandline.testing.sinks.conformance import Check, Promise, checks, name_of
from tests.ends import inprocess
from tests.ends.ledgers import Kept, KeptLane, away, muted, taken_away, trial_of, waiting_files


@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING, Promise.WAITS), ids=name_of)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_target_in_memory(ledger: Any, check: Check, parallel: bool) -> None:
    trial = trial_of(ledger, parallel=parallel)
    trial.away, trial.mute = lambda: taken_away(ledger), lambda: muted(ledger)
    check(trial)


@pytest.mark.parametrize("lanes", [(True, False), (False, True)], ids=["to one lane", "to a lane a partition"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_target_may_have_other_lanes_at_the_next_start(
    ledger: Any, lanes: tuple[bool, bool], crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = (trial_of(ledger, parallel=parallel) for parallel in lanes)
    after.storage = before.storage
    sink = before.start()
    pending = before.stage(sink, 1)
    if crash:
        with monkeypatch.context() as patched:
            patched.setattr("strandline.core.failpoints.hit", lambda name: away() if name == "sink.delivered" else None)
            with suppress(ConnectionError):
                sink.commit(pending)
    else:
        assert not sink.commit(pending)
    after.generation = 1
    sink = after.start(pending, 1)
    assert not sink.commit(after.stage(sink, 2))
    after.expect(1, 2)
    assert not waiting_files(after)


def test_what_an_older_run_has_staged_comes_before_what_is_newer_in_other_lanes(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    older = trial.stage(sink, 1)
    sink = trial.open()
    newer = trial.stage(sink, 2, tasks=1)
    ledger.silent = {1}
    left = sink.commit([*newer, *older])
    assert len(left or ()) == 2
    ledger.silent = set()
    assert not sink.commit(left or ())
    assert [number // 1_000_000 for number in ledger.rows] == [1] * 6 + [2] * 6


def test_rows_wait_for_a_target_that_is_away_and_come_in_order(ledger: Any, caplog: Any) -> None:
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    first = trial.stage(sink, 1)
    ledger.before = away
    assert sink.commit(first) == first
    second = trial.stage(sink, 2)
    assert sink.commit([*first, *second]) == [*first, *second]
    assert [r.levelname for r in caplog.records] == ["WARNING"], "one line, not one for each checkpoint"
    assert "nobody listens" in caplog.text
    trial.expect()
    ledger.before = lambda: None
    third = trial.stage(sink, 3)
    assert sink.commit([*first, *second, *third]) == []
    trial.expect(1, 2, 3)
    assert ledger.rows == sorted(ledger.rows)
    assert waiting_files(trial) == []


def test_rows_that_a_rollback_gives_up_are_not_said_to_be_delivered(ledger: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    trial = trial_of(ledger)
    sink = trial.start()
    ledger.before = away
    assert sink.commit(trial.stage(sink, 1))
    trial.open(sink)
    assert sink.recover([], Epoch(0), fresh=False) == []
    assert "no rows wait any more" in caplog.text
    assert "delivered" not in caplog.text


def test_what_has_waited_long_is_delivered_in_parts(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional, "_TASKS_AT_ONCE", 2)
    sizes: list[int] = []
    run = transactional.Transactional._run

    def counted(sink: Any, delivery: Any, lanes: Any) -> Any:
        sizes.append(sum(map(len, lanes.values())))
        return run(sink, delivery, lanes)

    monkeypatch.setattr(transactional.Transactional, "_run", counted)
    trial = trial_of(ledger)
    sink = trial.start()
    pending = [text for epoch in (1, 2, 3) for text in trial.stage(sink, epoch)]
    # A lane in which nobody answers holds up no other one, though its rows alone are more than a part.
    ledger.silent = {0}
    left = list(sink.commit(pending[::-1]) or ())
    assert len(left) == 3
    ledger.silent = set()
    assert not sink.commit(left)
    trial.expect(1, 2, 3)
    assert max(sizes) == 2


def test_tasks_do_not_wait_for_a_target_one_after_the_other(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would keep the cores from the job's epochs, for longer the more lanes there are."""
    monkeypatch.setattr(transactional, "_SMALL_BYTES", 0)
    trial = trial_of(ledger)
    sink = trial.start()
    assert not sink.commit(trial.stage(sink, 1, tasks=6))
    pending = trial.stage(sink, 2, tasks=6)
    sink.patience_s, asked = 0.3, []

    def down(lane: KeptLane) -> None:
        asked.append(lane.lane)
        away()

    with monkeypatch.context() as patched:
        patched.setattr(KeptLane, "reached", down)
        assert len(sink.commit(pending) or ()) == 6
        assert len(asked) > 6
        assert len(set(asked)) == 6
        assert sorted(map(asked.count, set(asked)))[:5] == [1] * 5
        # Rows are late: the driver asks, and no task begins.
        asked.clear()
        patched.setattr(inprocess.Frame, "collect", lambda frame: pytest.fail("a task has begun"))
        assert len(sink.commit(pending) or ()) == 6
        assert sorted(asked) == list(range(6))
    assert not sink.commit(pending)
    trial.expect(1, 2)


def test_a_lane_that_hangs_keeps_no_others_from_being_asked_for_long(
    ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "_THREADS", 1)
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1, tasks=6)
    ledger.before = away
    assert sink.commit(pending)
    ledger.before, asked = lambda: None, []

    def hang(lane: KeptLane) -> None:
        asked.append(lane.lane)
        time.sleep(0.2)
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(KeptLane, "reached", hang)
        sink.patience_s = 0.1
        for commits in range(1, 50):
            assert len(sink.commit(pending) or ()) == 6
            assert len(asked) == commits
            if len(set(asked)) > 2:
                break
    assert len(set(asked)) > 2
    assert not sink.commit(pending)
    trial.expect(1)


def test_why_rows_wait_quotes_none_of_them(ledger: Any, caplog: Any) -> None:
    def slow() -> None:
        raise TimeoutError("too long\nCOPY results, line 4: a value")

    trial = trial_of(ledger)
    sink = trial.start()
    ledger.before = slow
    assert sink.commit(trial.stage(sink, 1))
    status = sink.status()
    assert status.failure == "TimeoutError: too long"
    assert "a value" not in caplog.text


def test_lanes_that_are_through_do_not_wait_for_the_others(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    ledger.before = lambda: away() if ledger.transactions else None
    left = sink.commit(pending)
    assert 0 < len(left) < len(pending)
    assert len(waiting_files(trial)) == len(left)
    ledger.before = lambda: None
    assert sink.commit(left) == []
    trial.expect(1)


def test_a_job_begins_only_when_the_target_has_what_the_checkpoint_lists(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    ledger.before = away
    with pytest.raises(UnavailableError, match=r"the target does not answer, and rows .*: nobody listens"):
        trial.start(pending, 1)
    ledger.before = lambda: None
    trial.start(pending, 1)
    trial.expect(1)
    assert waiting_files(trial) == []


def test_a_start_waits_for_a_target_that_is_away_for_a_moment(ledger: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 10.0)
    trial = trial_of(ledger)
    failures = iter([away, away])
    ledger.before = lambda: next(failures, lambda: None)()
    sink = trial.start()
    assert next(failures, None) is None
    assert sink.commit(trial.stage(sink, 1)) == []
    trial.expect(1)


def test_a_start_outlasts_an_older_driver_that_writes_while_it_claims(ledger: Any, monkeypatch: Any) -> None:
    """Kafka's older driver that was fenced takes a lane again, before it finds there that it was replaced."""
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 10.0)

    def taken() -> None:
        raise sl.errors.ConflictError("another driver writes in its place")

    trial = trial_of(ledger)
    pending = trial.stage(trial.start(), 1)
    failures = iter([taken, taken])
    ledger.before = lambda: next(failures, lambda: None)()
    trial.start(pending, 1)
    trial.expect(1)


def test_a_run_that_goes_on_while_the_target_is_away_claims_it_before_the_first_row(ledger: Any) -> None:
    """A restart, a rescale and a rollback need storage alone; what was staged before, and since, comes in order."""
    trial = trial_of(ledger)
    sink = trial.start()
    first = trial.stage(sink, 1)
    older = copy.copy(sink)
    ledger.before = away
    assert sink.commit(first) == first
    trial.open(sink)
    assert sink.recover(first, Epoch(1), fresh=False) == first
    assert sink.status().waiting_rows
    # Tasks of the run before may go on: what they write is listed, and nobody writes it again.
    ledger.before = lambda: None
    assert older.commit(first[:1]) == []
    ledger.before = away
    second = trial.stage(sink, 2)
    assert sink.commit([*first, *second]) == [*first, *second]
    trial.open(sink)
    assert sink.recover([*first, *second], Epoch(2), fresh=False) == [*first, *second]
    third = trial.stage(sink, 3)
    ledger.before = lambda: None
    assert sink.commit([*first, *second, *third]) == []
    trial.expect(1, 2, 3)
    assert not sink.status().waiting_rows
    # It is behind what is on record, and claimed: nothing that it has staged since can show.
    with suppress(FencedError):
        older.commit(trial.stage(older, 4))
    trial.expect(1, 2, 3)
    trial.start([], 3, sink=sink)
    assert waiting_files(trial) == []


def test_a_program_that_starts_a_job_for_the_second_time_needs_the_target_again(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    # As check_upgrade() does, whether or not the job runs.
    sink.try_out(trial.rows(1))
    with taken_away(ledger):
        trial.open(sink)
        assert sink.recover(pending, Epoch(1), fresh=False)
        sink._begin_anew()
        trial.open(sink)
        with pytest.raises(UnavailableError, match="and rows of the last checkpoint wait for it"):
            sink.recover(pending, Epoch(1), fresh=False)
    trial.start(pending, 1, sink=sink)
    trial.expect(1)


def test_a_target_that_refuses_its_claim_when_it_is_back_ends_the_run(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    ledger.before = away
    trial.open(sink)
    assert sink.recover(pending, Epoch(1), fresh=False) == pending
    ledger.before = lambda: None
    ledger.generations.update(dict.fromkeys(ledger.generations, 99))
    with pytest.raises(FencedError):
        sink.commit(pending)
    trial.expect()


@pytest.mark.parametrize("parallel", [True, False])
def test_an_answer_that_is_lost_is_asked_for(ledger: Any, parallel: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 10.0)
    trial = trial_of(ledger, parallel=parallel)
    sink = trial.start()
    lost: list[int] = []

    def lose() -> None:
        if len(lost) < 2:
            lost.append(1)
            away()

    ledger.after = lose
    assert sink.commit(trial.stage(sink, 1, 2)) == []
    trial.expect(1, 2)
    assert len(lost) == (2 if parallel else 1)


def test_what_the_target_refuses_for_good_names_it_and_rows_stay(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)

    def refuse() -> None:
        raise ValueError("n must be positive, got -5")

    ledger.before = refuse
    with pytest.raises(SinkError, match="sink 'out' of job 'job': the target refused: ValueError: n must") as caught:
        sink.commit(pending)
    assert "-5" not in caught.value.discreet
    ledger.before = lambda: None
    trial.start(pending, 1)
    trial.expect(1)


def test_transactions_are_bounded_and_whole(ledger: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(staged, "_PIECE_BYTES", 1)
    monkeypatch.setattr(Kept, "max_rows", 4)
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    sink.commit(trial.stage(sink, 1, 2, 3, tasks=6))
    trial.expect(1, 2, 3)
    assert [len(numbers) for _, numbers in ledger.transactions] == [4, 4, 4, 4, 2]
    assert ledger.rows == sorted(ledger.rows)


@pytest.mark.parametrize(("starts", "parts"), [(False, 16), (True, 16), (False, 1)])
def test_what_waits_for_a_target_that_is_too_slow_goes_in_small_transactions(
    ledger: Any, monkeypatch: Any, starts: bool, parts: int
) -> None:
    """It ends transactions that take long: one that is tried again as it was never comes through."""
    monkeypatch.setattr(delivery, "_FEWEST_ROWS", 1)
    monkeypatch.setattr(delivery, "_PARTS", parts)
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    write = KeptLane.write

    def slow(lane: KeptLane, batches: Sequence[pa.RecordBatch], *more: Any) -> None:
        if sum(batch.num_rows for batch in batches) > 1:
            raise TimeoutError("the transaction took too long")
        write(lane, batches, *more)

    monkeypatch.setattr(KeptLane, "write", slow)
    if starts:
        sink = trial.start(pending, 1)
    else:
        assert sink.commit(pending) == pending
        # How slow it is, is not known: there is progress all the same.
        for _ in range(6 if parts == 1 else 1):
            left = sink.commit(pending)
        assert left == []
    monkeypatch.undo()
    sink.commit(trial.stage(sink, 2))
    trial.expect(1, 2)
    assert len(ledger.transactions[-1][1]) > 1


def test_no_transaction_is_larger_than_the_target_has_it(ledger: Any, monkeypatch: Any) -> None:
    """Also of rows that were staged together, and where a run begins with them."""
    monkeypatch.setattr(Kept, "max_rows", 2)
    trial = trial_of(ledger, parallel=False)
    trial.start(trial.stage(trial.start(), 1, tasks=1), 1)
    trial.expect(1)
    assert {len(numbers) for _, numbers in ledger.transactions} == {2}


def test_another_task_at_work_in_a_lane_is_waited_for(ledger: Any, monkeypatch: Any) -> None:
    """Spark may run a task of a commit twice at once: each row is there once all the same."""
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 10.0)
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    pending = trial.stage(sink, 1, 2)
    both = threading.Barrier(2)
    met: list[int] = []

    def meet() -> None:
        if len(met) < 2:
            met.append(1)
            both.wait(10)

    ledger.before = meet
    others = [threading.Thread(target=sink.commit, args=(pending,)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join(20)
    trial.expect(1, 2)
