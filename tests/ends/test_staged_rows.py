"""Rows that are staged for a target and are gone, damaged or refused; and targets that are behind or ahead of their checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.checkpoint.folder import Folder
from strandline.core.errors import ConfigurationError, CorruptionError, FencedError, SinkError
from strandline.core.ids import Epoch
from strandline.ends import staged
from strandline.ends.readahead import ReadAhead
from strandline.testing.sinks.trial import Crash, numbers_of
from tests.ends import inprocess
from tests.ends.ledgers import LEDGERS, Kept, Ledger, trial_of, waiting_files
from tests.soak import examples


@pytest.fixture(autouse=True)
def read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read as they are delivered, as after a start: test_read_ahead.py has those that were read before."""
    monkeypatch.setattr(ReadAhead, "add", lambda self, files: None)


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
    with pytest.raises(
        CorruptionError, match="sink 'out' of job 'job': staged rows are missing that the target has no record of"
    ):
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
        match=rf"{(tmp_path / 'two').as_uri()} does not have .*, which was staged in {(tmp_path / 'one').as_uri()} "
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


def test_staged_rows_that_were_damaged_on_the_way_are_read_again(ledger: Any, monkeypatch: Any) -> None:
    trial = trial_of(ledger, parallel=False)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    get, damaged = Folder.get, []

    def damage(self: Folder, path: str) -> bytes:
        data = get(self, path)
        if path in damaged:
            return data
        damaged.append(path)
        return data[:100] + bytes([data[100] ^ 1]) + data[101:]

    monkeypatch.setattr(Folder, "get", damage)
    sink.commit(pending)
    trial.expect(1)
    assert damaged


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
