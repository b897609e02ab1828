"""Copies of snapshots: whole or none, sent once, and read as the original is."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError
from strandline.core.failpoints import arm, disarm_all
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.opening.snapshot import find_snapshot, open_snapshot
from strandline.snapshot.savepoints.savepoint import begin
from strandline.snapshot.tools.copy import copy_snapshot
from strandline.storage.local import LocalStore
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.checkpoint.helpers import Run, damage_uploads, late_clock
from tests.snapshot.test_savepoint import ROWS, Killed, folder_at, kill, paths, rows_of, take
from tests.storage.faulty import FaultyStore


def tree(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_copy_is_a_savepoint_where_it_is(tmp_path: Path) -> None:
    made = take(folder_at(tmp_path / "one"))
    told: list[int] = []
    copied = copy_snapshot(open_snapshot(str(tmp_path / "one")), folder_at(tmp_path / "two"), told.append)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert (copied.files, copied.bytes) == (copied.sent_files, copied.sent_bytes) == (len(told), sum(told))
    # Nothing points back.
    (tmp_path / "one").rename(tmp_path / "gone")
    snapshot = open_snapshot(str(tmp_path / "two"))
    assert snapshot.manifest == made
    assert rows_of(snapshot.folder, made) == ROWS
    # To another store, and into a folder of it.
    other = Folder(open_store("memory://"), "archive/2026")
    copy_snapshot(snapshot, other)
    assert rows_of(other, made) == ROWS


@pytest.mark.parametrize("at", ["file@1", "file@3", "publish"])
def test_one_that_broke_off_goes_on(tmp_path: Path, at: str) -> None:
    made = take(folder_at(tmp_path / "one"))
    snapshot = open_snapshot(str(tmp_path / "one"))
    store = FaultyStore(LocalStore(tmp_path / "two", fsync=False))
    name, _, hits = at.partition("@")
    arm(f"copy.{name}", kill, at=int(hits or 1))
    with pytest.raises(Killed):
        copy_snapshot(snapshot, Folder(store))
    disarm_all()
    with pytest.raises(NotFoundError):
        find_snapshot(str(tmp_path / "two"))
    there = paths(Folder(store))
    # What somebody else's copy has left in part is sent again.
    if at == "publish":
        torn = sorted(there)[0]
        store.put(torn, store.get(torn)[:-1])
        there.remove(torn)
    store.calls.clear()
    copied = copy_snapshot(snapshot, Folder(store))
    sent = {path for operation, path in store.calls if operation == "put_file"}
    assert sent == {file.path for file in made.files()} - there
    assert len(sent) == copied.sent_files
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    # And once more there is nothing to do.
    store.calls.clear()
    assert copy_snapshot(snapshot, Folder(store)).sent_files == 0
    assert not [path for operation, path in store.calls if operation == "put_file"]


def test_a_copy_of_another_state_sends_only_what_differs(tmp_path: Path) -> None:
    # An archive that is brought up to date by hand: the older manifest is taken away first.
    take(folder_at(tmp_path / "one"))
    changed = [{**ROWS[0], "flag": True}, *ROWS[1:]]
    made = take(folder_at(tmp_path / "two"), rows=changed)
    copy_snapshot(open_snapshot(str(tmp_path / "one")), folder_at(tmp_path / "archive"))
    with pytest.raises(ConflictError, match="another snapshot"):
        copy_snapshot(open_snapshot(str(tmp_path / "two")), folder_at(tmp_path / "archive"))
    (tmp_path / "archive" / "_metadata").unlink()
    (tmp_path / "archive" / "data" / "notes.csv").write_text("the user's")
    copied = copy_snapshot(open_snapshot(str(tmp_path / "two")), folder_at(tmp_path / "archive"))
    assert (copied.sent_files, copied.files) == (1, len(made.files()))
    assert rows_of(folder_at(tmp_path / "archive"), made) == changed
    # A copy deletes nothing: its folder need not have been empty.
    older = tree(tmp_path / "one").keys() - {"_metadata"}
    assert tree(tmp_path / "archive").keys() == older | tree(tmp_path / "two").keys() | {"data/notes.csv"}


def test_what_is_damaged_is_not_copied(tmp_path: Path) -> None:
    made = take(folder_at(tmp_path / "one"))
    snapshot = open_snapshot(str(tmp_path / "one"))
    file = made.files()[1].path
    data = (tmp_path / "one" / file).read_bytes()
    (tmp_path / "one" / file).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptionError, match=file):
        copy_snapshot(snapshot, folder_at(tmp_path / "two"))
    assert not {"_metadata", file} & paths(folder_at(tmp_path / "two"))
    # What was damaged in the copy, with its size, is seen in tests, which read everything again.
    (tmp_path / "one" / file).write_bytes(data)
    (tmp_path / "two" / file).write_bytes(data[:-1] + b"?")
    with pytest.raises(CorruptionError, match="copied"):
        copy_snapshot(snapshot, folder_at(tmp_path / "two"))
    # Another savepoint in its place is not what was opened.
    (tmp_path / "one" / "_metadata").unlink()
    take(folder_at(tmp_path / "other"), rows=ROWS[1:])
    (tmp_path / "other" / "_metadata").rename(tmp_path / "one" / "_metadata")
    with pytest.raises(CorruptionError, match="not the manifest"):
        copy_snapshot(snapshot, folder_at(tmp_path / "three"))


def test_a_file_of_which_other_bytes_are_sent_is_in_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is begun again leaves a file whose path has its checksum as it is."""
    take(folder_at(tmp_path / "one"))
    damage_uploads(monkeypatch)
    # As commands open it: the deletion of one file may remove the directory before another is written there.
    target = Folder(RetryingStore(LocalStore(tmp_path / "two", fsync=False)))
    with pytest.raises(CorruptionError, match="other bytes"):
        copy_snapshot(open_snapshot(str(tmp_path / "one")), target)
    assert not paths(folder_at(tmp_path / "two"))


