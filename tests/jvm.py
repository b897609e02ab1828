"""One archive of Spark's classes for all JVMs of a test run: each of the many starts in two thirds of the time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

_ENOUGH = 12
"""From how many tests with Spark on making the archive is worth it."""


def share_classes(cache: Path, tests: int) -> None:
    """Let JVMs that start from now on use the archive; without it, and without a cause to make it, they start as ever."""
    kind = f"{pyspark.__version__} {shutil.which('java')} {os.environ.get('JAVA_HOME')}"
    archive = cache / f"classes-{hashlib.sha256(kind.encode()).hexdigest()[:12]}.jsa"
    if not archive.exists():
        if tests < _ENOUGH:
            return
        _make(archive)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -XX:SharedArchiveFile={archive}".strip()


def _make(archive: Path) -> None:
    """Run a small job in a JVM that writes the classes it has loaded when it ends."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(f".{os.getpid()}.part")
    env = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={part} -Xlog:disable"}
    with tempfile.TemporaryDirectory(prefix="sl-") as root:
        # If it fails, tests of the same things will say so better.
        subprocess.run([sys.executable, __file__, root], env=env, capture_output=True, timeout=240, check=False)
    if part.exists():
        part.rename(archive)


def _small_job(root: Path) -> None:
    import strandline as sl
    from tests.conftest import LIGHT_JVM

    spark = sl.session("classes", "local[2,4]", **LIGHT_JVM)
    (root / "in").mkdir()
    (root / "in" / "1.json").write_text('{"k": "a", "v": 1, "ts": "2026-01-01T00:00:00Z"}\n')
    source = spark.readStream.schema("k string, v int, ts timestamp").json(str(root / "in"))
    totals = sl.stream(source).watermark("ts").key_by("k").agg(total=sl.agg.sum("v"), uid="totals")
    settings = sl.Settings(parallelism=2, local_dir=root / "local")
    sinks = [totals.to(sl.sinks.files(root / "out"))]
    job = sl.Job("classes", sinks=sinks, settings=settings, checkpoints=sl.Checkpoints(root / "checkpoints"))
    with job.start(spark) as run:
        run.process_all_available(60)
        run.stop(checkpoint=True)
    spark.read.parquet(str(root / "out")).groupBy("k").count().collect()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    # It writes the archive when it is done, which it is when nobody can ask it for more.
    jvm.stdin.close()
    jvm.wait(120)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    _small_job(Path(sys.argv[1]))
