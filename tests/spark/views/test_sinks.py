"""Views whose rows change, in every kind of sink with a key: each has what Spark answers, after each run."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strandline as sl
from tests.kafkaserver import Kafka
from tests.postgres import Server
from tests.spark.harness import settle
from tests.spark.views import sinking
from tests.spark.views.ends import KINDS, Ends, as_text
from tests.spark.views.harness import Compared, Table

pytestmark = [pytest.mark.spark, pytest.mark.long]


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


def check(ends: Ends, compared: Compared, epochs: int, kinds: Sequence[str] = KINDS) -> None:
    """Compare all places with what Spark answers over the rows of the first epochs."""
    table = compared.tables["facts"]
    compared.spark.createDataFrame(table.until(epochs), table.ddl).createOrReplaceTempView("facts")
    answer = compared.spark.sql(sinking.QUERY)
    wanted = as_text(map(tuple, answer.collect()))
    for kind in kinds:
        found = ends.rows(kind, answer.columns)
        assert found == wanted, f"{kind}: missing {wanted - found}, too many {found - wanted}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", ["0s", "1h"], ids=["each", "one"])
def test_every_sink_has_what_spark_answers(
    spark: Any, tmp_path: Path, local_dir: Path, postgresql: Server, kafka: Kafka, every: str
) -> None:
    rng = random.Random(7)
    epochs = facts(rng, 16)
    compared = Compared(spark, tmp_path, {"facts": Table(sinking.DDL, epochs, "id")}, are_written=False)
    compared.write("facts", epochs[:8])
    ends = Ends(tmp_path, postgresql, kafka)
    for run in (1, 2):
        checkpoints = sl.Checkpoints(tmp_path / "ck", every=every)
        job = sinking.build(compared, local_dir, ends.places, 2, checkpoints=checkpoints)
        job.start(spark).await_termination()
        check(ends, compared, 8 * run)
        compared.write("facts", epochs[8:], first=8)


KILLS = [
    ["sink.table_before=kill@2", "sink.table_committed=kill@2", "sink.table_claimed=kill@2"],
    ["sink.delivered=kill@4", "sink.sqlite.written=kill@1", "sink.postgres.written=kill@2"],
    ["sink.staged=kill@7", "restore.sinks_recovered=kill@1", "sink.table_committed=kill@1"],
]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(KILLS)))
def test_the_driver_is_killed(
    spark: Any, tmp_path: Path, local_dir: Path, postgresql: Server, kafka: Kafka, number: int
) -> None:
    """In commits and claims of the sinks, and at any time; each life has another parallelism."""
    rng = random.Random(number)
    epochs = facts(rng, 20)
    compared = Compared(spark, tmp_path, {"facts": Table(sinking.DDL, epochs, "id")}, are_written=False)
    ends = Ends(tmp_path, postgresql, kafka)
    (tmp_path / "places").write_bytes(msgspec.json.encode(ends.places))
    for life, failpoint in enumerate([*KILLS[number], "", ""]):
        compared.write("facts", epochs[4 * life : 4 * life + 4], first=4 * life)
        is_last = life == len(KILLS[number]) + 1
        if is_last:
            (tmp_path / "stop").touch()
        log = (tmp_path / "log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.views.sinking", tmp_path, local_dir, str(1 + life % 3)],
            cwd=Path(__file__).parents[3], env={**os.environ, "STRANDLINE_FAILPOINTS": failpoint},
            stderr=log,
        )  # fmt: skip
        if not failpoint and not is_last:
            time.sleep(rng.uniform(8, 14))
            process.kill()
        code = process.wait(300)
        log.close()
        assert code == (0 if is_last else -signal.SIGKILL), (life, (tmp_path / "log").read_text()[-3000:])
    check(ends, compared, 20)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_keepers_are_killed_and_the_job_is_rescaled_and_goes_back(
    spark: Any, tmp_path: Path, local_dir: Path, postgresql: Server, kafka: Kafka
) -> None:
    epochs = facts(random.Random(3), 24)
    compared = Compared(spark, tmp_path, {"facts": Table(sinking.DDL, epochs, "id")}, are_written=False)
    ends = Ends(tmp_path, postgresql, kafka)
    checkpoints = sl.Checkpoints(tmp_path / "ck", every="100ms", retain=50)
    done: list[int] = []

    def go_on(run: sl.Run, number: int) -> None:
        compared.write("facts", epochs[4 * number : 4 * number + 4], first=4 * number)
        done.append(settle(run).last_checkpoint.checkpoint)
        check(ends, compared, 4 * number + 4)

    with sinking.build(compared, local_dir, ends.places, 2, trigger=None, checkpoints=checkpoints).start(spark) as run:
        for number in range(6):
            if number in (1, 3):
                os.kill(run.status().keepers[number % 2].pid, signal.SIGKILL)
            if number in (2, 4):
                run.rescale(number - 1)
            go_on(run, number)
            if number in (3, 5):
                run.rollback(done[1 if number == 3 else 4])
                settle(run)
                check(ends, compared, 4 * number + 4)
