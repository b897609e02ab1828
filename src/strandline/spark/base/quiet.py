"""What is kept from the user's eyes: Spark's lines about its own start, and errors that we report ourselves."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.resources import files
from pathlib import Path
from types import CodeType
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

_STDERR = 2
_LAST_WORDS_S = 2.0
_OWN_CONFIGURATION = "log4j2.configurationFile"
_STARTUP_LINES = (
    # The JVM's, about a module that Spark itself asks for: no option of Java turns it off.
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up JDK_JAVA_OPTIONS:",
    # Spark's, about its own start; written past its log.
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Setting Spark log level to",
)
_kept_elsewhere: set[CodeType] = set()
"""Functions whose errors others report."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark logs what Spark says of an expression that fails, with its stack."""
_told = logging.getLogger("strandline.told")
_is_reported: ContextVar[bool] = ContextVar("strandline_is_reported", default=False)


def java_options(given: str) -> str:
    """Return the driver's Java options, the user's last; the log is ours unless they configure it themselves."""
    # Spark cuts up long error texts with a recursive pattern; an ordinary thread stack overflows on that.
    options = ["-Xss16m"]
    if _OWN_CONFIGURATION not in given:
        ours = Path(str(files("strandline.spark").joinpath("log4j2.properties")))
        options.append(f"-D{_OWN_CONFIGURATION}={ours.as_uri()}")
    return " ".join([*options, given]).rstrip()


def start_jvm(conf: SparkConf) -> None:
    """Start the driver's JVM with its standard error passed on line by line, but for start-up lines.

    Does nothing when there is one already, of an earlier session or of spark-submit.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    read, write = os.pipe()
    passing = threading.Thread(target=_pass_on, args=(os.fdopen(read, "rb"),), name="strandline-jvm-log", daemon=True)
    passing.start()
    try:
        gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(write)
        # Why there is none, Java has said there.
        passing.join(_LAST_WORDS_S)
        raise
    os.close(write)
    SparkContext._ensure_initialized(gateway=gateway)


def hide_errors_of(function: CodeType) -> None:
    """Keep py4j from logging the traceback of what this function, which the JVM calls, has raised and kept."""
    _kept_elsewhere.add(function)
    _filter(logging.getLogger("py4j.clientserver"), _is_news)


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Whoever asks Spark within this reports what is wrong. What other threads do is logged as ever."""
    for name in _LOGGERS:
        _filter(PySparkLogger.getLogger(name), _is_unreported)
    before = _is_reported.set(True)
    try:
        yield
    finally:
        _is_reported.reset(before)


def tell(text: str) -> None:
    """Say what everybody is to know though it is no warning: in the log, or on the console where nobody keeps one."""
    if not _told.hasHandlers():
        print(f"strandline: {text}", file=sys.stderr)
        return
    if _told.level == logging.getLogger("strandline").level == logging.NOTSET:
        # By default, a log takes warnings alone.
        _told.setLevel(logging.INFO)
    _told.info(text)


def _filter(logger: logging.Logger, wanted: Callable[[logging.LogRecord], bool]) -> None:
    if wanted not in logger.filters:
        logger.addFilter(wanted)


def _is_unreported(record: logging.LogRecord) -> bool:
    return not _is_reported.get()


def _is_news(record: logging.LogRecord) -> bool:
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        if trace.tb_frame.f_code in _kept_elsewhere:
            return False
        trace = trace.tb_next
    return True


def _pass_on(lines: IO[bytes]) -> None:
    with lines, contextlib.suppress(OSError):
        for line in lines:
            if not line.startswith(_STARTUP_LINES):
                os.write(_STDERR, line)
