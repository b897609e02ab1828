"""Standbys: what they keep of other machines' partitions, and restores from it. Without Spark."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId, Generation, Partition
from strandline.format.manifest import MANIFEST, FileRef
from strandline.keeper import standby as standbys
from strandline.keeper.paths import partition_directory, standby_files, sweep, sweep_machine
from strandline.keeper.protocol import Report, StandbyState
from strandline.keeper.standby import Standby
from strandline.runtime.program import Followed, Restore
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import manifest, shared_ref
from tests.runtime.clients import Keeper, Nursery, eventually, restore_of

KEYS = [f"k{n}" for n in range(20)]
FOLLOWED = Followed("op", Partition(0))
CONTENT = {name: os.urandom(200_000) for name in "abcd"}


def publish(jobdir: JobDirectory, number: int, files: list[FileRef]) -> None:
    """Publish a checkpoint of the operator `op` with one partition."""
    made = manifest(number, files)
    made = structs.replace(made, operators=[structs.replace(made.operators[0], uid="op")])
    jobdir.put(manifest_path(CheckpointId(number)), MANIFEST.encode(made))


class Followers:
    """A standby of one partition in this process, and the storage that it reads."""

    def __init__(self, root: Path) -> None:
        self.root = root / "machine"
        self.directory = partition_directory(self.root, "op", Partition(0))
        self.files = standby_files(self.directory)
        self.storage = root / "storage"
        self.jobdir = JobDirectory(open_store(self.storage.as_uri()), "job")

    def begin(self, generation: int = 1) -> Standby:
        return Standby(Generation(generation), self.root, [FOLLOWED], self.jobdir)

    def publish(self, number: int, *names: str) -> None:
        refs = [shared_ref(name, CONTENT[name]) for name in names]
        for ref in refs:
            self.jobdir.put(ref.path, CONTENT[ref.name])
        publish(self.jobdir, number, refs)

    def kept(self) -> set[str]:
        """Return which contents are there, each under its checksum; no file is there that has another one."""
        known = {shared_ref(name, data).sha256: name for name, data in CONTENT.items()}
        found = set()
        for path in self.files.iterdir() if self.files.exists() else ():
            if path.suffix != ".tmp":
                assert path.read_bytes() == CONTENT[known[path.name]]
                found.add(known[path.name])
        return found


@pytest.fixture
def followers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followers:
    monkeypatch.setattr(standbys, "_PAUSE_S", 0.01)
    return Followers(tmp_path)


def reached(standby: Standby, number: int) -> StandbyState:
    standby.follow(CheckpointId(number))
    return eventually(  # type: ignore[no-any-return]
        lambda: (state := standby.states()[0]).checkpoint == number and state, f"checkpoint {number} is copied"
    )


def test_only_new_files_are_downloaded_and_old_ones_are_dropped(followers: Followers) -> None:
    followers.publish(1, "a", "b")
    standby = followers.begin()
    first = reached(standby, 1)
    assert followers.kept() == {"a", "b"}
    assert first.total_bytes == first.downloaded_bytes == 400_000
    followers.publish(2, "b", "c")
    second = reached(standby, 2)
    assert followers.kept() == {"b", "c"}
    assert (second.total_bytes, second.downloaded_bytes, second.failure) == (400_000, 600_000, "")
    standby.forget()
    assert not followers.directory.exists()


def test_another_process_of_the_same_run_goes_on_with_the_files(followers: Followers) -> None:
    followers.publish(1, "a", "b")
    reached(followers.begin(), 1)
    followers.publish(2, "b", "c")
    assert reached(followers.begin(), 2).downloaded_bytes == 200_000


def test_a_damaged_file_is_not_kept_and_one_that_is_mended_is(followers: Followers) -> None:
    followers.publish(1, "a", "b")
    standby = followers.begin()
    followers.jobdir.put("b", CONTENT["c"])
    standby.follow(CheckpointId(1))
    failed = eventually(lambda: (state := standby.states()[0]).failure and state, "it fails")
    assert "checkpoint 1 is not copied" in failed.failure
    assert failed.checkpoint is None
    assert followers.kept() == {"a"}
    followers.jobdir.put("b", CONTENT["b"])
    assert eventually(lambda: standby.states()[0].checkpoint == 1, "it tries again by itself")
    assert standby.states()[0].failure == ""
    assert followers.kept() == {"a", "b"}


def test_a_standby_leaves_the_keepers_of_its_machine_space(
    followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write to the same disk, and would fail for a copy of another partition."""
    followers.publish(1, "a")
    standby = followers.begin()
    monkeypatch.setattr(standbys.shutil, "disk_usage", lambda _: SimpleNamespace(free=200_000 + (512 << 20) - 1))
    standby.follow(CheckpointId(1))
    failed = eventually(lambda: (state := standby.states()[0]).failure and state, "it fails")
    assert "the disk has no room for 200000 bytes" in failed.failure
    assert followers.kept() == set()
    monkeypatch.undo()
    assert eventually(lambda: standby.states()[0].checkpoint == 1, "it goes on when there is room")
    assert followers.kept() == {"a"}


