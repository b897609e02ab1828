"""Writes savepoints from DataFrames and Arrow tables, for a program that starts with this state.

Spark shuffles a DataFrame's rows by ranges of key groups, with the hash that Strandline also uses. Each task sorts its
range, and writes files of the savepoint; the driver joins pieces whose file a task cannot know.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.control.status import Savepoint
from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.plan.columns import quoted
from strandline.runtime.watermarks import REACHED
from strandline.snapshot.opening.snapshot import savepoint_place
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import KEY_GROUP, key_fields
from strandline.snapshot.savepoints.builder import SavepointBuilder, find_state, groups_of
from strandline.snapshot.savepoints.export import Files
from strandline.spark.base.ddl import arrow_schema
from strandline.spark.base.mapping import map_batches
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.building.tasks import RESULT, TableTask
from strandline.spark.job.job import Job
from strandline.spark.job.saving import savepoint_of
from strandline.spark.keepers.exchange import find_routes
from strandline.storage.place import Place
from strandline.types.datatypes import parse_schema
from strandline.types.scalars import timestamp_to_us

Rows: TypeAlias = "DataFrame | pa.Table | pa.RecordBatch | Any"
"""All rows of a state: a DataFrame of Spark or of pandas, or of Arrow."""

_BATCH_ROWS = 64 << 10
_RANGES_PER_CORE = 2
_ABORTED_TASKS_S = 10.0
"""The wait for aborted tasks. Spark kills their processes after `spark.python.task.killTimeout`, 2 s."""
_POLL_S = 0.05
_IDLE_POLLS = 2


def write(
    job: Job,
    url: str | Path,
    tables: Mapping[str, Rows],
    *,
    watermark: dt.datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Savepoint:
    """Write a savepoint for `job.start(restore=url)` from the rows of some of its states.

    `tables` has for "uid.state" all rows of a state: a DataFrame of Spark, an Arrow table or a DataFrame of pandas,
    with the columns in docs/format.md, in any order; `key_group` is optional. States without a table are empty. The job
    reads its sources from their start. `url` is a folder that is empty or does not exist.

    `watermark` is the event time that the state has reached, as for rows of windows and joins; without it no row is
    late. `storage_options` defaults to those of the job's checkpoints.

    Raises ConfigurationError for a state that the program does not have, StateTypeError that names the first row that
    does not fit, or a duplicate key, and ConflictError if the folder is not empty. After an error, the folder holds no
    savepoint.

    >>> state.write(job, "sp/begin", {"detect.seen": spark.createDataFrame([("a", 5)], "card string, value bigint")})
    """
    start = time.monotonic()
    operators = job.operators()
    states = {name: find_state(operators, name) for name in tables}
    for name, rows in tables.items():
        check_columns(*states[name], rows, name)
    options = job.checkpoints.storage_options if storage_options is None else storage_options
    target = savepoint_place(str(url), options, fsync=job.settings.fsync)
    watermarks = {} if watermark is None else {REACHED: _reached(watermark)}
    with SavepointBuilder(target, job.name, operators, watermarks=watermarks) as builder:
        for name, rows in tables.items():
            write_state(builder, target, *states[name], rows)
        manifest = builder.finish()
    return savepoint_of(manifest, target, start)


def _reached(watermark: dt.datetime) -> int:
    if not isinstance(watermark, dt.datetime) or watermark.tzinfo is None:
        raise ConfigurationError(f"watermark is {watermark!r}, expected a datetime with a time zone")
    return timestamp_to_us(watermark)


def check_columns(operator: OperatorInfo, state: StateInfo, rows: Any, name: str) -> None:
    """Raise StateTypeError if the rows do not have the table's columns, before any row is computed."""
    if isinstance(rows, DataFrame):
        schema = arrow_schema(rows.schema)
        rows_of(operator, state).check(pa.RecordBatch.from_pylist([], schema))
    else:
        rows_of(operator, state).check(next(iter(_batches(rows, name))).slice(0, 0))


def write_state(builder: SavepointBuilder, target: Place, operator: OperatorInfo, state: StateInfo, rows: Any) -> None:
    """Write all rows of a state, in Spark's tasks if they are a DataFrame of Spark."""
    if not isinstance(rows, DataFrame):
        builder.write(operator.uid, state.name, _batches(rows, state.name))
        return
    results = _run_tasks(rows, target, operator, state)
    files, pieces = (
        (list(itertools.chain.from_iterable(part)) for part in zip(*results, strict=True)) if results else ([], [])
    )
    builder.add(operator.uid, state.name, files, pieces)


