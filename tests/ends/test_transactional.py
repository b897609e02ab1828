"""Sinks for systems with transactions: targets that are away, that lose answers, that refuse; what waits and for how long."""

from __future__ import annotations

import copy
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.core.errors import ConfigurationError, CorruptionError, FencedError, SinkError, UnavailableError
from strandline.core.ids import Epoch
from strandline.ends import delivery, staged
from strandline.testing.sinks.conformance import Check, Promise, checks, name_of
from strandline.testing.sinks.trial import Crash, Trial, numbers_of
from tests.ends import inprocess
from tests.soak import examples

LEDGERS: dict[str, Ledger] = {}


class Ledger:
    """What a target holds: rows, records and claims, and how it fails."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.marks: dict[tuple[str, int], str] = {}
        self.generations: Counter[str] = Counter()
        self.transactions: list[tuple[int, list[int]]] = []
        self.before: Callable[[], None] = lambda: None
        """Called before a transaction commits."""
        self.after: Callable[[], None] = lambda: None
        """Called when it has, before anybody is told."""
        self.lock = threading.Lock()
        self.silent: set[int] = set()
        """Lanes in which nobody answers."""
        self.bad: set[int] = set()
        """Rows that are refused, each with all others of its transaction."""


class BadRowError(Exception):
    pass


class Kept(sl.sinks.Target):
    """A target in this process, found by its name: it is pickled on its way to tasks."""

    refusing = (BadRowError,)

    def __init__(self, name: str, *, parallel: bool = True) -> None:
        self.name, self.parallel = name, parallel

    def claim(self, writer: sl.sinks.Writer) -> None:
        ledger = LEDGERS[self.name]
        ledger.before()
        if ledger.generations[writer.sink] > writer.generation:
            raise FencedError("claimed by a newer one")
        ledger.generations[writer.sink] = writer.generation

    def connect(self, writer: sl.sinks.Writer, lane: int) -> sl.sinks.Connection:
        return KeptLane(LEDGERS[self.name], writer, lane)


class KeptLane(sl.sinks.Connection):
    def __init__(self, ledger: Ledger, writer: sl.sinks.Writer, lane: int) -> None:
        self.ledger, self.writer, self.lane = ledger, writer, lane

    def reached(self) -> str | None:
        return self.ledger.marks.get((self.writer.sink, self.lane))

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        self.ledger.before()
        if self.lane in self.ledger.silent:
            away()
        with self.ledger.lock:
            if self.ledger.generations[self.writer.sink] > self.writer.generation:
                raise FencedError("claimed by a newer one")
            if self.reached() != since:
                raise sl.errors.ConflictError("another task writes this lane")
            numbers = [n for batch in batches for n in batch["n"].to_pylist()]
            if self.ledger.bad & set(numbers):
                raise BadRowError("no place for a row of these")
            self.ledger.rows += numbers
            self.ledger.transactions.append((self.lane, numbers))
            self.ledger.marks[self.writer.sink, self.lane] = mark
        self.ledger.after()


@pytest.fixture
def ledger(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 0.0)
    LEDGERS[request.node.name] = ledger = Ledger()
    ledger.name = request.node.name  # type: ignore[attr-defined]
    yield ledger
    del LEDGERS[request.node.name]


def trial_of(ledger: Any, *, parallel: bool = True) -> Trial:
    session: Any = inprocess.Session()
    make = lambda: sl.sinks.Transactional(Kept(ledger.name, parallel=parallel))  # noqa: E731
    return Trial(session, make=make, visible=lambda: list(ledger.rows))


def away() -> None:
    raise ConnectionError("nobody listens")


@contextmanager
def taken_away(ledger: Ledger) -> Iterator[None]:
    ledger.before = away
    yield
    ledger.before = lambda: None


@contextmanager
def muted(ledger: Ledger) -> Iterator[None]:
    ledger.after = away
    yield
    ledger.after = lambda: None


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


def waiting_files(trial: Trial) -> list[Path]:
    return [path for path in Path(trial.storage).rglob("*") if path.is_file()]


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


def test_why_rows_wait_quotes_none_of_them(ledger: Any, caplog: Any) -> None:
    def slow() -> None:
        raise TimeoutError("too long\nCOPY results, line 4: a value")

    trial = trial_of(ledger)
    sink = trial.start()
    ledger.before = slow
    assert sink.commit(trial.stage(sink, 1))
    status = sink.status()
    assert status is not None
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


def test_staged_rows_that_are_gone_are_an_error_unless_they_are_on_record(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    sink.commit(pending)
    # Its answer was lost with the driver: the files are gone, and the record says why.
    trial.start(pending, 1)
    sink = trial.start(pending, 1)
    pending = trial.stage(sink, 2)
    for path in waiting_files(trial):
        path.unlink()
    with pytest.raises(CorruptionError, match="sink 'out' of job 'job': staged rows are gone that the target does not"):
        sink.commit(pending)
    with pytest.raises(CorruptionError):
        trial.start(pending, 2)


def test_a_staging_place_that_was_changed_is_named(ledger: Any, tmp_path: Path) -> None:
    trial = trial_of(ledger)
    trial.start()
    trial.make = lambda: sl.sinks.Transactional(Kept(ledger.name), staging=tmp_path / "one")
    sink = trial.start()
    pending = trial.stage(sink, 1)
    trial.make = lambda: sl.sinks.Transactional(Kept(ledger.name), staging=tmp_path / "two")
    with pytest.raises(
        CorruptionError,
        match=rf"were staged in {(tmp_path / 'one').as_uri()}, and the sink now stages in {(tmp_path / 'two').as_uri()}, "
        r"(.|\n)*staging= or checkpoints= of the job was changed\n.*former staging=",
    ):
        trial.start(pending, 1)
    # A place that was moved has what is looked for.
    (tmp_path / "two").rmdir()
    (tmp_path / "one").rename(tmp_path / "two")
    trial.start(pending, 1)
    trial.expect(1)


def test_staged_rows_that_another_task_has_delivered_meanwhile_are_not_missed(ledger: Any, monkeypatch: Any) -> None:
    """A driver that was replaced, or a task that Spark ran twice, may find the files gone that it wants to read."""
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 10.0)
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    read = staged.StagedFile.read

    def late(*given: Any) -> Any:
        monkeypatch.setattr(staged.StagedFile, "read", read)
        sink.commit(pending)
        return read(*given)

    monkeypatch.setattr(staged.StagedFile, "read", late)
    sink.commit(pending)
    trial.expect(1)


def test_staged_rows_that_are_damaged_are_not_written(ledger: Any) -> None:
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    pending = trial.stage(sink, 1, 2)
    path = sorted(waiting_files(trial))[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="sink 'out' of job 'job': staged rows cannot be read") as caught:
        sink.commit(pending)
    assert "its checksum does not match" in str(caught.value)
    assert "drop=" in str(caught.value)
    assert ledger.rows == []


def test_staged_rows_in_the_place_of_others_are_not_written(ledger: Any) -> None:
    """Each whole, as after a copy that mixed them up: both would be written, into the wrong lanes."""
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    one, other = sorted(waiting_files(trial))[:2]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    with pytest.raises(CorruptionError, match="staged rows are not those that the checkpoint lists"):
        sink.commit(pending)
    assert not set(ledger.rows) & set(numbers_of(1)[:4])


def test_an_older_run_deletes_nothing_of_a_newer_one(ledger: Any) -> None:
    trial = trial_of(ledger)
    older = trial.open()
    newer = trial.start()
    pending = trial.stage(newer, 1)
    with pytest.raises(FencedError):
        older.recover([], Epoch(0), fresh=True)
    newer.commit(pending)
    trial.expect(1)


def letters(directory: Path) -> list[Any]:
    found = [json.loads(line) for path in sorted(directory.glob("*")) for line in path.read_text().splitlines()]
    return [json.loads(letter["event"])["n"] for letter in found]


@examples(60)
@given(
    bad=st.sets(st.integers(0, 17)), crashes=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=4),
    parallel=st.booleans(), tasks=st.integers(1, 4), rows=st.integers(1, 20),
)  # fmt: skip
def test_refused_rows_are_dead_letters_and_all_others_are_there(
    bad: set[int], crashes: list[tuple[bool, int]], parallel: bool, tasks: int, rows: int
) -> None:
    """Each once, and in order, wherever the driver dies in between; its answers may be lost."""
    LEDGERS["refusing"] = ledger = Ledger()
    ledger.name = "refusing"  # type: ignore[attr-defined]
    trial = trial_of(ledger, parallel=parallel)
    aside = Path(trial.storage) / "aside"
    target = Kept("refusing", parallel=parallel)
    target.max_rows = rows
    made = sl.sinks.Transactional(target, on_error="dead-letter", dead_letters=aside)
    sink = trial.start(sink=made)
    pending = [text for epoch in (1, 2, 3) for text in trial.stage(sink, epoch, tasks=tasks)]
    numbers = [n for epoch in (1, 2, 3) for n in numbers_of(epoch)]
    ledger.bad = {numbers[at] for at in bad}
    for is_before, at in crashes:
        count = 0

        def crash(at: int = at) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise Crash

        ledger.before, ledger.after = (crash, lambda: None) if is_before else (lambda: None, crash)
        with suppress(Crash):
            sink.commit(pending)
        ledger.before = ledger.after = lambda: None
        with suppress(Crash):
            sink = trial.start(pending, 3, made)
    sink = trial.start(pending, 3, made)
    assert Counter(ledger.rows) == Counter(set(numbers) - ledger.bad)
    assert Counter(letters(aside)) == Counter(ledger.bad)
    in_lanes = [[n for lane, found in ledger.transactions if lane == one for n in found] for one in range(tasks)]
    assert all(found == sorted(found) for found in in_lanes)
    assert all(path.parent == aside for path in waiting_files(trial))


def test_a_job_may_leave_out_what_is_refused_and_counts_it(ledger: Any, caplog: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start(sink=sl.sinks.Transactional(Kept(ledger.name), on_error="skip"))
    ledger.bad = {numbers_of(1)[2]}
    assert sink.commit(trial.stage(sink, 1)) == []
    assert len(ledger.rows) == 5
    told = sink.status()
    assert told is not None
    assert (told.rows, told.refused_rows, told.waiting_rows) == (5, 1, 0)
    assert "sink 'out' of job 'job': the target refused 1 rows: they are left out" in caplog.text


@pytest.mark.parametrize("rows", [0, None])
def test_a_transaction_without_rows_would_never_end_anything(monkeypatch: pytest.MonkeyPatch, rows: Any) -> None:
    monkeypatch.setattr(Kept, "max_rows", rows)
    with pytest.raises(ConfigurationError, match=f"max_rows of the target Kept is {rows}, expected 1 or more"):
        sl.sinks.Transactional(Kept("x"))


def test_what_only_the_driver_reaches_no_task_writes_to(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.spark.sinks.transactional._SMALL_BYTES", 0)
    monkeypatch.setattr(Kept, "on_driver", True)
    trial = trial_of(ledger)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    monkeypatch.setattr(inprocess.Session, "range", None)
    assert sink.commit(pending) == []
    trial.expect(1)


def test_a_target_that_was_put_back_is_not_written_to(ledger: Any) -> None:
    """What lies between is nobody's to write again: neither the run nor the next one may go on behind a hole."""
    trial = trial_of(ledger)
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    older = (list(ledger.rows), dict(ledger.marks))
    sink.commit(trial.stage(sink, 2))
    third = trial.stage(sink, 3)
    newer = (list(ledger.rows), dict(ledger.marks))
    ledger.rows, ledger.marks = older
    with pytest.raises(CorruptionError, match="less on record than it had: it was put back"):
        sink.commit(third)
    with pytest.raises(CorruptionError, match="less on record than it had"):
        trial.start(third, 3)
    ledger.marks = {}
    with pytest.raises(CorruptionError, match="lane 0 is at nothing"):
        trial.start(third, 3)
    assert not set(ledger.rows) & set(numbers_of(3))
    ledger.rows, ledger.marks = newer
    trial.start(third, 3)
    trial.expect(1, 2, 3)


