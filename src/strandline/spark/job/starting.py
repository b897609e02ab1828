"""From a job to an attempt, in seven steps: 1–4 are in preparation.py, then sources, sinks and the query."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence

from pyspark.sql.streaming.query import StreamingQuery

from strandline.checkpoint.coordinator import Coordinator
<<<<<<< HEAD
from strandline.checkpoint.generation import Claim
from strandline.control.announcements import tell
=======
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import SINKS
from strandline.checkpoint.restore import Choice
from strandline.checkpoint.start import Start, load_start
from strandline.control import journal
from strandline.control.announcements import tell, tell_always
>>>>>>> h/v3
from strandline.core import failpoints
from strandline.core.errors import CorruptionError
from strandline.core.ids import Epoch
from strandline.format.manifest import Manifest
from strandline.runtime.watermarks import Watermarks
from strandline.snapshot.opening.origin import Origin
from strandline.spark.base.quiet import errors_reported
from strandline.spark.base.session import polling_delay_ms, retained_batches
from strandline.spark.job.attempt import Attempt, end
from strandline.spark.job.compat import lost_sinks
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.preparation import Preparation
from strandline.spark.job.progress import JobProgress
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.job.staging import Staging
from strandline.spark.sinks.files import FileSink, left_by
from strandline.spark.sources.checks import source_numbers
from strandline.spark.sources.filechecks import ChangedFiles
from strandline.spark.sources.kafka import KafkaCommits, KafkaTopics
from strandline.spark.sources.lag import SourceLag
from strandline.spark.sources.patternnames import PatternNames
from strandline.spark.sources.progress import SourceProgress, rewind
from strandline.spark.streams.filesource import make_cleaner

log = logging.getLogger(__name__)


class Starting:
    """A start under way. It becomes a complete attempt, or an error, and then nothing is left of it but the claim."""

    def __init__(self, preparation: Preparation) -> None:
        self._b = preparation.blueprint
        self._preparation = preparation
        self._cleanup = preparation.cleanup
        self._coordinator: Coordinator | None = None
        self._driver: EpochDriver | None = None
        self._query: StreamingQuery | None = None

    @property
    def claim(self) -> Claim | None:
        """The newest claim that this job's driver has made."""
        return self._preparation.claim

    @errors_reported()
    def start(self) -> Attempt:
        """Restore the newest complete checkpoint, or the snapshot that is wanted, and start the query after it."""
        try:
            return self._start()
        except BaseException:
            end(
                self._b, "the run did not start", self._driver, self._query, self._coordinator,
                self._preparation.fleet, self._cleanup,
            )  # fmt: skip
            raise

    def break_off(self) -> None:
        """Have the thread that starts wait for keepers no more: it is to end, and one may never answer."""
<<<<<<< HEAD
        self._preparation.break_off()
