"""Epochs of real jobs, run again in this process: the same rows, state and failures; a debugger that stops there."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError
from strandline.replay.breaks import Breaks, Condition
from strandline.replay.recorded import find_recorded
from strandline.replay.session import EpochReplay, Replay, jobdir_of
from tests.replay.programs import Total, job_of, read, totals, write

pytestmark = pytest.mark.spark
Rows = list[dict[str, Any]]


def payments(number: int, bad: int = -1) -> Rows:
    return [{"card": f"c{n % 5}", "amount": -1 if n == bad else n + number} for n in range(20)]


def replay(job: sl.Job, start: str = "", breaks: Breaks | None = None, **given: Any) -> list[EpochReplay]:
    recorded = find_recorded(jobdir_of(job), start, given.pop("to", None), {})
    with Replay(job, recorded, breaks or Breaks(None), **given) as run:
        return list(run)


@pytest.fixture
def failed(spark: Any, tmp_path: Path, local_dir: Path) -> Callable[[], sl.Job]:
    """A job that has failed in its sixth epoch, two epochs after its second checkpoint."""
    run = totals(spark, tmp_path, local_dir).start(spark)
    for number in range(6):
        write(tmp_path / "in", f"{number}.json", payments(number, bad=13 if number == 5 else -1))
        if number == 5:
            with pytest.raises(sl.errors.UserCodeError):
                run.process_all_available()
            break
        run.process_all_available()
        if number in (1, 3):
            run.checkpoint()
    return lambda: totals(spark, tmp_path, local_dir)


def test_a_failed_job_is_repeated_up_to_the_event_that_failed(
    failed: Callable[[], sl.Job], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks = Breaks(Condition.parse("error"))
    monkeypatch.setattr("sys.stdin", io.StringIO("p event.amount\np self.total.value\np ctx.key\nq\n"))
    epochs = replay(failed(), breaks=breaks)
    assert [each.record.epoch for each in epochs] == [5, 6]
    assert isinstance(epochs[-1].error, sl.errors.UserCodeError)
    (call,) = breaks.stopped
    assert (call.epoch, call.key, call.method) == (6, "c3", "on_event")
    before = sum(row["amount"] for n in range(5) for row in payments(n) if row["card"] == "c3")
    before += sum(row["amount"] for row in payments(5)[:13] if row["card"] == "c3")
    assert capsys.readouterr().out.replace("(replay) ", "").splitlines()[2:5] == ["-1", str(before), "'c3'"]


def test_state_and_rows_are_equal_byte_for_byte(failed: Callable[[], sl.Job], tmp_path: Path) -> None:
    epochs = replay(failed(), "start")
    assert [each.record.epoch for each in epochs] == [1, 2, 3, 4, 5, 6]
    assert {each.record.epoch: each.differences for each in epochs if each.differences is not None} == {2: (), 4: ()}
    shown = [
        row
        for path in sorted((tmp_path / "out").glob("part-*"))
        for row in map(json.loads, path.read_text().splitlines())
    ]
    rows = [row for each in epochs[:4] if each.output for row in each.output.sinks["rows"].to_pylist()]
    assert rows == shown


def test_a_condition_stops_before_the_event_that_makes_it_true(
    failed: Callable[[], sl.Job], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p self.total.value <= 100\nc\n" * 9))
    breaks = Breaks(Condition.parse("state.total > 100 and key in ('c1', 'c2')"))
    assert len(replay(failed(), "start", breaks)) == 6
    assert [call.key for call in breaks.stopped] == ["c1", "c2"] or [call.key for call in breaks.stopped] == [
        "c2",
        "c1",
    ]
    assert capsys.readouterr().out.count("(replay) True") == 2


def test_a_key_stops_at_each_of_its_events(failed: Callable[[], sl.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("c\nc\nc\nq\n"))
    breaks = Breaks(Condition.parse("key=c2"))
    epochs = replay(failed(), "1", breaks)
    assert [(call.epoch, call.key) for call in breaks.stopped] == [(3, "c2")] * 4
    assert len(epochs) == 1


def test_a_changed_function_differs_from_the_checkpoint(
    spark: Any, failed: Callable[[], sl.Job], tmp_path: Path, local_dir: Path
) -> None:
    failed()

    class Doubled(Total):
        def on_event(self, event: Any, ctx: Any) -> Any:
            if event.card == "c1":
                self.total.value += event.amount
            return super().on_event(event, ctx)

    epochs = replay(totals(spark, tmp_path, local_dir, Doubled()), "1", to=4)
    found = epochs[-1].differences
    assert found is not None
    assert [(each.operator, each.state, each.key) for each in found] == [("totals", "total", "card='c1'")]


def test_functions_that_do_not_repeat_themselves_are_named(
    spark: Any, failed: Callable[[], sl.Job], tmp_path: Path, local_dir: Path
) -> None:
    failed()

    class Lottery(Total):
        def on_event(self, event: Any, ctx: Any) -> Any:
            self.total.value += int(random.random() * 1e9)
            yield ctx.key, 0

    epochs = replay(totals(spark, tmp_path, local_dir, Lottery()), "1", to=4, check=True)
    unequal = [each.what for epoch in epochs for each in epoch.unequal]
    assert len(unequal) == 2
    assert "operator 'totals' (Lottery) is not repeatable: a second run" in unequal[0]
    clean = replay(totals(spark, tmp_path, local_dir), "1", to=4, check=True)
    assert not any(each.unequal for each in clean)


def test_what_cannot_be_replayed_is_refused(
    spark: Any, failed: Callable[[], sl.Job], tmp_path: Path, local_dir: Path
) -> None:
    job = failed()
    with pytest.raises(NotFoundError, match="checkpoint 7: there is none of this number"):
        find_recorded(jobdir_of(job), "7", None, {})
    with pytest.raises(ConfigurationError, match=r"--to 9: the recorded epochs after .* are 3 to 6"):
        find_recorded(jobdir_of(job), "1", 9, {})
    (record,) = (tmp_path / "ck").rglob("generations/*.failed")
    whole = record.read_bytes()
    record.write_bytes(whole[:-1])
    with pytest.raises(CorruptionError, match=r"(?s)\.failed: holds .* it was cut off.*next step: .* delete it, and a"):
        find_recorded(jobdir_of(job), "1", None, {})
    record.write_bytes(whole)
    other = sl.stream(read(spark, tmp_path, "card string, amount long")).key_by("card")
    rows = other.process(Total(), "card string, total bigint", uid="others")
    another = job_of(tmp_path, local_dir, rows.to(sl.sinks.noop()))
    with pytest.raises(ConfigurationError, match="the recorded epochs differ in the operator 'others'"):
        replay(another)
    with pytest.raises(ConfigurationError, match="no operator has the state sum"):
        replay(job, breaks=Breaks(Condition.parse("state.sum > 1")))
    (tmp_path / "in" / "4.json").unlink()
    with pytest.raises(ConfigurationError, match="epoch 5: the source has read 1 files, and 1 of them are gone"):
        replay(job)
