"""Report of a run's failures to the program, to the log, and to a file with Spark's full messages."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strandline.core.errors import SparkError, StrandlineError, discreet
from strandline.core.settings import Settings
from strandline.keeper.paths import Places
from strandline.spark.base.quiet import spark_log
from strandline.spark.base.spark_errors import frames_of, full_text

_MOST_BYTES = 4 << 20
_OUT_OF_MEMORY = 52
"""The exit code of a JVM that Spark has ended because memory ran out."""
_AWAIT_END_S = 5.0


class FailureReporter:
    """Reports a job's failures, and removes quoted values where `Settings.show_values` does not allow them."""

    def __init__(self, settings: Settings, places: Places, spark: SparkSession) -> None:
        self._show_values = settings.show_values
        self._places = places
        self._spark = spark

    def in_logs(self, error: BaseException) -> str:
        """Return the text of an error for log files and the status."""
        if self._show_values != "logs":
            return discreet(error)
        return str(error) if isinstance(error, StrandlineError) else f"{type(error).__name__}: {error}"

    def to_program(self, error: BaseException) -> BaseException:
        """Return the error for the program."""
        if self._show_values != "nowhere":
            return error
        kind = type(error) if isinstance(error, StrandlineError) else StrandlineError
        return kind(discreet(error))

    def complete(self, error: BaseException) -> BaseException:
        """Return the error with more facts: that the JVM has ended, or the file with Spark's full message."""
        if isinstance(error, Exception) and (ended := _find_end(self._spark)) is not None:
            return ended
        if not (whole := full_text(error)) or not isinstance(error, StrandlineError):
            return error
        path = self._write(whole)
        content = "all that Spark said is" if self._show_values == "logs" else "its stacks are"
        pointer = f"; {content} in {path}" if path else ""
        return type(error)(
            f"{error.message}{pointer}", hint=error.hint, discreet=f"{error.discreet}{pointer}", **error.fields
        )

    def _write(self, whole: str) -> Path | None:
        """Write Spark's message to a file; only the error types and stack frames, unless values may be in logs.

        Returns None if there is nothing to write, or the file cannot be written.
        """
        path = self._places.spark_failures
        text = whole if self._show_values == "logs" else frames_of(whole)
        if not text:
            return None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > _MOST_BYTES:
                path.replace(path.with_suffix(".log.1"))
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n\n")
        except OSError:
            return None
        return path


def _find_end(spark: SparkSession) -> SparkError | None:
    """Return the error for an ended Spark session or JVM; None if Spark works."""
    context: Any = spark.sparkContext
    process: Any = getattr(context._gateway, "proc", None)
    deadline = time.monotonic() + _AWAIT_END_S
    while (code := None if process is None else process.poll()) is None and not (alive := is_alive(context)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if code is not None:
        return _jvm_ended(process.pid, code)
    if alive:
        return None
    return SparkError(
        "Spark's session has been stopped or does not answer",
        hint="end the job before the session: run.stop(), or run.await_termination()",
        is_final=True,
    )


def is_alive(context: Any) -> bool:
    """Whether a SparkContext works: after an out-of-memory error it stops, and its JVM ends a moment later."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        # The program has stopped it, or its JVM has ended.
        return False


def _jvm_ended(pid: int, code: int) -> SparkError:
    if code == _OUT_OF_MEMORY:
        end = "it ran out of memory (exit code 52)"
    elif code in (-9, 137):
        end = "it was killed by signal 9 (SIGKILL): if no user did, the system did because memory ran out"
    else:
        end = f"it was ended by signal {-code}" if code < 0 else f"exit code {code}"
    return SparkError(
        f"Spark's JVM, process {pid}, has ended: {end}{f'; its log is {log}' if (log := spark_log()) else ''}",
        hint="start the program again: the job continues from its last checkpoint. For more memory: "
        "sl.session(spark_driver_memory='4g'), or spark-submit --driver-memory; a row needs several times its size",
        is_final=True,
    )
