"""Unwraps Spark's errors: returns the error of Strandline that they contain, or one line with the reason."""

from __future__ import annotations

import builtins
import re
import sysconfig
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkException,
    PythonException,
)

from strandline.core.errors import ConfigurationError, SparkError, StrandlineError, UserCodeError
from strandline.core.failure import shortened
from strandline.runtime.task.usererrors import TO_FIX, TO_INSTALL
from strandline.spark.base.task_errors import SEAL

_ENGINE = (str(Path(__file__).parents[2]), str(Path(pyspark.__file__).parent), "pyspark.zip", "py4j")
_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = ("psycopg", "psycopg_pool", "confluent_kafka", "pyiceberg", "deltalake", "duckdb", "pyarrow", "obstore")
"""Libraries that this package's sinks call: their lines are not the user's code."""
_MAX_REASON = 600
_DATA_EXCEPTION = re.compile(r"\[([A-Z][A-Z_.0-9]*)\] .{0,2000}? SQLSTATE: 22\w{3}", re.DOTALL)
"""An expression's error about the data of a row: class 22 of the SQL standard."""
_TOO_LARGE = re.compile(r"STRANDLINE-ROW:(.*?):END", re.DOTALL)
_JAVA = re.compile(
    r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+\w[\w$]*(?:Exception|Error|Throwable))(?:: (.*))?$", re.MULTILINE
)
_OVERFLOW = "[ARITHMETIC_OVERFLOW]"
_RAISED = "[USER_RAISED_EXCEPTION] "
_LOST_TASK = re.compile(r"^.*?Lost task \S+ in stage \S+ \(TID \d+\) \(.*?\): ([\w.$]+): ")
_OF_KAFKA = re.compile(r"\.kafka010\.Kafka\w+Exception: ")
_UNREADABLE_TIME = "overflows when converting to Spark's microsecond"
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+([A-Za-z_][^\n]*)")
_FRAME = re.compile(r'  File "([^"\n]+)", line (\d+), in ([^\n]+)(?:\n    ([^\n]+))?')
_REPEATED = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError, ValueError,
)  # fmt: skip
"""Errors that a Python function raises again for the same row. Others, such as OSError, may not come again."""
_CONDITION = re.compile(r"\[([A-Z][A-Z_.0-9]*)\]")
_GENERIC_CONDITIONS = (
    "TASK_WRITE_FAILED",
    "FAILED_EXECUTE_UDF",
    "STREAM_FAILED",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "INTERNAL_ERROR",
)
_UNREADABLE = re.compile("STRANDLINE-UNREAD:(.*?):END", re.DOTALL)
_PERMANENT = (AnalysisException, ParseException, IllegalArgumentException)
_PERMANENT_CONDITIONS = ("DATA_SOURCE_NOT_FOUND", "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE", "MULTIPLE_DATA_SOURCE")


def raise_too_large(message: str) -> str:
    """Return an SQL expression that raises the error of a row that is too large; `message` is an SQL expression."""
    return f"raise_error(concat('STRANDLINE-ROW:', {message}, ':END'))"


def raise_overflow(message: str) -> str:
    """Return an SQL expression that raises Spark's error of an arithmetic overflow, in every SQL mode."""
    text = message.replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{_OVERFLOW} {text}. SQLSTATE: 22003')"


def raise_unreadable(source: str, row: str) -> str:
    """Return an SQL expression that raises the error of a row that cannot be read; `row` is SQL for its text."""
    of_source = f" of the source ''{source}''" if source else ""
    return f"raise_error(concat('STRANDLINE-UNREAD:a row{of_source} cannot be read', '|', {row}, ':END'))"


def unwrap_error(error: BaseException) -> BaseException:
    """Return the error of Strandline in an error of Spark, or an error about the rows, or one with Spark's reason.

    An error of another library, or of the program, is returned unchanged.
    """
    if isinstance(error, StrandlineError):
        return error
    text = str(error)
    if sealed := SEAL.find(text):
        return sealed
    if large := _TOO_LARGE.search(text):
        message, _, details = large[1].partition("|")
        return UserCodeError(
            f"{message}{details}",
            hint="store large values elsewhere and send references; or raise max_row in Settings, and Spark's memory, "
            "which holds several copies of a row",
            discreet=message,
        )
    if unreadable := _UNREADABLE.search(text):
        message, _, row = unreadable[1].partition("|")
        return UserCodeError(
            f"{message}: {shortened(row)}",
            hint="correct the row, or set on_error='dead-letter', which skips such rows and sends them to dead_letters",
            discreet=message,
        )
    if data := _DATA_EXCEPTION.search(text.replace(f"{_RAISED}{_OVERFLOW}", _OVERFLOW)):
        message = "rows do not fit an expression of the program: "
        return UserCodeError(
            f"{message}{data[0]}",
            hint="cast to a wider type, drop such rows, or use an expression that returns null for them, as try_cast",
            discreet=f"{message}[{data[1]}] (Spark's message may quote values, and is not shown here)",
        )
    if not isinstance(error, PySparkException | Py4JError):
        return error
    return (_error_of_function(text) if isinstance(error, PythonException) else None) or summarize(error)


