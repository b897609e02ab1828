"""Previews: the rows of a query over the present rows of its sources, computed by Spark as a batch, without a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.spark.keepers.exchange import clone_session
from strandline.spark.sqlfile.build import Build, located, refused, run_query
from strandline.spark.sqlfile.program import Entry, Program
from strandline.spark.sqlfile.sources import read_present, read_table, unreadable
from strandline.spark.sqlfile.statements import CreateStream, CreateTable, CreateView, Query
from strandline.spark.sqlfile.text import Script
from strandline.spark.views import asof
from strandline.spark.views.dialect import matches_in
from strandline.spark.views.matchbatch import register_matches
from strandline.spark.views.rewriting import Rewriting
from strandline.spark.views.view import check_matches

SOURCE_ROWS = 10_000
"""The rows of each stream that a preview reads at most."""


@dataclass(frozen=True)
class Answer:
    """The first rows of a query."""

    columns: list[str]
    rows: list[Row]
    has_matches: bool
    """Whether MATCH_RECOGNIZE is in it: its matches are those of the rows that were read."""


class Preview:
    """Answers queries in a clone of a session, whose temporary views have the declared names."""

    def __init__(self, program: Program, spark: SparkSession) -> None:
        self._program = program
        self._build = Build(program, spark)
        self._spark = clone_session(spark)
        self._spark.conf.set(asof.ENABLED, "true")

    def answer(self, query: Query, script: Script, most: int) -> Answer:
        """Return the columns of a query and its first rows."""
        self._build.forget()
        self._has_matches = False
        names = self._program.relations_in(query, script)
        for name in names:
            self._register(name)
        with located(self._program, script, query.at, query):
            df, text = self._run(query, names)
            with refused(text):
                return Answer(df.columns, df.take(most), self._has_matches)

    def _run(self, query: Query, reads: Sequence[str]) -> tuple[DataFrame, Rewriting]:
        """Return the rows of a query, and the query as Spark parses it."""
        matches = matches_in(query.sql, (column for name in reads for column in self._spark.table(name).columns))
        inputs = self._build.inputs(reads) if matches.clauses else {}
        if not inputs:
            return run_query(self._spark, query, reads)
        self._has_matches = True
        check_matches(query.sql, query.emit, inputs)

        def of_text(text: Rewriting) -> DataFrame:
            with refused(text):
                return self._spark.sql(text.text)

        with refused(matches.outer):
            register_matches(matches, of_text)
        return of_text(matches.outer), matches.outer

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
                df, _ = self._run(declaration.query, entry.reads)
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
