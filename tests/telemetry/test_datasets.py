"""The datasets of sinks and of targets, and the places of sources."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline import sinks
from strandline.core.datasets import Dataset
from strandline.spark.job import datasets
from strandline.spark.sources.checks import Relation

KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"


@pytest.mark.parametrize(
    ("dsn", "table", "wanted"),
    [
        ("postgresql://u:secret@db:5433/shop", "orders", ("postgres://db:5433", "shop.public.orders")),
        ("host=db dbname=shop password=secret", "bank.orders", ("postgres://db:5432", "shop.bank.orders")),
        ("postgresql://ann@/", "orders", ("postgres://localhost:5432", "ann.public.orders")),
    ],
)
def test_a_table_of_postgresql(dsn: str, table: str, wanted: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    assert sinks.postgres(dsn, table).datasets == [Dataset(*wanted)]


def test_other_sinks(tmp_path: Path) -> None:
    kafka = sinks.kafka("one:9092,two:9092", topic="alerts", prefix="p")
    assert kafka.datasets == [Dataset("kafka://one:9092", "alerts")]
    at_once = sinks.kafka("one:9092", topic="alerts", visibility="epoch")
    assert at_once.datasets == [Dataset("kafka://one:9092", "alerts")]
    assert sinks.delta(f"{tmp_path}/t").datasets == [Dataset("file", f"{tmp_path}/t")]
    assert sinks.files(f"{tmp_path}/out").datasets == [Dataset("file", f"{tmp_path}/out")]
    assert sinks.sqlite(tmp_path / "db", "t").datasets == [Dataset("file", f"{tmp_path}/db/t")]
    iceberg = sinks.iceberg({"type": "sql", "uri": "sqlite:////x?p=secret", "name": "lake"}, "shop.orders")
    assert iceberg.datasets == [Dataset("sqlite:////x", "shop.orders")]
    assert sinks.memory().datasets == ()


@pytest.mark.parametrize(
    ("relation", "wanted"),
    [
        (Relation("json", "x.JsonFileFormat", True, {"path": "s3a://b/in"}), [Dataset("s3://b", "in")]),
        (
            Relation("kafka", KAFKA, options={"kafka.bootstrap.servers": "one:9092,two:9092", "subscribe": "a, b"}),
            [Dataset("kafka://one:9092", "a"), Dataset("kafka://one:9092", "b")],
        ),
        (
            Relation("kafka", KAFKA, options={"kafka.bootstrap.servers": "one:9092", "assign": '{"a": [0, 1]}'}),
            [Dataset("kafka://one:9092", "a")],
        ),
        (
            Relation("kafka", KAFKA, options={"kafka.bootstrap.servers": "one:9092", "subscribepattern": "a.*"}),
            [Dataset("kafka://one:9092", "a.*")],
        ),
        (Relation("rate", "org.apache.spark.sql.execution.streaming.sources.RateStreamTable"), []),
        (Relation("lake.shop.orders", "org.apache.iceberg.spark.source.SparkTable"), [
            Dataset("spark", "lake.shop.orders"),
        ]),
    ],
    ids=lambda each: each.provider if isinstance(each, Relation) else "",
)  # fmt: skip
def test_sources(relation: Relation, wanted: list[Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "relations_of", lambda df: [relation])
    plan: Any = SimpleNamespace(sources=SimpleNamespace(nodes=[SimpleNamespace(df=None)]))
    assert [*datasets.inputs_of(plan)] == wanted
