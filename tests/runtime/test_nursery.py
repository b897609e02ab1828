"""Keepers that are forked are as if each had been started as a program, and need their nursery no more."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from strandline.core.ids import Epoch, Generation
from strandline.keeper import protocol as p
from strandline.keeper import spawning as birth
from strandline.keeper.nursery import Children
from strandline.keeper.protocol import Ack, Connection, Instructions
from strandline.keeper.spawning import Nursery
from strandline.keeper.watchdog import process_start
from tests.runtime.clients import eventually


class Births:
    """A nursery, and what was born there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nursery = Nursery()
        self.pids: list[int] = []

    def one(self, at: int = 0, watched: int | None = None, **environment: str) -> int:
        pid = self.nursery.start(self.arguments(at, watched), self.log(at), {**os.environ, **environment})
        assert pid is not None
        self.pids.append(pid)
        return pid

    def arguments(self, at: int, watched: int | None = None) -> list[str]:
        watched = watched or os.getpid()
        return [str(self.socket(at)), str(self.root / f"op-{at}"), str(watched), process_start(watched), "7"]

    def socket(self, at: int) -> Path:
        return self.root / f"{at}.sock"

    def log(self, at: int) -> Path:
        return self.root / f"{at}.log"

    def ping(self, at: int) -> Ack:
        eventually(self.socket(at).exists, "the keeper listens")
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.socket(at)))
        with closing(Connection(sock)) as connection:
            connection.send(p.PING, Instructions(generation=Generation(7), epoch=Epoch(0)))
            _, payload = connection.expect(p.ACK)
            return msgspec.msgpack.decode(payload, type=Ack)


@pytest.fixture
def births(local_dir: Path) -> Iterator[Births]:
    # That of sessions in this process.
    birth.NURSERY.close()
    eventually(lambda: not nurseries(os.getpid()), "no other nursery is there")
    made = Births(local_dir)
    yield made
    made.nursery.close()
    for pid in made.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def nurseries(driver: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue
        if words[1:3] == ["-m", "strandline.keeper.nursery"] and words[4] == str(driver):
            found.append(int(process.name))
    return found


def environment_of(pid: int) -> str:
    """What a process was started with: forks show their nursery's."""
    return Path(f"/proc/{pid}/environ").read_text()


def test_a_keeper_looks_and_answers_like_one_that_was_started(births: Births) -> None:
    pid = births.one()
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    assert command == [sys.executable, "-m", "strandline.keeper.process", *births.arguments(0)]
    assert births.ping(0).pid == pid
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(stat[1]), int(stat[3])
    # Its nursery's child, which learns how it ends, and out of reach of a terminal's signals.
    assert parent in nurseries(os.getpid())
    assert session == pid
    assert str(Path(f"/proc/{pid}/fd/0").readlink()) == "/dev/null"
    assert {Path(f"/proc/{pid}/fd/{stream}").readlink() for stream in (1, 2)} == {births.log(0)}
    assert Path(f"/proc/{pid}/cwd").readlink() == Path.cwd()


def test_all_come_of_one_nursery_which_they_outlive(births: Births) -> None:
    pids = [births.one(at) for at in range(3)]
    (nursery,) = nurseries(os.getpid())
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: not process_start(nursery), "the nursery is gone")
    assert [births.ping(at).pid for at in range(3)] == pids
    # The next one begins another.
    births.one(3)
    assert births.ping(3).pid == births.pids[3]
    assert nurseries(os.getpid()) != [nursery]


def test_it_is_there_for_the_keepers_of_a_restart(births: Births) -> None:
    """Which comes when all keepers have been gone for a while."""
    births.one(0)
    births.ping(0)
    before = nurseries(os.getpid())
    os.kill(births.pids[0], signal.SIGKILL)
    # Nobody has asked: it has looked by itself.
    eventually(lambda: not Path(f"/proc/{births.pids[0]}").exists(), "the nursery knows that it has ended")
    births.one(1)
    assert births.ping(1).pid == births.pids[1]
    assert nurseries(os.getpid()) == before


def test_how_a_keeper_ended_is_known(births: Births) -> None:
    first, second = births.one(0), births.one(1)
    births.ping(0), births.ping(1)
    assert births.nursery.exit_code(first) is None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: births.nursery.exit_code(first) == -signal.SIGKILL, "the signal is known")
    assert births.nursery.exit_code(second) is None
    os.kill(second, signal.SIGSEGV)
    eventually(lambda: births.nursery.exit_code(second) == -signal.SIGSEGV, "so is the other")
    # What crashes in native code leaves where Python was.
    assert "Segmentation fault" in births.log(1).read_text()
    assert births.nursery.exit_code(os.getpid()) is None
    births.nursery.close()
    assert births.nursery.exit_code(first) is None


