"""A savepoint's folder: whole once its manifest is there, and nothing before; copied, it is the same elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs

from strandline.checkpoint.folder import Folder
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError, UnavailableError
from strandline.core.failpoints import arm, disarm_all
from strandline.core.keygroups import range_of
from strandline.format.manifest import MANIFEST, Manifest, OperatorInfo, StateInfo, TableFile
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.opening.snapshot import METADATA, check_form, find_snapshot, open_snapshot
from strandline.snapshot.rows.parquet import Cut, read_tables
from strandline.snapshot.savepoints.savepoint import (
    WRITING,
    begin,
    check_empty,
    discard,
    discard_own,
    fetching,
    join_pieces,
    publish,
    uploading,
)
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.storage.local import LocalStore
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import damage_uploads, manifest
from tests.snapshot.rows import SCHEMA, Row
from tests.storage.faulty import AFTER, BEFORE, FaultyStore

MAX_PARALLELISM = 16
CUT = Cut(300, 20)
EMPTY = dict.fromkeys(SCHEMA.names)
ROWS: list[Row] = [{**EMPTY, "key_group": n * n // 20, "user": f"user-{n:02d}"} for n in range(18)]


class Killed(BaseException):
    pass


def kill() -> None:
    raise Killed


def folder_at(path: Path) -> Folder:
    return Folder(LocalStore(path, fsync=False))


def tables_in(folder: Folder, parallelism: int, rows: list[Row] = ROWS) -> list[TableFile]:
    """Bring a state's rows into a folder, as writers and their coordinator do."""
    files: list[TableFile] = []
    pieces: list[TableFile] = []
    for partition in range(parallelism):
        groups = range_of(partition, MAX_PARALLELISM, parallelism)
        with tempfile.TemporaryDirectory() as scratch:
            with uploading(folder) as uploads:
                writer = TableWriter(SCHEMA, groups, MAX_PARALLELISM, Path(scratch), CUT, uploads.put)
                mine = [row for row in rows if row["key_group"] in groups]
                writer.write(pa.RecordBatch.from_pylist(mine, SCHEMA))
                made, left = writer.finish()
            assert not list(Path(scratch).iterdir())
            files += [one.table for one in made]
            pieces += [one.table for one in left]
    with tempfile.TemporaryDirectory() as scratch:
        joined = join_pieces(folder, files, pieces, MAX_PARALLELISM, Path(scratch), CUT)
        assert not list(Path(scratch).iterdir())
    return joined


