"""The order that Spark sorts values in, for Python values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.types.datatypes import ArrayType, DataType, DoubleType, FloatType, MapType, StructType


def check_order(schema: StructType, order_by: Sequence[str], who: str, stream: str) -> None:
    """Refuse to sort by a column that there is not, or that has no order; errors begin with `who`."""
    for name in order_by:
        if name not in schema.names:
            raise ConfigurationError(f"{who}: order_by names {name!r}; {stream} has {', '.join(schema.names)}")
        kind = schema.fields[schema.names.index(name)].type
        if _holds_map(kind):
            raise ConfigurationError(
                f"{who}: order_by names '{name}', a {kind.ddl}, and maps have no order",
                hint="order by what says which one is the later, as a version or a time",
            )


def _holds_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_map(field.type) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _holds_map(kind.element))


def comparable(kind: DataType) -> Callable[[Any], Any]:
    """Return what makes of values something that sorts as Spark sorts them: null comes first, NaN last."""
    some: Callable[[Any], Any]
    if isinstance(kind, ArrayType):
        one = comparable(kind.element)

        def some(value: Any) -> Any:
            return list(map(one, value))
    elif isinstance(kind, StructType):
        each = [comparable(field.type) for field in kind.fields]

        def some(value: Any) -> Any:
            return [part(of) for part, of in zip(each, tuple(value), strict=True)]
    elif isinstance(kind, FloatType | DoubleType):

        def some(value: Any) -> Any:
            return (True, 0.0) if math.isnan(value) else (False, value)
    else:

        def some(value: Any) -> Any:
            return value

    return lambda value: (False,) if value is None else (True, some(value))
