"""Where a stream goes on that reads the files which history was read from: with all others.

Spark plans all files that are there now, and reads none; of its log of them, those that history was not read from go.
So a file that came after the history was listed is read by the stream.
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

_USUAL_AGE = "7d"
"""Spark's own default of maxFileAge."""


def files_of_history(sources: Sources, frames: Mapping[str, DataFrame]) -> dict[str, frozenset[str]]:
    """Return the files that history was read from, by source; refuse what is not read from files."""
    found = {}
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
        found[node.name] = paths
    return found


def _files_read(df: DataFrame, what: str) -> frozenset[str]:
    """Return the files that a DataFrame reads; `inputFiles` has those too that its filters leave out by their place."""
    leaves = _each(df._jdf.queryExecution().sparkPlan().collectLeaves())
    scans = [scan for scan in leaves if scan.getClass().getSimpleName() == "FileSourceScanExec"]
    found = set(df.inputFiles()).difference(*(scan.relation().location().inputFiles() for scan in scans))
    jvm: Any = df.sparkSession._jvm
    if any(scan.relation().partitionSchema().size() for scan in scans) and _asks_others(df):
        raise ConfigurationError(
            f"skip_files: which files the history of the {what} is read from depends on what another query or table "
            "holds",
            hint="have the filter compare with a value, and join with what was filtered so",
        )
    for scan in scans:
        # Spark may add such to a join. What a join leaves out was read.
        filters = _each(scan.partitionFilters())
        filters = [each for each in filters if not each.getClass().getSimpleName().startswith("DynamicPruning")]
        parts = scan.relation().location().listFiles(jvm.PythonUtils.toSeq(filters), scan.dataFilters())
        found.update(file.getPath().toUri().toString() for part in _each(parts) for file in _each(part.files()))
    return frozenset(found)


def _asks_others(df: DataFrame) -> bool:
    """Whether a DataFrame has a subquery; Spark makes joins of most, whose filters of partitions are not seen later."""
    jvm: Any = df.sparkSession._jvm
    has_subquery = jvm.org.apache.spark.sql.catalyst.expressions.SubqueryExpression.hasSubquery
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        if any(map(has_subquery, _each(node.expressions()))):
            return True
        nodes += _each(node.children())
    return False


def _each(several: Any) -> list[Any]:
    return [several.apply(at) for at in range(several.size())]


@suppress_error_logs()
def place_behind(
    sources: Sources, files: Mapping[str, frozenset[str]], jobdir: JobDirectory, scratch: Path
) -> SourceInfo:
    """Return a place in the sources at which the files of history are read and no others; its own go into `jobdir`."""
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
            f"skip_files: Spark's log of the files that it has read is not as it is known to be: {error}",
            hint="leave skip_files out, and have the stream leave out what the history has",
        ) from None
    info = upload_source(jobdir, captured, CheckpointId(0), batch, None, sources.names)
    # The folder is of this bootstrap alone: no later checkpoint will be there.
    return structs.replace(info, directory=UNSET)


def _number_of(node: FrameSource, leaves: list[object]) -> int:
    (own,) = leaves_of(node.df)
    numbers = [number for number, leaf in enumerate(leaves) if own.equals(leaf)]
    if len(numbers) != 1:
        raise ConfigurationError(
            f"skip_files: the source '{node.name}' reads what another one reads",
            hint="begin both pipelines with one stream()",
        )
    return numbers[0]


def _check_known(node: FrameSource, wanted: frozenset[str], there: Mapping[str, int]) -> None:
    if others := sorted(wanted - there.keys()):
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        what = f"source '{node.name}'" if node.name else "source"
        raise ConfigurationError(
            f"skip_files: the {what} does not read {others[0]}{more}, and the history does",
            hint="read the history from the path of the source; or leave skip_files out, and have the stream leave out "
            "what the history has",
        )


def _check_age(node: FrameSource, wanted: frozenset[str], times: Mapping[str, int]) -> None:
    """Refuse files that Spark would pass over without a word: much older than the newest of those that it has read."""
    if not wanted:
        return
    (relation,) = relations_of(node.df)
    age = relation.options.get("maxfileage", _USUAL_AGE)
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
