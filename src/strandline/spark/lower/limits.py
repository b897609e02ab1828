"""Rows that are too large to be sent to an operator are refused before Spark's JVM runs out of memory over them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import quoted
from strandline.plan.graph import OperatorNode
from strandline.spark.base.spark_errors import raise_too_large
from strandline.types.datatypes import StructType, parse_type

_KEY_CHARACTERS = 100
_WIDE = ("string", "binary")


@lru_cache(maxsize=256)
def refusal(node: OperatorNode, most_bytes: int) -> tuple[str, str]:
    """Return which rows of an operator are too large, and what refuses them, as SQL; "" if none can be.

    Text and bytes are what makes rows large that come in one piece: Spark knows their length
    without reading them.
    """
    columns = [found for name, ddl in node.parent.columns.types for found in _wide(name, ddl)] if node.parent else []
    if not columns or not most_bytes:
        return "", ""
    size = " + ".join(f"cast(coalesce(octet_length({column}), 0) as bigint)" for _, column in columns)
    sizes = (
        f"named_struct('size', coalesce(octet_length({at}), 0), 'name', '{_literal(name)}')" for name, at in columns
    )
    largest = f"array_max(array({', '.join(sizes)}))"
    keys = ", ".join(
        f"substr(coalesce(cast({quoted(key)} as string), 'null'), 1, {_KEY_CHARACTERS})" for key in node.keys
    )
    what = (
        f"concat('operator \\'{_literal(node.uid)}\\': a row of ', {size}, ' bytes is to be sent to it, and "
        f"{most_bytes} are the most (max_row in Settings); its largest column is ', "
        f"{largest}.name, ' with ', {largest}.size, '|; its key is ', concat_ws(', ', {keys}))"
    )
    return f"{size} > {most_bytes}L", raise_too_large(what)


def _wide(name: str, ddl: str) -> Iterator[tuple[str, str]]:
    if ddl in _WIDE:
        yield name, quoted(name)
    elif ddl.startswith("struct"):
        try:
            kind = parse_type(ddl)
        except ConfigurationError:
            return
        # The rows of two streams travel as one column each.
        for field in kind.fields if isinstance(kind, StructType) else ():
            if field.type.ddl in _WIDE:
                yield f"{name}.{field.name}", f"{quoted(name)}.{quoted(field.name)}"


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
