"""Keepers as their driver sees them on its machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.core.errors import KeeperError
from strandline.core.ids import Epoch, Generation
from strandline.keeper import protocol as p
from strandline.keeper import spawning as birth
from strandline.keeper.paths import Places
from strandline.keeper.protocol import Instructions
from strandline.keeper.watchdog import process_start
from strandline.spark.keepers import fleet, heartbeats, losses
from strandline.spark.keepers.fleet import Fleet, _command_of, _local_keepers
from strandline.spark.keepers.heartbeats import Heartbeats
from strandline.spark.keepers.losses import LossWatch


def test_a_runs_keepers_are_known_by_what_they_were_started_with(local_dir: Path) -> None:
    """Also one that does not listen yet: stop() must not leave it behind."""
    me = os.getpid()
    keeper = [sys.executable, "-m", "strandline.keeper.process", str(local_dir / "a.sock"), str(local_dir / "a")]
    with subprocess.Popen([*keeper, str(me), process_start(me), "7"], stderr=subprocess.DEVNULL) as process:
        try:
            assert _local_keepers(local_dir, Generation(7)) == [process.pid]
            assert _local_keepers(local_dir, Generation(7), [os.getpid(), process.pid]) == [process.pid]
            assert _local_keepers(local_dir, Generation(7), [os.getpid()]) == []
            assert _local_keepers(local_dir, Generation(8)) == []
            assert _local_keepers(local_dir.parent, Generation(7)) == []
        finally:
            process.kill()
    assert _local_keepers(local_dir, Generation(7)) == []


def test_a_foreign_process_that_only_looks_like_a_keeper_is_none(local_dir: Path, tmp_path: Path) -> None:
    """An error here would end the job where it is to be restarted."""
    (tmp_path / "strandline.keeper.process").write_text("read wait")
    command = ["sh", "-m", "strandline.keeper.process"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert _command_of(Path(f"/proc/{process.pid}")) == [*command, ""]
            assert _local_keepers(local_dir, Generation(7)) == []
        finally:
            process.kill()


def test_a_process_is_known_from_its_first_moment() -> None:
    """While a process takes up its new program, the kernel has no arguments of it: one in a hundred was seen so."""
    for _ in range(300):
        with subprocess.Popen(["sleep", "60"]) as process:
            try:
                assert _command_of(Path(f"/proc/{process.pid}")) == ["sleep", "60", ""]
            finally:
                process.kill()


def test_keepers_are_killed_though_one_is_being_started_for_long(
    local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another job of this driver, say: its nursery does not answer."""
    monkeypatch.setattr(fleet, "_END_S", 0.2)
    me = os.getpid()
    places = Places(local_dir, "file:///store", "job")
    one = Fleet.__new__(Fleet)
    one._places, one._generation = places, Generation(7)
    keeper = [sys.executable, "-m", "strandline.keeper.process", str(places.root / "a.sock"), str(local_dir / "op-0")]
    with (
        subprocess.Popen([*keeper, str(me), process_start(me), "7"], stderr=subprocess.DEVNULL) as process,
        birth.NURSERY._lock,
    ):
        one.kill()
        assert process.wait(10) == -signal.SIGKILL


def test_where_there_are_no_keepers_nobody_renews_their_leases() -> None:
    """A job without operators: there is no lease that says how often, and a thread would do nothing else."""
    none = Fleet.__new__(Fleet)
    none.slots, none._renew_s, none._over, none._threads = set(), 0.0, threading.Event(), []
    none._losses = None
    none.keep_alive()
    try:
        assert not [thread for thread in threading.enumerate() if thread.name == "strandline-lease"]
    finally:
        none._over.set()


class Busy:
    """Stands for Spark where a task waits for an executor that others keep busy: its job ends when it is cancelled."""

    def __init__(self) -> None:
        self.groups: list[str | None] = [None]
        self.cancelled = threading.Event()
        self.job_group = "job"
        self.partitions = self
        self.places = ["executor 0", "executor 1"]
        self.sparkContext = self

    def getLocalProperty(self, name: str) -> str | None:
        return self.groups[-1] if name == "spark.jobGroup.id" else None

    def setLocalProperty(self, name: str, value: str | None) -> None:
        if name == "spark.jobGroup.id":
            self.groups.append(value)

    def setJobGroup(self, group: str, what: str, interruptOnCancel: bool) -> None:
        self.groups.append(group)

    def cancelJobGroup(self, group: str) -> None:
        if group == self.groups[-1]:
            self.cancelled.set()

    @property
    def shared(self) -> list[tuple[Busy, list[str]]]:
        return [(self, [])]

    def mapInArrow(self, *_: object) -> Busy:
        return self

    def collect(self) -> None:
        assert self.cancelled.wait(10), "nobody has broken it off"
        raise RuntimeError("cancelled")


