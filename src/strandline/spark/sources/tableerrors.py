"""Permanent errors of sources that are Delta or Iceberg tables: a restart would read the same table, and fail again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.core.errors import BEGIN_ANEW, ConfigurationError
from strandline.spark.base.spark_errors import full_text
from strandline.spark.sources.checks import DELTA, leaves_of, numbered_relations

_SCHEME = re.compile("^[A-Za-z][A-Za-z0-9+.-]*:")
_ICEBERG = "org.apache.iceberg."
_SCHEMA_CHANGED = re.compile(
    r"\[DELTA_SCHEMA_CHANGED|\[DELTA_STREAMING_(?:SCHEMA_MISMATCH|METADATA_EVOLUTION|INCOMPATIBLE|CANNOT_CONTINUE)"
    r"|assertion failed: Invalid batch:"
)
_INCOMPATIBLE = "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE"
_READ_INCOMPATIBLE = "spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled"
_GONE = re.compile(r"(?:NotFoundException: |FILE_NOT_EXIST\] )([^\n]*?\.(?:parquet|orc|avro)\b)")
"""A table's files of rows: their names are not used again. Its log, or all of it, may be replaced at this moment."""
_CHANGED_ROWS = "rows of it were changed or deleted, and a stream reads only rows that are added"
RECREATED = "it was deleted and created again, and the job's position is one in the table before"
PUT_BACK = f"put that table back, or {BEGIN_ANEW}"
_CAUSES = (
    (
        # Iceberg's, while a query runs.
        re.compile(r"\[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\]|Table UUID does not match"),
        RECREATED,
        PUT_BACK,
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
            r"\[DELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|MISSING_FILES_UNEXPECTED_VERSION|VERSION_NOT_FOUND)\]"
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
    root: str
    """Its directory."""
    log: str
    """A path that exists while the table does: one that a directory which is away for a while does not have."""
    exists: Callable[[str], bool]
    """Whether there is a file or directory of this path, by the file system that the table is read with."""
    changes: Callable[[], tuple[list[str], bool]] | None = None
    """For Delta: returns what has changed in its columns since the program began to read it, and whether only some
    were added."""

    @property
    def location(self) -> str:
        """Its directory, without a scheme."""
        return "/" + _SCHEME.sub("", self.root).strip("/")


def explain_table_error(error: BaseException, sources: Sequence[tuple[str, DataFrame]]) -> BaseException:
    """Return the ConfigurationError, which ends the job, for a permanent error of a source's table; else the error.

    `sources` are the job's, with their names.
    """
    text, explained = full_text(error), None
    # The JVM may have ended.
    with suppress(Exception):
        explained = _explain(text, sources)
    if explained is None:
        return error
    vars(explained)["full_text"] = text
    return explained


def _explain(text: str, sources: Sequence[tuple[str, DataFrame]]) -> ConfigurationError | None:
    # Spark adds the plan and the positions of all sources.
    about = text.partition("=== Streaming Query ===")[0]
    schema_changed, gone = _SCHEMA_CHANGED.search(about), [match[1] for match in _GONE.finditer(text)]
    cause = next((cause for cause in _CAUSES if cause[0].search(about)), None)
    if not (schema_changed or gone or cause):
        return None
    tables = [table for name, df in sources for table in tables_of(df, name)]
    if not all(table.exists(table.log) for table in tables):
        # Without its directory, a table seems to lack files, or to be another one.
        return None
    if schema_changed:
        return _explain_schema([table for table in tables if table.changes], incompatible=_INCOMPATIBLE in about)
    if gone:
        return _explain_gone(gone, tables)
    if not cause or not tables:
        return None
    named = [table for table in tables if table.location in about] or tables
    return ConfigurationError(f"{' or '.join(table.name for table in named)}: {cause[1]}", hint=cause[2])


def _explain_gone(gone: Sequence[str], tables: Sequence[SourceTable]) -> ConfigurationError | None:
    for table in tables:
        for text in gone:
            # Spark quotes paths, Iceberg does not.
            ends = [part[2] for form in (unquote(text), text) if (part := form.partition(f"{table.location}/"))[1]]
            if ends and not any(table.exists(f"{table.root.rstrip('/')}/{end}") for end in ends):
                return ConfigurationError(
                    f"{table.name}: it has no longer a file with rows that the job reads next: {ends[0]}",
                    hint="have VACUUM (Delta) or expire_snapshots (Iceberg) keep files for longer than the job may be "
                    f"behind; to go on without those rows, {BEGIN_ANEW}",
                )
    return None


def _explain_schema(tables: Sequence[SourceTable], *, incompatible: bool) -> ConfigurationError | None:
    changed = [(table, *table.changes()) for table in tables if table.changes]
    explained = [(table.name, changes, only_added) for table, changes, only_added in changed if changes]
    names = "; ".join(f"{name}: {', '.join(changes)}" for name, changes, _ in explained)
    names = names or f"the columns of {' or '.join(table.name for table in tables)} were changed"
    if incompatible:
        reason = "Delta does not read rows from before such a change"
        hint = (
            f"start the program with Spark's setting {_READ_INCOMPATIBLE}=true: the job goes on from its last "
            "checkpoint, and reads all rows with the table's new columns"
        )
    else:
        reason = "a program that runs cannot read other columns than those with which it began"
        hint = "start the program again: the job goes on from its last checkpoint, with the table's new columns"
        if not explained:
            reason = "rows that the job reads next may not have the columns with which it began"
        if not explained or not all(only_added for *_, only_added in explained):
            hint += (
                ". If it ends with this error again, Delta does not read rows from before this change of columns: "
                f"{BEGIN_ANEW}"
            )
    return ConfigurationError(f"{names}; {reason}", hint=hint) if tables else None


def tables_of(df: DataFrame, name: str) -> list[SourceTable]:
    """Return the Delta and Iceberg tables that a source reads."""
    tables, source = [], f"source '{name}', " if name else ""
    for relation, leaf in zip(numbered_relations(df), leaves_of(df), strict=True):
        if relation is not None and relation.implementation.startswith(DELTA):
            path = relation.options["path"]
            before = StructType.fromJson(json.loads(leaf.schema().json()))

            def changes(path: str = path, before: StructType = before) -> tuple[list[str], bool]:
                return _changes(before, df.sparkSession.read.format("delta").load(path).schema)

            exists = partial(_exists, df.sparkSession)
            tables.append(SourceTable(f"{source}Delta table '{path}'", path, f"{path}/_delta_log", exists, changes))
        elif relation is not None and relation.implementation.startswith(_ICEBERG):
            table = leaf.table().table()

            def is_file(path: str, table: Any = table) -> bool:
                return bool(table.io().newInputFile(path).exists())

            log = table.operations().current().metadataFileLocation()
            tables.append(SourceTable(f"{source}Iceberg table '{leaf.table().name()}'", table.location(), log, is_file))
    return tables


def _exists(spark: SparkSession, path: str) -> bool:
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return bool(where.getFileSystem(spark._jsc.hadoopConfiguration()).exists(where))


def _changes(before: StructType, after: StructType) -> tuple[list[str], bool]:
    """Return what has changed in a table's columns, and whether some were added and no other has changed."""
    old, new = ({field.name: field.dataType.simpleString() for field in schema} for schema in (before, after))
    added = [f"column '{name}' {kind} was added" for name, kind in new.items() if name not in old]
    others = [f"column '{name}' was removed" for name in old if name not in new]
    others += [
        f"column '{name}' is {new[name]}, and was {kind}" for name, kind in old.items() if new.get(name, kind) != kind
    ]
    return added + others, not others
