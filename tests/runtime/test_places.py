"""Where things lie on a machine, and what is swept away."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId, Generation, Partition
from strandline.keeper.paths import Places, driver_records, local_copies, local_copy, sweep, sweep_machine

DAY_S = 86_400


def places(local_dir: Path, job: str = "job") -> Places:
    return Places(local_dir, "file:///checkpoints", job)


def used(local_dir: Path, job: str = "job") -> Path:
    """Make what a job of one operator leaves when everything is killed."""
    made = places(local_dir, job)
    made.make()
    state = made.state("op", Partition(0))
    for directory in (state / "db-1", state / "chk-3", made.root / "spark-1" / "offsets"):
        directory.mkdir(parents=True)
    (state / "db-1" / "CURRENT").touch()
    (state / "keeper.lock").touch()
    made.socket("op", Partition(0), Generation(1)).touch()
    return made.root


def age(root: Path, by_s: float) -> None:
    then = time.time() - by_s
    for path in [root, *root.rglob("*")]:
        os.utime(path, (then, then))


def test_jobs_share_no_directory_and_neither_do_checkpoint_directories(tmp_path: Path) -> None:
    roots = {Places(tmp_path, url, job).root for url in ("file:///a", "file:///b") for job in ("x", "y")}
    assert len(roots) == 4
    assert {root.parent for root in roots} == {tmp_path}


def test_operators_and_partitions_share_no_paths(tmp_path: Path) -> None:
    made = places(tmp_path)
    slots = [(uid, Partition(n)) for uid in ("a/b", "a_b", "a b", "x" * 90, "x" * 91, "../up") for n in (0, 11)]
    assert len({made.state(*slot) for slot in slots}) == len(slots)
    assert len({made.socket(*slot, Generation(1)) for slot in slots}) == len(slots)
    for slot in slots:
        assert made.state(*slot).parent == made.root
        assert made.log(*slot).parent == made.logs


def test_a_generation_has_sockets_of_its_own(tmp_path: Path) -> None:
    made = places(tmp_path)
    assert made.socket("op", Partition(1), Generation(1)) != made.socket("op", Partition(1), Generation(2))


def test_a_socket_path_that_the_system_cannot_take_is_refused_with_the_way_out(tmp_path: Path) -> None:
    fitting = places(Path("/" + "d" * 60))
    assert len(str(fitting.socket("op", Partition(100), Generation(10)))) < 107
    with pytest.raises(ConfigurationError, match="too long") as caught:
        places(Path("/" + "é" * 45)).socket("op", Partition(0), Generation(1))
    assert "local_dir" in caught.value.hint


def as_another_user(path: Path) -> None:
    """Give a file to a user that is not us."""
    os.chown(path, 54321, 54321, follow_symlinks=False)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def test_a_link_of_our_own_may_be_the_local_dir(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "local").symlink_to(tmp_path / "disk")
    made = places(tmp_path / "local")
    made.make()
    assert (tmp_path / "disk" / made.root.name).is_dir()


@needs_root
def test_a_link_of_another_user_is_refused_as_the_local_dir(tmp_path: Path) -> None:
    """It may lead into a directory in which everybody may write, or ours; later he can have it lead into his own."""
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    link = tmp_path / "local"
    link.symlink_to(tmp_path / "sticky")
    as_another_user(link)
    with pytest.raises(ConfigurationError, match="its owner is user 54321"):
        places(link).make()
    assert not list((tmp_path / "sticky").iterdir())


@needs_root
def test_nothing_of_another_user_is_swept(tmp_path: Path) -> None:
    root = used(tmp_path / "e")
    age(root, 2 * DAY_S)
    (tmp_path / "l").mkdir()
    (tmp_path / "l" / root.name).symlink_to(root)
    sweep(tmp_path / "l")
    assert root.exists()
    theirs = used(tmp_path / "t")
    age(theirs, 2 * DAY_S)
    as_another_user(theirs)
    sweep(tmp_path / "t")
    assert theirs.exists()


@needs_root
def test_what_another_user_says_of_a_job_is_not_heard(tmp_path: Path) -> None:
    made = places(tmp_path)
    made.make()
    made.driver_record.write_text("{}")
    assert driver_records(tmp_path) == [made.driver_record]
    as_another_user(made.driver_record)
    assert driver_records(tmp_path) == []


def test_directories_are_closed_to_others_and_making_them_twice_is_fine(tmp_path: Path) -> None:
    made = places(tmp_path / "deep" / "local")
    made.make()
    made.make()
    for path in (made.local_dir, made.root, made.logs):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("which", ["local_dir", "root", "logs"])
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, which: str, mode: int) -> None:
    made = places(tmp_path / "local")
    made.make()
    getattr(made, which).chmod(mode)
    with pytest.raises(ConfigurationError, match="others may write there") as caught:
        made.make()
    assert f"chmod go-w {getattr(made, which)}" in caught.value.hint


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match="its owner is user"):
        places(tmp_path / "local").make()


def test_a_job_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    made = places(tmp_path / "local")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    made.local_dir.mkdir(mode=0o700)
    made.root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError):
        made.make()


def test_a_place_like_tmp_will_do(tmp_path: Path) -> None:
    made = places(tmp_path / "like-tmp")
    made.local_dir.mkdir()
    made.local_dir.chmod(0o1777)
    made.make()
    assert made.root.stat().st_mode & 0o077 == 0


def test_logs_outlive_the_job(tmp_path: Path) -> None:
    made = places(tmp_path)
    used(tmp_path)
    made.log("op", Partition(0)).touch()
    with made.lock_shared() as held:
        made.remove(held)
        made.remove(held)
    assert not made.root.exists()
    assert made.log("op", Partition(0)).exists()


def test_what_a_newer_driver_works_with_is_not_removed(tmp_path: Path) -> None:
    """It took the job up when this one had just found that it still owned it."""
    made = places(tmp_path)
    root = used(tmp_path)
    before = sorted(root.rglob("*"))
    with made.lock_shared() as older, made.lock_shared():
        made.remove(older)
        assert sorted(root.rglob("*")) == sorted({*before, root / "driver.lock"})


def test_a_directory_that_was_removed_is_made_and_locked_again(tmp_path: Path) -> None:
    """Else other drivers could remove it: without a lock, nobody seems to use it."""
    made = places(tmp_path)
    held = made.lock_shared()
    assert made.lock_again(held) is held
    shutil.rmtree(made.local_dir)
    with made.lock_again(held):
        assert held.closed
        assert made.lock_exclusive() is None
    alone = made.lock_exclusive()
    alone.close()


def test_of_two_who_hold_it_alone_one_is_told_that_somebody_does(tmp_path: Path) -> None:
    made = places(tmp_path)
    held = made.lock_exclusive()
    assert made.lock_exclusive() is None
    made.remove(held)
    held.close()
    assert not made.root.exists()
    with made.lock_shared():
        assert made.lock_exclusive() is None
    again = made.lock_exclusive()
    again.close()


def test_who_comes_while_the_directories_are_removed_holds_new_ones(tmp_path: Path) -> None:
    made = places(tmp_path)
    with ThreadPoolExecutor(1) as pool, made.lock_shared() as ending:
        copy = os.dup(ending.fileno())  # As a process has it that the program forked.
        fcntl.flock(ending, fcntl.LOCK_EX)
        coming = pool.submit(made.lock_shared)
        with pytest.raises(TimeoutError):
            coming.result(0.2)
        made.remove(ending)
        ending.close()
        with coming.result(30) as held:
            assert os.path.samestat(os.fstat(held.fileno()), (made.root / "driver.lock").stat())
        os.close(copy)


def test_who_comes_while_old_directories_are_swept_holds_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, removing, forked = places(tmp_path), shutil.rmtree, threading.Event()
    made.lock_shared().close()
    for path in (made.root, *made.root.iterdir()):
        os.utime(path, (1, 1))
    copies: list[int] = []
    with ThreadPoolExecutor(1) as pool:

        def rmtree(path: Path, **given: Any) -> None:
            # A driver of this job comes, and another thread forks: the lock of whoever sweeps is open in two processes.
            coming.append(pool.submit(made.lock_shared))
            with pytest.raises(TimeoutError):
                coming[0].result(0.2)
            copies.extend(os.dup(fd) for fd in open_files() if _is(fd, made.root / "driver.lock"))
            removing(path, **given)
            forked.set()

        coming: list[Any] = []
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        sweep(tmp_path)
        assert forked.is_set()
        with coming[0].result(30) as held:
            assert os.path.samestat(os.fstat(held.fileno()), (made.root / "driver.lock").stat())
    for copy in copies:
        os.close(copy)


def open_files() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _is(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


@pytest.mark.parametrize("swept", [False, True])
def test_the_lock_of_what_is_removed_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swept: bool) -> None:
    """A driver that finds none makes another, and works in what is being removed."""
    left = used(tmp_path)
    made, real, seen = places(tmp_path), os.unlink, []

    def unlink(path: Any, **given: Any) -> None:
        if Path(path).name == "driver.lock":
            seen.append(sorted(path.name for path in left.iterdir() if path.is_dir()))
        real(path, **given)

    with made.lock_shared() as held:
        monkeypatch.setattr(os, "unlink", unlink)
        if not swept:
            made.remove(held)
    if swept:
        for path in (left, *left.rglob("*")):
            os.utime(path, (1, 1))
        sweep(tmp_path)
    assert not left.exists()
    assert seen == [[]]


def test_local_copies(tmp_path: Path) -> None:
    for name in ("chk-1", "chk-12", "chk-x", "db-1"):
        (tmp_path / name).mkdir()
    assert dict(local_copies(tmp_path)) == {n: local_copy(tmp_path, CheckpointId(n)) for n in (1, 12)}


def test_what_nobody_came_back_for_is_swept(tmp_path: Path) -> None:
    old, recent = used(tmp_path, "old"), used(tmp_path, "recent")
    empty = places(tmp_path, "empty")
    empty.make()
    # A driver that is killed while a savepoint is made leaves what it was made of.
    (old / "strandline-savepoint-x1y2" / "part").mkdir(parents=True)
    age(old, 2 * DAY_S)
    age(empty.root, 2 * DAY_S)
    sweep(tmp_path)
    assert not old.exists()
    assert not empty.root.exists()
    assert recent.exists()
    sweep(tmp_path, older_than_s=-1)
    assert not recent.exists()
    assert empty.logs.exists()


def test_a_job_whose_keeper_lives_is_not_swept(tmp_path: Path) -> None:
    root = used(tmp_path)
    age(root, 2 * DAY_S)
    with next(root.glob("*/keeper.lock")).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
        assert root.exists()
    sweep(tmp_path)
    assert not root.exists()


def test_a_keeper_that_starts_while_its_job_is_swept_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver is on another machine: no lock of a driver is held here."""
    root, removing, held = used(tmp_path), shutil.rmtree, []
    states = [places(tmp_path).state("op", Partition(n)) for n in (0, 1)]
    (states[1] / "db-2").mkdir(parents=True)
    (states[1] / "keeper.lock").touch()
    age(root, 2 * DAY_S)

    def rmtree(path: Path, **given: Any) -> None:
        if not held:
            (other,) = (state for state in states if state not in (path, *path.parents))
            held.append((other / "keeper.lock").open())
            fcntl.flock(held[0], fcntl.LOCK_EX)
        removing(path, **given)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    sweep(tmp_path)
    assert [path.parent for path in root.glob("*/keeper.lock")] == [Path(held[0].name).parent]
    assert len(list(root.glob("*/db-*"))) == 1
    with places(tmp_path).lock_shared():
        held[0].close()


