"""What a checkpoint keeps of the sources' progress, and what becomes of the directory it is read from. Without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.sources.identity import IdentityChecks
from strandline.spark.sources.log import damage_in_logs
from strandline.spark.sources.progress import SourceProgress, rewind
from strandline.storage.local import LocalStore
from tests.clock import ManualClock

BATCH = 12


def logs(*names: str, reached: int | None = None) -> dict[str, bytes]:
    """Return Spark's files of a query that reads Kafka and then files, which were read up to a step."""
    offset = "-" if reached is None else f'{{"logOffset":{reached}}}'
    offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"topic":{{"0":{BATCH}}}}}\n{offset}'
    return {f"offsets/{BATCH}": offsets.encode(), **{f"sources/1/{name}": b"v1" for name in names}}


def numbered(first: int, last: int) -> list[str]:
    return [str(step) for step in range(first, last + 1)]


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (logs(*numbered(0, 5), reached=5), ""),
        (logs(*numbered(0, 7), reached=5), ""),
        (logs("9.compact", "10", "11", reached=11), ""),
        (logs(*numbered(0, 8), "9.compact", *numbered(10, 18), "19.compact", "20", reached=20), ""),
        (logs("3", "9.compact", reached=9), ""),
        (logs(), ""),
        (logs(reached=0), "sources/1/0"),
        (logs(*numbered(1, 5), reached=5), "sources/1/0"),
        (logs(*numbered(0, 4), reached=5), "sources/1/5"),
        (logs("0", "2", reached=2), "sources/1/1"),
        (logs("0", "2", reached=0), "sources/1/1"),
        (logs(*numbered(10, 12), reached=12), "sources/1/0"),
        (logs("9.compact", "11", reached=11), "sources/1/10"),
    ],
)
def test_spark_needs_every_step_of_a_file_source_since_it_compacted_its_log(
    files: Mapping[str, bytes], missing: str
) -> None:
    assert damage_in_logs(files, BATCH) == missing


class Sources:
    """The progress of a query on a directory as Spark leaves it, and what it says to the coordinator."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "spark-1"
        found = {"metadata": b"{}", f"offsets/{BATCH - 1}": b"v1", **logs(*numbered(0, 3), reached=3)}
        found |= {f"commits/{batch}": b"v1" for batch in (BATCH - 1, BATCH)}
        for name, data in found.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_bytes(data)
        self.added: list[CheckpointId] = []
        self.failed: list[CheckpointId] = []
        self.coordinator: Any = SimpleNamespace(
            in_flight=(CheckpointId(4),),
            confirmed=None,
            add_source=lambda checkpoint, info: self.added.append(checkpoint),
            fail=lambda checkpoint, message: self.failed.append(checkpoint),
        )
        jobdir = JobDirectory(LocalStore(root / "ck"), "job")
        claim: Any = None
        self.progress = SourceProgress(
            self.directory, [], jobdir, claim, ManualClock(), self.coordinator,
            True, 100, (), [], [], IdentityChecks([]),
        )  # fmt: skip

    def deliver(self) -> None:
        self.progress.deliver(lambda: True)


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


@pytest.mark.parametrize("gone", ["metadata", "sources/1/0", "sources/1/3"])
@pytest.mark.parametrize("in_spark", [False, True])
def test_no_checkpoint_is_made_that_no_restart_could_go_on_from(sources: Sources, gone: str, in_spark: bool) -> None:
    """Something cleans up below local_dir: Spark does not notice before it starts the next time."""
    sources.progress.want(CheckpointId(4), BATCH)
    (sources.directory / gone).unlink()
    (sources.directory / f"offsets/{BATCH + 8}").write_bytes(b"v1")
    look = (lambda: sources.progress.begin(BATCH + 8, lambda: False)) if in_spark else sources.deliver
    with pytest.raises(CorruptionError, match=f"{gone} is missing"):
        look()
    assert (sources.added, sources.failed) == ([], [])


def test_what_is_whole_is_given_to_the_checkpoint(sources: Sources) -> None:
    sources.progress.want(CheckpointId(4), BATCH)
    sources.deliver()
    assert (sources.added, sources.failed) == ([CheckpointId(4)], [])


def test_each_checkpoint_in_flight_gets_the_progress_of_its_batch(sources: Sources) -> None:
    """Also when Spark deletes the files of the first before they are uploaded; one that was given up gets none."""
    sources.coordinator.in_flight = tuple(map(CheckpointId, (4, 6)))
    for checkpoint in (4, 5, 6):
        sources.progress.want(CheckpointId(checkpoint), BATCH)
    (sources.directory / f"offsets/{BATCH + 8}").write_bytes(b"v1")
    sources.progress.begin(BATCH + 8, lambda: False)
    (sources.directory / f"commits/{BATCH}").unlink()
    sources.deliver()
    sources.deliver()
    assert (sources.added, sources.failed) == ([CheckpointId(4), CheckpointId(6)], [])


def test_spark_may_still_be_writing_its_logs_when_a_batch_begins(sources: Sources) -> None:
    """Another thread of Spark writes them, one after the other: the commit of a batch, then the next batch's offsets."""
    (sources.directory / f"commits/{BATCH}").unlink()
    sources.progress.want(CheckpointId(4), BATCH)

    def write() -> None:
        for name in (f"commits/{BATCH}", f"offsets/{BATCH + 8}"):
            time.sleep(0.05)
            (sources.directory / name).write_bytes(b"v1")

    writer = threading.Thread(target=write)
    writer.start()
    sources.progress.begin(BATCH + 8, lambda: False)
    writer.join()
    # Spark may delete them now.
    (sources.directory / f"commits/{BATCH}").unlink()
    sources.deliver()
    assert (sources.added, sources.failed) == ([CheckpointId(4)], [])


def test_a_driver_that_was_replaced_leaves_the_progress_of_its_successor_alone(tmp_path: Path) -> None:
    """It was stopped for a while when it had opened its keepers, and goes on before it finds out."""
    for generation in (1, 2, 3):
        (tmp_path / f"spark-{generation}").mkdir()
    rewind(tmp_path / "spark-2", {"sources/0/0": b"v1"})
    assert sorted(path.name for path in tmp_path.glob("spark-*")) == ["spark-2", "spark-3"]
    assert [path.name for path in (tmp_path / "spark-2").rglob("*")] == ["sources", "0", "0"]


@pytest.mark.parametrize(
    ("is_active", "error", "message", "found_nothing", "has_looked"),
    [
        (True, None, "Initializing sources", False, False),
        (True, None, "Waiting for data to arrive", True, True),
        (True, None, "Terminated with exception: no broker", False, False),
        (False, None, "Stopped", True, True),
        (False, None, "Stopped", False, False),
        (False, OSError("no broker"), "Terminated with exception: no broker", False, False),
    ],
)
def test_a_query_that_failed_or_was_stopped_has_not_looked_at_its_sources(
    is_active: bool, error: Exception | None, message: str, found_nothing: bool, has_looked: bool
) -> None:
    """Else a checkpoint is taken without where they began, and what the next attempt finds is not kept."""
    status = SimpleNamespace(isTriggerActive=lambda: False, message=lambda: message)
    streaming = SimpleNamespace(noNewData=lambda: found_nothing)
    jsq = SimpleNamespace(status=lambda: status, streamingQuery=lambda: streaming)
    query: Any = SimpleNamespace(isActive=is_active, exception=lambda: error, _jsq=jsq)
    assert SourceWatch(query, 0).has_looked() == has_looked
