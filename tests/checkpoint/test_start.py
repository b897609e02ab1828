from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from strandline.checkpoint.chain import Restored
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import capture_start, read_source, upload_source
from strandline.checkpoint.start import load_start, save_start, start_files
from strandline.core.errors import ConflictError, CorruptionError, FencedError, UnavailableError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.frame import frame
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, FaultyStore

FILES = {"metadata": b'{"id":"1"}', "sources/0/0": b'v1\n{"t":{"0":42}}', "offsets/0": b"v1\n{}"}


def spark_directory(directory: Path, names: list[str]) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(name.encode())
    return directory


def test_capture_of_the_start(tmp_path: Path) -> None:
    assert capture_start(tmp_path) is None
    spark_directory(tmp_path, ["sources/0/0"])
    assert capture_start(tmp_path) is None, "Spark writes the metadata first"
    spark_directory(tmp_path, ["metadata", "commits/0", "sources/0/.1.tmp", "offsets/1", "state/0/x"])
    assert capture_start(tmp_path) == {"metadata": b"metadata", "sources/0/0": b"sources/0/0"}
    spark_directory(tmp_path, ["offsets/0"])
    found = capture_start(tmp_path)
    assert found is not None
    assert set(found) == {"metadata", "sources/0/0", "offsets/0"}


def test_capture_of_the_start_gives_up_when_files_go_on_vanishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: Path) -> bytes:
        raise FileNotFoundError(path)

    spark_directory(tmp_path, ["metadata"])
    monkeypatch.setattr(Path, "read_bytes", vanish)
    with pytest.raises(UnavailableError, match="disappeared"):
        capture_start(tmp_path)


def test_a_checkpoint_before_the_first_batch(jobdir: JobDirectory) -> None:
    info = upload_source(jobdir, FILES, CheckpointId(1), -1, None, ["clicks"])
    assert (info.batch, info.names) == (-1, ["clicks"])
    assert read_source(jobdir, info) == FILES


def test_the_start_is_saved_once(jobdir: JobDirectory, clock: ManualClock) -> None:
    assert load_start(jobdir) is None
    first = claim(jobdir, clock)
    save_start(jobdir, first, FILES, ["clicks", "orders"], clock)
    start = load_start(jobdir)
    assert (start.generation, start.created_ms, start.names) == (1, clock.now_ms(), ["clicks", "orders"])
    assert start_files(start) == FILES
    # Again, as after an answer that was lost: it is ours, whatever the time.
    clock.advance(1000)
    save_start(jobdir, first, FILES, ["clicks", "orders"], clock)
    assert load_start(jobdir) == start


def test_a_lost_answer_is_no_conflict(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    mine = claim(jobdir, clock)
    store.script = [("create", "generations/start", AFTER)]
    with pytest.raises(UnavailableError):
        save_start(jobdir, mine, FILES, [], clock)
    clock.advance(1000)
    save_start(jobdir, mine, FILES, [], clock)


def test_another_drivers_start_is_not_replaced(jobdir: JobDirectory, store: FaultyStore, clock: ManualClock) -> None:
    older = claim(jobdir, clock)
    newer = []

    def late(operation: str, path: str) -> None:
        if operation == "create" and path.endswith("/start"):
            store.before = lambda operation, path: None
            newer.append(claim(jobdir, clock))

    store.before = late  # the older driver has passed its check
    save_start(jobdir, older, FILES, [], clock)
    with pytest.raises(FencedError):
        save_start(jobdir, older, FILES, [], clock)
    for files, names in (({**FILES, "sources/0/0": b"later"}, []), (FILES, ["x"]), (FILES, [])):
        with pytest.raises(ConflictError, match="another driver has recorded the start"):
            save_start(jobdir, newer[0], files, names, clock)
    start = load_start(jobdir)
    assert start.generation == 1


@pytest.mark.parametrize("damaged", [b"", b"SLSTART1 and no more", frame(b"SLSTART1", 1, b"{}")])
def test_a_damaged_start_stops_the_job(jobdir: JobDirectory, clock: ManualClock, damaged: bytes) -> None:
    mine = claim(jobdir, clock)
    jobdir.put("generations/start", damaged)
    with pytest.raises(CorruptionError, match="generations/start: the start of the job's sources") as caught:
        load_start(jobdir)
    assert "restore it from a backup" in caught.value.hint
    with pytest.raises(CorruptionError, match="generations/start"):
        save_start(jobdir, mine, FILES, [], clock)


def test_each_restore_of_a_snapshot_has_a_start_of_its_own(jobdir: JobDirectory, clock: ManualClock) -> None:
    """The start of the job's former life says nothing about where the sources begin for a snapshot without a place."""
    mine = claim(jobdir, clock)
    save_start(jobdir, mine, FILES, [], clock)
    snapshot = Restored(
        requested="file:///sp", url="file:///sp", kind="savepoint", job="other", checkpoint=CheckpointId(1),
        generation=Generation(1), life="ab" * 16, sha256="c" * 64,
    )  # fmt: skip
    restores = [snapshot, replace(snapshot, again="monday"), replace(snapshot, sha256="d" * 64)]
    for at, restored in enumerate(restores):
        assert load_start(jobdir, restored) is None
        mine.restored = restored
        save_start(jobdir, mine, {**FILES, "offsets/0": b"%d" % at}, [], clock)
    for at, restored in enumerate(restores):
        start = load_start(jobdir, replace(restored, earlier=[("file:///x", "")]))
        assert start is not None
        assert start_files(start)["offsets/0"] == b"%d" % at
    start = load_start(jobdir)
    assert start is not None
    assert start_files(start) == FILES


def test_a_start_that_leaves_its_directory_is_refused(jobdir: JobDirectory, clock: ManualClock) -> None:
    save_start(jobdir, claim(jobdir, clock), {"../x": b""}, [], clock)
    with pytest.raises(CorruptionError, match=r"'\.\./x', outside"):
        load_start(jobdir)
