"""Lists and dicts as a function reads them from state: copies, which are its own to change.

A copy that nobody holds is lost with the change: `self.tags.value.append(x)` would do nothing, without a word. That is
refused, and nothing else is: whoever has given the copy a name may want to change it and assign it, or may not. Where
unsaved state is looked for, the change is noted, so that one that is not assigned is found.
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
"""What changes a copy that has a name, or is assigned at once."""
_SAID = {"__setitem__": "[…] = …", "__delitem__": "del […]"}


def copy_for(kind: DataType, scope: Scope, table: object, state: str, how: str) -> Copy | None:
    """Return the copy of what is mutable in a state's values, as its function is given it; None if nothing is.

    `how` says how such a value gets back into the state, which is in `table`.
    """
    if copier(kind) is None:
        return None

    def lost(method: str) -> UserCodeError:
        did = _SAID.get(method, f"{method}()")
        return UserCodeError(f"state '{state}': {did} changes a copy that is lost: the state stays as it was", hint=how)

    def note() -> None:
        if scope.unsaved is not None:
            # Of the function that has called the method that calls this.
            scope.unsaved.note_change(state, how, table, scope.key, sys._getframe(2))

    return copier(kind, _watched(list, _OF_LISTS, lost, note), _watched(dict, _OF_DICTS, lost, note))


def _watched(
    base: type, methods: tuple[str, ...], lost: Callable[[str], UserCodeError], note: Callable[[], None]
) -> Copy:
    # To whoever looks, it is a list or a dict; copies and pickles of it are no more than that.
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
    """What an object that nobody holds counts of references to itself, in a call and in the signs for one."""

    def __init__(self, found: list[int]) -> None:
        self.found = found

    def call(self, *args: Any, **kwargs: Any) -> None:
        self.found.append(sys.getrefcount(self))

    def __setitem__(self, *args: Any, **kwargs: Any) -> None:
        self.found.append(sys.getrefcount(self))

    def __delitem__(self, *args: Any, **kwargs: Any) -> None:
        self.found.append(sys.getrefcount(self))


def _count() -> dict[str, int]:
    """Return for each method how few references there are where nobody holds the object; none that does not show it."""
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
