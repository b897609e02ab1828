"""Snapshots are found wherever they lie; what is none says what is there instead."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import Choice, fetch
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.core.settings import BackendName
from strandline.format.manifest import BACKENDS, MANIFEST, STATE_KINDS, OlderSchema, TableFile, TTLInfo
from strandline.snapshot.opening import snapshot as opening
from strandline.snapshot.opening.listing import list_snapshots, verify_snapshot
from strandline.snapshot.opening.origin import rollback
from strandline.snapshot.opening.snapshot import (
    Snapshot,
    find_snapshot,
    open_snapshot,
    place_of,
    plain_url,
    savepoint_place,
)
from strandline.snapshot.rows import codecs as rows
from tests.checkpoint.helpers import every_epoch
from tests.clock import ManualClock
from tests.snapshot.helpers import Job, jobdir_at, url, write_savepoint
from tests.snapshot.stateful import checkpoint_of, savepoint_of


@pytest.fixture
def job(tmp_path: Path, clock: ManualClock) -> Path:
    """A job with checkpoints 1, 2 and 3."""
    run = Job(tmp_path, clock, config=every_epoch(retain=3))
    for _ in range(3):
        run.checkpoint()
    return tmp_path / "ck/job"


def opened(path: Path | str) -> Snapshot:
    return open_snapshot(str(path), fsync=False)


def fetched(snapshot: Snapshot, into: Path) -> set[str]:
    files = [f for o in snapshot.manifest.operators for p in o.partitions[:1] for f in p.files]
    fetch(snapshot.folder, files, into)
    return {f.name for f in files if (into / f.name).stat().st_size == f.size}


def test_a_savepoint(tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sp")
    snapshot = opened(tmp_path / "sp")
    assert (snapshot.kind, snapshot.url, snapshot.folder.url) == (
        "savepoint",
        url(tmp_path / "sp"),
        url(tmp_path / "sp"),
    )
    assert snapshot.manifest.job == "other"
    assert len(fetched(snapshot, tmp_path / "into")) == 2
    assert not snapshot.lies_in(jobdir_at(tmp_path, "other"))


@pytest.mark.parametrize("written", ["{}", "{}/", "{}/_metadata", "file://{}", "{}/../sp"])
def test_however_it_is_written(tmp_path: Path, written: str) -> None:
    write_savepoint(tmp_path / "sp")
    assert opened(written.format(tmp_path / "sp")).requested_url == url(tmp_path / "sp")


def test_urls_without_secrets() -> None:
    assert plain_url("s3://key:secret@bucket/a/b/_metadata") == "s3://bucket/a/b"
    assert plain_url("s3://bucket/a/b/") == "s3://bucket/a/b"
    assert plain_url("gs://bucket") == "gs://bucket"
    # Hadoop's names are of the same places; before an account of Azure stands the container.
    assert plain_url("s3a://key:secret@bucket/a/b/") == plain_url("s3://bucket/a/b")
    azure = "container@account.dfs.core.windows.net/a"
    assert plain_url(f"abfs://{azure}/") == f"abfss://{azure}" != plain_url(f"abfss://other-{azure}")
    assert plain_url(f"abfss://x:secret@{azure.partition('@')[2]}") == "abfss://account.dfs.core.windows.net/a"


def test_a_checkpoint(job: Path, tmp_path: Path) -> None:
    snapshot = opened(job / "chk-2")
    assert (snapshot.kind, snapshot.url, snapshot.manifest.checkpoint) == ("checkpoint", url(job / "chk-2"), 2)
    assert snapshot.folder.url == url(job)
    assert fetched(snapshot, tmp_path / "into")
    assert snapshot.lies_in(jobdir_at(tmp_path))
    assert not snapshot.lies_in(jobdir_at(tmp_path, "other"))


def test_the_newest_of_a_job(job: Path) -> None:
    snapshot = opened(job)
    assert (snapshot.requested_url, snapshot.url) == (url(job), url(job / "chk-3"))
    assert snapshot.sha256 == opened(job / "chk-3").sha256
    (job / "chk-3/_metadata").write_bytes(b"")
    assert opened(job).url == url(job / "chk-2")


def test_a_job_that_was_moved_and_renamed(job: Path, tmp_path: Path) -> None:
    there = tmp_path / "archive/old job"
    there.parent.mkdir()
    shutil.move(job, there)
    for asked in (there, there / "chk-3"):
        snapshot = opened(asked)
        assert snapshot.url == url(there / "chk-3")
        assert fetched(snapshot, tmp_path / f"into-{asked.name}")
        assert not snapshot.lies_in(jobdir_at(tmp_path))


def test_a_link_is_followed_and_remembered_as_it_was_asked(job: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(job / "chk-2")
    snapshot = opened(tmp_path / "latest")
    assert (snapshot.requested_url, snapshot.url) == (url(tmp_path / "latest"), url(job / "chk-2"))
    assert snapshot.lies_in(jobdir_at(tmp_path))


def test_a_checkpoint_alone_is_not_enough(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job / "chk-2", tmp_path / "alone/chk-2")
    with pytest.raises(CorruptionError, match=r"alone/shared/.*missing") as caught:
        opened(tmp_path / "alone/chk-2")
    assert "shared/" in caught.value.hint
    shutil.copytree(job / "shared", tmp_path / "alone/shared")
    assert opened(tmp_path / "alone/chk-2").manifest.checkpoint == 2


def test_a_void_checkpoint(job: Path, tmp_path: Path, clock: ManualClock) -> None:
    rollback(jobdir_at(tmp_path), CheckpointId(1), clock)
    assert opened(job).manifest.checkpoint == 1
    with pytest.raises(
        CorruptionError, match="chk-3: void: published by generation 1, from whose checkpoint 1 the job went on"
    ) as caught:
        opened(job / "chk-3")
    assert "generations/" in caught.value.hint
    assert find_snapshot(str(job / "chk-3")).refused.startswith("void")
    # Away from the records, nothing says so.
    shutil.copytree(job, tmp_path / "kept", ignore=shutil.ignore_patterns("generations"))
    assert opened(tmp_path / "kept/chk-3").manifest.checkpoint == 3


def test_one_that_nobody_can_judge(job: Path, tmp_path: Path, clock: ManualClock) -> None:
    Job(tmp_path, clock, seed=1, config=every_epoch(retain=3)).checkpoint()
    (job / "generations/2.base").write_bytes(b"")
    with pytest.raises(CorruptionError, match="whether it counts is unknown"):
        opened(job / "chk-2")
    assert opened(job / "chk-4").manifest.checkpoint == 4


def test_a_damaged_manifest(tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sp")
    (tmp_path / "sp/_metadata").write_bytes(b"SLMANIF1")
    with pytest.raises(CorruptionError, match="sp/_metadata"):
        opened(tmp_path / "sp")


def test_a_savepoint_that_lacks_a_file(tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sp")
    file = next((tmp_path / "sp/data").iterdir())
    file.write_bytes(file.read_bytes()[1:])
    with pytest.raises(CorruptionError, match="299 bytes, expected 300"):
        opened(tmp_path / "sp")


def test_what_is_there_instead(job: Path, tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sps/a")
    for path, expected in {
        "ck": "jobs: job: give the path of one",
        "sps": "savepoints: a: give the path of one",
        ".": r"jobs: ck/job; savepoints: sps/a",
        "sps/a/data": "there is below it: [0-9a-f]{64}, ",
        "ck/job/shared": "there is below it: [0-9a-f]{2}",
    }.items():
        with pytest.raises(NotFoundError, match="no snapshot there: neither a _metadata") as caught:
            opened(tmp_path / path)
        assert re.search(expected, caught.value.hint), caught.value.hint


def test_a_path_that_is_not_there(job: Path) -> None:
    with pytest.raises(NotFoundError, match="chk-17: expected a directory, and it is not there") as caught:
        opened(job / "chk-17")
    assert "chk-1, chk-2, chk-3, generations, shared" in caught.value.hint
    assert not (job / "chk-17").exists(), "looking makes nothing"
    for number in range(10):
        (job / f".hidden-{number}").touch()
    with pytest.raises(NotFoundError) as caught:
        opened(job / "chk-17")
    assert "there is: chk-1, chk-2, chk-3, generations, shared, .hidden-0, " in caught.value.hint
    with pytest.raises(NotFoundError, match="it is a file"):
        opened(next(path for path in job.glob("shared/*/*")))


def test_a_job_without_checkpoints(tmp_path: Path, clock: ManualClock) -> None:
    Job(tmp_path, clock)
    with pytest.raises(NotFoundError, match="a job's folder, and it has no checkpoint"):
        opened(tmp_path / "ck/job")


def test_an_unknown_store() -> None:
    with pytest.raises(ConfigurationError, match="unknown scheme 'ftp'"):
        open_snapshot("ftp://host/sp")


def test_a_folder_renamed_beside_its_job_is_no_checkpoint_of_it(job: Path, tmp_path: Path) -> None:
    data = (job / "chk-2/_metadata").read_bytes()
    (job / "mine").mkdir()
    (job / "mine/_metadata").write_bytes(data)
    snapshot = opened(job / "mine")
    assert snapshot.manifest == MANIFEST.decode(data, "")
    assert not snapshot.lies_in(jobdir_at(tmp_path))


def test_a_job_that_takes_a_checkpoint_meanwhile(
    job: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Job(tmp_path, clock, seed=1)
    original, found = opening.choose, []

    def choose_and_go_on(jobdir: JobDirectory) -> Choice:
        found.append(original(jobdir))
        if len(found) == 1:
            run.checkpoint()
        return found[-1]

    monkeypatch.setattr(opening, "choose", choose_and_go_on)
    assert opened(job).manifest.checkpoint == 4
    assert len(found) == 2


def test_where_a_folder_is_to_be_made(tmp_path: Path) -> None:
    found = place_of(str(tmp_path / "a b"), {"key": "x"})
    assert (found.url, found.path, found.options) == (tmp_path.as_uri(), "a b", {"key": "x"})
    assert (place_of("s3://bucket/some/folder/").url, place_of("s3://bucket/some/folder").path) == (
        "s3://bucket/some", "folder"
    )  # fmt: skip
    for bucket in ("s3://bucket", "s3://bucket/"):
        assert (place_of(bucket).url, place_of(bucket).path) == ("s3://bucket", "")


def test_a_folder_of_the_root_is_not_one_of_the_working_directory() -> None:
    assert (place_of("/sp").url, place_of("/sp").path) == ("file:///", "sp")
    assert folder_at(place_of("/sp")).url == "file:///sp"
    with pytest.raises(ConfigurationError, match="name a folder in it"):
        savepoint_place("/")


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b", "a%20b", "50%", "ü", "q'\"", "a\\b", "..."])
def test_the_url_that_is_told_leads_to_the_folder(tmp_path: Path, name: str) -> None:
    """Where a savepoint is made, and what lists show of it, opens it again."""
    write_savepoint(tmp_path / "sps" / name)
    made = folder_at(savepoint_place(str(tmp_path / "sps" / name)))
    (listed,) = list_snapshots(str(tmp_path))
    for told in (made.url, listed.url, opened(made.url).url, str(tmp_path / "sps" / name)):
        assert opened(told).url == (tmp_path / "sps" / name).as_uri()


@pytest.mark.parametrize("written", ["s3://bucket/a#b", "s3://bucket/a?b=secret", "file:///a#b/c"])
def test_what_is_no_part_of_a_path_is_not_left_out_of_it(written: str) -> None:
    for open_it in (savepoint_place, open_snapshot):
        with pytest.raises(ConfigurationError, match="%23") as refused:
            open_it(written)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "said"), [("", "is empty"), (" ", "is empty"), ("file://data/sp", "'data' is a machine there")]
)
def test_what_names_no_folder(written: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the working directory for a variable that is not set, nor the root for a slash that is missing."""
    write_savepoint(tmp_path / "sp")
    monkeypatch.chdir(tmp_path / "sp")
    for open_it in (savepoint_place, open_snapshot):
        with pytest.raises(ConfigurationError, match=said):
            open_it(written)
    assert opened(".").url == url(tmp_path / "sp")


