"""Start of file sources after a bootstrap with `skip_files`: they skip the files of the history and read all others.

Spark lists all present files and reads none. Then the files that are not in the history are removed from Spark's log of
files. So the stream reads a file that was written after the history was listed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs
from pyspark.sql import DataFrame

from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import capture, capture_start, upload_source
from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import SourceInfo
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.lower.query import Sources
from strandline.spark.sources.checks import leaves_of, relations_of
from strandline.spark.sources.log import UnreadableLogError, logged_times, only_files
from strandline.spark.streams.frames import FrameSource

_DEFAULT_AGE = "7d"
"""Spark's own default of maxFileAge."""


def files_of_history(sources: Sources, frames: Mapping[str, DataFrame]) -> dict[str, frozenset[str]]:
    """Return the files of the history, by source; raise ConfigurationError if a source or history has no files."""
    files = {}
    for node in sources.nodes:
        what = f"source '{node.name}'" if node.name else "source"
        relations = relations_of(node.df)
        if len(relations) != 1 or not relations[0].is_files:
            raise ConfigurationError(
                f"skip_files: the {what} reads no files",
                hint="leave skip_files out, and say in the source's options where it begins",
            )
        df = frames.get(node.name)
        paths = _files_read(df, what) if df is not None else frozenset()
        if df is not None and not paths:
            raise ConfigurationError(
                f"skip_files: the history of the {what} is not read from files, or from none",
                hint="leave skip_files out, and have the stream leave out what the history has",
            )
        files[node.name] = paths
    return files


def _files_read(df: DataFrame, what: str) -> frozenset[str]:
    """Return the files that a DataFrame reads. `inputFiles` also has those of partitions that its filters exclude."""
    leaves = _to_list(df._jdf.queryExecution().sparkPlan().collectLeaves())
    scans = [scan for scan in leaves if scan.getClass().getSimpleName() == "FileSourceScanExec"]
    files = set(df.inputFiles()).difference(*(scan.relation().location().inputFiles() for scan in scans))
    jvm: Any = df.sparkSession._jvm
    if any(scan.relation().partitionSchema().size() for scan in scans) and _has_subquery(df):
        raise ConfigurationError(
            f"skip_files: which files the history of the {what} is read from depends on what another query or table "
            "holds",
            hint="compare with a constant in the filter of partitions, and join with the result",
        )
    for scan in scans:
        # Spark may add dynamic pruning to a join; but rows that a join drops have been read.
        filters = _to_list(scan.partitionFilters())
        filters = [each for each in filters if not each.getClass().getSimpleName().startswith("DynamicPruning")]
        parts = scan.relation().location().listFiles(jvm.PythonUtils.toSeq(filters), scan.dataFilters())
        files.update(file.getPath().toUri().toString() for part in _to_list(parts) for file in _to_list(part.files()))
    return frozenset(files)


def _has_subquery(df: DataFrame) -> bool:
    """Whether a DataFrame has a subquery. Spark turns most into joins, which hides their filters of partitions."""
    jvm: Any = df.sparkSession._jvm
    contains = jvm.org.apache.spark.sql.catalyst.expressions.SubqueryExpression.hasSubquery
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        if any(map(contains, _to_list(node.expressions()))):
            return True
        nodes += _to_list(node.children())
    return False


def _to_list(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


@suppress_error_logs()
def place_after(
    sources: Sources, files: Mapping[str, frozenset[str]], jobdir: JobDirectory, scratch: Path
) -> SourceInfo:
    """Return the position of sources that have read the files of the history and no others; store it in `jobdir`."""
    source = sources.query(sources.names)
    directory = Path(tempfile.mkdtemp(prefix="spark-", dir=scratch))
    try:
        writer = source.writeStream.foreachBatch(lambda df, batch: None).trigger(availableNow=True)
        try:
            writer.option("checkpointLocation", f"file://{directory}").start().awaitTermination()
        except Exception as error:
            raise unwrap_error(error) from None
        batch = max((int(path.name) for path in (directory / "commits").glob("[0-9]*")), default=-1)
        captured = capture(directory, batch) if batch >= 0 else capture_start(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if captured is None:
        raise UnavailableError(f"{directory}: Spark has not written down where the sources begin")
    leaves = list(leaves_of(source))
    try:
        for node in sources.nodes:
            number = _number_of(node, leaves)
            times = logged_times(captured, number)
            _check_known(node, files[node.name], times)
            _check_age(node, files[node.name], times)
            captured = only_files(captured, number, files[node.name])
    except UnreadableLogError as error:
        raise ConfigurationError(
            f"skip_files: Spark's log of files has an unknown format: {error}",
            hint="leave skip_files out, and have the stream leave out what the history has",
        ) from None
    info = upload_source(jobdir, captured, CheckpointId(0), batch, None, sources.names)
    # Only this bootstrap uses the folder: it will have no later checkpoints.
    return structs.replace(info, directory=UNSET)


def _number_of(node: FrameSource, leaves: list[object]) -> int:
    (plan,) = leaves_of(node.df)
    numbers = [number for number, leaf in enumerate(leaves) if plan.equals(leaf)]
    if len(numbers) != 1:
        raise ConfigurationError(
            f"skip_files: the source '{node.name}' reads what another one reads",
            hint="begin both pipelines with one stream()",
        )
    return numbers[0]


def _check_known(node: FrameSource, wanted: frozenset[str], known: Mapping[str, int]) -> None:
    if others := sorted(wanted - known.keys()):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what = f"source '{node.name}'" if node.name else "source"
        raise ConfigurationError(
            f"skip_files: the {what} does not read {others[0]}{more}, and the history does",
            hint="read the history from the path of the source; or leave skip_files out, and have the stream leave out "
            "what the history has",
        )


def _check_age(node: FrameSource, wanted: frozenset[str], times: Mapping[str, int]) -> None:
    """Refuse files that Spark would silently ignore because they are much older than the newest file in its log."""
    if not wanted:
        return
    (relation,) = relations_of(node.df)
    age = relation.options.get("maxfileage", _DEFAULT_AGE)
    jvm: Any = node.df.sparkSession._jvm
    oldest_ms = max(times[path] for path in wanted) - jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(age)
    if others := sorted(path for path, time_ms in times.items() if path not in wanted and time_ms < oldest_ms):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what = f"source '{node.name}'" if node.name else "source"
        raise ConfigurationError(
            f"skip_files: the history was not read from {others[0]}{more}, and the {what} would never read it: it is "
            f"older than the newest file of the history by more than maxFileAge, {age}",
            hint='read the source with sl.files_source(…), or with .option("maxFileAge", "36500d")',
        )