def _error_of_function(text: str) -> StrandlineError | None:
    """Return the error of a Python function of a step, as a UDF, that would fail again; None if a retry may help."""
    raised = list(_PYTHON.finditer(text))
    if not raised:
        return None
    reason = raised[-1][1].strip()
    kind, _, message = reason.partition(": ")
    frames = [frame for frame in _FRAME.findall(raised[-1][0]) if is_user_code(frame[0])]
    lines = [f"{file}, line {line}, in {function}: {code}".rstrip(": ") for file, line, function, code in frames]
    at = f"\n  {in_program(lines)}" if lines else ""
    if kind == ModuleNotFoundError.__name__:
        message = f"a Python function of a step of Spark's needs a module: {message}{at}"
        return ConfigurationError(message, hint=TO_INSTALL, is_sparks=True)
    error_type = getattr(builtins, kind, None)
    is_repeated = isinstance(error_type, type) and issubclass(error_type, _REPEATED)
    if not frames or not is_repeated or any(function == "read" for _, _, function, _ in frames):
        # A data source in Python reads from another system, which may answer otherwise the next time.
        return None
    return UserCodeError(
        f"a Python function of a step of Spark's raised {shortened(reason, _MAX_REASON)}{at}",
        hint=TO_FIX,
        discreet=f"a Python function of a step of Spark's raised {kind}{at}",
    )


def in_program(lines: list[str]) -> str:
    """Return the last line of a traceback that is of the program, rather than of an installed package."""
    return next((line for line in reversed(lines) if not any(part in line for part in _INSTALLED)), lines[-1])


def summarize(error: BaseException) -> StrandlineError:
    """Return an error of Spark as one of Strandline with one line; `full_text` returns the rest."""
    text = str(error)
    reason = reason_of(text)
    condition = _CONDITION.search(reason)
    kind = f"[{condition[1]}]" if condition else reason.partition(":")[0]
    permanent = isinstance(error, _PERMANENT) or (condition is not None and condition[1] in _PERMANENT_CONDITIONS)
    error_type: type[StrandlineError] = ConfigurationError if permanent else SparkError
    what = f"Spark {'refused' if permanent else 'failed'}"
    hint = "fix the program or what it needs, and start again: a retry would fail again" if permanent else ""
    if _UNREADABLE_TIME in reason:
        hint = "Spark cannot pass this record; docs/kafka.md, 'Records that Spark cannot read', says what to do"
    summary = error_type(
        f"{what}: {shortened(reason, _MAX_REASON)}",
        hint=hint,
        discreet=f"{what}: {kind}",
        is_sparks=True,
    )
    # The text of a query's error lacks the kind of its cause, and all texts of PySpark's errors lack the stacks.
    cause = getattr(error, "_cause", None)
    stack = getattr(error if cause is None else cause, "_stackTrace", None)
    causes = f"\nCaused by: {cause}" if cause is not None else ""
    vars(summary)["full_text"] = f"{text}{causes}\n{stack}" if stack and stack not in text else f"{text}{causes}"
    return summary


def full_text(error: BaseException) -> str:
    """Return the full text of the error of Spark that `summarize` was called with, "" for other errors."""
    text: Any = vars(error).get("full_text", "")
    return str(text)


def reason_of(text: str) -> str:
    """Return the line of Spark's text that names the reason: an error of a Python worker, or else the last cause."""
    if raised := _PYTHON.findall(text):
        return str(raised[-1]).strip()
    causes = _JAVA.findall(text)
    if not causes:
        return _shorter(text.strip().splitlines()[0] if text.strip() else "it gave no reason")
    # Prefer causes with a condition that names the reason, not one that says only that there was another failure.
    specific = [
        cause for cause in causes if (named := _CONDITION.search(cause[1])) and named[1] not in _GENERIC_CONDITIONS
    ]
    # Those of the Kafka source name topic, partition and offset.
    of_kafka = [cause for cause in causes if _OF_KAFKA.search(": ".join(cause))]
    name, message = (specific or of_kafka or causes)[-1]
    if not message and len(causes) > 1:
        name, message = causes[-2] if causes[-2][1] else causes[-1]
    line = f"{name}: {message}"
    if lost := _LOST_TASK.match(line):
        line = f"{lost[1]}: {line[lost.end() :]}"
        name = lost[1]
    return _shorter(line.replace(name, name.rpartition(".")[2], 1).removesuffix(": "))


def frames_of(text: str) -> str:
    """Return a stack of Java or Python without the messages of errors, which may quote values.

    Of a message that begins with Spark's name of the error, it returns the name.
    """
    condition = _CONDITION.match(text)
    kept = [condition[0]] if condition else []
    for line in text.splitlines():
        if java := _JAVA.match(line):
            kept.append(line[: java.end(1)])
        elif line.startswith(("\tat ", "\t... ", '  File "', "Traceback (")):
            kept.append(line)
    return "\n".join(kept)


def _shorter(line: str) -> str:
    return re.sub(r"\s*(SQLSTATE: \w{5}|; line \d+ pos \d+).*$", "", line).rstrip(" ;")


def is_user_code(filename: str) -> bool:
    """Whether a file in a traceback is of the program: not of Python, Spark, this package or its libraries."""
    if filename.startswith("<frozen") or any(part in filename for part in _ENGINE):
        return False
    parts = Path(filename).parts
    installed = next((at for at, part in enumerate(parts) if part in _INSTALLED), None)
    if installed is not None:
        return parts[installed + 1] not in _LIBRARIES
    return not filename.startswith(_STANDARD)