def test_no_savepoint_where_a_job_collects_its_garbage(job: Path, tmp_path: Path) -> None:
    for inside in ("shared/sp", "chk-2/sp", "chk-99/sp", "generations/sp", "chk-99/deep/in/sp"):
        with pytest.raises(ConfigurationError, match=r"of a job's directory, .*/ck/job, where the job deletes"):
            savepoint_place(str(job / inside))
    # Beside a job's directory, and where nothing is a job's, such names are anybody's.
    for elsewhere in (job / "sp", job.parent / "sp", tmp_path / "shared/sp", tmp_path / "chk-7/deep/sp"):
        assert savepoint_place(str(elsewhere)).path == "sp"
    assert not (job / "chk-99").exists()


@pytest.mark.parametrize(
    ("operator", "state", "expected"),
    [
        (
            {"backend": "tape"},
            {},
            "operator 'op' is of the backend 'tape', expected one of filesystem, memory, rocksdb",
        ),
        ({"key_schema": "k strung"}, {}, "operator 'op' has a key of an unknown type: .*strung"),
        ({}, {"kind": "tree"}, "state 'value' is of the kind 'tree', expected one of aggregating, "),
        ({}, {"value_type": "struct<a: bigint"}, "state 'value' is of an unknown type: "),
        ({}, {"key_type": "map<"}, "state 'value' is of an unknown type: "),
        ({}, {"older": {0: OlderSchema(value_type="in t")}}, "state 'value' is of an unknown type: "),
        ({}, {"ttl": TTLInfo(duration_ms=1, refresh="write", time="lunar")}, "expires by the time 'lunar'"),
    ],
)
def test_a_manifest_of_what_is_not_known_is_refused_in_words(
    tmp_path: Path, operator: dict[str, Any], state: dict[str, Any], expected: str
) -> None:
    """Its bytes are whole: another release has written it, or another program."""
    made = checkpoint_of(tmp_path, "memory", 1) / "_metadata"
    found = MANIFEST.decode(made.read_bytes(), "it")
    (op,) = found.operators
    (value,) = [one for one in op.states if one.name == "value"]
    states = [structs.replace(value, **state), *(one for one in op.states if one is not value)]
    made.write_bytes(
        MANIFEST.encode(structs.replace(found, operators=[structs.replace(op, states=states, **operator)]))
    )
    with pytest.raises(CorruptionError, match=f"chk-1/_metadata: .*{expected}"):
        open_snapshot(str(made.parent))
    with pytest.raises(NotFoundError, match=f"none of its 1 manifests can be read: .*{expected}"):
        open_snapshot(str(made.parents[1]))


