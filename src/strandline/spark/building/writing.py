"""Savepoints made of DataFrames and Arrow tables, for a program that is to begin with this state.

A DataFrame's rows are shuffled by ranges of key groups, by Spark's hash, which is ours. Each task sorts its range, and
writes files of the savepoint; what it cannot know the file of, the driver joins.
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
_PATIENCE_S = 10.0
"""For tasks that Spark has given up: it kills their processes after `spark.python.task.killTimeout`, 2 s."""
_LOOK_S = 0.05
_QUIET_LOOKS = 2


def write(
    job: Job,
    url: str | Path,
    tables: Mapping[str, Rows],
    *,
    watermark: dt.datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Savepoint:
    """Make a savepoint with which `job.start(restore=url)` begins, of rows for some of its states.

    `tables` has by "uid.state" all rows of a state: a DataFrame of Spark, an Arrow table or a DataFrame of pandas, with
    the columns that docs/format.md says, in any order; `key_group` may be left out. States that are not given are
    empty. The job reads its sources from where they begin. `url` is a folder that is not there yet or empty.

    `watermark` is how far event time had come, as for windows and joins whose rows are given; without it no row is
    late. `storage_options` are those of the job's checkpoints unless given.

    Raises ConfigurationError for a state that the program does not have, StateTypeError naming the first row that does
    not fit, or a key of which there are two, and ConflictError if there is anything in the folder. Nothing is there
    then that could be taken for a savepoint.

    >>> state.write(job, "sp/begin", {"detect.seen": spark.createDataFrame([("a", 5)], "card string, value bigint")})
    """
    started = time.monotonic()
    operators = job.operators()
    found = {name: find_state(operators, name) for name in tables}
    for name, rows in tables.items():
        check_columns(*found[name], rows, name)
    options = job.checkpoints.storage_options if storage_options is None else storage_options
    target = savepoint_place(str(url), options, fsync=job.settings.fsync)
    watermarks = {} if watermark is None else {REACHED: _reached(watermark)}
    with SavepointBuilder(target, job.name, operators, watermarks=watermarks) as builder:
        for name, rows in tables.items():
            write_state(builder, target, *found[name], rows)
        made = builder.finish()
    return savepoint_of(made, target, started)


def _reached(watermark: dt.datetime) -> int:
    if not isinstance(watermark, dt.datetime) or watermark.tzinfo is None:
        raise ConfigurationError(f"watermark is {watermark!r}, expected a datetime with a time zone")
    return timestamp_to_us(watermark)


def check_columns(operator: OperatorInfo, state: StateInfo, rows: Any, name: str) -> None:
    """Refuse rows whose columns are not the table's, before any of them is computed."""
    if isinstance(rows, DataFrame):
        schema = arrow_schema(rows.schema)
        rows_of(operator, state).check(pa.RecordBatch.from_pylist([], schema))
    else:
        rows_of(operator, state).check(next(iter(_batches(rows, name))).slice(0, 0))


def write_state(builder: SavepointBuilder, target: Place, operator: OperatorInfo, state: StateInfo, rows: Any) -> None:
    """Write all rows of a state, by Spark's tasks if they are a DataFrame of its."""
    if not isinstance(rows, DataFrame):
        builder.write(operator.uid, state.name, _batches(rows, state.name))
        return
    found = _written_by_tasks(rows, target, operator, state)
    files, pieces = (
        (list(itertools.chain.from_iterable(part)) for part in zip(*found, strict=True)) if found else ([], [])
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
            hint="give a DataFrame of Spark or pandas, or an Arrow table",
        )
    return rows.to_batches(_BATCH_ROWS) or [pa.RecordBatch.from_pylist([], rows.schema)]


def _written_by_tasks(df: DataFrame, target: Place, operator: OperatorInfo, state: StateInfo) -> list[tuple[Any, Any]]:
    """Return the files and pieces of each task that had rows."""
    most = operator.max_parallelism
    cores = df.sparkSession.sparkContext.defaultParallelism
    ranges = 1 if groups_of(operator, state) == BROADCAST_GROUPS else min(most, cores * _RANGES_PER_CORE)
    routed = df.repartition(1) if ranges == 1 else df.repartition(ranges, _route(df, operator, ranges))
    task = TableTask(target, operator, state, ranges)
    try:
        with suppress_error_logs(), _tasks_ended(df.sparkSession.sparkContext):
            # As rows of the action's last stage: of these Spark takes one attempt's of each task.
            found = [row[0] for row in map_batches(routed, task, f"{RESULT} string").collect()]
    except Exception as error:
        raise unwrap_error(error) from None
    written = [msgspec.json.decode(answer, type=Files) for answer in found]
    _check_apart(written, operator, state)
    return [(files.files[state.name], files.pieces[state.name]) for files in written]


@contextmanager
def _tasks_ended(sc: SparkContext) -> Iterator[None]:
    """Wait for attempts that Spark has given up, of a job that failed or beside faster ones: they still write files."""
    tracker, group = sc.statusTracker(), sc.getLocalProperty("spark.jobGroup.id")
    before = set(tracker.getJobIdsForGroup(group))
    try:
        yield
    finally:
        # Where the context was stopped, its own error is what counts.
        with suppress(Exception):
            jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - before]
            stages = [stage for job in jobs if job is not None for stage in job.stageIds]
            deadline, quiet = time.monotonic() + _PATIENCE_S, 0
            # Twice: Spark's tracker hears of tasks a moment later.
            while quiet < _QUIET_LOOKS and time.monotonic() < deadline:
                infos = map(tracker.getStageInfo, stages)
                quiet = 0 if any(info.numActiveTasks for info in infos if info is not None) else quiet + 1
                time.sleep(_LOOK_S)


def _route(df: DataFrame, operator: OperatorInfo, ranges: int) -> Any:
    """Return the column by which Spark sends each row to the task of its range of key groups."""
    most = operator.max_parallelism
    # Spark's hash of a number depends on its type. What does not fit it, the task refuses.
    keys = (
        f"try_cast({quoted(field.name)} as {field.type.ddl})" for field in key_fields(parse_schema(operator.key_schema))
    )
    group = f"pmod(hash({', '.join(keys)}), {most})"
    if KEY_GROUP in df.columns:
        # A mark of panes has no key. That others have their own, the task checks.
        group = f"pmod(coalesce({KEY_GROUP}, {group}), {most})"
    routes = ", ".join(str(route) for route, _ in find_routes(ranges, ranges))
    return F.expr(f"array({routes})[cast({group} * {ranges} div {most} as int)]")


def _check_apart(written: Sequence[Files], operator: OperatorInfo, state: StateInfo) -> None:
    """Raise StrandlineError if Spark has cut up a range: its rows were not sorted together."""
    spans = sorted(
        (min(t.first_key_group for t in every), max(t.last_key_group for t in every))
        for every in (files.files[state.name] + files.pieces[state.name] for files in written)
    )
    for (_, last), (first, _) in itertools.pairwise(spans):
        if first <= last:
            raise StrandlineError(
                f"operator '{operator.uid}', state '{state.name}': two tasks of Spark had rows of key group {first}",
                hint="set spark.sql.adaptive.enabled to false: a range of key groups must be one task's",
            )
