"""Savepoints made of DataFrames: the same files as by hand, with which a job begins and goes on."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline as sl
from strandline.checkpoint.jobdir import START_PATH
from strandline.format.manifest import Manifest
from strandline.snapshot.opened import open_snapshot
from tests.spark import small
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark


def manifest(path: Path) -> Manifest:
    return open_snapshot(str(path)).manifest


def counted(case: Case, before: dict[str, int]) -> Counter[tuple[str, int]]:
    """What Count must give that began with these counts."""
    seen, found = Counter(before), Counter[tuple[str, int]]()
    for event in case.events:
        seen[event["user"]] += 1
        found[event["user"], seen[event["user"]]] += 1
    return found


def test_a_job_begins_with_dataframes_and_goes_on(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(stream, case.root, case.local_dir, sink=sink, restart=sl.Restart(attempts=3, delay="50ms"))
    # Of a narrower type, of which Spark has another hash.
    df = spark.range(3000).selectExpr("cast(id * 10 as int) as value", "concat('u', id) as user").repartition(3)
    made = sl.state.write(job, case.root / "spark", {"count.seen": df})
    assert (made.form, made.epoch, made.checkpoint) == ("canonical", 0, 1)
    users = [f"u{n}" for n in range(3000)]
    table = pa.table({"user": users, "value": [n * 10 for n in range(3000)]})
    for name, rows in (("arrow", table.take(pa.array(range(2999, -1, -1)))), ("pandas", table.to_pandas())):
        sl.state.write(job, case.root / name, {"count.seen": rows})
        assert manifest(case.root / name).operators == manifest(case.root / "spark").operators
    # What was wrong is repaired: some rows are changed, some go.
    patched = case.root / "patched"
    sl.state.patch(case.root / "spark", patched, {"count.seen": lambda rows: rows.filter(pc.field("value") < 20_000)})
    (operator,) = manifest(patched).operators
    assert sum(file.rows for file in (operator.tables or {})["seen"]) == 2000
    case.add(2)
    before = {user: n * 10 for n, user in enumerate(users) if n < 2000}
    with job.start(spark, restore=patched) as run:
        # Before there is a checkpoint of its own, it begins once more with the same, and reads all again.
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        case.add(1)
        settle(run)
    # Where sources began that begin at "now" is known from then on.
    assert (case.root / "ck" / "small" / START_PATH).exists()
    assert small.rows_of(sink) == counted(case, before)


def test_rows_that_do_not_fit_are_refused_from_within_tasks(spark: Any, case: Case) -> None:
    """And nothing is there that could be taken for a savepoint."""
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(stream, case.root, case.local_dir)

    def refused(why: str, **columns: str) -> None:
        df = spark.range(100).selectExpr(*(f"{sql} as {name}" for name, sql in columns.items()))
        with pytest.raises(sl.errors.StrandlineError, match=why):
            sl.state.write(job, case.root / "to", {"count.seen": df})
        assert not [path for path in (case.root / "to").rglob("*") if path.is_file()]

    refused("row .*, column 'value' .*: it is null, .* of the key user='u17'",
            user="concat('u', id)", value="if(id = 17, null, id)")  # fmt: skip
    refused(
        "the key user='u7' does not fit: there is more than one row of it",
        user="concat('u', id % 99 - id % 99 + 7)",
        value="id",
    )
    refused("column 'value' does not fit: expected an Arrow column of bigint", user="concat('u', id)", value="'x'")
    refused("its table has the columns key_group, user, value; the rows have user", user="concat('u', id)")
    with pytest.raises(sl.errors.ConfigurationError, match=r"no state 'count.gone'; there are: count.seen"):
        sl.state.write(job, case.root / "to", {"count.gone": spark.range(1)})
