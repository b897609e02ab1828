"""Keepers as their driver sees them on its machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strandline.core.ids import Generation
from strandline.keeper import spawning as birth
from strandline.keeper.paths import Places
from strandline.keeper.watchdog import process_start
from strandline.spark.keepers import fleet
from strandline.spark.keepers.fleet import Fleet, _command_of, _keepers_here


def test_a_runs_keepers_are_known_by_what_they_were_started_with(local_dir: Path) -> None:
    """Also one that does not listen yet: stop() must not leave it behind."""
    me = os.getpid()
    keeper = [sys.executable, "-m", "strandline.keeper.process", str(local_dir / "a.sock"), str(local_dir / "a")]
    with subprocess.Popen([*keeper, str(me), process_start(me), "7"], stderr=subprocess.DEVNULL) as process:
        try:
            assert _keepers_here(local_dir, Generation(7)) == [process.pid]
            assert _keepers_here(local_dir, Generation(8)) == []
            assert _keepers_here(local_dir.parent, Generation(7)) == []
        finally:
            process.kill()
    assert _keepers_here(local_dir, Generation(7)) == []


def test_a_foreign_process_that_only_looks_like_a_keeper_is_none(local_dir: Path, tmp_path: Path) -> None:
    """An error here would end the job where it is to be restarted."""
    (tmp_path / "strandline.keeper.process").write_text("read wait")
    command = ["sh", "-m", "strandline.keeper.process"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert _command_of(Path(f"/proc/{process.pid}")) == [*command, ""]
            assert _keepers_here(local_dir, Generation(7)) == []
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
    none.slots, none._renew_s, none._over, none._renewing = set(), 0.0, threading.Event(), None
    none.keep_alive()
    try:
        assert not [thread for thread in threading.enumerate() if thread.name == "strandline-lease"]
    finally:
        none._over.set()
