"""What a local store has done or shown outlives power cuts, kills in the middle of its work, and both."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.errors import ConflictError, NotFoundError
from strandline.storage.local import LocalStore
from tests.soak import examples
from tests.storage.forgetful import ForgetfulDisk, Killed

PATHS = ("a", "chk-1/_metadata", "chk-1/f", "shared/aa/x", "shared/aa/y", "shared/ab/x")
METHODS = ("put", "create", "put_file", "delete", "get", "head", "list")
Object = bytes | None


LeaveOut = Callable[[str, str, Path], bool]


def nothing(method: str, sync: str, path: Path) -> bool:
    return False


class World:
    """A store on a forgetful disk, and what may be in it: of each path the possible contents, None for none.

    `leave_out` says of a sync of which method, of what kind and of which path the disk does nothing.
    """

    def __init__(self, directory: Path, leave_out: LeaveOut = nothing) -> None:
        self.running = "open"
        disk = directory / "disk"
        disk.mkdir()
        self.disk = ForgetfulDisk(disk, lambda sync, path: leave_out(self.running, sync, path))
        self.source = directory / "source"
        self.store = self._open()
        self.possible: dict[str, set[Object]] = {path: {None} for path in PATHS}
        self.written = 0

    def _open(self, fsync: bool = True) -> LocalStore:
        self.running = "open"
        return LocalStore(self.disk.root / "parent" / "root", fsync=fsync, disk=self.disk)

    def do(self, method: str, path: str, kill_in: int | None = None) -> None:
        """Do something, and know what that leaves and shows; if it is killed in between, only what it may leave."""
        self.running = method
        self.written += 1
        data = b"%06d" % self.written * 10
        before, changes = self.possible[path], method in ("put", "put_file", "create", "delete")
        if changes:
            self.possible[path] = before | {None if method == "delete" else data}
        if kill_in is not None:
            self.disk.kill_in(kill_in)
        try:
            getattr(self, method)(path, data)
        except Killed:
            self.disk.revive()
            self.store = self._open()
        self.disk.revive()

    def put(self, path: str, data: bytes) -> None:
        self.store.put(path, data)
        self.possible[path] = {data}

    def put_file(self, path: str, data: bytes) -> None:
        self.source.write_bytes(data)
        self.store.put_file(path, self.source)
        self.possible[path] = {data}

    def create(self, path: str, data: bytes) -> None:
        try:
            self.store.create(path, data)
        except ConflictError:
            self.possible[path] -= {None, data}
            assert self.possible[path], f"{path}: there was none to conflict with"
        else:
            self.possible[path] = {data}

    def delete(self, path: str, data: bytes) -> None:
        self.store.delete([path])
        self.possible[path] = {None}

    def get(self, path: str, data: bytes) -> None:
        self._see(path, found(self.store, path))

    def head(self, path: str, data: bytes) -> None:
        try:
            self.store.head(path)
        except NotFoundError:
            self._see(path, None)
        else:
            self.possible[path] -= {None}
            assert self.possible[path], f"{path}: it is there"

    def list(self, path: str, data: bytes) -> None:
        names = {info.path for info in self.store.list("")}
        assert names <= set(PATHS), "no temporary file shows"
        for each in PATHS:
            if each in names:
                self.possible[each] -= {None}
                assert self.possible[each], f"{each}: it is listed"
            else:
                self._see(each, None)

    def _see(self, path: str, seen: Object) -> None:
        assert seen in self.possible[path], f"{path}: {seen!r}, expected one of {self.possible[path]}"
        self.possible[path] = {seen}

    def power_cut(self, rng: random.Random) -> None:
        """Cut the power, and look at what is left; looking syncs nothing, and the store is opened anew."""
        self.disk.power_cut(rng)
        looking = self._open(fsync=False)
        assert {info.path for info in looking.list("")} <= set(PATHS), "no temporary file shows"
        for path in PATHS:
            self._see(path, found(looking, path))
        self.store = self._open()


def found(store: LocalStore, path: str) -> Object:
    try:
        return store.get(path)
    except NotFoundError:
        return None


STEPS = st.tuples(st.sampled_from(METHODS), st.sampled_from(PATHS), st.one_of(st.none(), st.integers(1, 12)))


@examples(150)
@given(rounds=st.lists(st.lists(STEPS, max_size=12), max_size=3), seed=st.integers(0, 2**32))
def test_what_was_done_and_shown_outlives_power_cuts(
    rounds: list[list[tuple[str, str, int | None]]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        for steps in rounds:
            for step in steps:
                world.do(*step)
            world.power_cut(random.Random(seed))


def random_lives(tmp: Path, leave_out: LeaveOut) -> None:
    """Two hundred stores, always the same ones: three rounds of chance, with kills, for each."""
    for seed in range(200):
        rng = random.Random(seed)
        (tmp / str(seed)).mkdir()
        world = World(tmp / str(seed), leave_out)
        for _ in range(3):
            for _ in range(8):
                world.do(rng.choice(METHODS), rng.choice(PATHS), rng.choice((None, rng.randint(1, 12))))
            world.power_cut(rng)


LEFT_OUT: dict[str, LeaveOut] = {
    "bytes of put": lambda method, sync, path: (method, sync) == ("put", "sync_file"),
    "bytes of put_file": lambda method, sync, path: (method, sync) == ("put_file", "sync_file"),
    "bytes of create": lambda method, sync, path: (method, sync) == ("create", "sync_file"),
    "names of put": lambda method, sync, path: (method, sync) == ("put", "sync_directory"),
    "names of put_file": lambda method, sync, path: (method, sync) == ("put_file", "sync_directory"),
    "names of create": lambda method, sync, path: (method, sync) == ("create", "sync_directory"),
    "names of delete": lambda method, sync, path: method == "delete",
    "names that get shows": lambda method, sync, path: method == "get",
    "names that head shows": lambda method, sync, path: method == "head",
    "names that list shows": lambda method, sync, path: method == "list",
    "names of open": lambda method, sync, path: method == "open",
    "the object's directory": lambda method, sync, path: path.name in ("chk-1", "aa", "ab"),
    "the directory above": lambda method, sync, path: path.name == "shared",
    "the store's root": lambda method, sync, path: path.name == "root",
    "the root's own directory": lambda method, sync, path: path.name == "parent",
    "what is above that": lambda method, sync, path: path.name == "disk",
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_no_sync_can_be_left_out(tmp_path: Path, left_out: str) -> None:
    """Shows that the tests here would see it: each of these loses something within some lives, and nothing else does."""
    with pytest.raises(AssertionError):
        random_lives(tmp_path, LEFT_OUT[left_out])


def test_a_store_that_leaves_out_nothing_loses_nothing(tmp_path: Path) -> None:
    random_lives(tmp_path, nothing)


def test_without_fsync_a_power_cut_takes_what_it_likes(tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path)
    store = LocalStore(tmp_path, fsync=False, disk=disk)
    left = set()
    for seed in range(50):
        store.put(f"{seed}/b", b"data")
        disk.power_cut(random.Random(seed))
        left.add(found(store, f"{seed}/b"))
    assert left > {None, b"", b"data"}, "also torn ones"
