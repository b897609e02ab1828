"""Steps 1–4 of a start: check, claim, choose the base, describe the keepers. Steps 5–8 follow in starting.py."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import structs

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import SINKS
from strandline.checkpoint.restore import Choice
from strandline.checkpoint.start import Start, load_start
from strandline.control import journal
from strandline.control.announcements import tell_always
from strandline.core import failpoints
from strandline.core.errors import BEGIN_ANEW, CorruptionError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.ends.begins import Begin, with_begin
from strandline.format.manifest import Manifest
from strandline.keeper.protocol import Ack
from strandline.plan.parallelism import ParallelismOverride, most_on_one
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import Upgrade
from strandline.runtime.program import Followed, Program, Restore
from strandline.snapshot.opening.origin import Origin, decide, verify
from strandline.spark.base.session import core_setting, executor_hosts, has_one_process, make_local_dirs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Blueprint, Check
from strandline.spark.job.compat import check_compatible, check_start, watermark_changes
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.rewinding import SourcePlace, find_place
from strandline.spark.keepers.exchange import Exchanges
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.keepers.watch import Slot
from strandline.spark.lower.frames import FrameBuilder
from strandline.spark.sinks.base import Sink, SinkContext
from strandline.storage.place import Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedRun:
    """The result of steps 1–4 of a start: a run without its sources, whose keepers have not begun."""

    claim: Claim
    origin: Origin
    operators: list[Operator]
    frames: FrameBuilder
    fleet: Fleet
    next_id: CheckpointId
    start: Start | None
    """The record of where the job's life began, if no snapshot has a position in the sources."""

    @property
    def epoch(self) -> Epoch:
        """The epoch of the restored state."""
        return self.origin.manifest.epoch if self.origin.manifest else Epoch(0)

    def restore(self) -> dict[Slot, Ack]:
        """Start the keepers, let them restore their state, and return their acks."""
        with self.fleet.cancellable():
            try:
                acks = self.fleet.open(self.epoch)
            except Exception as error:
                # The machine knows the exit code of a keeper that has died.
                raise self.fleet.explain(unwrap_error(error)) from error
        failpoints.hit("restore.keepers_opened")
        return acks


