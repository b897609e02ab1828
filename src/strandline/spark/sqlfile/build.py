"""Makes the objects of an SQL program: streams, tables, views, sinks, and the job."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from strandline.api.uids import uid as make_uid
from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.session import session
from strandline.spark.base.spark_errors import summarize
from strandline.spark.job.job import Job
from strandline.spark.sinks.base import KeyedSink, Sink
from strandline.spark.sqlfile.program import DEAD_LETTERS, SINKS, Entry, Program
from strandline.spark.sqlfile.settings import JobSettings
from strandline.spark.sqlfile.sources import read_stream, read_table, table_arguments
from strandline.spark.sqlfile.statements import CreateSink, CreateStream, CreateTable, CreateView, Insert, Query
from strandline.spark.sqlfile.text import Script
from strandline.spark.streams.kafkasource import session_settings
from strandline.spark.streams.stream import Output, Stream
from strandline.spark.views.dialect import rewritten
from strandline.spark.views.names import nearest
from strandline.spark.views.places import refuse_query
from strandline.spark.views.rewriting import Rewriting
from strandline.spark.views.tables import Table, table
from strandline.spark.views.view import View, view_of

Relation = Stream | Table | View | DataFrame
_PLACE = re.compile(r"\n  line (\d+), column (\d+):\n")
"""The place in a query, in the error of Spark that refuses it."""
_UNKNOWN = re.compile(r"there is no table '([^']*)'")
_OF_CHANGES = (
    "use a sink with a key, as postgres, sqlite, delta, iceberg or kafka with the option key; or write the changes: "
    "INSERT INTO … CHANGES OF …, which have 1 and -1 in _change; or make the query one that only adds rows"
)


def start_session(program: Program, settings: JobSettings) -> SparkSession:
    """Return the session of a program, with Spark's connector if it reads Kafka."""
    conf = dict(settings.spark)
    streams = [entry.declaration for entry in program.entries(CreateStream)]
    if any(isinstance(stream, CreateStream) and stream.using.connector.text == "kafka" for stream in streams):
        for name, value in session_settings().items():
            conf[name] = ",".join(filter(None, [value, settings.spark.get(name)]))
    return session(settings.name, conf.pop("spark.master", None), **conf)


def make_sinks(program: Program) -> dict[str, Sink]:
    """Return the sinks by their names in lower case. This needs no Spark."""
    sinks = {}
    for entry in program.entries(CreateSink):
        assert isinstance(entry.declaration, CreateSink)
        name, connector = entry.declaration.name, entry.declaration.using.connector.text
        arguments = dict(entry.arguments)
        if connector == "files":
            arguments |= arguments.pop("options", {})
        with located(program, entry.script, name.at):
            sinks[name.text.lower()] = SINKS[connector](**arguments, name=name.text)
    return sinks


