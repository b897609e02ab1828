"""Sinks of table formats beside others: replaced drivers, other writers, catalogs that are away."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from strandline.core import failpoints
from strandline.core.errors import (
    ConfigurationError,
    CorruptionError,
    FencedError,
    SinkError,
    UnavailableError,
)
from strandline.core.ids import Epoch, Generation
from strandline.spark.sinks.base import SinkContext
from strandline.testing.sinks.conformance import (
    Trial,
    a_target_that_is_away_is_caught_up_with,
)
from strandline.testing.sinks.conformance import an_answer_that_is_lost_is_asked_for as lost_answer
from tests.ends.icebergdeletes import delete_by_value
from tests.ends.tableplaces import NAMES, SESSION, Place, away, before_next, meanwhile, mute, stage, tried


# By key, only the commit itself is another one.
@pytest.mark.parametrize(
    ("key", "at"),
    [
        (None, "load"), (None, "files"), (None, "commit"), ("k", "commit"),
        *(pytest.param("k", at, marks=pytest.mark.soak) for at in ("load", "files")),
    ],
)  # fmt: skip
def test_a_replaced_driver_that_has_looked_before_cannot_commit(place: Place, key: Any, at: str) -> None:
    older = place.start(key=key)
    first = stage(older, 1, [(1, "a")])
    older.commit(first)
    second = stage(older, 2, [(2, "b")])
    newer: list[Any] = []

    def replace() -> None:
        newer.append(place.start(first, 1, key=key))

    if at == "load":
        meanwhile(older, replace)
    elif at == "files":
        failpoints.arm("sink.table_before", replace)
    elif place.kind == "delta":
        before_next(older, "_properties", replace)
    else:
        before_next(older._catalog(), "commit_table", replace)
    with pytest.raises(FencedError, match="generation 2 of the job writes"):
        older.commit([*first, *second])
    assert place.pairs() == [(1, "a")]
    newer[0].commit(stage(newer[0], 2, [(2, "again")]))
    assert place.pairs() == [(1, "a"), (2, "again")]


@pytest.mark.parametrize("key", [None, "k"])
def test_another_writer_is_no_hindrance(place: Place, key: Any) -> None:
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    staged = stage(sink, 2, [(2, "b")])
    meanwhile(sink, lambda: place.append(pa.table({"k": [7], "v": ["other"]})))
    assert not sink.commit(staged)
    assert place.pairs() == [(1, "a"), (2, "b"), (7, "other")]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_writer_of_another_branch_is_no_hindrance(tmp_path: Path, key: Any) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    sink.commit(stage(sink, 1, [(1, "a")]))
    table = place.table()
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "other").commit()
    staged = stage(sink, 2, [(2, "b")])
    rows = pa.table({"k": [7], "v": ["other"]})
    before_next(sink._catalog(), "commit_table", lambda: place.table().append(rows, branch="other"))
    assert not sink.commit(staged)
    assert place.pairs() == [(1, "a"), (2, "b")]


def test_another_writer_deletes_rows_by_their_values(tmp_path: Path) -> None:
    """The library cannot read such a table, which rows by key need, and rows that are added do not."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(first := stage(sink, 1, [(1, "a")]))
    sink.commit(stage(sink, 2, [(2, "b")]))
    delete_by_value(place.table(), [2])
    sink = place.start(first, 1)
    sink.commit(stage(sink, 2, [(3, "c")]))
    files = place.table().inspect.files().to_pylist()
    assert [file["record_count"] for file in files if file["content"] == 0] == [1, 1]
    sink = place.start(first, 1, key="k")
    with pytest.raises(SinkError, match="equality deletes") as caught:
        sink.commit(stage(sink, 2, [(1, "d")]))
    assert "Have it rewrite the data files" in str(caught.value)


