"""Savepoints of real state, by real processes: the same files for the same state, and nothing where one fails."""

from __future__ import annotations

import copy
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from strandline.checkpoint import kinds
from strandline.core.errors import CheckpointError, ConflictError, CorruptionError, StrandlineError
from strandline.core.scratch import LOCK, remove_abandoned
from strandline.format.manifest import MANIFEST, Manifest
from strandline.snapshot.savepoints import exporters
from strandline.snapshot.savepoints import take as taking
from strandline.snapshot.savepoints.export import ExportPart
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.snapshot.savepoints.take import Form, take_savepoint
from strandline.storage.local import LocalStore
from strandline.storage.place import Place
from tests.runtime.bench import OPS, Model
from tests.runtime.rescaling import KEYS, Job
from tests.snapshot.exporting import exporting_here


def place(root: Path, path: str) -> Place:
    return Place(url=root.as_uri(), path=path)


def take(job: Job, name: str, form: Form = "canonical", **given: Any) -> Manifest:
    return take_savepoint(
        job.manifest(), place(job.root / "storage", "job"), place(job.root, name), form, scratch=job.root, **given
    )


def lived(root: Path, lives: list[tuple[int, str]]) -> tuple[Job, Model]:
    """Return a job that has lived at each parallelism and on each backend, and what its state must be."""
    rng, job, model = random.Random(1), Job(root), Model()
    for parallelism, backend in lives:
        job.start(parallelism, backend)
        for _ in range(4):
            events = [(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in KEYS]
            job.run(events)
            for event in events:
                model.answer(*event)
        job.checkpoint()
        job.stop()
    return job, model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Model]:
    return lived(tmp_path_factory.mktemp("made"), [(2, "rocksdb")])


@pytest.fixture
def job(made: tuple[Job, Model], tmp_path: Path) -> Job:
    """A job of two partitions that has stopped, with storage of its own."""
    mine = copy.copy(made[0])
    shutil.copytree(mine.root / "storage", tmp_path / "storage")
    mine.root, mine.storage = tmp_path, Place(url=f"file://{tmp_path}/storage")
    return mine


