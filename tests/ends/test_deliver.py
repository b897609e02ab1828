"""Delivery by a function: every row, at least once, by a name that stays; what is tried again, and what is set aside."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, CorruptionError, FencedError, SinkError
from strandline.core.ids import Epoch
from strandline.ends.rejected import RejectedRows
from strandline.ends.target import Rows, Writer
from strandline.storage.place import Place
from strandline.testing.sinks.conformance import Check, Promise, checks, name_of
from strandline.testing.sinks.trial import Trial, numbers_of
from tests.ends import inprocess

CALLS: list[tuple[list[int], list[str]]] = []
RAISING: list[Exception] = []
"""What the next calls raise."""
BAD: set[int] = set()
AT_WORK = threading.Lock()
LATE: list[Any] = []
"""What happens within the next call, before it returns."""


def keep(rows: list[Any], ids: list[str]) -> None:
    if RAISING:
        raise RAISING.pop(0)
    if BAD & {row.n for row in rows}:
        raise ValueError(f"no place for {rows}")
    CALLS.append(([row.n for row in rows], ids))
    for each in list(LATE):
        each(rows, ids)


def seen() -> list[int]:
    """What a receiver has that knows each id once."""
    return list({name: n for numbers, ids in CALLS for n, name in zip(numbers, ids, strict=True)}.values())


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 0.0)
    CALLS.clear()
    RAISING.clear()
    BAD.clear()
    LATE.clear()


def trial_of(**given: Any) -> Trial:
    session: Any = inprocess.Session()
    return Trial(session, make=lambda: sl.sinks.deliver(keep, pause="1 ms", **given), visible=seen)


@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE), ids=name_of)
def test_who_knows_the_ids_has_each_row_once(check: Check) -> None:
    check(trial_of(batch_size=4))


@pytest.mark.parametrize("first", ["staging", "with the checkpoints"])
@pytest.mark.parametrize("last", ["idle", "rows"])
def test_the_staging_place_may_change_when_no_rows_wait(tmp_path: Path, first: str, last: str) -> None:
    """The record of what was delivered is in the former one. The last checkpoint lists rows that came after it."""
    trial = trial_of(staging=tmp_path / "one") if first == "staging" else trial_of()
    sink = trial.start()
    pending = trial.stage(sink, 1)
    assert sink.commit(pending) == []
    trial.make = trial_of(staging=tmp_path / "two").make
    sink = trial.start(pending if last == "rows" else [], 1)
    sink.commit(trial.stage(sink, 2))
    trial.expect(1, 2)
    names = [name for _, ids in CALLS for name in ids]
    assert len(names) == len(set(names)), "rows came again"


@pytest.mark.parametrize("gone", [False, True])
def test_rows_that_wait_in_a_former_staging_place_are_not_lost(tmp_path: Path, gone: bool) -> None:
    trial = trial_of(staging=tmp_path / "one")
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    pending = trial.stage(sink, 2)
    former, trial.make = trial.make, trial_of(staging=tmp_path / "two").make
    if gone:
        (tmp_path / "one").rename(tmp_path / "away")
    with pytest.raises(CorruptionError, match="staging= or checkpoints= of the job was changed"):
        trial.start(pending, 2)
    if gone:
        assert not (tmp_path / "one").exists()
        return
    trial.make = former
    trial.start(pending, 2).close()
    trial.make = trial_of(staging=tmp_path / "two").make
    trial.start(pending, 2)
    trial.expect(1, 2)


def test_an_older_run_calls_no_more() -> None:
    trial = trial_of()
    older = trial.start()
    pending = trial.stage(older, 1)
    newer: Any = trial.open()
    newer.target.claim(newer._writer)
    with pytest.raises(FencedError):
        older.commit(pending)
    assert not CALLS


def test_rows_come_in_batches_in_order_with_names_of_their_own() -> None:
    trial = trial_of(batch_size=4)
    sink = trial.start()
    sink.commit([*trial.stage(sink, 1, tasks=1), *trial.stage(sink, 2, tasks=1)])
    assert [numbers for numbers, _ in CALLS] == [
        [*numbers_of(1)[:4]], [*numbers_of(1)[4:]], [*numbers_of(2)[:4]], [*numbers_of(2)[4:]],
    ]  # fmt: skip
    assert len({name for _, ids in CALLS for name in ids}) == 12


def test_an_error_is_tried_again_and_then_ends_the_job_in_words() -> None:
    trial = trial_of(attempts=3)
    sink = trial.start()
    RAISING.extend([ValueError("busy"), ValueError("busy")])
    sink.commit(trial.stage(sink, 1, tasks=1))
    trial.expect(1)
    RAISING.extend([ValueError("busy")] * 3)
    pending = trial.stage(sink, 2, tasks=1)
    with pytest.raises(
        SinkError, match="sink 'out' of job 'job': its function keep, called 3 times with 6 rows, raised"
    ):
        sink.commit(pending)
    trial.start(pending, 2)
    trial.expect(1, 2)


def test_errors_that_pass_end_nothing() -> None:
    trial = trial_of(attempts=1)
    sink = trial.start()
    pending = trial.stage(sink, 1)
    RAISING.extend([ConnectionRefusedError("nobody there")] * 3)
    assert sink.commit(pending) == pending
    told = sink.status()
    assert (told.waiting_rows, told.failure) == (6, "ConnectionRefusedError: nobody there")
    assert sink.commit(pending) == []
    trial.expect(1)


def test_rows_that_it_always_fails_for_are_dead_letters(tmp_path: Path) -> None:
    trial = trial_of(on_error="dead-letter", dead_letters=tmp_path, attempts=2)
    sink = trial.start()
    BAD.update(numbers_of(1)[1:3])
    sink.commit(trial.stage(sink, 1))
    assert Counter(seen()) == Counter(set(numbers_of(1)) - BAD)
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert {json.loads(letter["event"])["n"] for letter in found} == BAD
    assert {letter["operator"] for letter in found} == {"out"}
    assert all(letter["reason"].startswith("ValueError: no place for [Row(n=100000") for letter in found)


def test_a_row_with_text_that_is_no_utf8_is_a_dead_letter_with_its_bytes(tmp_path: Path) -> None:
    text = pa.array([b"\xff\xfe", b"ok"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([text, pa.array([1 << 60] * 2).cast(pa.timestamp("us"))], names=["v", "at"])
    target: Any = sl.sinks.deliver(keep).target
    writer = Writer("s", 1, "out", "job", Place(url=str(tmp_path / "s")))
    refusals = RejectedRows("dead-letter", Place(url=str(tmp_path)))
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")
    assert refusals.accepts(target, error)
    refusals.put(writer, Rows([batch.slice(0, 1)], lambda: ["id"]), error)
    letter = json.loads((tmp_path / "id.json").read_text())
    assert json.loads(letter["event"]) == {"v": "//4=", "at": 1 << 60}


def test_what_a_call_takes_out_of_its_lists_comes_again_with_the_next() -> None:
    def take(rows: list[Any], ids: list[str]) -> None:
        while rows:
            first = rows.pop(0), ids.pop(0)
            if RAISING:
                raise RAISING.pop(0)
            CALLS.append(([first[0].n], [first[1]]))

    trial = trial_of()
    sink = trial.start(sink=sl.sinks.deliver(take, pause="1 ms"))
    RAISING.append(ValueError("busy"))
    sink.commit(trial.stage(sink, 1, tasks=1))
    trial.expect(1)


def alone(rows: list[Any], ids: list[str]) -> None:
    assert AT_WORK.acquire(blocking=False), "another call of this process is under way"
    time.sleep(0.05)
    AT_WORK.release()
    keep(rows, ids)


def test_a_process_makes_one_call_at_a_time() -> None:
    """As where Spark's tasks call a function: what it has for all of its calls, as a connection, need not be shared."""
    trial = trial_of()
    sink = trial.start(sink=sl.sinks.deliver(alone, attempts=1))
    sink.commit(trial.stage(sink, 1))
    trial.expect(1)


