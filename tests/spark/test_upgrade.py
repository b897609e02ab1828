"""A job that goes on with another version of its program: what the old one stored is read, renamed, migrated."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.cli.upgrades import as_data, check_all, run_until_job
from strandline.control.announcements import listening
from strandline.format.manifest import OlderSchema
from strandline.spark.job.checking import JobCollector, SnapshotCheck
from tests.snapshot.helpers import tree
from tests.spark import pipeline, small
from tests.spark.functions import Count, CountMore
from tests.spark.harness import Case, settle
from tests.spark.test_restore import manifests

pytestmark = pytest.mark.spark


ROCKSDB = ("rocksdb", 2)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("memory", 3), ROCKSDB),
        *(pytest.param(ROCKSDB, now, marks=pytest.mark.soak) for now in (ROCKSDB, ("rocksdb", 3))),
    ],
)
@pytest.mark.long
def test_a_job_goes_on_with_another_type_name_and_uid(
    spark: Any, case: Case, before: tuple[str, int], now: tuple[str, int]
) -> None:
    """Also at another parallelism and on another backend at once, and then with the same: most values are old ones."""
    stream = sl.stream(small.source(spark, case.root / "in"))
    shown: Counter[tuple[Any, ...]] = Counter()

    def go_on(process: Any, uid: str, how: tuple[str, int], kills: int = 0) -> None:
        sink = sl.sinks.memory()
        job = small.job(
            stream, case.root, case.local_dir, sink=sink, process=process, uid=uid, settings={"backend": how[0], "parallelism": how[1]},
            restart=sl.Restart(attempts=5, delay="50ms"),
        )  # fmt: skip
        case.add(1, rows=15)
        with job.start(spark) as run:
            settle(run)
            for _ in range(kills):
                os.kill(run.status().keepers[0].pid, signal.SIGKILL)
                case.add(1, rows=15)
                settle(run)
        shown.update(small.rows_of(sink))
        assert shown == small.counted([event["user"] for event in case.events])

    # A keeper whose state is on the heap has it again after a kill.
    go_on(Count(), "count", before, kills=1)
    (operator,) = max(manifests(case.root / "ck" / "small").items())[1].operators
    assert operator.backend == before[0]
    if before[0] == "memory":
        assert all(file.inline is not None for part in operator.partitions for file in part.files)
    wider = sl.uid("more", was="count")
    # The second attempt goes on from a checkpoint of the old program or of the new one: it fits both.
    told: list[str] = []
    with listening(lambda text, is_detail: told.append(text)):
        go_on(CountMore(), wider, now, kills=1)
    assert "job 'small': state 'more.count': migrated, was 'seen' (value: bigint -> decimal(20,0))" in told
    (operator,) = max(manifests(case.root / "ck" / "small").items())[1].operators
    assert operator.uid == "more"
    states = {state.name: (state.schema_id, state.older) for state in operator.states}
    assert states["count"] == (1, {0: OlderSchema(value_type="bigint")})
    assert states["last"][0] == 0
    go_on(CountMore(), sl.uid("most", was="more"), now)
    with pytest.raises(sl.errors.IncompatibleStateError, match="the state 'count' is not declared any more") as caught:
        go_on(Count(), "most", now)
    assert 'write drop=["most.count", "most.last"]' in caught.value.hint


def test_a_rollback_to_state_that_the_program_does_not_fit_is_refused_and_the_job_goes_on(
    spark: Any, case: Case
) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))

    def job(uid: str) -> sl.Job:
        return small.job(stream, case.root, case.local_dir, uid=uid, checkpoints=case.checkpoints(None, retain=9))

    case.add(1)
    with job("count").start(spark) as run:
        before = settle(run).last_checkpoint
        assert before is not None
    case.add(1)
    with job("other").start(spark, drop=["count"]) as run:
        settle(run)
    with job("other").start(spark) as run:
        with pytest.raises(sl.errors.IncompatibleStateError, match="no operator with uid 'count', which has state"):
            run.rollback(before.checkpoint)
        case.add(1)
        settle(run)
        assert run.status().restarts == 0


PROGRAM = """
from pathlib import Path
import strandline as sl
from pyspark.sql import SparkSession
from tests.spark import pipeline, small
from tests.spark.functions import {process}

spark, root = SparkSession.getActiveSession(), Path({root!r})
stream = sl.stream(small.source(spark, root / "in"))
job = small.job(stream, root, root / "l", process={process}(), uid={uid})
other = sl.Job("other", sinks=[stream.to(sl.sinks.memory())], checkpoints=sl.Checkpoints(root / "ck"))
job.bootstrap(spark, savepoint=root / "never", history=spark.range(1))
with job.start(spark, drop=["count.gone"]) as run, other.start(spark):
    run.await_termination()
    raise AssertionError("no run can be waited for")
