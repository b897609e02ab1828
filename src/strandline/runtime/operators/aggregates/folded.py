"""Built-in aggregates of windows event by event, for windows whose results come after certain events.

Windows are those of Python functions, with an accumulator each. An event is an accumulator of one row: the key's
columns, the number of rows, the accumulator's columns, and columns for the window's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from strandline.api.windows import Window
from strandline.core.errors import StateTypeError
from strandline.format.values import ValueCodec
from strandline.runtime.operators.aggregates.accumulators import Accumulators
from strandline.runtime.operators.aggregates.grouping import Groups
from strandline.runtime.operators.windows.contents import Contents, Row
from strandline.types.columns import build, to_python
from strandline.types.datatypes import DataType, DoubleType, LongType, parse_type
from strandline.types.records import record_type

_PAIR = Groups(np.zeros(2, np.int64), 1)
_PLAIN = LongType | DoubleType


class Accumulating(Contents):
    """One accumulator a window."""

    is_value = True

    def __init__(self, accumulators: Accumulators, at: int) -> None:
        self.value_type = f"struct<{', '.join(f'{f.name}: {f.ddl}' for f in accumulators.fields)}>"
        self.states = {}
        self._accumulators = accumulators
        self._at = at
        """The index of the accumulator's first column in an event."""
        self._width = len(accumulators.fields)

    def open(self, operator: Any) -> None:
        """Prepare the merge of one column after the other, if it is possible without Arrow."""
        fields = self._accumulators.fields
        self._kinds: list[DataType] = [parse_type(field.ddl) for field in fields]
        self._coerce = ValueCodec(parse_type(self.value_type)).coerce
        self._empty = tuple(field.empty for field in fields)
        self._merges = [
            _add if field.merge == "sum" and isinstance(kind, _PLAIN) else None
            for field, kind in zip(fields, self._kinds, strict=True)
        ]
        self._is_plain = all(self._merges)

    def start(self) -> Any:
        return self._coerce(self._empty)

    def add(self, at: int, value: Any, event: Any) -> Any:
        return self._merged(value, tuple(event)[self._at : self._at + self._width])

    def merge(self, at: int, value: Any, other: int, other_value: Any) -> Any:
        return self._merged(value, other_value)

    def rows(self, key: Any, window: Window | None, at: int, value: Any) -> Iterable[Row]:
        """Return one row: the results."""
        columns = [build([part], kind) for part, kind in zip(self._filled(value), self._kinds, strict=True)]
        specs = self._accumulators.results
        results = zip(self._accumulators.compute_results(columns), specs, strict=True)
        return [tuple(to_python(column, parse_type(spec.ddl))[0] for column, spec in results)]

    def _filled(self, value: Any) -> Sequence[Any]:
        """Return an accumulator's columns; a column that was added to the program later has its empty value."""
        pairs = zip(tuple(value), self._empty, strict=True)
        return [empty if part is None else part for part, empty in pairs]

    def _merged(self, older: Any, newer: Any) -> Any:
        pairs = list(zip(self._filled(older), self._filled(newer), strict=True))
        if self._is_plain:
            # The case of nearly every aggregate: Arrow takes thirty times as long for two numbers.
            parts = [_add(*pair) for pair in pairs]
        else:
            columns = [build(list(pair), kind) for pair, kind in zip(pairs, self._kinds, strict=True)]
            merged = self._accumulators.merge(columns, _PAIR)
            parts = [to_python(column, kind)[0] for column, kind in zip(merged, self._kinds, strict=True)]
        try:
            return self._coerce(tuple(parts))
        except StateTypeError:
            # The message leaves out the accumulator's column names, which users do not know.
            where = [kind.ddl for kind, part in zip(self._kinds, parts, strict=True) if isinstance(part, int)]
            raise StateTypeError(
                f"a sum does not fit into {where[0]}", hint="cast the column to a wider decimal or to double"
            ) from None


class OfRow:
    """Wraps a user's function of an event: calls it with the columns that the user knows."""

    def __init__(self, function: Callable[..., Any], names: Sequence[str], places: Sequence[int]) -> None:
        self._function = function
        self._names = tuple(names)
        self._places = tuple(places)

    def __call__(self, event: Any, *more: Any) -> Any:
        plain = tuple(event)
        return self._function(record_type(self._names)._make([plain[at] for at in self._places]), *more)


def _add(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other
