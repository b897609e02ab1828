"""When a keeper ends, what it leaves behind, and who takes over."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pytest

from strandline.core.errors import KeeperError, UnavailableError, VersionMismatchError
from strandline.core.ids import Generation
from strandline.keeper import output as kept
from strandline.keeper import protocol as p
from strandline.keeper.forks import CloseOnFork
from strandline.keeper.process import Keeper as KeeperProcess
from strandline.keeper.protocol import Connection
from strandline.keeper.watchdog import process_start
from strandline.runtime.program import Restore
from tests.runtime.clients import Keeper, Nursery, eventually


def left(keeper: Keeper) -> set[str]:
    """Return what is left of a keeper on this machine."""
    return {str(path.relative_to(keeper.places.root)).rpartition("/")[2] for path in keeper.places.root.rglob("*")}


def children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().strip()


def test_a_keeper_ends_with_the_process_it_watches(nursery: Nursery) -> None:
    with subprocess.Popen(["sleep", "600"]) as executor:
        keeper = nursery.start(watched=executor.pid)
        keeper.counts("a")
        assert children(keeper.pid) == ""
        executor.kill()
        assert keeper.ended() == 0
    assert left(keeper) == {keeper.directory.name, "keeper.lock"}


def test_a_keeper_ends_in_the_middle_of_an_epoch_with_the_process_it_watches(nursery: Nursery) -> None:
    with subprocess.Popen(["sleep", "600"]) as executor:
        keeper = nursery.start(watched=executor.pid)
        with keeper.connect() as talk:
            talk.begin(keeper.instructions(1))
            talk.rows([("a", "wait", 600_000, 0)])
            executor.kill()
            assert keeper.ended() == 0


def test_a_keeper_whose_executor_is_gone_before_it_starts_ends(nursery: Nursery) -> None:
    with subprocess.Popen(["sleep", "0"]) as executor:
        executor.wait()
    keeper = nursery.start(watched=executor.pid)
    assert keeper.ended() == 0


def test_another_process_with_the_pid_is_not_taken_for_the_executor(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.runtime.clients.process_start", lambda pid: str(int(process_start(pid)) + 1))
    assert nursery.start().ended() == 0


def test_a_keeper_that_nobody_asks_for_ends(nursery: Nursery) -> None:
    keeper = nursery.start(lease_ms=300)
    keeper.counts("a")
    assert keeper.ended() == 0
    assert "within its lease" in keeper.log.read_text()


@pytest.mark.parametrize("step", [0, 1])
def test_a_keeper_that_fails_once_it_commits_ends_rather_than_apply_the_epoch_twice(
    nursery: Nursery, step: int
) -> None:
    keeper = nursery.start()
    keeper.counts("a")
    with pytest.raises(KeeperError, match="closed in the middle"):
        keeper.run([("a", "break_task", step, 0)])
    assert keeper.ended() == 1
    # Where it broke, and not what it said: that might quote what the state holds.
    said = keeper.log.read_text()
    assert "in broken\n" in said
    assert "broken by a test" not in said


def test_an_epoch_may_take_longer_than_the_lease(nursery: Nursery) -> None:
    keeper = nursery.start(lease_ms=300)
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(1))
        talk.rows([("a", "wait", 1500, 0)])
        talk.end()
        assert talk.finish()[1].rows_out == 1


def test_stop_ends_a_keeper_at_once_and_lets_the_function_close(nursery: Nursery, tmp_path: Path) -> None:
    keeper = nursery.start(env={"TEST_CLOSED": str(tmp_path / "closed")})
    keeper.counts("a")
    keeper.checkpoint(1)
    keeper.stop()
    assert (tmp_path / "closed").exists()
    assert {"chk-1", "keeper.lock"} <= left(keeper)
    assert not [name for name in left(keeper) if name.startswith("db-") or name.endswith(".sock")]


def test_stop_removes_everything_when_it_is_to_forget(nursery: Nursery) -> None:
    keeper = nursery.start(env={"STRANDLINE_FAILPOINTS": "keeper.persist.before=sleep:0.3"})
    keeper.run([(str(n), "fill", 500, 0) for n in range(100)], trigger=1, pending=1)
    keeper.stop(forget=True)
    assert left(keeper) == set()


def test_stop_does_not_wait_for_an_epoch(nursery: Nursery) -> None:
    keeper = nursery.start()
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(1))
        talk.rows([("a", "count", 0, 0)])
        talk.connection.expect(p.OUTPUT)
        keeper.stop(forget=True)
    assert left(keeper) == set()


def test_stop_does_not_look_at_state_that_an_epoch_is_changing(nursery: Nursery) -> None:
    """It is answered in a thread of its own: were that to fail, the driver would wait for ever."""
    keeper = nursery.start()
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(1))
        talk.rows([("a", "break_acks", 600_000, 0)])
        keeper.stop()


def test_a_keeper_that_never_got_a_program_can_be_stopped(nursery: Nursery) -> None:
    nursery.start().stop(forget=True)


def test_after_sigkill_the_next_keeper_clears_up(nursery: Nursery) -> None:
    keeper = nursery.start()
    keeper.counts("a")
    keeper.checkpoint(1)
    assert children(keeper.pid) == ""
    keeper.kill()
    next_one = nursery.start()
    assert next_one.counts("a") == [("a", "1")]
    assert {"chk-1", "chk-2"} & left(next_one) == set()
    next_one.stop()
    assert left(next_one) == {keeper.directory.name, "keeper.lock"}


@pytest.mark.parametrize("generation", [1, 2])
def test_a_keeper_takes_over_from_a_stale_one(nursery: Nursery, generation: int) -> None:
    stale = nursery.start()
    stale.counts("a")
    fresh = nursery.start(generation=generation)
    assert stale.ended() == -9
    assert fresh.counts("a") == [("a", "1")]
    assert (fresh.directory / "keeper.lock").read_text().split()[0] == str(fresh.pid)


def test_a_keeper_of_an_older_run_leaves_a_newer_one_alone(nursery: Nursery) -> None:
    newer = nursery.start(generation=2)
    newer.counts("a")
    newer.checkpoint(1)
    files = left(newer)
    late = nursery.start(generation=1)
    assert late.ended() == 1
    assert "held by a keeper of generation 2" in late.log.read_text()
    assert left(newer) == files
    assert newer.counts("a") == [("a", "2")]


@pytest.mark.parametrize("epoch", [1, 4, 6])
def test_a_keeper_that_would_start_at_another_epoch_refuses_before_it_restores(nursery: Nursery, epoch: int) -> None:
    keeper = nursery.start(restore=Restore(checkpoint=7, epoch=4))
    with pytest.raises(VersionMismatchError, match="would start at epoch 4"):
        keeper.run(epoch=epoch)
    if epoch != 4:
        with pytest.raises(VersionMismatchError, match=f"would start at epoch 4, expected {epoch}"):
            keeper.poll(epoch)
    assert list(keeper.directory.glob("db-*")) == []
    assert "restored checkpoint" not in keeper.log.read_text()


class OutOfFiles:
    """A listening socket that cannot accept at first."""

    def __init__(self, then: socket.socket) -> None:
        self._answers: list[Any] = [OSError(errno.EMFILE, "too many open files"), (then, ""), LookupError("the end")]

    def accept(self) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_keeper_that_is_out_of_files_accepts_again_later(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    keeper = KeeperProcess(tmp_path / "s", tmp_path / "op-0", os.getpid(), process_start(os.getpid()), Generation(1))
    with pytest.raises(LookupError, match="the end"):
        keeper._accept(OutOfFiles(its))  # type: ignore[arg-type]
    connection = Connection(ours)
    connection.send(p.PING)
    connection.expect(p.ACK)
    connection.close()


def test_a_keeper_that_is_out_of_memory_accepts_again_later(nursery: Nursery) -> None:
    """Meanwhile it closes connections: a client that it left waiting would wait as long as the lease."""
    keeper = nursery.start()
    keeper.counts("a")
    size = int(Path(f"/proc/{keeper.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.prlimit(keeper.pid, resource.RLIMIT_AS)
    resource.prlimit(keeper.pid, resource.RLIMIT_AS, (size, before[1]))
    for _ in range(20):
        with contextlib.suppress(KeeperError, ConnectionError), keeper.connect() as talk:
            talk.connection.send(p.PING)
            talk.connection.expect(p.ACK)
    resource.prlimit(keeper.pid, resource.RLIMIT_AS, before)
    assert keeper.counts("a") == [("a", "2")]


def test_what_the_function_forks_does_not_stand_in_for_a_keeper_that_died(nursery: Nursery) -> None:
    """It holds whatever its keeper held open: the lock, and connections that would not break."""
    keeper = nursery.start()
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(1))
        talk.rows([("a", "fork", 60_000, 0), ("a", "wait", 60_000, 0)])
        fork = int(eventually(lambda: children(keeper.pid), "it forks"))
        try:
            keeper.kill()
            with pytest.raises(KeeperError, match=r"closed in the middle|reset by peer"):
                talk.finish()
            assert nursery.start(generation=2).counts("a") == [("a", "1")]
            with socket.socket(socket.AF_UNIX) as again, pytest.raises(ConnectionRefusedError):
                again.connect(str(keeper.socket))
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_connection_that_was_just_accepted_is_not_shared_either(tmp_path: Path) -> None:
    """A fork may come before it is noted."""
    bound = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(bound))
        listener.listen()
        kept = CloseOnFork(bound)
        client.connect(str(bound))
        accepted, _ = listener.accept()
        fork = os.fork()
        if not fork:
            time.sleep(60)
            os._exit(0)
        try:
            accepted.close()
            client.settimeout(30)
            assert client.recv(1) == b""
            listener.close()
            with socket.socket(socket.AF_UNIX) as again, pytest.raises(ConnectionRefusedError):
                again.connect(str(bound))
        finally:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)
    assert kept


def test_what_a_fork_does_with_files_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """A copy of a pipe's end that it cannot close would keep it from ever reading to the end."""
    kept, sockets = CloseOnFork(tmp_path / "s"), socket.socketpair()
    read, write = os.pipe()
    try:
        # As a function does for its own: what is found must not become non-blocking, here either.
        socket.setdefaulttimeout(5)
        fork = os.fork()
        if not fork:
            os.close(write)
            os._exit(len(os.read(read, 10)) if os.get_blocking(sockets[0].fileno()) else 77)
        os.close(write)
        ended = eventually(lambda: os.waitpid(fork, os.WNOHANG)[0] and "it has", "the fork has read to the end")
        assert ended
        assert os.get_blocking(sockets[0].fileno())
    finally:
        socket.setdefaulttimeout(None)
        os.close(read)
        for sock in sockets:
            sock.close()
    assert kept


