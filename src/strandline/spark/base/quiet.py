"""Filters output of Spark: lines about its start, and errors that Strandline reports itself."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from importlib.resources import files
from pathlib import Path
from types import CodeType
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

log = logging.getLogger(__name__)

_STDERR = 2
_MAX_LOGS = 40
_LAST_LINES_S = 2.0
_LOG_CONFIGURATION = "log4j2.configurationFile"
_STARTUP_LINES = (
    # The JVM's, about a module that Spark requires: no option of Java turns it off.
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up JDK_JAVA_OPTIONS:",
    # Spark's, about its start: it does not write these to its log.
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Setting Spark log level to",
)
_TRACEBACK = b"Traceback (most recent call last):\n"
_UNCAUGHT = b'Exception in thread "'
_STACK_LINES = (b"\tat ", b"\t...", b"Caused by: ", b"\tSuppressed: ")
_THROWN = re.compile(rb"(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b")
"""The first line of a stack that Scala prints when no thread waits for the result, as of a task of a closed pool."""
_KIND = re.compile(rb"(?:Exception in thread \".*?\" |Caused by: |\tSuppressed: )?(?:[a-zA-Z_]\w*\.)+[\w$]+")
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times Java's defaults, with which it spends a quarter of the time until a job's first epoch ends on optimizing
code that has run a few thousand times and hardly runs again. Code that runs for each row reaches these in a second."""
_jvm_log: Path | None = None
_hidden_functions: set[CodeType] = set()
"""Functions whose callers report their errors."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers of expressions that fail, with their stacks."""
_refusals: set[str] = set()
"""The reasons, of which the log has a line, why calls of Spark are not accepted."""
_is_reported: ContextVar[bool] = ContextVar("strandline_is_reported", default=False)


def java_options(user_options: str, log_file: Path, *, log_values: bool = False) -> str:
    """Return the driver's Java options, the user's last. They configure the log unless the user's options do."""
    # Spark splits long error texts with a recursive pattern, which overflows an ordinary thread stack.
    options = ["-Xss16m", *_COMPILED_LATER]
    if _LOG_CONFIGURATION not in user_options:
        properties = Path(str(files("strandline.spark").joinpath("log4j2.properties")))
        options += [f"-D{_LOG_CONFIGURATION}={properties.as_uri()}", f"-Dstrandline.log={shlex.quote(str(log_file))}"]
        options += ["-Dstrandline.log.words=whole"] if log_values else []
    return " ".join([*options, user_options]).rstrip()


def new_log_file(directory: Path, app_name: str) -> Path:
    """Return the log file of this process' JVM, and delete the oldest logs of earlier processes."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", app_name)[:40] or "spark"
    with contextlib.suppress(OSError):
        for each in (directory.parent, directory):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = sorted(directory.glob("*.log*"), key=lambda path: path.stat().st_mtime)
        for old in logs[:-_MAX_LOGS]:
            # Its process may be alive, but has not logged since the newer ones began.
            old.unlink(missing_ok=True)
    return directory / f"{name}-{os.getpid()}.log"


def start_jvm(conf: SparkConf, log_file: Path | None = None) -> bool:
    """Start the driver's JVM, and forward its standard error line by line, without start-up lines.

    Types and stacks of uncaught exceptions, as of a thread that runs after Spark has stopped, go to the log file.

    Returns False and does nothing if there is a JVM, of an earlier session or of spark-submit.
    """
    global _jvm_log
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    _jvm_log = log_file
    read, write = os.pipe()
    forwarder = threading.Thread(
        target=_forward, args=(os.fdopen(read, "rb"), log_file), name="strandline-jvm-log", daemon=True
    )
    forwarder.start()
    try:
        with _utf8_locale():
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(write)
        # Java has written the reason to its standard error.
        forwarder.join(_LAST_LINES_S)
        raise
    os.close(write)
    SparkContext._ensure_initialized(gateway=gateway)
    return True


@contextlib.contextmanager
def _utf8_locale() -> Iterator[None]:
    """Set the locale C.UTF-8 for new processes in place of C, with which Java supports only ASCII file names."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    before = os.environ.get("LC_ALL")
    if next(filter(None, map(os.environ.get, names)), "C") not in ("C", "POSIX"):
        yield
        return
    os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        del os.environ["LC_ALL"]
        if before is not None:
            os.environ["LC_ALL"] = before


