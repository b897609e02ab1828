"""What Spark says when something fails, in a line: of the hundreds that its JVM writes, those that name the reason."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PySparkException

from strandline.core.errors import ConfigurationError, SparkError, StrandlineError, UserCodeError
from strandline.core.failure import shortened
from strandline.spark.base.task_errors import SEAL

_MOST = 600
_DATA_EXCEPTION = re.compile(r"\[([A-Z][A-Z_.0-9]*)\] .{0,2000}? SQLSTATE: 22\w{3}", re.DOTALL)
"""The error of an expression that rows do not fit, by the SQL standard's class of such errors."""
_TOO_LARGE = re.compile(r"STRANDLINE-ROW:(.*?):END", re.DOTALL)
_JAVA = re.compile(
    r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+\w[\w$]*(?:Exception|Error|Throwable))(?:: (.*))?$", re.MULTILINE
)
_OVERFLOW = "[ARITHMETIC_OVERFLOW]"
_RAISED = "[USER_RAISED_EXCEPTION] "
_LOST = re.compile(r"^.*?Lost task \S+ in stage \S+ \(TID \d+\) \(.*?\): ([\w.$]+): ")
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+([A-Za-z_][^\n]*)")
_CONDITION = re.compile(r"\[([A-Z][A-Z_.0-9]*)\]")
_NO_REASONS = (
    "TASK_WRITE_FAILED",
    "FAILED_EXECUTE_UDF",
    "STREAM_FAILED",
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "INTERNAL_ERROR",
)
_UNREAD = re.compile("STRANDLINE-UNREAD:(.*?):END", re.DOTALL)
_PERMANENT = (AnalysisException, ParseException, IllegalArgumentException)
_PERMANENT_CONDITIONS = ("DATA_SOURCE_NOT_FOUND", "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE", "MULTIPLE_DATA_SOURCE")


def too_large(said: str) -> str:
    """Return an SQL expression that fails with this text, another SQL expression, as the reason."""
    return f"raise_error(concat('STRANDLINE-ROW:', {said}, ':END'))"


def overflow(said: str) -> str:
    """Return an SQL expression that fails as Spark does where it is not told to be lenient."""
    text = said.replace("\\", "\\\\").replace("'", "\\'")
    return f"raise_error('{_OVERFLOW} {text}. SQLSTATE: 22003')"


def unread(name: str, text: str) -> str:
    """Return an SQL expression that fails since a row of a source cannot be read: an SQL expression of its text."""
    whose = f" of the source ''{name}''" if name else ""
    return f"raise_error(concat('STRANDLINE-UNREAD:a row{whose} cannot be read', '|', {text}, ':END'))"


def unwrap_error(error: BaseException) -> BaseException:
    """Return the error that Spark wrapped, if it is one of ours or the rows' own; of another of Spark's, the reason.

    What is nobody's but the program's own is returned as it is.
    """
    if isinstance(error, StrandlineError):
        return error
    text = str(error)
    if found := SEAL.find(text):
        return found
    if large := _TOO_LARGE.search(text):
        what, _, of = large[1].partition("|")
        return UserCodeError(
            f"{what}{of}",
            hint="keep large values elsewhere and send where they are; or raise max_row in Settings, and Spark's "
            "memory with it: it holds several copies of a row",
            discreet=what,
        )
    if row := _UNREAD.search(text):
        what, _, of = row[1].partition("|")
        return UserCodeError(
            f"{what}: {shortened(of)}",
            hint="mend it, or say on_error='dead-letter', which leaves such rows out and gives them to dead_letters",
            discreet=what,
        )
    if data := _DATA_EXCEPTION.search(text.replace(f"{_RAISED}{_OVERFLOW}", _OVERFLOW)):
        what = "rows do not fit an expression of the program: "
        return UserCodeError(
            f"{what}{data[0]}",
            hint="cast to a wider type, drop such rows, or take an expression that gives null for them, as try_cast "
            "does",
            discreet=f"{what}[{data[1]}] (what Spark says of them may quote values, and is not shown here)",
        )
    return in_words(error) if isinstance(error, PySparkException | Py4JError) else error


def in_words(error: BaseException, where: str = "") -> StrandlineError:
    """Return what Spark threw as an error of one line; all of it is in its attribute `whole`."""
    text = str(error)
    reason = reason_of(text)
    condition = _CONDITION.search(reason)
    kind = f"[{condition[1]}]" if condition else reason.partition(":")[0]
    permanent = isinstance(error, _PERMANENT) or (condition is not None and condition[1] in _PERMANENT_CONDITIONS)
    made: type[StrandlineError] = ConfigurationError if permanent else SparkError
    found = made(
        f"{where}Spark {'refused' if permanent else 'failed'}: {shortened(reason, _MOST)}",
        hint="fix the program or what it needs, and start again: the same would come again" if permanent else "",
        discreet=f"{where}Spark {'refused' if permanent else 'failed'}: {kind}",
        is_sparks=True,
    )
    vars(found)["whole"] = text
    return found


def whole_of(error: BaseException) -> str:
    """Return all that Spark said with an error, if it was Spark's; else nothing."""
    whole: Any = vars(error).get("whole", "")
    return str(whole)


def reason_of(text: str) -> str:
    """Return the line of what Spark says that names the reason: the last cause, or what Python raised in a worker."""
    if raised := _PYTHON.findall(text):
        return str(raised[-1]).strip()
    found = _JAVA.findall(text)
    if not found:
        return _shorter(text.strip().splitlines()[0] if text.strip() else "it gave no reason")
    # What names its own condition, unless that says only that there was another failure.
    told = [each for each in found if (named := _CONDITION.search(each[1])) and named[1] not in _NO_REASONS]
    name, said = told[-1] if told else found[-1]
    if not said and len(found) > 1:
        name, said = found[-2] if found[-2][1] else found[-1]
    line = f"{name}: {said}"
    if lost := _LOST.match(line):
        line = f"{lost[1]}: {line[lost.end() :]}"
        name = lost[1]
    return _shorter(line.replace(name, name.rpartition(".")[2], 1).removesuffix(": "))


def frames_of(text: str) -> str:
    """Return a stack of Java's or Python's without what its errors say, which may quote values."""
    kept = []
    for line in text.splitlines():
        if java := _JAVA.match(line):
            kept.append(line[: java.end(1)])
        elif line.startswith(("\tat ", "\t... ", '  File "', "Traceback (")):
            kept.append(line)
    return "\n".join(kept)


def _shorter(line: str) -> str:
    return re.sub(r"\s*(SQLSTATE: \w{5}|; line \d+ pos \d+).*$", "", line).rstrip(" ;")