def test_a_keeper_goes_on_when_its_function_has_forked(nursery: Nursery) -> None:
    keeper = nursery.start()
    keeper.run([("a", "fork", 0, 0)])
    assert keeper.counts("a") == [("a", "2")]
    with pytest.raises(BlockingIOError), (keeper.directory / "keeper.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_keeper_that_is_out_of_threads_accepts_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = KeeperProcess(tmp_path / "s", tmp_path / "op-0", os.getpid(), process_start(os.getpid()), Generation(1))
    tries: list[Any] = [RuntimeError("can't start new thread"), None]

    def start(*_thread: Any) -> None:
        if error := tries.pop(0):
            raise error

    first, second = socket.socketpair(), socket.socketpair()
    accepted: list[Any] = [(first[1], ""), (second[1], "")]
    listener: Any = SimpleNamespace(accept=lambda: accepted.pop(0))
    monkeypatch.setattr("_thread.start_new_thread", start)
    with pytest.raises(IndexError):
        keeper._accept(listener)
    # As the thread would have done that it takes for started.
    keeper._switch_interval.restore()
    assert not tries
    assert first[0].recv(1) == b""
    for sock in (first[0], *second):
        sock.close()


def test_a_lock_of_a_process_that_is_no_more_is_taken_from_nobody(nursery: Nursery) -> None:
    """The pid in the lock may be another process's by now: it must live."""
    keeper = nursery.start()
    keeper.counts("a")
    keeper.kill()
    (keeper.directory / "keeper.lock").write_text(f"{os.getpid()} 1 1")
    assert nursery.start().counts("a") == [("a", "1")]


def test_a_time_out_that_the_function_sets_for_its_own_sockets_ends_no_epoch(nursery: Nursery) -> None:
    keeper = nursery.start()
    keeper.run([("a", "hurry", 50, 0)])
    with keeper.connect() as talk:
        talk.begin(keeper.instructions(2))
        time.sleep(0.3)
        talk.rows([("a", "count", 0, 0)])
        talk.end()
        assert talk.finish()[1].rows_out == 1


def test_the_lock_of_a_keeper_that_forgets_all_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one that finds none is at work at once, in what would be removed."""
    directory = tmp_path / "op-0"
    keeper = KeeperProcess(tmp_path / "a.sock", directory, 1, "", Generation(1))
    another = KeeperProcess(tmp_path / "b.sock", directory, 1, "", Generation(2))
    keeper._lock.take()
    for name in ("chk-7", "db-1"):
        (directory / name).mkdir()
    real, left = os.unlink, []

    def unlink(path: Any, **given: Any) -> None:
        if Path(path).name == "keeper.lock":
            left.extend(path.name for path in directory.iterdir() if path.is_dir())
            real(path, **given)
            another._lock.take()
            (directory / "db-2").mkdir()
        else:
            real(path, **given)

    monkeypatch.setattr(os, "unlink", unlink)
    keeper._clear(everything=True)
    assert left == []
    assert (directory / "db-2").exists()
    assert another._lock.is_held
    for each in (keeper, another):
        each._lock._file.close()  # type: ignore[union-attr]


def test_a_lock_whose_directory_was_removed_meanwhile_is_none(nursery: Nursery) -> None:
    """A driver that ends removes the directory: a keeper that waited for its lock would hold what nobody sees."""
    before = nursery.start()
    before.counts("a")
    lock = (before.directory / "keeper.lock").open("a+")
    before.kill()
    fcntl.flock(lock, fcntl.LOCK_EX)
    after = nursery.start(generation=2)
    eventually(lambda: opens(after.pid, lock), "it waits for the lock")
    shutil.rmtree(after.directory)
    lock.close()
    assert after.counts("a") == [("a", "1")]
    assert (after.directory / "keeper.lock").read_text().split()[0] == str(after.pid)


def opens(pid: int, file: IO[str]) -> bool:
    """Whether a process has the same file open."""
    with contextlib.suppress(OSError):
        return any(path.samefile(f"/proc/self/fd/{file.fileno()}") for path in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_keeper_that_ends_takes_nothing_from_one_that_came_after_its_directory_was_removed(nursery: Nursery) -> None:
    """As when it stands still for a moment, after it has removed the directory and before it ends."""
    before = nursery.start()
    before.counts("a")
    shutil.rmtree(before.directory)
    after = nursery.start(generation=2)
    after.counts("a")
    files = left(after)
    before.stop()
    assert left(after) == files - {before.socket.name}
    assert after.counts("a") == [("a", "2")]


def test_output_that_cannot_be_kept_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken connection would be all that the driver hears, at every restart."""
    monkeypatch.setattr(kept, "_IN_MEMORY_BYTES", 1)
    output = kept.KeptOutput(tmp_path / "gone")
    with pytest.raises(UnavailableError, match="cannot be kept for a task that runs again"):
        output.add(pa.py_buffer(b"more than one byte"))
    output.close()


def test_output_that_a_full_disk_did_not_take_is_let_go_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is buffered is written when a file is closed: an error there would hide why, or end a keeper that is well."""
    monkeypatch.setattr(kept, "_IN_MEMORY_BYTES", 64 << 10)
    output = kept.KeptOutput(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))

    def fill() -> None:
        while True:
            output.add(pa.py_buffer(b"x" * 3000))

    try:
        with pytest.raises(UnavailableError, match="cannot be kept"):
            fill()
        output.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
