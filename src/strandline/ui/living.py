"""The state of a running job, as its driver tells it: the tables, some keys of one, and single keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from strandline.control.client import Driver, call
from strandline.control.commands import LIST_KEYS, LOOKUP, TABLES, ListKeys, LookUp, NoArguments
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.types.coercion import MisfitError
from strandline.types.datatypes import parse_type
from strandline.types.jsonforms import from_text, to_json

TIMEOUT_S = 10.0
_MOST_KEYS = 200
_VALUE = "value"


def tables_of(driver: Driver) -> dict[str, Any]:
    """Return the tables of a running job that keys can be looked up in."""
    tables = call(driver, TABLES, NoArguments(), timeout_s=TIMEOUT_S).tables
    return {"tables": [msgspec.to_builtins(each) for each in tables]}


def first_keys(driver: Driver, table: str, partition: str) -> dict[str, Any]:
    """Return some keys of a table with their values: of all partitions, or of one."""
    if partition and not partition.isdecimal():
        raise ConfigurationError(f"'{partition}' is no number of a partition")
    wanted = ListKeys(table, _MOST_KEYS, int(partition) if partition else None)
    answer = call(driver, LIST_KEYS, wanted, timeout_s=TIMEOUT_S)
    rows = [[*key, value] for key, value in zip(answer.keys, answer.values, strict=True)]
    return _result(answer.epoch, answer.columns, rows, has_more=answer.has_more)


def one_key(driver: Driver, table: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the value of a key, given by a text for each of its columns."""
    known = {each.table: each for each in call(driver, TABLES, NoArguments(), timeout_s=TIMEOUT_S).tables}
    if table not in known:
        raise NotFoundError(f"there is no table '{table}' in this job")
    columns = known[table].columns
    if len(columns) != len(texts):
        raise ConfigurationError(f"table '{table}': a key has the columns {', '.join(columns)}, not {len(texts)}")
    parts = [_part(table, text, name, kind) for text, (name, kind) in zip(texts, columns.items(), strict=True)]
    # Of one column, plain text is no JSON.
    text = texts[0] if len(texts) == 1 else msgspec.json.encode(parts).decode()
    answer = call(driver, LOOKUP, LookUp(table, [text]), timeout_s=TIMEOUT_S)
    rows = [] if answer.values[0] in (None, [], {}) else [[*parts, answer.values[0]]]
    return _result(answer.epoch, columns, rows)


def _part(table: str, text: str, column: str, kind: str) -> Any:
    try:
        return to_json(from_text(text, parse_type(kind)))
    except MisfitError as misfit:
        raise ConfigurationError(f"table '{table}': a key's {column} is {misfit.expected}, not {text!r}") from None


def _result(
    epoch: int, columns: Mapping[str, str], rows: Iterable[Sequence[Any]], *, has_more: bool = False
) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "columns": [{"name": name, "type": kind} for name, kind in columns.items()] + [{"name": _VALUE, "type": ""}],
        "rows": [*rows],
        "has_more": has_more,
    }
