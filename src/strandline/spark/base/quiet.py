"""What is kept from the user's eyes: Spark's lines about its own start, and errors that we report ourselves."""

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

_STDERR = 2
_KEPT_LOGS = 40
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
_TRACEBACK = b"Traceback (most recent call last):\n"
_UNCAUGHT = b'Exception in thread "'
_OF_UNCAUGHT = (b"\tat ", b"\t...", b"Caused by: ", b"\tSuppressed: ")
_THROWN = re.compile(rb"(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)\b")
"""How a stack begins that Scala prints of what nobody waits for, as of a task for a pool that is gone."""
_KIND = re.compile(rb"(?:Exception in thread \".*?\" |Caused by: |\tSuppressed: )?(?:[a-zA-Z_]\w*\.)+[\w$]+")
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times what Java has: else it spends a quarter of the time until a job's first epoch is over on compiling well
what ran a few thousand times and hardly comes again. What is done for each row is there within a second."""
_jvm_log: Path | None = None
_kept_elsewhere: set[CodeType] = set()
"""Functions whose errors others report."""
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Where PySpark logs what Spark says of an expression that fails, with its stack."""
_is_reported: ContextVar[bool] = ContextVar("strandline_is_reported", default=False)


def java_options(given: str, log_file: Path, *, log_values: bool = False) -> str:
    """Return the driver's Java options, the user's last; the log is ours unless they configure it themselves."""
    # Spark cuts up long error texts with a recursive pattern; an ordinary thread stack overflows on that.
    options = ["-Xss16m", *_COMPILED_LATER]
    if _OWN_CONFIGURATION not in given:
        ours = Path(str(files("strandline.spark").joinpath("log4j2.properties")))
        options += [f"-D{_OWN_CONFIGURATION}={ours.as_uri()}", f"-Dstrandline.log={shlex.quote(str(log_file))}"]
        options += ["-Dstrandline.log.words=whole"] if log_values else []
    return " ".join([*options, given]).rstrip()


def new_log_file(directory: Path, app_name: str) -> Path:
    """Return where this process' JVM logs, and remove the oldest of what earlier ones have left."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", app_name)[:40] or "spark"
    with contextlib.suppress(OSError):
        for each in (directory.parent, directory):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = sorted(directory.glob("*.log*"), key=lambda path: path.stat().st_mtime)
        for old in logs[:-_KEPT_LOGS]:
            # Of one that is alive, too: it has been silent for as long as so many others came.
            old.unlink(missing_ok=True)
    return directory / f"{name}-{os.getpid()}.log"


def start_jvm(conf: SparkConf, log_file: Path | None = None) -> bool:
    """Start the driver's JVM with its standard error passed on line by line, but for start-up lines.

    Of exceptions that nobody has caught, as where a thread finds Spark stopped, kinds and stacks go to the log.

    Does nothing, and returns False, when there is one already, of an earlier session or of spark-submit.
    """
    global _jvm_log
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    _jvm_log = log_file
    read, write = os.pipe()
    passing = threading.Thread(
        target=_pass_on, args=(os.fdopen(read, "rb"), log_file), name="strandline-jvm-log", daemon=True
    )
    passing.start()
    try:
        with _utf8_locale():
            gateway = launch_gateway(conf, {"stderr": write})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(write)
        # Why there is none, Java has said there.
        passing.join(_LAST_WORDS_S)
        raise
    os.close(write)
    SparkContext._ensure_initialized(gateway=gateway)
    return True


@contextlib.contextmanager
def _utf8_locale() -> Iterator[None]:
    """Start programs in C.UTF-8 where the environment has the locale C, in which Java knows ASCII file names only."""
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
    """Return the file that the log of this process' JVM goes to, if `session()` has started it."""
    return _jvm_log if _jvm_log is not None and _jvm_log.exists() else None


def ignore_lost_updates(context: SparkContext) -> None:
    """Have the server of accumulators say nothing when the JVM goes away: who needs it says so."""
    server: Any = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    told = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            told(request, address)

    server.handle_error = handle_error


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


def _pass_on(lines: IO[bytes], log_file: Path | None) -> None:
    uncaught = False
    with lines:
        for line, begins in _with_stacks(_without_ends_of_workers(lines)):
            # What belongs to one is indented, or says what it came of.
            uncaught = begins or line.startswith(_UNCAUGHT) or (uncaught and line.startswith(_OF_UNCAUGHT))
            if uncaught:
                _log(line, log_file)
            elif not line.startswith(_STARTUP_LINES):
                with contextlib.suppress(OSError):
                    os.write(_STDERR, line)


def _with_stacks(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Return each line, and whether it is an error of Java's with a stack below it."""
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
    """Leave out that a Python worker, which Spark needs no more, found its connection closed.

    Ours end without a word. Those that Spark asks for data sources are forked by its own daemon, whatever the session
    says.
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
