"""The protocol of a keeper, over its real socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.core.errors import KeeperError, OutputError, UserCodeError, VersionMismatchError
from strandline.keeper import protocol as p
from strandline.spark.keepers.worker import _connect
from tests.runtime.clients import Keeper, Nursery, answers, eventually
from tests.soak import BACKENDS


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """One keeper for all tests that leave it as it should be, which is part of what they test."""
    nursery = Nursery(tmp_path_factory.mktemp("one"))
    yield nursery.start()
    nursery.close()


@pytest.fixture
def keeper(one: Keeper) -> Iterator[Keeper]:
    """The keeper, that must have as many files and threads after a test as before it."""
    one.counts("k")
    before = one.opened()
    yield one
    eventually(lambda: one.opened() <= before, f"{one.opened()} files and threads are {before} again")


def count(keeper: Keeper) -> int:
    return int(keeper.counts("k")[0][1])


def test_an_epoch_is_processed_once_and_replayed_as_it_was(keeper: Keeper) -> None:
    first = keeper.run([("a", "count", 0, 0), ("b", "count", 0, 0)], [("a", "count", 0, 0)])
    assert answers(first[0]) == [("a", "1"), ("b", "1"), ("a", "2")]
    ack = first[1]
    assert (ack.uid, ack.partition, ack.epoch, ack.pid) == ("op", 0, keeper.epoch, keeper.pid)
    assert (ack.rows_in, ack.rows_out) == (3, 3)
    assert 0 < ack.wait_ms <= ack.process_ms
    for _ in range(3):
        assert keeper.run(epoch=keeper.epoch) == first
    assert keeper.counts("a") == [("a", "3")]


@pytest.mark.parametrize(
    "again",
    [
        [[("a", "count", 0, 0)]],
        [[("a", "count", 0, 0), ("b", "count", 0, 0), ("a", "count", 0, 0)]],
        [[("a", "count", 0, 0), ("c", "count", 0, 0)]],
    ],
    ids=["fewer", "more", "others"],
)
def test_other_rows_than_those_applied_are_never_answered_with_what_those_gave(
    keeper: Keeper, again: list[list[Any]]
) -> None:
    applied = [("a", "count", 0, 0), ("b", "count", 0, 0)]
    first = keeper.run(applied)
    with pytest.raises(
        VersionMismatchError, match=rf"came again with {len(again[0])} rows, not the 2 that were applied"
    ):
        keeper.run(*again, epoch=keeper.epoch)
    # In another order, and cut into other batches, they are the same rows.
    assert keeper.run(applied[1:], applied[:1], epoch=keeper.epoch) == first


def test_rows_that_did_not_all_come_are_not_applied(keeper: Keeper) -> None:
    before = count(keeper)
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(keeper.epoch + 1))
        talk.rows([("k", "count", 0, 0)])
        talk.counter.add(pa.array([1], pa.int32()))
        talk.end()
        with pytest.raises(KeeperError):
            talk.finish()
    assert keeper.poll().epoch == keeper.epoch
    assert count(keeper) == before + 1


def test_an_epoch_without_rows_counts(keeper: Keeper) -> None:
    frames, ack = keeper.run()
    assert (frames, ack.rows_in, ack.epoch) == ([], 0, keeper.epoch)
    assert keeper.run(epoch=keeper.epoch) == (frames, ack)


@pytest.mark.parametrize("step", [-5, -1, 2, 100])
def test_any_other_epoch_is_refused(keeper: Keeper, step: int) -> None:
    before = count(keeper)
    with keeper.connect() as talk, pytest.raises(VersionMismatchError, match=f"at epoch {keeper.epoch}"):
        talk.begin(keeper.instructions(keeper.epoch + step))
    with pytest.raises(VersionMismatchError):
        keeper.poll(keeper.epoch + step)
    assert count(keeper) == before + 1


def test_another_generation_is_refused(keeper: Keeper) -> None:
    keeper.generation += 1
    try:
        with pytest.raises(VersionMismatchError, match="the request to generation 2"):
            keeper.run()
        with pytest.raises(VersionMismatchError, match="the request to generation 2"):
            keeper.poll()
    finally:
        keeper.generation -= 1
    count(keeper)


@pytest.mark.parametrize("rows_read", [False, True])
def test_a_connection_that_breaks_in_an_epoch_changes_nothing(keeper: Keeper, rows_read: bool) -> None:
    before, new = count(keeper), f"new {rows_read}"
    for _ in range(3):
        with keeper.connect() as talk:
            assert talk.begin(keeper.instructions(keeper.epoch + 1)) == p.READY
            talk.rows([("k", "count", 0, 0)], [(new, "count", 0, 0)])
            if rows_read:
                assert talk.connection.expect(p.OUTPUT)
    assert keeper.poll().epoch == keeper.epoch
    assert count(keeper) == before + 1
    assert keeper.counts(new) == [(new, "1")]


def test_a_connection_that_says_nothing_or_nonsense_harms_nobody(keeper: Keeper) -> None:
    before = count(keeper)
    with keeper.connect() as silent, keeper.connect() as early, keeper.connect() as wrong:
        early.end()
        with pytest.raises(KeeperError):
            early.connection.receive()
        wrong.connection.send(p.BEGIN, b"\xc1")
        with pytest.raises(KeeperError, match=r"the keeper of operator .* failed: DecodeError"):
            wrong.connection.expect(p.READY)
        assert count(keeper) == before + 1
        assert silent is not None


def test_an_error_that_nobody_expected_names_the_operator_and_the_rows(keeper: Keeper) -> None:
    before = count(keeper)
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(keeper.epoch + 1))
        talk.rows([("k", "count", 0, 0), ("k", "count", 0, 0)])
        talk.connection.send(p.ROWS, b"no batch")
        where = f"the keeper of operator 'op', partition 0, in epoch {keeper.epoch + 1}, at its rows 0 to 1, failed: "
        with pytest.raises(KeeperError, match=where):
            talk.finish()
    assert count(keeper) == before + 1


def test_the_newer_attempt_wins(keeper: Keeper) -> None:
    before = count(keeper)
    with keeper.connect() as older:
        older.begin(keeper.instructions(keeper.epoch + 1))
        older.rows([("k", "count", 0, 0)])
        older.connection.expect(p.OUTPUT)
        assert count(keeper) == before + 1
        with pytest.raises(KeeperError):
            older.finish()
    assert count(keeper) == before + 2


def test_a_poll_waits_for_the_epoch_that_runs(keeper: Keeper) -> None:
    with keeper.connect() as running, keeper.connect() as polling:
        running.begin(keeper.instructions(keeper.epoch + 1))
        running.rows([("k", "count", 0, 0)])
        running.connection.expect(p.OUTPUT)
        polling.connection.send(p.POLL, keeper.instructions(keeper.epoch + 1))
        running.end()
        keeper.epoch = running.finish()[1].epoch
        assert polling.finish()[1].epoch == keeper.epoch


def test_a_poll_tells_what_the_last_epoch_brought_as_its_own_ack_may_be_lost(keeper: Keeper) -> None:
    ack = keeper.run([("k", "count", 0, 0), ("l", "count", 0, 0)])[1]
    asked = keeper.poll()
    assert (asked.rows_in, asked.rows_out) == (ack.rows_in, ack.rows_out) == (2, 2)
    assert (asked.newest_us, asked.late_rows, asked.source_rows) == (ack.newest_us, ack.late_rows, ack.source_rows)


def test_a_ping_is_answered_in_the_middle_of_an_epoch(keeper: Keeper) -> None:
    with keeper.connect() as running, keeper.connect() as pinging:
        running.begin(keeper.instructions(keeper.epoch + 1))
        running.rows([("k", "count", 0, 0)])
        running.connection.expect(p.OUTPUT)
        pinging.connection.send(p.PING, keeper.instructions(keeper.epoch))
        assert pinging.finish()[1].pid == keeper.pid
        running.end()
        keeper.epoch = running.finish()[1].epoch


def test_an_error_of_the_users_function_says_where(keeper: Keeper) -> None:
    before = count(keeper)
    with pytest.raises(UserCodeError) as caught:
        keeper.run([("k", "count", 0, 0), ("other", "fail", 42, 0)])
    error = caught.value
    assert (error.operator, error.key) == ("op", "'other'")
    assert error.event == "Record(k='other', op='fail', a=42, b=0)"
    assert "LookupError: no 42 here" in error.message
    assert 'in fail\n    raise LookupError(f"no {a} here")' in error.traceback
    assert "strandline" not in error.traceback.partition("Traceback")[2].partition("in on_event")[0]
    assert error.hint
    assert count(keeper) == before + 1


def test_an_error_is_heard_by_who_is_still_sending(keeper: Keeper) -> None:
    with pytest.raises(UserCodeError, match="no 42 here"):
        keeper.run([("k", "fail", 42, 0)], *[[("k", "count", 0, 0)] * 1000] * 20)


def test_a_function_that_leaves_the_process_does_not_take_the_keeper_along(keeper: Keeper) -> None:
    before = count(keeper)
    with pytest.raises(UserCodeError, match="SystemExit"):
        keeper.run([("k", "leave", 3, 0)])
    assert count(keeper) == before + 1


def test_a_large_output_is_kept_in_a_file_without_a_name(keeper: Keeper) -> None:
    large = 10 << 20
    count(keeper)
    frames, ack = keeper.run(*[[("large", "big", 0, large)] for _ in range(8)])
    assert [link for link in keeper.files() if link.startswith(str(keeper.directory)) and link.endswith("(deleted)")]
    assert keeper.run(epoch=keeper.epoch) == (frames, ack)
    count(keeper)


def test_local_paths_are_closed_to_others(keeper: Keeper) -> None:
    for path in (keeper.places.local_dir, keeper.places.root, keeper.places.logs, keeper.directory):
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_epoch_that_is_applied_but_not_acked_is_never_replayed_with_another_ack(nursery: Nursery) -> None:
    keeper = nursery.start(env={"STRANDLINE_FAILPOINTS": "keeper.applied=error@2"})
    keeper.counts("k")
    with pytest.raises(Exception, match=r"keeper\.applied"):
        keeper.counts("k")
    try:
        frames, ack = keeper.run(epoch=2)
    except VersionMismatchError:
        return
    assert (answers(frames), ack.epoch) == ([("k", "2")], 2)


def test_output_that_does_not_fit_is_told_again_to_who_asks_again(nursery: Nursery) -> None:
    keeper = nursery.start(output_schema="k string")
    for _ in range(2):
        with pytest.raises(OutputError, match=r"operator 'op': the output row .* has 2 values, expected 1: k"):
            keeper.counts("k")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_that_does_not_open_is_told_again_to_who_asks_again(nursery: Nursery, backend: str) -> None:
    keeper = nursery.start(backend=backend, env={"TEST_NOT_OPENED": "1"})
    for _ in range(3):
        with pytest.raises(UserCodeError, match="operator 'op': open of Counter raised: ValueError: not today"):
            keeper.counts("k")
    keeper.stop(forget=True)


def test_a_trigger_that_comes_twice_takes_one_snapshot(nursery: Nursery) -> None:
    keeper = nursery.start(env={"STRANDLINE_FAILPOINTS": "keeper.upload.before=sleep:0.5"})
    keeper.run([(str(n), "fill", 500, 0) for n in range(50)])
    for _ in range(2):
        keeper.poll(trigger=1, pending=1)
    report = keeper.report(1)
    assert report.info is not None, report.failure
    assert nursery.objects() == {f"job/{ref.path}" for ref in report.info.files if ref.path}


def test_a_keeper_and_a_worker_speak_to_their_own_user_only(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(keeper.socket.stat().st_mode) == 0o600
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        with pytest.raises(KeeperError, match="is at the other end, expected our own user 54321"):
            _connect(tmp_path / "s", 5.0)
