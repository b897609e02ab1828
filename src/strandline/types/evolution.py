"""From values of an old type to values of a new one: which changes lose nothing, and how each is made.

A path names a part of a type: `price` and `address.city` are fields, `items[]` the elements of an array, `prices{}` the
values of a map and `prices{key}` its keys. Names that are no plain words stand in backticks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.types.coercion import EXACT_DECIMALS, MisfitError, coercion, shown
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    TimestampNTZType,
    quoted,
)
from strandline.types.hints import Hints
from strandline.types.plain import Convert, copier, each_element, entry_by_entry
from strandline.types.records import record_type

# Whole numbers up to 2 to the power of this are exact in a float.
_EXACT_BITS: dict[type[DataType], int] = {FloatType: 24, DoubleType: 53}
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}


def checked(hints: Hints, kind: DataType) -> Hints:
    """Return hints with values in their one form; raise ConfigurationError for what the type does not have."""
    fields = fields_of(kind)
    for what, given in (("renamed", hints.renamed), ("fill", hints.fill)):
        for path in given:
            if path not in fields:
                raise ConfigurationError(
                    f"{what} names {path!r}, and {kind.ddl} has no such field",
                    hint=f"its fields are {', '.join(fields) or 'none'}",
                )
    try:
        fill = {path: coercion(fields[path])(value) for path, value in hints.fill.items() if value is not None}
    except MisfitError as misfit:
        raise ConfigurationError(f"fill does not fit {kind.ddl}: {misfit}") from None
    return replace(hints, renamed=dict(hints.renamed), fill=fill)


@dataclass(frozen=True)
class Gone:
    """A field of the old type that the new one does not have."""

    path: str
    """In the old type."""
    name: str
    added: tuple[tuple[str, str], ...]
    """The new fields of the same struct, by path in the new type and name: each may be this one, renamed."""


@dataclass(frozen=True)
class Converter:
    """The way from values of the old type to values of the new one."""

    convert: Convert | None
    """Of a value that is not null; None if every value stays what it is."""
    changes: tuple[str, ...]
    """What differs, for people; empty if nothing does."""
    gone: tuple[Gone, ...] = ()
    """The fields whose values are left out."""


@dataclass(frozen=True)
class Refusal:
    """Why values of the old type cannot be read as values of the new one."""

    reasons: tuple[str, ...]
    """Each begins with the path that it is about."""


def evolve(old: DataType, new: DataType, hints: Hints | None = None) -> Converter | Refusal:
    """Return how values of `old` become values of `new` without a loss, or all that stands against it.

    `hints` are checked ones. A converter is given no null, and shares with its argument what did not change.

    >>> from strandline.types.datatypes import parse_type
    >>> old = parse_type("struct<id: bigint, items: array<struct<price: bigint>>>")
    >>> evolve(old, parse_type("struct<id: bigint, items: array<struct<price: int>>>"))
    Refusal(reasons=('value.items[].price: bigint -> int would lose numbers',))
    >>> evolve(old, parse_type("struct<id: bigint, n: int>"), Hints(fill={"n": 1})).changes
    ('value.n: added, int, filled with 1', 'value.items: dropped')
    """
    walk = _Walk(hints or Hints())
    convert = walk.step(old, new, "", "")
    if walk.reasons:
        return Refusal(tuple(walk.reasons))
    return Converter(convert, tuple(walk.changes), tuple(walk.gone))


def sources_of(old: StructType, new: StructType, hints: Hints) -> dict[str, str | None]:
    """Return of each field of a new struct which field of an old one it comes of; None: it is new."""
    return _Walk(hints)._sources(old, new, "")


def fields_of(kind: DataType) -> dict[str, DataType]:
    """Return every field that values of a type hold, by path; none that keys of maps hold."""
    return dict(_fields_of(kind, ""))


class _Walk:
    """One pass over two types: gathers what changes, and what stands against it."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self.changes: list[str] = []
        self.reasons: list[str] = []
        self.gone: list[Gone] = []

    def step(self, old: DataType, new: DataType, was: str, path: str) -> Convert | None:
        """Return the conversion of a part that is not null; None if it stays what it is.

        `was` and `path` are where it is in the old type and in the new one.
        """
        if old == new:
            return None
        if isinstance(old, StructType) and isinstance(new, StructType):
            return self._struct(old, new, was, path)
        if isinstance(old, ArrayType) and isinstance(new, ArrayType):
            return each_element(self.step(old.element, new.element, was + "[]", path + "[]"))
        if isinstance(old, MapType) and isinstance(new, MapType):
            if old.key != new.key:
                said = f"{old.key.ddl} -> {new.key.ddl}: the keys of a map keep their type"
                self.reasons.append(f"{_shown(path)}{{key}}: {said}")
            return entry_by_entry(None, self.step(old.value, new.value, was + "{}", path + "{}"))
        return self._scalar(old, new, path)

    def _scalar(self, old: DataType, new: DataType, path: str) -> Convert | None:
        said = f"{_shown(path)}: {old.ddl} -> {new.ddl}"
        found = _widened(old, new)
        if isinstance(found, str):
            self.reasons.append(f"{said} {found}")
            return None
        self.changes.append(said)
        return found[0]

    def _struct(self, old: StructType, new: StructType, was: str, path: str) -> Convert | None:
        at = {name: position for position, name in enumerate(old.names)}
        sources = self._sources(old, new, path)
        parts: list[tuple[int | None, Any]] = []
        for f in new.fields:
            where = _within(path, f.name)
            source = sources[f.name]
            if source is None:
                if where in self._hints.unsaid:
                    self.reasons.append(self._hints.unsaid[where])
                filled = self._hints.fill.get(where)
                what = "null" if filled is None else f"filled with {shown(filled)}"
                self.changes.append(f"{_shown(where)}: added, {f.type.ddl}, {what}")
                parts.append((None, None if filled is None else _filling(f.type, filled)))
                continue
            if source != f.name:
                self.changes.append(f"{_shown(where)}: renamed, was {quoted(source)}")
            kind = old.fields[at[source]].type
            parts.append((at[source], self.step(kind, f.type, _within(was, source), where)))
        added = tuple((_within(path, name), name) for name, source in sources.items() if source is None)
        gone = [name for name in old.names if name not in sources.values()]
        self.gone += [Gone(_within(was, name), name, added) for name in gone]
        self.changes += [f"{_shown(_within(path, name))}: dropped" for name in gone]
        order = [position for position, _ in parts if position is not None]
        if order != sorted(order):
            self.changes.append(f"{_shown(path)}: fields in another order")
        if old.names == new.names and parts == [(position, None) for position in range(len(parts))]:
            return None
        return _rebuilding(len(old.fields), parts, record_type(new.names)._make)

    def _sources(self, old: StructType, new: StructType, path: str) -> dict[str, str | None]:
        """Return which old field each new one comes of; None: it is new."""
        renamed: dict[str, str] = {}
        for name in new.names:
            was = self._hints.renamed.get(_within(path, name))
            if was is None or was not in old.names:
                # Long renamed: the stored type has the new name.
                continue
            where = _shown(_within(path, name))
            if self._hints.several:
                pass
            elif name in old.names:
                self.reasons.append(
                    f"{where}: renamed says that it was {quoted(was)}, and the stored type has both: leave that out"
                )
            elif was in renamed.values():
                self.reasons.append(f"{where}: renamed says that it was {quoted(was)}, as it does of another field")
            renamed[name] = was
        taken = set(renamed.values())
        return {
            name: renamed.get(name, name if name in old.names and name not in taken else None) for name in new.names
        }


