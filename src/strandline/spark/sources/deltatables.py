"""Notices that a Delta table was deleted and created again while a job reads it.

Delta's source compares the table's id with that of its offsets only when a query starts. A running query reads on at
the old table's versions in the new one, and leaves out the rows before them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.spark.base.spark_errors import reason_of
from strandline.spark.sources.checks import leaves_of, numbered_relations, source_numbers
from strandline.spark.sources.log import offset_lines
from strandline.spark.sources.tableerrors import PUT_BACK, RECREATED

log = logging.getLogger(__name__)

_TABLE = "org.apache.spark.sql.delta."
"""The prefix of the class of a source that reads a table; not of Delta Sharing."""


@dataclass(frozen=True, eq=False)
class DeltaTable:
    """A Delta table that a source of the job reads."""

    text: str
    """Its name in messages."""
    path: str
    line: int
    """Its line in Spark's log of offsets."""
    options: Any
    """The source's options, a Scala map, which may have the credentials."""

    def known_id(self, files: Mapping[str, bytes], batch: int) -> str | None:
        """Return the id in the offset of a batch; None if there is none."""
        lines = offset_lines(files, batch)
        line = lines[self.line] if self.line < len(lines) else b"-"
        known: str | None = json.loads(line).get("reservoirId") if line.startswith(b"{") else None
        return known


def delta_tables(source: DataFrame, names: Sequence[str]) -> list[DeltaTable]:
    """Return the Delta tables that a job reads."""
    relations, numbers = numbered_relations(source), source_numbers(source)
    return [
        DeltaTable(
            f"source '{names[at]}', Delta table '{path}'" if len(names) == len(relations) else f"Delta table '{path}'",
            path,
            numbers.index(at),
            leaf.dataSource().options(),
        )
        for at, (relation, leaf) in enumerate(zip(relations, leaves_of(source), strict=True))
        if relation is not None
        and relation.implementation.startswith(_TABLE)
        and leaf.nodeName() == "StreamingRelation"
        and (path := relation.options.get("path"))
    ]


class DeltaTables:
    """The ids of the Delta tables that a job reads."""

    def __init__(
        self, spark: SparkSession, tables: Sequence[DeltaTable], files: Mapping[str, bytes], batch: int
    ) -> None:
        """`files` and `batch`: Spark's files and batch that the run began with."""
        self._spark = spark
        self._tables = list(tables)
        self._begun = {table: table.known_id(files, batch) for table in tables}

    def compare(self, batch: int, files: Mapping[str, bytes]) -> None:
        """Raise an error if a table is not the one of its offset in a batch.

        It is a ConfigurationError, which ends the job, if the run began with an offset in the table before: each
        restart would. Else it is a ConflictError: the job restarts, and may read the new table from its beginning.
        Raises UnavailableError if the table cannot be read.
        """
        for table in list(self._tables):
            known = table.known_id(files, batch)
            if known is None:
                continue
            try:
                current = _current_id(self._spark, table)
            except (TypeError, Py4JError):
                log.warning(
                    "%s: this release of Delta does not give the table's id: stop the job before you delete the table "
                    "and create it again, or rows of the new one may be missing", table.text,
                )  # fmt: skip
                self._tables.remove(table)
                continue
            if current != known:
                text = f"{table.text}: {RECREATED} (its id was {known}, and is {current})"
                if self._begun[table] is not None:
                    raise ConfigurationError(text, hint=PUT_BACK)
                raise ConflictError(text, hint=f"the job restarts. If it ends then, {PUT_BACK}")


def _current_id(spark: SparkSession, table: DeltaTable) -> str:
    """Return the present id of a table, for a listing of its log: Delta has the rest in its cache."""
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    try:
        # Spark's class loader has Delta; the thread's class loader may not.
        jvm.java.lang.Thread.currentThread().setContextClassLoader(session.sharedState().jarClassLoader())
        path = jvm.org.apache.hadoop.fs.Path(table.path)
        snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(session, path, table.options)._2()
        # Without a table, Delta gives an empty one with a random id.
        if snapshot.version() < 0:
            raise UnavailableError(f"{table.text}: it does not exist any more")
        table_id: str = snapshot.metadata().id()
        return table_id
    except (Py4JError, PySparkException) as error:
        if "does not exist" in str(error) and "py4j.Py4JException" in str(error):
            raise
        raise UnavailableError(f"{table.text}: its log cannot be read: {reason_of(str(error))}") from None
