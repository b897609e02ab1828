"""A job in a simulated world: drivers that start, pause, die and are replaced, with the product's own coordinator.

Keepers are a table of files: each checkpoint, some partitions have a new file, and refer to the others of the base, as
incremental snapshots do. Now and then one plans a file that it uploads beside the checkpoints, and then begins with it,
as a changelog's next base. Each state has a digest that names its whole history, and the sink checks that what it shows
continues what it has shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import structs

from strandline.api.config import Checkpoints
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path, shared_path
from strandline.checkpoint.pins import write_pin
from strandline.core.errors import CheckpointError, FencedError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import Manifest, OperatorInfo, PartitionInfo, SinkInfo
from strandline.snapshot.opening.origin import decide, go_back, verify_own
from strandline.storage.retrying import RetryingStore
from tests.checkpoint import helpers
from tests.simulation.storage import SimulatedStore, SimulatedTruth
from tests.simulation.world import Actor, World

GRACES_MS = (600_000, 3_600_000)
"""Storage may execute a request nine minutes after it has refused it."""
POLL_MS, CALM_POLL_MS = 100, 5000
LONG_MS = 300_000
"""How long the upload of a base takes, on average."""
REBASES = 0.05
"""How often a partition that has changed plans a new base."""
MOST_FILES = 4
"""A partition merges its files when it has more."""


@dataclass
class Faults:
    """What may go wrong, each as a rate: of requests, or an hour."""

    requests: float = 0.02
    slow: float = 0.002
    keepers: float = 0.002
    deaths: float = 6.0
    pauses: float = 3.0
    rivals: float = 2.0
    rollbacks: float = 2.0
    collections: float = 4.0
    readers: float = 4.0


@dataclass
class NextBase:
    """A file that a partition uploads beside the checkpoints."""

    path: str
    stage: str = "planned"


@dataclass
class Sink:
    """Shows epochs, and knows which history of the job they are of."""

    world: World
    parents: dict[str, str] = field(default_factory=dict)
    """The digest before each digest."""
    generation: int = 0
    behind: int = 0
    """The generation that goes back: until it or a newer one begins here, the sink may show more than there is."""
    shown: list[tuple[int, str]] = field(default_factory=list)
    """The epoch and the digest of each commit, without those that were taken back."""

    def claim(self, generation: int, restored: Manifest | None) -> None:
        """Begin a run: take back what came after the epoch that it restores, as a sink does."""
        if generation < self.generation:
            raise FencedError("a newer run has the sink", generation=generation)
        self.generation = generation
        epoch, digest = (restored.epoch, digest_of(restored)) if restored else (0, "")
        while self.shown and self.shown[-1][0] > epoch:
            self.shown.pop()
        assert not self.shown or self.descends(digest, self.shown[-1][1]), (
            f"generation {generation} restores epoch {epoch}, which does not come from what was shown: {self.shown[-1]}"
        )

    def commit(self, generation: int, manifest: Manifest) -> None:
        if generation < self.generation:
            raise FencedError("a newer run has the sink", generation=generation)
        digest = digest_of(manifest)
        if self.shown and manifest.epoch <= self.shown[-1][0]:
            assert self.descends(self.shown[-1][1], digest), f"checkpoint {manifest.checkpoint}: shown before, as other"
            return
        assert not self.shown or self.descends(digest, self.shown[-1][1]), (
            f"checkpoint {manifest.checkpoint} of generation {generation} does not continue {self.shown[-1]}"
        )
        self.shown.append((manifest.epoch, digest))
        self.world.note(f"shows epoch {manifest.epoch}")

    def descends(self, digest: str, of: str) -> bool:
        while digest and digest != of:
            digest = self.parents.get(digest, "")
        return digest == of


def digest_of(manifest: Manifest) -> str:
    return manifest.sinks[0].pending[0]


class Job:
    """The world of one job."""

    def __init__(self, seed: int, partitions: int, faults: Faults, changed: int = 20) -> None:
        self.world = world = World(seed)
        self.faults, self.partitions, self.changed = faults, partitions, changed
        self.store = SimulatedStore(world, faults.requests, faults.slow)
        self.truth = JobDirectory(SimulatedTruth(self.store), "job")
        self.retain = world.rng.randint(1, 3)
        self.max_concurrent = world.rng.randint(1, 3)
        self.subsumed = 0
        self.sink = Sink(world)
        self.drivers: list[Driver] = []
        self.completed = self.started = self.rolled_back = 0
        self.pinned: dict[str, set[str]] = {}
        self.beside: set[str] = set()
        """Files that storage has and that no checkpoint has used yet."""
        self.is_calm = False
        self.store.on_delete = self._check_pinned
        self.start()
        for act, rate in (
            (self._kill, faults.deaths), (self.start, faults.rivals), (self._collect, faults.collections),
            (self._read, faults.readers), (lambda: self._tell("is_to_pause"), faults.pauses),
            (lambda: self._tell("is_to_go_back"), faults.rollbacks),
        ):  # fmt: skip
            self._often(act, rate)

    def _often(self, act: Callable[[], object], an_hour: float) -> None:
        """Do something at random times, so often an hour; not once it is calm."""

        def again() -> None:
            if not self.is_calm:
                act()
                self._often(act, an_hour)

        if an_hour:
            self.world.at(self.world.rng.expovariate(an_hour / 3_600_000), again)

    def start(self) -> None:
        """Start a driver, beside those that run."""
        self.started += 1
        self.drivers.append(Driver(self, self.started))

    def _kill(self) -> None:
        if self.drivers:
            victim = self.world.rng.choice(self.drivers)
            self.world.note(f"kills {victim.actor.name}")
            victim.actor.killed = True
            self.ended(victim)

    def ended(self, driver: Driver) -> None:
        """Start another driver after a while if this was the last one."""
        if driver in self.drivers:
            self.drivers.remove(driver)
        if not self.drivers:
            self.world.at(self.world.rng.uniform(1000, 60_000), self.start)

    def _tell(self, wish: str) -> None:
        if self.drivers:
            setattr(self.world.rng.choice(self.drivers), wish, True)

    def jobdir(self) -> JobDirectory:
        sleep = lambda s: self.world.sleep(s * 1000)  # noqa: E731
        return JobDirectory(RetryingStore(self.store, attempts=3, sleep=sleep, rng=self.world.rng), "job")

    def _collect(self) -> None:
        def collect() -> None:
            try:
                execute(plan(self.jobdir(), self.world, self.world.rng.choice(GRACES_MS)))
            except StrandlineError as error:
                # A live checkpoint that lacks a file is a fault, whoever finds it.
                if "needs it" in error.message:
                    raise AssertionError(error.message) from error
                self.world.note(f"no collection: {error.message}")

        Actor(self.world, "collector", collect)

    def _read(self) -> None:
        """Pin the newest checkpoint, and rely on its files for some minutes."""

        def read() -> None:
            jobdir = self.jobdir()
            try:
                catalog = read_catalog(jobdir)
                if not catalog.live:
                    return
                newest = max(catalog.live)
                pin = write_pin(jobdir, manifest_path(newest))
            except StrandlineError:
                return
            if pin is None or read_catalog(self.truth).live.get(newest) != catalog.live[newest]:
                return
            self.pinned[pin] = {f"job/{file.path}" for file in catalog.live[newest].stored()}
            self.world.note(f"pins checkpoint {newest}")
            self.world.sleep(self.world.rng.uniform(0, 1_800_000))
            del self.pinned[pin]

        Actor(self.world, "reader", read)

    def _check_pinned(self, path: str) -> None:
        for files in self.pinned.values():
            assert path not in files, f"{path} is deleted, and a reader has pinned it"

    def check(self) -> None:
        """Every checkpoint of the job's history has its files; the newest continues what was shown."""
        catalog = read_catalog(self.truth)
        for checkpoint, manifest in catalog.live.items():
            # A checkpoint that was given up or subsumed may come back when storage executes a request late.
            is_past = f"job/{manifest_path(checkpoint)}" in self.store.deleted and checkpoint < max(catalog.live)
            missing = [] if is_past else catalog.missing(manifest)
            assert not missing, f"checkpoint {checkpoint} lacks {missing[0]}"
            planned = set() if is_past else manifest.planned() & self.beside - catalog.objects.keys()
            assert not planned, f"{planned} are gone, which checkpoint {checkpoint} has planned"
        newest = catalog.live[max(catalog.live)] if catalog.live else None
        if self.sink.shown and self.sink.generation >= self.sink.behind:
            assert newest is not None, "no checkpoint is left"
            epoch, digest = self.sink.shown[-1]
            assert newest.epoch >= epoch, f"epoch {epoch} was shown, and the newest checkpoint is {newest.epoch}"
            assert self.sink.descends(digest_of(newest), digest), "the newest checkpoint is of another history"

    def calm(self) -> None:
        """From now on, nothing fails any more."""
        self.is_calm, self.store.rate, self.store.slow = True, 0.0, 0.0
        for after_ms in (6_900_000, 7_000_000):
            self.world.at(after_ms, self._collect)

    def check_calm(self, completed: int) -> None:
        """After two hours without faults, a driver makes progress, and nothing is left that nobody needs."""
        assert self.completed > completed + 100, "the job makes no progress"
        catalog = read_catalog(self.truth)
        needed = {path for manifest in catalog.live.values() for path in manifest.paths()}
        before_ms = self.world.now_ms() - 300_000
        left = [
            path for path, info in catalog.objects.items()
            if path.startswith("shared/") and path not in needed and info.modified_ms < before_ms
        ]  # fmt: skip
        assert not left, f"{len(left)} files that no checkpoint needs are left, as {left[0]}"
        assert not catalog.void, f"checkpoints that do not count are left: {dict(catalog.void)}"

    def end(self) -> None:
        """End all threads."""
        self.world.kill_all()


