"""Copies of lists and dicts that a function reads from state, which the function may change.

A change of a copy without a reference is lost: `self.tags.value.append(x)` would have no effect, silently. That raises
an error, and no other change does: a function that holds a reference may assign the copy later, or may not. If unsaved
state is looked for, the change is recorded, so that a copy that is changed and not assigned is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from strandline.core.errors import UserCodeError
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import DataType
from strandline.types.plain import copier

Copy = Callable[[Any], Any]

_OF_LISTS = ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "__setitem__", "__delitem__")
_OF_DICTS = ("update", "pop", "popitem", "clear", "setdefault", "__setitem__", "__delitem__")
_NOTED: dict[Any, tuple[str, ...]] = {list: ("__iadd__", "__imul__"), dict: ("__ior__",)}
"""Methods that change a copy which has a reference, or is assigned at once."""
_SPELLING = {"__setitem__": "[…] = …", "__delitem__": "del […]"}


def copy_for(kind: DataType, scope: Scope, table: object, state: str, how: str) -> Copy | None:
    """Return the function that copies a state's values for its function; None if they are not mutable.

    `how` is the advice on how to write such a value back into the state, which is in `table`.
    """
    if copier(kind) is None:
        return None

    def lost(method: str) -> UserCodeError:
        did = _SPELLING.get(method, f"{method}()")
        return UserCodeError(f"state '{state}': {did} changes a copy that is lost: the state stays as it was", hint=how)

    def note() -> None:
        if scope.unsaved is not None:
            # The frame of the function that called the list's or dict's method.
            scope.unsaved.note_change(state, how, table, scope.key, sys._getframe(2))

    return copier(kind, _watched(list, _OF_LISTS, lost, note), _watched(dict, _OF_DICTS, lost, note))


def _watched(
    base: type, methods: tuple[str, ...], lost: Callable[[str], UserCodeError], note: Callable[[], None]
) -> Copy:
    # It looks like a plain list or dict; copies and pickles of it are plain ones.
    names: dict[str, Any] = {"__slots__": (), "__reduce_ex__": lambda self, protocol: (base, (base(self),))}
    names |= {method: _watching(getattr(base, method), method, lost, note) for method in (*methods, *_NOTED[base])}
    return type(base.__name__, (base,), names)


def _watching(
    change: Callable[..., Any], method: str, lost: Callable[[str], UserCodeError], note: Callable[[], None]
) -> Callable[..., Any]:
    fewest = _FEWEST.get(method, 0)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if sys.getrefcount(self) <= fewest:
            raise lost(method)
        note()
        return change(self, *args, **kwargs)

    return changed


class _Counting:
    """Measures the reference count of an object without a holder, in a call, an item assignment and a deletion."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def call(self, *args: Any, **kwargs: Any) -> None:
        self.counts.append(sys.getrefcount(self))

    def __setitem__(self, *args: Any, **kwargs: Any) -> None:
        self.counts.append(sys.getrefcount(self))

    def __delitem__(self, *args: Any, **kwargs: Any) -> None:
        self.counts.append(sys.getrefcount(self))


def _count() -> dict[str, int]:
    """Return, by method, the reference count of an object without a holder; only if a held object's count is higher."""
    lost: list[int] = []
    _Counting(lost).call(1)
    _Counting(lost)[0] = 1
    del _Counting(lost)[0]
    kept: list[int] = []
    held = _Counting(kept)
    held.call(1)
    held[0] = 1
    del held[0]
    by_sign = {"__setitem__": 1, "__delitem__": 2}
    places = {method: by_sign.get(method, 0) for method in (*_OF_LISTS, *_OF_DICTS)}
    return {method: lost[place] for method, place in places.items() if lost[place] < kept[place]}


_FEWEST = _count()