def test_a_rust_librarys_panic_is_of_the_row_that_it_came_with(tmp_path: Path) -> None:
    class PanicException(BaseException):
        """As PyO3 derives it."""

    def panic(rows: list[Any], ids: list[str]) -> None:
        if BAD & {row.n for row in rows}:
            raise PanicException("index out of bounds")
        keep(rows, ids)

    trial = trial_of()
    dead = {"on_error": "dead-letter", "dead_letters": tmp_path}
    sink = trial.start(sink=sl.sinks.deliver(panic, pause="1 ms", attempts=2, **dead))
    BAD.add(numbers_of(1)[1])
    sink.commit(trial.stage(sink, 1, tasks=1))
    assert set(seen()) == set(numbers_of(1)) - BAD
    (letter,) = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert letter["reason"] == "RuntimeError: PanicException: index out of bounds"


async def awaited(rows: list[Any], ids: list[str]) -> None:
    keep(rows, ids)


def yielding(rows: list[Any], ids: list[str]) -> Any:
    keep(rows, ids)
    yield


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    "function", [lambda rows, ids: awaited(rows, ids), yielding], ids=["a coroutine", "a generator"]
)
def test_what_a_call_gives_and_nobody_runs_is_not_taken_for_done(function: Any, on_error: Any) -> None:
    trial = trial_of()
    sink = trial.start(sink=sl.sinks.deliver(function, on_error=on_error))
    pending = trial.stage(sink, 1)
    with pytest.raises(ConfigurationError, match=r"its function .* gave a (coroutine|generator), which has not run"):
        sink.commit(pending)
    trial.start(pending, 1)
    trial.expect(1)


def test_nothing_is_left_where_rows_waited() -> None:
    trial = trial_of()
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    trial.start([], 1)
    # But the records of how far it came.
    files = [path for path in Path(trial.storage).rglob("*") if path.is_file()]
    assert sorted(path.parent.name for path in files) == ["0", "1", "2", "claims"]


def test_a_call_that_returns_late_sets_no_lane_back() -> None:
    """A task of an older run was in the function while the next run delivered the same rows, and more."""
    trial = trial_of()
    older = trial.start()
    first = trial.stage(older, 1, tasks=1)
    newer = trial.open()
    pending: list[str] = []

    def meanwhile(rows: list[Any], ids: list[str]) -> None:
        LATE.clear()
        newer.recover(first, Epoch(1), fresh=False)
        pending.extend(trial.stage(newer, 2, tasks=1))
        newer.commit(pending)

    LATE.append(meanwhile)
    older.commit(first)
    assert not newer.commit([*pending, *trial.stage(newer, 3, tasks=1)])
    newer.close()
    trial.start([*pending, *trial.stage(newer, 4, tasks=1)], 4)
    trial.expect(1, 2, 3, 4)
