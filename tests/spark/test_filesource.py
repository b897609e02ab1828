"""files_source: files go with the checkpoints that cover them, through failures, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.spark.sources.files import HadoopSourceFiles, LocalSourceFiles, SourceFiles
from tests.spark import pipeline, small
from tests.spark.functions import Count
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark
COMPACTS = "spark.sql.streaming.fileSource.log.compactInterval"

USERS = ("ann", "bob", "cid")


class Input:
    """A directory into which files with an event of each user are put."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.files = 0

    def put(self, files: int, days_ago: float = 0) -> None:
        for _ in range(files):
            events = [{"seq": i, "user": user, "kind": "a b/ü", "v": self.files} for i, user in enumerate(USERS)]
            hidden = self.directory / ".next"
            hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
            written_s = time.time() - days_ago * 86400
            os.utime(hidden, (written_s, written_s))
            folder = self.directory / f"day={self.files % 2}"
            folder.mkdir(exist_ok=True)
            hidden.rename(folder / f"{self.files} %20.json")
            self.files += 1

    def left(self) -> list[int]:
        return sorted(int(path.name.split()[0]) for path in self.directory.rglob("*.json"))

    def stream(self, spark: Any, name: str | None = None, **given: Any) -> sl.Stream:
        schema = f"{pipeline.EVENT_SCHEMA}, day int"
        return sl.files_source(self.directory, schema=schema, spark=spark, name=name, max_files_per_epoch=1, **given)

    def counted(self) -> Counter[tuple[str, int]]:
        return small.counted(USERS * self.files)


def shown(directory: Path) -> Counter[tuple[Any, ...]]:
    lines = [line for part in directory.glob("part-*") for line in part.read_text().splitlines()]
    return Counter((row["user"], row["n"]) for row in map(json.loads, lines))


def test_a_log_that_spark_could_not_read_with_a_shorter_interval(
    spark: Any, case: Case, request: pytest.FixtureRequest
) -> None:
    source = Input(case.root / "in")
    sink = sl.sinks.memory()
    job = small.job(source.stream(spark), case.root, case.local_dir, sink=sink)
    source.put(3)
    with job.start(spark) as run:
        settle(run)
    spark.conf.set(COMPACTS, "2")
    request.addfinalizer(lambda: spark.conf.unset(COMPACTS))
    with pytest.raises(
        ConfigurationError, match=r"compactInterval is 2, .* written 3 lists of files.*\n.* to 4 or more"
    ):
        job.start(spark)
    spark.conf.set(COMPACTS, "4")
    source.put(3)
    with job.start(spark) as run:
        settle(run)
    assert small.rows_of(sink) == source.counted()


@pytest.mark.long
def test_deleted_files_are_never_needed_again(spark: Any, case: Case, request: pytest.FixtureRequest) -> None:
    source, out = Input(case.root / "in"), case.root / "out"
    stream = source.stream(spark, clean="delete")
    job = small.job(
        stream, case.root, case.local_dir, sink=sl.sinks.files(out, format="json"),
        checkpoints=sl.Checkpoints(case.root / "ck"), restart=sl.Restart(attempts=3, delay="50ms"),
    )  # fmt: skip
    # Spark compacts its log with every tenth file otherwise.
    spark.conf.set(COMPACTS, "2")
    request.addfinalizer(lambda: spark.conf.unset(COMPACTS))
    source.put(2)
    with job.start(spark) as run:
        run.process_all_available(60)
        assert len(source.left()) == 2, "no checkpoint covers them yet"
        unpublished: list[list[int]] = []

        def look() -> None:
            # Time enough for a thread that takes files away, had it been told to.
            time.sleep(0.3)
            unpublished.append(source.left())

        failpoints.arm("checkpoint.publish.before", look)
        request.addfinalizer(failpoints.disarm_all)
        run.checkpoint(60)
        assert unpublished == [[0, 1]], "a checkpoint that is not published covers nothing"
        eventually(lambda: source.left() == [], "a checkpoint covers them")
        source.put(1)
        run.process_all_available(60)
        assert len(source.left()) == 1
        # All that was read since the checkpoint is read again.
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        source.put(1)
        settle(run)
        assert run.status().restarts == 1
        eventually(lambda: source.left() == [], "a checkpoint covers them")
        source.put(1)
        run.process_all_available(60)
    assert len(source.left()) == 1
    with job.start(spark) as run:
        run.process_all_available(60)
        run.stop(checkpoint=True)
    assert source.left() == [], "the end waits for the cleaning"
    assert shown(out) == source.counted()


