"""Views whose rows change, in every kind of sink with a key: each has what Spark answers, after each run."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.kafkaserver import Kafka
from tests.postgres import Server
from tests.spark.views.ends import KINDS, Ends, as_text
from tests.spark.views.harness import Bag, Compared, Table

pytestmark = [pytest.mark.spark, pytest.mark.long]

KEY = ("t", "at", "d", "b", "day", "x")
QUERY = (
    "SELECT t, at, d, b, day, x, count(*) AS n, sum(v) AS s FROM facts GROUP BY t, at, d, b, day, x HAVING count(*) < 4"
)
DDL = "id bigint, t string, at timestamp, d decimal(12, 3), b binary, day date, x boolean, v bigint"


def facts(rng: random.Random, epochs: int) -> list[list[tuple[Any, ...]]]:
    """Return versions of few rows with few keys, in some of whose columns is nothing."""
    moment = dt.datetime(2026, 1, 1)
    keys: list[tuple[Any, ...]] = [
        ("a", moment, Decimal("1.500"), b"\x00a", moment.date(), True),
        ("A", moment.replace(microsecond=1), Decimal("1.500"), b"\x00A", moment.date(), True),
        ("A", moment.replace(microsecond=2), Decimal("1.500"), b"\x00A", moment.date(), True),
        ("a ", moment, Decimal("-1.500"), b"", None, False),
        ("", None, None, None, None, None),
        (None, None, None, None, None, None),
        (None, moment, Decimal("0.000"), b"a", moment.date(), None),
    ]

    def version() -> tuple[Any, ...]:
        return (rng.randrange(9), *rng.choice(keys), rng.choice([1, 2, None]), rng.random() < 0.4)

    return [[version() for _ in range(rng.randrange(5))] for _ in range(epochs)]


def answer(compared: Compared, query: str, epochs: int) -> Bag:
    """Return what Spark answers over the rows of the first epochs, as text."""
    table = compared.tables["facts"]
    compared.spark.createDataFrame(table.until(epochs), table.ddl).createOrReplaceTempView("facts")
    return as_text(map(tuple, compared.spark.sql(query).collect()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", ["0s", "1h"], ids=["each", "one"])
def test_every_sink_has_what_spark_answers(
    spark: Any, tmp_path: Path, local_dir: Path, postgresql: Server, kafka: Kafka, every: str
) -> None:
    rng = random.Random(7)
    epochs = facts(rng, 16)
    compared = Compared(spark, tmp_path, {"facts": Table(DDL, epochs, "id")}, are_written=False)
    compared.write("facts", epochs[:8])
    ends = Ends(tmp_path, postgresql, kafka)
    for run in (1, 2):
        view = sl.sql(QUERY, facts=compared.stream("facts"))
        assert view.key == KEY
        assert not view.appends
        sinks = [view.to(ends.make(kind, KEY)) for kind in KINDS]
        compared.job(local_dir, 2, sinks=sinks, checkpoints=sl.Checkpoints(tmp_path / "ck", every=every)).start(
            spark
        ).await_termination()
        wanted = answer(compared, QUERY, 8 * run)
        for kind in KINDS:
            assert ends.rows(kind, view.columns) == wanted, kind
        compared.write("facts", epochs[8:], first=8)
