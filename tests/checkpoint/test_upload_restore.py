from __future__ import annotations

import hashlib
import random
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.backends.base import LocalFile
from strandline.checkpoint import restore
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import Unverified, choose, fetch
from strandline.checkpoint.upload import upload
from strandline.core.errors import CheckpointError, CorruptionError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.settings import Mode
from strandline.format.manifest import FileRef
from strandline.storage.base import ObjectInfo
from tests.checkpoint.helpers import Run, damage_uploads, every_epoch, stored
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

C1 = CheckpointId(1)


def local(directory: Path, files: dict[str, bytes]) -> list[LocalFile]:
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return [LocalFile(n, directory / n, len(d), n.endswith(".sst")) for n, d in files.items()]


FILES = {
    "1.sst": random.Random(1).randbytes(300_000),
    "2.sst": random.Random(2).randbytes(2 << 20),
    "3.sst": b"",
    "MANIFEST": random.Random(3).randbytes(5000),
    "CURRENT": b"MANIFEST",
}


def by_name(refs: list[FileRef]) -> dict[str, FileRef]:
    return {ref.name: ref for ref in refs}


def test_upload_places_each_kind_of_file(jobdir: JobDirectory, tmp_path: Path) -> None:
    found, uploaded_bytes = upload(jobdir, local(tmp_path / "s", FILES), C1, {}, kind_of("incremental"))
    assert [r.name for r in found] == list(FILES)
    refs = by_name(found)
    assert refs["1.sst"].shared
    assert refs["1.sst"].path.startswith(f"shared/{refs['1.sst'].path.split('/')[2][:2]}/")
    assert refs["MANIFEST"].path.startswith("chk-1/")
    assert not refs["MANIFEST"].shared
    assert refs["CURRENT"].inline == b"MANIFEST"
    for name, data in FILES.items():
        assert (refs[name].size, refs[name].sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert uploaded_bytes == sum(map(len, FILES.values()))
    again, again_bytes = upload(
        jobdir, local(tmp_path / "t", {**FILES, "4.sst": b"new"}), CheckpointId(2), refs, kind_of("incremental")
    )
    assert by_name(again)["2.sst"] == refs["2.sst"]
    assert by_name(again)["MANIFEST"].path != refs["MANIFEST"].path
    assert again_bytes == 3 + 5000 + 8


def test_exclusive_files_of_the_base_are_not_referenced(jobdir: JobDirectory, tmp_path: Path) -> None:
    files = local(tmp_path / "s", {"1.sst": b"abc", "CURRENT": b"MANIFEST-1"})
    base = by_name(upload(jobdir, files, C1, {}, kind_of("full"))[0])
    assert not base["1.sst"].shared
    files = local(tmp_path / "s", {"1.sst": b"abc", "CURRENT": b"MANIFEST-2"})
    refs, uploaded_bytes = upload(jobdir, files, CheckpointId(2), base, kind_of("incremental"))
    assert uploaded_bytes == 3 + 10
    assert by_name(refs)["1.sst"].shared
    assert jobdir.head(by_name(refs)["1.sst"].path)


@pytest.mark.parametrize(
    ("mode", "damage"), [("full", b"abX"), ("full", b"ab"), ("incremental", b"ab"), ("full", bytes(2 << 20))]
)
def test_a_file_that_was_damaged_here_does_not_replace_the_stored_one(
    jobdir: JobDirectory, tmp_path: Path, mode: Mode, damage: bytes
) -> None:
    """With a checksum of its own, it was intact for every later check, and the undamaged one was deleted."""
    first = b"abc" if len(damage) < 9 else b"x" + damage[1:]
    base = by_name(upload(jobdir, local(tmp_path / "s", {"1.sst": first}), C1, {}, kind_of(mode))[0])
    before = stored(jobdir)
    with pytest.raises(CorruptionError, match=r"1\.sst: the local file is damaged"):
        upload(jobdir, local(tmp_path / "s", {"1.sst": damage}), CheckpointId(2), base, kind_of(mode))
    assert stored(jobdir) == before


@pytest.mark.parametrize("known", [False, True])
def test_a_file_of_which_other_bytes_are_sent_is_in_no_checkpoint(
    jobdir: JobDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The manifest had the checksum of another read: only a restore found that the stored file does not fit."""
    files = local(tmp_path / "s", {"2.sst": FILES["2.sst"]})
    base = by_name(upload(jobdir, files, C1, {}, kind_of("full"))[0]) if known else {}
    before = stored(jobdir)
    damage_uploads(monkeypatch)
    error, reason = (CorruptionError, "local file is damaged") if known else (CheckpointError, "different bytes")
    with pytest.raises(error, match=rf"2\.sst.*{reason}"):
        upload(jobdir, files, CheckpointId(2), base, kind_of("full"))
    assert stored(jobdir) == before


def test_inline_puts_everything_into_the_manifest(jobdir: JobDirectory, tmp_path: Path) -> None:
    refs, _ = upload(jobdir, local(tmp_path / "s", FILES), C1, {}, kind_of("incremental", inline=True))
    assert all(r.inline == FILES[r.name] for r in refs)
    assert stored(jobdir) == set()


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_failed_upload_leaves_nothing(jobdir: JobDirectory, store: FaultyStore, tmp_path: Path, when: str) -> None:
    store.script = [("put_file", "shared", when)]
    with pytest.raises(UnavailableError):
        upload(jobdir, local(tmp_path / "s", FILES), C1, {}, kind_of("incremental"))
    assert stored(jobdir) == set()


def test_a_cancelled_upload_leaves_nothing(jobdir: JobDirectory, tmp_path: Path) -> None:
    asked = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(CheckpointError, match="cancelled"):
        upload(jobdir, local(tmp_path / "s", FILES), C1, {}, kind_of("incremental"), cancelled=cancelled)
    assert stored(jobdir) == set()


def test_a_file_that_changed_is_refused(jobdir: JobDirectory, tmp_path: Path) -> None:
    files = local(tmp_path / "s", FILES)
    for name in ("CURRENT", "1.sst", "2.sst"):
        with open(tmp_path / "s" / name, "ab") as file:
            file.write(b"more")
        with pytest.raises(CheckpointError, match="changed after the snapshot"):
            upload(jobdir, [f for f in files if f.name == name], C1, {}, kind_of("incremental"))


@pytest.fixture
def refs(jobdir: JobDirectory, tmp_path: Path) -> list[FileRef]:
    return upload(jobdir, local(tmp_path / "snapshot", FILES), C1, {}, kind_of("incremental"))[0]


def content(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def test_fetch_from_storage(jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path) -> None:
    from_copy, from_storage = fetch(jobdir, refs, tmp_path / "in")
    assert content(tmp_path / "in") == FILES
    assert (from_copy, from_storage) == (0, sum(len(d) for n, d in FILES.items() if n != "CURRENT"))


def test_fetch_links_what_the_local_copy_holds(
    jobdir: JobDirectory, store: FaultyStore, refs: list[FileRef], tmp_path: Path
) -> None:
    copy = tmp_path / "snapshot"
    damaged = bytearray(FILES["1.sst"])
    damaged[7] ^= 1
    (copy / "1.sst").write_bytes(damaged)
    (copy / "3.sst").unlink()
    store.calls.clear()
    from_copy, from_storage = fetch(jobdir, refs, tmp_path / "in", copy)
    assert content(tmp_path / "in") == FILES
    assert sorted(op for op, _ in store.calls) == ["get_file", "get_file"]
    assert (from_copy, from_storage) == (len(FILES["2.sst"]) + 5000, 300_000)
    assert (copy / "2.sst").samefile(tmp_path / "in" / "2.sst")
    assert not (copy / "MANIFEST").samefile(tmp_path / "in" / "MANIFEST"), "a backend may append to it"


def test_files_that_check_themselves_are_linked_first_and_verified_later(
    jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path
) -> None:
    copy, into = tmp_path / "snapshot", tmp_path / "in"
    unverified = Unverified((".sst",))
    fetch(jobdir, refs, into, copy, unverified=unverified)
    # A backend may have deleted them meanwhile.
    (into / "2.sst").unlink()
    unverified.verify()
    damaged = bytearray(FILES["1.sst"])
    damaged[7] ^= 1
    (copy / "1.sst").write_bytes(damaged)
    (copy / "2.sst").write_bytes(FILES["2.sst"][:-1])
    fetch(jobdir, refs, tmp_path / "again", copy, unverified=unverified)
    assert (tmp_path / "again" / "1.sst").read_bytes() == damaged
    assert (tmp_path / "again" / "2.sst").read_bytes() == FILES["2.sst"]
    with pytest.raises(CorruptionError, match=r"1\.sst.*the local copy is damaged"):
        unverified.verify()
    unverified.clear()
    unverified.verify()


def test_of_many_files_most_are_verified_at_once(
    jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are verified later are open until then."""
    monkeypatch.setattr(restore, "_MOST_UNVERIFIED", 0)
    copy = tmp_path / "snapshot"
    damaged = bytearray(FILES["1.sst"])
    damaged[7] ^= 1
    (copy / "1.sst").write_bytes(damaged)
    fetch(jobdir, refs, tmp_path / "in", copy, unverified=Unverified((".sst",)))
    assert content(tmp_path / "in") == FILES


def test_files_that_wait_for_verification_leave_descriptors_to_others(jobdir: JobDirectory, tmp_path: Path) -> None:
    """With a low limit of open files, each restore from the local copy ended in "too many open files"."""
    many = {f"{number}.sst": b"%d" % number for number in range(200)}
    refs = upload(jobdir, local(tmp_path / "snapshot", many), C1, {}, kind_of("incremental"))[0]
    unverified, limits = Unverified((".sst",)), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, limits[1]))
    try:
        fetch(jobdir, refs, tmp_path / "in", tmp_path / "snapshot", unverified=unverified)
        unverified.verify()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        unverified.clear()
    assert content(tmp_path / "in") == many


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_fetch_names_the_damaged_file(jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path, damage: str) -> None:
    ref = by_name(refs)["1.sst"]
    data = FILES["1.sst"]
    if damage == "missing":
        jobdir.delete([ref.path])
    else:
        jobdir.put(ref.path, data[:-1] if damage == "cut" else b"!" + data[1:])
    with pytest.raises(CorruptionError, match=ref.path) as caught:
        fetch(jobdir, refs, tmp_path / "in")
    assert caught.value.path == ref.path
    assert not (tmp_path / "in" / "1.sst").exists()