def test_equal_state_has_equal_files_whatever_its_job_was(tmp_path: Path) -> None:
    found = {}
    for name, lives in {
        "one": [(1, "rocksdb"), (1, "rocksdb")], "heap": [(2, "memory"), (3, "filesystem")],
        "many": [(3, "rocksdb"), (2, "rocksdb")],
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        job, _ = lived(tmp_path / name, lives)
        heard: list[SavepointProgress] = []
        # The last one by processes.
        with nullcontext() if name == "many" else exporting_here():
            manifest = take(job, "savepoint", report=heard.append)
        assert (heard[-1].done, heard[-1].partitions) == (lives[-1][0],) * 2
        (operator,) = manifest.operators
        assert operator.tables
        found[name] = operator.tables
        assert sum(table.rows for tables in operator.tables.values() for table in tables) == heard[-1].rows > 0
        assert not operator.partitions
        folder = tmp_path / name / "savepoint"
        assert MANIFEST.decode((folder / "_metadata").read_bytes(), "it") == manifest
        there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert there == {"_metadata", *(file.path for file in manifest.files())}
        assert not list((tmp_path / name).glob("strandline-savepoint-*"))
    assert found["one"] == found["heap"] == found["many"]


def test_a_table_is_read_without_our_code(made: tuple[Job, Model], job: Job, tmp_path: Path) -> None:
    model = made[1]
    manifest = take(job, "savepoint")
    tables = manifest.operators[0].tables or {}
    files = {state: [str(tmp_path / "savepoint" / t.file.path) for t in tables[state]] for state in tables}
    rows = duckdb.sql(f"select k, value from read_parquet({files['value']})").fetchall()
    assert dict(rows) == {key: state["value"] for key, state in model.keys.items() if "value" in state}
    rows = duckdb.sql(f"select k, list(value order by position) from read_parquet({files['history']}) group by k")
    assert dict(rows.fetchall()) == {key: state["list"] for key, state in model.keys.items() if state["list"]}
    assert duckdb.sql(f"select count(*) from read_parquet({files['timers.processing']})").fetchall() == [(len(KEYS),)]


def test_a_native_savepoint_has_the_same_files_under_paths_of_its_own(job: Job, tmp_path: Path) -> None:
    manifest = take(job, "savepoint", "native")
    before = [file for part in job.manifest().operators[0].partitions for file in part.files]
    after = [file for part in manifest.operators[0].partitions for file in part.files]
    assert [(f.name, f.size, f.sha256) for f in before] == [(f.name, f.size, f.sha256) for f in after]
    assert not any(file.shared for file in after)
    for one, other in zip(before, after, strict=True):
        if one.path:
            here, there = tmp_path / "storage" / "job" / one.path, tmp_path / "savepoint" / other.path
            assert here.samefile(there)


def test_a_native_savepoint_of_partitions_that_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_INLINE_UP_TO_BYTES", 0)
    monkeypatch.setattr(LocalStore, "take", lambda *_: False)
    job = Job(tmp_path)
    job.start(8, "filesystem")
    job.checkpoint()
    job.stop()
    # Several threads bring files at once.
    for number in range(5):
        manifest = take(job, f"savepoint-{number}", "native")
        (path,) = {file.path for part in manifest.operators[0].partitions for file in part.files}
        assert (tmp_path / f"savepoint-{number}" / path).is_file()


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_what_is_damaged_or_in_the_way_is_refused_and_nothing_is_left(job: Job, tmp_path: Path, form: Form) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "something").write_text("else")
    with pytest.raises(ConflictError, match="expected an empty folder, found 'something'"):
        take(job, "taken", form)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["something"]
    part = job.manifest().operators[0].partitions[1]
    file = next(file for file in part.files if file.path)
    stored = tmp_path / "storage" / "job" / file.path
    stored.rename(stored.with_suffix(".gone"))
    with pytest.raises((CorruptionError, StrandlineError), match=re.escape(file.path)):
        take(job, "savepoint", form)
    assert not (tmp_path / "savepoint").exists()
    stored.with_suffix(".gone").rename(stored)
    take(job, "savepoint", form)


@pytest.mark.parametrize("place_", ["savepoint.part.fetched", "savepoint.upload", "savepoint.part.written"])
def test_a_process_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place_: str
) -> None:
    monkeypatch.setenv("STRANDLINE_FAILPOINTS", f"{place_}=kill")
    with pytest.raises(StrandlineError, match=r"operator 'op', partition \d, .* has ended with -9"):
        take(job, "savepoint")
    assert not (tmp_path / "savepoint").exists()
    assert not list(tmp_path.glob("strandline-savepoint-*"))


def test_a_process_that_is_killed_before_it_hears_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(["false"], **given)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    # State inside the manifest, more of it than a pipe takes.
    job = Job(tmp_path)
    job.start(1, "memory")
    job.run([(f"k{n:0100}", "set_value", n, n) for n in range(1000)])
    job.checkpoint()
    job.stop()
    monkeypatch.setattr(exporters.subprocess, "Popen", Killed)
    with pytest.raises(StrandlineError, match=r"partition 0, .* has ended with 1"):
        take(job, "savepoint")
    assert not (tmp_path / "savepoint").exists()


