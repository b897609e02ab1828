"""A job whose checkpoints and savepoints are in a bucket, of a real server on loopback."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import strandline as sl
from strandline.snapshot.listing import verify_snapshot
from tests.seaweed import Seaweed
from tests.spark import small
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark


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