def test_the_exit_code_of_a_process_whose_first_thread_ends_before_the_others() -> None:
    """The kernel shows such a process as a zombie, but `waitpid` does not return its exit code yet."""
    children, thread_exit = Children(), {"x86_64": 60, "aarch64": 93}[platform.machine()]
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=lambda: (time.sleep(0.2), os._exit(3))).start()
        ctypes.CDLL(None).syscall(thread_exit, 0)
    children.alive.add(pid)
    eventually(lambda: not process_start(pid), "the first thread has ended")
    assert children.exit_code(pid) == 3
    assert children.exit_code(os.getpid()) == " "


def test_no_file_of_the_nursery_is_a_keepers(births: Births) -> None:
    births.one(0)
    births.ping(0)
    births.one(1)
    births.ping(1)

    def opened(pid: int) -> list[str]:
        return sorted(str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir())

    theirs = [[name for name in opened(pid) if "pidfd" in name or name.startswith("pipe:")] for pid in births.pids]
    # A keeper holds its executor, and nobody's pipes.
    assert [len(names) for names in theirs] == [1, 1]
    births.nursery.close()
    eventually(lambda: not nurseries(os.getpid()), "the nursery ends when it is let go")
    assert births.ping(0).pid == births.pids[0]


def test_an_environment_that_a_fork_can_be_given_needs_no_other_nursery(
    births: Births,
) -> None:
    births.one(0)
    before = nurseries(os.getpid())
    births.one(1, STRANDLINE_FAILPOINTS="no failpoint")
    assert nurseries(os.getpid()) == before
    eventually(lambda: "no failpoint" in births.log(1).read_text(), "the fork looks into its own environment")
    births.one(2, PYTHONHASHSEED="5")
    eventually(lambda: nurseries(os.getpid()) not in ([], before), "another nursery")
    (other,) = nurseries(os.getpid())
    assert "PYTHONHASHSEED=5" in environment_of(other).split("\0")


def test_it_ends_with_its_driver_however_that_ends(births: Births) -> None:
    program = """
        import os, sys, time
        from pathlib import Path
        from strandline.keeper.spawning import NURSERY
        pid = NURSERY.start(sys.argv[2:], Path(sys.argv[1]), dict(os.environ))
        if os.fork():
            print(pid, flush=True)
        # The fork holds the driver's end of what they share.
        time.sleep(600)
    """
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(births.log(0)), *births.arguments(0)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with driver:
        births.pids.append(int(driver.stdout.readline()))
        assert len(nurseries(driver.pid)) == 1
        driver.kill()
        driver.wait()
        eventually(lambda: not nurseries(driver.pid), "the nursery ends")
        assert births.ping(0).pid == births.pids[0]
        os.killpg(driver.pid, signal.SIGKILL)


def test_a_driver_that_ends_leaves_no_socket_open(births: Births) -> None:
    program = """
        import os, sys
        from pathlib import Path
        from strandline.keeper.spawning import NURSERY
        print(NURSERY.start(sys.argv[2:], Path(sys.argv[1]), dict(os.environ)))
    """
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", textwrap.dedent(program), str(births.log(0)),
         *births.arguments(0)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    births.pids.append(int(done.stdout))
    assert done.stderr == ""


