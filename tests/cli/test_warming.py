"""The archive of Spark's classes: who makes it, who uses it, and who does not. Only the last, a soak test, starts a JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.spark.base.class_archive import archive_of, class_options
from strandline.spark.base.session import check_java
from tests.cli.conftest import Command, environment
from tests.runtime.clients import eventually

Maker = subprocess.Popen[str]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive of this Java would be, in a cache that is empty; nothing else says which to use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    return archive_of(check_java())


def made(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(b"classes")


def test_it_is_used_once_it_is_there(archive: Path) -> None:
    assert class_options(check_java(), "-Xmx1g") == ""
    made(archive)
    assert f"-XX:SharedArchiveFile={archive} " in class_options(check_java(), "-Xmx1g")


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=/x.jsa", "-XX:ArchiveClassesAtExit=/x.jsa", "-Xshare:off"])
def test_whoever_says_what_to_use_is_not_overruled(archive: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    made(archive)
    assert class_options(check_java(), f"-Xmx1g {option}") == ""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", option)
    assert class_options(check_java(), "") == ""


def test_another_java_or_spark_has_another(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java, jars = tmp_path / "java" / "bin" / "java", tmp_path / "spark" / "jars"
    library = tmp_path / "java" / "lib" / "server" / "libjvm.so"
    for path in (java, library, jars / "spark.jar"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    found = {archive, archive_of(str(java))}
    library.write_bytes(b"22")
    found.add(archive_of(str(java)))
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    found.add(archive_of(str(java)))
    (jars / "spark.jar").write_bytes(b"22")
    found.add(archive_of(str(java)))
    assert len(found) == 5


def test_one_that_is_there_is_left(strandline: Command, archive: Path) -> None:
    made(archive)
    found = strandline("warm-up")
    assert found.code == 0
    assert f"{archive} is there" in found.stderr
    assert archive.read_bytes() == b"classes"


@pytest.fixture
def broken_java(tmp_path: Path) -> Path:
    """The home of a Java that says its version, then what is in `then`."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17"\' >&2 && exit\n. "$(dirname "$0")/then"\n'
    )
    java.chmod(0o755)
    (java.parent / "then").write_text("echo no room >&2\nexit 1\n")
    return java.parent.parent


def test_a_java_that_does_not_start_leaves_nothing(process: Command, archive: Path, broken_java: Path) -> None:
    found = process("warm-up", JAVA_HOME=str(broken_java), XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"])
    assert found.code == 1
    assert "error: no archive was made: " in found.stderr
    assert "no room" in found.stderr
    assert len(found.stderr.splitlines()) < 12
    assert "Traceback" not in found.stderr
    assert list(archive.parent.iterdir()) == []


@pytest.fixture
def making(archive: Path, broken_java: Path, local_dir: Path) -> Iterator[Callable[[], Maker]]:
    """Starts the command, which goes on while the test does. Its directories are the test's own."""
    given = {"JAVA_HOME": str(broken_java), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], "TMPDIR": str(local_dir)}
    command = [sys.executable, "-m", "strandline.cli.main", "warm-up"]
    started: list[Maker] = []

    def start() -> Maker:
        started.append(subprocess.Popen(command, env=environment(**given), stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_two_at_once_make_one(making: Callable[[], Maker], broken_java: Path, local_dir: Path) -> None:
    (broken_java / "bin" / "then").write_text(f"touch {local_dir}/begun\nsleep 60\n")
    first = making()
    eventually((local_dir / "begun").exists, "the first to begin")
    (local_dir / "begun").unlink()
    second = making()
    assert "running a small job" in second.stderr.readline()
    made(archive_of(str(broken_java / "bin" / "java")))
    first.kill()
    assert second.wait(60) == 0
    assert not (local_dir / "begun").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_one_that_is_ended(
    making: Callable[[], Maker], broken_java: Path, local_dir: Path, number: int
) -> None:
    (broken_java / "bin" / "then").write_text(f"echo $$ > {local_dir}/begun\nexec sleep 60\n")
    maker = making()
    eventually(lambda: (local_dir / "begun").exists() and (local_dir / "begun").read_text(), "it to begin")
    java = Path("/proc") / (local_dir / "begun").read_text().strip()
    maker.send_signal(number)
    maker.wait(60)
    eventually(lambda: not lives(java), "its Java to end")
    assert list(archive_of(str(broken_java / "bin" / "java")).parent.iterdir()) == []
    assert number == signal.SIGKILL or not [*local_dir.glob("strandline-*/warm-up")]


def lives(process: Path) -> bool:
    """Whether it has not ended. One that nobody has asked for yet, as its parent ended first, has no command line."""
    try:
        return (process / "cmdline").read_bytes() != b""
    except OSError:
        return False


def test_a_cache_that_cannot_be_written(strandline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = strandline("warm-up")
    assert found.code == 1
    assert "cannot be written" in found.stderr
    assert "XDG_CACHE_HOME" in found.stderr


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_sessions_start_from_it(archive: Path) -> None:
    given = {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], "SPARK_SUBMIT_OPTS": ""}
    command = [sys.executable, "-m", "strandline.cli.main", "warm-up"]
    subprocess.run(command, env=environment(**given), check=True, timeout=900)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    program = (
        "import strandline as sl; from pathlib import Path; s = sl.session('x', 'local[1]'); "
        "pid = s._jvm.java.lang.ProcessHandle.current().pid(); "
        "print(Path(f'/proc/{pid}/maps').read_text())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(**given), capture_output=True, text=True, check=True
    )
    assert str(archive) in done.stdout
    assert "warning" not in done.stdout
