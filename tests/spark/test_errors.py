"""What is wrong is said so that its author can act: which operator, which key, which event, and none of Spark's words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import strandline as sl
from tests.spark import functions, small
from tests.spark.harness import Case, eventually, keepers, settle

pytestmark = pytest.mark.spark

NOISE = (
    "Py4J",
    "org.apache.spark",
    "SparkException",
    "PythonException",
    "pyspark/",
    "strandline/runtime",
    "Job aborted",
)


def fail(spark: Any, case: Case, process: Any, rows: list[tuple[Any, ...]], **given: Any) -> Any:
    """Run a job that must fail; return its error."""
    directory = case.root / "in"
    stream = sl.stream(small.source(spark, directory))
    small.write_rows(directory, 0, rows)
    run = small.job(stream, case.root, case.local_dir, process=process, **given).start(spark)
    with pytest.raises(sl.errors.StrandlineError) as caught:
        run.await_termination(60)
    assert run.status().state == "failed"
    assert caught.value.discreet == run.status().last_failure
    assert not keepers(case.local_dir)
    for noise in NOISE:
        assert noise not in str(caught.value)
    return caught.value


def test_user_code_that_raises(spark: Any, case: Case) -> None:
    rows = [("ann", "a", 1), ("bob", "b", 13), ("ann", "a", 2)]
    # More restarts would be allowed: the same event would only come again.
    error = fail(spark, case, functions.Boom(), rows, restart=sl.Restart(attempts=5, delay="10ms"))
    assert type(error) is sl.errors.UserCodeError
    message = str(error)
    assert "operator 'count': on_event of Boom raised for key 'bob', in the event" in message
    assert "ZeroDivisionError" in message
    assert "user='bob', kind='b', v=13" in message
    assert "in divide" in message
    assert "return 100 // (v - 13)" in message
    assert (error.operator, error.key) == ("count", "'bob'")
    assert message.count("Traceback") == 1


def test_an_expression_that_rows_do_not_fit(spark: Any, case: Case, capfd: Any) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))
    small.write_rows(case.root / "in", 0, [("ann", "a", (1 << 63) - 1), ("ann", "b", 1)])
    total = stream.key_by("user").agg(v=sl.agg.sum("v"), uid="total")
    # More restarts would be allowed: the same rows would only come again.
    job = case.job_of("small", total.to(sl.sinks.memory()), restart=sl.Restart(attempts=5, delay="10ms"))
    run = job.start(spark)
    with pytest.raises(sl.errors.UserCodeError) as caught:
        run.await_termination(60)
    assert "rows do not fit an expression of the program: [ARITHMETIC_OVERFLOW]" in str(caught.value)
    assert "cast to a wider type" in str(caught.value)
    assert "org.apache.spark" not in "".join((str(caught.value), *capfd.readouterr()))
    assert run.status().restarts == 0


def test_sums_are_exact_or_refused_whatever_the_session_says_of_overflow(spark: Any, case: Case) -> None:
    """Spark, when it is not ANSI, gave another number, or null, where it had added rows up before they were sent."""
    small.write_rows(case.root / "in", 0, [("ann", "a", 1)] * 20)
    values = sl.stream(small.source(spark, case.root / "in"))
    halves = {}
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        for kind, most in (("bigint", (1 << 63) - 1), ("decimal(38,0)", 10**38 - 1)):
            given = values.select_expr(
                "user", f"cast('{most}' as {kind}) `it's v`", f"cast('{most // 20}' as {kind}) v"
            )
            large = given.key_by("user").agg({"it's v": sl.agg.sum("it's v")}, uid="large")
            run = case.job_of(kind[:3], large.to(sl.sinks.memory())).start(spark)
            said = r"\[ARITHMETIC_OVERFLOW\] the sum of `it's v` is too large"
            with pytest.raises(sl.errors.UserCodeError, match=said):
                run.await_termination(60)
            halves[most // 20 * 20] = given.key_by("user").agg(v=sl.agg.sum("v"), uid=kind[:3])
        shown = {half: sl.sinks.memory(name=f"of-{half}") for half in halves}
        with case.job_of("half", *(halves[half].to(shown[half]) for half in halves)).start(spark) as run:
            settle(run)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert {half: small.rows_of(sink) for half, sink in shown.items()} == {half: {("ann", half): 1} for half in halves}


def test_the_memory_backends_limit(spark: Any, case: Case) -> None:
    rows = [("ann", "a", i) for i in range(40)]
    settings = {"backend": "memory", "memory_backend_limit": "4KB"}
    error = fail(spark, case, functions.Hoard(), rows, settings=settings, restart=sl.Restart(attempts=5))
    assert type(error) is sl.errors.StateLimitError
    assert error.limit_bytes == 4096 < error.size_bytes
    assert "use backend='rocksdb'" in str(error)


def test_a_step_finds_the_names_and_columns_of_an_earlier_one(spark: Any, tmp_path: Path) -> None:
    stream = sl.stream(small.source(spark, tmp_path / "in")).with_column("ts", F.timestamp_seconds("v"))
    known = spark.createDataFrame([("ann", 1)], "user string, n int")
    aliased = stream.transform(lambda df: df.alias("e").join(known.alias("k"), F.expr("e.user = k.user")))
    assert aliased.select("e.user", "k.n").columns == ["user", "n"]
    assert aliased.watermark("ts").select("e.user", "k.n").columns == ["user", "n"]
    joined = stream.transform(lambda df: df.join(known, df["user"] == known["user"]))
    alone = joined.transform(lambda df: df.drop(known["user"]))
    assert alone.columns == ["seq", "user", "kind", "v", "ts", "n"]
    assert alone.key_by("user").agg(n=sl.agg.count("ts - ts"), uid="n").columns == ["user", "n"]


def test_steps_across_rows(spark: Any, tmp_path: Path) -> None:
    """They would run once an epoch: what they gave would depend on where the stream is cut."""
    df = small.source(spark, tmp_path / "in")
    stream, known = sl.stream(df), spark.createDataFrame([("ann", 1)], "user string, age int")
    behind = stream.key_by("user").agg(n=sl.agg.count(), uid="n")
    timed = sl.stream(df.withColumn("ts", F.timestamp_seconds("v"))).watermark("ts")
    clock = spark.readStream.format("rate").load()
    over = Window.partitionBy("user").orderBy("v")

    def sql(query: str) -> Any:
        def step(rows: Any) -> Any:
            rows.createOrReplaceTempView("rows")
            known.createOrReplaceTempView("known")
            return rows.sparkSession.sql(query)

        return lambda s: s.transform(step)

    def step(function: Any) -> Any:
        return lambda s: s.transform(function)

    at_once = "it would see the rows of one epoch at a time"
    again = "would emit the table's rows again"
    for use, *said in (
        (step(lambda d: d.dropDuplicates(["user"])), "has dropDuplicates", at_once, "process("),
        (step(lambda d: d.distinct()), "has dropDuplicates"),
        (sql("select distinct user from rows"), "has distinct"),
        (step(lambda d: d.groupBy("user").count()), "transform() in test_errors.py:", "has an aggregation", ".agg("),
        (step(lambda d: d.groupBy("user").applyInPandas(lambda p: p, "user string")), "has groupBy().applyInPandas"),
        (lambda s: s.select(F.sum("v")), "select() in test_errors.py:", "has an aggregation"),
        (lambda s: s.select_expr("count(*)"), "select_expr() in", "has an aggregation"),
        (sql("with c as (select * from rows) select max(v) from c"), "has an aggregation"),
        (lambda s: s.with_column("n", F.row_number().over(over)), "with_column() in", "a window function", "order_by"),
        (lambda s: s.select_expr("sum(v) over (partition by user)"), "a window function"),
        (step(lambda d: d.orderBy("v")), "has orderBy", "order_by=", "sortWithinPartitions"),
        (step(lambda d: d.limit(3)), "has limit"),
        (step(lambda d: d.offset(3)), "has offset"),
        (step(lambda d: d.join(d, "user")), "has a join of two streams", "b.key_by("),
        (step(lambda d: d.join(clock, d.v == clock.value)), "has a join of two streams"),
        (step(lambda d: d.select("v").union(clock.select("value"))), "uses another stream"),
        (step(lambda d: clock), "uses another stream"),
        (step(lambda d: d.join(known, "user", "right")), "keeps rows of a table", again, "'left'"),
        (step(lambda d: known.join(d, "user", "left_anti")), "keeps rows of a table", again),
        (step(lambda d: known.join(d, "user", "full")), "keeps rows of a table", again),
        (step(lambda d: d.select("user").union(known.select("user"))), "has a union with a table", again),
        (step(lambda d: d.select("user").exceptAll(known.select("user"))), "has exceptAll"),
        (step(lambda d: d.select("user").intersect(known.select("user"))), "has intersect"),
        (step(lambda d: known), "returns rows of a table", again),
        (lambda s: s.with_column("id", F.monotonically_increasing_id()), "start its numbers again", "uuid()"),
        (
            lambda s: s.select(*(F.lit(i).alias(f"c{i}") for i in range(30)), F.monotonically_increasing_id()),
            "start its numbers again",
        ),
        (
            lambda s: s.with_column("w", F.session_window(F.timestamp_seconds("v"), "5 minutes")),
            "a session window",
            "window(sl.Session(",
        ),
        # PySpark 4.1 has no such step.
        *(
            [(step(lambda d: d.zipWithIndex()), "start its numbers again")]
            if hasattr(DataFrame, "zipWithIndex")
            else []
        ),
        (step(lambda d: d.limit(d.count())), "transform() in test_errors.py:", "reads rows", "foreach_batch"),
        (step(lambda d: d.cache()), "reads rows"),
        (step(lambda d: None), "returned None, expected a DataFrame"),
        (lambda s: s.where(df.v > 0), "where() in", "F.col('v')"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            use(stream)
        assert [part for part in said if part not in str(caught.value)] == []
        assert "\n" not in caught.value.message
    with pytest.raises(sl.errors.ConfigurationError, match="has dropDuplicates"):
        behind.transform(lambda d: d.dropDuplicates())
    # What is of one row, or of a table alone, stays Spark's.
    per_user = known.groupBy("user").agg(F.max("age").alias("age")).orderBy("user").limit(5)
    for fits in (
        lambda s: s.transform(lambda d: d.join(per_user, "user", "left")),
        lambda s: s.transform(lambda d: known.join(d, "user")),
        lambda s: s.transform(lambda d: d.join(known, "user", "left_anti")),
        lambda s: s.transform(lambda d: d.union(d).sortWithinPartitions("v").repartition(2, "user")),
        lambda s: s.transform(lambda d: d.withColumn("at", F.timestamp_seconds("v")).withWatermark("at", "1 minute")),
        lambda s: s.with_column("session_window", F.window(F.timestamp_seconds("v"), "5 minutes", "1 minute")),
        lambda s: s.select("user", F.explode(F.sequence(F.lit(0), "v"))),
        lambda s: s.select(F.aggregate(F.array("v"), F.lit(0).cast("bigint"), lambda a, b: a + b), F.rand(), F.uuid()),
        sql("select user, c from rows, lateral (select count(*) c from explode(array(v)))"),
        sql("select * from rows where user in (select user from known) and v < (select max(age) from known)"),
    ):
        assert fits(stream).columns
        assert fits(timed).columns


def test_a_step_of_all_columns_does_not_take_in_those_that_rows_carry_unseen(spark: Any, tmp_path: Path) -> None:
    """`*` stands for them, too: they would be in what a job shows."""
    stream = sl.stream(small.source(spark, tmp_path / "in").withColumn("at", F.timestamp_seconds("v")))
    timed = stream.watermark("at", per="user")
    behind = timed.key_by("user").process(functions.Count(), output="user string, v bigint", uid="x")

    def step(function: Any) -> Any:
        return lambda s: s.transform(function)

    for use in (
        lambda s: s.select(F.to_json(F.struct("*")).alias("value")),
        lambda s: s.select_expr("user", "xxhash64(*) as h"),
        lambda s: s.with_column("all", F.explode(F.array(F.struct("*")))),
        # Spark's text of a long expression leaves out what comes last.
        step(lambda d: d.withColumns({f"c{i}": F.lit(i) for i in range(30)}).withColumn("all", F.struct("*"))),
        lambda s: s.key_by("user").agg(n=sl.agg.count_distinct("struct(*)"), uid="n"),
        step(lambda d: d.na.drop()),
        step(lambda d: d.na.fill(0)),
        step(lambda d: d.toDF(*(name.upper() for name in d.columns))),
        step(
            lambda d: d.select("v", *(c for c in d.columns if c.endswith("time"))).unpivot("v", None, "name", "value")
        ),
    ):
        for each in (timed, behind):
            with pytest.raises(sl.errors.ConfigurationError, match="the hidden column __strandline_time") as caught:
                use(each)
            assert "F.struct(*stream.columns)" in str(caught.value)
    assert stream.select(F.to_json(F.struct("*")).alias("value")).columns == ["value"]
    whole = sl.agg.max_by("struct(*)", "v")
    assert stream.key_by("user").agg(most=whole, uid="most").columns == ["user", "most"]
    assert timed.key_by("user").agg(most=sl.agg.max_by("struct(user, v)", "v"), uid="most").columns == ["user", "most"]
    for fits in (
        lambda s: s.select("*", (F.col("v") + 1).alias("w")),
        lambda s: s.select(F.to_json(F.struct(*s.columns)).alias("value")),
        step(lambda d: d.na.drop(subset=["user"]).withColumnRenamed("v", "w").drop("user")),
        step(lambda d: d.where("v > 1").unionByName(d.where("v < 1"))),
        step(lambda d: d.withColumn("pair", F.concat("user", F.lit("\0"), "v")).where(F.col("user") != F.lit("\0"))),
        step(lambda d: d.mapInPandas(lambda pandas: pandas, d.schema)),
    ):
        for each in (timed, behind):
            assert fits(each)._node.columns.is_timed


def test_sources_that_cannot_work(spark: Any, tmp_path: Path) -> None:
    df = small.source(spark, tmp_path / "in")
    timed = df.selectExpr("user", "cast(v as timestamp) t").withWatermark("t", "1 minute")
    for wrong, said in (
        (spark.range(3), "a batch DataFrame"),
        (spark, "expected a Structured Streaming DataFrame"),
        (df.groupBy("user").count(), "an aggregation"),
        (df.dropDuplicates(["user"]), "dropDuplicates"),
        (timed.join(timed.withColumnRenamed("t", "t2"), "user"), "a join of two streams"),
        (timed.groupBy("t", "user").count().where("count > 1"), "an aggregation"),
        (df.orderBy("v"), "orderBy"),
        (spark.readStream.format("socket").option("host", "h").option("port", 1).load(), "'socket' cannot be rewound"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            sl.stream(wrong)
        assert said in str(caught.value)
    # A join with a batch DataFrame keeps no state.
    sl.stream(df.join(spark.createDataFrame([("ann", 1)], "user string, age int"), "user"))


def test_what_leads_to_no_sink_is_said_at_the_start(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def started(*outputs: Any) -> list[str]:
        """Return what a start says, which gets no further than that."""
        # A store of one process: refused after everything that is said of the program.
        job = sl.Job("small", sinks=outputs, checkpoints=sl.Checkpoints("memory://"))
        caplog.clear()
        with pytest.raises(sl.errors.ConfigurationError, match="a store of one process"):
            job.start(spark)
        return [record.getMessage() for record in caplog.records]

    def line(code: str) -> int:
        lines = Path(__file__).read_text().splitlines()
        return next(at for at, text in enumerate(lines, 1) if text.strip().startswith(code))

    source = sl.stream(small.source(spark, tmp_path / "in"), name="clicks")
    counts = source.key_by("user").process(functions.Count(), output=small.OUTPUT, uid="count")
    shown = counts.to(sl.sinks.memory())
    assert started(shown) == []
    again = counts.key_by("user").process(functions.Count(), output=small.OUTPUT, uid="again")
    (said,) = started(shown)
    assert f"the operator 'again' (Count, test_errors.py:{line('again = counts')}) leads to no sink of a job" in said
    lost = again.to(sl.sinks.files(str(tmp_path / "out"), name="results"))
    (said,) = started(shown)
    assert f"the output to the sink 'results' (test_errors.py:{line('lost =')}) is in no job's sinks=[…]" in said
    assert started(shown, lost) == []
    # Another job of this program has it: that is said of neither.
    assert started(shown) == []
    # A pipeline on a source of its own, forgotten as a whole.
    other = sl.stream(small.source(spark, tmp_path / "other"), name="payments")
    forgotten = other.key_by("user").agg(v=sl.agg.sum("v"), uid="forgotten")
    (said,) = started(shown)
    assert f"the operator 'forgotten' (agg, test_errors.py:{line('forgotten =')}) leads to no sink of a job" in said
    # Nobody can see it any more, as what a cell of a notebook made that ran again.
    del other, forgotten
    assert started(shown) == []


def test_a_job_that_would_read_its_own_results(spark: Any, tmp_path: Path) -> None:
    source = sl.stream(small.source(spark, tmp_path / "in"))

    def started(*outputs: Any) -> str:
        job = sl.Job("small", sinks=outputs, checkpoints=sl.Checkpoints(tmp_path / "ck"))
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            job.start(spark)
        assert not (tmp_path / "ck").exists()
        return str(caught.value)

    for out in ("in", "in/out"):
        said = started(source.to(sl.sinks.files(str(tmp_path / out), format="json")))
        assert f"a sink writes to {tmp_path / out}, and the job reads {tmp_path / 'in'}" in said
    both = [source.to(sl.sinks.files(str(tmp_path / "out"), format=kind, name=kind)) for kind in ("json", "parquet")]
    assert f"two sinks write to {tmp_path / 'out'}, as json and as parquet" in started(*both)


@pytest.mark.parametrize(("name", "value"), [("spark.speculation", "true"), ("spark.executor.pyspark.memory", "1g")])
def test_settings_of_the_core_that_keepers_do_not_bear_are_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "_conf", spark.sparkContext.getConf().set(name, value))
    job = small.job(sl.stream(small.source(spark, tmp_path / "in")), tmp_path, tmp_path / "l")
    with pytest.raises(sl.errors.ConfigurationError, match=f"{name} is {value}"):
        job.start(spark)
    assert not (tmp_path / "ck").exists()


def test_spark_connect_is_refused(spark: Any, tmp_path: Path) -> None:
    class SparkSession:
        """A session as Spark Connect's client makes them, as far as can be told from outside."""

    SparkSession.__module__ = "pyspark.sql.connect.session"
    stream = sl.stream(small.source(spark, tmp_path / "in"))
    job = small.job(stream, tmp_path, tmp_path / "l")
    with pytest.raises(sl.errors.ConfigurationError, match="Spark Connect session, which Strandline does not support"):
        job.start(SparkSession())  # type: ignore[arg-type]

    class DataFrame:
        sparkSession = SparkSession()

    DataFrame.__module__ = "pyspark.sql.connect.dataframe"
    with pytest.raises(sl.errors.ConfigurationError, match="Spark Connect"):
        sl.stream(DataFrame())  # type: ignore[arg-type]
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_no_java(tmp_path: Path, home: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
    environment.update(PATH=str(tmp_path), **({"JAVA_HOME": home} if home else {}))
    code = "import strandline as sl\ntry: sl.session()\nexcept sl.errors.ConfigurationError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "Spark needs Java, and none was found" in done.stdout
    assert (home or "no 'java' on the PATH") in done.stdout
    assert "install Java 17 or 21" in done.stdout


def test_a_checkpoint_directory_that_cannot_be_written(spark: Any, case: Case) -> None:
    """The job goes on, the checkpoint fails for everyone to see, and later ones complete again."""
    checkpoints, sink = case.checkpoints(None, tolerable_failures=None), sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    with small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=checkpoints).start(spark) as run:
        case.add(1)
        settle(run)
        # What is there stays, as the first checkpoint needs it; where new files would go is nearly always no directory.
        shared = case.root / "ck" / "small" / "shared"
        there = {path.name for path in shared.iterdir()}
        blocked = [shared / f"{number:02x}" for number in range(256) if f"{number:02x}" not in there]
        for path in blocked:
            path.write_text("this is no directory")
        case.add(1)
        run.process_all_available(60)
        with pytest.raises(sl.errors.CheckpointError, match="checkpoint 2 failed"):
            run.checkpoint(60)
        case.add(1)
        run.process_all_available(60)
        status = run.status()
        assert (status.state, status.epoch, status.restarts) == ("running", 3, 0)
        assert status.checkpoints["failed"] == 1
        assert [c.status for c in run.checkpoints()] == ["completed", "failed"]
        assert "upload failed" in run.checkpoints()[-1].failure
        for path in blocked:
            path.unlink()
        settle(run)
        assert run.checkpoints()[-1].status == "completed"
    assert small.rows_of(sink) == small.counted([event["user"] for event in case.events])


def test_failed_checkpoints_end_the_job_where_none_is_tolerated(spark: Any, case: Case) -> None:
    case.add(1)
    checkpoints = case.checkpoints(None, tolerable_failures=0)
    stream = sl.stream(small.source(spark, case.root / "in"))
    run = small.job(stream, case.root, case.local_dir, checkpoints=checkpoints).start(spark)
    run.process_all_available(60)
    (case.root / "ck" / "small" / "shared").write_text("this is no directory")
    with pytest.raises(sl.errors.CheckpointError, match="checkpoint 1 failed"):
        run.checkpoint(60)
    with pytest.raises(sl.errors.CheckpointError, match="1 checkpoints failed in a row, 0 are tolerated"):
        run.await_termination(60)
    assert eventually(lambda: not keepers(case.local_dir), "keepers ended")