def test_what_an_older_checkpoint_may_need_is_not_archived(spark: Any, case: Case) -> None:
    source, out, old = Input(case.root / "in"), case.root / "out", case.root / "old"

    def start() -> sl.Run:
        stream = source.stream(spark, clean="archive", archive_dir=old)
        return small.job(stream, case.root, case.local_dir, sink=sl.sinks.files(out, format="json")).start(spark)

    with start() as run:
        for _ in range(2):
            source.put(1)
            run.process_all_available(60)
            newest = run.checkpoint(60).checkpoint
        eventually(lambda: source.left() == [1], "both checkpoints cover the first")
    # Storage has lost it: the restore goes back to the one before, which needs the other.
    (case.root / "ck" / "small" / f"chk-{newest}" / "_metadata").unlink()
    source.put(1)
    with start() as run:
        run.process_all_available(60)
        assert source.left() == [1, 2]
        run.checkpoint(60)
        run.checkpoint(60)
        eventually(lambda: source.left() == [], "both checkpoints cover all")
    assert shown(out) == source.counted()
    archived = sorted(path.relative_to(old).as_posix() for path in old.rglob("*.json"))
    assert archived == sorted(f"day={n % 2}/{n} %20.json" for n in range(3))


@pytest.mark.long
def test_a_snapshot_is_restored_with_all_files_that_were_read_since_or_not_at_all(spark: Any, case: Case) -> None:
    source, old, savepoint = Input(case.root / "in"), case.root / "old", case.root / "sp"

    def job(out: str, checkpoints: str = "ck", **given: Any) -> sl.Job:
        stream = source.stream(spark, clean="archive", archive_dir=old, **given)
        return small.job(
            stream, case.root, case.local_dir, sink=sl.sinks.files(case.root / out, format="json"),
            checkpoints=sl.Checkpoints(case.root / checkpoints, retain=1),
        )  # fmt: skip

    with job("out").start(spark) as run:
        source.put(1)
        run.process_all_available(60)
        run.savepoint(savepoint)
        source.put(2)
        run.process_all_available(60)
        run.checkpoint(60)
        eventually(lambda: source.left() == [], "a checkpoint covers them")
    for again in (job("out"), job("fork", "forked")):
        with pytest.raises(sl.errors.ConfigurationError, match=r"2 files are missing .*/in/day=0/2 %20.json") as caught:
            again.start(spark, restore=savepoint)
        assert str(old) in caught.value.hint
        assert sorted((case.root / "ck" / "small" / "generations").glob("[0-9]")) == [
            case.root / "ck" / "small" / "generations" / "1"
        ], "nothing was claimed"
    for path in list(old.rglob("[12] *.json")):
        path.rename(source.directory / path.relative_to(old))
    with job("fork", "forked").start(spark, restore=savepoint) as run:
        source.put(1)
        run.process_all_available(60)
        run.checkpoint(60)
    first = small.counted(USERS)
    assert shown(case.root / "fork") == source.counted() - first
    # All of it goes to another place, as to another machine.
    before = source.directory
    source.directory = before.rename(case.root / "in ü")
    source.put(1)
    with pytest.raises(sl.errors.ConfigurationError, match="read a second time") as caught:
        job("fork", "forked").start(spark)
    assert f"moved_from='{before}" in caught.value.hint
    # Of a producer whose clock is wrong, and one that brings what is old: Spark's own default leaves out both.
    for days_ago in (-30, 30):
        with job("fork", "forked", moved_from=before).start(spark) as run:
            source.put(1, days_ago)
            run.process_all_available(60)
            run.checkpoint(60)
    assert shown(case.root / "fork") == source.counted() - first


