"""One run of a job under one generation: from the claim to the query's end. A restart is a new attempt."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.checkpoint.coordinator import CheckpointConfig, Coordinator, OperatorPlan
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.checkpoint.start import Start, load_start
from strandline.core import failpoints
from strandline.core.clock import Clock
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Generation
from strandline.core.settings import Settings
from strandline.format.manifest import Manifest
from strandline.keeper.paths import Places
from strandline.runtime.program import Program, Restore, pickle_process
from strandline.runtime.rowlayout import RowLayout
from strandline.runtime.watermarks import Watermarks
from strandline.spark.base.reported import errors_reported
from strandline.spark.base.sessionchecks import retained_batches
from strandline.spark.job.compat import check_compatible, check_start
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.keepers.exchange import Exchange
from strandline.spark.keepers.failures import find_error
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.lower.plan import Operator, Plan
from strandline.spark.sinks.base import SinkContext
from strandline.spark.sources.progress import SourceProgress, rewind
from strandline.spark.sources.rereadable import source_numbers
from strandline.spark.streams.filesource import make_cleaner
from strandline.spark.streams.joins import PairNode

log = logging.getLogger(__name__)

_LOOK_S = 0.01
_QUERY_LOOK_S = 0.2
_IDLE_S = 0.15
_NOTICE_S = 0.05
_PATIENCE_S = 1.0
_FENCE_LOOK_S = 5.0


@dataclass(frozen=True)
class Blueprint:
    """Everything an attempt needs that does not change between attempts."""

    name: str
    spark: SparkSession
    plan: Plan
    config: CheckpointConfig
    settings: Settings
    jobdir: JobDirectory
    store_url: str
    store_options: dict[str, str] = field(repr=False)
    places: Places
    trigger: dict[str, Any]
    clock: Clock


class Attempt:
    """Starts, watches and ends one run."""

    def __init__(
        self, blueprint: Blueprint, exclude: frozenset[CheckpointId], least_id: CheckpointId, previous: Claim | None
    ) -> None:
        self._b = blueprint
        self._exclude = exclude
        self._least_id = least_id
        self.claim = previous
        self._cleanup = contextlib.ExitStack()
        self._query: StreamingQuery | None = None
        self._fleet: Fleet | None = None
        self._sources: SourceProgress
        self._final: Future[CheckpointId] | None = None
        self._asked = 0.0
        self._rested_us: int | None = None
        """When Spark was last seen to rest, without having been seen at work since."""
        self._finished_us: int | None = None
        """When the source was found to have ended: timers that are set for later do not fire any more."""
        self.driver: EpochDriver
        self.coordinator: Coordinator
        self.restored: Manifest | None = None
        self.generation = Generation(0)

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's own query."""
        return self._query

    @errors_reported()
    def start(self) -> None:
        """Restore the newest complete checkpoint and start the query after it."""
        b = self._b
        # 1. Look, without touching anything, whether the program fits: a wrong one must not fence a running job.
        found = choose(b.jobdir, exclude=self._exclude).manifest
        self._settle(found)
        self._load_start(found)
        # 2. Claim the job. From here on, drivers of older generations publish and commit nothing.
        owned = self.claim = claim(b.jobdir, b.clock, self.claim)
        self.generation = owned.generation
        # 3. Choose what to restore, and make it the base: what an old driver publishes after it is void.
        choice = choose(b.jobdir, claim=owned, exclude=self._exclude)
        for damaged in choice.damaged_bases:
            log.warning("a record of what the job went on from is damaged, and passed over: %s", damaged)
        lost = [skipped for skipped in choice.skipped if skipped.lost]
        for skipped in lost:
            log.warning("checkpoint %d is skipped: %s", skipped.checkpoint, skipped.reason)
        if lost and choice.manifest is None:
            raise CorruptionError(
                f"job '{b.name}': no checkpoint can be restored; the newest, {lost[0].checkpoint}: {lost[0].reason}",
                hint="bring the missing files back, or start empty with another job name or checkpoint directory",
            )
        manifest = self.restored = choice.manifest
        operators = self._settle(manifest)
        start = self._load_start(manifest)
        next_id = max(choice.next_id, self._least_id)
        owned.set_base(None if manifest is None else CheckpointId(manifest.checkpoint))
        failpoints.hit("restore.claimed")
        # 4. The keepers' programs name each partition's files; the keepers restore them.
        epoch = Epoch(manifest.epoch if manifest else 0)
        exchange = Exchange(b.spark, self._parallelism(manifest))
        self._cleanup.callback(exchange.close)
        programs = [self._program(operator, manifest) for operator in operators]
        self._fleet = Fleet(b.spark, b.places, owned.generation, programs, exchange)
        self._cleanup.callback(self._fleet.close)
        # Before: those that have restored little wait for those that restore much.
        self._fleet.keep_alive()
        opened = self._fleet.open(epoch)
        failpoints.hit("restore.keepers_opened")
        # 5. The source is rewound: a fresh Spark directory that says the checkpoint's batch was the last.
        spark_dir = b.places.root / f"spark-{owned.generation}"
        self._cleanup.callback(shutil.rmtree, spark_dir, ignore_errors=True)
        rewind(b.jobdir, spark_dir, manifest, start)
        # 6. Every byte of the checkpoint has been verified: sinks commit what it lists as pending, and take back what
        #    came later.
        self._recover_sinks(owned, manifest)
        failpoints.hit("restore.sinks_recovered")
        # 7. The query starts with the epoch after.
        self.coordinator = Coordinator(
            b.jobdir, owned, b.config, b.clock, next_id, manifest, b.name,
            [self._operator_plan(operator) for operator in operators], self._commit_sinks,
        )  # fmt: skip
        progress = manifest.source if manifest else None
        batch = progress.batch if progress else -1
        names = (progress.names if progress else start.names if start else None) or b.plan.sources.names
        source = b.plan.sources.together(names)
        self._cleaner = make_cleaner(b.spark, b.plan.sources.nodes, source)
        self._cleanup.callback(self._cleaner.close)
        if manifest is not None and batch >= 0:
            self._cleaner.restored(CheckpointId(manifest.checkpoint), batch, spark_dir)
        self._sources = SourceProgress(
            spark_dir, names, b.jobdir, owned, b.clock, self.coordinator,
            start_is_kept=manifest is not None or start is not None, retained_batches=retained_batches(b.spark),
            numbers=source_numbers(source), captured=self._cleaner.captured,
        )  # fmt: skip
        self.driver = EpochDriver(
            b.plan, source, operators, exchange, self._fleet, self.coordinator, self._sources, owned.generation,
            epoch, batch,
            Watermarks(b.plan.watermarks, manifest.watermarks if manifest else {}, int(b.clock.monotonic_ms() * 1000)),
            b.clock,
        )  # fmt: skip
        # Which timers wait in restored state is known from the start: some may be due, and no rows come.
        self.driver.progress.acks.update(opened)
        writer = source.writeStream.foreachBatch(self.driver).option("checkpointLocation", f"file://{spark_dir}")
        if b.trigger:
            writer = writer.trigger(**b.trigger)
        self._query = writer.start()

    @errors_reported()
    def watch(self, stopping: Any) -> bool:
        """Look after the run until it ends; return True if the source is finished, False if `stopping` was set."""
        looked, checked = 0.0, time.monotonic()
        owned = self.claim
        assert owned is not None
        self._b.spark.sparkContext.setJobGroup(self._job_group, f"strandline: {self._b.name}", interruptOnCancel=True)
        while not stopping.is_set():
            if self.driver.failed.wait(_LOOK_S):
                assert self.driver.error is not None
                raise self.driver.error
            if self.driver.epoch_carries_trigger:
                self.coordinator.postpone()
            if self.coordinator.advance() is not None:
                self._cleaner.completed(self.coordinator.oldest_live, owned.check)
            self._sources.deliver(self._has_looked)
            self._poll_if_idle()
            now = time.monotonic()
            if now - checked > _FENCE_LOOK_S:
                checked = now
                self._check_fence()
            if now - looked > _QUERY_LOOK_S:
                looked = now
                if self._finished_us is None and self._query_finished():
                    self._finished_us = self.driver.now_us
            if self._finished_us is None:
                continue
            if not self.driver.tick(self._finished_us) and self._final_checkpoint_done():
                return True
        return False

    @errors_reported()
    def stop_query(self) -> None:
        """Stop Spark's query; what it was doing is forgotten."""
        if self._query is not None:
            with contextlib.suppress(Exception):
                self._query.stop()

    def break_off(self) -> None:
        """Have the thread that looks after the run wait for keepers no more: it is to end, and one may never answer."""
        if self._fleet is None or (hasattr(self, "driver") and not self.driver.is_running):
            return
        if hasattr(self, "driver"):
            self.driver.seal()
        with contextlib.suppress(Exception):
            self._b.spark.sparkContext.cancelJobGroup(self._job_group)
        self._fleet.kill()

    @errors_reported()
    def close(self, *, forget: bool) -> None:
        """End the run and its keepers; with `forget`, remove their local copies too."""
        if hasattr(self, "driver"):
            # Before anything else: whatever Spark's thread still does, it begins no epoch and stages nothing more.
            self.driver.seal()
        self.stop_query()
        with contextlib.suppress(Exception):
            if hasattr(self, "coordinator"):
                self.coordinator.close("the run ended")
                self.coordinator.advance()
        if self._fleet is not None:
            self._fleet.stop(forget=forget)
        for _, sink, _ in self._b.plan.sinks:
            with contextlib.suppress(Exception):
                sink.close()
        with contextlib.suppress(Exception):
            self._cleanup.close()

    @property
    def _job_group(self) -> str:
        """Spark's name for the jobs of the thread that looks after the run: ticks, and polls of other machines."""
        return f"strandline-{self._b.name}-{self.generation}"

    # -- starting

    def _parallelism(self, manifest: Manifest | None) -> int:
        stored = manifest.operators[0].parallelism if manifest and manifest.operators else None
        return self._b.settings.parallelism or stored or self._b.spark.sparkContext.defaultParallelism

    def _settle(self, manifest: Manifest | None) -> list[Operator]:
        stored = {op.uid: op.max_parallelism for op in manifest.operators} if manifest else {}
        operators = self._b.plan.settle(self._parallelism(manifest), stored)
        if manifest is not None:
            sinks = [name for name, _, _ in self._b.plan.sinks]
            check_compatible(manifest, operators, self._b.settings.backend, sinks, self._b.plan.sources.names)
        return operators

    def _load_start(self, manifest: Manifest | None) -> Start | None:
        """Return where the job's life began, when there is no checkpoint that says how far it came."""
        start = load_start(self._b.jobdir) if manifest is None else None
        if start is not None:
            check_start(self._b.name, start, self._b.plan.sources.names)
        return start

    def _recover_sinks(self, owned: Claim, manifest: Manifest | None) -> None:
        pending = {sink.name: sink.pending for sink in manifest.sinks} if manifest else {}
        epoch = Epoch(manifest.epoch if manifest else 0)
        for name, sink, _ in self._b.plan.sinks:
            owned.check()
            sink.open(
                SinkContext(
                    self._b.spark, self._b.name, owned.life, self.generation, name, fsync=self._b.settings.fsync
                )
            )
            sink.recover(pending.get(name, []), epoch, fresh=manifest is None)

    def _program(self, operator: Operator, manifest: Manifest | None) -> Program:
        b, node = self._b, operator.node
        stored = next((op for op in manifest.operators if op.uid == operator.uid), None) if manifest else None
        restore = None
        if manifest is not None:
            files = {part.index: part.files for part in stored.partitions} if stored else {}
            restore = Restore(checkpoint=manifest.checkpoint, epoch=manifest.epoch, files=files)
        return Program(
            job=b.name,
            generation=self.generation,
            uid=operator.uid,
            name=node.name,
            process=pickle_process(node.process, operator.uid),
            key_columns=list(node.keys),
            input_schema=node.input_schema,
            output_schema=node.output_schema,
            layout=RowLayout.of(node.hidden),
            measured=node.uid in b.plan.measuring,
            gives_time=node.is_timed,
            broadcast_order=list(node.parent.broadcast_order or ()) if isinstance(node.parent, PairNode) else [],
            sides=node.sides,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            backend=b.settings.backend,
            mode=b.config.mode,
            store_url=b.store_url,
            store_options=b.store_options,
            fsync=b.settings.fsync,
            partition_memory_bytes=self._partition_memory(operator.parallelism),
            limit_bytes=b.settings.memory_backend_limit_bytes,
            lease_ms=b.settings.keeper_lease_ms,
            restore=restore,
            python_path=[str(Path(entry).absolute()) for entry in sys.path],
        )

    def _partition_memory(self, parallelism: int) -> int:
        """Divide one machine's budget among the keepers that will be on it."""
        keepers = parallelism * max(1, len(self._b.plan.operators))
        sc: Any = self._b.spark.sparkContext
        addresses = sc._jsc.sc().getExecutorMemoryStatus().keys().mkString(",").split(",")
        hosts = [address.rpartition(":")[0] for address in addresses]
        if len(hosts) > 1 and not sc.master.startswith("local["):
            # The driver is among them, and runs no keepers.
            with contextlib.suppress(ValueError):
                hosts.remove(sc.getConf().get("spark.driver.host", ""))
        return max(32 << 20, self._b.settings.state_memory_bytes // math.ceil(keepers / len(set(hosts))))

    def _operator_plan(self, operator: Operator) -> OperatorPlan:
        return OperatorPlan(
            uid=operator.uid,
            backend=self._b.settings.backend,
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            key_schema=operator.key_schema,
            states=operator.states,
        )

    # -- watching

    def _commit_sinks(self, manifest: Manifest) -> None:
        pending = {sink.name: sink.pending for sink in manifest.sinks}
        for name, sink, _ in self._b.plan.sinks:
            sink.commit(pending.get(name, []))
        self.driver.committed(manifest.sinks)

    def _poll_if_idle(self) -> None:
        """While no epoch runs, hear how a checkpoint goes, and begin one that is due."""
        idle_s = time.monotonic() - self.driver.last_contact
        if idle_s < _IDLE_S or self.driver.is_running:
            return
        self._notice_silence()
        by_us = self._finished_us
        if self.driver.has_due(by_us) and not self._is_batch_coming(idle_s) and self.driver.tick(by_us):
            return
        due = self.coordinator.is_due
        if due or self.coordinator.pending is not None:
            self.driver.poll(may_trigger=due)

    def _notice_silence(self) -> None:
        """When Spark rests, having looked for rows and found none, whoever is silent was so until its last look.

        That was after it was seen to rest the time before: where this machine has stood still in between, Spark looks
        again only when it goes on.
        """
        asked = time.monotonic()
        if self._query is None or not self.driver.heeds_silence or asked - self._asked < _NOTICE_S:
            return
        self._asked = asked
        now_us, status = self.driver.steady_us, self._query._jsq.status()
        if status.isTriggerActive() or status.isDataAvailable() or str(status.message()).startswith("Initializing"):
            self._rested_us = None
            return
        rested_us, self._rested_us = self._rested_us, now_us
        if rested_us is not None:
            between = self._b.trigger.get("processingTime", "0")
            self.driver.look(rested_us - int(between.partition(" ")[0]) * 1000)

    def _has_looked(self) -> bool:
        """Whether Spark has looked at the sources, so that it is written down where they begin."""
        assert self._query is not None
        if not self._query.isActive:
            # One that failed may have done so before it had looked at all of them.
            return self._query.exception() is None
        status = self._query._jsq.status()
        return not status.isTriggerActive() and not str(status.message()).startswith(("Initializing", "Terminated"))

    def _is_batch_coming(self, idle_s: float) -> bool:
        """Whether Spark looks for rows or prepares an epoch with some: an epoch of the timers' own would delay it.

        Between two looks that found nothing it rests. To look may take long, so it is not waited for for ever.
        """
        return idle_s < _PATIENCE_S and self._query is not None and bool(self._query._jsq.status().isTriggerActive())

    def _check_fence(self) -> None:
        """Without checkpoints, nothing else would tell that a newer driver has taken over."""
        assert self.claim is not None
        with contextlib.suppress(UnavailableError):
            self.claim.check()

    def _query_finished(self) -> bool:
        assert self._query is not None
        if self._query.isActive:
            return False
        error = self._query.exception()
        if self.driver.error is not None:
            raise self.driver.error
        if error is not None:
            raise find_error(error)
        return True

    def _final_checkpoint_done(self) -> bool:
        """A source that has ended leaves a checkpoint of everything, so that sinks show all."""
        if self._final is None:
            self._final = self.coordinator.request()
        if not self._final.done():
            return False
        final, self._final = self._final.result(), None
        # A timer may have fired since it was triggered: when a source is idle for long enough, its watermark moves.
        return any(c.checkpoint == final and c.epoch == self.driver.progress.epoch for c in self.coordinator.history)
