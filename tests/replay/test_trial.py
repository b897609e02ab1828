"""Trials: a new program on the state and the input of a real job, compared with the old one and with the job."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, IncompatibleStateError, NotFoundError
from strandline.replay.outcomes import Outcome, compare_trials, compare_with_job, outcome_alone
from strandline.replay.trial import TrialOptions, TrialResult, recorded_for, run_trial
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.storage.place import Place
from tests.cli.conftest import Command, strandline
from tests.replay import random_programs
from tests.replay.programs import Total, job_of, read, totals, write
from tests.snapshot.helpers import tree

__all__ = ["strandline"]
pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path

import strandline as sl
from tests.replay.programs import Total, totals

class Other(Total):
    def on_event(self, event, ctx):
        {line}
        yield from super().on_event(event, ctx)

root = Path(sys.argv[1])
totals(sl.session("tests"), root, Path(sys.argv[2]), Other()).start().await_termination()
"""


class Doubled(Total):
    """Counts what c1 pays twice."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.card == "c1":
            self.total.value += event.amount
        yield from super().on_event(event, ctx)


class Patient(Total):
    """Leaves negative amounts out, which Total fails on."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.amount >= 0:
            yield from super().on_event(event, ctx)


class Narrow(Total):
    total = sl.Value("boolean")


class Forgetful(sl.KeyedProcess):
    total = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.total.value += event.amount
        yield ctx.key, self.total.value


@pytest.fixture
def make(spark: Any, tmp_path: Path, local_dir: Path) -> Callable[..., sl.Job]:
    """A job that has checkpoints of its second and fourth epoch, and has failed in its sixth; other programs of it."""
    run = totals(spark, tmp_path, local_dir).start(spark)
    for number in range(6):
        rows = [{"card": f"c{n % 5}", "amount": -1 if number == 5 and n == 13 else n + number} for n in range(20)]
        write(tmp_path / "in", f"{number}.json", rows)
        if number == 5:
            with pytest.raises(sl.errors.UserCodeError):
                run.process_all_available()
            break
        run.process_all_available()
        if number in (1, 3):
            run.checkpoint()
    return lambda process=None: totals(spark, tmp_path, local_dir, process)


def trial(job: sl.Job, folder: Path, start: str = "1", **options: Any) -> TrialResult:
    recorded, progress = recorded_for(job, start, {}, epochs="files" not in options), list[tuple[int, int]]()
    result = run_trial(job, recorded, TrialOptions(**options), folder, lambda *counts: progress.append(counts))
    total = len(progress) if result.failed is None else progress[-1][1]
    assert progress == [(done, total) for done in range(len(progress))]
    return result


def both(tmp_path: Path, one: sl.Job, other: sl.Job, start: str = "1", **options: Any) -> Outcome:
    folders = tmp_path / "one", tmp_path / "other"
    results = [trial(job, folder, start, **options) for job, folder in zip((one, other), folders, strict=True)]
    return compare_trials(results[0], results[1], folders, 10, tmp_path)


