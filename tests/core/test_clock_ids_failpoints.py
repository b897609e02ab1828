"""Time by hand, names that are never used twice, and failpoints."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.core import failpoints
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import UnavailableError
from strandline.core.ids import unique_name
from tests.clock import ManualClock


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1000, 1000.0)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1005, 1005.0)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_clocks_count_milliseconds_of_this_century(clock: Clock) -> None:
    assert 1_600_000_000_000 < clock.now_ms() < 4_102_444_800_000
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_unique_names() -> None:
    names = {unique_name() for _ in range(1000)}
    assert len(names) == 1000
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in names)


def test_a_failpoint_acts_once_at_the_hit_it_is_armed_for() -> None:
    acted: list[int] = []
    failpoints.hit("place")
    failpoints.arm("place", lambda: acted.append(1), at=2)
    for _ in range(4):
        failpoints.hit("place")
        failpoints.hit("another place")
    assert acted == [1]
    failpoints.arm("place", lambda: acted.append(2))
    failpoints.hit("place")
    assert acted == [1, 2]
    failpoints.arm("place", lambda: acted.append(3))
    failpoints.disarm_all()
    failpoints.hit("place")
    assert acted == [1, 2]


def test_failpoints_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_FAILPOINTS", "a=error;b=error@2;c=sleep:0;")
    failpoints.arm_from_environment()
    failpoints.hit("b")
    failpoints.hit("c")
    for name in ("a", "b"):
        with pytest.raises(UnavailableError, match=f"failpoint '{name}' is armed"):
            failpoints.hit(name)
    monkeypatch.setenv("STRANDLINE_FAILPOINTS", "a=explode")
    with pytest.raises(ValueError, match="unknown action 'explode', expected kill, error or sleep:<seconds>"):
        failpoints.arm_from_environment()


def test_a_failpoint_acts_once_among_processes_that_share_a_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STRANDLINE_FAILPOINTS_DIR", str(tmp_path))
    acted: list[int] = []
    for _ in range(2):  # The second time stands for another process: its own count begins anew.
        failpoints.arm("place", lambda: acted.append(1))
        failpoints.hit("place")
    assert acted == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_failpoint_kills() -> None:
    code = "from strandline.core import failpoints as f; f.arm_from_environment(); f.hit('x'); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"STRANDLINE_FAILPOINTS": "x=kill", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