def test_a_lane_without_rows_is_asked_at_a_start(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    reached = sink.reached()
    assert reached is not None
    trial.start([reached], 1)
    del ledger.marks[next(key for key in ledger.marks if key[1] == 2)]
    with pytest.raises(CorruptionError, match=r"less on record than it had.*lane 2 is at nothing"):
        trial.start([reached], 1)
    with pytest.raises(CorruptionError, match="lane 2 is at nothing"):
        trial.start([*trial.stage(sink, 2, tasks=1), reached], 2)


def test_a_job_whose_checkpoint_directory_was_set_back_does_not_take_later_marks_for_its_own(ledger: Any) -> None:
    """Its generations count again from an older one: epochs of the same number have other rows."""
    trial = trial_of(ledger)
    trial.start()
    sink = trial.start()
    first = trial.stage(sink, 1)
    sink.commit(first)
    trial.generation = 1
    sink = trial.start()
    with pytest.raises(SinkError, match="rows of generation 2 of the job, and generation 2 begins"):
        sink.commit(trial.stage(sink, 1, version=1))
    sink = trial.start(first, 1)
    sink.commit(trial.stage(sink, 2, 3))
    trial.generation = 2
    with pytest.raises(SinkError, match="the checkpoint directory was set back"):
        trial.start([*first, str(sink.reached())], 1)
    sink = trial.start(first, 1)
    sink.commit(trial.stage(sink, 2, version=1))
    trial.expect(1, 2, 3, (2, 1))


def test_a_target_may_be_ahead_of_an_older_checkpoint(ledger: Any) -> None:
    trial = trial_of(ledger)
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    second = trial.stage(sink, 2)
    sink.commit(second)
    sink.commit(trial.stage(sink, 3))
    sink = trial.start(second, 2)
    sink.commit(trial.stage(sink, 3, version=1))
    assert set(numbers_of(3)) <= set(ledger.rows)