def test_where_there_can_be_none_keepers_are_programs(births: Births, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(birth.sys, "executable", "/bin/false")
    assert births.nursery.start(births.arguments(0), births.log(0), os.environ) is None


def test_what_is_too_long_for_a_fork_costs_no_nursery(births: Births) -> None:
    births.one(0)
    before = nurseries(os.getpid())
    arguments = ["x" * (1 << 15), *births.arguments(1)[1:]]
    assert births.nursery.start(arguments, births.log(1), os.environ) is None
    large = {**os.environ, "LARGE": "x" * 100_000, "LARGER": "x" * 120_000, "LARGEST": "x" * 120_000}
    assert births.nursery.start(births.arguments(1), births.log(1), large) is None
    births.one(2)
    assert births.ping(2).pid == births.pids[-1]
    assert nurseries(os.getpid()) == before


def test_names_need_not_be_text(births: Births) -> None:
    births.root = births.root / os.fsdecode(b"caf\xe9")
    births.root.mkdir()
    births.one(0, LATIN=os.fsdecode(b"\xe9"))
    assert births.ping(0).pid == births.pids[0]
    assert b"caf\xe9" in Path(f"/proc/{births.pids[0]}/cmdline").read_bytes()


def test_a_fork_finds_the_modules_of_its_own_directory(
    births: Births, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program does: what it is armed with says where from a module came."""
    births.one(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        pid = births.one(1 if name == "a" else 2)
        assert Path(f"/proc/{pid}/cwd").readlink() == tmp_path / name
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BECOMING), str(tmp_path / "b")],
        capture_output=True, text=True, check=True, cwd=tmp_path / "a",
    )  # fmt: skip
    assert child.stdout.split() == [str(tmp_path / "b"), "0o27"]


BECOMING = """
    import os, sys
    from pathlib import Path
    from strandline.keeper import nursery
    from strandline.keeper.spawning import KeeperStart

    def serve(arguments):
        os.write(out, f"{sys.path[0]} {oct(os.umask(0))}".encode())

    out = os.dup(1)
    nursery.process.serve = serve
    nursery._set_arguments = lambda arguments: None
    told, tells = os.pipe()
    nursery._run_keeper(KeeperStart([], {}, os.fsencode(sys.argv[1]), os.fsencode(sys.argv[1]) + b"/log", 0o027), tells)
"""


def test_a_keeper_that_fails_at_once_is_over(births: Births) -> None:
    """Though nobody has looked at what is left of it: who would stand in for its parent may never."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        eventually(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z", "it has ended")
        assert process_start(child.pid) == ""


def test_randomness_is_each_forks_own(births: Births) -> None:
    """What a fork inherits and must not use: the state of generators that its parent has made."""
    births.one(0)
    (nursery,) = nurseries(os.getpid())
    loaded = Path(f"/proc/{nursery}/maps").read_text()
    # Its generator need not be there; older versions of numpy bring it along, and then forks have one of their own.
    assert "numpy" in loaded
    program = """
        import os
        import numpy.random
        from strandline.keeper.lean import renew_randomness
        numpy.random.seed(1)
        for _ in range(2):
            if os.fork() == 0:
                renew_randomness()
                print(numpy.random.random(), flush=True)
                os._exit(0)
            os.wait()
        print(numpy.random.random())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert len(set(done.stdout.split())) == 3


@pytest.fixture
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for an executor's process, whose workers come and go."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def beside(births: Births, executor: subprocess.Popen[bytes], at: int, port: int = 0) -> int:
    """Start a keeper as a worker of an executor does, in a process that ends."""
    code = """if 1:
        import os, sys
        from pathlib import Path
        from strandline.keeper.spawning import Beat, start_beside
        path, watched, log, port, name, *arguments = sys.argv[1:]
        beat = Beat("127.0.0.1", int(port), "token", name)
        print(start_beside(Path(path), int(watched), arguments, Path(log), os.environ, beat))
    """
    arguments = births.arguments(at, executor.pid)
    paths = [str(births.root / "n.sock"), str(executor.pid), str(births.log(at)), str(port), f"op/{at}"]
    command = [sys.executable, "-c", code, *paths, *arguments]
    births.pids.append(int(subprocess.run(command, check=True, capture_output=True).stdout))
    return births.pids[-1]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_workers_of_an_executor_share_a_nursery_that_ends_with_it(
    births: Births, executor: subprocess.Popen[bytes]
) -> None:
    first, second = (beside(births, executor, at) for at in (0, 1))
    (nursery,) = nurseries(executor.pid)
    assert parent_of(first) == parent_of(second) == nursery
    assert [births.ping(at).pid for at in (0, 1)] == [first, second]
    assert (births.root / "n.sock").stat().st_mode & 0o777 == 0o600
    executor.kill()
    eventually(lambda: not nurseries(executor.pid), "the nursery ends with its executor")
    eventually(lambda: not process_start(first) and not process_start(second), "and so do the keepers")
    assert not list(births.root.glob("n.*"))


def test_another_nursery_takes_the_place_of_one_that_was_killed(
    births: Births, executor: subprocess.Popen[bytes]
) -> None:
    first = beside(births, executor, 0)
    (nursery,) = nurseries(executor.pid)
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: not nurseries(executor.pid), "it is gone")
    second = beside(births, executor, 1)
    (other,) = nurseries(executor.pid)
    assert parent_of(second) == other != nursery
    assert births.ping(0).pid == first


def test_where_a_nursery_cannot_listen_an_executors_keepers_are_programs(
    births: Births, executor: subprocess.Popen[bytes]
) -> None:
    (births.root / "n.sock").mkdir()
    beside(births, executor, 0)
    assert births.ping(0).pid == births.pids[0]
    assert not nurseries(executor.pid)


def test_a_nursery_of_an_executor_sends_heartbeats_while_it_has_keepers(
    births: Births, executor: subprocess.Popen[bytes]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as driver:
        driver.bind(("127.0.0.1", 0))
        driver.settimeout(10)
        for at in (0, 1):
            beside(births, executor, at, driver.getsockname()[1])
        # The name of the first keeper stays.
        assert {driver.recv(100) for _ in range(5)} == {b"token op/0"}
        for pid in births.pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(process_start, births.pids)), "the keepers are gone")
        driver.settimeout(1.5)
        with pytest.raises(TimeoutError):
            list(iter(lambda: driver.recv(100), b""))
