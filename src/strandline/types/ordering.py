"""Spark's sort order for Python values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.types.datatypes import ArrayType, DataType, DoubleType, FloatType, StructType


def check_order(schema: StructType, order_by: Sequence[str], step: str, stream: str) -> None:
    """Refuse to sort by a column that does not exist or has no order; errors begin with `step`."""
    for name in order_by:
        # `in` alone would compare a Column of Spark with each name, and get a Column that is no boolean.
        if not isinstance(name, str) or name not in schema.names:
            raise ConfigurationError(f"{step}: order_by names {name!r}; {stream} has {', '.join(schema.names)}")
        (kind,) = schema.types_of([name])
        if kind.contains_map():
            raise ConfigurationError(
                f"{step}: order_by names '{name}', a {kind.ddl}, and maps have no order",
                hint="order by a column that tells which row is later, such as a version or a time",
            )


def comparable(kind: DataType) -> Callable[[Any], Any]:
    """Return the sort key function that sorts values as Spark does: null is first, NaN last."""
    sort_key = _comparable_present(kind)
    return lambda value: (False,) if value is None else (True, sort_key(value))


def _comparable_present(kind: DataType) -> Callable[[Any], Any]:
    if isinstance(kind, ArrayType):
        element = comparable(kind.element)
        return lambda value: list(map(element, value))
    if isinstance(kind, StructType):
        fields = [comparable(field.type) for field in kind.fields]
        return lambda value: [field(part) for field, part in zip(fields, tuple(value), strict=True)]
    if isinstance(kind, FloatType | DoubleType):
        return lambda value: (True, 0.0) if math.isnan(value) else (False, value)
    return lambda value: value