def test_a_checkpoint_that_is_gone_is_passed_over(followers: Followers) -> None:
    standby = followers.begin()
    followers.publish(1, "a")
    followers.jobdir.delete(["a", manifest_path(CheckpointId(1))])
    followers.publish(2, "b")
    standby.follow(CheckpointId(1))
    assert reached(standby, 2).failure == ""
    assert followers.kept() == {"b"}


def test_files_of_a_checkpoint_that_is_subsumed_meanwhile_stay_for_the_next_one(followers: Followers) -> None:
    followers.publish(1, "a", "b", "c")
    followers.jobdir.delete(["b"])
    standby = followers.begin()
    standby.follow(CheckpointId(1))
    eventually(lambda: "a" in followers.kept(), "the first file is copied")
    followers.jobdir.delete([manifest_path(CheckpointId(1))])
    followers.publish(2, "a", "d")
    assert reached(standby, 2).failure == ""
    assert followers.kept() == {"a", "d"}
    assert standby.states()[0].downloaded_bytes == 400_000


def test_what_a_keeper_has_left_is_used_and_removed(followers: Followers) -> None:
    """The partition was here before, and went elsewhere."""
    for name, content in (("chk-3/a", CONTENT["a"]), ("chk-3/b", CONTENT["c"]), ("db-1/CURRENT", b"")):
        path = followers.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (followers.directory / "keeper.lock").write_text("4711 12345 1")
    followers.publish(4, "a", "b")
    state = reached(followers.begin(generation=2), 4)
    assert followers.kept() == {"a", "b"}
    assert state.downloaded_bytes == 200_000
    assert sorted(path.name for path in followers.directory.iterdir()) == ["keeper.lock", "standby"]


def test_where_a_keeper_is_nothing_is_written(followers: Followers) -> None:
    followers.publish(1, "a")
    followers.directory.mkdir(parents=True)
    with (followers.directory / "keeper.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        standby = followers.begin()
        assert standby._follow(CheckpointId(1))
        standby.forget()
    assert [path.name for path in followers.directory.iterdir()] == ["keeper.lock"]


def test_where_a_newer_run_is_nothing_is_written(followers: Followers) -> None:
    followers.publish(1, "a")
    reached(followers.begin(generation=2), 1)
    older = followers.begin(generation=1)
    followers.publish(2, "b")
    assert older._follow(CheckpointId(2))
    older.forget()
    assert followers.kept() == {"a"}


def test_a_sweep_leaves_what_this_run_follows(followers: Followers) -> None:
    followers.publish(1, "a")
    reached(followers.begin(generation=3), 1)
    keeper = partition_directory(followers.root, "op", Partition(1))
    sweep_machine(keeper, Generation(3))
    assert followers.kept() == {"a"}
    # A run that does not follow it.
    sweep_machine(keeper, Generation(4))
    assert not followers.directory.exists()


def test_what_a_killed_job_followed_is_swept_after_a_day(followers: Followers) -> None:
    followers.root = followers.root.parent / "0123456789ab"
    followers.publish(1, "a")
    reached(followers.begin(), 1)
    sweep(followers.root.parent)
    assert followers.root.exists()
    for path in (followers.root, *followers.root.iterdir()):
        os.utime(path, (0, 0))
    sweep(followers.root.parent)
    assert not followers.root.exists()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Nursery, Nursery]]:
    """Two machines, with one storage."""
    made = Nursery(tmp_path / "1"), Nursery(tmp_path / "2")
    made[1].storage = made[0].storage
    yield made
    for each in made:
        each.close()


def follow(keeper: Keeper, number: int) -> StandbyState:
    """Let a keeper hear of a checkpoint, and wait until its standby has it."""
    return eventually(  # type: ignore[no-any-return]
        lambda: (state := keeper.poll(confirmed=number).standbys[0]).checkpoint == number and state,
        f"checkpoint {number} is copied",
    )


def published(keeper: Keeper, report: Report) -> Restore:
    """Publish a checkpoint of a keeper; return what restores it."""
    jobdir = JobDirectory(open_store(keeper.program.store_url), "job")
    publish(jobdir, report.checkpoint, report.info.files)
    return restore_of(report, keeper.epoch)


