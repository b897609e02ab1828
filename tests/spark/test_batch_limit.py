"""Spark's limit of bytes of an Arrow batch: jobs whose batches cannot reach it do not measure them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.functions import udtf

import strandline as sl
from strandline.spark.base import batch_limit
from strandline.spark.base.batch_limit import UNBOUNDED, may_run_python, row_bytes
from strandline.spark.base.ddl import schema_of
from strandline.spark.base.mapping import BatchFunction, map_batches
from strandline.spark.base.templates import PlanTemplate, RepeatedFrame, empty_rdd, frame_of
from strandline.spark.keepers.exchange import clone_session, prepare_session
from strandline.spark.sinks.tasks import write_tasks
from tests.spark.harness import Case, eventually

pytestmark = pytest.mark.spark
_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def session(spark: Any, monkeypatch: Any) -> Iterator[Any]:
    """A session with the settings of epochs, in a thread that Spark has given them to, as it does for a batch."""
    monkeypatch.setattr(RepeatedFrame, "_has_settings", lambda _: True)
    session = clone_session(spark)
    prepare_session(session)
    spark.sparkContext.setLocalProperty(_ROWS, session.conf.get(_ROWS))
    yield session
    for name in (_ROWS, _LIMIT):
        spark.sparkContext.setLocalProperty(name, None)


def limit_of_job(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the limit that the tasks of the job read."""
    for _ in batches:
        pass
    context = TaskContext.get()
    yield pa.RecordBatch.from_pydict({"limit": [str(context.getLocalProperty(_LIMIT))]})


def limits(session: Any, columns: list[str], *, before: float = 0.0, step: Any = None) -> list[str] | None:
    """Return the limits that the tasks of a job read over a row of these columns."""
    rdd = empty_rdd(session)
    rows = session.range(0, 1, 1, 1).selectExpr(*columns)
    frame = frame_of(session, rdd, rows._jdf.schema())
    template = PlanTemplate(step(frame) if step else frame, {"source": rdd}, (), ())
    repeated = RepeatedFrame(template, {"source": rows._jdf.queryExecution().toRdd()}, {}, before)
    return repeated._collect_mapped(BatchFunction(limit_of_job, schema_of("limit string")), "limit")


NUMBER = "value bigint"
NUMBERS = ["id as a", "named_struct('c', 1d, 'd', true) as b"]
FREE = [str((1 << 31) - 1)]
MEASURED = ["None"]


def test_a_job_of_numbers_measures_nothing(session: Any) -> None:
    assert limits(session, NUMBERS) == FREE
    assert session.sparkContext.getLocalProperty(_LIMIT) is None, "other jobs of the thread do"


@pytest.mark.parametrize(
    "column", ["cast(id as string) as a", "array(id) as a", "named_struct('b', cast('x' as binary)) as a"]
)
def test_rows_of_any_size_are_measured(session: Any, column: str) -> None:
    assert limits(session, [*NUMBERS[1:], column]) == MEASURED


def test_a_function_of_texts_anywhere_in_the_plan_has_the_job_measured(session: Any) -> None:
    texts = lambda df: map_batches(  # noqa: E731
        df.selectExpr("cast(a as string) as t"), lambda batches: batches, schema_of("t string")
    ).selectExpr("cast(t as bigint) as a", "named_struct('c', 1d, 'd', true) as b")
    udf = lambda df: df.withColumn("a", F.udf(lambda text: int(text), "bigint")(F.col("a").cast("string")))  # noqa: E731
    assert limits(session, NUMBERS, step=texts) == MEASURED
    assert limits(session, NUMBERS, step=udf) == MEASURED
    assert limits(session, NUMBERS, before=UNBOUNDED) == MEASURED, "and in what the job reads"


@pytest.mark.parametrize(("name", "value"), [(_ROWS, "0"), (_ROWS, "-1"), (_ROWS, "5000000"), (_LIMIT, "64MB")])
def test_batches_that_could_reach_the_limit_of_the_tasks_are_measured(session: Any, name: str, value: str) -> None:
    session.sparkContext.setLocalProperty(name, value)
    assert limits(session, NUMBERS) == [str(value if name == _LIMIT else None)]
    assert session.sparkContext.getLocalProperty(name) == value