def test_manifests_know_every_kind_of_state_and_every_backend() -> None:
    assert {*rows._KINDS, rows._DERIVED} == STATE_KINDS
    assert set(get_args(BackendName)) == BACKENDS


def outside(files: list[TableFile]) -> list[TableFile]:
    return [structs.replace(files[0], first_key_group=200), *files[1:]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"max_parallelism": 0}, "max_parallelism is 0, expected 1 to 32768"),
        ({"uid": "a\0b"}, r"'a\\x00b' is no name"),
        ({"states": lambda op: [*op.states, op.states[0]]}, "state 'value' is there twice"),
        ({"partitions": lambda op: [*op.partitions, op.partitions[0]]}, "partition 0 has key groups 0 to 63, expected"),
        ({"partitions": lambda op: op.partitions[:1]}, "no partition has the key groups from 64 on"),
        ({"partitions": []}, "no partition has the key groups from 0 on"),
        (
            {"tables": lambda op: {**op.tables, "value": outside(op.tables["value"])}},
            "'value', file 0: key groups 200 to",
        ),
        ({"tables": lambda op: {**op.tables, "other": []}}, "has a table 'other', and no state of that name"),
    ],
)
def test_operators_that_do_not_fit_together(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """By somebody's hand: all bytes are there, and rows would be left out."""
    savepoint = savepoint_of(checkpoint_of(tmp_path), "canonical" if "tables" in change else "native")
    found = MANIFEST.decode((savepoint / "_metadata").read_bytes(), "")
    (operator,) = found.operators
    changes = {name: value(operator) if callable(value) else value for name, value in change.items()}
    wrong = structs.replace(found, operators=[structs.replace(operator, **changes)])
    (savepoint / "_metadata").write_bytes(MANIFEST.encode(wrong))
    with pytest.raises(CorruptionError, match=why):
        opened(savepoint)
    assert re.search(why, verify_snapshot(str(savepoint)).problems[0].problem)