@pytest.mark.parametrize("mode", ["incremental", "changelog", "full"])
def test_a_partition_goes_on_on_another_machine_without_the_storage(
    machines: tuple[Nursery, Nursery], mode: Any
) -> None:
    first, second = machines
    owner = first.start(mode=mode)
    follower = second.start(mode=mode, uid="other", followed={0: [FOLLOWED]})
    follower.poll()
    owner.run([(str(n), "fill", 500, 0) for n in range(2000)])
    owner.counts(*KEYS)
    restore = published(owner, owner.checkpoint(1))
    state = follow(follower, 1)
    assert state.total_bytes > 1_000_000
    owner.kill()
    follower.stop()
    files = standby_files(second.start(uid="unused").places.state("op", Partition(0)))
    assert files.exists(), "a stop for a restart leaves it"
    for path in (first.storage / "job" / "shared", first.storage / "job" / "chk-1"):
        shutil.rmtree(path, ignore_errors=True)
    again = second.start(mode=mode, generation=2, restore=restore)
    assert again.counts(*KEYS) == [(key, "2") for key in KEYS]
    from_copies, from_storage = again.restored()
    assert from_copies >= 1_000_000
    assert from_storage == 0
    # Its own copies take the place of the standby's files.
    again.checkpoint(2, confirmed=1)
    again.poll(confirmed=2)
    assert not files.exists()


def test_an_older_copy_serves_for_what_has_not_changed(machines: tuple[Nursery, Nursery]) -> None:
    first, second = machines
    owner = first.start(mode="incremental")
    follower = second.start(uid="other", followed={0: [FOLLOWED]})
    follower.poll()
    owner.run([(str(n), "fill", 500, 0) for n in range(2000)])
    published(owner, owner.checkpoint(1))
    follow(follower, 1)
    owner.counts(*KEYS)
    restore = published(owner, owner.checkpoint(2, confirmed=1))
    owner.kill()
    follower.kill()
    again = second.start(mode="incremental", generation=2, restore=restore)
    assert again.counts(*KEYS) == [(key, "2") for key in KEYS]
    from_copies, from_storage = again.restored()
    assert from_copies > 1_000_000
    assert 0 < from_storage < 100_000


@pytest.mark.parametrize("damage", ["content", "size"])
def test_a_damaged_copy_is_not_restored(machines: tuple[Nursery, Nursery], damage: str) -> None:
    first, second = machines
    owner = first.start(mode="incremental")
    follower = second.start(uid="other", followed={0: [FOLLOWED]})
    follower.poll()
    owner.run([(str(n), "fill", 500, 0) for n in range(2000)])
    restore = published(owner, owner.checkpoint(1))
    follow(follower, 1)
    owner.kill()
    follower.kill()
    files = standby_files(follower.places.state("op", Partition(0)))
    largest = max(files.iterdir(), key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    middle = len(data) // 2
    largest.write_bytes(
        data[:-1] if damage == "size" else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    )
    again = second.start(mode="incremental", generation=2, restore=restore)
    if damage == "content":
        # It was linked, and is read before the first upload.
        with pytest.raises(CorruptionError, match="the local copy is damaged"):
            again.checkpoint(2)
        assert not files.exists()
        again.kill()
        again = second.start(mode="incremental", generation=3, restore=restore)
    assert again.counts("7") == [("7", "2")]
    assert again.restored()[1] >= len(data)


def test_a_kill_in_the_middle_of_a_download_leaves_nothing_that_is_restored(
    machines: tuple[Nursery, Nursery],
) -> None:
    first, second = machines
    owner = first.start(mode="incremental")
    armed = {"STRANDLINE_FAILPOINTS": "standby.downloaded=kill@2"}
    follower = second.start(uid="other", followed={0: [FOLLOWED]}, env=armed)
    follower.poll()
    owner.run([(str(n), "fill", 500, 0) for n in range(2000)])
    restore = published(owner, owner.checkpoint(1))
    follower.poll(confirmed=1)
    assert follower.ended() == -signal.SIGKILL
    files = standby_files(follower.places.state("op", Partition(0)))
    assert sorted(path.suffix for path in files.iterdir()) == ["", ".tmp"]
    owner.kill()
    again = second.start(mode="incremental", generation=2, restore=restore)
    assert again.counts("7") == [("7", "2")]
    from_copies, from_storage = again.restored()
    assert from_copies > 0
    assert from_storage > 0


def test_the_end_of_a_job_removes_what_it_followed(machines: tuple[Nursery, Nursery]) -> None:
    first, second = machines
    owner = first.start(mode="incremental")
    follower = second.start(uid="other", followed={0: [FOLLOWED]})
    follower.poll()
    owner.counts(*KEYS)
    published(owner, owner.checkpoint(1))
    follow(follower, 1)
    directory = follower.places.state("op", Partition(0))
    assert directory.exists()
    follower.stop(forget=True)
    assert not directory.exists()
