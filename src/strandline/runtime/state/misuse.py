"""Errors for handles that are used in place of their values, and for attributes that do not exist.

A handle stands for the state of the current key. Python would evaluate `if self.n:` as true whatever the value is, and
`self.n == 0` as false. So every operation that a handle does not support raises an error that says what to write.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

from strandline.core.errors import UserCodeError
from strandline.types.records import Record

COMPARED = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
_COMPUTED = tuple(
    f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor", "lshift",
                 "rshift", "matmul")
    for prefix in ("", "r", "i")
    if (prefix, name) != ("i", "divmod")
)  # fmt: skip
_SPELLING = {"__hash__": "hash()", "__bool__": "if", "__contains__": "in", "__iter__": "for", "__getitem__": "[…]",
         "__setitem__": "[…] = …", "__delitem__": "del […]"}  # fmt: skip
ALL = (
    *COMPARED, *_COMPUTED, "__bool__", "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__",
    "__delitem__", "__call__", "__neg__", "__pos__", "__abs__", "__invert__", "__int__", "__float__", "__index__",
    "__round__", "__str__", "__format__",
)  # fmt: skip
"""Operations of values that no handle of one value supports."""
COMPUTED = (*_COMPUTED, "__neg__", "__pos__", "__abs__", "__invert__", "__int__", "__float__", "__index__", "__round__")


class Handle:
    """Base of all handles: their names in messages, and the error for unsupported operations."""

    __slots__ = ()

    what: ClassVar[str] = "state"
    """The kind of the declared state."""
    to_read: ClassVar[str]
    """The code that reads its value; `{0}` is the attribute."""
    has: ClassVar[str]
    """Its operations."""

    @property
    def state_name(self) -> str:
        """The attribute that the state was declared as."""
        return self._name  # type: ignore[attr-defined,no-any-return]

    def __repr__(self) -> str:
        return f"<the {self.what} state '{self.state_name}' itself: {self.to_read.format(self.state_name)} reads it>"

    def refuse(self, did: str) -> NoReturn:
        """Raise the error for a function that uses the handle in place of its value."""
        raise UserCodeError(
            f"state '{self.state_name}' was used with {did}: it is the {self.what} state itself, not its value",
            hint=f"write {self.to_read.format(self.state_name)}",
        )


def refusing(*methods: str) -> Callable[[type], type]:
    """Return a decorator of a handle class: these methods raise an error that says what to write."""

    def decorate(kind: type) -> type:
        for method in methods:
            setattr(kind, method, _refusal(method))
        return kind

    return decorate


def _refusal(method: str) -> Callable[..., NoReturn]:
    name = method.strip("_")
    did = _SPELLING.get(method) or _SIGNS.get(name) or f"{name}()"
    if method in COMPARED or method in _COMPUTED:
        did = _SPELLING.get(method) or _SIGNS.get(name) or _SIGNS.get(name[1:], name)

    def refused(self: Handle, *_: Any) -> NoReturn:
        self.refuse(did)

    refused.__name__ = method
    return refused


_SIGNS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "add": "+", "sub": "-", "mul": "*",
    "truediv": "/", "floordiv": "//", "mod": "%", "divmod": "divmod()", "pow": "**", "and": "&", "or": "|", "xor": "^",
    "neg": "-", "pos": "+", "invert": "~", "call": "()", "lshift": "<<", "rshift": ">>", "matmul": "@",
}  # fmt: skip


def no_attribute(error: BaseException) -> str:
    """Return the message for an attribute that an event, a state or the context does not have; else ""."""
    if isinstance(error, TypeError) and "'Record' object is not a mapping" in str(error):
        return "an event is a row, not a dict: write {**event._asdict(), …}"
    if not isinstance(error, AttributeError):
        return ""
    thing, name = error.obj, error.name
    assigned = _ASSIGNED.match(str(error))
    if assigned and (thing is None or assigned[3]):
        # For an assignment, Python 3.11 does not name the object; later versions say that it is an assignment.
        kinds = {kind.__name__: kind for kind in _kinds(Handle)}
        kind = kinds.get(assigned[1])
        return f"a {kind.what} state has no '{assigned[2]}' to assign to; it has {kind.has}" if kind else ""
    if isinstance(thing, Record) and name:
        return _no_column(thing, name)
    if isinstance(thing, Handle):
        return f"state '{thing.state_name}' is a {thing.what}, which has no '{name}'; it has {thing.has}"
    known = getattr(type(thing), "own_words", None)
    return f"{known[0]} has no '{name}'; it has {', '.join(known[1])}" if isinstance(known, tuple) else ""


_ASSIGNED = re.compile(r"'(\w+)' object has no attribute '(\w+)'(.* for setting new attributes)?")


def _kinds(kind: type[Handle]) -> Iterator[type[Handle]]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


def _no_column(record: Record, name: str) -> str:
    names = record._fields
    if name in names:
        why = "begins with '_'" if name.startswith("_") else "is a word of Python's"
        return f"the column '{name}' is no attribute, as its name {why}: write event[{name!r}]"
    if name in ("get", "keys", "values", "items", "asDict", "to_dict"):
        return f"a record has no '{name}': read event.{names[0]} or event['{names[0]}'], or make a dict with ._asdict()"
    near = difflib.get_close_matches(name, names, 1)
    meant = f": did you mean '{near[0]}'?" if near else ""
    return f"there is no column '{name}'; there are {join_names(names)}{meant}"


def join_names(names: Sequence[str], most: int = 30) -> str:
    """Return names for a message, shortened to the first `most`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
