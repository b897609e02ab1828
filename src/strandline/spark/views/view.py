"""Views: `sl.sql(query, table=stream, …)`, and what becomes of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from strandline.core.errors import ConfigurationError
from strandline.core.html import Html, card, code, markup, strong, table
from strandline.core.settings import Duration
from strandline.plan.checks import check_uid
from strandline.plan.columns import quoted
from strandline.plan.graph import Node, sources_of
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.keepers.exchange import clone_session
from strandline.spark.sinks.base import KeyedSink, Sink
from strandline.spark.streams.frames import FrameSource, unchecked_step
from strandline.spark.streams.stream import Output, Stream
from strandline.spark.views import asof
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of, kind_of
from strandline.spark.views.dialect import matches_in
from strandline.spark.views.hints import duration_ms, take_hints, ttls_of_columns
from strandline.spark.views.matching import match_rows
from strandline.spark.views.meaning import Meanings
from strandline.spark.views.names import check_names
from strandline.spark.views.operators import Operators
from strandline.spark.views.places import NodeError, refuse_node, refuse_query
from strandline.spark.views.planner import Planner
from strandline.spark.views.relations import Relation, Rows
from strandline.spark.views.rewriting import Edits, Rewriting
from strandline.spark.views.structure import Query
from strandline.spark.views.tables import Table, watermarked
from strandline.spark.views.temporal import VERSIONS
from strandline.spark.views.times import WHOLE, of_ids

CHANGE = "_change"
"""The column of a view's changes: 1 for a row that was added, -1 for one that was taken back."""
DELETED = "_deleted"
_OF_SESSION = frozenset({"CurrentCatalog", "CurrentDatabase", "CurrentTimeZone", "CurrentUser"})
"""What Spark takes for the present, as the time is, and that is no time."""

_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.)+(?=[A-Z])")