class Build:
    """The relations of a program in a session: each is made once."""

    def __init__(self, program: Program, spark: SparkSession) -> None:
        self._program = program
        self._spark = spark
        self._relations: dict[str, Relation] = {}
        self._sources: dict[str, Stream] = {}

    def relation(self, name: str) -> Relation:
        """Return a stream, table or view by its declared name."""
        if name not in self._relations:
            entry = self._program.entry(name)
            if entry is None:
                self._relations[name] = self._source(name.removesuffix(DEAD_LETTERS)).dead_letters
            else:
                self._relations[name] = self._make(entry)
        return self._relations[name]

    def forget(self) -> None:
        """Forget all relations, after a declaration has changed."""
        self._relations.clear()
        self._sources.clear()

    def view(self, query: Query, script: Script, name: str) -> View:
        """Return the view of a query, or the view that it names; `name` is for messages."""
        relation = self._named(query, script)
        if isinstance(relation, View):
            return relation
        result = self._computed(query, script, name, self._program.relations_in(query, script))
        if isinstance(result, View):
            return result
        raise script.error(
            "the query reads no stream: nothing changes its rows", query.at,
            hint="read a stream that is created before; a table alone is copied by Spark, without a job",
        )  # fmt: skip

    def explain(self, query: Query, script: Script, name: str) -> str:
        """Return what keeps the rows of a query, or of what it names, up to date."""
        if isinstance(self._named(query, script), DataFrame):
            return f"'{name}': rows of tables, which do not change"
        return self.view(query, script, name).explain()

    def columns(self, name: str) -> list[StructField]:
        """Return the columns of a relation."""
        relation = self.relation(name)
        return list(relation.schema.fields)

    def inputs(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of some relations whose rows change or come: all but tables."""
        relations = {name: self.relation(name) for name in names}
        return {name: rows for name, rows in relations.items() if not isinstance(rows, DataFrame)}

    def output(self, insert: Insert, script: Script, sink: Sink) -> Output:
        """Return what an INSERT statement sends into a sink."""
        relation = self._named(insert.query, script)
        if insert.form == "rows" and isinstance(relation, Stream):
            return relation.to(sink)
        view = self.view(insert.query, script, insert.sink.text)
        with located(self._program, script, insert.sink.at):
            if insert.form == "changes":
                return view.changes().to(sink)
            if insert.form == "upserts":
                return view.upserts().to(sink)
            try:
                return view.to(sink)
            except ConfigurationError as error:
                is_keyed = view.appends or (isinstance(sink, KeyedSink) and sink.key)
                hint = error.hint.replace("write changes()", "write its changes: INSERT INTO … CHANGES OF …")
                raise ConfigurationError(error.message, hint=hint if is_keyed else _OF_CHANGES) from None

    def job(self, settings: JobSettings, sinks: dict[str, Sink]) -> Job:
        """Return the job of the program."""
        outputs = [
            self.output(insert, script, sinks[insert.sink.text.lower()]) for insert, script in self._program.inserts
        ]
        return Job(settings.name, sinks=outputs, **settings.arguments)

    def _named(self, query: Query, script: Script) -> Relation | None:
        """Return the relation that a query names, if it is a name alone."""
        return self.relation(*self._program.relations_in(query, script)) if query.relation else None

    def _computed(
        self, query: Query, script: Script, name: str, reads: Sequence[str], uid: str = ""
    ) -> View | DataFrame:
        """Return the result of a query: without a stream among what it reads, rows that do not change."""
        inputs = self.inputs(reads)
        with located(self._program, script, query.at, query):
            if inputs:
                return view_of(query.sql, name, query.emit, inputs, uid=uid, state_ttl=self._program.state_ttl)
            return run_query(self._spark, query, reads)[0]

    def _source(self, name: str) -> Stream:
        """Return a stream, without regard to its primary key."""
        if name not in self._sources:
            entry = self._program.entry(name)
            assert entry is not None
            assert isinstance(entry.declaration, CreateStream)
            with located(self._program, entry.script, entry.declaration.name.at):
                self._sources[name] = read_stream(self._spark, entry.declaration, entry.arguments)
        return self._sources[name]

    def _make(self, entry: Entry) -> Relation:
        declaration, script = entry.declaration, entry.script
        if isinstance(declaration, CreateView):
            uid = str(entry.arguments.get("uid", ""))
            if was := entry.arguments.get("was"):
                uid = make_uid(uid, was=was)
            result = self._computed(declaration.query, script, declaration.name.text, entry.reads, uid)
            return self._register(result, declaration.name.text) if isinstance(result, DataFrame) else result
        if isinstance(declaration, CreateStream):
            rows = self._source(declaration.name.text)
            if not declaration.key:
                return rows
            with located(self._program, script, declaration.name.at):
                return table(rows, key=declaration.key, **table_arguments(declaration, dict(entry.arguments)))
        assert isinstance(declaration, CreateTable)
        with located(self._program, script, declaration.name.at):
            return self._register(read_table(self._spark, declaration, entry.arguments), declaration.name.text)

    def _register(self, df: DataFrame, name: str) -> DataFrame:
        """Have queries find a table in the session, as any other table of Spark."""
        df.createOrReplaceTempView(name)
        return df


def run_query(spark: SparkSession, query: Query, reads: Iterable[str]) -> tuple[DataFrame, Rewriting]:
    """Return the rows of a query of Spark's tables, which it reads, and the query as Spark parses it."""
    text = rewritten(query.sql, (column for name in reads for column in spark.table(name).columns))
    with refused(text):
        return spark.sql(text.text), text


@contextlib.contextmanager
def refused(query: Rewriting) -> Iterator[None]:
    """Raise an error with the place in the query if Spark refuses it, and with Spark's reason if it fails."""
    try:
        with suppress_error_logs():
            yield
    except PySparkException as error:
        raise refuse_query(query, error) from None
    except Py4JError as error:
        raise summarize(error) from None


@contextlib.contextmanager
def located(program: Program, script: Script, at: int, query: Query | None = None) -> Iterator[None]:
    """Give errors of Strandline the place of a statement, or in its query, without values of the environment."""
    try:
        yield
    except StrandlineError as error:
        if query:
            error, offset = _in_query(program, error, query)
            at += offset
        raise program.secrets.located(error, script, at) from None


def _in_query(program: Program, error: StrandlineError, query: Query) -> tuple[StrandlineError, int]:
    """Return an error of a query in the words of SQL files, and its position in the query."""
    message, hint, offset = error.message, error.hint, 0
    if match := _PLACE.search(message):
        message = message[: match.start()]
        lines = query.text.splitlines(keepends=True)
        offset = sum(map(len, lines[: int(match[1]) - 1])) + int(match[2]) - 1
    if unknown := _UNKNOWN.match(message):
        message, hint = (
            unknown[0] + nearest(unknown[1], program.relations()),
            "create it in a statement before this one",
        )
    return type(error)(message, hint=hint, **error.fields), offset