def test_folders_that_are_others_are_left_alone(tmp_path: Path) -> None:
    take(folder_at(tmp_path / "one"))
    snapshot = open_snapshot(str(tmp_path / "one"))
    begin(folder_at(tmp_path / "writing"))
    folder_at(tmp_path / "job").put("generations/1", b"a claim")
    for name, reason in (("writing", "being written"), ("job", "a job's own")):
        before = tree(tmp_path / name)
        with pytest.raises(ConflictError, match=reason):
            copy_snapshot(snapshot, folder_at(tmp_path / name))
        assert tree(tmp_path / name) == before


def test_checkpoints_share_their_files_in_a_copy_too(tmp_path: Path) -> None:
    run = Run(LocalStore(tmp_path / "ck", fsync=False), tmp_path / "tmp", late_clock())
    target = JobDirectory(LocalStore(tmp_path / "copy", fsync=False), "job")
    sent = []
    for _ in range(2):
        checkpoint = run.checkpoint()
        sent.append(copy_snapshot(open_snapshot(str(tmp_path / f"ck/job/chk-{checkpoint}")), target))
        # Moved away from its job, each is one that may be restored.
        copy = open_snapshot(str(tmp_path / f"copy/job/chk-{checkpoint}"))
        assert copy.kind == "checkpoint"
        assert copy.manifest.checkpoint == checkpoint
    assert sent[0].sent_files == sent[0].files
    assert 0 < sent[1].sent_files < sent[1].files
    # A name that is not of its bytes may be of others, of the same size: it is read, and sent again.
    (file,) = [f for f in copy.manifest.files() if f.path and f.size == max(f.size for f in copy.manifest.files())][:1]
    (tmp_path / "copy/job" / file.path).write_bytes(bytes(file.size))
    mended = copy_snapshot(open_snapshot(str(tmp_path / f"ck/job/chk-{checkpoint}")), target)
    assert mended.sent_files == 1
    assert verify_snapshot(copy.url).ok
    take(folder_at(tmp_path / "savepoint"))
    with pytest.raises(ConflictError, match="a savepoint is there"):
        copy_snapshot(copy, folder_at(tmp_path / "savepoint"))
