"""What a program gives a sink, checked when it is written: columns, places, options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.urls import check_url


def columns_of(what: str, option: str, given: Any) -> tuple[str, ...]:
    """Return the names of columns, given as one or as several."""
    names = (given,) if isinstance(given, str) else () if given is None else given
    if (
        not isinstance(names, list | tuple)
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise ConfigurationError(
            f"{what}: {option} is {given!r:.200}, expected names of columns, each once",
            hint=f"write it like {option}='day' or {option}=['shop', 'day']",
        )
    return tuple(names)


def check_column(what: str, option: str, given: Any) -> None:
    """Raise ConfigurationError unless this is the name of a column, or none."""
    if given is not None and (not isinstance(given, str) or not given):
        raise ConfigurationError(
            f"{what}: {option} is {given!r:.200}, expected the name of a column",
            hint="each row says it there: a value that is the same for all becomes a column with .with_column(…)",
        )


def place_of(what: str, option: str, given: str | Path) -> str:
    """Return a directory or url."""
    if not isinstance(given, str | os.PathLike) or not str(given).strip():
        raise ConfigurationError(f"{what}: {option} is {given!r:.200}, expected a directory or url")
    return check_url(os.fspath(given))


def options_of(what: str, option: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Return options for storage. What is wrong with them is said without their values: these may be secrets."""
    hint = f"write it like {option}={{'region': 'eu-west-1', 'access_key_id': …}}"
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(f"{what}: {option} is of type {type(given).__name__}, expected a dict", hint=hint)
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"{what}: {option} has '{name}' of type {type(value).__name__}, expected text", hint=hint
            )
    return dict(given or {})
