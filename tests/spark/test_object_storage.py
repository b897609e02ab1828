"""A job whose checkpoints and savepoints are in a bucket, of a real server on loopback."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import strandline as sl
from strandline.snapshot.opening.listing import verify_snapshot
from tests.seaweed import Seaweed
from tests.spark import small
from tests.spark.harness import Case, eventually, settle
from tests.storage.faultyhttp import FaultyHttp

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_job_lives_and_is_forked_in_a_bucket(spark: Any, s3: Seaweed, case: Case) -> None:
    bucket = s3.url(str(uuid4()))

    def checkpoints() -> sl.Checkpoints:
        return sl.Checkpoints(f"{bucket}/ck", retain=2, storage_options=s3.options)

    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=checkpoints())

    def counted() -> Counter[Any]:
        return small.counted([event["user"] for event in case.events])

    case.add(1)
    with job.start(spark) as run:
        settle(run)
        run.rescale(3)
        case.add(1)
        settle(run)
    assert small.rows_of(sink) == counted()
    # All that is on this machine goes, and nothing is missing.
    shutil.rmtree(case.local_dir)
    case.local_dir.mkdir()
    with job.start(spark) as run:
        assert run.status().restored_from
        for form in ("native", "canonical"):
            made = run.savepoint(f"{bucket}/sp/{form}", format=form)
            assert made.url == f"{bucket}/sp/{form}"
            assert verify_snapshot(made.url, s3.options).problems == []
        rows = sl.state.read(spark, made.url, "count.seen", storage_options=s3.options).collect()
        assert Counter({row.user: row.value for row in rows}) == Counter(event["user"] for event in case.events)
    # From the savepoint alone, in a bucket of the server's own copies.
    case.add(1)
    with job.start(spark, restore=f"{bucket}/sp/native") as run:
        settle(run)
    assert small.rows_of(sink) == counted()
    assert not list(Path.cwd().glob("s3*")), "no url became a directory"


@pytest.mark.long
def test_a_job_that_storage_does_not_let_in_for_a_while_goes_on_afterwards(spark: Any, s3: Seaweed, case: Case) -> None:
    """Rights are taken away and given back, and clocks are set right: only a start need not wait for that."""
    proxy = FaultyHttp(s3.options["endpoint"])
    options = {**s3.options, "endpoint": proxy.endpoint}
    checkpoints = sl.Checkpoints(s3.url(str(uuid4())), every="100ms", storage_options=options)
    sink = sl.sinks.memory()
    stream = sl.stream(small.source(spark, case.root / "in"))
    restart = sl.Restart(attempts=20, delay="100ms", max_delay="500ms")
    job = small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=checkpoints, restart=restart)
    proxy.denies = True
    with pytest.raises(sl.errors.AccessError):
        job.start(spark)
    proxy.denies = False
    with job.start(spark) as run:
        case.add(1)
        settle(run)
        proxy.denies = True
        case.add(1)
        eventually(lambda: run.status().restarts > 1, "a restart that storage refuses")
        assert "403" in run.status().last_failure
        proxy.denies = False
        settle(run)
    proxy.close()
    assert small.rows_of(sink) == small.counted([event["user"] for event in case.events])
