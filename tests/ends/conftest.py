"""What several of the tests of ends are given: places of tables, topics and targets of Kafka, ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.core.kafkaclient import Cluster
from strandline.ends.kafka.target import KafkaTarget
from tests.ends.kafkatargets import FRESH
from tests.ends.ledgers import LEDGERS, Ledger
from tests.ends.tableplaces import Place
from tests.kafkaserver import Kafka


@pytest.fixture(params=["delta", "iceberg"])
def place(request: Any, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path / "place")


@pytest.fixture
def delta(tmp_path: Path) -> Place:
    return Place("delta", tmp_path / "place")


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create(f"out-{next(FRESH)}")


@pytest.fixture
def target(kafka: Kafka, topic: str) -> KafkaTarget:
    return KafkaTarget(Cluster(kafka.servers), topic, f"p{next(FRESH)}")


@pytest.fixture
def ledger(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("strandline.testing.sinks.trial._PATIENCE_S", 0.0)
    LEDGERS[request.node.name] = ledger = Ledger()
    ledger.name = request.node.name  # type: ignore[attr-defined]
    yield ledger
    del LEDGERS[request.node.name]
