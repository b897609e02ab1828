"""Checks of a program's operators before it runs: uids, parallelism, process functions and side outputs."""

from __future__ import annotations

import difflib
import dis
import inspect
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from strandline.api.badrecords import DEAD_LETTERS, OnError, on_error_of
from strandline.api.joins import KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import State, declared_states
from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import MAX_MAX_PARALLELISM, check_parallelism
from strandline.plan.callables import check_function
from strandline.runtime.builtin import BuiltinOperator


def check_uid(what: str, uid: Any) -> None:
    """Refuse a missing uid: it identifies the operator's state."""
    if not isinstance(uid, str) or not uid.strip():
        raise ConfigurationError(
            f"{what} has no uid" if not uid else f"{what}: uid is {uid!r}, expected text",
            hint="give it a name of its own that never changes, by its keyword: uid='totals'; state is found by it",
        )


def check_numbers(uid: str, parallelism: Any, max_parallelism: Any) -> None:
    """Refuse an invalid parallelism or max_parallelism of an operator."""
    for what, number in (("parallelism", parallelism), ("max_parallelism", max_parallelism)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ConfigurationError(f"operator '{uid}': {what} is {number!r}, expected a number")
    if max_parallelism is not None:
        check_parallelism(uid, 1 if parallelism is None else parallelism, max_parallelism)
    elif parallelism is not None:
        check_parallelism(uid, parallelism, MAX_MAX_PARALLELISM)


def check_process(process: Any, uid: str) -> None:
    """Refuse an invalid process function."""
    if isinstance(process, type):
        raise ConfigurationError(
            f"operator '{uid}': process() was given the class {process.__name__}, expected an instance",
            hint=f"write process({process.__name__}(), …)",
        )
    if not isinstance(process, KeyedProcess | KeyedBatchProcess):
        raise ConfigurationError(
            f"operator '{uid}': process() was given a {type(process).__name__}, expected a KeyedProcess or a "
            "KeyedBatchProcess",
            hint="derive your class from strandline.KeyedProcess",
        )
    method, base = ("on_event", KeyedProcess) if isinstance(process, KeyedProcess) else ("on_batch", KeyedBatchProcess)
    if getattr(type(process), method) is getattr(base, method):
        raise ConfigurationError(
            f"operator '{uid}': {type(process).__name__} does not define {method}", hint=_nearest(process, method)
        )
    declared = declared_states(process)
    if not isinstance(process, BuiltinOperator):
        _check_declarations(type(process), base, declared, uid)
        _check_methods(process, uid)
    if isinstance(process, KeyedBatchProcess) and hasattr(process, "on_timer"):
        raise ConfigurationError(
            f"operator '{uid}': {type(process).__name__} is a KeyedBatchProcess, which has no timers: its on_timer "
            "would never be called",
            hint="write it as a KeyedProcess",
        )
    for name, value in vars(process).items():
        if isinstance(value, State) and name not in declared:
            raise ConfigurationError(
                f"operator '{uid}': {type(process).__name__} declares its state '{name}' in __init__",
                hint=f"write it in the body of the class: {name} = sl.{type(value).__name__}(…)",
            )
    for name, state in declared.items():
        if name in vars(process):
            raise ConfigurationError(
                f"operator '{uid}': {type(process).__name__} assigns to its state '{name}' before it runs",
                hint=f"leave that out of __init__: each key has a {state.kind} of its own; a Value can have a default=",
            )


def _check_declarations(kind: type, base: type, declared: Collection[str], uid: str) -> None:
    """Refuse states with names of the base class, and states that are written as annotations."""
    for name in declared:
        if hasattr(base, name):
            raise ConfigurationError(
                f"operator '{uid}': {kind.__name__} declares a state '{name}', which is a name of {base.__name__}",
                hint=f"give the state another name, such as {name}_state",
            )
    for each in kind.__mro__:
        for name, annotation in inspect.get_annotations(each).items():
            text = annotation if isinstance(annotation, str) else repr(annotation)
            if name not in vars(each) and (isinstance(annotation, State) or _STATE_ANNOTATION.match(text)):
                raise ConfigurationError(
                    f"operator '{uid}': {kind.__name__} declares no state '{name}': a colon gives only a type",
                    hint=f"write = in place of the colon: {name} = sl.Value(…)",
                )


_STATE_ANNOTATION = re.compile(
    r"((<class ')?(sl|strandline)\.([\w.]+\.)?|(?=\w+\())(Value|List|Map|Reducing|Aggregating|Broadcast)\b"
)
"""A declaration of a state, or its class, as the text of an annotation; `List[int]` is of typing."""


def _check_methods(process: Any, uid: str) -> None:
    """Refuse methods with wrong arguments, and misspelled names of methods."""
    kind = type(process)
    known = _METHODS if isinstance(process, KeyedProcess) else _BATCH_METHODS
    for method, args in known.items():
        function = getattr(kind, method, None)
        # A method that the class does not override is Strandline's.
        if function is not None and not function.__module__.startswith("strandline.api."):
            check_function(f"operator '{uid}': {method} of {kind.__name__}", getattr(process, method), args)
    for name in dir(kind):
        if name.startswith("on_") and name not in known and callable(getattr(kind, name)):
            near = difflib.get_close_matches(name, known, 1, 0.8)
            if near:
                raise ConfigurationError(
                    f"operator '{uid}': {kind.__name__} defines {name}, which is never called",
                    hint=f"is it {near[0]}? a method of your own may have a name that does not begin with 'on_'",
                )


def _nearest(process: Any, method: str) -> str:
    """Return a hint for a missing method: rename a similar one, or write it."""
    near = difflib.get_close_matches(method, [name for name in dir(type(process)) if name != method], 1, 0.7)
    args = ", ".join(["self", *(_METHODS | _BATCH_METHODS)[method]])
    return f"rename {near[0]}" if near and near[0].startswith("on") else f"write def {method}({args}): …"


_METHODS: dict[str, list[str]] = {
    "on_event": ["event", "ctx"], "on_left": ["event", "ctx"], "on_right": ["event", "ctx"],
    "on_broadcast": ["event", "ctx"], "on_timer": ["timer", "ctx"], "open": [], "close": [],
}  # fmt: skip
_BATCH_METHODS: dict[str, list[str]] = {"on_batch": ["batch", "ctx"], "open": [], "close": []}


def check_sides(uid: str, sides: Any) -> None:
    """Refuse invalid side outputs."""
    if not isinstance(sides, Mapping) or not all(isinstance(name, str) for name in sides):
        raise ConfigurationError(
            f"operator '{uid}': sides is {sides!r}, expected schemas by name",
            hint='write sides={"late": "user string, at timestamp"}',
        )


def check_on_error(process: Any, uid: str, on_error: Any, sides: Collection[str]) -> OnError:
    """Return how an operator handles events that its function fails for; refuse what it cannot do."""
    policy = on_error_of(f"operator '{uid}'", on_error)
    # Built-in operators are columnar, and can tell apart the rows without a key.
    if not policy.fails and isinstance(process, KeyedBatchProcess) and not isinstance(process, BuiltinOperator):
        raise ConfigurationError(
            f"operator '{uid}': on_error is '{policy.then}', and {type(process).__name__} is a KeyedBatchProcess, "
            "which fails for a whole batch, not for an event",
            hint="write it as a KeyedProcess, or catch errors in on_batch and ctx.emit() the bad rows to a side output",
        )
    if policy.has_dead_letters and DEAD_LETTERS in sides:
        raise ConfigurationError(
            f"operator '{uid}': its side output '{DEAD_LETTERS}' has the name of the one that on_error='dead-letter' "
            "gives",
            hint="rename it in `sides`",
        )
    return policy


def check_inputs(process: Any, uid: str, method: Literal["key_by", "connect", "broadcast"]) -> None:
    """Refuse a function that does not fit the streams that `method` returns, or lacks a method."""
    name = type(process).__name__
    fitting = next((m for m, (kind, _) in _FUNCTIONS.items() if isinstance(process, kind)), "key_by")
    if fitting != method:
        expected = _FUNCTIONS[method][0].__name__ if method in _FUNCTIONS else "KeyedProcess or a KeyedBatchProcess"
        raise ConfigurationError(
            f"operator '{uid}': after {method}(), process() was given {name}, expected a {expected}",
            hint=_HINTS.get(fitting, f"derive your class from strandline.{expected}"),
        )
    if method == "key_by":
        return
    kind, methods = _FUNCTIONS[method]
    for each in methods:
        if getattr(type(process), each) is getattr(kind, each):
            raise ConfigurationError(f"operator '{uid}': {name} does not define {each}", hint=_nearest(process, each))
    if kind is KeyedCoProcess and type(process).on_event is not KeyedCoProcess.on_event:
        raise ConfigurationError(
            f"operator '{uid}': {name} defines on_event, which a KeyedCoProcess must not",
            hint="define on_left and on_right, or derive it from strandline.KeyedProcess",
        )


_FUNCTIONS: dict[str, tuple[type, tuple[str, ...]]] = {
    "connect": (KeyedCoProcess, ("on_left", "on_right")),
    "broadcast": (KeyedBroadcastProcess, ("on_event", "on_broadcast")),
}
_HINTS = {
    "connect": "a KeyedCoProcess is for a.key_by(…).connect(b.key_by(…)).process(…)",
    "broadcast": "a KeyedBroadcastProcess is for a.key_by(…).broadcast(rules).process(…)",
}


def missing_yield(process: Any, uid: str) -> str:
    """Return a warning if no call of a function can give a row, most likely for want of a `yield`; else ""."""
    if not isinstance(process, KeyedProcess) or isinstance(
        process, BuiltinOperator | KeyedCoProcess | KeyedBroadcastProcess
    ):
        return ""
    kind = type(process)
    methods = [method for method in (kind.on_event, kind.on_timer) if method is not KeyedProcess.on_timer]
    if any(_may_give_rows(method) for method in methods):
        return ""
    return (
        f"operator '{uid}': on_event of {kind.__name__} gives no rows: it has no yield, and returns nothing; if it "
        "should give rows, write yield row"
    )


def _may_give_rows(method: Any) -> bool:
    """Return False if all that a method does at its end is to return None, and it sends nothing to a side output."""
    code = getattr(method, "__code__", None)
    if code is None or inspect.isgeneratorfunction(method) or "emit" in code.co_names:
        return True
    steps = list(dis.get_instructions(code))
    # Python 3.12 and 3.13 have RETURN_CONST; others load the constant before.
    ends = [
        step if step.opname == "RETURN_CONST" else steps[at - 1]
        for at, step in enumerate(steps)
        if step.opname.startswith("RETURN_") and step.opname != "RETURN_GENERATOR"
    ]
    return not ends or any(end.opname not in ("LOAD_CONST", "RETURN_CONST") or end.argval is not None for end in ends)
