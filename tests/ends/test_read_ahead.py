"""Staged rows that are read before they are delivered: which, how many, and what happens if they cannot be read."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from strandline.checkpoint.folder import Folder
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.ends.readahead import ReadAhead
from strandline.ends.staged import Piece, StagedFile
from strandline.spark.sinks import transactional
from strandline.testing.sinks.trial import TASKS
from tests.ends.ledgers import trial_of, waiting_files


class Reads:
    """How often staged files were read, and what then happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.before: Any = lambda: None
        get = Folder.get

        def counted(folder: Folder, path: str) -> bytes:
            self.paths.append(path)
            self.before()
            return get(folder, path)

        monkeypatch.setattr(Folder, "get", counted)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def settle(sink: Any) -> None:
    """Wait until all is read that is read ahead."""
    for _, rows in list(sink._ahead._files.values()):
        rows.exception()


def test_each_file_is_read_once_before_its_delivery(ledger: Any, reads: Reads) -> None:
    trial = trial_of(ledger)
    sink: Any = trial.start()
    for epoch in range(1, 5, 2):
        pending = trial.stage(sink, epoch, epoch + 1)
        settle(sink)
        count = len(reads.paths)
        assert sink.commit(pending) == []
        assert len(reads.paths) == count
    assert len(reads.paths) == len(set(reads.paths)) == 4 * TASKS
    assert (sink._ahead._files, sink._ahead._bytes) == ({}, 0)
    trial.expect(1, 2, 3, 4)


def test_rows_that_wait_are_read_again(ledger: Any, reads: Reads) -> None:
    """Where the target was away, they are not kept in memory."""
    trial = trial_of(ledger)
    sink: Any = trial.start()
    pending = trial.stage(sink, 1)

    def refuse() -> None:
        raise ConnectionError

    ledger.before = refuse
    sink.patience_s = 0.0
    assert sorted(sink.commit(pending)) == sorted(each for each in pending if '"rows"' in each)
    ledger.before = lambda: None
    assert sink.commit(pending) == []
    trial.expect(1)
    assert len(reads.paths) == 2 * TASKS


def test_what_could_not_be_read_ahead_is_read_from_storage(ledger: Any, reads: Reads) -> None:
    def fail() -> None:
        raise UnavailableError("storage does not answer")

    trial = trial_of(ledger)
    sink: Any = trial.start()
    reads.before = fail
    pending = trial.stage(sink, 1)
    settle(sink)
    reads.before = lambda: None
    assert sink.commit(pending) == []
    trial.expect(1)


def test_what_is_damaged_is_damaged_ahead_as_well(ledger: Any, reads: Reads) -> None:
    trial = trial_of(ledger, parallel=False)
    sink: Any = trial.start()
    damage = threading.Event()
    reads.before = damage.wait
    pending = trial.stage(sink, 1)
    for path in waiting_files(trial):
        path.write_bytes(path.read_bytes()[:-1])
    damage.set()
    settle(sink)
    with pytest.raises(CorruptionError, match="staged rows cannot be read"):
        sink.commit(pending)
    assert ledger.rows == []


def test_of_too_many_bytes_the_newest_are_kept() -> None:
    read: list[str] = []

    class File(StagedFile):
        def read(self, folder: Folder, sink: str) -> list[pa.RecordBatch]:
            read.append(self.path)
            return []

    files = [File(str(n), f"path {n}", Piece(str(n), 1, size, 0), "") for n, size in enumerate([40, 40, 200, 40])]
    ahead = ReadAhead(None, "sink", 100)  # type: ignore[arg-type]
    ahead.add(files)
    assert list(ahead._files) == ["path 1", "path 3"]
    assert ahead._bytes == 80
    assert [ahead.take(file) is None for file in files[:3:2]] == [True, True]
    ahead.close()
    ahead.add(files)
    assert ahead._files == {}
    assert "path 2" not in read


def test_a_run_that_ends_leaves_no_thread(ledger: Any, reads: Reads) -> None:
    trial = trial_of(ledger)
    sink: Any = trial.start()
    pending = trial.stage(sink, 1)
    threads = list(sink._ahead._pool._threads)
    assert threads
    sink.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    # Its last epoch may still be written; another driver delivers it.
    trial.stage(sink, 2)
    trial.start(pending, 1).close()
    trial.expect(1)


def test_where_tasks_deliver_nothing_is_read_ahead(ledger: Any, reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_of(ledger)
    sink: Any = trial.start()
    monkeypatch.setattr(transactional, "_SMALL_BYTES", 0)
    assert sink.commit(trial.stage(sink, 1)) == []
    reads.paths.clear()
    pending = trial.stage(sink, 2)
    assert sink._ahead._files == {}
    # Until the driver has delivered some itself.
    monkeypatch.setattr(transactional, "_SMALL_BYTES", 4 << 20)
    assert sink.commit(pending) == []
    assert len(reads.paths) == TASKS
    trial.stage(sink, 3)
    assert len(sink._ahead._files) == TASKS