=======
        if self._fleet is not None:
            self._fleet.break_off()

    def _open(self, *, reads_sources: bool = True) -> PreparedRun:
        """Take the steps that come before any rows: whoever reads them, state is restored in the same way."""
        b = self._b
        # 1. Look, without touching anything, whether the program fits: a wrong one must not fence a running job.
        found = self.decide()
        for check in self.checks(found, reads_sources=reads_sources):
            check()
        verify(b.jobdir, found)
        # 2. Claim the job. From here on, drivers of older generations publish and commit nothing.
        owned = self.claim = claim(b.jobdir, b.clock, self.claim)
        # 3. Choose what to restore, and make it the base: what an old driver publishes after it is void.
        origin = self.decide(owned)
        choice, manifest = origin.choice, origin.manifest
        for damaged in choice.damaged_bases:
            log.warning("a record of what the job went on from is damaged, and passed over: %s", damaged)
        lost = [skipped for skipped in choice.skipped if skipped.lost]
        for skipped in lost:
            log.warning("checkpoint %d is skipped: %s", skipped.checkpoint, skipped.reason)
        if lost and manifest is None:
            raise CorruptionError(
                f"job '{b.name}': no checkpoint can be restored; the newest, {lost[0].checkpoint}: {lost[0].reason}",
                hint=f"bring the missing files back, or {BEGIN_ANEW}",
            )
        operators, upgrade = self._settle(origin)
        start = self._load_start(origin)
        next_id = max(choice.next_id, self._least_id)
        if origin.is_new and manifest is not None and manifest.life == owned.life:
            warn_of_sinks(b, manifest.checkpoint)
        verify(b.jobdir, origin, found)
        origin.make_base(b.jobdir, owned)
        if reads_sources:
            tell_always(f"job '{b.name}' {origin.text(b.jobdir.url)}")
            changes = [change for change in upgrade.changes if change.action != "kept"] if upgrade else []
            for change in [*changes, *watermark_changes(manifest, b.plan.pipeline.watermarks)]:
                tell_always(f"job '{b.name}': {change}")
            if manifest is None and not origin.life:
                warn_of_other_directory(b)
        failpoints.hit("restore.claimed")
        # 4. The keepers' programs name each partition's files; the keepers restore them.
        epoch = manifest.epoch if manifest else Epoch(0)
        parallelisms = {operator.uid: operator.parallelism for operator in operators}
        exchanges = Exchanges(b.spark, parallelisms, f"strandline-{b.places.root.name}-{owned.generation}")
        self._cleanup.callback(exchanges.close)
        memory_bytes = self._partition_memory(parallelisms.values())
        programs = [self._program(owned, operator, origin, memory_bytes) for operator in operators]
        fleet = self._fleet = Fleet(b.spark, b.places, owned.generation, programs, exchanges)
        self._cleanup.callback(fleet.close)
        # Before: those that have restored little wait for those that restore much.
        fleet.keep_alive()
        with fleet.breakable():
            opened = fleet.open(epoch)
        failpoints.hit("restore.keepers_opened")
        return PreparedRun(owned, origin, operators, exchanges, fleet, opened, CheckpointId(next_id), start)
