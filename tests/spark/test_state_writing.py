"""Savepoints made of DataFrames: the same files as by hand, with which a job begins and goes on."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.checkpoint.jobdir import START_PATH
from strandline.format.manifest import Manifest, StateInfo
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.savepoints.builder import SavepointBuilder
from strandline.snapshot.savepoints.export import Files
from strandline.spark.building import writing
from strandline.spark.building.tasks import TableTask
from strandline.spark.building.writing import check_columns
from strandline.storage.place import Place
from strandline.types.datatypes import parse_schema
from tests.pages import run_page
from tests.snapshot.helpers import tree
from tests.snapshot.strategies import MAX_PARALLELISM, operator_of
from tests.spark import small
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark
SEEN = StateInfo(name="seen", kind="value", value_type="bigint")


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
    generations = (case.root / "ck" / "small" / START_PATH).parent
    (start,) = generations.glob("start*")
    assert small.rows_of(sink) == counted(case, before)
    # With another one that says nothing of sources, they begin anew: not where they did for the one before.
    sl.state.write(job, case.root / "other", {"count.seen": df.limit(1)})
    with job.start(spark, restore=case.root / "other") as run:
        run.process_all_available(60)
    assert len({start, *generations.glob("start*")}) == 2


def test_rows_that_do_not_fit_are_refused_from_within_tasks(spark: Any, case: Case) -> None:
    """And nothing is there that could be taken for a savepoint."""
    source = small.source(spark, case.root / "in")
    job = small.job(sl.stream(source), case.root, case.local_dir)

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
    refused("column 'user' does not fit: the string .* is no UTF-8", user="cast(unhex('FF') as string)", value="id")
    # By a key that does not fit its type, a row is sent anywhere.
    numbered = small.job(sl.stream(source.selectExpr("cast(seq as int) as user")), case.root, case.local_dir)
    large = spark.sql("select 1L << 40 as user, 1L as value")
    with pytest.raises(sl.errors.StateTypeError, match=r"row 0, column 'user' does not fit: .* not in range"):
        sl.state.write(numbered, case.root / "to", {"count.seen": large})
    with pytest.raises(sl.errors.ConfigurationError, match=r"no state 'count.gone'; there are: count.seen"):
        sl.state.write(job, case.root / "to", {"count.gone": spark.range(1)})


def test_a_task_that_writes_on_when_another_has_failed_leaves_nothing(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = str(case.root / "begun")

    class Slow(TableTask):
        def _write(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Files:
            if first["value"][0].as_py() == 0:
                Path(begun).touch()
                time.sleep(1)
            else:
                for _ in range(1000):
                    if Path(begun).exists():
                        break
                    time.sleep(0.01)
            return super()._write(first, batches)

    monkeypatch.setattr(writing, "TableTask", Slow)
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    most = job.operators()[0].max_parallelism
    ordered = spark.range(100).selectExpr("concat('u', id) user").orderBy(F.expr(f"pmod(hash(user), {most})"))
    users = [row.user for row in ordered.collect()]
    rows = spark.createDataFrame([(users[0], 0), (users[-1], 1), (users[-1], 2)], "user string, value bigint")
    with pytest.raises(sl.errors.StateTypeError, match="more than one row of it"):
        sl.state.write(job, case.root / "to", {"count.seen": rows})
    time.sleep(1.5)
    assert not [path for path in (case.root / "to").rglob("*") if path.is_file()]


@pytest.mark.long
def test_the_page_on_writing_state(spark: Any, case: Case) -> None:
    for name, rows in (("history", ["a", "a", "b", "test"]), ("payments", ["a", "c", "test"])):
        (case.root / name).mkdir()
        lines = [json.dumps({"card": card, "shop": f"s{at % 2}"}) for at, card in enumerate(rows)]
        (case.root / name / "1.json").write_text("\n".join(lines))
    payments = spark.readStream.schema("card string, shop string").json(str(case.root / "payments"))
    stops: list[Any] = []

    def edit(code: str) -> str:
        code = re.sub(r'"(history|savepoints/\w+|checkpoints)(/?)"', rf'"{case.root}/\1\2"', code)
        code = code.replace("checkpoints=", "settings=settings, checkpoints=")
        return code.replace("run = job.start(spark,", "run = start(job,") + "\nsettle(run)"

    def start(job: sl.Job, **given: Any) -> sl.Run:
        stops.append(job.start(spark, **given))
        return stops[-1]

    try:
        run_page(
            "writing-state.md", 3, edit, sl=sl, F=F, pc=pc, spark=spark, payments_df=payments, start=start,
            settle=settle, settings=sl.Settings(parallelism=2, local_dir=case.local_dir),
        )  # fmt: skip
    finally:
        for run in stops:
            run.stop()
    # What the program makes of history is what the query has made of it.
    begun, replayed = (manifest(case.root / "savepoints" / name).operators for name in ("begin", "replayed"))
    assert (begun[0].tables or {})["seen"] == (replayed[0].tables or {})["seen"]
    (operator,) = manifest(case.root / "savepoints/repaired").operators
    assert [state.name for state in operator.states] == ["seen"]
    rows = pq.read_table(case.root / "savepoints/repaired/data").to_pylist()
    assert {row["card"]: row["value"] for row in rows} == {"a": 3, "b": 1, "c": 1}


def test_of_several_attempts_of_a_task_one_counts(tmp_path: Path) -> None:
    """Without a JVM: what it does about it is Spark's affair."""
    operator = operator_of(parse_schema("id bigint"), SEEN)
    rows = pa.RecordBatch.from_pydict({"id": list(range(1000)), "value": list(range(1000))})
    groups = rows_of(operator, SEEN).check(rows).column("key_group")
    targets = [Place(url=tmp_path.as_uri(), path=name) for name in ("tasks", "once")]
    with SavepointBuilder(targets[0], "job", [operator], scratch=tmp_path) as builder:
        found = []
        for part in range(3):
            mine = rows.filter(pc.equal(pc.divide(pc.multiply(groups, 3), MAX_PARALLELISM), part))
            task = pickle.loads(pickle.dumps(TableTask(targets[0], operator, SEEN, 3)))
            attempts = [list(task(iter([mine.slice(at), mine.slice(0, at)]))) for at in (0, 50)]
            found.append(msgspec.json.decode(attempts[part % 2][0]["files"][0].as_py(), type=Files))
        files, pieces = ([t for each in found for t in getattr(each, kind)["seen"]] for kind in ("files", "pieces"))
        builder.add("op", "seen", files, pieces)
        made = builder.finish()
    with SavepointBuilder(targets[1], "job", [operator], scratch=tmp_path) as builder:
        builder.write("op", "seen", [rows])
        assert builder.finish().operators == made.operators
    assert tree(tmp_path / "tasks").keys() == tree(tmp_path / "once").keys()


def test_times_of_dataframes_fit_times(spark: Any) -> None:
    at = StateInfo(name="at", kind="value", value_type="timestamp")
    rows = spark.sql("select 1L as id, timestamp'2026-01-01 00:00:00' as value")
    check_columns(operator_of(parse_schema("id bigint"), at), at, rows, "op.at")