@dataclass
class Preparation:
    """Steps 1–4 of a start, the same for a job and a bootstrap."""

    blueprint: Blueprint
    exclude: frozenset[CheckpointId]
    """Damaged checkpoints."""
    least_id: CheckpointId
    claim: Claim | None
    """The newest claim that this job's driver has made."""
    override: ParallelismOverride | None = None
    """The parallelism that a command or the executors set; None: neither does."""
    by_time: bool = False
    """Whether to sort the rows of a key by their times if the program defines no other order."""
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    fleet: Fleet | None = field(default=None, init=False)
    _place: SourcePlace | None = field(default=None, init=False)

    def abort(self) -> None:
        """Stop the starting thread's wait for keepers, one of which may never answer. The start must end."""
        if self.fleet is not None:
            self.fleet.abort()

    def open(self, *, reads_sources: bool = True) -> PreparedRun:
        """Take steps 1–4: check, claim, choose what to restore, describe the keepers that restore it."""
        b = self.blueprint
        # 1. Check, without any change, whether the program fits: a wrong one must not fence a running job.
        checked = self.decide()
        for check in self.checks(checked, reads_sources=reads_sources):
            check()
        verify(b.jobdir, checked)
        # 2. Claim the job. From now on, drivers of older generations publish and commit nothing.
        owned = self.claim = claim(b.jobdir, b.clock, self.claim)
        # 3. Choose what to restore, and make it the base: later checkpoints of an old driver are void.
        origin = self.decide(owned)
        choice, manifest = origin.choice, origin.manifest
        for damaged in choice.damaged_bases:
            log.warning("a damaged record of a base is ignored: %s", damaged)
        lost = [skipped for skipped in choice.skipped if skipped.lost]
        for skipped in lost:
            log.warning("checkpoint %d is skipped: %s", skipped.checkpoint, skipped.reason)
        if lost and manifest is None:
            raise CorruptionError(
                f"job '{b.name}': no checkpoint can be restored; the newest, {lost[0].checkpoint}: {lost[0].reason}",
                hint=f"bring the missing files back, or {BEGIN_ANEW}",
            )
        operators, upgrade = self._settle(origin)
        start = self.start_of(origin)
        next_id = max(choice.next_id, self.least_id)
        if origin.is_new and manifest is not None and manifest.life == owned.life and manifest.checkpoint + 1 < next_id:
            warn_of_sinks(b, manifest.checkpoint)
        verify(b.jobdir, origin, checked)
        origin.make_base(b.jobdir, owned)
        owned.turns = _turns_of(origin, owned)
        if reads_sources:
            tell_always(f"job '{b.name}' {origin.text(b.jobdir.url)}")
            changes = [change for change in upgrade.changes if change.action != "kept"] if upgrade else []
            for change in [*changes, *watermark_changes(manifest, b.plan.pipeline.watermarks)]:
                tell_always(f"job '{b.name}': {change}")
            if manifest is None and not origin.life:
                warn_of_other_directory(b)
        failpoints.hit("restore.claimed")
        # 4. The keepers' programs name the files that each partition restores.
        parallelisms = {operator.uid: operator.parallelism for operator in operators}
        make_local_dirs(b.spark)
        group = f"strandline-{b.places.root.name}-{owned.generation}"
        is_cluster = not has_one_process(b.spark.sparkContext.master or "")
        executors = executor_hosts(b.spark, b.placement.silent) if is_cluster else {}
        preferred = b.placement.preferred(parallelisms.values(), executors)
        exchanges = Exchanges(b.spark, parallelisms, group, preferred)
        self.cleanup.callback(exchanges.close)
        by_node = {operator.node: operator for operator in operators}
        sources = b.plan.sources
        source = self.find_place(origin, start).source if reads_sources else sources.query(sources.names)
        frames = FrameBuilder(b.plan, by_node, exchanges, source, b.settings.max_row_bytes, self.by_time)
        self.cleanup.callback(frames.close)
        if reads_sources:
            frames.plan_ahead()
        memory_bytes = self._partition_memory(parallelisms.values())
        followed = {}
        if b.checkpoints.standbys:
            hosts = exchanges.hosts if is_cluster else {number: [""] * number for number in parallelisms.values()}
            followed = b.placement.follow(b.name, parallelisms, hosts)
        programs = [
            self._program(owned, operator, origin, memory_bytes, followed.get(operator.uid, {}))
            for operator in operators
        ]
        silent = b.placement.silent if b.checkpoints.standbys else None
        fleet = self.fleet = Fleet(b.spark, b.places, owned.generation, programs, exchanges, silent)
        self.cleanup.callback(fleet.close)
        # Before the restore: keepers with little state wait for those with much.
        fleet.keep_alive()
        return PreparedRun(owned, origin, operators, frames, fleet, CheckpointId(next_id), start)

    def checks(self, origin: Origin, *, reads_sources: bool = True) -> list[Check]:
        """Return the checks before a start from an origin; `strandline check-upgrade` makes the same."""
        sinks = [partial(self._check_sink, name, sink, origin) for name, sink, _ in self.blueprint.plan.sinks]
        fit = partial(self._check_fit, origin, reads_sources=reads_sources)
        return [partial(self._check_drained, origin), fit, *sinks]

    def check_rollback(self, manifest: Manifest) -> None:
        """Raise an error if the job cannot start from this older checkpoint of its own; change nothing."""
        choice = Choice(manifest, [], self.least_id)
        self._check_fit(Origin(choice, manifest, self.blueprint.jobdir, is_new=True), reads_sources=True)

    def decide(self, owned: Claim | None = None) -> Origin:
        """Choose what to start from, without any change; with `owned`, for a driver that has claimed the job."""
        b = self.blueprint
        return decide(
            b.jobdir, b.options.url or None, b.checkpoints.storage_options, claimed=b.options.claim,
            again=b.options.again, owned=owned, exclude=self.exclude, fsync=b.settings.fsync,
        )  # fmt: skip

    def _settle(self, origin: Origin) -> tuple[list[Operator], Upgrade | None]:
        """Return the operators, and the upgrade of stored state; raise an error if the program does not fit it."""
        manifest = origin.manifest
        parallelism = parallelism_of(self.blueprint.settings, self.blueprint.spark, self.override)
        operators = self.blueprint.plan.pipeline.settle(parallelism, manifest.operators if manifest else ())
        if manifest is None:
            return operators, None
        upgrade = check_compatible(
            manifest, operators, self.sinks, self.blueprint.plan.sources.names, self.blueprint.options.drop,
            url=origin.url, fork=origin.is_fork, from_now=self.blueprint.options.from_now,
        )  # fmt: skip
        return [replace(operator, migration=upgrade.migrations[operator.uid]) for operator in operators], upgrade

    @property
    def sinks(self) -> dict[str, Sink]:
        return {name: sink for name, sink, _ in self.blueprint.plan.sinks}

    def _check_drained(self, origin: Origin) -> None:
        # A drained checkpoint of its own is refused later: sinks may have to show the output of the drain first.
        if origin.is_new or not origin.is_own:
            self.blueprint.draining.refuse(self.blueprint.name, origin.manifest, reopen=self.blueprint.options.reopen)

    def _check_fit(self, origin: Origin, *, reads_sources: bool) -> None:
        """Check that the program fits the stored state, and that its sources have the next rows."""
        self._settle(origin)
        start = self.start_of(origin)
        if reads_sources:
            self.find_place(origin, start)

    def _check_sink(self, name: str, sink: Sink, origin: Origin) -> None:
        """Check that a sink can continue from the origin."""
        sink.check(self.sink_context(name, origin, origin.life, Generation(0)))

    def sink_context(self, name: str, origin: Origin, life: str, generation: Generation) -> SinkContext:
        b, manifest = self.blueprint, origin.manifest
        paths = {name: getattr(sink, "path", None) for name, sink, _ in b.plan.sinks}
        return SinkContext(
            b.spark, b.name, life, generation, name, b.settings.fsync, origin.text(b.jobdir.url),
            *(manifest.output_position if manifest else ("", 0)), self._sinks_place(),
            frozenset(other for other, path in paths.items() if path == paths.get(name)),
            self._removed_sinks(name, origin) if generation else frozenset(), manifest.generation if manifest else 0,
            self.claim.turns if self.claim and generation else (),
        )  # fmt: skip

    @cached_property
    def _catalog(self) -> Catalog:
        return read_catalog(self.blueprint.jobdir)

    def _removed_sinks(self, name: str, origin: Origin) -> frozenset[str]:
        """Return sinks that wrote to this sink's destination after the restored epoch and are not in the program."""
        manifest, sink = origin.manifest, self.sinks.get(name)
        is_newest = origin.is_own and not origin.is_new and not origin.choice.skipped
        if manifest is None or sink is None or not sink.destination or is_newest:
            return frozenset()
        manifests = [manifest, *self._catalog.manifests.values()]
        sinks = [stored for each in manifests if each.life == manifest.life for stored in each.sinks]
        present = {other for other, each in self.sinks.items() if each.destination == sink.destination}
        return frozenset(stored.name for stored in sinks if stored.destination == sink.destination) - present

    def _sinks_place(self) -> Place:
        b = self.blueprint
        place = b.jobdir.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
        return structs.replace(place, path=f"{place.path}/{SINKS}" if place.path else SINKS)

    def find_place(self, origin: Origin, start: Start | None) -> SourcePlace:
        """Return the position in the sources from which the job continues; cached for the same origin."""
        if self._place is None or (self._place.manifest, self._place.start) != (origin.manifest, start):
            self._place = find_place(self.blueprint, origin, start)
        return self._place

    def start_of(self, origin: Origin) -> Start | None:
        """Return the record of where the job's life began, if no snapshot has a position in the sources."""
        manifest, restored = origin.manifest, origin.restored if origin.manifest else origin.choice.restored
        start = load_start(self.blueprint.jobdir, restored) if manifest is None or manifest.source is None else None
        if start is not None:
            check_start(self.blueprint.name, start, self.blueprint.plan.sources.names)
        return start

    def _program(
        self,
        owned: Claim,
        operator: Operator,
        origin: Origin,
        memory_bytes: int,
        followed: dict[Partition, list[Followed]],
    ) -> Program:
        b, restore = self.blueprint, None
        if origin.manifest is not None:
            place = None if origin.is_own else origin.folder.place(b.checkpoints.storage_options)
            restore = Restore(
                checkpoint=origin.manifest.checkpoint, epoch=origin.manifest.epoch, stored=operator.migration.stored,
                place=place,
            )  # fmt: skip
        return operator.program(
            job=b.name,
            generation=owned.generation,
            backend=b.settings.backend,
            mode=b.checkpoints.mode,
            changelog=b.checkpoints.changelog,
            life=owned.life,
            continuous=b.checkpoints.continuous,
            local_log=b.checkpoints.has_local_log and b.settings.backend == "rocksdb",
            max_concurrent=b.checkpoints.max_concurrent,
            store_url=b.jobdir.store.url,
            store_options=b.checkpoints.storage_options,
            fsync=b.settings.fsync,
            partition_memory_bytes=memory_bytes,
            limit_bytes=b.settings.memory_backend_limit_bytes,
            lease_ms=b.settings.keeper_lease_ms,
            log_values=b.settings.show_values == "logs",
            max_row_bytes=b.settings.max_row_bytes,
            restore=restore,
            followed=followed,
            python_path=[str(Path(entry).absolute()) for entry in sys.path],
        )

    def _partition_memory(self, parallelisms: Iterable[int]) -> int:
        """Return a keeper's share of the memory of one machine."""
        sc: Any = self.blueprint.spark.sparkContext
        addresses = sc._jsc.sc().getExecutorMemoryStatus().keys().mkString(",").split(",")
        hosts = [address.rpartition(":")[0] for address in addresses]
        if len(hosts) > 1 and not has_one_process(sc.master):
            # The driver's address is in the list, but it runs no keepers.
            with contextlib.suppress(ValueError):
                hosts.remove(core_setting(self.blueprint.spark, "spark.driver.host"))
        keepers = most_on_one(parallelisms, len(set(hosts)))
        return max(32 << 20, self.blueprint.settings.state_memory_bytes // max(1, keepers))


def _turns_of(origin: Origin, owned: Claim) -> list[Begin]:
    """Return the runs of the job's life that went back, with this one if it does."""
    manifest = origin.manifest
    if manifest is None or origin.is_fork:
        return []
    turns = manifest.turns or []
    goes_back = origin.is_new or origin.choice.goes_back
    return with_begin(turns, owned.generation, manifest.epoch) if goes_back else turns


def warn_of_other_directory(blueprint: Blueprint) -> None:
    """Warn of a relative checkpoint directory if a job of this name ran last with another one: it starts afresh."""
    b, directory = blueprint, str(blueprint.checkpoints.directory)
    if "://" in directory or Path(directory).expanduser().is_absolute():
        return
    others = (record.directory for record in journal.records(b.places.local_dir, b.name))
    before = next((url for url in others if url != b.jobdir.store.url), "")
    if before:
        log.warning(
            "job '%s' starts afresh in %s: the checkpoint directory '%s' is relative to %s, and a job of this name ran "
            "last with %s; to continue that job, give Checkpoints(…) its absolute path",
            b.name, b.jobdir.url, directory, Path.cwd(), before,
        )  # fmt: skip


def warn_of_sinks(blueprint: Blueprint, checkpoint: CheckpointId) -> None:
    """Warn of sinks that cannot remove output when a job goes back to an older checkpoint."""
    for name, sink, _ in blueprint.plan.sinks:
        if sink.visibility != "checkpoint" or not sink.takes_back:
            log.warning(
                "job '%s' goes back to checkpoint %d: the later output of sink '%s' stays, and is written again",
                blueprint.name, checkpoint, name,
            )  # fmt: skip
