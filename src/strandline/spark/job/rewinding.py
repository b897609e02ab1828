"""Position in the sources from which a job continues, read from its origin and checked before any change."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import DataFrame

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import read_source
from strandline.checkpoint.start import Start
from strandline.core.errors import CorruptionError, NotFoundError, StrandlineError
from strandline.format.manifest import Manifest
from strandline.snapshot.opening.origin import Origin
from strandline.snapshot.opening.snapshot import open_folder
from strandline.spark.job.attempt import Blueprint
from strandline.spark.sources.filechecks import (
    FileSource,
    LaterLog,
    check_files,
    check_interval,
    file_sources,
    moved_files,
)
from strandline.spark.sources.kafka import KafkaSource, check_topics, kafka_sources
from strandline.spark.sources.progress import read_progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourcePlace:
    """The position in the sources from which a job continues."""

    manifest: Manifest | None
    start: Start | None
    names: list[str]
    """The sources' names in the order of Spark's numbers."""
    source: DataFrame
    """The union that the query reads."""
    files: Mapping[str, bytes]
    """The files of Spark's checkpoint directory from which its query continues."""
    file_sources: list[FileSource]
    """The sources that read files."""

    @property
    def is_known(self) -> bool:
        """Whether a checkpoint or start record has the position."""
        return self.start is not None or (self.manifest is not None and self.manifest.source is not None)

    @property
    def batch(self) -> int:
        """The last batch that was read; -1: none."""
        return self.manifest.source.batch if self.manifest is not None and self.manifest.source is not None else -1

    @cached_property
    def kafka(self) -> list[KafkaSource]:
        """The sources that read Kafka."""
        return kafka_sources(self.source, self.names)


def find_place(b: Blueprint, origin: Origin, start: Start | None) -> SourcePlace:
    """Return the position in the sources from which a job continues.

    Raises ConfigurationError if Kafka has lost rows or files are missing after it, or if files would be read twice.
    """
    manifest = origin.manifest
    files = read_progress(origin.folder, manifest, start, of_this_job=origin.is_own)
    progress = manifest.source if manifest is not None else None
    names = (progress.names if progress else start.names if start else None) or b.plan.sources.names
    source = b.plan.sources.query(names)
    sources = file_sources(source, names, [(node.df, node.cleaning) for node in b.plan.sources.nodes if node.cleaning])
    files = moved_files(b.spark, sources, files)
    place = SourcePlace(manifest, start, list(names), source, files, sources)
    later = list(_later_logs(b, origin)) if sources or place.kafka else []
    files = check_topics(b.spark, place.kafka, files, place.batch, set().union(*(each.partitions for each in later)))
    check_interval(b.spark, sources, files)
    check_files(b.spark, sources, files, place.batch, later)
    return replace(place, files=files)


def _later_logs(b: Blueprint, origin: Origin) -> Iterator[LaterLog]:
    """Yield the source logs of checkpoints after the restored snapshot."""
    manifest = origin.manifest
    if manifest is None or (origin.is_own and not origin.is_new and not origin.choice.skipped):
        return
    yield from _logs_of(b.jobdir, manifest.checkpoint if origin.is_own else 0)
    if origin.is_own or manifest.source is None or not manifest.source.directory:
        return
    # The folder of another job's checkpoint may have been moved. A savepoint's folder has no later checkpoints.
    if isinstance(origin.folder, JobDirectory):
        yield from _logs_of(origin.folder)
    if (url := manifest.source.directory) in (b.jobdir.url, origin.folder.url):
        return
    try:
        folder = open_folder(url, b.checkpoints.storage_options, fsync=False)
        yield from _logs_of(JobDirectory(folder.store, manifest.job, folder=folder.path))
    except NotFoundError:
        log.warning(
            "job '%s': %s does not exist, where job '%s' was when the snapshot was taken: it is not known which files "
            "that job has read and deleted since", b.name, url, manifest.job,
        )  # fmt: skip
    except StrandlineError as error:
        log.warning("job '%s': it is not known which files were read after the snapshot: %s", b.name, error)


def _logs_of(jobdir: JobDirectory, since: int = 0) -> Iterator[LaterLog]:
    for checkpoint, manifest in read_catalog(jobdir).manifests.items():
        if checkpoint > since and (progress := manifest.source) is not None:
            try:
                yield LaterLog(progress.names or [], read_source(jobdir, progress), progress.batch)
            except CorruptionError as error:
                log.warning("it is not known which files checkpoint %d has read: %s", checkpoint, error)
