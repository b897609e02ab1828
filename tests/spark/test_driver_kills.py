"""The driver killed with -9: the same command goes on, the result is exact, and nothing of ours is left behind."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.core.scratch import remove_abandoned
from strandline.snapshot.opening.snapshot import open_snapshot
from tests.soak import soaking
from tests.spark import pipeline, rated
from tests.spark.harness import TIMEOUT_S, App, Case, Reader, eventually, keepers, settle

pytestmark = pytest.mark.spark

# Everything a killed driver may leave below local_dir; the next start of the job takes it over.
_LEFT = re.compile(
    r"logs(/.*)?|[0-9a-f]{12}(/driver\.lock|/run\.[0-9a-f]+\.sock|/spark-\d+(/.*)?|/[\w.-]+-\d+(/keeper\.lock|/chk-\d+(/.*)?)?)?"
)

RUNNING = [
    "epoch.sink.before",
    "sink.staged",
    "epoch.done",
    "upload.source",
    "checkpoint.publish.before",
    "checkpoint.publish.after",
    "checkpoint.subsume.in_flight",
    "checkpoint.commit_sinks.before",
    "sink.intent_written",
    "sink.file_shown",
    "sink.shown_recorded",
    "checkpoint.commit_sinks.after",
    "checkpoint.subsume.before",
    "checkpoint.subsume.manifest_deleted",
    "checkpoint.subsume.after",
]
RESTORING = [
    "generation.base.before",
    "generation.base.after",
    "restore.claimed",
    "sink.intent_written",
    "sink.file_shown",
    "sink.shown_recorded",
    "restore.sinks_recovered",
    "restore.keepers_opened",
]


def check_nothing_left(app: App, case: Case) -> None:
    eventually(lambda: not app.relatives(), f"nothing left of the driver: {app.relatives()}", 10)
    assert not keepers(case.local_dir)
    # Spark's log stays, for who wants to know.
    # What it was verifying or writing goes with the next one that starts.
    remove_abandoned(app.temporary)
    logs = {Path(f"strandline-{os.getuid()}"), Path(f"strandline-{os.getuid()}/spark-logs")}
    left = {path.relative_to(app.temporary) for path in app.temporary.rglob("*") if "strandline" in str(path)}
    assert not {path for path in left - logs if path.parent not in logs}
    left = [str(path.relative_to(case.local_dir)) for path in case.local_dir.rglob("*")]
    assert not [path for path in left if not _LEFT.fullmatch(path)]


def armed(name: str, at: int) -> str:
    return f"{name}=kill@{at}"


KILLS = [
    # Two sinks, so: the second epoch, staged in full, and not in any checkpoint.
    ("sink.staged", 4),
    # Published, and nothing visible yet: the restore shows it.
    ("checkpoint.publish.before", 1),
    ("checkpoint.commit_sinks.before", 1),
    # It is killed, too, in the middle of that.
    ("sink.file_shown", 1),
    ("restore.claimed", 1),
    ("restore.sinks_recovered", 1),
    ("restore.keepers_opened", 1),
    ("sink.file_shown", 2),
]


def die_behind_a_checkpoint(case: Case) -> None:
    """A checkpoint with rows is published, none of them is visible, and the epoch after it is staged in both sinks."""

    def is_published() -> bool:
        found = case.directory.glob("chk-*/_metadata")
        return any(open_snapshot(str(path.parent)).manifest.epoch > 0 for path in found)

    case.add(1)
    app = App(case, f"sink.intent_written=sleep:{TIMEOUT_S};{armed('sink.staged', 4)}")
    eventually(is_published, "a checkpoint is published", every_s=0.1)
    case.add(1)
    app.wait_killed()
    assert not any(pipeline.visible(case.out))
    check_nothing_left(app, case)


def die_everywhere(case: Case) -> None:
    """While it runs, and while it restores what the one before it had left."""
    for failpoint, at in KILLS:
        case.add(2)
        app = App(case, armed(failpoint, at))
        app.wait_killed()
        check_nothing_left(app, case)


# Each life of the driver begins with a cold JVM, which costs more than all that it does then.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("die", [die_behind_a_checkpoint, *soaking([die_everywhere])])
@pytest.mark.long
def test_a_killed_driver_leaves_a_job_that_goes_on(spark: Any, case: Case, die: Callable[[Case], None]) -> None:
    with Reader(case):
        die(case)
        # The last life in this process: its JVM is warm.
        case.add(1)
        with case.job(spark).start(spark) as run:
            status = settle(run)
            assert status.restored_from is not None
            assert status.restarts == 0
            # Over all its lives: each event counts once, and so does each file that was read.
            assert (status.rows_in, status.late_rows, status.uncovered_ms) == (len(case.events), 0, 0)
            (source,) = eventually(run.status, "its status").source_progress
            assert (source.files_behind, source.bytes_behind, source.waiting_ms) == (0, 0, 0)
            assert source.what == f"json files in {case.root / 'in'}"
    case.check()
    # The last run found what the keepers before it, dead with their driver, had left on this machine.
    assert re.search(r"restored checkpoint \d+: [1-9]\d* bytes from the local copy, 0 from storage", case.logs())


BEFORE_THE_START_IS_KEPT = ["generation.base.before", "restore.keepers_opened", "start.save.before"]
AFTER_IT = ["epoch.sink.before", "sink.staged", "epoch.done"]
BEFORE_OR_AFTER = ["upload.source", "checkpoint.publish.before"]
"""The first checkpoint may be of what is before the first epoch."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("failpoint", soaking([*BEFORE_THE_START_IS_KEPT, *AFTER_IT, *BEFORE_OR_AFTER]))
def test_driver_killed_before_a_first_epoch_is_in_a_checkpoint(case: Case, failpoint: str) -> None:
    """A source that began at "now" has begun once: at the time that was kept first."""
    app = App(case, armed(failpoint, 1), job="rated")
    app.wait_killed()
    killed_ms = time.time() * 1000
    start = case.root / "ck" / "rated" / "generations" / "start"
    written = start.read_bytes() if start.exists() else None
    if failpoint not in BEFORE_OR_AFTER:
        assert (written is None) == (failpoint in BEFORE_THE_START_IS_KEPT)
    # A checkpoint of what is before the first epoch may have been complete: it keeps the beginning, too.
    is_kept = written is not None or any((case.root / "ck" / "rated").glob("chk-*/_metadata"))
    assert not rated.shown(case.root)
    app = App(case, job="rated")
    eventually(lambda: app.status() and len(rated.shown(case.root)) > 60, "rows are shown")
    app.finish()
    rated.check(case.root)
    (first,) = (row for row in rated.shown(case.root) if row["value"] == rated.FIRST)
    assert (first["at_ms"] < killed_ms) == is_kept
    assert written is None or written == start.read_bytes()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(200, 206))
def test_driver_killed_at_random_many_seeds(case: Case, seed: int) -> None:
    """An operator has another parallelism in each life."""
    case.seed = seed
    rng = random.Random(seed)
    with Reader(case):
        for _ in range(8):
            case.add(rng.randint(1, 3))
            how, kinds = rng.choice(["running", "restoring", "any time"]), str(rng.randint(1, 4))
            if how == "any time":
                app = App(case, kinds=kinds)
                time.sleep(rng.uniform(3, 15))
                app.kill()
            else:
                failpoint = rng.choice(RUNNING if how == "running" else RESTORING)
                app = App(case, armed(failpoint, rng.randint(1, 3) if how == "running" else 1), kinds=kinds)
                # Not every place is passed in every life: what does not die of itself is killed.
                if eventually(lambda app=app: app.ended() or case.is_complete(), "over"):
                    app.kill()
            check_nothing_left(app, case)
        app = App(case)
        app.finish()
    case.check()