def test_a_record_has_a_time(delta: Place) -> None:
    """Spark drops others from the table as soon as delta.setTransactionRetentionDuration is set, however long it is."""
    sink = delta.start()
    before = time.time()
    sink.commit(stage(sink, 1, [(1, "a")]))
    entry = delta.path / f"table/_delta_log/{delta.table().version():020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    times = [line["txn"]["lastUpdated"] / 1000 for line in lines if "txn" in line]
    assert len(times) == 2
    assert all(before - 1 < at < time.time() + 1 for at in times)


def test_a_table_whose_new_features_need_another_writer(delta: Place) -> None:
    """That does not pass, as a conflict does."""
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "rowTracking"]}
    entry = delta.path / f"table/_delta_log/{delta.table().version() + 1:020}.json"
    entry.write_text(json.dumps({"protocol": features}) + "\n")
    with pytest.raises(SinkError, match=r"Unsupported table features required: .*RowTracking") as caught:
        sink.commit(stage(sink, 2, [(2, "b")]))
    assert "DROP FEATURE" in str(caught.value)


def test_a_log_that_is_cleaned_up_to_a_newer_version(delta: Place) -> None:
    sink = delta.start()
    sink.commit(stage(sink, 1, [(1, "a")]))

    def clean() -> None:
        delta.append(pa.table({"k": [7], "v": ["other"]}))
        delta.append(pa.table({"k": [8], "v": ["other"]}))
        table = delta.table()
        table.create_checkpoint()
        for entry in (delta.path / "table/_delta_log").glob("*.json"):
            if int(entry.stem) < table.version():
                entry.unlink()

    staged = stage(sink, 2, [(2, "b")])
    before_next(sink, "_properties", clean)
    assert not sink.commit(staged)
    assert delta.pairs() == [(1, "a"), (2, "b"), (7, "other"), (8, "other")]


def test_rows_that_have_waited_are_added_beside_a_busy_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer than the other writer leaves between two commits is never committed."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(0, "a")]))
    rows = [(number, "b") for number in range(1, 301)]
    with away(monkeypatch):
        staged = [text for at in range(3) for text in stage(sink, at + 2, *([row] for row in rows[at::3]))]
        assert sink.commit(staged)
    commit_files, sizes = sink.commit_files, []

    def commit(table: Any, record: Any, files: Any, after: Any = None) -> None:
        sizes.append(len(files))
        if len(files) > 250:
            place.append(pa.table({"k": [-1], "v": ["other"]}))
        commit_files(table, record, files, after)

    sink.commit_files = commit
    assert not sink.commit(staged)
    assert sizes == [200, 100]
    assert place.pairs() == [(0, "a"), *rows]
    # Those of one checkpoint are added in one transaction.
    staged = [text for at in range(3) for text in stage(sink, at + 5, *([(at, "c")] for _ in range(90)))]
    sink.commit_files, sizes = commit_files, []
    before = len(place.table().snapshots())
    assert not sink.commit(staged)
    assert len(place.table().snapshots()) == before + 1