def test_the_defaults_of_spark(spark: Any) -> None:
    defaults = spark._jsparkSession.newSession().sessionState().conf()
    assert defaults.arrowMaxRecordsPerBatch() == batch_limit._DEFAULT_ROWS
    assert defaults.arrowMaxBytesPerBatch() >= batch_limit._DEFAULT_BYTES


def test_sizes_are_no_less_than_arrows(session: Any) -> None:
    ddl = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h date, i timestamp, j timestamp_ntz, "
        "k decimal(38, 3), l struct<m: int, n: struct<o: bigint>>, p interval day to second"
    )
    rows = session.createDataFrame([], ddl)
    size = row_bytes(rows._jdf.schema())
    schema = pa.schema([(str(at), kind) for at, kind in enumerate(_fixed())])
    arrow = pa.RecordBatch.from_arrays([pa.nulls(50_000, kind) for kind in _fixed()], schema=schema).nbytes / 50_000
    assert arrow < size < 2 * arrow
    for ddl in ("a string", "a map<int, int>", "a variant", "a struct<b: array<int>>"):
        assert row_bytes(session.createDataFrame([], ddl)._jdf.schema()) == UNBOUNDED


def _fixed() -> list[pa.DataType]:
    inner = pa.struct([("m", pa.int32()), ("n", pa.struct([("o", pa.int64())]))])
    return [
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(),
        pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(38, 3), inner, pa.duration("us"),
    ]  # fmt: skip


class Twice:
    """A table function."""

    def eval(self, each: int) -> Iterator[tuple[str]]:
        yield (str(each),)
        yield (str(each),)


def test_python_functions_of_a_source_are_seen(session: Any) -> None:
    rows = session.range(1)
    assert not may_run_python(rows.groupBy("id").count())
    assert may_run_python(rows.mapInArrow(lambda batches: batches, "id bigint").where("id > 0"))
    assert may_run_python(rows.select(F.udf(lambda each: each, "bigint")("id").alias("id")).union(rows))
    session.udtf.register("twice", udtf(Twice, returnType="t string"))
    assert may_run_python(session.sql("select t from twice(3)"))
    stream = session.readStream.format("rate").load()
    assert not may_run_python(stream)
    assert may_run_python(
        stream.groupBy("value").applyInPandas(lambda frame: frame, "timestamp timestamp, value bigint")
    )


class Limits(sl.sinks.Sink):
    """Keeps the limits that its tasks read."""

    def __init__(self) -> None:
        super().__init__(name="limits", visibility="epoch")
        self.read: set[str] = set()

    def write(self, df: Any, epoch: int) -> None:
        self.read.update(write_tasks(df, limit_of_task))


def limit_of_task(batches: Iterator[pa.RecordBatch], attempt: Any) -> str:
    return next(limit_of_job(batches)).column(0)[0].as_py()


def numbers(spark: Any) -> Any:
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().select("value")


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        pytest.param(numbers, NUMBER, FREE, id="numbers"),
        pytest.param(numbers, "value string", MEASURED, id="texts"),
        pytest.param(lambda spark: numbers(spark).mapInArrow(lambda rows: rows, NUMBER), NUMBER, MEASURED, id="python"),
    ],
)
def test_the_epochs_of_a_job(spark: Any, case: Case, source: Any, output: str, expected: list[str]) -> None:
    sink = Limits()
    rows = sl.stream(source(spark)).map(lambda row: (row.value,) if output == NUMBER else (str(row.value),), output)
    settings = sl.Settings(parallelism=2, local_dir=case.local_dir)
    checkpoints = sl.Checkpoints(case.root / "ck")
    job = sl.Job(
        "limits", sinks=[rows.to(sink)], checkpoints=checkpoints, settings=settings, restart=sl.Restart.never()
    )
    with job.start(spark):
        eventually(lambda: sink.read, "a limit")
    assert sink.read == set(expected)