def _widened(old: DataType, new: DataType) -> tuple[Convert | None] | str:
    """Return the conversion of a scalar, or what is wrong with it."""
    if isinstance(old, IntegralType):
        return _of_integers(old, new)
    if isinstance(old, FloatType | DoubleType):
        if isinstance(old, FloatType) and isinstance(new, DoubleType):
            return (None,)
        return "would lose digits" if isinstance(new, FloatType | IntegralType | DecimalType) else _OTHER_KIND
    if isinstance(old, DecimalType):
        return _of_decimals(old, new)
    if isinstance(old, DateType) and isinstance(new, TimestampNTZType):
        # A day becomes its midnight, as Spark casts it; of a timestamp it would depend on a time zone.
        return (_midnight,)
    return _OTHER_KIND


_OTHER_KIND = "is another kind of value"


def _of_integers(old: IntegralType, new: DataType) -> tuple[Convert | None] | str:
    if isinstance(new, IntegralType):
        return (None,) if old.width < new.width else "would lose numbers"
    if isinstance(new, FloatType | DoubleType):
        bits = _EXACT_BITS[type(new)]
        return (float,) if 8 * old.width <= bits else f"would round numbers above 2^{bits}"
    if isinstance(new, DecimalType):
        needed = _DIGITS[old.width]
        if new.precision - new.scale < needed:
            return f"would lose numbers: it needs {needed} digits before the point"
        return (_rescaling(new.scale),)
    return _OTHER_KIND


def _of_decimals(old: DecimalType, new: DataType) -> tuple[Convert | None] | str:
    if isinstance(new, DecimalType):
        if new.scale < old.scale:
            return "would lose digits after the point"
        if new.precision - new.scale < old.precision - old.scale:
            return "would lose digits before the point"
        return (None,) if new.scale == old.scale else (_rescaling(new.scale),)
    return "would lose digits" if isinstance(new, IntegralType | FloatType | DoubleType) else _OTHER_KIND


def _rescaling(scale: int) -> Convert:
    step = Decimal((0, (1,), -scale))
    return lambda value: Decimal(value).quantize(step, context=EXACT_DECIMALS)


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime(day.year, day.month, day.day)


def _filling(kind: DataType, value: Any) -> Callable[[], Any]:
    copy = copier(kind)
    return (lambda: value) if copy is None else (lambda: copy(value))


def _rebuilding(count: int, parts: list[tuple[int | None, Any]], make: Convert) -> Convert:
    """Return the function that makes a struct of an old one: each part taken from a position, or filled in.

    Generated, as plain.py's are: a loop over the parts costs twice as much.
    """
    names: dict[str, Any] = {f"c{i}": convert for i, (_, convert) in enumerate(parts)}
    given = []
    for i, (position, convert) in enumerate(parts):
        if position is None:
            given.append("None" if convert is None else f"c{i}()")
        else:
            old = f"v{position}"
            given.append(old if convert is None else f"None if {old} is None else c{i}({old})")
    names["make"] = make
    olds = ", ".join(f"v{i}" for i in range(count))
    exec(f"def convert(value):\n    {olds}, = value\n    return make(({', '.join(given)},))\n", names)
    made: Convert = names["convert"]
    return made


def _fields_of(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        for f in kind.fields:
            where = _within(path, f.name)
            yield where, f.type
            yield from _fields_of(f.type, where)
    elif isinstance(kind, ArrayType):
        yield from _fields_of(kind.element, path + "[]")
    elif isinstance(kind, MapType):
        yield from _fields_of(kind.value, path + "{}")


def _within(path: str, name: str) -> str:
    return f"{path}.{quoted(name)}" if path else quoted(name)


def _shown(path: str) -> str:
    return "value" + (path if not path or path[0] in "[{" else f".{path}")
