"""Errors of Delta and Iceberg tables that no restart mends: the texts are those of Delta 4.1.0 and Iceberg 1.11.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql.types import LongType, StringType, StructType

from strandline.core.errors import ConfigurationError, SparkError
from strandline.spark.base.spark_errors import full_text, unwrap_error
from strandline.spark.job.attempt import Attempt
from strandline.spark.sources import tableerrors
from strandline.spark.sources.tableerrors import SourceTable, explain_table_error

BEFORE = StructType().add("id", LongType()).add("v", LongType())
HEAD = "[STREAM_FAILED] Query [id = e63f69d8, runId = 600c157f] terminated with exception: "
TAIL = " SQLSTATE: XXKST\n=== Streaming Query ===\nCurrent Committed Offsets: {DeltaSource[file:/data/t]: {}}"

MISSING = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///data/t/day=1%3A2/part-0.parquet."
)


def query_error(reason: str, cause: str = "") -> BaseException:
    # PySpark's own classes need a JVM.
    error = Py4JError(f"{HEAD}{reason}{TAIL}")
    vars(error)["_cause"] = cause or reason
    return unwrap_error(error)


def explain(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    after: StructType = BEFORE,
    exists: tuple[str, ...] = ("/data/t/_delta_log", "/data/u/v1"),
) -> BaseException:
    tables = [
        SourceTable(
            "source 'a', Delta table '/data/t'",
            "/data/t",
            "/data/t/_delta_log",
            exists.__contains__,
            lambda: tableerrors._changes(BEFORE, after),
        ),
        SourceTable("Iceberg table 'c.d.u'", "/data/u", "/data/u/v1", exists.__contains__),
    ]
    monkeypatch.setattr(tableerrors, "tables_of", lambda tables, _: tables)
    plan = SimpleNamespace(sources=SimpleNamespace(nodes=[SimpleNamespace(name="a", df=tables)]))
    attempt: Any = SimpleNamespace(_b=SimpleNamespace(plan=plan), _fleet=SimpleNamespace(explain=lambda error: error))
    return Attempt.explain(attempt, error)


@pytest.mark.parametrize(
    "reason",
    [
        "[DELTA_SCHEMA_CHANGED_WITH_VERSION] Detected schema change in version 1:\nstreaming source schema: root\n",
        "assertion failed: Invalid batch: id#171L,v#172L != id#872L,v#873L,extra#874",
    ],
)
def test_a_table_whose_columns_have_changed_is_named_with_them(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after = StructType([*BEFORE.fields]).add("extra", StringType())
    found = explain(query_error(reason), monkeypatch, after)
    assert type(found) is ConfigurationError
    assert found.message.startswith("source 'a', Delta table '/data/t': column 'extra' string was added; ")
    assert "start the program again" in found.hint
    assert "begin anew" not in found.hint
    assert reason in full_text(found)
    found = explain(query_error(reason), monkeypatch, StructType().add("id", StringType()))
    assert isinstance(found, ConfigurationError)
    assert "column 'v' was removed, column 'id' is string, and was bigint" in found.message
    assert "begin anew" in found.hint
    found = explain(query_error(reason), monkeypatch)
    assert "the columns of source 'a', Delta table '/data/t' were changed" in str(found)
    assert "a program that runs" not in str(found), "it has begun with the columns that the table has"


def test_the_setting_that_reads_on_behind_a_removed_column_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, Delta fails after every start, also of a job that had read all rows before the change."""
    reason = (
        "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Streaming read is not supported on tables with"
    )
    for after in (BEFORE, StructType().add("id", LongType())):
        found = explain(query_error(reason), monkeypatch, after)
        assert isinstance(found, ConfigurationError)
        assert "Delta does not read rows from before such a change" in found.message
        assert "unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled=true" in found.hint
        assert "begin anew" not in found.hint


@pytest.mark.parametrize(
    ("reason", "cause", "message"),
    [
        (
            "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta "
            "table (id = 'ff48').",
            "",
            "deleted and created again",
        ),
        ("Table UUID does not match: current=3c1a != refreshed=9f20", "", "deleted and created again"),
        (
            "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update in the source table at version 1. The source "
            "table can be found at path file:/data/t.",
            "",
            "source 'a', Delta table '/data/t': rows of it were changed or deleted",
        ),
        ("[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it", "", "does not have the version"),
        (
            "[DELTA_MISSING_FILES_UNEXPECTED_VERSION] The stream from your Delta table was expecting process data from "
            "version 3,\nbut the earliest available version in the _delta_log directory is 8.",
            "",
            "does not have the version",
        ),
        (
            "Cannot load current offset at snapshot 7351767977163584752, the snapshot was expired or removed",
            "",
            "does not have the version",
        ),
        ("Cannot process overwrite snapshot: 4801217, to ignore overwrites, set", "", "changed or deleted"),
        (
            "Failed to open input stream for file: /data/u/metadata/44899cc2-m0.avro",
            "org.apache.iceberg.exceptions.NotFoundException: Failed to open input stream for file: "
            "/data/u/metadata/44899cc2-m0.avro",
            "Iceberg table 'c.d.u': it has no longer a file with rows that the job reads next: metadata/44899cc2-m0.avro",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///data/t/part-0.snappy.parquet. "
            "File does not exist.",
            "",
            "source 'a', Delta table '/data/t': it has no longer a file",
        ),
    ],
)
def test_what_no_restart_mends_ends_the_job(
    reason: str, cause: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explain(query_error(reason, cause), monkeypatch)
    assert type(found) is ConfigurationError
    assert message in found.message
    assert not found.fields, "is_sparks and may_pass would have it restarted"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("No such file or directory: file:/data/t/_delta_log", ""),
        (
            "Failed to open input stream for file: /data/u/metadata/4489-m0.avro",
            "java.io.IOException: connection reset",
        ),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:///static/part-0.parquet.", ""),
        ("Metadata file for version 1 is missing under /data/u/metadata", ""),
    ],
)
def test_what_may_pass_is_tried_again(reason: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may be replacing the table, or one that a step reads."""
    error = query_error(reason, cause)
    assert isinstance(error, SparkError)
    assert explain(error, monkeypatch) is error


@pytest.mark.parametrize(
    ("reason", "exists"),
    [
        (MISSING, ("/data/u/v1",)),
        (MISSING, ("/data/t/_delta_log", "/data/u/v1", "/data/t/day=1%3A2/part-0.parquet")),
        (MISSING, ("/data/t/_delta_log", "/data/u/v1", "/data/t/day=1:2/part-0.parquet")),
        ("[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading", ("/data/u/v1",)),
    ],
)
def test_a_directory_that_is_or_was_away_is_tried_again(
    reason: str, exists: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = query_error(reason)
    assert explain(error, monkeypatch, exists=exists) is error


def test_a_missing_file_is_named_as_the_table_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = explain(query_error(MISSING), monkeypatch)
    assert "source 'a', Delta table '/data/t': it has no longer a file" in str(found)
    assert "reads next: day=1:2/part-0.parquet" in str(found)


def test_a_jvm_that_has_ended_hides_no_error() -> None:
    error = query_error("[DELTA_SCHEMA_CHANGED] Detected schema change")
    unreachable: Any = SimpleNamespace()
    assert explain_table_error(error, [("", unreachable)]) is error
    assert explain_table_error(KeyboardInterrupt(), [("", unreachable)]).args == ()
