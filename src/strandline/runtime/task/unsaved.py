"""Finds data that a function keeps outside of its states, and values read from state that it changes in place.

No checkpoint has such data. The variables that a function's code reaches, of its instance, its classes, its modules and
closures, are compared after each epoch: always in a harness, and in the first epochs of a job, since it takes time.
Objects that `open()` creates may be lost, and so may variables that the function names in `not_state`.
"""

from __future__ import annotations

import dis
import enum
import linecache
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from strandline.api.states import State
from strandline.core.errors import UserCodeError
from strandline.runtime.program import Process
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.scope import NoKey

_EPOCHS = 5
"""The number of epochs with rows in which a job looks."""
_MOST_PARTS, _MOST_BYTES, _DEEPEST = 2000, 1 << 16, 6
"""The part of a variable that is compared."""
_MOST_FUNCTIONS, _MOST_CHANGES = 200, 1000
_SCALARS = (int, str, bytes, date, time, timedelta, UUID)
_MUTATORS = (
    {name for kind in (list, dict, set, deque) for name in dir(kind) if not name.startswith("_")}
    - {"copy", "count", "index", "get", "items", "keys", "values", "fromkeys"}
) | {"move_to_end", "subtract"}
_STORES = {
    "self": ("STORE_ATTR", "DELETE_ATTR"),
    "class": ("STORE_ATTR", "DELETE_ATTR"),
    "global": ("STORE_GLOBAL", "DELETE_GLOBAL"),
    "closure": ("STORE_DEREF", "DELETE_DEREF"),
}
_ALL_STORES = {opname for opnames in _STORES.values() for opname in opnames}
_DECLARED = {
    int: 'sl.Value("bigint", default=0)',
    float: 'sl.Value("double", default=0.0)',
    str: 'sl.Value("string")',
    list: 'sl.List("string")',
    dict: 'sl.Map("string", "bigint")',
    set: 'sl.Map("string", "boolean")',
}
_CACHED = type(lru_cache(len))
_ABSENT = object()
_NONE = (type(None), None)
"""The mark of None."""


class Variable(NamedTuple):
    """A variable that a function reaches."""

    kind: str
    owner: str
    """Its class or module."""
    name: str

    def __str__(self) -> str:
        if self.kind in ("self", "class"):
            return f"'{self.owner}.{self.name}'"
        return f"'{self.name}' of {self.owner}"


class _Reference(NamedTuple):
    opname: str
    name: Any
    file: str
    line: int


@dataclass(frozen=True)
class Finding:
    """A likely mistake: a variable in place of a state, or, less certain, a change not assigned to the state."""

    error: UserCodeError
    file: str
    line: int
    is_certain: bool


