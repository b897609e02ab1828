"""Refuses rows that are too large to be sent to an operator, before Spark's JVM runs out of memory."""

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
def row_limit(node: OperatorNode, max_bytes: int) -> tuple[str, str]:
    """Return the condition for rows that are too large for an operator, and the error they raise, as SQL; "" if none.

    Only strings and binary columns count: they make rows large, and Spark knows their length without reading them.
    """
    columns = [column for name, ddl in node.parent.columns.types for column in _wide(name, ddl)] if node.parent else []
    if not columns or not max_bytes:
        return "", ""
    size = " + ".join(f"cast(coalesce(octet_length({column}), 0) as bigint)" for _, column in columns)
    sizes = (
        f"named_struct('size', coalesce(octet_length({at}), 0), 'name', '{_literal(name)}')" for name, at in columns
    )
    largest = f"array_max(array({', '.join(sizes)}))"
    keys = ", ".join(
        f"substr(coalesce(cast({quoted(key)} as string), 'null'), 1, {_KEY_CHARACTERS})" for key in node.keys
    )
    message = (
        f"concat('operator \\'{_literal(node.uid)}\\': an input row of ', {size}, ' bytes, expected at most "
        f"{max_bytes} (max_row in Settings); its largest column is ', "
        f"{largest}.name, ' with ', {largest}.size, '|; its key is ', concat_ws(', ', {keys}))"
    )
    return f"{size} > {max_bytes}L", raise_too_large(message)


def _wide(name: str, ddl: str) -> Iterator[tuple[str, str]]:
    if ddl in _WIDE:
        yield name, quoted(name)
    elif ddl.startswith("struct"):
        try:
            kind = parse_type(ddl)
        except ConfigurationError:
            return
        # Rows of two streams are sent as one struct column for each stream.
        for field in kind.fields if isinstance(kind, StructType) else ():
            if field.type.ddl in _WIDE:
                yield f"{name}.{field.name}", f"{quoted(name)}.{quoted(field.name)}"


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