def _batches(rows: Any, name: str) -> list[pa.RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if type(rows).__module__.partition(".")[0] == "pandas":
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if not isinstance(rows, pa.Table):
        raise ConfigurationError(
            f"the rows of '{name}' are a {type(rows).__name__}",
            hint="pass a DataFrame of Spark or pandas, or an Arrow table",
        )
    return rows.to_batches(_BATCH_ROWS) or [pa.RecordBatch.from_pylist([], rows.schema)]


def _run_tasks(df: DataFrame, target: Place, operator: OperatorInfo, state: StateInfo) -> list[tuple[Any, Any]]:
    """Return the files and pieces of each task that had rows."""
    max_parallelism = operator.max_parallelism
    cores = df.sparkSession.sparkContext.defaultParallelism
    ranges = 1 if groups_of(operator, state) == BROADCAST_GROUPS else min(max_parallelism, cores * _RANGES_PER_CORE)
    routed = df.repartition(1) if ranges == 1 else df.repartition(ranges, _route(df, operator, ranges))
    task = TableTask(target, operator, state, ranges)
    try:
        with suppress_error_logs(), _await_aborted_tasks(df.sparkSession.sparkContext):
            # The rows of an action's last stage: Spark takes those of one attempt of each task.
            rows = [row[0] for row in map_batches(routed, task, f"{RESULT} string").collect()]
    except Exception as error:
        raise unwrap_error(error) from None
    results = [msgspec.json.decode(row, type=Files) for row in rows]
    _check_disjoint(results, operator, state)
    return [(files.files[state.name], files.pieces[state.name]) for files in results]


@contextmanager
def _await_aborted_tasks(sc: SparkContext) -> Iterator[None]:
    """Wait for aborted attempts, of a failed job or beside a faster attempt of the task: they still write files."""
    tracker, group = sc.statusTracker(), sc.getLocalProperty("spark.jobGroup.id")
    before = set(tracker.getJobIdsForGroup(group))
    try:
        yield
    finally:
        # If the context was stopped, raise the error of the action, not of the tracker.
        with suppress(Exception):
            jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - before]
            stages = [stage for job in jobs if job is not None for stage in job.stageIds]
            deadline, idle_polls = time.monotonic() + _ABORTED_TASKS_S, 0
            # Poll twice: Spark's tracker counts new tasks with a delay.
            while idle_polls < _IDLE_POLLS and time.monotonic() < deadline:
                infos = map(tracker.getStageInfo, stages)
                is_active = any(info.numActiveTasks for info in infos if info is not None)
                idle_polls = 0 if is_active else idle_polls + 1
                time.sleep(_POLL_S)


def _route(df: DataFrame, operator: OperatorInfo, ranges: int) -> Any:
    """Return the column by which Spark sends each row to the task of its range of key groups."""
    max_parallelism = operator.max_parallelism
    # Spark's hash of a number depends on its type. The task refuses a key that does not fit its type.
    keys = (
        f"try_cast({quoted(field.name)} as {field.type.ddl})" for field in key_fields(parse_schema(operator.key_schema))
    )
    group = f"pmod(hash({', '.join(keys)}), {max_parallelism})"
    if KEY_GROUP in df.columns:
        # Marks of panes have a key group and no key. For other rows, the task checks the key group.
        group = f"pmod(coalesce({KEY_GROUP}, {group}), {max_parallelism})"
    routes = ", ".join(str(route) for route, _ in find_routes(ranges, ranges))
    return F.expr(f"array({routes})[cast({group} * {ranges} div {max_parallelism} as int)]")


def _check_disjoint(results: Sequence[Files], operator: OperatorInfo, state: StateInfo) -> None:
    """Raise StrandlineError if Spark has split a range between tasks: its rows were not sorted together."""
    spans = sorted(
        (min(t.first_key_group for t in tables), max(t.last_key_group for t in tables))
        for tables in (files.files[state.name] + files.pieces[state.name] for files in results)
    )
    for (_, last), (first, _) in itertools.pairwise(spans):
        if first <= last:
            raise StrandlineError(
                f"operator '{operator.uid}', state '{state.name}': two tasks of Spark had rows of key group {first}",
                hint="set spark.sql.adaptive.enabled to false: one task must process a whole range of key groups",
            )