"""


def test_a_program_is_checked_before_anything_starts(spark: Any, case: Case, tmp_path: Path) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))
    case.add(1)
    with small.job(stream, case.root, case.local_dir).start(spark) as run:
        settle(run)
    before = tree(case.root)
    newest = str(case.root / "ck/small")

    def check(process: str, uid: str, restore: dict[str, str], drop: Any = ()) -> SnapshotCheck:
        program = tmp_path / "app.py"
        program.write_text(PROGRAM.format(process=process, root=str(case.root), uid=uid))
        collector = JobCollector()
        assert run_until_job(program, collector) == 0
        program.unlink()
        (found,) = check_all(program, collector, restore, {"small": drop}, {})
        return found

    found = check("CountMore", 'sl.uid("more", was="count")', {"small": newest})
    assert [str(change).partition(" (")[0] for change in found.upgrade.changes] == [
        "operator 'more': renamed, was 'count'", "state 'more.count': migrated, was 'seen'", "state 'more.last': new"
    ]  # fmt: skip
    assert (found.refusals, found.upgrade.unused) == ((), ("count.gone",)), "the program's own drop counts"
    found = check("CountList", '"count"', {"small": newest})
    assert ["state 'seen' is list, was value" in refusal for refusal in found.refusals] == [True]
    found = check("Count", '"counts"', {"small": newest})
    assert found.upgrade.drop == ("count",)
    assert as_data(found)["fits"] is False
    found = check("Count", '"counts"', {"small": newest}, ["count"])
    assert (found.refusals, found.upgrade.drop) == ((), ())
    with pytest.raises(sl.errors.ConfigurationError, match="has 2 jobs: other, small"):
        check("Count", '"count"', {"": newest})
    with pytest.raises(sl.errors.ConfigurationError, match="makes no job 'smal'") as caught:
        check("Count", '"count"', {"smal": newest})
    assert "its jobs are other, small" in caught.value.hint
    with pytest.raises(sl.errors.NotFoundError):
        check("Count", '"count"', {"small": str(case.root / "in")})
    assert tree(case.root) == before


def aggregating(spark: Any, root: Path, local_dir: Path, which: str, *sinks: sl.sinks.Sink) -> sl.Job:
    """Return a job of running and of windowed aggregates, of the old version or the new one."""
    total, most = sl.agg.sum("v"), sl.agg.max("v")
    given: dict[str, Any] = {
        "old": {"n": sl.agg.count(), "sum": total, "first": sl.agg.first("seq", ignore_nulls=True)},
        "new": {"most": most.added(), "n": sl.agg.count(), "total": total.renamed(was="sum")},
    }[which]
    stream = sl.stream(small.source(spark, root / "in").selectExpr("*", "timestamp_seconds(seq div 1000 * 60) as t"))
    keyed = stream.watermark("t", "0s").key_by("user")
    running, windows = keyed.agg(given, uid="running"), keyed.window(sl.Tumbling("1 min")).agg(given, uid="windows")
    return sl.Job(
        "aggregates", sinks=[out.to(sink) for out, sink in zip((running, windows), sinks, strict=True)],
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
        checkpoints=sl.Checkpoints(root / "ck", retain=2), restart=sl.Restart.never(),
    )  # fmt: skip


@pytest.mark.long
def test_aggregates_are_added_and_taken_away(spark: Any, case: Case) -> None:
    def write(number: int, *rows: tuple[int, str, int | None]) -> None:
        events = [{"seq": seq, "user": user, "kind": "k", "v": v} for seq, user, v in rows]
        pipeline.write_events(case.root / "in", number, events)

    def go_on(which: str, **given: Any) -> tuple[Counter[Any], Counter[Any]]:
        sinks = sl.sinks.memory(), sl.sinks.memory()
        with aggregating(spark, case.root, case.local_dir, which, *sinks).start(spark, **given) as run:
            settle(run)
        return tuple(Counter(tuple(v for v in row if not hasattr(v, "year")) for row in s.rows) for s in sinks)  # type: ignore[return-value]

    write(0, (1, "a", 5), (2, "a", 9), (3, "b", None))
    running, windows = go_on("old")
    assert (running, windows) == (Counter([("a", 2, 14, 1), ("b", 1, None, 3)]), Counter())
    write(1, (4, "a", 7), (5, "b", None), (6, "c", 1))
    write(2, (90_000, "z", 0))
    running, windows = go_on("new", drop=["running.first", "windows.first"])
    # Of what was there, the greatest is that of later events alone.
    assert windows == Counter([("a", 7, 3, 21), ("b", None, 2, None), ("c", 1, 1, 1)])
    assert running == Counter([("a", 7, 3, 21), ("b", None, 2, None), ("c", 1, 1, 1), ("z", 0, 1, 0)])
    states = {
        s.name: s.schema_id
        for o in max(manifests(case.root / "ck" / "aggregates").items())[1].operators
        for s in o.states
    }
    assert states == {"totals": 1, "panes": 1}
