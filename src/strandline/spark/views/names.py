"""The names that the tables of a query are given by."""

from __future__ import annotations

import re
from collections.abc import Iterable

from strandline.core.errors import ConfigurationError
from strandline.spark.views.places import nearest
from strandline.spark.views.tokens import tokens

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


def check_read(text: str, tables: Iterable[str]) -> None:
    """Raise ConfigurationError for a table that a query does not name."""
    words = {token.value.lower() for token in tokens(text) if token.kind in ("word", "name")}
    for name in tables:
        if name.lower() not in words:
            raise ConfigurationError(
                f"sql() was given '{name}', which the query does not read{nearest(name, words)}",
                hint=f"leave {name}=… out, or read it: FROM {name}",
            )
