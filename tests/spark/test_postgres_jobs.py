"""Jobs into PostgreSQL: attempts, drivers and the server end; both tables hold every row once, and no secret is kept."""

from __future__ import annotations

import random
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.core import failpoints
from strandline.core.ids import Epoch
from strandline.spark.sinks.transactional import Transactional
from tests.postgres import PASSWORD, Server
from tests.soak import soaking
from tests.spark import counting, small
from tests.spark.harness import App, Case, eventually, settle

pytestmark = pytest.mark.spark


def users_of(rng: random.Random) -> list[str]:
    return [f"u{rng.randint(0, 30)}" for _ in range(60)]


def check_nothing_told(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path


def test_keys_that_the_server_takes_for_equal_are_in_one_lane(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(Transactional, "write", lambda self, df, epoch: written.append(df))
    sink = sl.sinks.postgres("postgresql://one/two", "t", key=["at", "k"], writers=8)
    ids = [str(uuid.UUID(int=number)) for number in range(40, 60)]
    keys = [key for each in ids for key in (each, each.upper(), each.replace("-", ""), f"{{{each}}}", f"{each}  ")]
    sink.write(spark.createDataFrame([(key, 1) for key in keys], "k string, at int"), Epoch(1))
    lanes: dict[str, set[int]] = {}
    for row in written[0].select("k", F.spark_partition_id().alias("lane")).collect():
        lanes.setdefault(str(uuid.UUID(row.k.strip())), set()).add(row.lane)
    assert all(len(lane) == 1 for lane in lanes.values())
    assert len(set().union(*lanes.values())) > 3


@pytest.mark.timeout(600)
@pytest.mark.long
def test_an_attempt_ends_in_a_transaction_and_then_the_server(spark: Any, case: Case, postgresql: Server) -> None:
    dsn, rng = postgresql.schema(), random.Random(1)
    users: list[str] = []

    def add(number: int) -> None:
        users.extend(given := users_of(rng))
        counting.add(case.root, number, given)

    def end() -> None:
        """Some lanes have written what the checkpoint lists, others have not: then it is restored."""
        raise RuntimeError

    for number in range(2):
        add(number)
    failpoints.arm("sink.postgres.written", end, at=2)
    with counting.into_postgres(spark, case.root, case.local_dir, dsn).start(spark) as run:
        eventually(lambda: run.glance().restarts, "the attempt has ended")
        status = settle(run)
        assert status.restarts == 1
        assert "sink 'counted' of job 'databased': the target refused: RuntimeError" in (status.last_failure or "")
        assert status.restored_from is not None
        postgresql.kill()
        add(2)
        run.process_all_available(60)
        eventually(lambda: any(sink.waiting_rows for sink in run.glance().sinks), "rows wait")
        postgresql.start()
        settle(run)
        eventually(lambda: not any(sink.waiting_rows for sink in run.glance().sinks), "what waited is written")
        assert run.status().restarts == 1
    with postgresql.connect(dsn) as db:
        counting.check_postgres(db, users)
        sessions = "select application_name from pg_stat_activity where application_name like 'strandline/%'"
        eventually(lambda: not db.execute(sessions).fetchall(), "the run's sessions have ended")
    eventually(lambda: not any("read-ahead" in each.name for each in threading.enumerate()), "its threads have ended")
    check_nothing_told(case.root)


CREATE = 'create table counted ("user" text, n bigint); grant insert on counted to writes'


@pytest.mark.parametrize(
    ("away", "back"),
    [
        pytest.param("revoke insert on counted from writes", "grant insert on counted to writes", id="privilege"),
        # Which errors are to be waited for is in tests/ends/test_postgres.py.
        pytest.param("drop table counted", CREATE, id="table", marks=pytest.mark.soak),
    ],
)
def test_what_is_taken_away_and_given_again_restarts_the_job(
    spark: Any, case: Case, postgresql: Server, away: str, back: str
) -> None:
    """The start has found it: its rows wait."""
    dsn = postgresql.schema()
    with postgresql.connect(dsn) as db:
        schema = db.execute("select current_schema()").fetchone()[0]
        db.execute(f"create role writes login password 'x'; grant usage, create on schema {schema} to writes")
        db.execute(CREATE)
    sink = sl.sinks.postgres(dsn.replace(f"tests:{PASSWORD}", "writes:x"), "counted")
    job = small.job(
        sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir, sink=sink,
        checkpoints=sl.Checkpoints(case.root / "ck", every="200ms"), restart=sl.Restart(1000, "50ms", "50ms"),
    )  # fmt: skip
    with job.start(spark) as run:
        counting.add(case.root, 0, ["ann"])
        settle(run)
        with postgresql.connect(dsn) as db:
            db.execute(away)
        counting.add(case.root, 1, ["bob"])
        # The second attempt looks at the table before it writes.
        eventually(lambda: run.glance().restarts > 1, "it is restarted", 60)
        with postgresql.connect(dsn) as db:
            db.execute(back)
        settle(run)
    with postgresql.connect(dsn) as db:
        found = sorted(db.execute('select "user", n from counted').fetchall())
        assert found == ([("bob", 1)] if "drop" in away else [("ann", 1), ("bob", 1)])
        db.execute("drop owned by writes; drop role writes")


KILLS = [
    "epoch.sink.before", "sink.staged", "checkpoint.publish.before", "checkpoint.publish.after",
    "checkpoint.commit_sinks.before", "sink.deliver.before", "sink.postgres.written", "sink.deliver.after",
    "sink.delivered", "checkpoint.commit_sinks.after", "restore.claimed", "restore.sinks_recovered",
]  # fmt: skip


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", soaking(range(1, 7)))
def test_everything_is_killed_at_random(case: Case, postgresql: Server, seed: int) -> None:
    dsn, rng = postgresql.schema(), random.Random(seed)
    users: list[str] = []
    for life in range(6):
        for number in range(3):
            users += (given := users_of(rng))
            counting.add(case.root, 3 * life + number, given)
        # Not every place is passed in every life: what does not die of itself is killed.
        app = App(case, f"{rng.choice(KILLS)}=kill@{rng.randint(1, 3)}", job="databased", dsn=dsn)
        until = time.monotonic() + rng.uniform(5, 25)
        while not app.ended() and time.monotonic() < until:
            time.sleep(rng.uniform(0.1, 5))
            if rng.random() < 0.3:
                postgresql.kill()
                time.sleep(rng.uniform(0, 2))
                postgresql.start()
        app.kill()
    App(case, job="databased", dsn=dsn).finish()
    with postgresql.connect(dsn) as db:
        counting.check_postgres(db, users)
    check_nothing_told(case.root)
