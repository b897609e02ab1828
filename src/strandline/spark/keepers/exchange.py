"""Shuffle that sends each key group to its partition, and each partition to the executor of its keeper.

A row's route is a number that Spark hashes to the row's partition. The anchor, a pinned DataFrame with rows for every
partition, makes tasks run where its rows are, and makes every keeper take part in every epoch.

Each partition has a second anchor row, the end row, with a route that no other row has. The outer join returns anchor
rows without a match last: a task that has read this row, which has no key group, has read all rows of the partition.
The end of the stream does not prove that: if the JVM fails in the middle of a task's rows, it closes the stream, too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.core.ids import Partition
from strandline.core.keygroups import range_of
from strandline.plan.columns import quoted
from strandline.runtime.rowlayout import KEY_GROUP, PARTITION
from strandline.spark.base.empty import no_rows
from strandline.spark.base.expressions import integers, parse_expression, select, to_java_columns
from strandline.spark.base.located import located_rows
from strandline.spark.base.mapping import map_batches
from strandline.spark.base.pinned import Pinned
from strandline.spark.base.session import has_one_process
from strandline.types.datatypes import IntegerType
from strandline.types.murmur import spark_hash

_ROUTE = "__strandline_route"
_ANCHOR_ROUTE = "__strandline_anchor_route"

SESSION_CONF = {
    # Adaptive execution would split or merge partitions; each needs one task.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}

_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_with_workers: set[str] = set()
"""The applications of Spark in which a job has started Python's workers."""
_MOVES = 3
"""How often the partitions are placed again if they are not spread evenly over the executors."""
_FOLDABLE_PROPAGATION = "org.apache.spark.sql.catalyst.optimizer.FoldablePropagation"
"""If the key is a constant, this rule replaces the route in the join condition, so that the join has no key any more:
Spark then broadcasts the anchor and runs no tasks for partitions without rows."""


@dataclass(frozen=True)
class _Columns:
    """The columns of an operator's rows, cached as Java objects: Spark would parse text again in each epoch."""

    before_shuffle: Any
    output: Any
    order: list[Column]


