"""What a user is told of an exception in a function: whose it was, for which event, and what was meant."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import strandline.backends
from strandline.core.errors import StrandlineError, UserCodeError
from strandline.core.failure import shortened
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import called
from strandline.runtime.program import Process
from strandline.runtime.state.misuse import no_attribute

_PACKAGE = f"{Path(__file__).parent.parent.parent}{os.sep}"
_BACKENDS = f"{Path(strandline.backends.__file__).parent}{os.sep}"
_TO_FIX = "fix the function and start again: the job goes on from its last checkpoint"
_MOST_TRACE = 20_000
_LONGEST_CHAIN = 10
_MEMORY = (
    "the keeper could have no more memory: have the function hold less, lower state_memory in Settings, or give the "
    "machine or container more, and start again"
)


def user_error(
    uid: str, process: Process, error: BaseException, method: str, key: Any = None, event: Any = None
) -> StrandlineError:
    """Return the error that says whose function raised, for which key and event, with the user's own traceback.

    What interrupts a function, or closes a generator, or its state's backend raises, is raised as it is.
    """
    _let_through(error)
    method, event = called(process, method, event)
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
    said, text = told(error, trace)
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"operator '{uid}': {whose}{where}: {shortened(said)}\n{text}".rstrip(),
        hint=getattr(error, "hint", "") or (_MEMORY if isinstance(error, MemoryError) else _TO_FIX),
        discreet=discreetly(f"operator '{uid}': {whose}", error, trace),
        operator=uid,
        key=shown_key,
        event=shown_event,
        traceback=text,
    )


def step_error(step: str, error: BaseException, row: Any) -> UserCodeError:
    """Return the error of a stateless function, which says for which row it raised; see `user_error`."""
    _let_through(error)
    said, text = told(error, error.__traceback__)
    shown = shortened(repr(row))
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    return kind(
        f"{step}: the function raised on the row {shown}: {shortened(said)}\n{text}".rstrip(),
        hint=getattr(error, "hint", "") or _TO_FIX,
        discreet=discreetly(f"{step}: the function raised", error, error.__traceback__),
        event=shown,
        traceback=text,
    )


def _let_through(error: BaseException) -> None:
    # Anything else may be a user's: a Rust library's panic, or a framework's timeout, is no Exception.
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
    # Of memory, too, may be too little anywhere: the hint says what to do.
    of_backend = backends_error(error)
    if of_backend is not None and not isinstance(of_backend, MemoryError):
        raise of_backend


def backends_error(error: BaseException) -> BaseException | None:
    """Return what an error came of, if that is where the state is, as a failing disk; a library raises what it likes.

    The function may have raised another one for it.
    """
    came_of: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if came_of is None:
            break
        # A backend calls nothing of the user's.
        frames = traceback.walk_tb(came_of.__traceback__)
        if any(frame.f_code.co_filename.startswith(_BACKENDS) for frame, _ in frames):
            return came_of
        came_of = came_of.__cause__ or came_of.__context__
    return None


def told(error: BaseException, trace: TracebackType | None) -> tuple[str, str]:
    """Return what an exception says, in the user's words, and the traceback without the frames of this package.

    A handle that refuses a value is no help to look at. What we say ourselves is not said again below the traceback.
    """
    found = traceback.TracebackException(type(error), error, trace)
    found.stack = traceback.StackSummary.from_list([f for f in found.stack if not f.filename.startswith(_PACKAGE)])
    ours = error.message if isinstance(error, StrandlineError) else no_attribute(error)
    if ours:
        stack = "".join(["Traceback (most recent call last):\n", *found.stack.format()]) if found.stack else ""
        return ours, stack.rstrip()
    return f"{type(error).__name__}: {text_of(error)}", shortened("".join(found.format()).rstrip(), _MOST_TRACE)


def discreetly(what: str, error: BaseException, trace: TracebackType | None) -> str:
    """Return what is said of an error where no values may stand: of which kind it is, and on which lines it arose.

    What an error says may quote any value, and so may the errors that it came of.
    """
    frames = [f for f in traceback.extract_tb(trace) if not f.filename.startswith(_PACKAGE)]
    lines = [f"  {f.filename}, line {f.lineno}, in {f.name}" for f in frames]
    if isinstance(error, StrandlineError) and error._discreet:
        return "\n".join([f"{what}: {error.discreet}", *lines])
    return "\n".join([f"{what} {type(error).__name__} (what it says may quote values, and is not shown here)", *lines])


def text_of(error: BaseException) -> str:
    """Return what an exception says, whatever the user made of it."""
    try:
        return str(error)
    except Exception as another:
        return f"<its text raises {type(another).__name__}>"
