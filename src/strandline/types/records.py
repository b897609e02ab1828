"""Rows and struct values as tuples with names."""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from strandline.core.errors import ConfigurationError

_FIXED = "{0}: a record never changes; create another, as in record._replace({1}={2!r}), or a dict of record._asdict()"


class Record(tuple[Any, ...]):
    """An event, a row or a struct value: immutable, `record.name` and `record["any name"]`, equal to a plain tuple.

    A name that is not a Python identifier, is a keyword, or begins with an underscore, works with [] only.
    """

    __slots__ = ()

    _fields: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}

    if TYPE_CHECKING:
        # At run time each name is a descriptor in C. A __getattr__ would make every access slow.
        def __getattr__(self, name: str) -> Any: ...

        @classmethod
        def _make(cls, values: Any) -> Self:
            """Make a record of an iterable with one value for each name. For speed, it does not check their number."""
            ...

    def __getitem__(self, at: Any) -> Any:
        if type(at) is str:
            position = self._positions.get(at)
            if position is None:
                raise KeyError(f"the record has no {at!r}: the names are {', '.join(self._fields)}")
            at = position
        return tuple.__getitem__(self, at)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(_FIXED.format(f"{name} = {value!r}", name, value))

    def __setitem__(self, name: Any, value: Any) -> NoReturn:
        raise TypeError(_FIXED.format(f"[{name!r}] = {value!r}", name, value))

    def _asdict(self) -> dict[str, Any]:
        """Return a dict of names and values, in order."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, changes: Mapping[str, Any] | None = None, /, **named: Any) -> Self:
        """Return a record with some values changed; pass names that are not identifiers in a dict."""
        changed = {**(changes or {}), **named}
        record = self._make([changed.pop(name, value) for name, value in zip(self._fields, self, strict=True)])
        if changed:
            raise ValueError(f"the record has no {', '.join(changed)}: the names are {', '.join(self._fields)}")
        return record

    def __repr__(self) -> str:
        parts = (
            f"{name if name.isidentifier() else '`' + name + '`'}={value!r}"
            for name, value in zip(self._fields, self, strict=True)
        )
        return f"Record({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._fields, tuple(self))


def record_type(names: Sequence[str]) -> type[Record]:
    """Return the record class for names; equal names have the same class."""
    return _record_type(tuple(names))


@lru_cache(maxsize=4096)
def _record_type(names: tuple[str, ...]) -> type[Record]:
    if len(set(names)) != len(names):
        raise ConfigurationError(
            f"two columns have one name, among {', '.join(names)}", hint="rename one of them with withColumnRenamed"
        )
    members: dict[str, Any] = {
        "__slots__": (),
        "_fields": names,
        "_positions": {name: position for position, name in enumerate(names)},
    }
    # namedtuple's getters are the fastest, and work in any class. Keep their class referenced until they are copied:
    # garbage collection empties the dict of an unreferenced class.
    donor = namedtuple("Getters", [f"f{position}" for position in range(len(names))])  # type: ignore[misc]
    getters = vars(donor)
    for position, name in enumerate(names):
        if name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_"):
            members[name] = getters[f"f{position}"]
    # A partial of the C constructor: half the cost of a class method written in Python.
    record: type[Record] = type("Record", (Record,), members)
    setattr(record, "_make", staticmethod(partial(tuple.__new__, record)))  # noqa: B010
    return record


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Record:
    return _record_type(names)._make(values)
