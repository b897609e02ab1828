"""Physical plans that Spark makes once and that run again and again, each time with other rows and functions.

Without them, two thirds of an epoch with few rows are Spark's planning. See docs/design/0013-plan-templates.md.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic import dataframe as classic
from pyspark.sql.types import StructType

from strandline.spark.base.batch_limit import UNBOUNDED, row_bytes, unmeasured
from strandline.spark.base.mapping import BatchFunction, map_batches

_KNOWN = frozenset({
    "ArrowEvalPythonExec", "BatchEvalPythonExec", "ExpandExec", "FilterExec", "GenerateExec", "HashAggregateExec",
    "InputAdapter", "MapInArrowExec", "MergingSessionsExec", "ObjectHashAggregateExec", "ProjectExec", "RDDScanExec",
    "ShuffleExchangeExec", "ShuffledHashJoinExec", "SortAggregateExec", "SortExec", "UnionExec", "UpdatingSessionsExec",
    "WholeStageCodegenExec", "WindowExec", "WindowGroupLimitExec",
})  # fmt: skip
"""The nodes that read nothing but their children's rows. ReusedExchangeExec is not one: it would give old rows."""
_PRESENT = re.compile(r"['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Texts that Spark takes for times, in literals such as DATE'today' when it parses them."""
_MAP = "MapInArrowExec"
_PYTHON = frozenset({_MAP, "ArrowEvalPythonExec", "BatchEvalPythonExec"})
_SCAN = "RDDScanExec"
_AGGREGATES = frozenset({"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"})
_BETWEEN = frozenset({"InputAdapter", "SortExec"})
"""What may be between an aggregation and the shuffle before it."""

_Copy = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""Returns a copy of a node of a plan with these RDDs and functions of the JVM, by name."""
_Shape = Callable[[DataFrame], DataFrame]


class NoTemplateError(Exception):
    """Each run needs a plan of its own."""


class PlanTemplate:
    """The physical plan of a DataFrame, which never runs itself: its copies do, with their own rows and functions."""

    def __init__(
        self,
        df: DataFrame,
        rdds: Mapping[str, Any],
        fixed: Collection[Any],
        functions: Collection[str],
        by_task: Collection[int] = (),
    ) -> None:
        """Raise NoTemplateError if a plan that reads these RDDs has no template.

        `fixed` are RDDs that it reads, too, and that are the same in all runs; `functions` are names of functions of
        `map_batches`, which runs replace. `by_task` are Spark's ids of results of aggregations: those are computed of
        each task's rows, without a shuffle, so that several rows of a group may result.
        """
        jdf: Any = df._jdf
        try:
            execution = jdf.queryExecution()
            _check_lasts(df.sparkSession, execution.analyzed())
            reader = _Reader(df.sparkSession, rdds, fixed, functions, by_task)
            copy = reader.read(execution.executedPlan())
        except (Py4JError, RecursionError) as error:
            raise NoTemplateError(
                "this version of Spark has other methods, or the plan has hundreds of levels"
            ) from error
        except PySparkException as error:
            # The sink that uses the rows meets it again, and its name is in the message.
            raise NoTemplateError("Spark cannot plan it") from error
        if copy is None:
            raise NoTemplateError("it reads none of the RDDs")
        self._copy: _Copy = copy
        self.df = df
        self.schema = jdf.schema()
        self.row_bytes = reader.row_bytes
        """The most bytes of a row that its Python functions read."""
        self._of = rdds, fixed, functions, by_task
        self._lock = threading.Lock()
        self._mapped: dict[str, tuple[_Shape | None, PlanTemplate | None]] = {}
        """By the function's name, the template of the last shape."""

    def copy(self, rdds: Mapping[str, Any], functions: Mapping[str, Any]) -> Any:
        """Return a plan that reads these RDDs, with these functions in place of those of the same names.

        It makes the template's session the active one.
        """
        jvm: Any = self.df.sparkSession._jvm
        # A thread of a sink may use its rows while the next epoch begins.
        with self._lock:
            # New nodes take the settings of the active session.
            jvm.SparkSession.setActiveSession(self.df.sparkSession._jsparkSession)
            return self._copy(rdds, functions)

    def mapped(self, function: BatchFunction, name: str, shape: _Shape | None) -> PlanTemplate | None:
        """Return the template of a function of its rows, as `shape` computes them; None if it has none."""
        if name in self._mapped and self._mapped[name][0] == shape:
            return self._mapped[name][1]
        rdds, fixed, functions, by_task = self._of
        template = None
        with suppress(NoTemplateError):
            df = map_batches(shape(self.df) if shape else self.df, function.call, function.schema, name)
            template = PlanTemplate(df, rdds, fixed, [*functions, name], by_task)
        self._mapped[name] = shape, template
        return template


class RepeatedFrame(classic.DataFrame):
    """The rows of a template's copy: a DataFrame of which Spark makes nothing before it is used as one.

    It has no public names but a DataFrame's: `df.name` is a column.
    """

    def __new__(cls, *_: Any) -> RepeatedFrame:
        # PySpark's would call __init__ with its own arguments.
        return object.__new__(cls)

    def __init__(
        self,
        template: PlanTemplate,
        rdds: Mapping[str, Any],
        functions: Mapping[str, Any],
        row_bytes: float = UNBOUNDED,
    ) -> None:
        """`row_bytes` is the most bytes of a row that Python functions read to compute the RDDs."""
        self._frame: Any = None
        super().__init__(None, template.df.sparkSession)
        self._template, self._rdds, self._functions = template, rdds, functions
        self._row_bytes = row_bytes

    @property
    def _jdf(self) -> Any:
        if self._frame is None:
            self._frame = frame_of(self.sparkSession, self._rdd_of_copy(), self._template.schema)._jdf
        return self._frame

    @_jdf.setter
    def _jdf(self, jdf: Any) -> None:
        self._frame = jdf

    @cached_property
    def schema(self) -> StructType:
        """The schema, which is the template's; a copy, which a function may change."""
        return deepcopy(self._template.df.schema)

    def _rdd_of_copy(self) -> Any:
        return self._template.copy(self._rdds, self._functions).execute()

    def _collect_mapped(self, function: BatchFunction, name: str, shape: _Shape | None = None) -> list[str] | None:
        """Return the strings that a function returns of the rows, as `shape` computes them; None without a template.

        `shape` does the same at each call.
        """
        if self._frame is not None or not self._has_settings():
            return None
        template = self._template.mapped(function, name, shape)
        if template is None:
            return None
        plan = template.copy(self._rdds, {**self._functions, name: function.to_java(self.sparkSession)})
        with self._unmeasured(template):
            return [row.getString(0) for row in plan.executeCollect()]

    def _count(self) -> None:
        rdd = self._rdd_of_copy()
        with self._unmeasured(self._template):
            rdd.count()

    def _unmeasured(self, template: PlanTemplate) -> AbstractContextManager[None]:
        return unmeasured(self.sparkSession.sparkContext, max(self._row_bytes, template.row_bytes))

    def _has_settings(self) -> bool:
        """Whether the tasks of an RDD get the session's settings, which some expressions read in tasks.

        Spark sends settings with the jobs of a query's batch and of a DataFrame's action, but not with those of an RDD
        in another thread, such as a sink's, or that of epochs without rows.
        """
        return self.sparkSession.sparkContext.getLocalProperty("spark.sql.execution.id") is not None


def discard(df: DataFrame) -> None:
    """Compute all rows of a DataFrame."""
    if isinstance(df, RepeatedFrame) and df._has_settings():
        df._count()
    else:
        df.write.format("noop").mode("overwrite").save()


def frame_of(spark: SparkSession, rdd: Any, schema: Any) -> DataFrame:
    """Return the DataFrame of an RDD of Spark's own rows."""
    session: Any = spark._jsparkSession
    return DataFrame(session.internalCreateDataFrame(rdd, schema, False), spark)


def rdd_of(df: DataFrame) -> Any:
    """Return the RDD that a DataFrame reads and does nothing else; None if it is another DataFrame."""
    jdf: Any = df._jdf
    plan = jdf.queryExecution().analyzed()
    return plan.rdd() if plan.nodeName() == "LogicalRDD" else None


def output_ids(plan: Any) -> dict[str, int]:
    """Return Spark's ids of the columns that a plan gives, by name."""
    columns = [plan.output().apply(at) for at in range(plan.output().size())]
    return {column.name(): column.exprId().id() for column in columns}


def empty_rdd(spark: SparkSession) -> Any:
    """Return an RDD without partitions."""
    context: Any = spark.sparkContext
    return context._jsc.emptyRDD().rdd()


def has_present(*sql: object) -> bool:
    """Whether SQL, or columns, may have literals of the present time, which Spark replaces when it parses them."""
    return any(_PRESENT.search(str(each)) for each in sql)


def _check_lasts(spark: SparkSession, plan: Any) -> None:
    """Raise NoTemplateError for random numbers, and for times and subqueries, whose results Spark puts into a plan."""
    jvm: Any = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    patterns = catalyst.trees.TreePattern
    # As Spark's optimizer begins: to_timestamp() becomes a cast, and the cast of a text such as 'now' the present time.
    replaced = _object(catalyst.optimizer, "ReplaceExpressions").apply(plan)
    if (
        not plan.deterministic()
        or any(map(plan.containsPattern, (patterns.CURRENT_LIKE(), patterns.PLAN_EXPRESSION())))
        or replaced.containsPattern(patterns.CURRENT_LIKE())
        or not _object(catalyst.optimizer, "SpecialDatetimeValues").apply(replaced).fastEquals(replaced)
    ):
        raise NoTemplateError("its results are not the same at any time")


def _object(package: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


class _Reader:
    """Reads a physical plan; of each node, it returns how to copy it, or None if it is the same in all runs.

    Nodes are copied by public methods of Spark's trees, which keep nothing of what a node has computed.
    """

    def __init__(
        self,
        spark: SparkSession,
        rdds: Mapping[str, Any],
        fixed: Collection[Any],
        functions: Collection[str],
        by_task: Collection[int],
    ) -> None:
        self._spark: Any = spark
        self._rdds, self._fixed, self._functions, self._by_task = rdds, fixed, functions, by_task
        self.row_bytes = 0.0
        """The most bytes of a row that Python functions read, of the nodes so far."""
        jvm: Any = spark._jvm
        self._nil = _object(jvm.scala.collection.immutable, "Nil")

    def read(self, node: Any, *, unshuffled: bool = False) -> _Copy | None:
        """Return how to copy a node; `unshuffled`: without the shuffle for the aggregation above."""
        kind = node.getClass().getSimpleName()
        if kind not in _KNOWN:
            raise NoTemplateError(f"it has a {kind}")
        if kind == _SCAN:
            return self._read_scan(node)
        children = [node.children().apply(at) for at in range(node.children().size())]
        if kind == "ShuffleExchangeExec" and unshuffled:
            return self.read(children[0])
        unshuffled = (unshuffled and kind in _BETWEEN) or (kind in _AGGREGATES and self._is_by_task(node))
        copies = [self.read(child, unshuffled=unshuffled) for child in children]
        if kind in _PYTHON:
            self.row_bytes = max(self.row_bytes, row_bytes(children[0].schema()) if kind == _MAP else UNBOUNDED)
        if kind == _MAP and (name := node.func().name()) in self._functions:
            return self._read_map(node, name, children[0], copies[0])
        if not any(copies):
            return None
        pairs = list(zip(children, copies, strict=True))
        # Now, and not first in an epoch, it shows whether this version of Spark has the method.
        node.withNewChildren(self._seq(children))
        return lambda rdds, functions: node.withNewChildren(
            self._seq([child if copy is None else copy(rdds, functions) for child, copy in pairs])
        )

    def _is_by_task(self, node: Any) -> bool:
        return bool(self._by_task) and any(number in self._by_task for number in output_ids(node).values())

    def _read_scan(self, node: Any) -> _Copy | None:
        rdd = node.rdd()
        name = next((name for name, known in self._rdds.items() if rdd == known), None)
        if name is not None:
            fill = self._copier(node, [rdd])
            return lambda rdds, _: fill(rdds[name])
        if rdd not in self._fixed:
            raise NoTemplateError(f"it reads {rdd.toString()}")
        return None

    def _read_map(self, node: Any, name: str, child: Any, copy: _Copy | None) -> _Copy | None:
        if copy is None:
            raise NoTemplateError(f"'{name}' does not read the rows of an epoch")
        udf = node.func()
        fill_udf, fill = self._copier(udf, [udf.func()]), self._copier(node, [udf, child])

        def map_(rdds: Mapping[str, Any], functions: Mapping[str, Any]) -> Any:
            return fill(fill_udf(functions[name]), copy(rdds, functions))

        return map_

    def _copier(self, node: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        """Return a function that copies a node with others in place of these arguments of its constructor."""
        all_, values = node.productIterator(), []
        while all_.hasNext():
            values.append(all_.next())
        places = [values.index(argument) for argument in arguments]
        context = self._spark.sparkContext
        array = context._gateway.new_array(context._jvm.java.lang.Object, len(values))
        for at, value in enumerate(values):
            array[at] = value

        def copy(*others: Any) -> Any:
            for at, other in zip(places, others, strict=True):
                array[at] = other
            return node.makeCopy(array)

        copy(*arguments)
        return copy

    def _seq(self, nodes: Sequence[Any]) -> Any:
        seq = self._nil
        for node in reversed(nodes):
            seq = getattr(seq, "$colon$colon")(node)
        return seq
