"""Which sources are refused because they cannot be rewound, and which ones are warned of. First without Spark."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader

import strandline as sl
from strandline.spark.sources.checks import Relation, check_relation, relations_of, source_warnings
from tests.spark import small
from tests.spark.harness import Case

KAFKA = Relation(
    "kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable",
    options={"kafka.isolation.level": "read_committed"},
)  # fmt: skip
ICEBERG = Relation("local.db.events", "org.apache.iceberg.spark.source.SparkTable")
DELTA = Relation("delta", "org.apache.spark.sql.delta.sources.DeltaDataSource")
FILES = Relation("avro", "org.apache.spark.sql.avro.AvroFileFormat", is_files=True)
OTHER = Relation("queue9", "com.example.queue9.Table")


@pytest.mark.parametrize(
    ("relation", "said"),
    [
        (Relation("socket", "org.apache.spark.sql.execution.streaming.sources.TextSocketTable"), "a second time"),
        (Relation("pulsar", "org.apache.spark.sql.pulsar.PulsarProvider"), "removes its cursor"),
        (Relation("events", "org.apache.spark.sql.pulsar.PulsarTable"), "the source 'events' cannot be rewound"),
        (Relation("pubsub", "com.google.cloud.spark.pubsub.PubSubTable"), "no offsets"),
        (replace(DELTA, options={"startingversion": "Latest"}), "leave out rows"),
        (Relation("json", "JsonFileFormat", True, {"cleansource": "DELETE"}), "cleanSource=DELETE"),
        (Relation("cloudFiles", "com.databricks.X", False, {"cloudfiles.cleansource": "MOVE"}), "cleanSource=MOVE"),
    ],
)
def test_what_cannot_be_rewound_is_refused(relation: Relation, said: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError) as caught:
        check_relation(relation)
    assert said in caught.value.message
    assert caught.value.hint


def test_what_is_known_to_be_safe_is_not_mentioned() -> None:
    rate = Relation("rate", "org.apache.spark.sql.execution.streaming.sources.RateStreamTable")
    known = [KAFKA, ICEBERG, DELTA, FILES, rate, Relation("json", "JsonFileFormat", True, {"cleansource": "off"})]
    for relation in [*known, OTHER]:
        check_relation(relation)
    assert source_warnings(known) == []


def test_what_is_not_known_is_said_once() -> None:
    python = Relation("mine", "org.apache.spark.sql.execution.datasources.v2.python.PythonTable")
    unknown, mine = source_warnings([OTHER, KAFKA, OTHER, python])
    assert "'queue9' (com.example.queue9.Table)" in unknown
    assert "'mine' is written in Python" in mine
    assert "commit(end)" in mine


class Numbers(DataSource):
    """A source in Python."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "user string, n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        raise AssertionError("looking at a source must not make its reader")


@pytest.mark.spark
def test_sources_as_they_stand_in_plans(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    spark.dataSource.register(Numbers)
    files = spark.readStream.schema("v bigint").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    rate = spark.readStream.format("rate").load().selectExpr("value as v")
    numbers = spark.readStream.format("numbers").load().selectExpr("n as v")
    static = spark.range(3).selectExpr("id as v")
    both = files.where("v > 1").union(rate).union(numbers).join(static, "v").union(files)
    found = relations_of(both)
    assert [relation.provider for relation in found] == ["json", "rate", "numbers"]
    assert [relation.is_files for relation in found] == [True, False, False]
    assert found[0].options["maxfilespertrigger"] == "1"
    assert [warning.split("'")[1] for warning in source_warnings(found)] == ["numbers"]
    sl.stream(both)
    with pytest.raises(sl.errors.ConfigurationError, match="'numbers' is not a file format"):
        sl.files_source(tmp_path / "in", schema="n bigint", format="numbers", spark=spark)


@pytest.mark.spark
@pytest.mark.parametrize("clean", ["delete", "Archive"])
def test_a_stream_of_files_that_spark_cleans_is_refused(spark: Any, tmp_path: Path, clean: str) -> None:
    (tmp_path / "in").mkdir()
    options = {"cleanSource": clean, "sourceArchiveDir": str(tmp_path / "old")}
    cleaned = spark.readStream.schema("v bigint").options(**options).json(str(tmp_path / "in"))
    kept = spark.readStream.schema("v bigint").option("CLEANSOURCE", "OFF").json(str(tmp_path / "in"))
    with pytest.raises(sl.errors.ConfigurationError, match=f"cleanSource={clean}") as caught:
        sl.stream(kept.union(cleaned))
    assert "strandline.files_source" in caught.value.hint
    sl.stream(kept)


@pytest.mark.spark
def test_a_socket_is_refused(spark: Any) -> None:
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 9).load()
    with pytest.raises(sl.errors.ConfigurationError, match="the source 'socket' cannot be rewound"):
        sl.stream(socket)


@pytest.mark.spark
def test_a_start_says_what_is_not_known_and_refuses_sessions_that_do_not_fit(
    spark: Any, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    spark.dataSource.register(Numbers)
    numbers = small.job(sl.stream(spark.readStream.format("numbers").load()), case.root, case.local_dir)
    refused = {
        "streaming.minBatchesToRetain": ("2", "is 2, expected 3 or more"),
        "timestampType": ("timestamp_ntz", "is TIM"),
    }
    for name, (value, said) in refused.items():
        spark.conf.set(f"spark.sql.{name}", value)
        try:
            with pytest.raises(sl.errors.ConfigurationError, match=f"{name} {said}"):
                numbers.start(spark)
        finally:
            spark.conf.unset(f"spark.sql.{name}")
    assert not (case.root / "ck").exists(), "nothing was touched"
    with caplog.at_level(logging.WARNING, logger="strandline"), numbers.start(spark):
        pass
    assert [r.message.split("'")[1] for r in caplog.records if "written in Python" in r.message] == ["numbers"]


def test_a_source_of_kafka_that_reads_what_is_not_committed_is_warned_of() -> None:
    def warned(**options: str) -> list[str]:
        return source_warnings(
            [Relation("kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider", options=options)]
        )

    (warning,) = warned(subscribe="payments")
    assert "the Kafka source 'payments' has no kafka.isolation.level" in warning
    assert "option('kafka.isolation.level', 'read_committed')" in warning
    for level in ("read_committed", "read_uncommitted"):
        assert not warned(subscribe="payments", **{"kafka.isolation.level": level})