class UnsavedState:
    """Compares the variables of a function between epochs, and collects its changes of values read from state."""

    def __init__(self, process: Process, uid: str) -> None:
        self._process, self._uid = process, uid
        self.epochs_left: float = _EPOCHS
        self._classes = [each for each in type(process).__mro__ if _package(each) not in ("strandline", "builtins")]
        self._packages = {*map(_package, self._classes)}
        self._functions = list(self._reachable())
        named: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for each in self._functions:
            named.setdefault(id(each.__globals__), (each.__globals__, set()))[1].update(_globals_of(each))
        self._globals = list(named.values())
        self._changes: dict[tuple[str, str, int], tuple[Any, set[Any], str]] = {}
        """Changes of read values, by state and line: the state's table, the keys, and the advice on assignment."""
        self._seen = self._look()
        self._free: set[Variable] = set()

    def opened(self) -> None:
        """Ignore from now on the variables that open() has created or changed."""
        now, named = self._look(), _names(getattr(self._process, "not_state", ())) | self._stored_by_open()
        self._free = {each for each, mark in now.items() if each.name in named or self._seen.get(each, _ABSENT) != mark}
        self._seen = now

    def _stored_by_open(self) -> set[str]:
        """Return the names that open(), and functions it calls, assign, even if the values stay the same."""
        called, stored = {"open"}, set[str]()
        waiting = list(self._functions)
        while next_ones := [each for each in waiting if each.__name__ in called]:
            waiting = [each for each in waiting if each not in next_ones]
            for each in next_ones:
                called |= _globals_of(each)
                stored |= {one.name for one in _references(each.__code__) if one.opname in _ALL_STORES}
        return stored

    def note_change(self, state: str, how: str, table: Any, key: Any, frame: FrameType) -> None:
        """Record that this frame changes a value which was read from a state."""
        at = state, frame.f_code.co_filename, frame.f_lineno
        if len(self._changes) >= _MOST_CHANGES:
            return
        key = None if type(key) is NoKey else key
        keys = self._changes.setdefault(at, (table, set(), how))[1]
        if key not in keys:
            keys.add(key)
            if table.journal is not None:
                # If the call fails and is undone, its changes do not count.
                table.journal.note((keys.discard, key))

    def begin(self) -> None:
        """Begin an epoch: changes since the last one, as a test makes them, are not the function's."""
        self._seen = self._look()

    def find(self) -> list[Finding]:
        """Return the mistakes in an epoch that has run, and is not committed yet; each mistake once."""
        return [*self._find_variables(), *self._find_changes()]

    def forget(self) -> None:
        """Discard the changes of an epoch that failed."""
        self._changes.clear()

    def _find_variables(self) -> Iterator[Finding]:
        before, self._seen = self._seen, self._look()
        for variable, mark in self._seen.items():
            old = before.get(variable, _ABSENT)
            if old is _ABSENT and variable.kind == "self":
                # The first assignment to an attribute of the instance, which was the class's until then.
                of_class = (before[each] for each in before if (each.kind, each.name) == ("class", variable.name))
                old = next(of_class, _ABSENT)
            if not _differ(old, mark) or variable in self._free:
                continue
            self._free.add(variable)
            yield self._unsaved(variable, mark[0])

    def _unsaved(self, variable: Variable, kind: type) -> Finding:
        file, line = self._place_of(variable)
        place = _place_text(file, line)
        what = {"self": "an attribute", "class": "a class variable", "global": "a global variable"}
        error = UserCodeError(
            f"operator '{self._uid}': {type(self._process).__name__} changes {variable}{place}, "
            f"{what.get(variable.kind, 'a variable')} and no state: no checkpoint has it, the next process begins "
            "without it, and all keys of a partition share it",
            hint=f"declare a state in the class, as in {variable.name} = {_DECLARED.get(kind, _DECLARED[int])}; a "
            "cache, or a count for a log, that may be lost is made in open(), or named in the class: "
            f'not_state = ("{variable.name}",)',
            operator=self._uid,
        )
        return Finding(error, file, line, is_certain=True)

    def _find_changes(self) -> Iterator[Finding]:
        changes, self._changes = self._changes, {}
        for (state, file, line), (table, keys, how) in changes.items():
            variable = Variable("copy", file, f"{state}:{line}")
            written = {key for key, _ in table.undo} if isinstance(table, MapTable) else table.undo.keys()
            if keys <= set(written) or variable in self._free:
                continue
            self._free.add(variable)
            error = UserCodeError(
                f"operator '{self._uid}': a value read from state '{state}' is changed{_place_text(file, line)}, "
                "and not assigned: the state stays as it was",
                hint=f"{how}; if the state is to stay, change a copy, as list(x) and dict(x) are",
                operator=self._uid,
            )
            yield Finding(error, file, line, is_certain=False)

    # -- variables

    def _look(self) -> dict[Variable, Any]:
        marks = {
            Variable("self", "self", name): _mark(value, self._packages)
            for name, value in dict(vars(self._process)).items()
            if name != "_bound_states"
        }
        for each in self._classes:
            variables = [(name, value) for name, value in dict(vars(each)).items() if not name.startswith("__")]
            for name, value in variables:
                if name != "not_state" and not issubclass(type(value), State):
                    marks[Variable("class", each.__name__, name)] = _mark(value, self._packages)
        for module, names in self._globals:
            for name in names:
                if name in module:
                    where = f"module {module.get('__name__', '?')}"
                    marks[Variable("global", where, name)] = _mark(module[name], self._packages)
        for function in self._functions:
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                try:
                    marks[Variable("closure", "the function around", name)] = _mark(cell.cell_contents, self._packages)
                except ValueError:
                    # Not assigned yet.
                    continue
        return {variable: mark for variable, mark in marks.items() if mark is not None}

    def _reachable(self) -> Iterator[FunctionType]:
        """Yield the functions of the classes, and those of their packages that they use."""
        waiting = [_function(value) for each in self._classes for value in vars(each).values()]
        known: set[int] = set()
        while waiting and len(known) < _MOST_FUNCTIONS:
            function = waiting.pop()
            if function is None or id(function) in known:
                continue
            known.add(id(function))
            yield function
            used = (_function(function.__globals__.get(name)) for name in _globals_of(function))
            waiting += [each for each in used if each and _package(each) in self._packages]

    def _place_of(self, variable: Variable) -> tuple[str, int]:
        """Return the line that most likely changes a variable: it assigns it, or calls a mutator, or else reads it."""
        at_work = [
            reference
            for each in self._functions
            if each.__name__ not in ("__init__", "open", "close")
            for reference in _references(each.__code__)
        ]
        naming = [each for each in at_work if each.name == variable.name]
        changing = {
            (each.file, each.line)
            for each in at_work
            if each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or each.name in _MUTATORS
        }
        stores = [each for each in naming if each.opname in _STORES[variable.kind]]
        mutating = [each for each in naming if (each.file, each.line) in changing]
        for candidates in (stores, mutating, naming):
            if candidates:
                return candidates[0].file, candidates[0].line
        return "", 0