def test_the_same_program_is_equal(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    before = tree(tmp_path / "ck")
    outcome = both(tmp_path, make(), make(Total()))
    assert outcome.verdict == "equal"
    assert [(each.sink, each.before, each.after) for each in outcome.sinks] == [("rows", 60, 60)]
    assert tree(tmp_path / "ck") == before


def test_rows_and_state_that_differ_are_named(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    outcome = both(tmp_path, make(), make(Doubled()), epochs=2)
    assert outcome.verdict == "differs"
    (rows,) = outcome.sinks
    assert (rows.before, rows.only_before, rows.only_after, rows.moved) == (40, 8, 8, 0)
    assert {row.row["card"] for row in rows.rows} == {"c1"}
    # c1 pays 1, 6, 11 and 16, and in each epoch one more each.
    before = sum(4 * number + 34 for number in range(2))
    assert (rows.rows[0].side, rows.rows[0].epoch) == ("before", 3)
    assert min(row.row["total"] for row in rows.rows if row.side == "before") == before + 3
    assert outcome.states is not None
    (total,) = [state for state in outcome.states.states if not state.is_equal]
    assert (total.state, total.changed, [key.key for key in total.keys]) == ("total", 1, [{"card": "c1"}])


@pytest.mark.long
def test_records_are_those_of_the_job_that_took_the_snapshot(
    spark: Any, make: Callable[..., sl.Job], tmp_path: Path, local_dir: Path
) -> None:
    """The new program has a checkpoint directory of its own, which is not there, and is not made."""
    cards = sl.stream(read(spark, tmp_path, "card string, amount long")).where("amount is not null").key_by("card")
    rows = cards.process(Total(), "card string, total bigint", uid="totals")
    job = sl.Job(
        "new", sinks=[rows.to(sl.sinks.noop())], checkpoints=sl.Checkpoints(tmp_path / "mine"),
        settings=sl.Settings(local_dir=local_dir),
    )  # fmt: skip
    checkpoint, target = open_snapshot(str(tmp_path / "ck/replayed/chk-2")), tmp_path / "savepoint"
    take_savepoint(
        checkpoint.manifest, checkpoint.folder.place({}), Place(url=tmp_path.as_uri(), path=target.name), "native"
    )
    for place in ("savepoint", "ck/replayed/chk-2"):
        recorded = recorded_for(job, str(tmp_path / place), {}, epochs=True)
        assert [record.epoch for record in recorded.epochs] == [5, 6]
        result = run_trial(job, recorded, TrialOptions(epochs=1), tmp_path / "trials" / place)
        assert (result.last, result.rows_in) == (5, 20)
    with pytest.raises(NotFoundError):
        recorded_for(job, "1", {}, epochs=True)
    assert not (tmp_path / "mine").exists()


@pytest.mark.long
def test_an_error_in_one_program_alone_is_a_difference(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    outcome = both(tmp_path, make(), make(Patient()), "2")
    assert outcome.verdict == "differs"
    assert ["a negative amount" in failure for failure in outcome.failures] == [True, False]
    assert outcome.failures[1] == "the new program does not fail"
    assert outcome.why_not == "one program came to epoch 5, the other to epoch 6"
    assert outcome.sinks[0].is_equal


@pytest.mark.long
def test_without_the_old_program_the_jobs_checkpoint_is_compared(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    for number, (process, verdict) in enumerate(((Total(), "equal"), (Doubled(), "differs"), (Patient(), "differs"))):
        folder = tmp_path / str(number)
        result = compare_with_job(trial(make(process), folder), folder, {}, 10)
        assert result.checkpoint.endswith("/chk-2")
        outcome = outcome_alone(result)
        assert outcome.verdict == verdict, outcome
        assert bool(outcome.failures) == isinstance(process, Patient)
    folder = tmp_path / "later"
    outcome = outcome_alone(compare_with_job(trial(make(), folder, "2", epochs=1), folder, {}, 10))
    assert (outcome.verdict, outcome.why_not) == ("unknown", "the job has no checkpoint of an epoch that has run")


def test_state_is_upgraded_or_refused(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    with pytest.raises(IncompatibleStateError, match="the type of state 'total' is boolean, was bigint"):
        trial(make(Narrow()), tmp_path / "narrow")
    with pytest.raises(IncompatibleStateError, match="the state 'seen' is not declared any more"):
        trial(make(Forgetful()), tmp_path / "forgetful")
    outcome = both(tmp_path, make(), make(Total()), epochs=1)
    assert outcome.verdict == "equal"
    result = trial(make(Forgetful()), tmp_path / "dropped", epochs=3, drop=["totals.seen"])
    assert [(c["state"], c["action"]) for c in result.changes if c["state"]][-1] == ("seen", "dropped")
    with pytest.raises(ConfigurationError, match=r"--epochs 5: 4 epochs after .*chk-1 are recorded"):
        trial(make(), tmp_path / "many", epochs=5)


@pytest.mark.long
def test_rows_of_files(make: Callable[..., sl.Job], tmp_path: Path) -> None:
    files = tmp_path / "files"
    write(files, "1.json", [{"card": "c1", "amount": 1}, {"card": "c9", "amount": 2}])
    (files / "2.csv").write_text("card,amount\nc1,5\n")
    named = {"": [str(files / "1.json"), str(files / "2.csv")]}
    outcome = both(tmp_path, make(), make(Doubled()), str(tmp_path / "ck/replayed/chk-1"), files=named)
    assert [(row.side, row.epoch, row.row["total"]) for row in outcome.sinks[0].rows] == [
        ("before", 3, 73), ("after", 3, 74), ("before", 4, 78), ("after", 4, 84),
    ]  # fmt: skip
    (files / "3.json").write_text('{"card": 1, "amount": "many"}\n')
    with pytest.raises(ConfigurationError, match=r"3\.json: its rows cannot be read"):
        trial(make(), tmp_path / "wrong", files={"": [str(files / "3.json")]})
    with pytest.raises(ConfigurationError, match="the program has no source 'cards'"):
        trial(make(), tmp_path / "unknown", files={"cards": [str(files / "1.json")]})


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_watermarks_of_random_programs_are_those_of_the_job(
    spark: Any, tmp_path: Path, local_dir: Path, seed: int
) -> None:
    chance = random.Random(seed)

    def job() -> sl.Job:
        names = ["a", "b"]
        ends = random_programs.build(seed, [read(spark, tmp_path, random_programs.SCHEMA, name) for name in names])
        return job_of(tmp_path, local_dir, *(ends[name].to(sl.sinks.memory(name=name)) for name in ends))

    run = job().start(spark)
    for number in range(5):
        for name in ("a", "b"):
            write(tmp_path / name, f"{number}.json", random_programs.rows_of(chance, 20, 5 * number))
        run.process_all_available()
    run.stop(checkpoint=True)
    result = compare_with_job(trial(job(), tmp_path / "trial", "start"), tmp_path / "trial", {}, 10)
    assert result.notes == []
    assert outcome_alone(result).verdict == "equal"


@pytest.mark.long
def test_the_commands(
    make: Callable[..., sl.Job], strandline: Command, tmp_path: Path, local_dir: Path, capfd: Any
) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(PROGRAM.format(line="pass"))
    new.write_text(PROGRAM.format(line="self.total.value += event.card == 'c1'"))
    args = ["--", tmp_path, local_dir]
    result = strandline("compare", old, new, "--restore", "1", "--epochs", "1", "--json", *args)
    assert result.code == 1, result.stderr
    (data,) = result.json
    assert (data["verdict"], data["epochs"], data["rows_in"]) == ("differs", [3, 3], 20)
    assert [(each["only_before"], each["only_after"]) for each in data["sinks"]] == [(4, 4)]
    result = strandline("test", new, "--from", "1", "--epochs", "2", *args)
    assert result.code == 1, result.stderr
    assert 'totals.total: changed {"card": "c1"}' in result.stdout
    assert result.stdout.endswith("different\n")
    result = strandline("test", old, "--from", "9", "--json", *args)
    assert result.code == 2
    assert "there is none of this number" in json.dumps(result.json)