def test_of_two_sweeps_the_later_one_takes_no_directory_from_a_new_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(tmp_path)
    state, flock, earlier = places(tmp_path).state("op", Partition(0)), fcntl.flock, [shutil.rmtree]

    def after_another(lock: Any, how: int) -> None:
        if earlier:
            earlier.pop()(state)
            (state / "db-2").mkdir(parents=True)
            (state / "keeper.lock").touch()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", after_another)
    sweep_machine(places(tmp_path).state("op", Partition(1)), Generation(2))
    assert {path.name for path in state.iterdir()} == {"db-2", "keeper.lock"}


def test_a_job_whose_driver_lives_is_not_swept(tmp_path: Path) -> None:
    """Its keepers may all be elsewhere, and Spark's progress be written below a directory that is a day old."""
    made = places(tmp_path)
    made.make()
    (made.root / "spark-1" / "offsets").mkdir(parents=True)
    with made.lock_shared(), made.lock_shared():
        age(made.root, 2 * DAY_S)
        sweep(tmp_path)
        assert made.root.exists()
    sweep(tmp_path)
    assert not made.root.exists()


def test_a_directory_in_which_spark_has_just_written_is_not_swept(tmp_path: Path) -> None:
    root = used(tmp_path)
    (root / "spark-1" / "offsets").mkdir(parents=True, exist_ok=True)
    age(root, 2 * DAY_S)
    (root / "spark-1" / "offsets" / "90000").touch()
    sweep(tmp_path)
    assert root.exists()
    age(root, 2 * DAY_S)
    sweep(tmp_path)
    assert not root.exists()


@pytest.mark.parametrize("name", ["my-documents"[:12], "0123456789ab", "work-of-2024"])
def test_what_is_not_a_jobs_is_never_swept(tmp_path: Path, name: str) -> None:
    """A user may say local_dir='/tmp', or the home directory."""
    theirs = tmp_path / name
    (theirs / "thesis").mkdir(parents=True)
    (theirs / "thesis" / "chapter-1").touch()
    (tmp_path / "twelve chars").touch()
    age(tmp_path, 2 * DAY_S)
    sweep(tmp_path)
    assert (theirs / "thesis" / "chapter-1").exists()
    assert (tmp_path / "twelve chars").exists()


def test_a_directory_that_is_not_there_is_nothing_to_sweep(tmp_path: Path) -> None:
    sweep(tmp_path / "none")
