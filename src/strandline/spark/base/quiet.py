"""What is kept from the user's eyes: Spark's lines about its own start, and errors that we report ourselves."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from importlib.resources import files
from pathlib import Path
from types import CodeType
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_STDERR = 2
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
    try:
        gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]
    finally:
        os.close(write)
        threading.Thread(target=_pass_on, args=(os.fdopen(read, "rb"),), name="strandline-jvm-log", daemon=True).start()
    SparkContext._ensure_initialized(gateway=gateway)


def hide_errors_of(function: CodeType) -> None:
    """Keep py4j from logging the traceback of what this function, which the JVM calls, has raised and kept."""
    logger = logging.getLogger("py4j.clientserver")
    _kept_elsewhere.add(function)
    if _is_news not in logger.filters:
        logger.addFilter(_is_news)


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
