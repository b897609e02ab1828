"""Converts exceptions in a user's function to errors that name the function and the event, and suggest a fix."""

from __future__ import annotations

import bdb
import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import strandline.backends
from strandline.core.errors import StrandlineError, UserCodeError
from strandline.core.failure import shortened
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import user_call
from strandline.runtime.program import Process
from strandline.runtime.state.misuse import no_attribute

_PACKAGE = f"{Path(__file__).parent.parent.parent}{os.sep}"
_BACKENDS = f"{Path(strandline.backends.__file__).parent}{os.sep}"
TO_FIX = "fix the function and start again: the job goes on from its last checkpoint"
TO_INSTALL = (
    "install it in the Python environment of all executors, or send a module of your own with "
    "spark.sparkContext.addPyFile('rules.py'); docs/clusters.md says how to ship an environment"
)
_USE_HARNESS = (
    "a job's processes have no terminal: run the function in strandline.testing.Harness, where breakpoint() works; or "
    "print() values, which `strandline logs JOB` shows"
)
_USE_PYTHON = (
    "the SparkSession, DataFrames and pyspark's functions are for the driver: write plain Python here; collect a small "
    "table into a dict before, or send it as a stream with broadcast(); expressions of Spark go before key_by()"
)
_SET_DEFAULT = (
    "a Value is None until it is assigned: declare it with a default, as in sl.Value('bigint', default=0), or test for "
    "None"
)
_ADD_WATERMARK = "ctx.timestamp is None without event time: call .watermark('column') before key_by()"
_MAX_TRACEBACK = 20_000
_MAX_CAUSES = 10
_REDUCE_MEMORY = (
    "the keeper ran out of memory: have the function hold less, lower state_memory in Settings, or give the "
    "machine or container more, and start again"
)


def user_error(
    uid: str, process: Process, error: BaseException, method: str, key: Any = None, event: Any = None
) -> StrandlineError:
    """Return the error that names the function, the key and the event, with the user's own traceback.

    A KeyboardInterrupt, a GeneratorExit or an error of the state's backend is raised unchanged.
    """
    _raise_unless_of_function(error)
    method, event = user_call(process, method, event)
    builtin = process if isinstance(process, BuiltinOperator) else None
    hides_events = builtin is not None and builtin.own_hides_events
    if hides_events and method != "on_timer":
        event = None
    shown_key, shown_event = shortened(repr(key)), shortened(repr(event))
    where = ""
    if event is not None:
        where = f" for key {shown_key}, {'for the timer' if method == 'on_timer' else 'in the event'} {shown_event}"
    elif hides_events and key is not None:
        where = f" for key {shown_key}"
    trace = error.__traceback__
    if builtin is not None and builtin.own_function:
        failed_call, error = f"{builtin.own_function} raised", builtin.explained(error)
    elif builtin is not None and builtin.own_step:
        failed_call = f"{builtin.own_step}() failed"
    else:
        failed_call = f"{method} of {type(process).__name__} raised"
    message, text = describe_error(error, trace)
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"operator '{uid}': {failed_call}{where}: {shortened(message)}\n{text}".rstrip(),
        hint=_hint_for(error),
        discreet=describe_discreetly(f"operator '{uid}': {failed_call}", error, trace),
        operator=uid,
        key=shown_key,
        event=shown_event,
        traceback=text,
    )


def step_error(step: str, error: BaseException, row: Any) -> UserCodeError:
    """Return the error of a stateless function, which names the row; see `user_error`."""
    _raise_unless_of_function(error)
    message, text = describe_error(error, error.__traceback__)
    shown_row = shortened(repr(row))
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"{step}: the function raised on the row {shown_row}: {shortened(message)}\n{text}".rstrip(),
        hint=_hint_for(error),
        discreet=describe_discreetly(f"{step}: the function raised", error, error.__traceback__),
        event=shown_row,
        traceback=text,
    )


def refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Raise UserCodeError for a breakpoint() in a process without a terminal: `sys.breakpointhook` there."""
    raise UserCodeError("breakpoint() needs a terminal, which a keeper does not have", hint=_USE_HARNESS)


def _hint_for(error: BaseException) -> str:
    """Return the next step for an error of a user's function."""
    if hint := getattr(error, "hint", ""):
        return str(hint)
    if isinstance(error, MemoryError):
        return _REDUCE_MEMORY
    if isinstance(error, ModuleNotFoundError):
        return TO_INSTALL
    if isinstance(error, bdb.BdbQuit | EOFError):
        return _USE_HARNESS
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Row and types are in types.py, and work anywhere.
    if any("pyspark" in file.parts and file.name != "types.py" for file in files):
        return _USE_PYTHON
    if isinstance(error, TypeError | AttributeError) and "NoneType" in text_of(error):
        line = next((frame.line or "" for frame in reversed(traceback.extract_tb(error.__traceback__))), "")
        return _ADD_WATERMARK if "ctx.timestamp" in line else _SET_DEFAULT if ".value" in line else TO_FIX
    return TO_FIX


def _raise_unless_of_function(error: BaseException) -> None:
    """Raise interrupts and errors of the state's backend; any other BaseException may be the function's own."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
    # Memory may run out in a backend because of what the function holds.
    backend_error = find_backend_error(error)
    if backend_error is not None and not isinstance(backend_error, MemoryError):
        raise backend_error


def find_backend_error(error: BaseException) -> BaseException | None:
    """Return the error of the state's backend that caused an error, such as that of a failing disk, or None.

    A backend's library may raise any type of error, and the function another error in response to it.
    """
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        # A backend does not call the user's code, so an error that was raised in it is its own.
        frames = traceback.walk_tb(cause.__traceback__)
        if any(frame.f_code.co_filename.startswith(_BACKENDS) for frame, _ in frames):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def describe_error(error: BaseException, trace: TracebackType | None) -> tuple[str, str]:
    """Return an exception's message in the user's terms, and the traceback without the frames of this package.

    The frames of the package, as of a handle that refuses a value, do not help. Its message is not repeated below the
    traceback.
    """
    summary = traceback.TracebackException(type(error), error, trace)
    summary.stack = traceback.StackSummary.from_list([f for f in summary.stack if not f.filename.startswith(_PACKAGE)])
    ours = error.message if isinstance(error, StrandlineError) else no_attribute(error)
    if ours:
        stack = "".join(["Traceback (most recent call last):\n", *summary.stack.format()]) if summary.stack else ""
        return ours, stack.rstrip()
    return f"{type(error).__name__}: {text_of(error)}", shortened("".join(summary.format()).rstrip(), _MAX_TRACEBACK)


def describe_discreetly(what: str, error: BaseException, trace: TracebackType | None) -> str:
    """Return a description of an error without values: its type, and the lines that raised it.

    The message of an error may quote any value, and so may those of the errors that caused it.
    """
    frames = [f for f in traceback.extract_tb(trace) if not f.filename.startswith(_PACKAGE)]
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in frames]
    if isinstance(error, StrandlineError) and error._discreet:
        return "\n".join([f"{what}: {error.discreet}", *lines])
    return "\n".join([f"{what} {type(error).__name__} (its message is left out, since it may quote values)", *lines])


def text_of(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as another:
        return f"<its text raises {type(another).__name__}>"
