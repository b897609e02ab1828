from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from strandline.checkpoint import source_log
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import (
    BLOCK_BYTES,
    capture,
    pack,
    read_offsets,
    read_source,
    unpack,
    upload_source,
    write_files,
)
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import SourceInfo
from tests.checkpoint.helpers import stored
from tests.storage.faulty import BEFORE, FaultyStore


def spark_directory(directory: Path, batch: int) -> Path:
    """What Spark keeps: dot files, checksums, and files of batches long gone among what counts."""
    names = ["metadata", "sources/0/9.compact", "sources/0/10", "sources/1/0", "state/0/x"]
    names += [f"{kind}/{b}" for kind in ("offsets", "commits") for b in range(max(0, batch - 4), batch + 1)]
    names += [
        "offsets/.7.crc",
        "sources/0/.9.compact.crc",
        "sources/0/.11.uuid.tmp",
        f"offsets/{batch + 1}",
        "sources/0/x.tmp",
    ]
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(name.encode())
    return directory


def test_capture_takes_what_a_query_needs(tmp_path: Path) -> None:
    files = capture(spark_directory(tmp_path, 12), 12)
    assert set(files) == {
        "metadata", "offsets/11", "offsets/12", "commits/11", "commits/12",
        "sources/0/9.compact", "sources/0/10", "sources/1/0",
    }  # fmt: skip
    assert all(data == name.encode() for name, data in files.items())


def test_capture_of_the_first_batch(tmp_path: Path) -> None:
    assert {"offsets/0", "commits/0"} < set(capture(spark_directory(tmp_path, 0), 0))


@pytest.mark.parametrize("missing", ["metadata", "commits/12", "offsets/11"])
def test_capture_waits_for_the_commit(tmp_path: Path, missing: str) -> None:
    (spark_directory(tmp_path, 12) / missing).unlink()
    with pytest.raises(UnavailableError, match=missing):
        capture(tmp_path, 12)


def test_capture_reads_again_when_spark_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_directory(tmp_path, 12)
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "metadata":
            (tmp_path / "sources/0/10").unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert "sources/0/10" not in capture(tmp_path, 12)


def test_capture_gives_up_when_files_go_on_vanishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(path: Path) -> bytes:
        raise FileNotFoundError(path)

    spark_directory(tmp_path, 12)
    monkeypatch.setattr(Path, "read_bytes", vanish)
    with pytest.raises(UnavailableError, match="disappeared"):
        capture(tmp_path, 12)


def test_offsets_that_spark_does_not_write_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_directory(tmp_path, 12)
    assert read_offsets(tmp_path, 12, lambda: True) == {"offsets/12": b"offsets/12"}
    with pytest.raises(UnavailableError, match="offsets/14: the run ended before"):
        read_offsets(tmp_path, 14, lambda: True)
    monkeypatch.setattr(source_log, "_WRITE_TIMEOUT_S", 0.05)
    with pytest.raises(UnavailableError, match="offsets/14: Spark has not written it"):
        read_offsets(tmp_path, 14, lambda: False)


SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 7 * BLOCK_BYTES, 13 * BLOCK_BYTES + 17]