def test_a_damaged_piece_is_named(tmp_path: Path) -> None:
    folder, local = folder_at(tmp_path / "to"), tmp_path / "local"
    local.mkdir()
    writer = TableWriter(SCHEMA, range(4), MAX_PARALLELISM, local)
    writer.write(pa.RecordBatch.from_pylist(ROWS[:3], SCHEMA))
    files, (piece,) = writer.finish()
    assert not files
    data = bytearray(piece.path.read_bytes())
    data[len(data) // 2] ^= 1
    folder.create(piece.table.file.path, bytes(data))
    with pytest.raises(CorruptionError, match=piece.table.file.path):
        join_pieces(folder, [], [piece.table], MAX_PARALLELISM, tmp_path)


def savepoint_of(tables: dict[str, list[TableFile]], **changed: object) -> Manifest:
    states = [StateInfo(name=name, kind="value", value_type="bigint") for name in tables]
    operator = OperatorInfo(
        uid="detect", backend="rocksdb", parallelism=1, max_parallelism=MAX_PARALLELISM, key_schema="user string",
        states=states, partitions=[], tables=tables,
    )  # fmt: skip
    return structs.replace(manifest(9), **{"operators": [operator], "savepoint": "canonical", **changed})


def take(folder: Folder, parallelism: int = 3, rows: list[Row] = ROWS) -> Manifest:
    begin(folder)
    made = savepoint_of({"seen": tables_in(folder, parallelism, rows)})
    publish(folder, made)
    return made


def paths(folder: Folder) -> set[str]:
    return {info.path for info in folder.list()}


def paths_of(made: Manifest) -> set[str]:
    return {file.path for file in made.files()}


def rows_of(folder: Folder, of: Manifest, groups: range = range(MAX_PARALLELISM)) -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        tables = of.operators[0].tables
        assert tables
        batches = list(read_tables(tables["seen"], groups, fetching(folder, Path(scratch))))
        assert not list(Path(scratch).iterdir())
        return pa.Table.from_batches(batches, SCHEMA).to_pylist(maps_as_pydicts="strict")


def test_equal_state_gives_equal_folders(tmp_path: Path) -> None:
    folders = [folder_at(tmp_path / str(parallelism)) for parallelism in (1, 3, 16)]
    made = [take(folder, parallelism) for folder, parallelism in zip(folders, (1, 3, 16), strict=True)]
    assert made[0] == made[1] == made[2]
    # Nothing else is left: no piece, and no mark that somebody writes.
    named = {file.path for file in made[0].files()}
    assert len(named) > 2
    for folder, of in zip(folders, made, strict=True):
        assert paths(folder) == {"_metadata", *named}
        assert rows_of(folder, of) == ROWS
        assert rows_of(folder, of, range(3, 7)) == [row for row in ROWS if 3 <= row["key_group"] < 7]
    snapshot = open_snapshot(str(tmp_path / "3"))
    assert (snapshot.kind, snapshot.manifest) == ("savepoint", made[1])


@pytest.mark.parametrize("at", ["begun", "upload@1", "upload@3", "upload@5", "joined", "publish", "published"])
def test_one_that_breaks_off_is_no_savepoint(tmp_path: Path, at: str) -> None:
    folder = folder_at(tmp_path)
    name, _, hits = at.partition("@")
    arm(f"savepoint.{name}", kill, at=int(hits or 1))
    with pytest.raises(Killed):
        take(folder)
    disarm_all()
    if name == "published":
        assert open_snapshot(str(tmp_path)).manifest.savepoint == "canonical"
        left = paths(folder)
        discard(folder)
        assert paths(folder) == left
        return
    with pytest.raises(NotFoundError):
        find_snapshot(str(tmp_path))
    with pytest.raises(ConflictError, match="broken off"):
        begin(folder)
    discard(folder)
    assert not paths(folder)
    take(folder, 2)


def test_a_folder_with_anything_in_it_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    folder.put("notes/a.txt", b"mine")
    with pytest.raises(ConflictError, match="notes"):
        begin(folder)
    assert paths(folder) == {"notes/a.txt"}


@pytest.mark.parametrize("ends", ["published", "failed"])
def test_what_comes_to_lie_beside_it_meanwhile_stays(tmp_path: Path, ends: str) -> None:
    folder, below = folder_at(tmp_path), folder_at(tmp_path / "below")
    begin(folder)
    made = savepoint_of({"seen": tables_in(folder, 2)})
    taken = take(below)
    folder.put("notes.txt", b"mine")
    if ends == "published":
        publish(folder, made)
    else:
        discard(folder)
    assert rows_of(below, taken) == ROWS
    left = {path for path in paths(folder) if not path.startswith("below/")}
    assert left == {"notes.txt"} | ({"_metadata", *paths_of(made)} if ends == "published" else set())


def test_of_two_in_one_folder_one_goes_on(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    begin(folder)
    with pytest.raises(ConflictError, match="being written"):
        begin(folder)
    publish(folder, savepoint_of({"seen": tables_in(folder, 2)}))
    with pytest.raises(ConflictError, match="_metadata"):
        begin(folder)
    assert WRITING not in paths(folder)


def test_a_whole_one_whose_writer_was_killed_is_not_called_broken_off(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    arm("savepoint.published", kill)
    with pytest.raises(Killed):
        take(folder)
    disarm_all()
    assert {METADATA, WRITING} <= paths(folder)
    with pytest.raises(ConflictError, match="there is a snapshot already"):
        begin(folder)
    assert verify_snapshot(str(tmp_path)).ok


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_manifest_whose_writing_is_in_doubt_may_be_published_again(tmp_path: Path, when: str) -> None:
    store = FaultyStore(open_store("memory://"))
    folder = Folder(store, "some/where")
    begin(folder)
    made = savepoint_of({"seen": tables_in(folder, 2)})
    store.script = [("create", "_metadata", when)]
    with pytest.raises(OutcomeUnknownError):
        publish(folder, made)
    publish(folder, made)
    assert rows_of(folder, made) == ROWS
    with pytest.raises(ConflictError, match="another snapshot"):
        publish(folder, structs.replace(made, epoch=1))


def test_a_manifest_that_conflicts_with_itself_and_cannot_be_read_is_in_doubt(tmp_path: Path) -> None:
    store = FaultyStore(open_store("memory://"))
    folder = Folder(store, "some/where")
    begin(folder)
    publish(folder, made := savepoint_of({"seen": tables_in(folder, 2)}))
    store.script = [("get", "_metadata", BEFORE)]
    with pytest.raises(OutcomeUnknownError):
        publish(folder, made)


def test_storage_that_fails_fails_the_savepoint(tmp_path: Path) -> None:
    store = FaultyStore(open_store("memory://"))
    folder = Folder(store)
    begin(folder)
    store.script = [("put_file", "data/", BEFORE)]
    with pytest.raises(UnavailableError):
        tables_in(folder, 2)
    discard(folder)
    assert not paths(folder)


def test_a_table_of_which_other_bytes_are_sent_fails_the_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_at(tmp_path)
    begin(folder)
    damage_uploads(monkeypatch)
    with pytest.raises(CorruptionError, match="other bytes"):
        tables_in(folder, 2)
    assert paths(folder) == {WRITING}


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_what_is_not_all_there_is_not_published(tmp_path: Path, damage: str) -> None:
    folder = folder_at(tmp_path)
    begin(folder)
    made = savepoint_of({"seen": tables_in(folder, 2)})
    file = made.files()[1].path
    data = folder.get(file)
    if damage == "gone":
        folder.delete([file])
    else:
        # The last is seen because tests read everything again before it is published.
        folder.put(file, data[:-1] if damage == "short" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CorruptionError, match=file):
        publish(folder, made)
    with pytest.raises(NotFoundError):
        find_snapshot(str(tmp_path))


def test_a_manifest_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    made = take(folder_at(tmp_path))
    check_form(made, "here")
    (operator,) = made.operators
    assert operator.tables
    files = operator.tables["seen"]

    def with_files(changed: list[TableFile], state: str = "seen") -> Manifest:
        return structs.replace(made, operators=[structs.replace(operator, tables={state: changed})])

    def replaced(change: Callable[[TableFile], TableFile]) -> Manifest:
        return with_files([change(files[0]), *files[1:]])

    wrong = {
        "checkpoint's": structs.replace(made, savepoint=manifest(1).savepoint),
        "no state": with_files(files, "other"),
        "begins with key group": with_files(files[::-1]),
        "key groups 0 to 16 of 16": replaced(lambda f: structs.replace(f, last_key_group=16)),
        "expected 'data/": replaced(lambda f: structs.replace(f, file=structs.replace(f.file, path="data/1"))),
        "partitions": structs.replace(
            made, operators=[structs.replace(operator, partitions=manifest(1).operators[0].partitions)]
        ),
    }
    for message, one in wrong.items():
        with pytest.raises(CorruptionError, match=message):
            check_form(one, "here")


def test_verifying_reads_every_byte_and_the_manifest(tmp_path: Path) -> None:
    made = take(folder_at(tmp_path / "whole"))
    report = verify_snapshot(str(tmp_path / "whole"))
    assert report.ok
    assert report.files == len(made.files())
    (operator,) = made.operators
    assert operator.tables
    turned = structs.replace(operator, tables={"seen": operator.tables["seen"][::-1]})
    (tmp_path / "whole" / "_metadata").write_bytes(MANIFEST.encode(structs.replace(made, operators=[turned])))
    assert "begins with key group" in verify_snapshot(str(tmp_path / "whole")).problems[0].problem
    take(folder_at(tmp_path / "damaged"))
    file = tmp_path / "damaged" / made.files()[2].path
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert [p.path for p in verify_snapshot(str(tmp_path / "damaged")).problems] == [made.files()[2].path]


def test_a_folder_that_cannot_be_looked_at_is_left_as_it_was(tmp_path: Path) -> None:
    store = FaultyStore(LocalStore(tmp_path, fsync=False))
    store.script = [("list", "", BEFORE)]
    with pytest.raises(UnavailableError):
        begin(Folder(store, "taken"))
    assert not (tmp_path / "taken").exists()
    begin(Folder(store, "taken"))


def test_what_a_mark_left_is_its_to_discard(tmp_path: Path) -> None:
    """And nothing else: not another's, not a savepoint that is there, nor files that were never a savepoint's."""
    folder = folder_at(tmp_path / "to")
    check_empty(folder)
    discard_own(folder, "mine")
    begin(folder, "mine")
    tables_in(folder, 2)
    folder.create("pieces/left", b"piece")
    with pytest.raises(ConflictError, match="a savepoint is being written here"):
        check_empty(folder)
    discard_own(folder, "another")
    assert len(list(folder.list())) > 2
    # It was killed before it had looked for this one.
    folder.create("theirs", b"data")
    discard_own(folder, "mine")
    assert [info.path for info in folder.list()] == ["theirs"]
    with pytest.raises(ConflictError, match="expected an empty folder, found 'theirs'"):
        check_empty(folder)
    folder.delete(["theirs"])
    folder.create(WRITING, b"mine 1234")
    folder.create(METADATA, b"whole")
    discard_own(folder, "mine")
    assert {info.path for info in folder.list()} == {WRITING, METADATA}
    with pytest.raises(ConflictError, match="there is a snapshot already") as raised:
        check_empty(folder)
    assert "restore=" in raised.value.hint
