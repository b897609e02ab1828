"""Permanent errors of sources that are Delta or Iceberg tables: a restart would read the same table, and fail again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from strandline.core.errors import BEGIN_ANEW, ConfigurationError
from strandline.spark.base.spark_errors import full_text
from strandline.spark.sources.checks import DELTA, leaves_of, numbered_relations

_ICEBERG = "org.apache.iceberg."
_SCHEMA_CHANGED = re.compile(
    r"\[DELTA_SCHEMA_CHANGED|\[DELTA_STREAMING_(?:SCHEMA_MISMATCH|METADATA_EVOLUTION|INCOMPATIBLE|CANNOT_CONTINUE)"
    r"|assertion failed: Invalid batch:"
)
_GONE = re.compile(r"(?:NotFoundException: |FILE_NOT_EXIST\] )([^\n]*?\.(?:parquet|orc|avro)\b)")
"""A table's files of rows: their names are not used again. Its log, or all of it, may be replaced at this moment."""
_CHANGED_ROWS = "rows of it were changed or deleted, and a stream reads only rows that are added"
_CAUSES = (
    (
        re.compile(r"\[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\]"),
        "it was deleted and created again, and the job's position is one in the table before",
        f"put that table back, or {BEGIN_ANEW}",
    ),
    (
        re.compile(r"\[DELTA_SOURCE_(?:IGNORE_DELETE|TABLE_IGNORE_CHANGES)\]"),
        _CHANGED_ROWS,
        "to leave such changes out, start the program with the source's option('skipChangeCommits', 'true')",
    ),
    (
        re.compile(r"Cannot process (?:overwrite|delete) snapshot"),
        _CHANGED_ROWS,
        "to leave such changes out, start the program with the source's options streaming-skip-overwrite-snapshots and "
        "streaming-skip-delete-snapshots",
    ),
    (
        re.compile(
            r"\[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE\]|\[DELTA_VERSION_NOT_FOUND\]"
            r"|Cannot load current offset at snapshot -?\d+, the snapshot was expired or removed"
        ),
        "it does not have the version that the job reads next",
        f"keep its versions for longer than the job may be behind; to go on without those rows, {BEGIN_ANEW}",
    ),
)


@dataclass(frozen=True)
class SourceTable:
    """A table that a source of the job reads."""

    name: str
    """Its name in messages, with that of the source."""
    location: str
    """Its directory, without a scheme."""
    changes: Callable[[], tuple[list[str], bool]] | None = None
    """For Delta: returns what has changed in its columns since the program began to read it, and whether only some
    were added."""


def explain_table_error(error: BaseException, sources: Sequence[tuple[str, DataFrame]]) -> BaseException:
    """Return the ConfigurationError, which ends the job, for a permanent error of a source's table; else the error.

    `sources` are the job's, with their names.
    """
    text = full_text(error)
    # Spark adds the plan and the positions of all sources.
    about = text.partition("=== Streaming Query ===")[0]
    schema_changed, gone = _SCHEMA_CHANGED.search(about), [match[1] for match in _GONE.finditer(text)]
    cause = next((cause for cause in _CAUSES if cause[0].search(about)), None)
    explained = None
    if schema_changed or gone or cause:
        # The JVM may have ended.
        with suppress(Exception):
            tables = [table for name, df in sources for table in tables_of(df, name)]
            if schema_changed:
                explained = _explain_schema([table for table in tables if table.changes])
            elif gone:
                explained = _explain_gone(gone, tables)
            elif cause and tables:
                named = [table for table in tables if table.location in about] or tables
                explained = ConfigurationError(
                    f"{' or '.join(table.name for table in named)}: {cause[1]}", hint=cause[2]
                )
    if explained is None:
        return error
    vars(explained)["full_text"] = text
    return explained


def _explain_gone(gone: Sequence[str], tables: Sequence[SourceTable]) -> ConfigurationError | None:
    for table in tables:
        for file in gone:
            if f"{table.location}/" in file:
                return ConfigurationError(
                    f"{table.name}: it has no longer a file with rows that the job reads next: {file.split()[-1]}",
                    hint="have VACUUM (Delta) or expire_snapshots (Iceberg) keep files for longer than the job may be "
                    f"behind; to go on without those rows, {BEGIN_ANEW}",
                )
    return None


def _explain_schema(tables: Sequence[SourceTable]) -> ConfigurationError | None:
    changed = [(table, *table.changes()) for table in tables if table.changes]
    explained = [(table.name, changes, only_added) for table, changes, only_added in changed if changes]
    names = "; ".join(f"{name}: {', '.join(changes)}" for name, changes, _ in explained)
    names = names or f"the columns of {' or '.join(table.name for table in tables)} were changed"
    hint = "start the program again: the job goes on from its last checkpoint, with the table's new columns"
    if not explained or not all(only_added for *_, only_added in explained):
        hint += (
            ". Delta does not read rows from before a change of columns that exist, unless its option "
            f"schemaTrackingLocation is set: if the program ends with this error again, {BEGIN_ANEW}"
        )
    message = f"{names}; a program that runs cannot read more than the columns with which it began"
    return ConfigurationError(message, hint=hint) if tables else None


def tables_of(df: DataFrame, name: str) -> list[SourceTable]:
    """Return the Delta and Iceberg tables that a source reads."""
    tables, source = [], f"source '{name}', " if name else ""
    for relation, leaf in zip(numbered_relations(df), leaves_of(df), strict=True):
        if relation is not None and relation.implementation.startswith(DELTA):
            path = relation.options["path"]
            before = StructType.fromJson(json.loads(leaf.schema().json()))

            def changes(path: str = path, before: StructType = before) -> tuple[list[str], bool]:
                return _changes(before, df.sparkSession.read.format("delta").load(path).schema)

            tables.append(SourceTable(f"{source}Delta table '{path}'", _without_scheme(path), changes))
        elif relation is not None and relation.implementation.startswith(_ICEBERG):
            location = _without_scheme(str(leaf.table().table().location()))
            tables.append(SourceTable(f"{source}Iceberg table '{leaf.table().name()}'", location))
    return tables


def _without_scheme(path: str) -> str:
    return "/" + re.sub("^[A-Za-z][A-Za-z0-9+.-]*:", "", path).strip("/")


def _changes(before: StructType, after: StructType) -> tuple[list[str], bool]:
    """Return what has changed in a table's columns, and whether some were added and no other has changed."""
    old, new = ({field.name: field.dataType.simpleString() for field in schema} for schema in (before, after))
    added = [f"column '{name}' {kind} was added" for name, kind in new.items() if name not in old]
    others = [f"column '{name}' was removed" for name in old if name not in new]
    others += [
        f"column '{name}' is {new[name]}, and was {kind}" for name, kind in old.items() if new.get(name, kind) != kind
    ]
    return added + others, not others