class Driver:
    """A driver: an attempt after the other, until it is fenced or killed."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.world = job, job.world
        self.previous: Claim | None = None
        self.back: CheckpointId | None = None
        self.is_to_pause = self.is_to_go_back = False
        self.next_id = CheckpointId(0)
        self.next_bases: dict[Partition, NextBase] = {}
        self.actor = Actor(job.world, f"driver {number}", self._run)

    def _run(self) -> None:
        while True:
            try:
                self._attempt()
            except FencedError:
                self.world.note("is fenced")
                break
            except StrandlineError as error:
                self.world.note(f"fails: {error.message[:200]}")
                self.world.sleep(1000)
                if self.previous is None:
                    # A start that fails is the end of the program.
                    break
        self.job.ended(self)

    def _attempt(self) -> None:
        job, jobdir, rng = self.job, self.job.jobdir(), self.world.rng
        back = self.back
        if back is not None:
            try:
                verify_own(jobdir, back)
                job.sink.behind = self.previous.generation + 1 if self.previous else 0
                self.previous = go_back(jobdir, back, self.world, self.previous)
            except UnavailableError:
                raise
            except StrandlineError:
                # There is no such checkpoint any more.
                self.back = None
                raise
            job.rolled_back += 1
            self.world.note(f"goes back to checkpoint {back}")
            self.back = None
        owned = claim(jobdir, self.world, self.previous)
        self.previous = owned
        origin = decide(jobdir, owned=owned)
        lost = [each for each in origin.choice.skipped if each.lost]
        assert not lost, f"a checkpoint is lost: {lost[0]}"
        origin.make_base(jobdir, owned)
        restored = origin.manifest
        assert back is None or (restored is not None and restored.checkpoint == back), f"did not go back to {back}"
        self.world.note(f"begins with checkpoint {restored.checkpoint if restored else None}")
        job.sink.claim(owned.generation, restored)
        self.world.sleep(rng.uniform(10, 2000))
        if restored is not None:
            owned.check()
            job.sink.commit(owned.generation, restored)
        operator = helpers.plan("count", job.partitions)
        config = Checkpoints(
            "unused", every="1s", timeout="1 min", retain=job.retain, tolerable_failures=5,
            max_concurrent=job.max_concurrent,
        )  # fmt: skip
        coordinator = Coordinator(
            jobdir, owned, config, self.world, CheckpointId(max(origin.choice.next_id, self.next_id)), origin.confirmed,
            [operator], lambda manifest: job.sink.commit(owned.generation, manifest),
        )  # fmt: skip
        self.next_bases = {}
        try:
            self._work(coordinator, owned, operator, restored)
        finally:
            self.next_id = coordinator.next_id
            job.subsumed += coordinator.counts.subsumed
            unsafe = [stats.failure for stats in coordinator.history if "would be unsafe" in stats.failure]
            assert not unsafe, unsafe[0]
            coordinator.close("the attempt has ended")
            if not self.actor.killed:
                # Its keepers are gone.
                for following in self.next_bases.values():
                    following.stage = "ended"
                    job.beside.discard(following.path)
                if coordinator.confirmed is not None:
                    job.beside -= coordinator.confirmed.planned()
                with suppress(StrandlineError):
                    coordinator.delete_planned()

    def _work(self, coordinator: Coordinator, owned: Claim, operator: OperatorInfo, restored: Manifest | None) -> None:
        """Run epochs: one each poll."""
        job, world, rng = self.job, self.world, self.world.rng
        epoch, digest = (restored.epoch, digest_of(restored)) if restored else (0, "")
        while True:
            world.sleep(CALM_POLL_MS if job.is_calm else POLL_MS)
            if self.is_to_pause:
                self.is_to_pause = False
                pause_ms = rng.choice((5_000, 60_000, 900_000, 3_000_000))
                world.note(f"stands still for {pause_ms / 1000} s")
                world.sleep(pause_ms)
            if self.is_to_go_back:
                self.is_to_go_back = False
                self._go_back()
            epoch, before = epoch + 1, digest
            digest = hashlib.sha256(f"{before} {owned.generation} {epoch}".encode()).hexdigest()[:16]
            job.sink.parents[digest] = before
            checkpoint = coordinator.trigger(Epoch(epoch))
            if checkpoint is not None:
                self._snapshot(coordinator, checkpoint, operator)
                coordinator.add_source(checkpoint, None)
                coordinator.add_sinks(checkpoint, [SinkInfo(name="out", pending=[digest])])
            if coordinator.advance() is not None:
                job.completed += 1

    def _go_back(self) -> None:
        catalog = read_catalog(self.job.jobdir())
        if catalog.live:
            self.back = self.world.rng.choice(sorted(catalog.live))
            raise CheckpointError("is to go back")

    def _snapshot(self, coordinator: Coordinator, checkpoint: CheckpointId, operator: OperatorInfo) -> None:
        """Let all keepers snapshot: those that have changed upload a file, each at its own time."""
        job, world, rng = self.job, self.world, self.world.rng
        base = coordinator.confirmed
        before = base.operators[0].partitions if base else []
        every = range(job.partitions)
        changed = set(rng.sample(every, min(job.changed, job.partitions)) if before else every)
        for index in map(Partition, every):
            part = helpers.part_of(operator, index, before[index].files if before else [])
            if index in self.next_bases or (index in changed and rng.random() < REBASES):
                part = self._rebase(part, before[index] if before else None)
            if index in changed:
                # Where several are in flight, later ones are often complete first.
                longest_ms = 300 if job.max_concurrent == 1 else 3000
                world.at(rng.uniform(1, longest_ms), self._uploading(coordinator, checkpoint, part))
            else:
                coordinator.report("count", index, checkpoint, part)

    def _rebase(self, part: PartitionInfo, before: PartitionInfo | None) -> PartitionInfo:
        """Have a partition plan its next base, begin its upload, or begin with it."""
        index = part.index
        following = self.next_bases.get(index)
        if following is not None and following.stage == "uploaded":
            del self.next_bases[index]
            return structs.replace(part, files=[helpers.shared_ref(following.path, following.path.encode())])
        if following is None:
            following = self.next_bases[index] = NextBase(shared_path())
        if following.stage == "planned" and before is not None and before.planned == [following.path]:
            following.stage = "uploading"
            self.world.at(self.world.rng.expovariate(1 / LONG_MS), self._uploading_base(following))
        return structs.replace(part, planned=[following.path])

    def _uploading_base(self, following: NextBase) -> Callable[[], None]:
        job, rng = self.job, self.world.rng

        def upload() -> None:
            if self.actor.killed or following.stage == "ended":
                return
            failed = not job.is_calm and rng.random() < job.faults.keepers * 10
            lost = not job.is_calm and rng.random() < job.faults.keepers * 10
            if not lost and (not failed or rng.random() < 0.5):
                job.store._write(f"job/{following.path}", following.path.encode())
            if failed:
                following.path, following.stage = shared_path(), "planned"
                return
            if not lost:
                job.beside.add(following.path)
            following.stage = "uploaded"

        return upload

    def _uploading(self, coordinator: Coordinator, checkpoint: CheckpointId, part: PartitionInfo) -> Callable[[], None]:
        job, world, rng = self.job, self.world, self.world.rng

        def upload() -> None:
            if self.actor.killed:
                return
            path, data = shared_path(), rng.randbytes(8)
            file = helpers.shared_ref(path, data)
            failed = not job.is_calm and rng.random() < job.faults.keepers
            # Storage may also lose what it has confirmed.
            lost = not job.is_calm and rng.random() < job.faults.keepers
            if not lost and (not failed or rng.random() < 0.5):
                job.store._write(f"job/{path}", data)
            if failed:
                coordinator.report_failure("count", part.index, checkpoint, "the upload failed")
                return
            files = [file] if len(part.files) >= MOST_FILES else [*part.files, file]
            report = structs.replace(part, files=files, uploaded_bytes=8)
            deliver = lambda: coordinator.report("count", part.index, checkpoint, report)  # noqa: E731
            late = not job.is_calm and rng.random() < job.faults.keepers
            world.at(rng.uniform(0, 90_000) if late else rng.uniform(1, 100), deliver)

        return upload