def _mark(value: Any, packages: Collection[str] = ()) -> Any:
    """Return a mark, equal for equal values of plain data; None if a value is, or holds, anything else."""
    try:
        return _mark_of(value, packages, [_MOST_PARTS], 0)
    except Exception:
        # Another thread changes it, or its own methods raise.
        return None


class _Attributes(NamedTuple):
    """The mark of an object of a user's class: those of its attributes."""

    marks: dict[str, Any]

    def __hash__(self) -> int:
        return hash(frozenset(self.marks.items()))


class _OpaqueError(Exception):
    """A client, a model or a function: it has no value to compare."""


def _differ(old: Any, new: Any) -> bool:
    """Whether a variable was changed. A change from None, or from no value, is lazy creation and does not count."""
    if old is _ABSENT or old == _NONE:
        return False
    if old[0] is new[0] and isinstance(old[1], _Attributes) and isinstance(new[1], _Attributes):
        before, now = old[1].marks, new[1].marks
        return any(name not in now or _differ(mark, now[name]) for name, mark in before.items())
    return bool(old != new)


def _mark_of(value: Any, packages: Collection[str], left: list[int], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (int, str, bool, bytes):
        return kind, value
    left[0] -= 1

    def each(parts: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(_mark_of(part, packages, left, depth + 1) for part in parts)

    if isinstance(value, float | complex | Decimal):
        # By text, NaN equals itself.
        return kind, repr(value)
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, _SCALARS):
        return kind, value
    if isinstance(value, bytearray):
        return kind, bytes(value[:_MOST_BYTES]), len(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return kind, value.tobytes() if value.nbytes <= _MOST_BYTES else value.nbytes
    if isinstance(value, dict | list | tuple | set | frozenset | deque):
        left[0] -= len(value)
        if left[0] < 0 or depth > _DEEPEST:
            return kind, len(value)
        if isinstance(value, dict):
            return kind, each(value.keys()), each(value.values())
        return kind, frozenset(each(value)) if isinstance(value, set | frozenset) else each(value)
    if _package(kind) in packages and hasattr(value, "__dict__") and not isinstance(value, type):
        left[0] -= len(vars(value))
        if left[0] < 0 or depth > _DEEPEST:
            return kind, ""
        return kind, _Attributes(
            {name: _mark_of(part, packages, left, depth + 1) for name, part in dict(vars(value)).items()}
        )
    raise _OpaqueError


def _package(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def _function(value: Any) -> FunctionType | None:
    """Return the function in an attribute of a class, or in a variable; None if there is none.

    It reads no attributes of other objects: these may return anything, or raise.
    """
    kind, function = type(value), None
    if kind is FunctionType:
        function = vars(value).get("__wrapped__", value)
    elif kind is _CACHED:
        function = value.__wrapped__
    elif issubclass(kind, property):
        function = value.fget
    elif issubclass(kind, staticmethod | classmethod | MethodType):
        function = value.__func__
    return function if type(function) is FunctionType else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _references(code: CodeType) -> Iterator[_Reference]:
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            line = instruction.positions.lineno if instruction.positions else None
            yield _Reference(instruction.opname, instruction.argval, code.co_filename, line or 0)


def _globals_of(function: FunctionType) -> set[str]:
    return {name for code in _codes(function.__code__) for name in code.co_names}


def _names(names: str | Iterable[str]) -> set[str]:
    return {names} if isinstance(names, str) else set(names)


def _place_text(file: str, line: int) -> str:
    """Return a place for a message, with the line's text, as far as it is known."""
    if not line:
        return ""
    text = linecache.getline(file, line).strip()
    return f" ({file}, line {line}{': ' if text else ''}{text})"
