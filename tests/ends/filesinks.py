"""Driving a file sink without Spark: rows that Spark would write, lives of the engine, and a disk that fails anywhere."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.core import failpoints
from strandline.core.ids import Epoch, Generation
from strandline.spark.base.filesystem import LocalFiles
from strandline.spark.sinks import output_directory as place
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sinks.files import FileSink
from strandline.testing.sinks import conformance
from tests.crashing import Crash

NAME = "out"

NEED_SPARK = {conformance.rows_are_read_once_and_to_their_end, conformance.rows_of_a_task_that_fails_are_seen}
"""The checks of a sink that `Rows` are not enough for."""


class Rows:
    """Stands in for a DataFrame: writes its files as Spark does, one for each list of rows."""

    def __init__(self, *files: Sequence[Any]) -> None:
        self._files = files

    def where(self, nothing: str) -> Rows:
        return Rows([])

    def collect(self) -> list[Any]:
        return [row for file in self._files for row in file]

    @property
    def write(self) -> Rows:
        return self

    def format(self, name: str) -> Rows:
        assert name == "json"
        return self

    def options(self, **options: Any) -> Rows:
        return self

    def mode(self, mode: str) -> Rows:
        assert mode == "overwrite"
        return self

    def save(self, where: str) -> None:
        directory = Path(where.removeprefix("file:"))
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for i, rows in enumerate(self._files):
            (directory / f"part-{i:05d}-made.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (directory / f".part-{i:05d}-made.json.crc").touch()
        (directory / "_SUCCESS").touch()


def frame(spark: None, numbers: range, tasks: int) -> Any:
    """Return numbers in so many tasks, for a trial without Spark."""
    return Rows(*(numbers[task::tasks] for task in range(tasks)))


def sink_at(
    path: Path, generation: int, *, visibility: Any = "checkpoint", fsync: bool = False, restored_by: int = 0
) -> FileSink:
    """Return a sink that was opened for a run."""
    sink = FileSink(f"file:{path}", format="json", visibility=visibility)
    sink.open(context(generation, fsync=fsync, restored_by=restored_by))
    return sink


def context(generation: int, *, fsync: bool = False, restored_by: int = 0) -> SinkContext:
    """Return the run a sink works for; there is no Spark in it."""
    spark: Any = None
    return SinkContext(spark, "job", "life", Generation(generation), NAME, fsync, restored_by=restored_by)


def started(
    path: Path, generation: int, pending: Sequence[str] = (), epoch: int = 0, *, restored_by: int = 0
) -> FileSink:
    """Return a sink after a start of the job: from a checkpoint with these rows pending, or empty."""
    sink = sink_at(path, generation, restored_by=restored_by)
    sink.recover(pending, Epoch(epoch), fresh=epoch == 0)
    return sink


def stage(sink: FileSink, epoch: int, *files: Sequence[Any]) -> str:
    """Write an epoch; return what a checkpoint would list."""
    rows: Any = Rows(*files)
    staged = sink.write(rows, Epoch(epoch))
    assert staged is not None
    return staged


def visible(*paths: Path) -> Counter[Any]:
    """Return the rows that a reader sees, each with how often."""
    return Counter(row for path in paths for file in shown_files(path) for row in rows_in(file))


def rows_in(file: Path) -> list[Any]:
    """Return the rows of one file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def shown_files(path: Path) -> list[Path]:
    """Return the visible files in order of their names."""
    return sorted(p for p in path.glob("*") if p.is_file() and not p.name.startswith(("_", ".")))


def records(path: Path) -> list[Path]:
    """Return the sink's records of what it has shown, oldest first."""
    return sorted(path.glob("_strandline/*/shown-*"))


def rows(*epochs: int) -> Counter[int]:
    """The rows of `staged` epochs."""
    return Counter(row for epoch in epochs for row in (epoch * 10, epoch * 10 + 1))


def staged(sink: Any, *epochs: int) -> list[str]:
    """Stage epochs of two files each, with a row in each of them."""
    return [stage(sink, epoch, [epoch * 10], [epoch * 10 + 1]) for epoch in epochs]


def commit_crashing(sink: Any, pending: list[str], failpoint: str, at: int = 1) -> None:
    """Begin a commit, and crash where this failpoint is hit so often."""

    def crash() -> None:
        raise Crash(failpoint)

    failpoints.arm(failpoint, crash, at=at)
    with pytest.raises(Crash):
        sink.commit(pending)


class Disk:
    """Counts what is done to files, and crashes before one of them, within it or after it; or lets others go ahead."""

    def __init__(self, monkeypatch: Any) -> None:
        self.crash_at: int | None = None
        self.others: Callable[[], None] | None = None
        self.done: list[tuple[str, str]] = []
        monkeypatch.setattr(place, "open_filesystem", self._open)

    def forget(self, crash_at: int | None = None) -> None:
        """Count anew; crash at the step of this number, if there is one."""
        self.crash_at, self.others, self.done = crash_at, None, []

    def pause(self, at: int, others: Callable[[], None]) -> None:
        """Count anew; before the step of this number, the driver is stopped for as long as others do something."""
        self.crash_at, self.others, self.done = at, others, []

    def step(self, what: str, path: str, act: Callable[[], Any], in_part: Callable[[], Any] = lambda: None) -> Any:
        """Do something in three steps: not at all, in part, in full."""
        self._count(what, path)
        if len(self.done) == self.crash_at and self.others is None:
            in_part()
        self._count(what, path)
        result = act()
        self._count(what, path)
        return result

    def _count(self, what: str, path: str) -> None:
        if len(self.done) == self.crash_at:
            if self.others is None:
                raise Crash(f"{what} {path}")
            others = self.others
            self.forget()
            others()
        self.done.append((what, path))

    def _open(self, spark: Any, root: str, *, fsync: bool, options: Any) -> FailingFiles:
        self._count("open", root)
        return FailingFiles(Path(root.removeprefix("file:")), self)


class FailingFiles(LocalFiles):
    """Files of this machine on such a disk."""

    def __init__(self, root: Path, disk: Disk) -> None:
        super().__init__(root, fsync=False)
        self._disk = disk

    def rename(self, source: str, target: str) -> bool:
        return bool(self._disk.step("rename", source, lambda: LocalFiles.rename(self, source, target)))

    def create(self, path: str, data: bytes) -> bool:
        half = data[: len(data) // 2]
        return bool(
            self._disk.step(
                "create", path, lambda: LocalFiles.create(self, path, data), lambda: LocalFiles.create(self, path, half)
            )
        )

    def delete(self, path: str) -> None:
        def one_file() -> None:
            directory = self.local(path)
            for name, _ in self.list(path)[:1] if directory.is_dir() else []:
                LocalFiles.delete(self, f"{path}/{name}")

        self._disk.step("delete", path, lambda: LocalFiles.delete(self, path), one_file)

    def mkdirs(self, path: str) -> None:
        self._disk.step("mkdirs", path, lambda: LocalFiles.mkdirs(self, path))
