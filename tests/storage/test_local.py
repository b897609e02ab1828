"""What is particular to a store in a local directory: names, leftovers, other file systems, other processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError, UnavailableError
from strandline.storage.local import Disk, LocalStore, sync_directory, sync_file
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.clock import ManualClock
from tests.storage.forgetful import ForgetfulDisk, Killed

DAY_MS = 24 * 3_600_000


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    "path", ["", "/", "..", "../x", "a/../b", "./a", "a/.", "a//b", "a\nb", "a\0b", f"a/.{'0' * 32}.writing"]
)
def test_what_is_no_path_is_refused(tmp_path: Path, path: str) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ConfigurationError, match="is no path of an object"):
        store.put(path, b"x")
    with pytest.raises(ConfigurationError, match="is no path of an object"):
        store.delete([path])
    assert files_in(tmp_path) == []


def test_names_on_disk_are_the_objects_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for path in ("chk-1/_metadata", "a b/ü%20#.base", ".hidden"):
        store.put(path, path.encode())
        assert (tmp_path / path).read_bytes() == path.encode()
    (tmp_path / "by hand").write_bytes(b"x")
    assert store.get("by hand") == b"x"


def test_a_directory_is_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    for read in (store.get, store.head, lambda path: store.get_file(path, tmp_path / "t")):
        with pytest.raises(NotFoundError, match="a: no such object"):
            read("a")
    with pytest.raises(UnavailableError):
        store.delete(["a"])
    assert list(store.list("a/b")) == []
    assert store.get("a/b") == b"x"


def test_directories_that_a_deletion_empties_are_gone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    for path in ("a/b/c/x", "a/y", "z/1", "z/2"):
        store.put(path, b"")
    store.delete(["a/b/c/x", "z/1", "z/2", "never/was"])
    assert files_in(tmp_path / "root") == ["a", "a/y"]
    store.delete(["a/y"])
    assert files_in(tmp_path) == ["root"]


def test_what_a_killed_writer_leaves_is_never_seen_and_removed_after_a_day(tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path)
    store = LocalStore(tmp_path, disk=disk)
    store.put("b/x", b"x")
    for path, killed_in in (("a/torn", 3), ("b/torn", 2)):
        disk.kill_in(killed_in)
        with pytest.raises(Killed):
            store.put(path, b"data")
        disk.revive()
    assert len(files_in(tmp_path)) == 5, "two files beside the one that was written, and two directories"
    for later_ms, left in ((DAY_MS - 60_000, 5), (DAY_MS + 60_000, 2)):
        clock = ManualClock(SystemClock().now_ms() + later_ms)
        store = LocalStore(tmp_path, disk=disk, clock=clock)
        assert [info.path for info in store.list("")] == ["b/x"]
        assert len(files_in(tmp_path)) == left
    assert files_in(tmp_path) == ["b", "b/x"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    class Full(Disk):
        def sync_file(self, path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(tmp_path, disk=Full())
    for write in (lambda: store.put("a", b"x"), lambda: store.create("a", b"x")):
        with pytest.raises(UnavailableError, match=r"a: No space left") as caught:
            write()
        assert "disk" in caught.value.hint
    assert files_in(tmp_path) == []


def test_a_sync_that_fails_is_no_success(tmp_path: Path) -> None:
    class Broken(Disk):
        def sync_directory(self, path: Path) -> None:
            if path == tmp_path / "a":
                raise OSError(errno.EIO, "Input/output error")

    store = LocalStore(tmp_path, disk=Broken())
    for call in (lambda: store.put("a/x", b"x"), lambda: store.get("a/x"), lambda: store.delete(["a/x", "a/y"])):
        with pytest.raises(UnavailableError, match=r"a/x: Input/output error"):
            call()
        (tmp_path / "a" / "keep").write_bytes(b"")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_links_is_refused(tmp_path: Path, number: int) -> None:
    class Fat(Disk):
        def link(self, old: Path, new: Path) -> None:
            raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path, disk=Fat())
    with pytest.raises(ConfigurationError, match="generations/1: the file system makes no hard links") as caught:
        store.create("generations/1", b"x")
    assert caught.value.hint
    assert files_in(tmp_path) == ["generations"]


def test_a_file_system_that_does_not_sync_directories_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    sync_directory(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(OSError, match="Invalid argument"):
        sync_file(tmp_path / "f")


@pytest.mark.parametrize("fsync", [True, False])
def test_fsync_is_what_open_store_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    store = open_store(str(tmp_path / "root"), fsync=fsync)
    store.create("a/b", b"x")
    assert store.get("a/b") == b"x"
    assert [info.path for info in store.list("")] == ["a/b"]
    assert bool(synced) is fsync


def test_a_directory_that_another_process_removes_at_once(tmp_path: Path) -> None:
    class Contested(Disk):
        lost = 0

        def mkdir(self, path: Path) -> None:
            super().mkdir(path)
            if path.name == "b" and self.lost < 2:
                self.lost += 1
                path.rmdir()

    disk = Contested()
    store = LocalStore(tmp_path, disk=disk)
    with pytest.raises(UnavailableError, match="a/b/x: No such file or directory"):
        store.create("a/b/x", b"x")
    RetryingStore(store, sleep=lambda s: None).create("a/b/x", b"x")
    assert disk.lost == 2
    assert store.get("a/b/x") == b"x"


@pytest.mark.parametrize("fsync", [False, True])
def test_what_another_machine_has_made_is_seen_at_once_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """NFS remembers what it found absent until the directory is opened; a driver that is replaced must hear of it."""
    here = LocalStore(tmp_path, fsync=fsync)
    here.put("job/generations/1", b"ours")
    absent: set[Path] = set()
    stat, opened = Path.stat, os.open

    def remembered(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path in absent:
            raise FileNotFoundError(errno.ENOENT, "remembered", str(path))
        try:
            return stat(path, follow_symlinks=follow_symlinks)
        except FileNotFoundError:
            absent.add(path)
            raise

    def asked(path: Path, flags: int, mode: int = 0o777) -> int:
        absent.difference_update([each for each in absent if each.parent == path])
        return opened(path, flags, mode)

    monkeypatch.setattr(Path, "stat", remembered)
    monkeypatch.setattr("strandline.storage.local.os.open", asked)
    for _ in range(2):
        with pytest.raises(NotFoundError):
            here.head("job/generations/2")
    # By another machine: this one's cache is not told.
    opened_there = opened(tmp_path / "job" / "generations" / "2", os.O_CREAT | os.O_WRONLY)
    os.close(opened_there)
    assert here.head("job/generations/2").size_bytes == 0
