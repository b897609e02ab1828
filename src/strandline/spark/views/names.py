"""Names in SQL: those that the tables of a query are given by, and which one is meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from strandline.core.errors import ConfigurationError

_NAME = re.compile(r"[^\W\d]\w*")


def check_names(tables: Iterable[str]) -> None:
    """Raise ConfigurationError for names that no table can have."""
    lower: dict[str, str] = {}
    for name in tables:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"sql() was given a table named '{name}', expected letters, digits and underscores",
                hint="give it another name, and use that in the query",
            )
        if name.lower() in lower:
            raise ConfigurationError(
                f"sql() was given '{lower[name.lower()]}' and '{name}', which are the same name in SQL",
                hint="give one of them another name",
            )
        lower[name.lower()] = name


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is meant, as the end of a message; "" if none is like it."""
    by_lower = {each.lower(): each for each in known}
    similar = difflib.get_close_matches(name.lower(), by_lower, 1)
    return f": did you mean '{by_lower[similar[0]]}'?" if similar else ""
