"""The process that forks Spark's Python workers, talked to as Spark does."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark

from strandline.spark.keepers.daemon import without_zips
from tests.runtime.clients import eventually


def test_a_worker_that_spark_needs_no_more_ends_without_a_word(local_dir: Path) -> None:
    """Spark closes the connection of one that was idle for a minute, and of all when it stops."""
    told = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(local_dir),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    daemon = subprocess.Popen(
        [sys.executable, "-m", "strandline.spark.keepers.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **told},
    )  # fmt: skip
    try:
        (length,) = struct.unpack(">i", daemon.stdout.read(4))
        path = daemon.stdout.read(length).decode()
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(path)
            (worker,) = struct.unpack(">i", spark.recv(4))
        eventually(lambda: not Path(f"/proc/{worker}").exists(), "the worker's end")
        _, said = daemon.communicate(timeout=60)
        assert said == b""
    finally:
        daemon.kill()
        daemon.wait()


def test_pyspark_comes_from_its_package_unless_the_zip_is_of_another_spark(tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    packages, ours = str(home.parent), [str(path) for path in sorted((home / "python" / "lib").glob("*.zip"))]
    assert len(ours) == 2
    lib = tmp_path / "spark" / "python" / "lib"
    others = [str(lib / "pyspark.zip"), str(lib / "py4j-0.10.9.9-src.zip"), str(tmp_path / "of-the-user.zip")]
    assert without_zips([*ours, *others, packages]) == [*others, packages]
    assert without_zips([*ours, *others]) == [*ours, *others], "there is no other"