>>>>>>> h/v3

    def _start(self) -> Attempt:
        b, found = self._b, self._preparation.open()
        owned, origin, operators, fleet, start = found.claim, found.origin, found.operators, found.fleet, found.start
        manifest, epoch = origin.manifest, found.epoch
        # 5. The source is rewound: a fresh Spark directory that says the checkpoint's batch was the last.
        spark_dir = b.places.root / f"spark-{owned.generation}"
        self._cleanup.callback(shutil.rmtree, spark_dir, ignore_errors=True)
        fork = manifest is not None and manifest.life != owned.life
        place = self._preparation.find_place(origin, start)
        rewind(spark_dir, place.files, fork=fork)
        # 6. Every byte of the checkpoint has been verified: sinks commit what it lists as pending, and take back what
        #    came later. What goes to a system that is away goes on waiting, after the first start of the program.
        waiting = self._recover_sinks(owned, origin, fresh=manifest is None or fork)
        failpoints.hit("restore.sinks_recovered")
        # Not before: a driver that was killed may have left it to this one to show what a drain has given.
        b.draining.refuse(b.name, manifest, reopen=b.wanted.reopen)
        # 7. The query starts with the epoch after.
        staging = Staging([(name, sink) for name, sink, _ in b.plan.sinks], waiting)
        coordinator = self._coordinator = Coordinator(
            b.jobdir, owned, b.checkpoints, b.clock, found.next_id, origin.confirmed,
            [operator.info(b.settings.backend) for operator in operators], staging.commit, origin.depends_on, b.holds,
            manifest if waiting else None,
        )  # fmt: skip
        # What somebody else's job has counted is not this one's.
        totals = (manifest.totals or {}) if manifest is not None and not fork else {}
        source, batch = place.source, place.batch
        topics = KafkaTopics(b.spark, place.kafka, spark_dir, place.files, batch)
        self._cleanup.callback(topics.close)
        commits = KafkaCommits(b.spark, place.kafka)
        self._cleanup.callback(commits.close)
        cleaner = make_cleaner(b.spark, b.plan.sources.nodes, source)
        self._cleanup.callback(cleaner.close)
        # Of a snapshot that is somebody else's, the files it covers may be, too.
        if manifest is not None and origin.is_own and batch >= 0:
            cleaner.restored(manifest.checkpoint, batch, spark_dir)
        changed = ChangedFiles(place.file_sources, place.files, batch, source_numbers(source))
        names = PatternNames(b.spark, spark_dir, place.file_sources, place.files, batch, source_numbers(source))
        sources = SourceProgress(
            spark_dir, place.names, b.jobdir, owned, b.clock, coordinator, place.is_known, retained_batches(b.spark),
            source_numbers(source), [names.captured, cleaner.captured, changed.captured, commits.captured],
            [names.begin, topics.begin], topics,
        )  # fmt: skip
        driver = self._driver = EpochDriver(
            b.plan, source, {operator.node: operator for operator in operators}, found.exchanges, fleet, coordinator,
            sources, staging, owned.generation, JobProgress.after(epoch, totals), batch, self._watermarks(manifest),
            b.clock, failures=b.places.failures(owned.generation), max_row_bytes=b.settings.max_row_bytes,
            paused=b.paused,
        )  # fmt: skip
        # A drain that was asked for before reads nothing more.
        driver.is_draining = b.draining.asked.is_set()
        # Which timers wait in restored state is known from the start: some may be due, and no rows come.
        driver.progress.acks.update(found.acks)
        writer = source.writeStream.foreachBatch(driver).option("checkpointLocation", f"file://{spark_dir}")
        if b.trigger:
            writer = writer.trigger(**b.trigger)
        between_ms = max(int(b.trigger.get("processingTime", "0").partition(" ")[0]), polling_delay_ms(b.spark))
        query = self._query = writer.start()
        b.draining.begun()
        watch = SourceWatch(query, between_ms, ends="availableNow" in b.trigger)
        lag = SourceLag(b.spark, source, place.names, spark_dir, lambda: driver.batch)
        return Attempt(
            b,
            owned,
            manifest,
            origin.is_own,
            driver,
            coordinator,
            fleet,
            sources,
            cleaner,
            commits,
            watch,
            self._cleanup,
            lag,
        )

    def _watermarks(self, manifest: Manifest | None) -> Watermarks:
        b = self._b
        stored = b.draining.watermarks(manifest, reopen=b.wanted.reopen)
        return Watermarks(b.plan.pipeline.watermarks, stored, int(b.clock.monotonic_ms() * 1000))

    def _recover_sinks(self, owned: Claim, origin: Origin, *, fresh: bool) -> dict[str, Sequence[str]]:
        """Have the sinks show what is restored; return what has to wait, by sink."""
        b, manifest = self._b, origin.manifest
        waiting: dict[str, Sequence[str]] = {}
        # A fork begins a life of its own: what is staged, or was shown, is the other job's.
        listed = {} if manifest is None or fresh else {sink.name: sink for sink in manifest.sinks}
        lost = {} if manifest is None or fresh else lost_sinks(manifest, self._preparation.sinks)
        left = {name: listed.pop(name).pending for name in lost}
        pending = {name: [*each.pending, *([each.reached] if each.reached else [])] for name, each in listed.items()}
        epoch = manifest.epoch if manifest else Epoch(0)
        for name, sink, _ in b.plan.sinks:
            before = listed[name].destination if name in listed else None
            if before and before != sink.destination:
                tell(f"job '{b.name}': sink '{name}' goes on in {sink.destination}; its rows went to {before} before")
            owned.check()
            sink.open(self._preparation.sink_context(name, origin, owned.life, owned.generation))
            if rest := sink.recover(pending.get(name, []), epoch, fresh=fresh):
                waiting[name] = rest
        for name, texts in left.items():
            gone = None if name in b.wanted.drop else left_by(name, texts, self._preparation.sinks.values())
            if gone is not None:
                owned.check()
                gone.open(self._preparation.sink_context(name, origin, owned.life, owned.generation))
                _show_left(gone, texts, epoch)
                tell(f"job '{b.name}': sink '{name}', which it has no more, shows what was left to be: {gone.path}")
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
