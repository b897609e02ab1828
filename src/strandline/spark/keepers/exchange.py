"""Sends each key group to its partition, and each partition to the executor that keeps its state.

See the design page: a route value hashes to its partition, and a pinned anchor row on every partition makes tasks
follow the executor that keeps it, and gives every keeper a part in every epoch.

A second anchor row, the END, has a route that no row has. The outer join gives what found no partner after the last of
the rows: whoever has seen a row without a key group has seen all rows of the partition. Nothing else says so: when the
JVM fails in the middle of a task's rows, it closes the stream, and that looks like the end of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core.ids import Partition
from strandline.core.keygroups import range_of
from strandline.plan.columns import quoted
from strandline.runtime.rowlayout import KEY_GROUP, PARTITION
from strandline.spark.base.empty import no_rows
from strandline.spark.base.expressions import parse_expression, select, to_java_columns
from strandline.spark.base.pinned import Pinned
from strandline.spark.keepers.placing import lie_evenly, places_of
from strandline.types.datatypes import IntegerType
from strandline.types.murmur import spark_hash

_ROUTE = "__strandline_route"
_ANCHOR_ROUTE = "__strandline_anchor_route"

SESSION_CONF = {
    # "One partition, one task": adaptive execution would split or merge partitions.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}

_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_MOVES = 3
"""How often partitions are placed anew that do not lie evenly on the executors."""
_FOLDABLE_PROPAGATION = "org.apache.spark.sql.catalyst.optimizer.FoldablePropagation"
"""Where the key is a constant, it puts the route into the anchor's join, which then is none by key any more: the anchor
is broadcast, and partitions without rows are not reached."""


@dataclass(frozen=True)
class _Columns:
    """What is made of an operator's rows on their way, without text: Spark would parse that in each epoch anew."""

    sent: Any
    given: Any
    order: list[Column]


class Exchange:
    """The routes and the anchor of a job's operators of one parallelism: their partitions lie together."""

    def __init__(
        self, spark: SparkSession, parallelism: int, job_group: str = "strandline", after: Exchange | None = None
    ) -> None:
        self._parallelism = parallelism
        self.job_group = job_group
        """What of a run's own Spark jobs can be broken off by."""
        # One alone Spark would cut into as many as it has by default, and the anchor with it.
        self._tasks = max(2, parallelism)
        found = find_routes(parallelism, self._tasks)
        self._routes = [route for route, _ in found]
        rows = ", ".join(f"({route}, {partition})" for partition, both in enumerate(found) for route in both)
        with users_session_active(spark):
            session = spark.newSession()
            prepare_session(session)
            # Of a list of Python's, Spark would make rows in Python: in workers of another kind than ours, with a
            # process of their own that forks them, a second's work.
            values = session.sql(f"SELECT * FROM VALUES {rows} AS anchor({_ANCHOR_ROUTE}, {PARTITION})")
            self._unplaced = values.repartition(self._tasks, _ANCHOR_ROUTE)
            self._place()
        # Every call into the JVM costs a part of a millisecond in every epoch: what does not change is made once.
        self._meet = F.expr(f"{_ROUTE} = {_ANCHOR_ROUTE}")
        self._route = to_java_columns(self._unplaced, F.col(_ROUTE))
        self._made: dict[tuple[Any, ...], _Columns] = {}
        """By what `route` is told: that is the same in every epoch."""
        self._after = after
        # Computed while keepers restore: in a cold JVM, Spark's first job takes seconds, most of them one core's.
        self._warming = threading.Thread(target=self._warm, name="strandline-anchor", daemon=True)
        self._warming.start()

    @property
    def partitions(self) -> DataFrame:
        """One row a partition, on the executor that keeps the partition's state."""
        self._settle()
        return self._anchor.rows.where(F.col(_ANCHOR_ROUTE).isin(self._routes)).select(PARTITION)

    @property
    def places(self) -> list[str]:
        """The executor of each partition."""
        self._settle()
        return places_of(self._anchor.rows, self._parallelism)

    def route(
        self,
        df: DataFrame,
        keys: Sequence[str],
        max_parallelism: int,
        order_by: Sequence[str] = (),
        hidden: Sequence[str] = (),
        to: str | None = None,
        refusal: tuple[str, str] = ("", ""),
    ) -> DataFrame:
        """Return the rows on their partitions: the partition, the key group, hidden columns, then the others of `df`.

        On every partition they end with a row without a key group: it comes last, and only when all others have come.
        Where the column `to` has a partition, the row goes there, whatever its key; and nowhere if there is none such:
        it is for another operator that hears the same, and has more of them. `refusal` is which rows fail, and how.
        """
        self._settle()
        way = tuple(keys), max_parallelism, tuple(order_by), tuple(hidden), to, refusal
        made = self._made.get(way)
        if made is None:
            made = self._made[way] = self._columns(df, *way)
        if to is not None:
            df = df.where(f"{to} is null or {to} < {self._parallelism}")
        sent: Any = select(df, made.sent)
        there = DataFrame(sent._jdf.repartition(self._tasks, self._route), df.sparkSession)
        joined = select(there.join(self._hinted, self._meet, "full_outer"), made.given)
        return joined.sortWithinPartitions(*made.order) if made.order else joined

    def _columns(
        self,
        df: DataFrame,
        keys: Sequence[str],
        max_parallelism: int,
        order_by: Sequence[str],
        hidden: Sequence[str],
        to: str | None,
        refusal: tuple[str, str],
    ) -> _Columns:
        group = F.pmod(F.hash(*(F.col(quoted(key)) for key in keys)), F.lit(max_parallelism))
        if to is not None:
            partitions = map(Partition, range(self._parallelism))
            firsts = [range_of(partition, max_parallelism, self._parallelism)[0] for partition in partitions]
            # Not with []: Spark takes what that gives for never null, though the index may be.
            group = F.coalesce(F.get(F.array(*map(F.lit, firsts)), F.col(to)), group)
        at = F.call_function("div", group * F.lit(self._parallelism), F.lit(max_parallelism))
        route = F.array(*map(F.lit, self._routes))[at.cast("int")]
        if all(refusal):
            # Here, and not as a condition: Spark would compute it before what the columns are made of, and that twice.
            too_large, fails = (parse_expression(df.sparkSession, sql) for sql in refusal)
            route = F.when(too_large, fails.cast("int")).otherwise(route)
        sent = [F.col("*"), group.alias(KEY_GROUP), route.alias(_ROUTE)]
        first = [PARTITION, KEY_GROUP, *hidden]
        # Whatever there is: operators whose rows are sent in one way need not have the same columns.
        others = f"* except ({', '.join([*first, *([to] if to else []), _ROUTE, _ANCHOR_ROUTE])})"
        given = [*map(F.col, first), parse_expression(df.sparkSession, others)]
        order = [F.col(KEY_GROUP).isNull(), *(F.col(quoted(name)) for name in order_by)] if order_by else []
        return _Columns(to_java_columns(df, *sent), to_java_columns(df, *given), order)

    def _settle(self) -> None:
        """Wait until every partition has its place: two jobs that both compute the anchor may place it differently."""
        self._warming.join()

    def _place(self) -> None:
        """Have each partition placed with the first task that computes its row of the anchor."""
        self._anchor = Pinned(self._unplaced)
        self._hinted = self._anchor.rows.hint("shuffle_hash")

    def _warm(self) -> None:
        # Whatever is wrong, the first epoch will meet it too, and say so.
        with suppress(Exception):
            sc: Any = self._unplaced.sparkSession.sparkContext
            sc.setJobGroup(self.job_group, "strandline: partitions", interruptOnCancel=True)
            # Tasks of two at the same time would take each other's executors.
            if self._after:
                self._after._settle()
            self._anchor.rows.count()
            for _ in range(_MOVES):
                if lie_evenly(self._anchor.rows, self._parallelism):
                    break
                # An executor had not come yet, or had to load what the others had loaded; or another job's tasks run.
                self._anchor.release(blocking=True)
                self._place()
                self._anchor.rows.count()

    def close(self) -> None:
        """Let the anchor go."""
        self._warming.join()
        self._anchor.release()


