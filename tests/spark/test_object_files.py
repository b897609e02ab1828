"""The file sink in object storage, on trial without a JVM, and its formats as Spark and others read them."""

from __future__ import annotations

import datetime
import decimal
import io
import threading
import uuid
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, LongType, StructField, StructType, TimestampType

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation
from strandline.spark.base.filesystem import ObjectFiles
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.files import sink_for_pending
from strandline.spark.sinks.objects import ObjectFormat
from strandline.storage.place import Place
from strandline.storage.retrying import RetryingStore
from strandline.testing.sinks.conformance import Check, Promise, Trial, checks, name_of
from strandline.testing.sinks.trial import Crash
from tests.ends import inprocess
from tests.soak import soaking
from tests.storage.test_remote import SECRET, MeetingWrites

SESSION: Any = inprocess.Session()


def shown(url: str, options: dict[str, str]) -> dict[str, bytes]:
    """Return what is directly below a url."""
    store = Place(url=url, options=options).store()
    return {info.path: store.get(info.path) for info in store.list("") if "/" not in info.path}


def trial_at(s3: Any, crashes: int = 2) -> Trial:
    url = s3.url(f"files-{uuid.uuid4().hex[:8]}")

    def visible() -> list[int]:
        return [n for data in shown(url, s3.options).values() for n in pq.read_table(io.BytesIO(data))["n"].to_pylist()]

    def left() -> list[str]:
        return [
            info.path for info in Place(url=url, options=s3.options).store().list("_strandline") if "/g" in info.path
        ]

    trial = Trial(SESSION, lambda: sl.sinks.files(url, storage_options=s3.options), visible, left)
    trial.crashes = crashes
    return trial


def test_text_keeps_the_bytes_that_are_no_utf8() -> None:
    file = ObjectFormat("text", {}).open(pa.schema([("v", pa.string())]))
    column = pa.array([b"ok", b"\xff\xfe", None], pa.binary()).view(pa.string())
    file.add(pa.table({"v": column}))
    assert file.finish() == b"ok\n\xff\xfe\n\n"


@pytest.mark.parametrize("crashes", [2, *soaking([15])])
@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING, Promise.TAKES_BACK), ids=name_of)
def test_files_in_object_storage(s3: Any, check: Check, crashes: int) -> None:
    check(trial_at(s3, crashes))


def test_a_copy_that_was_not_the_end_of_it(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the copy and the deletion of what was copied."""
    trial = trial_at(s3)
    sink = trial.start()
    pending = trial.stage(sink, 1, tasks=2)

    def crash(*paths: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RetryingStore, "delete", crash)
        with pytest.raises(Crash):
            sink.commit(pending)
    trial.start(pending, 1)
    trial.expect(1)


def test_an_object_whose_answer_was_lost_is_ones_own() -> None:
    """Object storage's client tries again by itself, and finds what it has written."""

    class Forgetting(MeetingWrites):
        objects: ClassVar[dict[str, bytes]] = {}

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(412 if self.path in self.objects else 500)
            self.objects.setdefault(self.path, data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true", "region": "r"}
        files = ObjectFiles("s3://bucket/dir", {**options, "access_key_id": "AKIA", "secret_access_key": SECRET})
        assert files.create("one", b"1")
        assert not files.create("one", b"2")
        server.shutdown()


def test_storage_that_does_not_copy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryingStore, "take", lambda *_: False)
    trial = trial_at(s3)
    sink = trial.start()
    sink.commit(trial.stage(sink, 1))
    trial.expect(1)


def test_orc(s3: Any) -> None:
    """The tests' JVMs lack what Spark needs to read decimals of it."""
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    schema = StructType(
        [StructField("n", LongType()), StructField("d", DecimalType(20, 3)), StructField("t", TimestampType())]
    )
    rows = [(1, decimal.Decimal("1.500"), at), (2, None, None)]
    url = s3.url(f"orc-{uuid.uuid4().hex[:8]}")
    sink = sl.sinks.files(url, format="orc", storage_options=s3.options)
    trial = Trial(SESSION, lambda: sink)
    trial.start(sink=sink)
    frame: Any = inprocess.Given(schema, rows)
    sink.commit(trial.write(sink, 1, frame))
    ((name, data),) = shown(url, s3.options).items()
    assert name.endswith(".orc")
    assert [tuple(row.values()) for row in orc.read_table(io.BytesIO(data)).to_pylist()] == rows


@pytest.mark.spark
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("json", {"timestampFormat": "yyyy-MM-dd", "compression": "gzip"}),
        ("csv", {"Header": True, "SEP": ";"}),
        ("csv", {"header": True, "quoteAll": True, "sep": "\\t"}),
        ("parquet", {"compression": "zstd"}),
    ],
    ids=["json", "csv", "csv in quotes", "parquet"],
)
def test_formats_are_those_of_spark(spark: Any, s3: Any, tmp_path: Path, form: str, options: dict[str, Any]) -> None:
    """What tasks of ours write, Spark reads as what it has written itself."""
    nested = ["array(id, null) as list", "map('a', id) as m", "named_struct('x', id, 'y', 'z') as s"]
    df = spark.range(7).selectExpr(
        "id", "if(id = 3, null, concat('a;\"', id)) as `na.me`", "cast(id as decimal(20, 3)) as d", "id / 3 as x",
        "timestamp '2026-01-02 03:04:05.678901' as at", "date '2026-01-02' as day", "id > 2 as b",
        "cast(id as tinyint) as tiny", *(() if form == "csv" else nested),
    )  # fmt: skip
    url = s3.url(f"forms-{uuid.uuid4().hex[:8]}")
    sink = sl.sinks.files(url, format=form, storage_options=s3.options, **options)
    sink.try_out(df.limit(0))
    trial = Trial(spark, lambda: sink)
    trial.start(sink=sink)
    sink.commit(trial.write(sink, 1, df.repartition(3)))
    ours, sparks = tmp_path / "ours", tmp_path / "sparks"
    ours.mkdir()
    for name, data in shown(url, s3.options).items():
        (ours / name).write_bytes(data)
    df.write.format(form).options(**options).save(f"file:{sparks}")
    read = spark.read.format(form).schema(df.schema).options(**options)
    one, other = (read.load(f"file:{at}").withColumn("by", F.lit(at.name)) for at in (ours, sparks))
    found: dict[str, list[Any]] = {"ours": [], "sparks": []}
    for row in sorted(one.union(other).collect(), key=lambda row: row.id):
        said = row.asDict(recursive=True)
        found[said.pop("by")].append(said)
    rows = found["ours"]
    assert rows == found["sparks"]
    assert len(rows) == 7
    suffixes = {path.name.partition(".")[2] for path in ours.iterdir()}
    assert suffixes == {p.name.partition(".")[2] for p in sparks.glob("part-*")}


