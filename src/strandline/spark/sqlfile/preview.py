"""Previews: the rows of a query over the present rows of its sources, computed by Spark as a batch, without a job."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.spark.keepers.exchange import clone_session
from strandline.spark.sqlfile.build import located, refused, run_query
from strandline.spark.sqlfile.program import Entry, Program
from strandline.spark.sqlfile.sources import read_present, read_table, unreadable
from strandline.spark.sqlfile.statements import CreateStream, CreateTable, CreateView, Query
from strandline.spark.sqlfile.text import Script
from strandline.spark.views import asof

SOURCE_ROWS = 10_000
"""The rows of each stream that a preview reads at most."""


class Preview:
    """Answers queries in a clone of a session, whose temporary views have the declared names."""

    def __init__(self, program: Program, spark: SparkSession) -> None:
        self._program = program
        self._spark = clone_session(spark)
        self._spark.conf.set(asof.ENABLED, "true")

    def rows(self, query: Query, script: Script, most: int) -> tuple[list[str], list[Row]]:
        """Return the columns of a query and its first rows."""
        names = self._program.relations_in(query, script)
        for name in names:
            self._register(name)
        with located(self._program, script, query.at, query):
            df, text = run_query(self._spark, query, names)
            with refused(text):
                return df.columns, df.take(most)

    def _register(self, name: str) -> None:
        """Create the temporary view of a declared relation, and those that it reads."""
        entry = self._program.entry(name)
        if entry is None:
            raise ConfigurationError(
                f"a preview has no '{name}': rows become dead letters only in a job",
                hint="SELECT from the stream itself",
            )
        declaration = entry.declaration
        if isinstance(declaration, CreateView):
            for each in entry.reads:
                self._register(each)
            with located(self._program, entry.script, declaration.query.at, declaration.query):
                df, _ = run_query(self._spark, declaration.query, entry.reads)
        else:
            with located(self._program, entry.script, declaration.name.at):
                df = self._read(entry)
        df.createOrReplaceTempView(declaration.name.text)

    def _read(self, entry: Entry) -> DataFrame:
        """Return the present rows of a stream or table."""
        if isinstance(entry.declaration, CreateTable):
            return read_table(self._spark, entry.declaration, entry.arguments)
        assert isinstance(entry.declaration, CreateStream)
        with unreadable(entry.declaration.name.text):
            return read_present(self._spark, entry.declaration, entry.arguments, SOURCE_ROWS)
