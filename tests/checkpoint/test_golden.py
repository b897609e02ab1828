"""Files of format version 1, byte for byte as first released: every later release must read them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from strandline.checkpoint.chain import BASE, BaseRecord, Restored
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import unpack
from strandline.checkpoint.start import load_start
from strandline.format.epochs import FAILED_RUN, EpochRecord, EpochRecords, FailedRun, unpack_epochs
from strandline.format.manifest import (
    MANIFEST,
    FileRef,
    Manifest,
    OperatorInfo,
    PartitionInfo,
    Segment,
    SinkInfo,
    SourceFile,
    SourceInfo,
    StateInfo,
)
from strandline.storage.remote import open_store

GOLDEN = Path(__file__).parent / "golden"

WHOLE = Manifest(
    job="alerts", generation=3, checkpoint=7, epoch=42, mode="incremental", created_ms=1_700_000_000_000,
    engine_version="0.1.0", life="0123456789abcdef" * 2,
    operators=[
        OperatorInfo(
            uid="detect", backend="rocksdb", parallelism=1, max_parallelism=128, key_schema="producer string",
            states=[
                StateInfo(name="seen", kind="value", value_type="bigint"),
                StateInfo(name="by_type", kind="map", key_type="string", value_type="bigint", schema_id=2),
            ],
            partitions=[
                PartitionInfo(
                    index=0, first_key_group=0, last_key_group=127, sync_ms=1.5, async_ms=20.25, uploaded_bytes=5,
                    files=[
                        FileRef(name="000007.sst", size=4, sha256="a" * 64, path="shared/ab/abcd", shared=True),
                        FileRef(name="CURRENT", size=1, sha256="b" * 64, inline=b"\xff"),
                    ],
                )
            ],
        )
    ],
    source=SourceInfo(
        batch=41, blob=FileRef(name="source", size=9, sha256="c" * 64, path="chk-7/ef01"),
        large=[SourceFile(name="sources/0/9.compact", segments=[Segment(size=65536, sha256="d" * 64, path="shared/cd/23")])],
    ),
    sinks=[SinkInfo(name="out", pending=["epoch-41", "epoch-42"])],
    watermarks={"events": 1_699_999_990_000}, triggered_ms=1_699_999_999_000, duration_ms=1000, uploaded_bytes=14,
    total_bytes=65550,
)  # fmt: skip
NAMED = msgspec.structs.replace(
    WHOLE,
    source=SourceInfo(
        batch=41, blob=FileRef(name="source", size=9, sha256="c" * 64, path="chk-7/ef01"), names=["a", "b"]
    ),
    watermarks={"watermark": 1_699_999_990_000, "a/eu": 1_699_999_990_000, "b/": 1_699_999_991_000},
)
COUNTED = msgspec.structs.replace(WHOLE, totals={"rows_in": 1234, "late_rows": 5})
LOGGED = msgspec.structs.replace(
    WHOLE,
    mode="changelog",
    operators=[
        msgspec.structs.replace(
            WHOLE.operators[0],
            partitions=[
                msgspec.structs.replace(WHOLE.operators[0].partitions[0], planned=["shared/01/0123", "shared/45/4567"])
            ],
        )
    ],
)
SOURCE = {"metadata": b'{"id":"1"}', "offsets/41": b"v1\n{}\n\xc3\xa9", "sources/0/0": b""}


def test_manifest() -> None:
    data = (GOLDEN / "manifest-v1").read_bytes()
    assert MANIFEST.decode(data, "golden") == WHOLE
    assert MANIFEST.encode(WHOLE) == data, "what is written has changed: that needs a new format version"


def test_manifest_of_several_sources() -> None:
    data = (GOLDEN / "manifest-v1-sources").read_bytes()
    assert MANIFEST.decode(data, "golden") == NAMED
    assert MANIFEST.encode(NAMED) == data, "what is written has changed: that needs a new format version"


def test_manifest_with_totals() -> None:
    data = (GOLDEN / "manifest-v1-totals").read_bytes()
    assert MANIFEST.decode(data, "golden") == COUNTED
    assert MANIFEST.encode(COUNTED) == data, "what is written has changed: that needs a new format version"


def test_manifest_with_planned_files() -> None:
    data = (GOLDEN / "manifest-v1-changelog").read_bytes()
    assert MANIFEST.decode(data, "golden") == LOGGED
    assert MANIFEST.encode(LOGGED) == data, "what is written has changed: that needs a new format version"


def test_source_progress() -> None:
    # Read only: the compressor's output may differ between versions of zlib.
    assert unpack((GOLDEN / "source-v1").read_bytes(), "golden") == SOURCE


def test_base_record() -> None:
    record = BASE.decode((GOLDEN / "base-v1").read_bytes(), "golden")
    assert record == BaseRecord(generation=3, checkpoint=6, checkpoint_generation=2, highest_seen=7, life="ab" * 16)
    assert BASE.encode(record) == (GOLDEN / "base-v1").read_bytes()


def test_base_record_of_a_restore() -> None:
    data = (GOLDEN / "base-v1-restored").read_bytes()
    restored = Restored(
        requested="file:///sp", url="file:///sp", kind="savepoint", job="other", checkpoint=3, generation=1, life="cd" * 16,
        sha256="e" * 64, claimed=True,
    )  # fmt: skip
    record = BaseRecord(
        generation=3, checkpoint=None, checkpoint_generation=None, highest_seen=7, life="ab" * 16, restored=restored
    )
    assert BASE.decode(data, "golden") == record
    assert BASE.encode(record) == data, "what is written has changed: that needs a new format version"


def test_base_record_of_another_restore() -> None:
    data = (GOLDEN / "base-v1-again").read_bytes()
    restored = Restored(
        requested="file:///sp", url="file:///sp", kind="savepoint", job="other", checkpoint=3, generation=1, life="cd" * 16,
        sha256="e" * 64, again="monday", earlier=[("file:///sp", ""), ("s3://b/other", "tuesday")],
    )  # fmt: skip
    record = BaseRecord(
        generation=4, checkpoint=None, checkpoint_generation=None, highest_seen=7, life="ab" * 16, restored=restored
    )
    assert BASE.decode(data, "golden") == record
    assert BASE.encode(record) == data, "what is written has changed: that needs a new format version"


def test_start() -> None:
    start = load_start(jobdir_with({"generations/start": (GOLDEN / "start-v1").read_bytes()}))
    assert (start.generation, start.created_ms, start.names) == (1, 1_700_000_000_000, ["clicks"])
    # Read only, as above.
    assert unpack(start.archive, "golden") == SOURCE


def jobdir_with(objects: dict[str, bytes]) -> JobDirectory:
    jobdir = JobDirectory(open_store("memory://"), "alerts")
    for path, data in objects.items():
        jobdir.put(path, data)
    return jobdir


def test_a_field_of_a_later_release_is_ignored() -> None:
    later = msgspec.json.decode(msgspec.json.encode(WHOLE))
    later["invented"] = 1
    assert msgspec.json.decode(msgspec.json.encode(later), type=Manifest) == WHOLE


EPOCHS = EpochRecords(
    tasks=8,
    epochs=[
        EpochRecord(
            epoch=41, batch=40, now_us=1_700_000_000_000_000, watermark_us=1_699_999_990_000_000, offsets="v1\n{}\n{}",
            reduced={"sums": True}, parallelism={"sums": 2},
        ),
        EpochRecord(epoch=42, now_us=1_700_000_000_500_000, watermark_us=5, fired_us=4, parallelism={"sums": 2}),
    ],
)  # fmt: skip


def test_records_of_epochs() -> None:
    packed = (GOLDEN / "epochs-v1").read_bytes()
    assert unpack_epochs(packed, "golden") == EPOCHS
    expected = FailedRun(
        generation=3, checkpoint=7, created_ms=1_700_000_000_000, failure="operator 'sums' raised", failed=42,
        epochs=packed, files={"sources/0/12": b"v1\n{}"},
    )  # fmt: skip
    assert FAILED_RUN.decode((GOLDEN / "failed-v1").read_bytes(), "golden") == expected
