"""What PySpark logs of errors that somebody else reports. Without Spark."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

from pyspark.logger import PySparkLogger

from strandline.spark.base import quiet
from strandline.spark.base.quiet import suppress_error_logs


def test_only_what_is_reported_is_not_logged(caplog: Any) -> None:
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    inside, done = threading.Event(), threading.Event()

    def report() -> None:
        with suppress_error_logs():
            inside.set()
            done.wait(10)
            logger.error("reported")

    other = threading.Thread(target=report)
    other.start()
    inside.wait(10)
    with suppress_error_logs(), suppress_error_logs():
        logger.error("reported, too")
    logger.error("of a user's own, meanwhile")
    done.set()
    other.join()
    logger.error("of a user's own, afterwards")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert "meanwhile" in said[0]
    assert "afterwards" in said[1]


def test_what_no_thread_has_caught_goes_to_the_log_and_the_rest_is_passed_on(tmp_path: Path, capfd: Any) -> None:
    log = tmp_path / "spark.log"
    lines = [
        b"Setting default log level to WARN\n",
        b"the program's own\n",
        b'Exception in thread "stream" org.apache.spark.SparkException: Exception thrown: a-secret\n',
        b"\tat org.apache.spark.X.y(X.scala:1)\n",
        b"Caused by: org.apache.spark.rpc.RpcEnvStoppedException: a-secret.\n",
        b"\t... 8 more\n",
        b"\tindented, of the program's own\n",
        b"java.util.concurrent.RejectedExecutionException: Task a-secret rejected from a-secret\n",
        b"\tat scala.concurrent.impl.ExecutionContextImpl.execute(ExecutionContextImpl.scala:21)\n",
        b"java.lang.Error: of a program that says so itself\n",
        b"and the rest\n",
        b"java.lang.LastWordsException\n",
    ]
    quiet._forward(io.BytesIO(b"".join(lines)), log)
    passed = "the program's own\n\tindented, of the program's own\njava.lang.Error: of a program that says so itself\n"
    passed += "and the rest\njava.lang.LastWordsException\n"
    assert capfd.readouterr().err == passed
    assert log.read_text().splitlines() == [
        'Exception in thread "stream" org.apache.spark.SparkException',
        "\tat org.apache.spark.X.y(X.scala:1)",
        "Caused by: org.apache.spark.rpc.RpcEnvStoppedException",
        "\t... 8 more",
        "java.util.concurrent.RejectedExecutionException",
        "\tat scala.concurrent.impl.ExecutionContextImpl.execute(ExecutionContextImpl.scala:21)",
    ]


def test_logs_of_sessions_do_not_become_ever_more(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "spark-logs"
    for n in range(quiet._MAX_LOGS + 20):
        file = quiet.new_log_file(directory, "a name / of a job")
        file.with_name(f"{n}.log").write_text("said")
        os.utime(file.with_name(f"{n}.log"), (n, n))
    assert file.parent == directory
    assert file.name == f"a_name___of_a_job-{os.getpid()}.log"
    left = sorted(int(path.stem) for path in directory.iterdir())
    assert left == list(range(19, quiet._MAX_LOGS + 20))
    assert directory.stat().st_mode & 0o77 == 0


def test_workers_that_spark_needs_no_more_say_nothing(capfd: Any) -> None:
    """Those that look for data sources: Spark forks them from a daemon of its own."""
    end = (
        b"Traceback (most recent call last):\n"
        b'  File "/x/site-packages/pyspark/daemon.py", line 264, in manager\n'
        b"    code = worker(sock, authenticated)\n"
        b'  File "/x/site-packages/pyspark/daemon.py", line 95, in worker\n'
        b"    outfile.flush()\n"
    )
    gone, other = b"BrokenPipeError: [Errno 32] Broken pipe\n", b"OSError: [Errno 9] Bad file descriptor\n"
    own = b'Traceback (most recent call last):\n  File "/app.py", line 1, in <module>\n'
    quiet._forward(io.BytesIO(end + gone + b"said\n" + end + other + own + gone + end), None)
    assert capfd.readouterr().err.encode() == b"said\n" + end + other + own + gone + end