def damage_downloads(monkeypatch: pytest.MonkeyPatch, damaged: str, contents: list[bytes]) -> list[str]:
    """Let the first downloads of a file give these bytes; return the list to which all downloads add their path."""
    fetched: list[str] = []
    real = JobDirectory.get_file

    def get_file(self: JobDirectory, path: str, target: Path) -> None:
        real(self, path, target)
        fetched.append(path)
        if path == damaged and (count := fetched.count(path)) <= len(contents):
            target.write_bytes(contents[count - 1])

    monkeypatch.setattr(JobDirectory, "get_file", get_file)
    return fetched


def test_bytes_that_were_damaged_on_the_way_are_fetched_again(
    jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a checkpoint that is whole would be passed over, and what came after the one before it done again."""
    ref = by_name(refs)["1.sst"]
    fetched = damage_downloads(monkeypatch, ref.path, [b"!" + FILES["1.sst"][1:]])
    fetch(jobdir, refs, tmp_path / "in")
    assert content(tmp_path / "in") == FILES
    assert fetched.count(ref.path) == 2


def test_downloads_that_are_damaged_each_time_otherwise_blame_no_checkpoint(
    jobdir: JobDirectory, refs: list[FileRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in storage does not change: the transfer, the memory or the disk of this machine fails."""
    ref = by_name(refs)["1.sst"]
    damage_downloads(monkeypatch, ref.path, [b"1" + FILES["1.sst"][1:], b"2" + FILES["1.sst"][1:]])
    with pytest.raises(UnavailableError, match=f"{ref.path}.*2 downloads .* differ"):
        fetch(jobdir, refs, tmp_path / "in")


def test_fetch_checks_inline_bytes_and_names(jobdir: JobDirectory, tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="'x'"):
        fetch(jobdir, [FileRef(name="x", size=1, sha256="0" * 64, inline=b"y")], tmp_path / "in")
    for name in ("../out", "/etc/out", ""):
        with pytest.raises(CorruptionError, match="leaves the restore directory"):
            fetch(
                jobdir,
                [FileRef(name=name, size=0, sha256=hashlib.sha256(b"").hexdigest(), inline=b"")],
                tmp_path / "in",
            )


def test_choose_in_an_empty_directory(jobdir: JobDirectory) -> None:
    choice = choose(jobdir)
    assert (choice.manifest, choice.skipped, choice.next_id) == (None, [], 1)


@pytest.mark.parametrize(
    "damage", ["missing file", "short file", "cut manifest", "flipped manifest", "no manifest", "excluded", "moved"]
)
def test_choose_skips_what_cannot_be_restored_and_says_why(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, jobdir: JobDirectory, damage: str
) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch(retain=2))
    run.checkpoint()
    first = {f.path for f in run.confirmed.files()}
    run.checkpoint()
    path = manifest_path(CheckpointId(2))
    own = next(f for f in run.confirmed.files() if f.path and f.size and f.path not in first)
    exclude: frozenset[CheckpointId] = frozenset()
    expected = "manifest"
    if damage == "missing file":
        jobdir.delete([own.path])
        expected = f"{own.path} .*missing"
    elif damage == "short file":
        jobdir.put(own.path, b"")
        expected = f"{own.path} .*0 bytes, expected {own.size}"
    elif damage == "cut manifest":
        jobdir.put(path, jobdir.get(path)[:100])
        expected = "cut off"
    elif damage == "flipped manifest":
        jobdir.put(path, jobdir.get(path).replace(b"detect", b"detekt"))
        expected = "checksum"
    elif damage == "moved":
        jobdir.put(path, jobdir.get(manifest_path(C1)))
        expected = "moved"
    elif damage == "no manifest":
        jobdir.delete([path])
        jobdir.put("chk-2/half", b"")
        expected = "never completed"
    else:
        exclude, expected = frozenset([CheckpointId(2)]), "excluded"
    choice = choose(jobdir, exclude=exclude)
    assert choice.manifest.checkpoint == 1
    (skipped,) = choice.skipped
    assert skipped.checkpoint == 2
    assert re.search(expected, skipped.reason), skipped
    assert choice.next_id == 3
    # The job goes on from checkpoint 1, and the damaged one is out of the way for good.
    after = Run(store, tmp_path, clock, seed=1) if not exclude else None
    if after is not None:
        assert after.checkpoint() == 3


def test_choose_looks_at_the_directory_once(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    Run(store, tmp_path, clock).checkpoint()
    store.calls.clear()
    choose(JobDirectory(store, "job"))
    assert [op for op, _ in store.calls] == ["list", "get", "get"], "the listing, one manifest, one base record"


def test_a_listing_that_is_older_than_a_file_makes_no_checkpoint_incomplete(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, jobdir: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keepers of other machines have just written it."""
    Run(store, tmp_path, clock, config=every_epoch(retain=2)).checkpoint()
    before = {info.path for info in store.list("")}
    run = Run(store, tmp_path, clock, config=every_epoch(retain=2), seed=1)
    fresh = store.list

    def stale(prefix: str) -> Iterator[ObjectInfo]:
        return (info for info in fresh(prefix) if "shared/" not in info.path or info.path in before)

    monkeypatch.setattr(store, "list", stale)
    assert run.checkpoint() == 2
    assert run.checkpoint() == 3
    choice = choose(jobdir)
    assert (choice.manifest.checkpoint, choice.skipped) == (3, [])
