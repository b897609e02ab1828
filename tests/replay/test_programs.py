"""Random programs: what a job has done, a replay does again, byte for byte."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import UserCodeError
from strandline.replay.breaks import Breaks
from strandline.replay.recorded import find_recorded
from strandline.replay.session import Replay, jobdir_of
from tests.replay import random_programs
from tests.replay.programs import job_of, read, write
from tests.soak import seeds, soaking
from tests.spark.conftest import case
from tests.spark.harness import Case
from tests.spark.test_both_engines import epochs, everything
from tests.spark.test_joins import add, source

__all__ = ["case"]
pytestmark = pytest.mark.spark


def check(job: sl.Job, shown: Mapping[str, Sequence[Any]], start: str = "start") -> int:
    """Assert that a replay gives the same rows in the same order, and the same state; return the compared checkpoints.

    Of a job that has failed, the replay fails in the same epoch with the same error; rows after its last checkpoint
    were not shown.
    """
    recorded = find_recorded(jobdir_of(job), start, None, {})
    rows: dict[str, list[Any]] = {name: [] for name in shown}
    compared = 0
    with Replay(job, recorded, Breaks(None)) as run:
        for each in run:
            if each.record.epoch == recorded.failed:
                assert recorded.failure is not None
                # The record has no values of rows.
                assert str(each.error).partition(" for key ")[0] in recorded.failure.failure
                continue
            assert each.error is None
            assert each.output is not None
            for name, batch in each.output.sinks.items():
                rows[name] += [tuple(map(_plain, row.values())) for row in batch.to_pylist()]
            if each.differences is not None:
                compared += 1
                assert not each.differences, "\n".join(map(str, each.differences))
    if start == "start":
        for name, expected in shown.items():
            count = len(expected) if recorded.failed is not None else len(rows[name])
            assert rows[name][:count] == [tuple(row) for row in expected], name
    return compared


def _plain(value: Any) -> Any:
    """Return a value as a memory sink shows it: local times."""
    return value.astimezone().replace(tzinfo=None) if isinstance(value, dt.datetime) else value


@pytest.mark.long
# On a busy machine, a job and its replay take minutes.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", seeds(always=range(4), soak=range(4, 104)))
def test_a_random_program_is_repeated(spark: Any, tmp_path: Path, local_dir: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = ["a", "b"][: chance.randint(1, 2)]
    files = chance.choice([1, 3])

    def job() -> tuple[sl.Job, dict[str, Any]]:
        sources = [read(spark, tmp_path, random_programs.SCHEMA, name, files) for name in names]
        ends = random_programs.build(seed, sources)
        sinks = {name: sl.sinks.memory(name=name) for name in ends}
        return job_of(tmp_path, local_dir, *(ends[name].to(sink) for name, sink in sinks.items())), sinks

    program, sinks = job()
    run = program.start(spark)
    # Rows of processing-time timers have no time, and joins need one.
    with suppress(UserCodeError):
        for number in range(6):
            for name in names:
                for part in range(files if number % 2 else 1):
                    rows = random_programs.rows_of(chance, chance.choice([0, 5, 40]), 5 * number)
                    write(tmp_path / name, f"{number}-{part}.json", rows)
            run.process_all_available()
            if chance.random() < 0.6:
                run.checkpoint()
        run.stop(checkpoint=True, timeout="5 min")
    shown = {name: sink.rows for name, sink in sinks.items()}
    failed = find_recorded(jobdir_of(job()[0]), "start", None, {}).failed
    assert check(job()[0], shown) >= (failed is None)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["incremental", "changelog", *soaking(["continuous"])])
def test_the_pipelines_of_both_engines_are_repeated(spark: Any, case: Case, mode: Any) -> None:
    """With the backend RocksDB, from the first start and from the newest checkpoint but one."""

    def job(sinks: dict[str, Any]) -> sl.Job:
        outputs = (stream.to(sinks[name]) for name, stream in everything(source(spark, case)).items())
        return sl.Job(
            "both",
            sinks=list(outputs),
            checkpoints=sl.Checkpoints(case.root / "ck", every=None, retain=10, mode=mode),
            settings=sl.Settings(parallelism=2, local_dir=case.local_dir, state_memory="128MB", backend="rocksdb"),
        )

    names = everything(source(spark, case))
    sinks = {name: sl.sinks.memory(name=name) for name in names}
    run = job(sinks).start(spark)
    for some in epochs(seed=1):
        add(case, some)
        run.process_all_available()
        run.checkpoint()
    run.stop(checkpoint=True)
    again = job({name: sl.sinks.memory(name=name) for name in names})
    assert check(again, {name: sink.rows for name, sink in sinks.items()}) >= 3
    assert check(again, dict.fromkeys(names, ()), "") >= 1