class Exchange:
    """The routes and the anchor of a job's operators of one parallelism; these share the placement of partitions."""

    def __init__(
        self,
        spark: SparkSession,
        parallelism: int,
        job_group: str = "strandline",
        after: Exchange | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        """`hosts` are the hosts on which the partitions are placed, if Spark can."""
        self._parallelism = parallelism
        self._preferred = hosts
        self.job_group = job_group
        """The Spark job group by which the run's own Spark jobs are cancelled."""
        # For one partition, Spark would use its default number of partitions, for the anchor, too.
        self._tasks = max(2, parallelism)
        routes = find_routes(parallelism, self._tasks)
        self._routes = [route for route, _ in routes]
        rows = ", ".join(f"({route}, {partition})" for partition, both in enumerate(routes) for route in both)
        with keep_active_session(spark):
            session = spark.newSession()
            prepare_session(session)
            # SQL and not a Python list: for a list, Spark would start a second Python daemon, which takes a second.
            values = session.sql(f"SELECT * FROM VALUES {rows} AS anchor({_ANCHOR_ROUTE}, {PARTITION})")
            self._unplaced = values.repartition(self._tasks, _ANCHOR_ROUTE)
            self._place()
        # Each call into the JVM takes a part of a millisecond: constant columns are created once, not in every epoch.
        self._join_condition = F.expr(f"{_ROUTE} = {_ANCHOR_ROUTE}")
        self._route = to_java_columns(self._unplaced, F.col(_ROUTE))
        self._columns: dict[tuple[Any, ...], _Columns] = {}
        """By the arguments of `route`, which are the same in every epoch."""
        self._after = after
        # Compute the anchor while keepers restore: in a cold JVM, Spark's first job takes seconds, mostly on one core.
        self._warming = threading.Thread(target=self._warm, name="strandline-anchor", daemon=True)
        self._warming.start()

    @property
    def partitions(self) -> DataFrame:
        """One row for each partition, on the executor of its keeper."""
        self._settle()
        return self._anchor.rows.where(F.col(_ANCHOR_ROUTE).isin(self._routes)).select(PARTITION)

    def remaining_partitions(self, lost: Collection[str]) -> DataFrame | None:
        """Return one row for each partition whose executor is not lost, there; None if all are lost.

        Unlike `partitions`, it has no tasks of lost ones, which fail several times or wait. `lost` are executors that
        Spark takes for alive.
        """
        present = (place if executor_of(place) not in lost else "" for place in self.places)
        places = {partition: place for partition, place in enumerate(present) if place}
        if not places:
            return None
        return located_rows(self._unplaced.sparkSession, PARTITION, [*places], [*places.values()])

    @property
    def places(self) -> list[str]:
        """The executor of each partition, "" if it is lost."""
        self._settle()
        return places_of(self._anchor.rows, self._parallelism)

    @property
    def hosts(self) -> list[str]:
        """The host of each partition, "" if its executor is lost."""
        self._settle()
        return self._list_hosts()

    def _list_hosts(self) -> list[str]:
        places = places_of(self._anchor.rows, self._parallelism)
        return [host_of(place) for place in places]

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

        On every partition, the last row is the end row, which has no key group.
        A row with a partition in the column `to` goes there, whatever its key. If this exchange has no such partition,
        the row is dropped: it is for an operator of a higher parallelism that gets the same broadcast.
        `refusal` holds two SQL expressions: which rows fail, and one that raises the error.
        """
        self._settle()
        arguments = tuple(keys), max_parallelism, tuple(order_by), tuple(hidden), to, refusal
        columns = self._columns.get(arguments)
        if columns is None:
            columns = self._columns[arguments] = self._create_columns(df, *arguments)
        if to is not None:
            df = df.where(f"{to} is null or {to} < {self._parallelism}")
        before: Any = select(df, columns.before_shuffle)
        shuffled = DataFrame(before._jdf.repartition(self._tasks, self._route), df.sparkSession)
        joined = select(shuffled.join(self._hinted, self._join_condition, "full_outer"), columns.output)
        return joined.sortWithinPartitions(*columns.order) if columns.order else joined

    def _create_columns(
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
            # Not with []: Spark assumes that its result is never null, although the index may be.
            group = F.coalesce(F.get(integers(df.sparkSession, firsts), F.col(to)), group)
        at = F.call_function("div", group * F.lit(self._parallelism), F.lit(max_parallelism))
        route = integers(df.sparkSession, self._routes)[at.cast("int")]
        if all(refusal):
            # Part of the route and not a filter: Spark would evaluate a filter first, and the columns' sources twice.
            too_large, fails = (parse_expression(df.sparkSession, sql) for sql in refusal)
            route = F.when(too_large, fails.cast("int")).otherwise(route)
        before = [F.col("*"), group.alias(KEY_GROUP), route.alias(_ROUTE)]
        first = [PARTITION, KEY_GROUP, *hidden]
        # By exclusion: operators with the same arguments of `route` may have different columns.
        others = f"* except ({', '.join([*first, *([to] if to else []), _ROUTE, _ANCHOR_ROUTE])})"
        output = [*map(F.col, first), parse_expression(df.sparkSession, others)]
        order = [F.col(KEY_GROUP).isNull(), *(F.col(quoted(name)) for name in order_by)] if order_by else []
        return _Columns(to_java_columns(df, *before), to_java_columns(df, *output), order)

    def _settle(self) -> None:
        """Wait until the anchor is computed: Spark jobs that compute it at the same time may place it differently."""
        self._warming.join()

    def _place(self) -> None:
        """Pin the anchor: the first task that computes a partition of it places the partition."""
        self._anchor = Pinned(self._unplaced)
        self._hinted = self._anchor.rows.hint("shuffle_hash")

    def _warm(self) -> None:
        # The first epoch meets the same error and reports it.
        with suppress(Exception):
            sc: Any = self._unplaced.sparkSession.sparkContext
            sc.setJobGroup(self.job_group, "strandline: partitions", interruptOnCancel=True)
            # One after the other: tasks of two exchanges at once would compete for executors.
            if self._after:
                self._after._settle()
            self._compute()
            for _ in range(_MOVES):
                # What was asked for is even; Spark may count an executor that is lost.
                if self._preferred and self._list_hosts() == list(self._preferred):
                    break
                if lie_evenly(self._anchor.rows, self._parallelism):
                    break
                # An executor registered late or was still loading classes, or tasks of another job ran.
                self._anchor.release(blocking=True)
                self._place()
                self._compute()

    def _compute(self) -> None:
        if self._preferred:
            # Another version of Spark may have other methods: then it chooses the places.
            with suppress(Py4JError):
                self._anchor.compute_on(self._preferred)
                return
        self._anchor.rows.count()

    @property
    def anchor(self) -> Any:
        """The anchor's RDD."""
        self._settle()
        return self._anchor.rdd

    def close(self) -> None:
        """Release the anchor."""
        self._warming.join()
        self._anchor.release()


class Exchanges:
    """The exchanges of a job, one for all operators of the same parallelism."""

    def __init__(
        self,
        spark: SparkSession,
        parallelisms: Mapping[str, int],
        job_group: str,
        hosts: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """`hosts` are, by parallelism, the hosts on which partitions are placed, if Spark can."""
        self.job_group = job_group
        """The Spark job group by which the run's own Spark jobs are cancelled."""
        self._exchanges: dict[int, Exchange] = {}
        last = None
        for number in sorted({*parallelisms.values()}, reverse=True):
            preferred = (hosts or {}).get(number, ())
            last = self._exchanges[number] = Exchange(spark, number, job_group, last, preferred)
        self._parallelisms = dict(parallelisms)
        self._workers = threading.Thread(target=self._start_workers, name="strandline-workers", daemon=True)
        self._workers.start()

    def of(self, uid: str) -> Exchange:
        """Return an operator's exchange."""
        return self._exchanges[self._parallelisms[uid]]

    @property
    def shared(self) -> list[tuple[Exchange, list[str]]]:
        """Each exchange, with the uids of its operators."""
        return [
            (exchange, [uid for uid, parallelism in self._parallelisms.items() if parallelism == number])
            for number, exchange in self._exchanges.items()
        ]

    @property
    def places(self) -> list[list[str]]:
        """The executor of each partition, by exchange."""
        return [exchange.places for exchange in self._exchanges.values()]

    @property
    def hosts(self) -> dict[int, list[str]]:
        """By parallelism, the host of each partition."""
        return {number: exchange.hosts for number, exchange in self._exchanges.items()}

    @property
    def anchors(self) -> list[Any]:
        """The RDD of each anchor."""
        return [exchange.anchor for exchange in self._exchanges.values()]

    def _start_workers(self) -> None:
        """Start Python's workers while keepers restore; the first epoch of a session would wait a second for them."""
        exchanges = list(self._exchanges.values())
        # Before that, this job would compete with theirs for executors.
        for exchange in exchanges:
            exchange._settle()
        if not exchanges:
            return
        # The first epoch meets the same error and reports it.
        with suppress(Exception):
            rows = exchanges[-1]._anchor.rows
            context: Any = rows.sparkSession.sparkContext
            if context.applicationId not in _with_workers:
                _with_workers.add(context.applicationId)
                context.setJobGroup(self.job_group, "strandline: workers", interruptOnCancel=True)
                map_batches(rows, iter, rows.schema, "workers").count()

    def close(self) -> None:
        """Release the anchors."""
        self._workers.join()
        for exchange in self._exchanges.values():
            exchange.close()


@contextmanager
def keep_active_session(spark: SparkSession) -> Iterator[None]:
    """Restore the active session afterwards: the creation of a DataFrame makes its session the active one."""
    active = SparkSession.getActiveSession() or spark
    try:
        yield
    finally:
        SparkSession._activeSession = active
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(active._jsparkSession)


def clone_session(spark: Any) -> SparkSession:
    """Return a clone of the user's session, as Spark uses for queries.

    It has the user's settings, views and functions; changes to it do not affect the user's session.
    """
    with keep_active_session(spark):
        return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def empty_frame(source: DataFrame, session: SparkSession) -> DataFrame:
    """Return an empty DataFrame with a source's columns, in another session than the user's."""
    with keep_active_session(source.sparkSession):
        return no_rows(session, source.schema)


def prepare_session(session: SparkSession) -> None:
    """Set the configuration that the exchange needs on a session that no user has."""
    for name, value in SESSION_CONF.items():
        session.conf.set(name, value)
    excluded = session.conf.get(_EXCLUDED_RULES, None) or ""
    if _FOLDABLE_PROPAGATION not in excluded:
        session.conf.set(_EXCLUDED_RULES, ",".join(filter(None, [excluded, _FOLDABLE_PROPAGATION])))


def find_routes(parallelism: int, tasks: int) -> list[tuple[int, int]]:
    """Find two numbers for each partition that Spark's hash partitioning sends there: for its rows and its end row."""
    routes: dict[int, list[int]] = {partition: [] for partition in range(parallelism)}
    number = 0
    while any(len(numbers) < 2 for numbers in routes.values()):
        routes.get(spark_hash([number], [IntegerType()]) % tasks, []).append(number)
        number += 1
    return [(numbers[0], numbers[1]) for numbers in routes.values()]


def host_of(place: str) -> str:
    """Return the host at a place, as Spark names it."""
    return place.removeprefix("executor_").rpartition("_")[0]


def executor_of(place: str) -> str:
    """Return Spark's number of the executor at a place."""
    return place.rpartition("_")[2]


def lie_evenly(pinned: DataFrame, partitions: int) -> bool:
    """Whether no executor has many more of the first partitions of pinned rows than its share."""
    sc: Any = pinned.sparkSession.sparkContext
    if has_one_process(sc.master):
        return True
    core = sc._jsc.sc()
    # One of them is the driver.
    executors = core.getExecutorMemoryStatus().size() - 1
    # Spark names no executor for a partition that it has dropped.
    return are_even(list(filter(None, places_of(pinned, partitions))), executors)


def places_of(pinned: DataFrame, partitions: int) -> list[str]:
    """Return the executor of each of the first partitions of pinned rows; "" if the executor is lost."""
    core: Any = pinned.sparkSession.sparkContext._jsc.sc()
    rows: Any = pinned._jdf.queryExecution().toRdd()
    return [core.getPreferredLocs(rows, partition).mkString() for partition in range(partitions)]


def are_even(places: Sequence[str], executors: int) -> bool:
    """Whether each executor has at most its share of the partitions, rounded up, or a quarter more."""
    share = len(places) / max(1, executors)
    return max(Counter(places).values(), default=0) <= max(-(-len(places) // max(1, executors)), int(1.25 * share))
