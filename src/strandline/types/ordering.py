"""The order that Spark sorts values in, for Python values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.types.datatypes import ArrayType, DataType, DoubleType, FloatType, StructType


def check_order(schema: StructType, order_by: Sequence[str], who: str, stream: str) -> None:
    """Refuse to sort by a column that there is not, or that has no order; errors begin with `who`."""
    for name in order_by:
        # A Column, say: compared with a name, it is another Column.
        if not isinstance(name, str) or name not in schema.names:
            raise ConfigurationError(f"{who}: order_by names {name!r}; {stream} has {', '.join(schema.names)}")
        (kind,) = schema.types_of([name])
        if kind.contains_map():
            raise ConfigurationError(
                f"{who}: order_by names '{name}', a {kind.ddl}, and maps have no order",
                hint="order by what says which one is the later, as a version or a time",
            )


def comparable(kind: DataType) -> Callable[[Any], Any]:
    """Return what makes of values something that sorts as Spark sorts them: null comes first, NaN last."""
    some = _comparable_present(kind)
    return lambda value: (False,) if value is None else (True, some(value))


def _comparable_present(kind: DataType) -> Callable[[Any], Any]:
    if isinstance(kind, ArrayType):
        one = comparable(kind.element)
        return lambda value: list(map(one, value))
    if isinstance(kind, StructType):
        each = [comparable(field.type) for field in kind.fields]
        return lambda value: [part(of) for part, of in zip(each, tuple(value), strict=True)]
    if isinstance(kind, FloatType | DoubleType):
        return lambda value: (True, 0.0) if math.isnan(value) else (False, value)
    return lambda value: value
