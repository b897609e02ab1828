"""Epochs from copies of one physical plan: what they give is what Spark gives if it plans each of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import functions as F

import strandline as sl
from strandline.spark.base import templates
from strandline.spark.base.ddl import schema_of
from strandline.spark.base.mapping import BatchFunction, map_batches
from strandline.spark.base.templates import (
    NoTemplateError,
    PlanTemplate,
    RepeatedFrame,
    discard,
    empty_rdd,
    frame_of,
    output_ids,
)
from strandline.spark.keepers.exchange import clone_session, prepare_session
from strandline.spark.lower import frames
from strandline.spark.lower.frames import FrameBuilder
from strandline.spark.sinks.tasks import write_tasks
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import Case, eventually, settle

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]


@pytest.fixture
def session(spark: Any) -> Any:
    """A session with the settings of epochs."""
    session = clone_session(spark)
    prepare_session(session)
    session.conf.set("spark.sql.shuffle.partitions", "3")
    return session


@pytest.fixture
def plans(monkeypatch: Any) -> list[int]:
    """The numbers of nodes of the plans that were built."""
    built: list[int] = []
    build = FrameBuilder._build

    def count(self: FrameBuilder, *given: Any) -> Any:
        built.append(len(self.plan.pipeline.nodes))
        return build(self, *given)

    monkeypatch.setattr(FrameBuilder, "_build", count)
    return built


def rows_of(session: Any, ids: range, partitions: int) -> Any:
    df = session.range(ids.start, ids.stop, 1, partitions).selectExpr("id", "id % 5 as k")
    return df._jdf.queryExecution().toRdd()


def template_of(session: Any, step: Callable[[Any], Any], functions: tuple[str, ...] = ()) -> PlanTemplate:
    rdd = empty_rdd(session)
    schema = rows_schema(session)
    return PlanTemplate(step(frame_of(session, rdd, schema)), {"source": rdd}, (), functions)


def rows_schema(session: Any) -> Any:
    return session.range(0).selectExpr("id", "id % 5 as k")._jdf.schema()


class Add:
    """Adds a number to each id; the number is another one in each run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = [i + self.number for i in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


STEPS: dict[str, Callable[[Any], Any]] = {
    "project": lambda df: df.where("id % 3 > 0").selectExpr("k", "id * 2 as twice"),
    "aggregate": lambda df: df.groupBy("k").agg(F.sum("id"), F.collect_set("id")),
    "sum of texts": lambda df: df.groupBy(F.col("k").cast("string")).agg(F.max(F.col("id").cast("string"))),
    "explode": lambda df: df.select("k", F.explode(F.array("id", "k"))),
    "union": lambda df: df.union(df.where("k > 2")),
    "shuffle": lambda df: df.repartition(4, "k").sortWithinPartitions("id"),
    "udf": lambda df: df.select(F.udf(lambda i: i + 1, "bigint")("id")),
    "map": lambda df: df.select("id").mapInArrow(Add(1), "id bigint"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_copy_gives_what_a_plan_of_its_own_gives(session: Any, step: str) -> None:
    """The first rows are in one partition, which Spark would not shuffle for an aggregation; later ones are not."""
    compute = STEPS[step]
    template = template_of(session, compute)
    for ids, partitions in ((range(1), 1), (range(5, 200), 4), (range(0), 2), (range(3, 90), 3)):
        rdd = rows_of(session, ids, partitions)
        planned = compute(frame_of(session, rdd, rows_schema(session)))
        expected = sorted(str(row) for row in planned.collect())
        repeated = RepeatedFrame(template, {"source": rdd}, {})
        assert sorted(str(row) for row in repeated.collect()) == expected
        assert repeated.schema == planned.schema
    assert sorted(str(row) for row in repeated.collect()) == expected, "it may be read twice"
    assert "*(1)" in repeated._template.copy({"source": rdd}, {}).toString(), "with generated code"


def test_an_aggregation_by_task_has_no_shuffle(session: Any) -> None:
    columns = F.sum("id").alias("total"), F.collect_set("id").alias("ids"), F.max(F.col("id").cast("string")).alias("m")
    for number in (1, 2, 3):
        rdd = empty_rdd(session)
        df = frame_of(session, rdd, rows_schema(session)).groupBy("k").agg(*columns[:number])
        total = output_ids(df._jdf.queryExecution().analyzed())["total"]
        template = PlanTemplate(df, {"source": rdd}, (), (), [total])
        assert "Exchange" not in template.copy({"source": rdd}, {}).toString()
        rows = RepeatedFrame(template, {"source": rows_of(session, range(40), 4)}, {}).collect()
        # Ten ids a task, of five keys.
        by_key = {k: [row.total for row in rows if row.k == k] for k in range(5)}
        assert by_key == {k: [20 * task + 5 + 2 * k for task in range(4)] for k in range(5)}
        assert "Exchange" in PlanTemplate(df, {"source": rdd}, (), (), [-1]).copy({"source": rdd}, {}).toString()


def test_each_copy_has_its_own_function(session: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(RepeatedFrame, "_has_settings", lambda _: True)
    schema = schema_of("id bigint")
    template = template_of(session, lambda df: map_batches(df.select("id"), Add(0), schema, "add"), ("add",))
    for number in (1, 10):
        functions = {"add": BatchFunction(Add(number), schema).to_java(session)}
        frame = RepeatedFrame(template, {"source": rows_of(session, range(3), 2)}, functions)
        discard(frame)

        def as_text(batches: Iterator[pa.RecordBatch], number: int = number) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_pydict({"text": [f"{i}/{number}" for i in batch.column(0).to_pylist()]})

        mapped = BatchFunction(as_text, schema_of("text string"))
        expected = [f"{i + number}/{number}" for i in range(3)]
        assert sorted(frame._collect_mapped(mapped, "as_text") or []) == sorted(expected)
        assert frame._collect_mapped(mapped, "as_text", only_first) == [f"{number}/{number}"]
        assert [row.id for row in frame.collect()] == [number, number + 1, number + 2]
        # It has been used as a DataFrame, whose rows Spark may have kept.
        assert frame._collect_mapped(mapped, "as_text") is None


def only_first(df: Any) -> Any:
    return df.where("id in (1, 10)")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda df: df.withColumn("r", F.rand()), id="random"),
        pytest.param(lambda df: df.selectExpr("uuid()"), id="uuid"),
        pytest.param(lambda df: df.withColumn("at", F.current_timestamp()), id="time"),
        pytest.param(lambda df: df.where("id > unix_timestamp()"), id="time in a condition"),
        pytest.param(lambda df: df.withColumn("at", F.lit("now").cast("timestamp")), id="text of a time"),
        pytest.param(lambda df: df.selectExpr("to_timestamp('now')"), id="another text of a time"),
        pytest.param(lambda df: df.selectExpr("cast('x' as int)"), id="error of planning"),
        pytest.param(lambda df: df.where("id > (select 3)"), id="subquery"),
        pytest.param(lambda df: df.join(df.sparkSession.range(3), "id"), id="table"),
        pytest.param(lambda df: df.limit(1), id="limit"),
        pytest.param(lambda df: df.sparkSession.range(3), id="nothing of it"),
        pytest.param(lambda df: df.groupBy("k").count().union(df.groupBy("k").count()), id="one shuffle for two"),
    ],
)
def test_what_depends_on_more_than_the_rows_has_no_template(session: Any, step: Callable[[Any], Any]) -> None:
    with pytest.raises(NoTemplateError):
        template_of(session, step)


class Tasks(sl.sinks.Sink):
    """Shows what its tasks return of the rows of an epoch."""

    def __init__(self) -> None:
        super().__init__(name="tasks", visibility="epoch")
        self.rows: Counter[str] = Counter()

    def write(self, df: Any, epoch: int) -> None:
        assert df.columns == ["user", "n"]
        for text in write_tasks(df, texts):
            self.rows.update(text.split())


def texts(batches: Iterator[pa.RecordBatch], attempt: Any) -> str:
    return " ".join(f"{row['user']}/{row['n']}" for batch in batches for row in batch.to_pylist())


def odd(row: Any) -> Any:
    if row.v % 7 == 0:
        raise ValueError("seven")
    return [(row.user, row.v)] if row.v % 2 else []


def program(rows: sl.Stream, sinks: dict[str, Any]) -> list[Any]:
    """A chain, an aggregation, a function that fails, a union, and several readers of the same rows."""
    counts = rows.key_by("user").process(Count(), output=small.OUTPUT, uid="count")
    odds = rows.flat_map(odd, "user string, v bigint", on_error="dead-letter")
    totals = odds.key_by("user").agg({"total": sl.agg.sum("v"), "n": sl.agg.count()}, uid="totals", parallelism=3)
    again = counts.where("n > 1").key_by("n").process(Count(), output="n bigint, m bigint", uid="again")
    streams = {
        "tasks": counts,
        "counts": counts.with_column("twice", F.col("n") * 2),
        "letters": odds.dead_letters.select("operator", "event"),
        "totals": totals,
        "again": again,
        "both": rows.select("user", "v").union(odds),
    }
    return [stream.to(sinks[name]) for name, stream in streams.items()]


def run_program(spark: Any, root: Path, local_dir: Path) -> dict[str, Counter[Any]]:
    names = ("counts", "letters", "totals", "again", "both")
    sinks: dict[str, Any] = {"tasks": Tasks()} | {name: sl.sinks.memory(name=name) for name in names}
    job = sl.Job(
        "templates",
        sinks=program(sl.stream(small.source(spark, root / "in")), sinks),
        checkpoints=sl.Checkpoints(root / "ck"),
        restart=sl.Restart.never(),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )
    for number in range(3):
        small.write_rows(root / "in", number, [(f"u{i % (number + 2)}", "a", i) for i in range(10 + number)])
    with job.start(spark) as run:
        settle(run)
    return {name: Counter(sink.rows) for name, sink in sinks.items()}


@pytest.mark.long
def test_a_program_of_many_steps_gives_the_same_in_both_ways(
    spark: Any, tmp_path: Path, local_dir: Path, plans: list[int], monkeypatch: Any
) -> None:
    repeated = run_program(spark, tmp_path / "repeated", local_dir / "repeated")
    # A plan with the aggregation in Spark, and one without.
    assert len(plans) <= 2, "no epoch was planned again"
    plans.clear()
    monkeypatch.setattr(FrameBuilder, "_template", lambda *_: None)
    planned = run_program(spark, tmp_path / "planned", local_dir / "planned")
    assert len(plans) == 3
    assert repeated == planned
    assert all(planned.values())


@pytest.mark.parametrize("fails", [False, True])
def test_epochs_are_planned_while_keepers_restore_and_again_if_that_failed(
    spark: Any, case: Case, plans: list[int], fails: bool
) -> None:
    """What a function of the program raises there, it raises again for the first epoch, or it was for that thread."""
    threads: list[str] = []

    def step(df: Any) -> Any:
        threads.append(threading.current_thread().name)
        if fails and threads[-1] == "strandline-plan":
            raise SystemExit("not in this thread")
        return df

    sink = sl.sinks.memory()
    for number in range(2):
        small.write_rows(case.root / "in", number, [("u", "a", 1)])
    rows = sl.stream(small.source(spark, case.root / "in")).transform(step)
    counts = rows.key_by("user").process(Count(), small.OUTPUT, uid="count")
    with case.job_of("ahead", counts.to(sink)).start(spark) as run:
        settle(run)
    assert small.rows_of(sink) == small.counted(["u", "u"])
    assert "strandline-plan" in threads
    assert len(plans) == 1 + fails


def test_a_job_ends_while_a_function_of_dataframes_does_not_return(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_END_S", 0.2)
    may_return = threading.Event()

    def step(df: Any) -> Any:
        if threading.current_thread().name == "strandline-plan":
            may_return.wait(60)
        return df

    rows = sl.stream(small.source(spark, case.root / "in")).transform(step)
    counts = rows.key_by("user").process(Count(), small.OUTPUT, uid="count")
    try:
        run = case.job_of("hangs", counts.to(sl.sinks.memory())).start(spark)
        run.stop(timeout=20)
        assert run.status().state == "stopped"
    finally:
        may_return.set()


def test_another_version_of_spark_may_have_no_templates(
    spark: Any, case: Case, plans: list[int], monkeypatch: Any
) -> None:
    def fail(*_: Any) -> None:
        raise Py4JError("there is no such method")

    monkeypatch.setattr(templates._Reader, "read", fail)
    sink = sl.sinks.memory()
    for number in range(2):
        small.write_rows(case.root / "in", number, [("u", "a", 1)])
    counts = sl.stream(small.source(spark, case.root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    with case.job_of("old", counts.to(sink)).start(spark) as run:
        settle(run)
    assert small.rows_of(sink) == small.counted(["u", "u"])
    # The first was tried, and each was planned.
    assert len(plans) == 3


@pytest.mark.long
def test_a_function_of_dataframes_may_return_something_else_in_each_epoch(
    spark: Any, case: Case, plans: list[int]
) -> None:
    changing, same, calls = sl.sinks.memory(), sl.sinks.memory(), []
    epochs = 8

    def change(df: Any) -> Any:
        calls.append(1)
        return df.withColumn("call", F.lit(len(calls)))

    for number in range(epochs):
        small.write_rows(case.root / "in", number, [("u", "a", 1)])
    rows = sl.stream(small.source(spark, case.root / "in"))
    kept = rows.transform(lambda df: df.where("v > 0").withColumn("w", F.udf(lambda v: v + 1, "bigint")("v")))
    with case.job_of("same", kept.select("w").to(same)).start(spark) as run:
        settle(run)
    assert len(plans) == 1
    assert [row.w for row in same.rows] == [2] * epochs
    plans.clear()
    with case.job_of("changing", rows.transform(change).select("call").to(changing)).start(spark) as run:
        settle(run)
    assert len({row.call for row in changing.rows}) == epochs
    # At first, a plan was made to be used again; from then on, in each epoch.
    assert len(plans) >= epochs


def test_a_function_of_an_epoch_may_read_its_rows_in_threads(spark: Any, case: Case) -> None:
    """A thread of Python has a thread of its own in the JVM, with other properties and no active session."""
    read: list[Counter[Any]] = [Counter(), Counter()]

    def both(df: Any, epoch: int) -> None:
        def take(at: int) -> None:
            read[at].update(map(tuple, df.collect()))

        threads = [threading.Thread(target=take, args=[at]) for at in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for number in range(3):
        small.write_rows(case.root / "in", number, [(f"u{number}", "a", 1), ("u", "a", 1)])
    counts = sl.stream(small.source(spark, case.root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    with case.job_of("threads", counts.to(sl.sinks.foreach_batch(both))).start(spark) as run:
        settle(run)
    assert read == [small.counted(["u", "u", "u", "u0", "u1", "u2"])] * 2


class Lengths(Tasks):
    """Shows the lengths of the maps of an epoch; may write in a thread, as a sink that writes to several systems does."""

    def __init__(self, *, in_thread: bool) -> None:
        super().__init__()
        self._in_thread = in_thread

    def write(self, df: Any, epoch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write_tasks, df, lengths).result() if self._in_thread else write_tasks(df, lengths)
        for text in written:
            self.rows.update(text.split())


def lengths(batches: Iterator[pa.RecordBatch], attempt: Any) -> str:
    return " ".join(str(len(row["m"])) for batch in batches for row in batch.to_pylist())


class Later(sl.KeyedProcess):
    """Emits its key when a timer fires, in an epoch without rows."""

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        ctx.timers.set_processing(ctx.now + timedelta(milliseconds=1))
        yield from ()

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterator[Any]:
        yield ctx.key, 1


@pytest.mark.parametrize(
    ("process", "sink"),
    [
        pytest.param(Later(), Lengths(in_thread=False), id="timers"),
        pytest.param(Later(), sl.sinks.noop(), id="timers, rows discarded"),
        pytest.param(Count(), Lengths(in_thread=True), id="a thread"),
    ],
)
def test_tasks_have_the_settings_of_the_session(spark: Any, case: Case, process: Any, sink: Any) -> None:
    """Spark reads this one in tasks, where two keys of a map are the same."""
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    try:
        small.write_rows(case.root / "in", 0, [("u", "a", 1), ("w", "a", 1)])
        rows = sl.stream(small.source(spark, case.root / "in"))
        counts = rows.key_by("user").process(process, small.OUTPUT, uid="count")
        maps = counts.select_expr("transform_keys(map('a', n, 'b', n), (k, v) -> 'x') as m")
        with case.job_of("settings", maps.to(sink)).start(spark) as run:
            settle(run)
            eventually(lambda: run.status().epoch > isinstance(process, Later), "an epoch for the timers")
        assert getattr(sink, "rows", {"1": 2}) == {"1": 2}
    finally:
        spark.conf.unset("spark.sql.mapKeyDedupPolicy")


class Earlier(sl.KeyedProcess):
    """Emits what came before."""

    before = sl.Value("string")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        if self.before.value is not None:
            yield ctx.key, self.before.value
        self.before.value = event.id


def test_pinned_rows_are_computed_once_also_if_no_sink_reads_an_operator(spark: Any, case: Case) -> None:
    """The operator's state and the other sink have the same results of a function, which differ between calls."""
    others, seen = sl.sinks.memory(), []

    def read_second(df: Any, epoch: int) -> None:
        if epoch > 1:
            seen.extend(row.id for row in df.collect())

    for number in range(2):
        small.write_rows(case.root / "in", number, [("u", "a", 1)])
    ids = sl.stream(small.source(spark, case.root / "in")).map(
        lambda row: (row.user, str(uuid4())), "user string, id string"
    )
    earlier = ids.key_by("user").process(Earlier(), "user string, id string", uid="earlier")
    with case.job_of("unread", ids.to(others), earlier.to(sl.sinks.foreach_batch(read_second))).start(spark) as run:
        settle(run)
    assert seen == [others.rows[0].id]


def test_functions_of_dataframes_may_give_columns_other_names_in_each_epoch(spark: Any, case: Case) -> None:
    sink, names = sl.sinks.memory(), ["x", "y"]

    def name(df: Any) -> Any:
        return df.select(F.col("v").alias(names[0]), (F.col("v") + 1).alias(names[1]))

    rows = sl.stream(small.source(spark, case.root / "in")).transform(name)
    with case.job_of("names", rows.select_expr("x - y as d").to(sink)).start(spark) as run:
        for number in range(3):
            small.write_rows(case.root / "in", number, [("u", "a", 1)])
            settle(run)
            names.reverse()
    assert [row.d for row in sink.rows] == [-1, 1, -1]


def write_tasks_(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["user", "n"])


write_tasks_.__name__ = "write_tasks"


def test_functions_of_users_may_have_the_name_of_ours(spark: Any, case: Case) -> None:
    sink = Tasks()
    small.write_rows(case.root / "in", 0, [("u", "a", 1)])
    rows = sl.stream(small.source(spark, case.root / "in")).select_expr("user", "v as n")
    mapped = rows.transform(lambda df: df.mapInArrow(write_tasks_, "user string, n bigint"))
    with case.job_of("name", mapped.to(sink)).start(spark) as run:
        settle(run)
    assert sink.rows == {"u/1": 1}


def test_an_epochs_dataframe_is_like_any_other(spark: Any, case: Case) -> None:
    """Columns are its attributes, and its schema belongs to its owner."""
    seen = []

    def change(df: Any, epoch: int) -> None:
        seen.append([field.name for field in df.schema.fields])
        seen.extend(map(tuple, df.where(df.discard > 0).select(df.collect_mapped).collect()))
        for field in df.schema.fields:
            field.name += "_"

    for number in range(2):
        small.write_rows(case.root / "in", number, [("u", "a", 1)])
    rows = sl.stream(small.source(spark, case.root / "in")).select_expr("v as discard", "user as collect_mapped")
    with case.job_of("schema", rows.to(sl.sinks.foreach_batch(change))).start(spark) as run:
        settle(run)
    assert seen == [["discard", "collect_mapped"], ("u",)] * 2


def test_functions_of_rows_are_sent_in_every_epoch(spark: Any, case: Case) -> None:
    """With what they refer to: a table that a sink of functions reads again, say."""
    sink, number = sl.sinks.memory(), [0]
    rows = sl.stream(small.source(spark, case.root / "in")).map(lambda row: (row.user, number[0]), "user string, n int")
    with case.job_of("sent", rows.to(sink)).start(spark) as run:
        for _ in range(3):
            small.write_rows(case.root / "in", number[0], [("u", "a", 1)])
            settle(run)
            number[0] += 1
    assert [row.n for row in sink.rows] == [0, 1, 2]


PRESENT = "timestamp'now'"
WITH_PRESENT: dict[str, Callable[[sl.Stream], sl.Stream]] = {
    "select": lambda rows: rows.select(F.expr(PRESENT).alias("at")),
    "select_expr": lambda rows: rows.select_expr(f"{PRESENT} as at"),
    "with_column": lambda rows: rows.with_column("at", F.when(F.col("v") > 0, F.expr(PRESENT))).select("at"),
    "where": lambda rows: rows.where(f"timestamp_micros(v) < {PRESENT}").select("v"),
    "transform": lambda rows: rows.transform(lambda df: df.selectExpr(f"{PRESENT} as at")),
    "agg": lambda rows: rows.key_by("user").agg({"at": sl.agg.max(PRESENT)}, uid="last").select("at"),
}


@pytest.mark.parametrize("step", WITH_PRESENT)
def test_literals_of_the_present_time_are_of_each_epoch(spark: Any, case: Case, step: str) -> None:
    """Spark's parser replaces them by the time, in a plan that says nothing of it."""
    sink = sl.sinks.memory()
    stream = WITH_PRESENT[step](sl.stream(small.source(spark, case.root / "in")))
    with case.job_of(step, stream.to(sink)).start(spark) as run:
        for number in range(3):
            # Of a time that is not reached when the program is written, nor in the first epoch.
            soon = time.time_ns() // 1000
            small.write_rows(case.root / "in", number, [("u", "a", soon)])
            settle(run)
    assert len({tuple(row) for row in sink.rows}) == 3