class View:
    """The result of a query, kept up to date: after each epoch, what Spark answers over all rows read so far."""

    def __init__(
        self, text: str, relation: Relation, schema: StructType, catalyst: Catalyst, name: str, query: str,
        tables: Mapping[str, Stream | Table | View],
    ) -> None:  # fmt: skip
        self.text = text
        self.name = name
        self.schema = schema
        """The Spark schema of the rows."""
        self._relation = relation
        self._catalyst = catalyst
        self._query, self._tables = query, tables

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def appends(self) -> bool:
        """Whether rows only come, and none is taken back or replaced."""
        return self._relation.appends

    @property
    def key(self) -> tuple[str, ...] | None:
        """The columns of which no two rows have equal values, if the query says so; () for a single row."""
        unique = self._relation.unique
        if unique is None:
            return None
        return tuple(
            name for name, each in zip(self.columns, self._relation.output, strict=True) if id_of(each) in unique
        )

    def to(self, sink: Sink) -> Output:
        """Send the view into a sink.

        A view whose rows only come goes into any sink. One whose rows change goes into a table or topic with a key, in
        which rows are replaced and deleted by key. All others go as changes: `changes()`.
        """
        if self.appends:
            return self.rows().to(sink)
        if not isinstance(sink, KeyedSink) or not sink.key:
            kind = getattr(sink, "made_by", type(sink).__name__)
            without = "without a key, " if isinstance(sink, KeyedSink) else ""
            raise ConfigurationError(
                f"{self._what} changes rows that it has given, and {without}{kind} only adds rows",
                hint="write to a sink with a key, as sl.sinks.postgres, sqlite, delta, iceberg or kafka with key=…; "
                "write the changes, view.changes().to(sink), with 1 and -1 in _change; or make the query one that only "
                "adds rows",
            )
        deleting, deleted = sink.deleting(
            DELETED, [name for name in sink.key if name in self.columns and name not in self._never_null]
        )
        return self.upserts(sink.key, deleted=deleted).to(deleting)

    def rows(self) -> Stream:
        """Return the rows of a view whose rows only come, as a stream."""
        if not self.appends:
            raise ConfigurationError(
                f"{self._what}: its rows change, and a stream of rows has no way to take one back",
                hint="use changes(), with +1 and -1 in _change; or upserts(), the newest row of each key",
            )
        return self._stream(lambda df: df.drop(WEIGHT))

    def changes(self, column: str = CHANGE) -> Stream:
        """Return the changes as a stream: each row with 1 in `column` as it is added, and -1 as it is taken back.

        Within an epoch, no row is added and taken back.
        """
        self._check_new(column)
        names = self.columns

        def step(df: DataFrame) -> DataFrame:
            if not self._relation.is_net and not _has_map(self.schema):
                # What is behind the last operator may make two of its rows one: SELECT n FROM (… GROUP BY shop).
                columns = [F.col(quoted(name)) for name in _numbered(names)]
                summed = df.toDF(*_numbered(names), WEIGHT).groupBy(*columns).agg(F.sum(WEIGHT).alias(WEIGHT))
                df = summed.where(F.col(WEIGHT) != 0).withColumn(WEIGHT, _repeated(WEIGHT))
            return df.toDF(*names, column)

        return self._stream(step)

    def upserts(self, key: str | Sequence[str] | None = None, *, deleted: str = DELETED) -> Stream:
        """Return the newest row of each key that changed, once an epoch; if `deleted` is true the key has none now.

        `key` is the view's own by default; others must contain it.
        """
        self._check_new(deleted)
        names = [key] if isinstance(key, str) else list(self._own_key() if key is None else key)
        if unknown := [name for name in names if name not in self.columns]:
            raise ConfigurationError(
                f"{self._what} has no column '{unknown[0]}', of which its rows' key is to be",
                hint=f"it has {', '.join(self.columns)}",
            )
        if self.key is None or not {*self.key} <= {*names}:
            its_key = (
                "it has no key that Spark's plan shows"
                if self.key is None
                else f"its key is {', '.join(self.key) or 'none: it is one row'}"
            )
            raise ConfigurationError(
                f"{self._what}: several rows may have the same {', '.join(names)}; {its_key}",
                hint="GROUP BY these columns in the query, use the key that it has, or write changes()",
            )
        return self._stream(lambda df: _newest(df, names, self.columns, deleted))

    def explain(self) -> str:
        """Return what keeps the view up to date: operators, what they hold, and what the view gives."""
        lines = [f"{self._what}: {self._gives}"]
        for part in self._relation.parts:
            lines += [f"  {part.uid}  {part.what}", f"    keeps {part.keeps}: {part.bound}; gives {part.gives}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [(part.uid, part.what, part.keeps, part.bound) for part in self._relation.parts]
        columns = [(field.name, field.dataType.simpleString()) for field in self.schema]
        return card(
            Html(f"{strong(self._what)}, {markup(self._gives)}"),
            code(self.text),
            table(("column", "type"), columns),
            table(("operator", "what it does", "keeps", "until"), parts) if parts else None,
        )

    @property
    def _gives(self) -> str:
        if self.appends:
            return "rows that stay"
        if self.key is None:
            return "changes, of rows without a key"
        return f"changes, of rows by {', '.join(self.key)}" if self.key else "changes of one row"

    @property
    def _what(self) -> str:
        return f"view '{self.name}'" if self.name else "the view"

    @cached_property
    def _never_null(self) -> frozenset[str]:
        """The columns that are never null, as Spark finds in the query, and in those of the views that it reads.

        In a plan of its own: that of the operators must not depend on it, since it is in their uids.
        """
        session = clone_session(self._catalyst.spark)
        with suppress_error_logs():
            for name, table in self._tables.items():
                # The clone has all others.
                if isinstance(table, View):
                    known = table._never_null
                    fields = (StructField(f.name, f.dataType, f.nullable and f.name not in known) for f in table.schema)
                    _register(session, name, StructType([*fields]))
            return Catalyst(session).never_null(self._query)

    def _own_key(self) -> tuple[str, ...]:
        if self.key is None:
            raise ConfigurationError(
                f"{self._what} has no key that Spark's plan shows: several of its rows may be equal",
                hint="GROUP BY the columns that identify a row; or write changes()",
            )
        return self.key

    def _check_new(self, column: str) -> None:
        if column.lower() in [name.lower() for name in self.columns]:
            raise ConfigurationError(
                f"{self._what} has a column '{column}' of its own", hint="give another name for this one"
            )

    @cached_property
    def _node(self) -> Node:
        """The node of the rows, with the columns' names, and the weights last."""
        columns = tuple(zip(self.columns, self._relation.output, strict=True))
        return Rows(self._catalyst, self._relation, columns).node()

    def _stream(self, step: Any) -> Stream:
        return Stream(unchecked_step(self._node, step))


def sql(
    query: str,
    *,
    uid: str = "",
    emit: Literal["final", "changes"] = "final",
    state_ttl: Duration | Mapping[str, Duration] | None = None,
    **tables: Stream | Table | View,
) -> View:
    """Return the result of a query of Spark's SQL over streams, kept up to date.

    `tables` are the streams, tables (`sl.table`) and views that the query reads, by the names that it has for them;
    others are those of the Spark session, and are taken as they are. After each epoch, the changes so far add up to
    what `spark.sql(query)` answers over all rows read so far.

    Aggregates of windows of event time, `GROUP BY window(at, '1 hour'), …` with watermark("at") on the stream, come
    once, when the watermark closes their window, and their state is gone then; later rows are late. With
    `emit="changes"`, they come with each epoch, and are replaced, as those of other groups.

    Operators are found in checkpoints by what they mean. `uid` names the view, and the last operator with state of its
    query: that goes on with its state also if the query means something else, as far as the types of the state fit.
    `state_ttl` is after how long without changes the state of a key may be forgotten, or by table, that of its rows:
    what was given stays, and the promise holds for what is younger.

    >>> totals = sql("SELECT shop, sum(amount) AS total FROM orders GROUP BY shop", orders=orders)
    >>> Job("totals", sinks=[totals.to(sinks.postgres(dsn, "totals", key="shop"))])
    """
    if uid:
        check_uid("sql()", uid)
    return view_of(query, uid, emit, tables, uid=uid, state_ttl=state_ttl)


def view_of(
    query: str,
    name: str,
    emit: Literal["final", "changes"],
    tables: Mapping[str, Stream | Table | View],
    *,
    uid: str = "",
    state_ttl: Duration | Mapping[str, Duration] | None = None,
) -> View:
    """Return the view of `sql()`, with a name for messages."""
    with suppress_error_logs():
        reading, rewriting = _reading(query, emit, tables, state_ttl)
        df, relation = reading.planned(rewriting, uid)
    return View(query, relation, df.schema, reading.operators.catalyst, name, rewriting.text, tables)


def check_matches(query: str, emit: Literal["final", "changes"], tables: Mapping[str, Stream | Table | View]) -> None:
    """Raise ConfigurationError if a job cannot have a MATCH_RECOGNIZE of a query; what is around it is not checked."""
    with suppress_error_logs():
        _reading(query, emit, tables)


def _reading(
    query: str,
    emit: Literal["final", "changes"],
    tables: Mapping[str, Stream | Table | View],
    state_ttl: Duration | Mapping[str, Duration] | None = None,
) -> tuple[_Reading, Rewriting]:
    """Return what reads the parts of a query, and the query around its MATCH_RECOGNIZE, which are planned."""
    if not isinstance(query, str) or not query.strip():
        raise ConfigurationError(
            f"sql() was given {query!r:.100}, expected the text of a query", hint='write sql("SELECT …", orders=orders)'
        )
    if emit not in ("final", "changes"):
        raise ConfigurationError(f"sql(): emit is {emit!r:.100}, expected 'final' or 'changes'")
    check_names(tables)
    nodes = {name: _checked(name, table) for name, table in tables.items()}
    sources = [source for node in nodes.values() for source in sources_of(node)]
    if not sources:
        raise ConfigurationError(
            "sql() was given no stream",
            hint='name those that the query reads: sql("SELECT … FROM orders", orders=orders)',
        )
    source = sources[0]
    if not isinstance(source, FrameSource):
        raise ConfigurationError("sql() needs Spark, and the stream has a test's events")
    columns = (column for table in tables.values() for column in table.schema.names)
    times = {name: (time, isinstance(table, Table)) for name, table in tables.items() if (time := _time_of(table))}
    matches = matches_in(query, columns, times)
    ttl_ms, ttls = _ttls(state_ttl, tables)
    session = clone_session(source.df.sparkSession)
    session.conf.set(asof.ENABLED, "true")
    operators = Operators(Catalyst(session), Meanings(Catalyst(session), {}), source, emit == "final")
    reading = _Reading(query, operators, {}, ttls, ttl_ms, tables)
    for its_name, each in tables.items():
        reading.leaves[_register(session, its_name, each.schema)] = partial(_leaf, operators, its_name, each)
        if isinstance(each, Table) and its_name in times:
            versions = _register(session, f"{VERSIONS}{its_name}", each.schema)
            reading.leaves[versions] = partial(each.versions, operators, its_name)
    for clause in matches.clauses:
        df, rows = reading.planned(matches.table(clause), hints=False)
        rows_of = match_rows(operators, matches, clause, rows, df.schema, reading.analysed_over)
        leaf = _register(session, clause.name, rows_of.schema)
        reading.leaves[leaf] = partial(rows_of.relation, operators)
        reading.matches.add(leaf)
    return reading, matches.outer


@dataclass
class _Reading:
    """Reads the parts of one query: itself, and the tables of its MATCH_RECOGNIZE."""

    query: str
    operators: Operators
    leaves: dict[int, Any]
    ttls: Mapping[str, int]
    ttl_ms: int | None
    tables: Mapping[str, Any]
    matches: set[int] = field(default_factory=set)
    """The leaves that are matches."""

    def planned(self, rewriting: Rewriting, uid: str = "", *, hints: bool = True) -> tuple[DataFrame, Relation]:
        """Return a query's DataFrame, and its relation. Raise ConfigurationError."""
        catalyst = self.operators.catalyst
        df = self._analysed(rewriting)
        jdf: Any = df._jdf
        try:
            plan = jdf.queryExecution().optimizedPlan()
        except PySparkException as error:
            raise self._refused(rewriting, error) from None
        except Py4JJavaError as error:
            words = _PACKAGE.sub("", str(error.java_exception.toString()).splitlines()[0].partition(" (")[0])
            raise ConfigurationError(
                f"Spark's optimizer fails at the query: {words}",
                hint="spark.sql() fails at it as well: write it otherwise",
            ) from None
        try:
            self.operators.meanings.tables.update(catalyst.names_of_rdds(df))
            analysed = catalyst.plan_of(df)
            ttl_hints = take_hints(Query(self.query), Edits(self.query)) if hints else []
            of_columns = ttls_of_columns(catalyst, analysed, self.ttls, ttl_hints, rewriting)
            planner = Planner(self.operators, self.leaves, uid, of_columns, self.ttl_ms, frozenset(self.matches))
            return df, planner.relation(plan, analysed)
        except NodeError as error:
            raise refuse_node(rewriting, error) from None

    def analysed_over(self, rewriting: Rewriting, name: str, schema: StructType) -> DataFrame:
        """Return the DataFrame of a query of an empty table. Raise ConfigurationError."""
        _register(self.operators.catalyst.spark, name, schema)
        return self._analysed(rewriting)

    def _analysed(self, rewriting: Rewriting) -> DataFrame:
        catalyst = self.operators.catalyst
        try:
            df = catalyst.spark.sql(rewriting.text)
        except PySparkException as error:
            raise self._refused(rewriting, error) from None
        if present := catalyst.present(df):
            raise refuse_node(rewriting, _of_the_start(present))
        return df

    def _refused(self, rewriting: Rewriting, error: PySparkException) -> ConfigurationError:
        return refuse_query(rewriting, error, self.tables, self.operators.catalyst.functions)


def _of_the_start(expressions: Sequence[Expression]) -> NodeError:
    """Return the refusal of expressions whose values are those of the job's start."""
    if kind_of(expressions[0]) in _OF_SESSION:
        return NodeError(
            f"the query has {expressions[0].sql()}, a function of Spark's session: it would be the start's for ever",
            "write its value; if a column of this name was meant, no table of the query has it",
            *expressions,
        )
    return NodeError(
        "the query has the present time, as now() or current_date(): it would be the start's for ever",
        "compare times of the rows with each other; or add the time of arrival as a column of the stream",
        *expressions,
    )


def _checked(name: str, table: Any) -> Node:
    if isinstance(table, Stream):
        return table._node
    if isinstance(table, Table):
        return table.stream._node
    if isinstance(table, View):
        return table._relation.node
    raise ConfigurationError(
        f"sql(): {name} is a {type(table).__name__}, expected a Stream, a Table or a View",
        hint="begin a stream with sl.stream(df); a table of Spark is read by the name that the session has for it",
    )


def _ttls(
    state_ttl: Duration | Mapping[str, Duration] | None, tables: Mapping[str, Any]
) -> tuple[int | None, dict[str, int]]:
    """Return the time to live of all tables' rows, and those of some tables, by their names in lower case."""
    if state_ttl is None:
        return None, {}
    if not isinstance(state_ttl, Mapping):
        return duration_ms(state_ttl, "sql(): state_ttl"), {}
    if unknown := [name for name in state_ttl if name not in tables]:
        raise ConfigurationError(
            f"sql(): state_ttl is of '{unknown[0]}', which is no table of the query",
            hint=f"it was given {', '.join(tables)}",
        )
    return None, {name.lower(): duration_ms(ttl, f"sql(): state_ttl of '{name}'") for name, ttl in state_ttl.items()}


def _time_of(table: Stream | Table | View) -> str | None:
    """Return the column that says since when a row of a table is valid, if it has a watermark."""
    if isinstance(table, Table):
        return table.time
    return watermarked(table._node) if isinstance(table, Stream) else None


def _register(session: SparkSession, name: str, schema: StructType) -> int:
    """Register an empty table under a name; return the id of its RDD, by which it is found in plans."""
    df = session.createDataFrame(session.sparkContext.emptyRDD(), schema)
    df.createOrReplaceTempView(name)
    jdf: Any = df._jdf
    number: int = jdf.queryExecution().analyzed().rdd().id()
    return number


def _leaf(ops: Operators, name: str, table: Stream | Table | View, columns: Sequence[Attribute]) -> Relation:
    """Return the relation of a table under some columns of a plan."""
    if isinstance(table, Table):
        return table.relation(ops, name, columns)
    if isinstance(table, Stream):
        meanings: Mapping[int, str] = {id_of(each): f"{name}.{each.name()}" for each in columns}
        hidden, time = ops.hidden_of(table._node.columns.hidden), watermarked(table._node)
        return Relation(
            table._node, tuple(table.columns), tuple(columns), tuple(columns), meanings, name,
            weighted=False, leaves=frozenset({(name, table._node)}), hidden=hidden,
            times={(id_of(each), WHOLE): 0 for each in columns if each.name() == time},
        )  # fmt: skip
    catalyst, inner = ops.catalyst, table._relation
    pairs = list(zip(columns, inner.output, strict=True))
    meanings = {id_of(each): inner.columns[id_of(its)] for each, its in pairs}
    renamed = [catalyst.alias(its, each.name(), each.exprId(), each.metadata()) for each, its in pairs]
    ids = {id_of(its): id_of(each) for each, its in pairs}
    unique = None if inner.unique is None else frozenset(ids[each] for each in inner.unique)
    times = of_ids(inner.times, ids)

    def step(rows: Plan) -> Plan:
        return catalyst.project([*renamed, *ops.carried(inner)], rows)

    return inner.then(step, columns, "", meanings, unique=unique, times=times)


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names of which no two are equal."""
    return [f"c{at}" for at in range(len(names))]


def _repeated(weight: str) -> Column:
    """Return 1 as often as a weight says, or -1 if it is negative: one row each."""
    return F.explode(F.array_repeat(F.signum(weight).cast("bigint"), F.abs(weight).cast("int")))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))


def _newest(df: DataFrame, key: Sequence[str], columns: Sequence[str], deleted: str) -> DataFrame:
    """Return one row for each key that changed: that which was added, or else that which was taken back."""
    row = F.struct(*(F.col(quoted(name)) for name in columns))
    grouped = df.groupBy(*(F.col(quoted(name)).alias(f"k{at}") for at, name in enumerate(key)))
    rows = grouped.agg(
        F.max_by(row, WEIGHT).alias("row"),
        (F.max(WEIGHT) < 0).alias("gone"),
        F.sum(WEIGHT).alias("n"),
        F.min_by(row, WEIGHT).alias("before"),
    )
    if not any(_has_map(field.dataType) for field in df.schema.fields):
        # The same row, taken back and added again.
        rows = rows.where("n <> 0 or not (row <=> before)")
    # As the key of a group, -0.0 is 0.0: places that compare keys as texts or bytes see one row.
    keys = {name: F.col(f"k{at}") for at, name in enumerate(key)}
    return rows.select(
        *(keys.get(name, F.col("row").getField(name)).alias(name) for name in columns), F.col("gone").alias(deleted)
    )