# A table is loaded in the same way with a key and without.
@pytest.mark.parametrize(
    ("check", "key"),
    [
        (a_target_that_is_away_is_caught_up_with, None), (lost_answer, None), (lost_answer, "n"),
        pytest.param(a_target_that_is_away_is_caught_up_with, "n", marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_a_table_that_is_away(place: Place, monkeypatch: pytest.MonkeyPatch, key: Any, check: Any) -> None:
    check(
        Trial(
            SESSION,
            make=lambda: place.make(key=key),
            visible=lambda: place.rows()["n"].to_pylist(),
            away=lambda: away(monkeypatch),
            mute=lambda: mute(monkeypatch),
        )
    )


def test_what_waits_is_told(delta: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = delta.start()
    staged = stage(sink, 1, [(1, "a"), (2, "b")])
    with away(monkeypatch):
        assert sink.commit(staged) == staged[:1]
    assert (sink.status().waiting_rows, sink.status().rows) == (2, 0)
    assert "nobody listens" in sink.status().failure
    sink.commit(staged)
    assert (sink.status().waiting_rows, sink.status().rows, sink.status().failure) == (0, 2, "")


def test_rows_are_staged_while_the_table_cannot_be_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again and again how it wants them: a catalog that is away need not end the job."""
    monkeypatch.setattr("strandline.spark.sinks.tables.sink._RELOAD_S", 0.0)
    sink = place.start()
    left = stage(sink, 1, [(1, "a")])
    with away(monkeypatch):
        left += stage(sink, 2, [(2, "b")])
        assert len(sink.commit(left)) == 2
    sink.commit(left)
    assert sorted(place.pairs()) == [(1, "a"), (2, "b")]
    # A run that has never asked it does not know.
    sink = place.start([], 2)
    with away(monkeypatch), pytest.raises(UnavailableError, match="nobody listens"):
        stage(sink, 3, [(3, "c")])


class Gateway:
    """Answers some requests in place of a REST catalog, and has the library make an error of each answer."""

    def __init__(self, status: int, text: str) -> None:
        self.answer = requests.Response()
        self.answer.status_code, self.answer._content = status, text.encode()
        self.left = 0

    def before(self, call: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if not self.left:
                return call(*arguments, **named)
            self.left -= 1
            if self.answer.ok:
                return TableResponse.model_validate_json(self.answer.text)
            return _handle_non_200_response(requests.HTTPError(response=self.answer), {404: NoSuchTableError})

        return called


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, '{"error": {"message": "rate", "type": "TooManyRequestsException", "code": 429}}'),
        (404, "404 page not found"),
        (404, "<html>"),
        (200, "<html>please log in</html>"),
    ],
)
@pytest.mark.parametrize("method", ["load_table", "commit_table"])
def test_a_gateway_answers_in_place_of_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, text: str, method: str
) -> None:
    place, gateway = Place("iceberg", tmp_path / "place"), Gateway(status, text)
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    monkeypatch.setattr(SqlCatalog, method, gateway.before(getattr(SqlCatalog, method)))
    gateway.left = 2
    assert not sink.commit(stage(sink, 2, [(2, "b")]))
    third = stage(sink, 3, [(3, "c")])
    gateway.left = 1_000_000
    assert sink.commit(third) == third[:1]
    gateway.left = 2
    assert not place.go_on(sink, third, 3, restored_by=1)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.long
def test_a_job_that_restarts_while_its_table_is_away(place: Place, monkeypatch: pytest.MonkeyPatch, key: Any) -> None:
    """It goes on, as often as it has to; what its checkpoint lists, and what it stages, comes when the table is back."""
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    fourth = stage(sink, 4, [(4, "void")])
    with away(monkeypatch):
        for _ in range(2):
            assert place.go_on(sink, second, 2) == second[:1]
            third = stage(sink, 3, [(3, "c")])
            assert sink.commit([*second[:1], *third]) == [second[0], third[0]]
    assert sink.status().waiting_rows == 2
    for _ in range(2):
        assert sink.commit([second[0], *third]) == []
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]
    (void,) = [file for each in sink._decode(fourth)[0] for file in each.files]
    assert not list(place.path.rglob(Path(void.path).name))
    place.start(third, 3, key=key)
    assert place.pairs() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("commits", [False, True])
def test_a_table_that_was_not_made_yet_when_its_catalog_was_away(
    place: Place, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    sink = place.start()
    with away(monkeypatch):
        assert not place.go_on(sink, [], 0)
    if commits:
        sink.commit([])
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    assert place.pairs() == [(1, "a")]
    place.start(first, 1)
    assert place.pairs() == [(1, "a")]


@pytest.mark.parametrize("key", [None, "k"])
def test_a_table_that_goes_away_right_behind_a_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """What is left to do then is to delete files that nobody needs."""

    def away_behind(commit: Any) -> Any:
        def made(*arguments: Any, **named: Any) -> None:
            commit(*arguments, **named)
            monkeypatch.undo()
            before_next(sink, "load", gone)

        return made

    def gone() -> None:
        raise ConnectionRefusedError("nobody listens")

    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    monkeypatch.setattr(sink, "commit_files", away_behind(sink.commit_files))
    assert place.go_on(sink, first, 1) == []
    second = stage(sink, 2, [(2, "b")])
    sink.patience_s = 0.0
    monkeypatch.setattr(sink, "committed", away_behind(sink.committed))
    assert sink.commit(second) == []
    assert place.pairs() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("answer", ["", "lost"])
def test_a_run_that_goes_back_needs_its_table(place: Place, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A later run would not know what is to be taken back: it restores a checkpoint of after that."""
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    second = stage(sink, 2, [(2, "gone")])
    sink.patience_s = 0.0
    with mute(monkeypatch) if answer else nullcontext():
        assert bool(sink.commit(second)) == bool(answer)
    with away(monkeypatch):
        for _ in range(2):
            with pytest.raises(UnavailableError, match="nobody listens"):
                place.go_on(sink, first, 1)
    assert not place.go_on(sink, first, 1)
    assert place.pairs() == [(1, "a")]
    second = stage(sink, 2, [(2, "b")])
    sink.commit(second)
    assert place.pairs() == [(1, "a"), (2, "b")]
    # So does a program that starts the job once more: another one may have gone back in between.
    tried(sink, NAMES)
    with away(monkeypatch):
        assert place.go_on(sink, second, 2)
        sink._begin_anew()
        with pytest.raises(UnavailableError, match="nobody listens"):
            place.go_on(sink, second, 2)


def test_a_run_that_was_replaced_while_its_table_was_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    with away(monkeypatch):
        assert place.go_on(sink, first, 1) == first[:1]
        second = stage(sink, 2, [(2, "b")])
    place.start(first, 1)
    with pytest.raises(FencedError):
        sink.commit([*first, *second])
    assert place.pairs() == [(1, "a")]


def test_a_data_file_that_is_gone_is_not_listed(place: Place) -> None:
    sink = place.start()
    staged = stage(sink, 1, [(1, "a")])
    (file,) = place.path.rglob("strandline-*/g1/*.parquet")
    file.unlink()
    with pytest.raises(CorruptionError, match=rf"{file.name} is gone"):
        sink.commit(staged)
    assert place.pairs() == [] if place.kind == "iceberg" else place.files() == []


def test_two_sinks_of_one_identity_do_not_share_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("iceberg", tmp_path / "place")
    sink = place.start()
    sink.commit(stage(sink, 1, [(1, "a")]))
    monkeypatch.setattr(SinkContext, "identity", sink._opened.identity)
    other = place.make()
    other.open(SinkContext(SESSION, "job", "life", Generation(3), "other", fsync=False))
    with pytest.raises(
        ConfigurationError, match="is the record of sink 'out' of job 'job'; expected that of sink 'other'"
    ):
        other.recover([], Epoch(0), fresh=True)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_commit_that_meets_itself_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Its answer was lost, and what is between asked again; one that another writer was faster than leaves nothing."""
    place = Place("iceberg", tmp_path / "place")
    sink = place.start(key=key)
    first = stage(sink, 1, [(1, "a"), (2, "b")])
    commit, times = SqlCatalog.commit_table, []

    def commit_again(catalog: Any, *given: Any) -> Any:
        times.append(commit(catalog, *given))
        return times[0] if len(times) > 1 else commit(catalog, *given)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", commit_again)
        sink.commit(first)
    assert place.pairs() == [(1, "a"), (2, "b")]
    meanwhile(sink, lambda: place.append(pa.table({"k": pa.array([0], pa.int64()), "v": ["z"]})))
    sink.commit(stage(sink, 2, [(3, "c")]))
    assert place.pairs() == [(0, "z"), (1, "a"), (2, "b"), (3, "c")]
    assert len(list(place.path.glob("w/**/snap-*.avro"))) == len(place.table().snapshots())
