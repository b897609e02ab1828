"""Start of an attempt in eight steps: 1–4 are in preparation.py, 5–8 start the query, keepers, sinks and epochs."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import Claim
from strandline.control.announcements import tell
from strandline.core import failpoints
from strandline.core.errors import CorruptionError
from strandline.core.ids import Epoch
from strandline.format.manifest import Manifest
from strandline.runtime.watermarks import Watermarks
from strandline.snapshot.opening.origin import Origin
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.session import has_log_cache, polling_delay_ms, retained_batches
from strandline.spark.job.attempt import Attempt, end
from strandline.spark.job.compat import lost_sinks
from strandline.spark.job.epochlog import EpochLog, FailureRecorder
from strandline.spark.job.epochs import BatchHandler, EpochDriver
from strandline.spark.job.preparation import Preparation
from strandline.spark.job.progress import JobProgress
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.job.staging import Staging
from strandline.spark.sinks.files import FileSink, sink_for_pending
from strandline.spark.sources.checks import source_numbers
from strandline.spark.sources.cleaning import SourceCleaner
from strandline.spark.sources.deltatables import DeltaTables, delta_tables
from strandline.spark.sources.filechecks import ChangedFiles
from strandline.spark.sources.files import open_source_files
from strandline.spark.sources.identity import IdentityChecks
from strandline.spark.sources.kafka import KafkaCommits, KafkaTopics
from strandline.spark.sources.lag import SourceLag
from strandline.spark.sources.patternnames import PatternNames
from strandline.spark.sources.progress import SourceProgress, rewind

log = logging.getLogger(__name__)

ASYNCHRONOUS_LOGS = {
    "asyncProgressTrackingEnabled": "true",
    # Each batch is logged: a checkpoint may be of any.
    "asyncProgressTrackingCheckpointIntervalMs": "0",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
"""Options with which another thread of Spark writes its logs: two log files an epoch, for which Spark starts six
processes, would take a sixth of an epoch without rows. Restarts do not need these logs, but checkpoints, which wait for
them. Spark does not have it for `availableNow`, nor without its cache of logs, which has those not written yet."""


class Starting:
    """A start in progress. It ends in a complete attempt, or in an error, after which only the claim remains."""

    def __init__(self, preparation: Preparation) -> None:
        self._b = preparation.blueprint
        self._preparation = preparation
        self._cleanup = preparation.cleanup
        self._coordinator: Coordinator | None = None
        self._driver: EpochDriver | None = None
        self._query: StreamingQuery | None = None
        self._batches = BatchHandler()

    @property
    def claim(self) -> Claim | None:
        """The newest claim that this job's driver has made."""
        return self._preparation.claim

    @suppress_error_logs()
    def start(self) -> Attempt:
        """Restore the newest complete checkpoint, or the snapshot in the options, and start the query after it."""
        try:
            return self._start()
        except BaseException:
            self._batches.give_up()
            end(
                self._b, "the run did not start", self._driver, self._query, self._coordinator,
                self._preparation.fleet, self._cleanup,
            )  # fmt: skip
            raise

    def abort(self) -> None:
        """Stop the starting thread's wait for keepers, one of which may never answer. The start must end."""
        self._preparation.abort()

    def _start(self) -> Attempt:
        b, run = self._b, self._preparation.open()
        owned, origin, operators, fleet, start = run.claim, run.origin, run.operators, run.fleet, run.start
        manifest, epoch = origin.manifest, run.epoch
        # 5. Rewind the sources: in a new Spark directory, the checkpoint's batch is the last. Start the query, whose
        #    first batch waits for step 8: Spark looks at the sources while keepers restore.
        spark_dir = b.places.root / f"spark-{owned.generation}"
        self._cleanup.callback(shutil.rmtree, spark_dir, ignore_errors=True)
        fork = manifest is not None and manifest.life != owned.life
        place = self._preparation.find_place(origin, start)
        source, batch = place.source, place.batch
        # The query of an earlier attempt stays active as long as a sink's function hangs: Spark would wait for its end.
        metadata = place.files.get("metadata", b"")
        hangs = any(query.id.encode() in metadata for query in source.sparkSession.streams.active)
        rewind(spark_dir, place.files, anew=fork or hangs)
        topics = KafkaTopics(b.spark, place.kafka, spark_dir, place.files, batch)
        comparisons = [topics.compare] if place.kafka else []
        if tables := delta_tables(source, place.names):
            comparisons.append(DeltaTables(b.spark, tables, place.files, batch).compare)
        identities = IdentityChecks(comparisons)
        self._cleanup.callback(identities.close)
        started_us = int(b.clock.monotonic_ms() * 1000)
        trigger_ms = int(b.trigger.get("processingTime", "0").partition(" ")[0])
        query = self._query = self._start_query(source, spark_dir)
        watch = SourceWatch(
            query, max(trigger_ms, polling_delay_ms(b.spark)), ends="availableNow" in b.trigger,
            has_read=lambda: driver.batch > batch, clock=b.clock if trigger_ms else None,
        )  # fmt: skip
        # 6. The keepers restore their state.
        acks = run.restore()
        if not b.checkpoints.standbys and not fleet.is_local:
            b.placement.note(fleet.hosts)
        # 7. Every byte of the checkpoint has been verified: sinks commit the output that it lists as pending, and
        #    remove later output. Rows for a target that is unavailable keep waiting.
        waiting = self._recover_sinks(owned, origin, fresh=manifest is None or fork)
        failpoints.hit("restore.sinks_recovered")
        # Not before step 7: after a kill of the driver, sinks may still have to show the output of a drain.
        b.draining.refuse(b.name, manifest, reopen=b.options.reopen)
        # 8. Begin with the next epoch.
        staging = Staging([(name, sink) for name, sink, _ in b.plan.sinks], waiting)
        coordinator = self._coordinator = Coordinator(
            b.jobdir, owned, b.checkpoints, b.clock, run.next_id, origin.confirmed,
            [operator.info(b.settings.backend) for operator in operators], staging.commit, origin.depends_on, b.holds,
            manifest if waiting else None,
        )  # fmt: skip
        staging.on_visible = coordinator.note_visible
        # Another job's totals do not count for this job.
        totals = (manifest.totals or {}) if manifest is not None and not fork else {}
        commits = KafkaCommits(b.spark, place.kafka)
        self._cleanup.callback(commits.close)
        cleaned = {
            each.number: open_source_files(b.spark, each.cleaning) for each in place.file_sources if each.cleaning
        }
        cleaner = SourceCleaner(cleaned, source_numbers(source))
        self._cleanup.callback(cleaner.close)
        # The files that another job's snapshot covers may be in use by that job.
        if manifest is not None and origin.is_own and batch >= 0:
            cleaner.restored(manifest.checkpoint, batch, spark_dir)
        changed = ChangedFiles(place.file_sources, place.files, batch)
        names = PatternNames(b.spark, spark_dir, place.file_sources, place.files, batch)
        sources = SourceProgress(
            spark_dir, place.names, b.jobdir, owned, b.clock, coordinator, place.is_known, retained_batches(b.spark),
            source_numbers(source), [names.captured, cleaner.captured, changed.captured, commits.captured],
            [names.begin, topics.begin], identities,
        )  # fmt: skip
        driver = self._driver = EpochDriver(
            run.frames, fleet, coordinator, sources, staging, owned.generation,
            JobProgress.after(epoch, totals), batch, self._watermarks(manifest), b.clock,
            failures=b.places.failures(owned.generation), paused=b.paused, started_us=started_us,
            epoch_log=EpochLog.after(manifest, b.spark.sparkContext.defaultParallelism, spark_dir),
            record_event=b.events.write, explain=watch.explain,
        )  # fmt: skip
        # After a request to drain, read no more rows.
        driver.is_draining = b.draining.requested.is_set()
        # Acks of the restore have the pending timers, which may be due although no rows come.
        driver.progress.acks.update(acks)
        b.draining.note_begin()
        lag = SourceLag(b.spark, source, place.names, place.file_sources, spark_dir, lambda: driver.batch)
        attempt = Attempt(
            b, owned, manifest, origin.is_own, driver, coordinator, fleet, sources, cleaner, commits, watch,
            self._cleanup, lag, FailureRecorder(b.jobdir, owned, b.clock, spark_dir, place.file_sources),
        )  # fmt: skip
        self._batches.begin(driver)
        return attempt

    def _start_query(self, source: DataFrame, spark_dir: Path) -> StreamingQuery:
        writer = source.writeStream.foreachBatch(self._batches).option("checkpointLocation", f"file://{spark_dir}")
        if self._b.trigger:
            writer = writer.trigger(**self._b.trigger)
        if "availableNow" not in self._b.trigger and has_log_cache(source.sparkSession):
            writer = writer.options(**ASYNCHRONOUS_LOGS)
        return writer.start()

    def _watermarks(self, manifest: Manifest | None) -> Watermarks:
        b = self._b
        stored = b.draining.watermarks(manifest, reopen=b.options.reopen)
        return Watermarks(b.plan.pipeline.watermarks, stored, int(b.clock.monotonic_ms() * 1000))

    def _recover_sinks(self, owned: Claim, origin: Origin, *, fresh: bool) -> dict[str, Sequence[str]]:
        """Let the sinks commit the restored pending output; return what has to wait, by sink."""
        b, manifest = self._b, origin.manifest
        waiting: dict[str, Sequence[str]] = {}
        # A fork begins a new life: staged and visible output belongs to the other job.
        stored = {} if manifest is None or fresh else {sink.name: sink for sink in manifest.sinks}
        lost = {} if manifest is None or fresh else lost_sinks(manifest, self._preparation.sinks)
        left = {name: stored.pop(name).pending for name in lost}
        pending = {name: [*each.pending, *([each.reached] if each.reached else [])] for name, each in stored.items()}
        epoch = manifest.epoch if manifest else Epoch(0)
        for name, sink, _ in b.plan.sinks:
            before = stored[name].destination if name in stored else None
            if before and before != sink.destination:
                tell(f"job '{b.name}': sink '{name}' goes on in {sink.destination}; its rows went to {before} before")
            owned.check()
            sink.open(self._preparation.sink_context(name, origin, owned.life, owned.generation))
            sink.is_behind = bool(waiting)
            if rest := sink.recover(pending.get(name, []), epoch, fresh=fresh):
                waiting[name] = rest
        for name, texts in left.items():
            removed = (
                None if name in b.options.drop else sink_for_pending(name, texts, self._preparation.sinks.values())
            )
            if removed is not None:
                owned.check()
                removed.open(self._preparation.sink_context(name, origin, owned.life, owned.generation))
                _show_left(removed, texts, epoch)
                tell(f"job '{b.name}': the waiting output of removed sink '{name}' is now in {removed.path}")
        for _, sink, _ in () if fresh else b.plan.sinks:
            owned.check()
            sink.tidy(epoch)
        return waiting


def _show_left(sink: FileSink, pending: list[str], epoch: Epoch) -> None:
    try:
        sink.recover(pending, epoch, fresh=False)
    except CorruptionError as error:
        hint = f"{error.hint}; or give up what the sink was to show with drop={json.dumps([sink.name])}"
        raise CorruptionError(error.message, hint=hint, **error.fields) from None