def test_round_trip(jobdir: JobDirectory, tmp_path: Path) -> None:
    files = {f"sources/{i}/log": random.Random(i).randbytes(size) for i, size in enumerate(SIZES)}
    info = upload_source(jobdir, files, CheckpointId(4), 12, None)
    assert info.batch == 12
    assert {s.name: [x.size // BLOCK_BYTES for x in s.segments] for s in info.large} == {
        "sources/3/log": [1], "sources/4/log": [1], "sources/5/log": [4, 2, 1], "sources/6/log": [8, 4, 1],
    }  # fmt: skip
    assert read_source(jobdir, info) == files
    write_files(files, tmp_path / "new")
    assert capture_all(tmp_path / "new") == files
    assert {f.path for f in info.files() if f.path} == stored(jobdir)


def capture_all(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_small_progress_travels_inside_the_manifest(jobdir: JobDirectory) -> None:
    assert upload_source(jobdir, {"metadata": b"{}" * 1000}, CheckpointId(1), 0, None).blob.inline is not None
    assert stored(jobdir) == set()
    large = upload_source(jobdir, {"metadata": random.Random(0).randbytes(20_000)}, CheckpointId(1), 0, None)
    assert large.blob.inline is None
    assert large.blob.path.startswith("chk-1/")


def test_what_a_checkpoint_stores_does_not_grow_with_the_age_of_the_job(
    jobdir: JobDirectory, store: FaultyStore
) -> None:
    """A file source's log: a line for each input file, the whole history again in every tenth file."""
    lines: list[bytes] = [b"v1"]
    compacts: dict[str, bytes] = {}
    written: list[int] = []
    base: SourceInfo | None = None
    known: set[str] = set()
    batches = 3000
    for batch in range(1, batches + 1):
        lines.append(
            json.dumps({"path": f"file:///data/in/part-{batch:08d}.json", "ts": batch, "batchId": batch}).encode() * 4
        )
        if batch % 10 == 9:
            compacts[f"sources/0/{batch}.compact"] = b"\n".join(lines)
            for old in list(compacts)[:-2]:
                del compacts[old]
        if batch % 5:
            continue
        recent = {f"sources/0/{b}": lines[b] for b in range(batch - batch % 10, batch + 1)}
        info = upload_source(jobdir, {"metadata": b"{}", **compacts, **recent}, CheckpointId(batch), batch, base)
        fresh = {f.path: f.size for f in info.files() if f.path and f.path not in known}
        written.append(sum(fresh.values()) + (info.blob.size if info.blob.inline is not None else 0))
        known |= fresh.keys()
        base = info
        history_blocks = len(b"\n".join(lines)) // BLOCK_BYTES
        per_file = math.floor(math.log2(history_blocks + 1)) + 1
        assert all(len(large.segments) <= per_file for large in info.large)
    history = sum(map(len, lines))
    early, late = written[50:150], written[-100:]
    assert sum(late) / len(late) < 3 * sum(early) / len(early), "the mean does not follow the age"
    assert sum(late) / len(late) < history / 20
    assert sum(written) < history * (math.log2(history / BLOCK_BYTES) + 2) + len(written) * 16_000


def test_equal_segments_of_two_files_are_stored_once(jobdir: JobDirectory) -> None:
    data = random.Random(1).randbytes(4 * BLOCK_BYTES)
    info = upload_source(jobdir, {"a": data, "b": data + b"more"}, CheckpointId(1), 0, None)
    assert info.large[0].segments == info.large[1].segments
    assert len(stored(jobdir)) == 1


def test_a_failed_upload_leaves_nothing(jobdir: JobDirectory, store: FaultyStore) -> None:
    store.script = [("put", "chk-1", BEFORE)]
    with pytest.raises(UnavailableError):
        upload_source(jobdir, {"a": random.Random(1).randbytes(3 * BLOCK_BYTES + 30_000)}, CheckpointId(1), 0, None)
    assert stored(jobdir) == set()


@pytest.mark.parametrize("damage", ["delete", "flip"])
@pytest.mark.parametrize("which", [0, 1])
def test_damage_is_named(jobdir: JobDirectory, damage: str, which: int) -> None:
    info = upload_source(jobdir, {"a": random.Random(1).randbytes(BLOCK_BYTES + 40_000)}, CheckpointId(1), 0, None)
    path = info.files()[which].path
    if damage == "delete":
        jobdir.delete([path])
    else:
        jobdir.put(path, b"?" + jobdir.get(path)[1:])
    with pytest.raises(CorruptionError, match=path):
        read_source(jobdir, info)


def test_archives_that_are_not_ours_are_refused() -> None:
    good = pack({"a": b"1", "b/c": b""})
    assert unpack(good, "here") == {"a": b"1", "b/c": b""}
    for bad in (b"", good[:-1], b"X" + good[1:], good[:30] + bytes([good[30] ^ 1]) + good[31:]):
        with pytest.raises(CorruptionError, match="here"):
            unpack(bad, "here")


def test_names_that_leave_the_directory_are_refused(jobdir: JobDirectory) -> None:
    info = upload_source(jobdir, {"../x": b"1"}, CheckpointId(1), 0, None)
    with pytest.raises(CorruptionError, match="outside"):
        read_source(jobdir, info)
