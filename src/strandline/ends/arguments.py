"""Checks of the arguments of sinks: columns, directories, options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.urls import check_url

NULL_KEYS = "in the query, WHERE {0} IS NOT NULL leaves such rows out, and coalesce({0}, …) gives them a key"
"""What a query can do about nulls in a key, for hints."""


def check_columns(what: str, option: str, value: Any) -> tuple[str, ...]:
    """Return the names of columns as a tuple, from one name or several."""
    names = (value,) if isinstance(value, str) else () if value is None else value
    if (
        not isinstance(names, list | tuple)
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise ConfigurationError(
            f"{what}: {option} is {value!r:.200}, expected names of columns, each once",
            hint=f"write it like {option}='day' or {option}=['shop', 'day']",
        )
    return tuple(names)


def check_column(what: str, option: str, value: Any) -> None:
    """Raise ConfigurationError unless this is the name of a column or None."""
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigurationError(
            f"{what}: {option} is {value!r:.200}, expected the name of a column",
            hint="each row has its value there; .with_column(…) adds a column with the same value for all rows",
        )


def check_delete(what: str, key: Sequence[str], delete: Any) -> None:
    """Raise ConfigurationError unless a column can mark rows to delete in a sink with this key."""
    check_column(what, "delete", delete)
    if delete is not None and not key:
        raise ConfigurationError(
            f"{what}: delete='{delete}' needs key=[…]",
            hint="rows are deleted by their keys: say which columns are the key",
        )
    if delete in key:
        raise ConfigurationError(
            f"{what}: the column '{delete}' is in key=, and is that of delete=",
            hint="the key identifies a row, and another column, a boolean, marks the rows to delete",
        )


def check_location(what: str, option: str, value: str | Path) -> str:
    """Return a directory or url as a checked url."""
    if not isinstance(value, str | os.PathLike) or not str(value).strip():
        raise ConfigurationError(f"{what}: {option} is {value!r:.200}, expected a directory or url")
    return check_url(os.fspath(value))


def check_options(what: str, option: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """Return options for storage. Errors do not quote their values, which may be secrets."""
    hint = f"write it like {option}={{'region': 'eu-west-1', 'access_key_id': …}}"
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"{what}: {option} is of type {type(options).__name__}, expected a dict", hint=hint)
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"{what}: {option} has '{name}' of type {type(value).__name__}, expected text", hint=hint
            )
    return dict(options or {})
