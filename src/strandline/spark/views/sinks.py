"""Sinks that can take what a view gives: rows that change need a key by which they are replaced and deleted."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.spark.sinks.base import Sink
from strandline.spark.sinks.databases import DatabaseSink

_DELETED = "_deleted"


def with_deletions(sink: Any, what: str) -> tuple[Sink, tuple[str, ...], str]:
    """Return a sink that deletes rows, too, with its key and the column that marks them; refuse one without a key."""
    if isinstance(sink, DatabaseSink) and sink._shape.key:
        shape = sink._shape
        if shape.delete is None:
            shape = replace(shape, delete=_DELETED)
            sink = copy(sink)
            sink._shape = shape
            sink.target = copy(sink.target)
            sink.target.shape = shape
        return sink, tuple(shape.key), shape.delete or _DELETED
    raise ConfigurationError(
        f"{what} changes rows that it has given, and {getattr(sink, 'made_by', type(sink).__name__)} only adds rows",
        hint="give the sink a key, as in sl.sinks.postgres(dsn, table, key=…); write the changes, "
        "view.changes().to(sink), with 1 and -1 in _change; or make the query one that only adds rows",
    )
