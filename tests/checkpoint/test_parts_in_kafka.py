"""Parts of logs in a topic, as upload, retention, restore and gc see them. The topic is a dict."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from strandline.backends.base import LocalFile
from strandline.checkpoint import gc
from strandline.checkpoint.check import verify_manifest
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import choose, fetch
from strandline.checkpoint.upload import Append, upload
from strandline.core.errors import CheckpointError, CorruptionError, NotFoundError, UnavailableError
from strandline.core.ids import CheckpointId, unique_name
from strandline.format.manifest import MANIFEST, FileRef
from strandline.storage import logged
from strandline.storage.kafkaparts import LogFolder, LogPart, part_at
from tests.checkpoint.helpers import LIFE, manifest
from tests.clock import ManualClock
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

C1, C2 = CheckpointId(1), CheckpointId(2)
FOLDER = LogFolder("one:9092", "log", LIFE)
PART = "000012-0123456789abcdef-000000000000-000000000005.log"


class Topics:
    """What LogTopics does, without Kafka."""

    def __init__(self) -> None:
        self.parts: dict[LogPart, bytes] = {}
        self.written_ms = 0

    def append(self, source: Path) -> tuple[str, str]:
        data = source.read_bytes()
        part = LogPart(FOLDER, 0, len(self.parts), len(self.parts), unique_name(), len(data), 1)
        self.parts[part] = data
        return part.path, hashlib.sha256(data).hexdigest()

    def read(self, part: LogPart) -> Iterator[bytes]:
        self.look(part)
        yield self.parts[part]

    def look(self, part: LogPart) -> int:
        if part not in self.parts:
            raise NotFoundError(f"{part}: the topic was truncated")
        return self.written_ms

    def find(self, folder: LogFolder) -> Iterator[tuple[LogPart, int]]:
        return ((replace(part, folder=folder), self.written_ms) for part in self.parts)

    def delete(self, parts: list[LogPart]) -> None:
        for part in parts:
            self.parts.pop(part, None)


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    monkeypatch.setattr(logged, "topics_at", lambda servers, options: found)
    return found


def files_in(directory: Path, **files: bytes) -> list[LocalFile]:
    directory.mkdir(exist_ok=True)
    names = {"part": PART, "table": "000011-0123456789abcdef.sst", "current": "CURRENT"}
    for name, data in files.items():
        (directory / names[name]).write_bytes(data)
    return [
        LocalFile(names[name], directory / names[name], len(data), shared=name != "current")
        for name, data in files.items()
    ]


def uploaded(
    jobdir: JobDirectory, files: list[LocalFile], append: Append, base: dict[str, FileRef] = {}  # noqa: B006
) -> dict[str, FileRef]:  # fmt: skip
    refs, _ = upload(jobdir, files, C1 if not base else C2, base, kind_of("changelog"), append=append)
    return {ref.name: ref for ref in refs}


def publish(jobdir: JobDirectory, number: int, refs: dict[str, FileRef]) -> None:
    jobdir.create(manifest_path(CheckpointId(number)), MANIFEST.encode(manifest(number, list(refs.values()))))


def test_only_parts_go_into_the_topic_and_come_back(jobdir: JobDirectory, topics: Topics, tmp_path: Path) -> None:
    files = files_in(tmp_path / "a", part=b"12345", table=b"table", current=b"x")
    refs = uploaded(jobdir, files, topics.append)
    assert [part_at(ref.path) is not None for ref in refs.values()] == [True, False, False]
    assert refs[PART].shared
    publish(jobdir, 1, refs)
    choice = choose(jobdir)
    assert choice.manifest is not None
    assert not choice.skipped
    assert verify_manifest(jobdir, choice.manifest).ok
    fetch(jobdir, choice.manifest.files(), tmp_path / "b")
    assert (tmp_path / "b" / PART).read_bytes() == b"12345"
    # The next checkpoint has the part, and not another copy.
    assert uploaded(jobdir, files, topics.append, refs)[PART] == refs[PART]
    assert len(topics.parts) == 1


def test_a_part_that_is_gone_or_damaged_is_named(jobdir: JobDirectory, topics: Topics, tmp_path: Path) -> None:
    refs = uploaded(jobdir, files_in(tmp_path / "a", part=b"12345"), topics.append)
    publish(jobdir, 1, refs)
    (part,) = topics.parts
    topics.parts[part] = b"12349"
    with pytest.raises(CorruptionError, match=r"topic|log/one:9092/log/.*\.log'\): 5 bytes with sha256"):
        fetch(jobdir, list(refs.values()), tmp_path / "b")
    (problem,) = verify_manifest(jobdir, manifest(1, list(refs.values()))).problems
    assert "damaged" in problem.problem
    topics.parts.clear()
    (skipped,) = choose(jobdir).skipped
    assert skipped.lost
    assert (
        "missing: topic 'log' of Kafka at one:9092, partition 0, offsets 0 to 0: the topic was truncated"
        in skipped.reason
    )
    with pytest.raises(CorruptionError, match=r"topic 'log' of Kafka at one:9092.*truncated") as caught:
        fetch(jobdir, list(refs.values()), tmp_path / "c")
    assert "what changed the topic" in caught.value.hint


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_parts_of_a_failed_upload_are_deleted(
    jobdir: JobDirectory, store: FaultyStore, topics: Topics, tmp_path: Path, when: str
) -> None:
    store.script = [("put", "shared", when)]
    with pytest.raises(UnavailableError):
        uploaded(jobdir, files_in(tmp_path / "a", part=b"12345", table=b"table"), topics.append)
    assert not topics.parts
    assert not list(jobdir.list())


def test_a_file_of_which_other_bytes_are_sent_is_in_no_checkpoint(
    jobdir: JobDirectory, topics: Topics, tmp_path: Path
) -> None:
    files = files_in(tmp_path / "a", part=b"12345")

    def append(source: Path) -> tuple[str, str]:
        return topics.append(source)[0], "0" * 64

    with pytest.raises(CheckpointError, match="two reads"):
        uploaded(jobdir, files, append)


def test_gc_deletes_parts_that_are_much_older_than_the_newest_manifest(
    jobdir: JobDirectory, topics: Topics, tmp_path: Path, clock: ManualClock
) -> None:
    refs = uploaded(jobdir, files_in(tmp_path / "a", part=b"12345"), topics.append)
    publish(jobdir, 1, refs)
    left = topics.append(tmp_path / "a" / PART)[0]
    # The clock of its writer may be half an hour behind the storage's.
    topics.written_ms = jobdir.head(manifest_path(C1)).modified_ms - 1_800_000
    plan = gc.plan(jobdir, clock)
    assert (plan.garbage, plan.too_young) == ([], 1)
    topics.written_ms -= 3_600_000
    plan = gc.plan(jobdir, clock)
    assert [item.path for item in plan.garbage] == [left]
    assert gc.execute(plan) == 1
    assert [part.path for part in topics.parts] == [refs[PART].path]


def test_gc_leaves_parts_that_are_needed_whatever_their_path(
    jobdir: JobDirectory, topics: Topics, tmp_path: Path, clock: ManualClock
) -> None:
    first = uploaded(jobdir, files_in(tmp_path / "a", part=b"12345"), topics.append)
    publish(jobdir, 1, first)
    # The user adds a broker to the addresses: each address finds all parts of the job.
    part = part_at(topics.append(tmp_path / "a" / PART)[0])
    assert part is not None
    renamed = replace(part, folder=replace(FOLDER, servers="one:9092,two:9092"))
    topics.parts[renamed] = topics.parts.pop(part)
    publish(jobdir, 2, {**first, PART: structs.replace(first[PART], path=renamed.path)})
    topics.written_ms = jobdir.head(manifest_path(C2)).modified_ms - 7_200_000
    plan = gc.plan(jobdir, clock)
    assert (plan.garbage, plan.too_young, plan.live) == ([], 0, [C1, C2])
    assert gc.execute(plan) == 0
    assert len(topics.parts) == 2