def spark_log() -> Path | None:
    """Return the log file of this process' JVM, None if `session()` has not started it."""
    return _jvm_log if _jvm_log is not None and _jvm_log.exists() else None


def ignore_lost_updates(context: SparkContext) -> None:
    """Keep the accumulator server from printing that the JVM has ended: callers of the JVM report that."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, address)

    server.handle_error = handle_error


def hide_errors_of(function: CodeType) -> None:
    """Keep py4j from logging errors of this function, which the JVM calls and which stores its errors itself."""
    _hidden_functions.add(function)
    _filter(logging.getLogger("py4j.clientserver"), _is_not_hidden)


def log_refused_calls_once(*, are_accepted: bool) -> None:
    """Log one line for each reason for which py4j does not accept Spark's calls, in place of its traceback each time.

    After a time in which they `are_accepted`, the same reason is logged again.
    """
    if are_accepted:
        _refusals.clear()
    _filter(logging.getLogger("py4j.java_gateway"), _is_no_refusal)


@contextlib.contextmanager
def suppress_error_logs() -> Iterator[None]:
    """Keep PySpark from logging errors of this thread, whose caller reports them."""
    for name in _LOGGERS:
        _filter(PySparkLogger.getLogger(name), _is_unreported)
    before = _is_reported.set(True)
    try:
        yield
    finally:
        _is_reported.reset(before)


def _filter(logger: logging.Logger, is_wanted: Callable[[logging.LogRecord], bool]) -> None:
    if is_wanted not in logger.filters:
        logger.addFilter(is_wanted)


def _is_unreported(record: logging.LogRecord) -> bool:
    return not _is_reported.get()


def _is_not_hidden(record: logging.LogRecord) -> bool:
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None:
        if trace.tb_frame.f_code in _hidden_functions:
            return False
        trace = trace.tb_next
    return True


def _is_no_refusal(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is None or record.msg != "Error while waiting for a connection.":
        return True
    if (reason := str(error)) not in _refusals:
        _refusals.add(reason)
        log.warning("Spark's calls are not accepted, epochs among them: %s; the job waits until they are", reason)
    return False


def _forward(lines: IO[bytes], log_file: Path | None) -> None:
    is_uncaught = False
    with lines:
        for line, is_start in _with_stacks(_without_ends_of_workers(lines)):
            is_uncaught = is_start or line.startswith(_UNCAUGHT) or (is_uncaught and line.startswith(_STACK_LINES))
            if is_uncaught:
                _log(line, log_file)
            elif not line.startswith(_STARTUP_LINES):
                with contextlib.suppress(OSError):
                    os.write(_STDERR, line)


def _with_stacks(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each line, and whether it is an error of Java with a stack below it."""
    held = b""
    for line in lines:
        if held:
            yield held, line.startswith(b"\tat ")
        held = line if _THROWN.match(line) else b""
        if not held:
            yield line, False
    if held:
        yield held, False


def _without_ends_of_workers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Remove tracebacks of Python workers whose connection Spark has closed.

    Workers of Strandline's daemon print none. For data sources, Spark always uses its own daemon.
    """
    held: list[bytes] = []
    for line in lines:
        if line == _TRACEBACK or (held and line.startswith(b" ")):
            if line == _TRACEBACK:
                yield from held
                held = []
            held.append(line)
            continue
        frame = held[1] if len(held) > 1 else b""
        is_end = b"pyspark/daemon.py" in frame and b", in manager" in frame
        if not (is_end and line.startswith(b"BrokenPipeError")):
            yield from (*held, line)
        held = []
    yield from held


def _log(line: bytes, log_file: Path | None) -> None:
    if log_file is not None:
        with contextlib.suppress(OSError), log_file.open("ab") as file:
            kind = _KIND.match(line)
            file.write(kind[0] + b"\n" if kind else line)