def test_each_of_several_sources_is_cleaned_as_it_was_told(spark: Any, case: Case) -> None:
    kept, cleaned, mixed = (Input(case.root / name) for name in ("kept", "cleaned", "mixed"))
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("'x' as user")
    files = kept.stream(spark)._node.df.select("user")
    streams = {
        # A DataFrame may be several sources of Spark's, or one that stands in it twice.
        "a": sl.stream(files.union(rate).union(files.where("user = 'ann'")), name="a"),
        "b": cleaned.stream(spark, name="b", clean="delete"),
        "c": mixed.stream(spark, name="c"),
    }
    outputs = [
        stream.select("user").key_by("user").process(Count(), output=small.OUTPUT, uid=name).to(sl.sinks.noop())
        for name, stream in streams.items()
    ]
    for source in (kept, cleaned, mixed):
        source.put(1)
    # One of them never comes to an end.
    job = case.job_of("several", *outputs, trigger="1 second")
    with job.start(spark) as run:
        eventually(lambda: run.glance().epoch >= 1, "all files are read")
        run.checkpoint(60)
        run.checkpoint(60)
        eventually(lambda: cleaned.left() == [], "both checkpoints cover all")
    assert [kept.left(), cleaned.left(), mixed.left()] == [[0], [], [0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clean": "move"}, "clean='move', expected 'delete', 'archive' or None"),
        ({"clean": "archive"}, "archive_dir=None"),
        ({"clean": "delete", "archive_dir": "old"}, "clean='delete' and archive_dir="),
        ({"clean": "archive", "archive_dir": "in/old"}, "would be read again"),
        ({"clean": "archive", "archive_dir": "in"}, "would be read again"),
        ({"clean": "archive", "archive_dir": "link/old"}, "would be read again"),
        ({"clean": "archive", "archive_dir": "/dev/shm/old"}, "on another file system"),
        ({"clean": "archive", "archive_dir": "hdfs://host/old"}, "on another file system"),
        ({"clean": "delete", "path": "in/*"}, "the pattern"),
        ({"clean": "delete", "cleanSource": "delete"}, "cleanSource=delete"),
        ({"max_files_per_epoch": 0}, "max_files_per_epoch is 0"),
        ({"path": "nowhere"}, "files_source() cannot read"),
        ({"format": "rate-micro-batch"}, "files_source() cannot read"),
        ({"schema": "v nothing"}, "files_source() cannot read"),
        ({"schema": 7}, "files_source() cannot read"),
    ],
)
def test_what_cannot_be_done_is_refused(spark: Any, tmp_path: Path, given: dict[str, Any], said: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    if given.get("archive_dir") == "/dev/shm/old" and Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("all is one file system here")
    for name in ("path", "archive_dir"):
        if name in given and ":" not in given[name]:
            given = {**given, name: tmp_path / given[name]}
    with pytest.raises(sl.errors.ConfigurationError) as caught:
        sl.files_source(**{"path": tmp_path / "in", "schema": "v int", "spark": spark, **given})
    assert said in caught.value.message


def test_a_directory_that_is_cleaned_is_read_by_one_source_only(spark: Any, case: Case) -> None:
    source = Input(case.root / "in")
    cleaned = source.stream(spark, name="cleaned", clean="delete")
    plain = spark.readStream.schema("user string").json(f"{source.directory}/day=*")
    for other in (source.stream(spark, name="other"), sl.stream(plain, name="other")):
        job = case.job_of("two", cleaned.to(sl.sinks.noop()), other.to(sl.sinks.noop()))
        with pytest.raises(sl.errors.ConfigurationError, match="begin both pipelines with one files_source"):
            job.start(spark)


@pytest.fixture(params=["local", "hadoop"])
def opened(request: Any, spark: Any, tmp_path: Path) -> Callable[[Path | None], SourceFiles]:
    """Opens the files below `in`, in both ways."""
    (tmp_path / "in").mkdir()

    def open_files(archive: Path | None) -> SourceFiles:
        if request.param == "local":
            return LocalSourceFiles(tmp_path / "in", archive)
        return HadoopSourceFiles(spark, f"file:{tmp_path}/in", None if archive is None else f"file:{archive}")

    return open_files


@pytest.mark.parametrize("name", ["a.json", "day=1/a b%20ü#.json"])
def test_files_here_and_in_hadoop(opened: Callable[..., SourceFiles], tmp_path: Path, name: str) -> None:
    path, archive = tmp_path / "in" / name, tmp_path / "old"
    deleting, moving = opened(None), opened(archive)
    assert deleting.root == str(tmp_path / "in")
    assert deleting.modified_ms(name) is None
    assert deleting.names("nowhere") == set()
    deleting.remove(name)
    path.parent.mkdir(exist_ok=True)
    for remove in (deleting.remove, moving.remove):
        path.write_text("x")
        os.utime(path, (1_700_000_000, 1_700_000_000.125))
        assert deleting.modified_ms(name) == 1_700_000_000_125
        assert path.name in deleting.names(Path(name).parent.as_posix())
        assert remove(name)
        assert not path.exists()
    assert (archive / name).read_text() == "x"
    path.write_text("y")
    assert not moving.remove(name)
    assert ((archive / name).read_text(), path.read_text()) == ("x", "y")
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=Path(name).name):
        opened(tmp_path / "file" / "old").remove(name)
    assert path.exists()
