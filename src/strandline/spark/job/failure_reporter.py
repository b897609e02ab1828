"""What a run failed at, as it is told: to the program, to the log, and to those who look into what Spark said."""

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
"""The exit code of a JVM that Spark has ended for want of memory."""
_AWAIT_END_S = 5.0


class FailureReporter:
    """What a job says of its failures: how much of the program's data they may quote, and where."""

    def __init__(self, settings: Settings, places: Places, spark: SparkSession) -> None:
        self._shown = settings.show_values
        self._places = places
        self._spark = spark

    def in_logs(self, error: BaseException) -> str:
        """Return what log files and the status may have of an error."""
        if self._shown != "logs":
            return discreet(error)
        return str(error) if isinstance(error, StrandlineError) else f"{type(error).__name__}: {error}"

    def to_program(self, error: BaseException) -> BaseException:
        """Return the error as the program may have it."""
        if self._shown != "nowhere":
            return error
        kind = type(error) if isinstance(error, StrandlineError) else StrandlineError
        return kind(discreet(error))

    def complete(self, error: BaseException) -> BaseException:
        """Return the error with what else is known: that the JVM has ended, and where all is that Spark said."""
        if isinstance(error, Exception) and (gone := _gone(self._spark)) is not None:
            return gone
        if not (whole := full_text(error)) or not isinstance(error, StrandlineError):
            return error
        where = self._keep(whole)
        told = f"; all that Spark said is in {where}" if where else ""
        return type(error)(
            f"{error.message}{told}", hint=error.hint, discreet=f"{error.discreet}{told}", **error.fields
        )

    def _keep(self, whole: str) -> Path | None:
        """Write down what Spark said: of an error's words only the kinds and places, unless values may be in logs."""
        path = self._places.spark_failures
        text = whole if self._shown == "logs" else frames_of(whole)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > _MOST_BYTES:
                path.replace(path.with_suffix(".log.1"))
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n\n")
        except OSError:
            return None
        return path


def _gone(spark: SparkSession) -> SparkError | None:
    """Return the error that says that there is no Spark any more, if there is none."""
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
        "Spark's session has been stopped, or does not answer any more",
        hint="end the job before the session: run.stop(), or run.await_termination()",
        is_final=True,
    )


def is_alive(context: Any) -> bool:
    """Whether a SparkContext works: one that runs out of memory stops, and its JVM ends a moment later."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:
        # The program has stopped it, or its JVM has ended.
        return False


def _jvm_ended(pid: int, code: int) -> SparkError:
    if code == _OUT_OF_MEMORY:
        how = "it ran out of memory (exit code 52)"
    elif code in (-9, 137):
        how = "it was killed by signal 9 (SIGKILL): if nobody did, the system has, for want of memory"
    else:
        how = f"it was ended by signal {-code}" if code < 0 else f"exit code {code}"
    return SparkError(
        f"Spark's JVM, process {pid}, has ended: {how}{f'; its log is {log}' if (log := spark_log()) else ''}",
        hint="start the program again: the job goes on from its last checkpoint. For more memory: "
        "sl.session(spark_driver_memory='4g'), or spark-submit --driver-memory; a row needs several times its size",
        is_final=True,
    )
