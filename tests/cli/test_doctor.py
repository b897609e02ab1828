from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.cli import doctor
from tests.cli.conftest import Command

GIB = 1 << 30


def test_every_check_is_reported(process: Command, tmp_path: Path) -> None:
    found = process("doctor", "--local-dir", tmp_path / "l", "--json")
    checks = {check["check"]: check for check in found.json}
    assert checks.keys() == {"python", *doctor.SUPPORTED, "java", "local_dir", "sockets", "disk", "memory"}
    assert found.code == (0 if all(check["ok"] for check in checks.values()) else 1)
    assert all(bool(check["next_step"]) != check["ok"] for check in checks.values())
    assert checks["python"]["ok"]
    assert checks["pyspark"]["ok"]
    assert checks["local_dir"]["ok"]
    assert not (tmp_path / "l").exists()


def test_without_java_it_says_what_to_install(process: Command, tmp_path: Path) -> None:
    found = process("doctor", "--local-dir", tmp_path, "--json", JAVA_HOME=str(tmp_path / "nothing"))
    assert found.code == 1
    (java,) = [check for check in found.json if check["check"] == "java"]
    assert not java["ok"]
    assert str(tmp_path / "nothing") in java["found"]
    assert "install Java 17" in java["next_step"]
    assert "Traceback" not in java["found"]
    shown = process("doctor", "--local-dir", tmp_path, JAVA_HOME=str(tmp_path / "nothing")).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith(" java")]
    assert line.split()[1] == "problem"
    assert "install Java 17" in line


def test_a_java_that_is_too_old(process: Command, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    found = process("doctor", "--local-dir", tmp_path, "--json", JAVA_HOME=str(tmp_path))
    (java,) = [check for check in found.json if check["check"] == "java"]
    assert not java["ok"]
    assert "11.0.2" in java["found"]


@pytest.mark.parametrize(
    ("version", "supported", "ok"),
    [
        ("4.3.0", ">=4.1,<4.4", True),
        ("4.4.0", ">=4.1,<4.4", False),
        ("4.4.0.dev1", ">=4.1,<4.4", False),
        ("3.5.9", ">=4.1,<4.4", False),
        ("4.10.0", ">=4.1", True),
        ("2.3.3", ">=2.2,<3", True),
        ("3.0.0", ">=2.2,<3", False),
        ("0.3.27", ">=0.3.27", True),
        ("0.3.9", ">=0.3.27", False),
        (None, ">=18", False),
    ],
)
def test_versions(version: str | None, supported: str, ok: bool) -> None:
    check = doctor.check_package("p", version, supported)
    assert check.ok is ok
    assert (f'pip install "p{supported}"' in check.next_step) is not ok
    assert check.result == (version or "not installed")


def test_local_dir_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    check = doctor.check_local_dir(tmp_path / "file" / "l")
    assert not check.ok
    assert str(tmp_path / "file") in check.result
    assert "local_dir" in check.next_step


def test_local_dir_with_too_long_socket_paths(tmp_path: Path) -> None:
    check = doctor.check_sockets(tmp_path / ("x" * 90))
    assert not check.ok
    assert "shorter local_dir" in check.next_step
    assert doctor.check_sockets(Path("/tmp/l")).ok


def test_disk_and_memory(tmp_path: Path) -> None:
    assert doctor.check_disk(5 * GIB, tmp_path).ok
    assert not doctor.check_disk(GIB // 2, tmp_path).ok
    assert doctor.check_memory(16 * GIB, 4 * GIB).ok
    assert "2.0 GB or more" in doctor.check_memory(GIB, GIB // 4).next_step
    in_a_container = doctor.check_memory(4 * GIB, 16 * GIB)
    assert not in_a_container.ok
    assert "state_memory" in in_a_container.next_step


def test_the_whole_examination_of_this_machine(tmp_path: Path) -> None:
    found = {check.check: check for check in doctor.examine(tmp_path)}
    assert found["disk"].ok == (shutil.disk_usage(tmp_path).free >= GIB)
