"""Where a job goes on in its sources: read from its origin, and checked before anything is touched."""

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
from strandline.spark.sources.checks import source_numbers
from strandline.spark.sources.filechecks import FileSource, LaterLog, check_files, file_sources, moved_files
from strandline.spark.sources.kafka import KafkaSource, check_topics, kafka_sources
from strandline.spark.sources.progress import read_progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourcePlace:
    """Where a job goes on in its sources."""

    manifest: Manifest | None
    start: Start | None
    names: list[str]
    """The sources' names in the order of Spark's numbers."""
    source: DataFrame
    """What one query reads."""
    files: Mapping[str, bytes]
    """Spark's, for the directory that its query goes on from."""
    file_sources: list[FileSource]
    """The sources that read files."""

    @property
    def is_known(self) -> bool:
        """Whether a checkpoint or a start says where the sources go on."""
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
    """Return where a job goes on in its sources.

    Raises ConfigurationError if Kafka's rows or files are gone that it would read from there, or if files would be
    read a second time.
    """
    manifest = origin.manifest
    files = read_progress(origin.folder, manifest, start, of_this_job=origin.is_own)
    progress = manifest.source if manifest is not None else None
    names = (progress.names if progress else start.names if start else None) or b.plan.sources.names
    source = b.plan.sources.query(names)
    sources = file_sources(source, names, {node.name: node.cleaning for node in b.plan.sources.nodes})
    files = moved_files(b.spark, sources, files)
    place = SourcePlace(manifest, start, list(names), source, files, sources)
    later = list(_later_logs(b, origin)) if sources or place.kafka else []
    files = check_topics(b.spark, place.kafka, files, place.batch, set().union(*(each.partitions for each in later)))
    check_files(b.spark, sources, files, place.batch, source_numbers(source), later)
    return replace(place, files=files)


def _later_logs(b: Blueprint, origin: Origin) -> Iterator[LaterLog]:
    """Yield what was read after the snapshot that is restored, as far as checkpoints say."""
    manifest = origin.manifest
    if manifest is None or (origin.is_own and not origin.is_new and not origin.choice.skipped):
        return
    yield from _logs_of(b.jobdir, manifest.checkpoint if origin.is_own else 0)
    if origin.is_own or manifest.source is None or not manifest.source.directory:
        return
    # A checkpoint's folder may have been moved. What a savepoint has for its number says nothing of that job's.
    if isinstance(origin.folder, JobDirectory):
        yield from _logs_of(origin.folder)
    if (url := manifest.source.directory) in (b.jobdir.url, origin.folder.url):
        return
    try:
        folder = open_folder(url, b.checkpoints.storage_options, fsync=False)
        yield from _logs_of(JobDirectory(folder.store, manifest.job, folder=folder.path))
    except NotFoundError:
        log.warning(
            "job '%s': %s is gone, where job '%s' was when the snapshot was taken: which files that job has read and "
            "taken away since is not known", b.name, url, manifest.job,
        )  # fmt: skip
    except StrandlineError as error:
        log.warning("job '%s': which files were read after the snapshot is not known: %s", b.name, error)


def _logs_of(jobdir: JobDirectory, since: int = 0) -> Iterator[LaterLog]:
    for checkpoint, manifest in read_catalog(jobdir).manifests.items():
        if checkpoint > since and (progress := manifest.source) is not None:
            try:
                yield LaterLog(progress.names or [], read_source(jobdir, progress), progress.batch)
            except CorruptionError as error:
                log.warning("which files checkpoint %d has read is not known: %s", checkpoint, error)
