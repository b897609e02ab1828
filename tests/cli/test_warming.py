"""The archive of Spark's classes: who makes it, who uses it, and who does not. Only the last, a soak test, starts a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.spark.base.classes import archive_of, class_options
from strandline.spark.base.session import check_java
from tests.cli.conftest import Command, environment


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive of this Java would be, in a cache that is empty; nothing else says which to use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    return archive_of(check_java())


def made(archive: Path) -> None:
    archive.parent.mkdir(parents=True)
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


def test_a_java_that_does_not_start_leaves_nothing(process: Command, archive: Path, tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17"\' >&2 && exit\necho no room >&2\nexit 1\n'
    )
    java.chmod(0o755)
    found = process("warm-up", JAVA_HOME=str(tmp_path / "java"), XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"])
    assert found.code == 1
    assert "error: no archive was made: " in found.stderr
    assert "no room" in found.stderr
    assert len(found.stderr.splitlines()) < 12
    assert "Traceback" not in found.stderr
    assert list(archive.parent.iterdir()) == []


def test_a_cache_that_cannot_be_written(strandline: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = strandline("warm-up")
    assert found.code == 1
    assert "cannot be written" in found.stderr
    assert "XDG_CACHE_HOME" in found.stderr


@pytest.mark.soak
def test_sessions_start_from_it(process: Command, archive: Path) -> None:
    given = {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], "SPARK_SUBMIT_OPTS": ""}
    assert process("warm-up", **given).code == 0
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