def test_one_that_fails_ends_the_others_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Failing(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **given: Any) -> None:
            begun.append(self)
            super().__init__(["false"] if len(begun) == 2 else ["sleep", "60"], **given)

    job, _ = lived(tmp_path, [(6, "rocksdb")])
    monkeypatch.setattr(exporters.subprocess, "Popen", Failing)
    monkeypatch.setattr(taking.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(taking, "_SHARE_BYTES", 1)
    with pytest.raises(StrandlineError, match="has ended with 1"):
        take(job, "savepoint")
    # None has come to its end; one was begun, perhaps, when another had failed already.
    assert [process.returncode for process in begun[:2]] == [-signal.SIGTERM, 1]
    assert all(process.returncode == -signal.SIGTERM for process in begun[2:])
    assert len(begun) <= 3


def test_one_process_for_the_partitions_of_a_small_state_gives_way_to_those_of_every_session(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, begun = [], []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(*args, **given)
            begun.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if self.returncode is None:
                # It has ended, and nobody has been told so yet.
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                session = Path(f"/proc/{self.pid}/autogroup")
                nice = session.read_text().split()[-1] if session.exists() else "19"
                shares.append((os.getpriority(os.PRIO_PROCESS, self.pid), os.getsid(self.pid) == self.pid, nice))
            return super().wait(timeout)

    monkeypatch.setattr(exporters.subprocess, "Popen", Seen)
    monkeypatch.setattr(taking.os, "cpu_count", lambda: 2)
    take(job, "savepoint")
    assert shares == [(19, True, "19")]
    assert [process.returncode for process in begun] == [0]


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_one_that_is_cancelled_ends_though_its_processes_do_not_move(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    class Stopped(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **given: Any) -> None:
            super().__init__(["sleep", "60"], **given)
            self.send_signal(signal.SIGSTOP)
            begun.append(self)

    begun: list[Stopped] = []
    monkeypatch.setattr(exporters.subprocess, "Popen", Stopped)
    monkeypatch.setattr(exporters, "_PATIENCE_S", 0.5)
    with pytest.raises(CheckpointError, match="/savepoint: the savepoint was cancelled"):
        take(job, "savepoint", form, cancelled=lambda: form == "native" or bool(begun))
    assert all(process.returncode == -signal.SIGKILL for process in begun)
    assert not (tmp_path / "savepoint").exists()


def test_processes_whose_driver_was_killed_leave_nothing_on_this_machine(job: Job, tmp_path: Path) -> None:
    stuck = "import time; from strandline.snapshot.savepoints import export; export.export = lambda *_: time.sleep(60)"
    part = ExportPart(
        source=place(tmp_path / "storage", "job"), target=place(tmp_path, "savepoint"), operator=job.stored, scratch="",
        now_us=0,
    )  # fmt: skip
    begun = []
    for number in range(2):
        scratch = tmp_path / "savepoint-1" / str(number)
        scratch.mkdir(parents=True)
        (scratch.parent / LOCK).touch()
        (scratch / "fetched").touch()
        process = subprocess.Popen([sys.executable, "-c", f"{stuck}; export.main()"], stdin=subprocess.PIPE)
        process.stdin.write(msgspec.json.encode(msgspec.structs.replace(part, scratch=str(scratch))) + b"\n")
        begun.append(process)
    for process in begun:
        process.stdin.close()
        assert process.wait(30) == 1
    assert not (tmp_path / "savepoint-1").exists()


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_what_a_killed_export_leaves_is_removed_by_the_next(job: Job, tmp_path: Path, form: Form) -> None:
    """Also when all of its processes are killed at once, as by a lack of memory."""
    stuck = "import os, sys, time; from strandline.snapshot.savepoints import take as taking\n"
    stuck += "def hang(*_): os.write(1, b'here\\n'); time.sleep(60)\n"
    stuck += "taking._Native._bring = taking._Canonical._run = hang\n"
    stuck += "taking.take_savepoint(*taking.msgspec.msgpack.decode(sys.stdin.buffer.read(), "
    stuck += "type=tuple[taking.Manifest, taking.Place, taking.Place, str]), scratch=taking.Path(sys.argv[1]))"
    process = subprocess.Popen(
        [sys.executable, "-c", stuck, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    asked = (job.manifest(), place(tmp_path / "storage", "job"), place(tmp_path, "killed"), form)
    process.stdin.write(msgspec.msgpack.encode(asked))
    process.stdin.close()
    assert process.stdout.readline() == b"here\n"
    (left,) = tmp_path.glob("strandline-savepoint-*")
    mine = tmp_path / "strandline-savepoint-20260101"
    mine.mkdir()
    remove_abandoned(tmp_path)
    assert left.exists(), "it is at work"
    process.kill()
    process.wait()
    process.stdout.close()
    with exporting_here():
        take(job, "savepoint", form)
    assert list(tmp_path.glob("strandline-savepoint-*")) == [mine]