class Exchanges:
    """The exchanges of a job: operators of one parallelism share one."""

    def __init__(self, spark: SparkSession, parallelisms: Mapping[str, int], job_group: str) -> None:
        self.job_group = job_group
        """What of a run's own Spark jobs can be broken off by."""
        self._made: dict[int, Exchange] = {}
        last = None
        for number in sorted({*parallelisms.values()}, reverse=True):
            last = self._made[number] = Exchange(spark, number, job_group, last)
        self._parallelisms = dict(parallelisms)

    def of(self, uid: str) -> Exchange:
        """Return an operator's."""
        return self._made[self._parallelisms[uid]]

    @property
    def shared(self) -> list[tuple[Exchange, list[str]]]:
        """Each exchange, with the uids of its operators."""
        return [
            (exchange, [uid for uid, its in self._parallelisms.items() if its == number])
            for number, exchange in self._made.items()
        ]

    @property
    def places(self) -> list[list[str]]:
        """The executor of each partition, by exchange."""
        return [exchange.places for exchange in self._made.values()]

    def close(self) -> None:
        """Let the anchors go."""
        for exchange in self._made.values():
            exchange.close()


@contextmanager
def users_session_active(spark: SparkSession) -> Iterator[None]:
    """Making a DataFrame makes its session the active one: afterwards the user's own is again."""
    active = SparkSession.getActiveSession() or spark
    try:
        yield
    finally:
        SparkSession._activeSession = active
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(active._jsparkSession)


def session_like(spark: Any) -> SparkSession:
    """Return a session like those that Spark gives queries.

    It has the user's settings, views and functions, and what is set on it is not set on the user's.
    """
    with users_session_active(spark):
        return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def make_nothing(source: DataFrame, session: SparkSession) -> DataFrame:
    """Return an empty DataFrame of a source's columns, in a session of ours."""
    with users_session_active(source.sparkSession):
        return no_rows(session, source.schema)


def prepare_session(session: SparkSession) -> None:
    """Set what the exchange needs on a session that is ours alone."""
    for name, value in SESSION_CONF.items():
        session.conf.set(name, value)
    excluded = session.conf.get(_EXCLUDED_RULES, None) or ""
    if _FOLDABLE_PROPAGATION not in excluded:
        session.conf.set(_EXCLUDED_RULES, ",".join(filter(None, [excluded, _FOLDABLE_PROPAGATION])))


def find_routes(parallelism: int, tasks: int) -> list[tuple[int, int]]:
    """For each partition, find two numbers that Spark's hash partitioning sends there: its rows' and its end's."""
    routes: dict[int, list[int]] = {partition: [] for partition in range(parallelism)}
    number = 0
    while any(len(found) < 2 for found in routes.values()):
        routes.get(spark_hash([number], [IntegerType()]) % tasks, []).append(number)
        number += 1
    return [(found[0], found[1]) for found in routes.values()]