@pytest.mark.spark
@pytest.mark.parametrize(
    "options", [{}, {"quoteAll": True}, {"nullValue": "-"}, {"header": True}, {"emptyValue": ""}], ids=str
)
def test_lines_of_csv_are_those_of_spark(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    form = ObjectFormat("csv", {name.lower(): str(value) for name, value in options.items()})
    for df in (
        spark.createDataFrame([("a",), (None,), ("",), ("\t ",), ('"',)], schema='`n"o, m` string'),
        spark.sql("select string(null) as ` a`, 'x,y' as `b\tc`"),
    ):
        df.coalesce(1).write.format("csv").options(**options).mode("overwrite").save(f"file:{tmp_path}/sparks")
        (theirs,) = (tmp_path / "sparks").glob("part-*")
        assert form.header(df) + "".join(f"{row.value}\n" for row in form.shape(df).collect()) == theirs.read_text()


@pytest.mark.spark
def test_what_object_storage_cannot_have(spark: Any, s3: Any) -> None:
    rows = spark.range(0)

    def refused(words: str, df: Any = rows, **options: Any) -> None:
        sink = sl.sinks.files(s3.url("refused"), storage_options=s3.options, **options)
        with pytest.raises(ConfigurationError, match=words):
            sink.try_out(df)

    refused("format is 'avro'; in object storage there are parquet", format="avro")
    refused("compression is 'lzo'", compression="lzo")
    refused("options that parquet in object storage does not have: mergeschema", mergeSchema=True)
    refused("encoding is 'UTF-16'; in object storage, csv is lines of UTF-8", format="csv", encoding="UTF-16")
    refused("linesep is ';'; in object storage, json is lines", format="json", lineSep=";")
    refused("takes one column of text", format="text")
    refused("cannot be written as parquet|cannot be written as orc", rows.selectExpr("null as n"), format="orc")
    sink = sl.sinks.files(s3.url("x"), storage_options={**s3.options, "secret_access_key": "not-this-one"})
    with pytest.raises(ConfigurationError) as error:
        sink.try_out(rows)
    assert "not-this-one" not in str(error.value)


def test_what_a_sink_has_left_under_another_name_is_shown_and_taken_back_with_the_same_keys_to_the_storage(
    s3: Any,
) -> None:
    trial = trial_at(s3)
    before = trial.start()
    first, second = trial.stage(before, 1), trial.stage(before, 2)
    before.commit(first)
    named = trial.make()
    gone = sink_for_pending("out", second, [sl.sinks.noop(), named])
    assert gone is not None
    trial.open(gone).recover(second, Epoch(2), fresh=False)
    trial.expect(1, 2)
    trial.generation += 1
    beside = frozenset({"named"})
    named.open(SinkContext(SESSION, "job", "life", Generation(trial.generation), "named", beside=beside))
    named.recover([], Epoch(1), fresh=False)
    named.tidy(Epoch(1))
    trial.expect(1)
