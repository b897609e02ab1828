"""Apache Flink, fetched into `build` on first use, and the process that runs a program of Flink's on loopback.

The jars come from the Python package `apache-flink-libraries`, the format Parquet with Ivy, which Spark's own jars
have; Hadoop's classes, which that format needs, are Spark's. A program is a Java file, compiled for each run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._counting import SPARK_SETTINGS
from tests.servers import end_with_parent, locked

VERSION = "2.3.0"
_WHEEL_SHA256 = "38ece876553286b3a285cf344c2d2038f8a7ca10da5df54d5107250386d64151"
_PARQUET = f"flink-sql-parquet-{VERSION}.jar"
_PARQUET_SHA256 = "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd"
_HOME = Path(__file__).parent.parent / "build" / f"flink-{VERSION}"
_LOCK = _HOME.parent / "fetch.lock"
"""The lock of all that Ivy fetches: it fails in processes that fill one cache at the same time."""
_TIMEOUT_S = 1800.0
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.all.ref = all
appender.all.name = all
appender.all.type = Console
appender.all.layout.type = PatternLayout
appender.all.layout.pattern = %p %c %m%n
"""
_OPENED = (
    "java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch",
)  # fmt: skip
"""What Flink's scripts open of Java's base module."""
_LOOPBACK = dict.fromkeys(
    ("rest.address", "rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host", "taskmanager.host"),
    "127.0.0.1",
)


class UnavailableFlinkError(Exception):
    """There is no Flink to be had on this machine."""


def install() -> None:
    """Fetch Flink, unless that was done; UnavailableFlinkError if it cannot be."""
    if shutil.which(_java("javac")) is None:
        raise UnavailableFlinkError("Flink cannot be measured here: its program is compiled, and there is no javac")
    with locked(_LOCK):
        if not _HOME.exists():
            scratch = Path(tempfile.mkdtemp(dir=_HOME.parent, prefix="flink-"))
            try:
                _fetch(scratch).rename(_HOME)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def _fetch(directory: Path) -> Path:
    """Fetch Flink's jars into a directory below this one."""
    print(f"fetching Apache Flink {VERSION}, some 340 MB, for this benchmark alone", file=sys.stderr)
    requirements, jars = directory / "requirements.txt", directory / "jars"
    requirements.write_text(f"apache-flink-libraries=={VERSION} --hash=sha256:{_WHEEL_SHA256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    _run([*pip, "--dest", str(directory), "--requirement", str(requirements)])
    jars.mkdir()
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("pyflink/lib/") and name.endswith(".jar"):
                with archive.open(name) as source, (jars / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    (ivy,) = _spark_jars("ivy-*")
    wanted = ["-dependency", "org.apache.flink", "flink-sql-parquet", VERSION, "-confs", "default"]
    to = f"{directory}/retrieved/[artifact]-[revision].[ext]"
    _run([_java("java"), "-cp", ivy, "org.apache.ivy.Main", "-warn", *wanted, "-retrieve", to])
    parquet = directory / "retrieved" / _PARQUET
    digest = hashlib.sha256(parquet.read_bytes()).hexdigest()
    if digest != _PARQUET_SHA256:
        raise UnavailableFlinkError(f"{_PARQUET} has the SHA-256 digest {digest}, expected {_PARQUET_SHA256}")
    parquet.rename(jars / _PARQUET)
    return jars


def run_program(program: Path, arguments: Sequence[str], settings: Mapping[str, str], directory: Path) -> None:
    """Compile a program and run it to its end, with Flink's settings as `key=value` before its arguments and `--`."""
    directory.mkdir()
    jars = [f"{_HOME}/*", *_spark_jars("hadoop-client-api-*"), *_spark_jars("hadoop-client-runtime-*")]
    subprocess.run(
        [_java("javac"), "-cp", os.pathsep.join(jars), "-d", str(directory / "classes"), str(program)], check=True
    )
    (directory / "classes" / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    given = {**settings, **_LOOPBACK, "io.tmp.dirs": str(directory)}
    options = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    options += [f"-Xmx{SPARK_SETTINGS['spark.driver.memory']}", "-Duser.timezone=UTC", f"-Djava.io.tmpdir={directory}"]
    subprocess.run(
        [_java("java"), *options, "-cp", os.pathsep.join([str(directory / "classes"), *jars]), program.stem,
         *(f"{key}={value}" for key, value in given.items()), "--", *arguments],
        stdin=subprocess.DEVNULL, check=True, timeout=_TIMEOUT_S, preexec_fn=end_with_parent,
    )  # fmt: skip


def _spark_jars(pattern: str) -> list[str]:
    import pyspark

    return [str(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob(f"{pattern}.jar")]


def _java(tool: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", tool)) if home else tool


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise UnavailableFlinkError(f"Flink cannot be had here: {done.stdout[-2000:]}")
