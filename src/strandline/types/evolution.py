"""Conversion of values of an old type to a new one, if the change loses nothing.

A path names a part of a type: `price` and `address.city` are fields, `items[]` the elements of an array, `prices{}` the
values of a map and `prices{key}` its keys. Names that are not plain words are in backticks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.types.coercion import EXACT_DECIMALS, MisfitError, coercion, short_repr
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
from strandline.types.plain import Convert, copier, each_element, entry_by_entry, rebuild_function
from strandline.types.records import record_type

# Integers of so many bits are exact in a float.
_EXACT_BITS: dict[type[DataType], int] = {FloatType: 24, DoubleType: 53}
_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}


def validate_hints(hints: Hints, kind: DataType) -> Hints:
    """Return hints with coerced values; raise ConfigurationError for a field that the type does not have."""
    fields = fields_of(kind)
    for option, paths in (("renamed", hints.renamed), ("fill", hints.fill)):
        for path in paths:
            if path not in fields:
                raise ConfigurationError(
                    f"{option} names {path!r}, and {kind.ddl} has no such field",
                    hint=f"its fields are {', '.join(fields) or 'none'}",
                )
    try:
        fill = {path: coercion(fields[path])(value) for path, value in hints.fill.items() if value is not None}
    except MisfitError as misfit:
        raise ConfigurationError(f"fill does not fit {kind.ddl}: {misfit}") from None
    return replace(hints, renamed=dict(hints.renamed), fill=fill)


@dataclass(frozen=True)
class DroppedField:
    """A field of the old type that the new one does not have."""

    path: str
    """The path in the old type."""
    name: str
    added: tuple[tuple[str, str], ...]
    """Path in the new type and name of each new field of the same struct: any of them may be this one, renamed."""


@dataclass(frozen=True)
class Converter:
    """The conversion from values of the old type to values of the new one."""

    convert: Convert | None
    """The conversion of a value that is not null; None if no value changes."""
    changes: tuple[str, ...]
    """A description of each difference."""
    dropped: tuple[DroppedField, ...] = ()


@dataclass(frozen=True)
class TypeMismatch:
    """The reasons why values of the old type cannot become values of the new one."""

    reasons: tuple[str, ...]
    """Each begins with a path."""


def evolve(old: DataType, new: DataType, hints: Hints | None = None) -> Converter | TypeMismatch:
    """Return the lossless conversion of values of `old` to values of `new`, or the reasons why there is none.

    `hints` have been validated. Callers convert no nulls; unchanged parts of the result are those of the argument.

    >>> from strandline.types.datatypes import parse_type
    >>> old = parse_type("struct<id: bigint, items: array<struct<price: bigint>>>")
    >>> evolve(old, parse_type("struct<id: bigint, items: array<struct<price: int>>>"))
    TypeMismatch(reasons=('value.items[].price: bigint -> int would lose numbers',))
    >>> evolve(old, parse_type("struct<id: bigint, n: int>"), Hints(fill={"n": 1})).changes
    ('value.n: added, int, filled with 1', 'value.items: dropped')
    """
    walk = _Walk(hints or Hints())
    convert = walk.step(old, new, "", "")
    if walk.reasons:
        return TypeMismatch(tuple(walk.reasons))
    return Converter(convert, tuple(walk.changes), tuple(walk.dropped))


def sources_of(old: StructType, new: StructType, hints: Hints) -> dict[str, str | None]:
    """Return the source of each field of a new struct, a field of the old one; None for an added field."""
    return _Walk(hints)._sources(old, new, "")


def fields_of(kind: DataType) -> dict[str, DataType]:
    """Return every field of a type by path, except those in keys of maps."""
    return dict(_fields_of(kind, ""))


class _Walk:
    """One pass over two types. It collects the changes, and the reasons to refuse them."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        self.changes: list[str] = []
        self.reasons: list[str] = []
        self.dropped: list[DroppedField] = []

    def step(self, old: DataType, new: DataType, was: str, path: str) -> Convert | None:
        """Return the conversion of a part that is not null; None if it does not change.

        `was` and `path` are its paths in the old and the new type.
        """
        if old == new:
            return None
        if isinstance(old, StructType) and isinstance(new, StructType):
            return self._struct(old, new, was, path)
        if isinstance(old, ArrayType) and isinstance(new, ArrayType):
            return each_element(self.step(old.element, new.element, was + "[]", path + "[]"))
        if isinstance(old, MapType) and isinstance(new, MapType):
            if old.key != new.key:
                change = f"{old.key.ddl} -> {new.key.ddl}"
                self.reasons.append(f"{_label(path)}{{key}}: {change}: the keys of a map keep their type")
            return entry_by_entry(None, self.step(old.value, new.value, was + "{}", path + "{}"))
        return self._scalar(old, new, path)

    def _scalar(self, old: DataType, new: DataType, path: str) -> Convert | None:
        change = f"{_label(path)}: {old.ddl} -> {new.ddl}"
        widening = _widening(old, new)
        if isinstance(widening, str):
            self.reasons.append(f"{change} {widening}")
            return None
        self.changes.append(change)
        return widening[0]

    def _struct(self, old: StructType, new: StructType, was: str, path: str) -> Convert | None:
        at = {name: position for position, name in enumerate(old.names)}
        sources = self._sources(old, new, path)
        parts: list[tuple[int | None, Any]] = []
        for f in new.fields:
            where = _within(path, f.name)
            source = sources[f.name]
            if source is None:
                if where in self._hints.refused:
                    self.reasons.append(self._hints.refused[where])
                fill = self._hints.fill.get(where)
                content = "null" if fill is None else f"filled with {short_repr(fill)}"
                self.changes.append(f"{_label(where)}: added, {f.type.ddl}, {content}")
                parts.append((None, None if fill is None else _filling(f.type, fill)))
                continue
            if source != f.name:
                self.changes.append(f"{_label(where)}: renamed, was {quoted(source)}")
            kind = old.fields[at[source]].type
            parts.append((at[source], self.step(kind, f.type, _within(was, source), where)))
        added = tuple((_within(path, name), name) for name, source in sources.items() if source is None)
        dropped = [name for name in old.names if name not in sources.values()]
        self.dropped += [DroppedField(_within(was, name), name, added) for name in dropped]
        self.changes += [f"{_label(_within(path, name))}: dropped" for name in dropped]
        order = [position for position, _ in parts if position is not None]
        if order != sorted(order):
            self.changes.append(f"{_label(path)}: fields in another order")
        if old.names == new.names and parts == [(position, None) for position in range(len(parts))]:
            return None
        return rebuild_function(len(old.fields), parts, record_type(new.names)._make)

    def _sources(self, old: StructType, new: StructType, path: str) -> dict[str, str | None]:
        """Return the old field from which each new one comes; None for an added field."""
        renamed: dict[str, str] = {}
        for name in new.names:
            was = self._hints.renamed.get(_within(path, name))
            if was is None or was not in old.names:
                continue  # The stored type has the new name already.
            where = _label(_within(path, name))
            if self._hints.always_rename:
                pass
            elif name in old.names:
                self.reasons.append(
                    f"{where}: renamed says that it was {quoted(was)}, and the stored type has both: leave that out"
                )
            elif was in renamed.values():
                self.reasons.append(f"{where}: renamed says that it was {quoted(was)}, as it does of another field")
            renamed[name] = was
        former = set(renamed.values())
        return {
            name: renamed.get(name, name if name in old.names and name not in former else None) for name in new.names
        }


def _widening(old: DataType, new: DataType) -> tuple[Convert | None] | str:
    """Return the conversion of a scalar in a tuple, or the reason why there is none."""
    if isinstance(old, IntegralType):
        return _of_integers(old, new)
    if isinstance(old, FloatType | DoubleType):
        if isinstance(old, FloatType) and isinstance(new, DoubleType):
            return (None,)
        return "would lose digits" if isinstance(new, FloatType | IntegralType | DecimalType) else _OTHER_KIND
    if isinstance(old, DecimalType):
        return _of_decimals(old, new)
    if isinstance(old, DateType) and isinstance(new, TimestampNTZType):
        # A date becomes its midnight, as Spark casts it. For a timestamp, that would depend on a time zone.
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
        digits = _DIGITS[old.width]
        if new.precision - new.scale < digits:
            return f"would lose numbers: it needs {digits} digits before the point"
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


def _label(path: str) -> str:
    return "value" + (path if not path or path[0] in "[{" else f".{path}")