@pytest.mark.parametrize("kind", [p.PING, p.STOP])
def test_what_is_asked_through_spark_while_an_executor_is_busy_is_broken_off(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of others would run out, and a stop would wait as long; epochs' own jobs are not broken off with a ping."""
    monkeypatch.setattr(fleet, "_STOP_S", 0.1)
    monkeypatch.setattr(fleet, "schema_of", str)
    one, spark = Fleet.__new__(Fleet), Busy()
    one._sc, one._exchanges, one._refs, one._renew_s = spark, spark, {}, 0.1  # type: ignore[assignment]
    one._losses = None
    with pytest.raises(RuntimeError, match="cancelled"):
        one._ask_through_spark(Instructions(generation=Generation(1), epoch=Epoch(0)), kind, start=False)
    assert spark.groups == [None, "job-lease" if kind == p.PING else "job", None]


def watching(monkeypatch: pytest.MonkeyPatch, spark: Any, has_lost_one: Callable[[], bool], stalled: bool) -> LossWatch:
    monkeypatch.setattr(losses, "_LOOK_S", 0.01)
    monkeypatch.setattr(losses, "_STALL_CHECK_S", 0.0)
    monkeypatch.setattr(losses, "ExecutorWatch", lambda context: SimpleNamespace(has_lost_one=has_lost_one))
    monkeypatch.setattr(losses, "JobWatch", lambda spark: SimpleNamespace(are_stalled=lambda: stalled))
    return LossWatch(spark, spark, None, lambda: None)


def test_what_is_asked_through_spark_is_broken_off_where_an_executor_has_gone_with_keepers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark lets its tasks wait for the executor, as if it were busy: for an hour."""
    monkeypatch.setattr(fleet, "schema_of", str)
    one, spark = Fleet.__new__(Fleet), Busy()

    def has_lost_one() -> bool:
        if spark.groups != [None]:
            spark.places = ["", "executor 1"]
        return bool(spark.groups != [None])

    one._sc, one._exchanges, one._refs, one._renew_s = spark, spark, {"op": None}, 60.0  # type: ignore[assignment,dict-item]
    one._only_executor, one._over, one._spark = None, threading.Event(), spark  # type: ignore[assignment]
    one._losses = watching(monkeypatch, spark, has_lost_one, stalled=False)
    watch = threading.Thread(target=one._losses.watch, args=(one._over,))
    watch.start()
    try:
        with pytest.raises(KeeperError, match="an executor was lost"):
            one.poll(Instructions(generation=Generation(1), epoch=Epoch(0)))
    finally:
        one._over.set()
        watch.join(10)
    assert one.has_lost_host
    with pytest.raises(KeeperError):
        one.check_executors()


@pytest.mark.parametrize("gone", [True, False])
def test_a_job_without_operators_is_broken_off_where_tasks_wait_for_an_executor_that_has_gone(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """They wait for one that is there, too, as long as others are busy: nothing is wrong then."""
    one, spark = Fleet.__new__(Fleet), SimpleNamespace(places=[], job_group="job", cancelled=threading.Event())
    spark.cancelJobGroup = lambda group: spark.cancelled.set()
    spark.sparkContext = spark
    one.slots, one._threads, one._over = set(), [], threading.Event()
    one._losses = watching(monkeypatch, spark, lambda: gone, stalled=True)
    one.keep_alive()
    try:
        assert spark.cancelled.wait(10 if gone else 0.5) == gone
        with pytest.raises(KeeperError, match="tasks wait for it") if gone else contextlib.nullcontext():
            one.check_executors()
    finally:
        one._over.set()
        one._threads[0].join(10)


class Silent:
    """Stands for a cluster of two hosts, each with a partition, and for Spark, which is told of executors to kill."""

    def __init__(self) -> None:
        self.places = ["executor_a_0", "executor_b_1"]
        self.killed: list[str] = []
        self.cancelled = threading.Event()
        self.job_group = "job"
        self.sparkContext = self._jsc = self

    def of(self, uid: str) -> Silent:
        assert uid == "my/op"
        return self

    def sc(self) -> Silent:
        return self

    def killAndReplaceExecutor(self, executor: str) -> None:
        self.killed.append(executor)

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.set()


def test_a_host_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spark, silent = Silent(), set[str]()
    monkeypatch.setattr(heartbeats, "core_setting", lambda spark, name: "127.0.0.1")
    monkeypatch.setattr(losses, "ExecutorWatch", lambda context: SimpleNamespace(has_lost_one=lambda: False))
    watch, over = LossWatch(spark, spark, silent, lambda: None), threading.Event()  # type: ignore[arg-type]
    hosts = [f"{watch.beat.token} my/op/{partition}".encode() for partition in (0, 1)]
    thread = threading.Thread(target=watch.watch, args=(over,))
    thread.start()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.connect((watch.beat.host, watch.beat.port))
            for turn in range(100):
                # The second one stops, and somebody else sends in its place.
                sender.send(hosts[0])
                sender.send(hosts[1] if turn < 5 else b"another my/op/1")
                if spark.cancelled.wait(0.05):
                    break
    finally:
        over.set()
        thread.join(10)
        watch.close()
    assert turn > 5
    assert (silent, spark.killed) == ({"1"}, ["1"])
    assert watch.loss == "no heartbeats come from b: the host is lost, hangs or is cut off"
    assert watch.has_lost_keepers


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_driver_that_stood_still_or_is_cut_off_gives_no_host_up(
    monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeats, "core_setting", lambda spark, name: "127.0.0.1")
    monkeypatch.setattr(heartbeats, "time", SimpleNamespace(monotonic=lambda: now[0]))
    spark: Any = None
    with contextlib.closing(Heartbeats(spark)) as receiver, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((receiver.beat.host, receiver.beat.port))
        sender.send(f"{receiver.beat.token} op/0".encode())
        found = []
        # Looks, a pause of this process, and looks again.
        for at in (0.1, 0.2, 9.0, 9.4, 9.8, 10.2):
            now[0] = 100.0 + at
            if is_heard or at == 0.1:
                sender.send(f"{receiver.beat.token} op/1".encode())
            found.append(receiver.silent())
        assert found == [[], [], [], [], [], ["op/0"] if is_heard else []]
