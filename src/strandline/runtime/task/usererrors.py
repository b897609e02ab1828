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
_TERMINAL = (
    "a job's processes have no terminal: run the function in strandline.testing.Harness, where breakpoint() works; or "
    "print() values, which `strandline logs JOB` shows"
)
_SPARK = (
    "the SparkSession, DataFrames and pyspark's functions are for the driver: write plain Python here; collect a small "
    "table into a dict before, or send it as a stream with broadcast(); expressions of Spark go before key_by()"
)
_NO_VALUE = (
    "a Value is None until it is assigned: declare it with a default, as in sl.Value('bigint', default=0), or test for "
    "None"
)
_NO_TIME = "ctx.timestamp is None without event time: call .watermark('column') before key_by()"
_MOST_TRACE = 20_000
_LONGEST_CHAIN = 10
_MEMORY = (
    "the keeper could have no more memory: have the function hold less, lower state_memory in Settings, or give the "
    "machine or container more, and start again"
)


def user_error(
    uid: str, process: Process, error: BaseException, method: str, key: Any = None, event: Any = None
) -> StrandlineError:
    """Return the error that names the function, the key and the event, with the user's own traceback.

    A KeyboardInterrupt, a GeneratorExit or an error of the state's backend is raised as it is.
    """
    _let_through(error)
    method, event = user_call(process, method, event)
    if isinstance(process, BuiltinOperator) and process.own_hides_events and method != "on_timer":
        event = None
    what = "for the timer" if method == "on_timer" else "in the event"
    shown_key, shown_event = shortened(repr(key)), shortened(repr(event))
    is_own = isinstance(process, BuiltinOperator) and process.own_hides_events
    where = f" for key {shown_key}, {what} {shown_event}" if event is not None else ""
    if is_own and event is None and key is not None:
        where = f" for key {shown_key}"
    trace = error.__traceback__
    if isinstance(process, BuiltinOperator) and process.own_function:
        whose, error = f"{process.own_function} raised", process.explained(error)
    elif isinstance(process, BuiltinOperator) and process.own_step:
        whose = f"{process.own_step}() failed"
    else:
        whose = f"{method} of {type(process).__name__} raised"
    message, text = describe_error(error, trace)
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"operator '{uid}': {whose}{where}: {shortened(message)}\n{text}".rstrip(),
        hint=_hint_for(error),
        discreet=discreetly(f"operator '{uid}': {whose}", error, trace),
        operator=uid,
        key=shown_key,
        event=shown_event,
        traceback=text,
    )


def step_error(step: str, error: BaseException, row: Any) -> UserCodeError:
    """Return the error of a stateless function, which names the row; see `user_error`."""
    _let_through(error)
    message, text = describe_error(error, error.__traceback__)
    shown_row = shortened(repr(row))
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"{step}: the function raised on the row {shown_row}: {shortened(message)}\n{text}".rstrip(),
        hint=_hint_for(error),
        discreet=discreetly(f"{step}: the function raised", error, error.__traceback__),
        event=shown_row,
        traceback=text,
    )


def refuse_breakpoint(*_: Any, **__: Any) -> NoReturn:
    """Raise UserCodeError for a breakpoint() in a process without a terminal: `sys.breakpointhook` there."""
    raise UserCodeError("breakpoint() needs a terminal, which a keeper does not have", hint=_TERMINAL)


def _hint_for(error: BaseException) -> str:
    """Return the next step for an error of a user's function."""
    if hint := getattr(error, "hint", ""):
        return str(hint)
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, ModuleNotFoundError):
        return TO_INSTALL
    if isinstance(error, bdb.BdbQuit | EOFError):
        return _TERMINAL
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Row and types are in types.py, and work anywhere.
    if any("pyspark" in file.parts and file.name != "types.py" for file in files):
        return _SPARK
    if isinstance(error, TypeError | AttributeError) and "NoneType" in text_of(error):
        line = next((frame.line or "" for frame in reversed(traceback.extract_tb(error.__traceback__))), "")
        return _NO_TIME if "ctx.timestamp" in line else _NO_VALUE if ".value" in line else TO_FIX
    return TO_FIX


def _let_through(error: BaseException) -> None:
    # Any other BaseException may be the user's: a Rust library's panic, or a framework's timeout, is no Exception.
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
    # Memory may run out anywhere, also in a backend: the hint for it says what to do.
    of_backend = backends_error(error)
    if of_backend is not None and not isinstance(of_backend, MemoryError):
        raise of_backend


def backends_error(error: BaseException) -> BaseException | None:
    """Return the state backend's error that caused an error, as that of a failing disk; None if there is none.

    A backend's library may raise any type. The function may have raised another error in response.
    """
    came_of: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if came_of is None:
            break
        # A backend calls no code of the user's.
        frames = traceback.walk_tb(came_of.__traceback__)
        if any(frame.f_code.co_filename.startswith(_BACKENDS) for frame, _ in frames):
            return came_of
        came_of = came_of.__cause__ or came_of.__context__
    return None


def describe_error(error: BaseException, trace: TracebackType | None) -> tuple[str, str]:
    """Return an exception's message in the user's terms, and the traceback without the frames of this package.

    The package's frames, as of a handle that refuses a value, do not help. Its own messages are not repeated below the
    traceback.
    """
    summary = traceback.TracebackException(type(error), error, trace)
    summary.stack = traceback.StackSummary.from_list([f for f in summary.stack if not f.filename.startswith(_PACKAGE)])
    ours = error.message if isinstance(error, StrandlineError) else no_attribute(error)
    if ours:
        stack = "".join(["Traceback (most recent call last):\n", *summary.stack.format()]) if summary.stack else ""
        return ours, stack.rstrip()
    return f"{type(error).__name__}: {text_of(error)}", shortened("".join(summary.format()).rstrip(), _MOST_TRACE)


def discreetly(what: str, error: BaseException, trace: TracebackType | None) -> str:
    """Return a description of an error without values: its type, and the lines that raised it.

    The message of an error may quote any value, and so may those of the errors that caused it.
    """
    frames = [f for f in traceback.extract_tb(trace) if not f.filename.startswith(_PACKAGE)]
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in frames]
    if isinstance(error, StrandlineError) and error._discreet:
        return "\n".join([f"{what}: {error.discreet}", *lines])
    return "\n".join([f"{what} {type(error).__name__} (what it says may quote values, and is not shown here)", *lines])


def text_of(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as another:
        return f"<its text raises {type(another).__name__}>"
