"""Several checkpoints in flight, with the product's coordinator and a keeper's real snapshots in this process."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.api.config import Changelog
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core import failpoints
from strandline.core.clock import SystemClock
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import Manifest, OperatorInfo
from strandline.keeper import opening, snapshots
from strandline.runtime.program import Restore
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import every_epoch, stored
from tests.runtime.bench import MAX_PARALLELISM, program
from tests.runtime.clients import Counter, count_events, eventually
from tests.soak import seeds

MODES = ["incremental", "changelog", "continuous", "full"]
SMALL = Changelog(parts=3)
WAIT_S = 60.0


class Gates:
    """Hold back the uploads of some checkpoints, in the middle: their files are read, and nothing is stored."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._closed: dict[int, threading.Event] = {}
        self.waiting: set[int] = set()
        upload = snapshots.upload

        def gated(jobdir: JobDirectory, files: Any, checkpoint: CheckpointId, *more: Any, **options: Any) -> Any:
            if (gate := self._closed.get(checkpoint)) is not None:
                self.waiting.add(checkpoint)
                assert gate.wait(WAIT_S)
            return upload(jobdir, files, checkpoint, *more, **options)

        patch.setattr(snapshots, "upload", gated)

    def close(self, checkpoint: int) -> None:
        self._closed[checkpoint] = threading.Event()

    def open(self, checkpoint: int) -> None:
        if (gate := self._closed.get(checkpoint)) is not None:
            gate.set()

    def open_all(self, but: Sequence[int] = ()) -> None:
        for checkpoint, gate in self._closed.items():
            if checkpoint not in but:
                gate.set()


class Life:
    """A job of one partition: a driver and a keeper, which end and begin anew."""

    def __init__(self, root: Path, gates: Gates, mode: str, max_concurrent: int, backend: str = "rocksdb") -> None:
        self.root, self.gates, self.mode, self.max_concurrent = root, gates, mode, max_concurrent
        self.backend = backend
        self.url = f"file://{root}/storage"
        self.jobdir = JobDirectory(open_store(self.url), "job")
        self.counts: dict[str, int] = {}
        self.at: dict[int, dict[str, int]] = {}
        """What was counted when each checkpoint was triggered."""
        self.shown: list[int] = []
        self.next_id = CheckpointId(0)
        self.begin()

    def begin(self) -> None:
        """Restore the newest checkpoint."""
        owned = claim(self.jobdir, SystemClock())
        choice = choose(self.jobdir, owned)
        found = choice.manifest
        owned.set_base(CheckpointId(found.checkpoint) if found else None)
        self.epoch = found.epoch if found else 0
        operator = OperatorInfo(
            uid="op", backend=self.backend, parallelism=1, max_parallelism=MAX_PARALLELISM, key_schema="k string",
            states=[], partitions=[],
        )  # fmt: skip
        config = every_epoch(max_concurrent=self.max_concurrent, tolerable_failures=None, mode=self.mode)
        self.coordinator = Coordinator(
            self.jobdir, owned, config, SystemClock(), CheckpointId(max(choice.next_id, self.next_id)), found,
            [operator], self.show,
        )  # fmt: skip
        restore = Restore(checkpoint=found.checkpoint, epoch=found.epoch, stored=found.operators[0]) if found else None
        wanted = program(
            Counter(), store_url=self.url, generation=owned.generation, restore=restore, mode=self.mode,
            changelog=SMALL, max_concurrent=self.max_concurrent, backend=self.backend,
        )  # fmt: skip
        self.opened = opening.open_partition(wanted, Partition(0), self.root / "local" / "op-0", "")
        self.counts = dict(self.at[found.checkpoint]) if found else {}

    def end(self) -> None:
        for stats in self.coordinator.history:
            assert "unsafe" not in stats.failure
            assert "after its upload" not in stats.failure
        self.coordinator.close("the run ended")
        self.coordinator.advance()
        self.next_id = self.coordinator.next_id
        self.gates.open_all()
        self.opened.snapshots.close()
        if self.opened.restoring is not None:
            self.opened.restoring.unverified.clear()
        self.opened.partition.task.store._backend.close()

    def show(self, manifest: Manifest) -> None:
        self.shown.append(manifest.checkpoint)

    def run(self, *keys: str) -> None:
        """Count an event of each key, and check the counts."""
        self.epoch += 1
        count_events(self.opened.partition, self.epoch, self.counts, keys)

    def tell(self) -> None:
        """Tell the keeper what the driver knows, as each epoch does."""
        confirmed = self.coordinator.confirmed
        in_flight = self.coordinator.in_flight
        self.opened.snapshots.apply_driver_state(confirmed.checkpoint if confirmed else None, in_flight)

    def trigger(self, *, held: bool = False) -> CheckpointId | None:
        """Begin a checkpoint with the newest epoch; its upload may be held back."""
        checkpoint = self.coordinator.trigger(Epoch(self.epoch))
        if checkpoint is not None:
            if held:
                self.gates.close(checkpoint)
            self.at[checkpoint] = dict(self.counts)
            self.tell()
            self.opened.snapshots.trigger(checkpoint, Epoch(self.epoch))
            self.coordinator.add_source(checkpoint, None)
            self.coordinator.add_sinks(checkpoint, [])
        return checkpoint

    def deliver(self, checkpoint: CheckpointId) -> CheckpointId | None:
        """Let an upload end, and give all reports to the driver; return what completes."""
        self.gates.open(checkpoint)
        eventually(lambda: checkpoint in self.reported(), f"a report on checkpoint {checkpoint}")
        return self.coordinator.advance()

    def reported(self) -> Sequence[CheckpointId]:
        reports = self.opened.snapshots.reports()
        for report in reports:
            if report.info is not None:
                self.coordinator.report("op", Partition(0), report.checkpoint, report.info)
            else:
                self.coordinator.report_failure("op", Partition(0), report.checkpoint, report.failure)
        return [report.checkpoint for report in reports]

    def take(self) -> CheckpointId:
        checkpoint = self.trigger()
        assert checkpoint is not None
        assert self.deliver(checkpoint) == checkpoint
        self.tell()
        return checkpoint

    def entries(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return all bytes of the state."""
        backend = self.opened.partition.task.store._backend
        return {state: list(backend.scan(state, b"")) for state in ("seen", "filling")}


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Life]]:
    lives: list[Life] = []

    def life(*given: Any) -> Life:
        lives.append(Life(tmp_path, Gates(monkeypatch), *given))
        return lives[-1]

    yield life
    failpoints.disarm_all()
    for each in lives:
        each.end()


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_upload_delays_no_later_rows(begin: Callable[..., Life], mode: str) -> None:
    life = begin(mode, 2)
    life.run(*map(str, range(50)))
    first = life.take()
    life.run("a")
    slow = life.trigger(held=True)
    assert slow is not None
    eventually(lambda: slow in life.gates.waiting, "the upload of the second checkpoint is on its way")
    life.run("a", "b")
    fast = life.trigger()
    assert fast is not None
    assert life.deliver(fast) == fast
    assert life.shown == [first, fast], "although the upload of the second one still waits"
    assert [stats.status for stats in life.coordinator.history] == ["completed", "subsumed", "completed"]
    before = life.entries()
    life.tell()
    # The keeper gives up the slow one, and nothing is left of it.
    life.deliver(slow)
    confirmed = life.coordinator.confirmed
    assert stored(life.jobdir) == confirmed.paths() | {f"chk-{fast}/_metadata"}
    # A restore from storage alone has the same bytes.
    life.end()
    shutil.rmtree(life.root / "local")
    life.begin()
    assert life.entries() == before
    life.run("a", "b", "7")


@pytest.mark.parametrize("mode", ["incremental", "changelog", "continuous"])
def test_the_next_increment_builds_on_the_one_that_was_complete(begin: Callable[..., Life], mode: str) -> None:
    """3 is complete before 2; 4 refers to files of 3, and to none of 2."""
    life = begin(mode, 2)
    life.run(*map(str, range(50)))
    life.take()
    life.run("a")
    second = life.trigger(held=True)
    assert second is not None
    life.run("a", "b")
    third = life.trigger()
    assert third is not None
    assert life.deliver(third) == third
    of_third = life.coordinator.confirmed
    life.run("c")
    fourth = life.trigger()
    assert fourth is not None
    assert life.deliver(fourth) == fourth
    of_fourth = life.coordinator.confirmed
    assert of_fourth.paths() & of_third.paths()
    assert of_fourth.uploaded_bytes < of_fourth.total_bytes
    life.tell()
    life.deliver(second)
    life.coordinator.advance()
    assert stored(life.jobdir) == of_fourth.paths() | {f"chk-{fourth}/_metadata"}


def test_uploads_that_were_given_up_do_not_hold_back_later_ones(begin: Callable[..., Life]) -> None:
    """Each still waits for storage; as many as may be in flight can be uploaded beside them."""
    life = begin("incremental", 3)
    held = []
    for _ in range(2):
        life.run("a")
        held.append(life.trigger(held=True))
    life.run("a")
    life.take()
    for _ in range(2):
        life.run("b")
        assert life.trigger(held=True) is not None
    life.run("c")
    life.take()
    assert set(life.gates.waiting) >= {checkpoint for checkpoint in held if checkpoint}


def test_a_finished_upload_of_a_subsumed_checkpoint_is_reported_and_deleted(begin: Callable[..., Life]) -> None:
    life = begin("incremental", 2)
    life.run("a")
    life.take()
    life.run("b")
    slow = life.trigger()
    assert slow is not None
    snapshots = life.opened.snapshots
    eventually(lambda: slow in snapshots._reports, "the second one is uploaded, and the driver has not asked yet")
    life.run("c")
    fast = life.trigger()
    assert fast is not None
    report = eventually(lambda: snapshots._reports.get(fast), "the third one is uploaded")
    life.coordinator.report("op", Partition(0), fast, report.info)
    assert life.coordinator.advance() == fast
    life.tell()
    assert slow in life.reported()
    life.coordinator.advance()
    confirmed = life.coordinator.confirmed
    assert stored(life.jobdir) == confirmed.paths() | {f"chk-{fast}/_metadata"}
    life.tell()
    assert life.reported() == []


def test_a_base_waits_for_checkpoints_in_flight_that_have_not_planned_it(begin: Callable[..., Life]) -> None:
    """3 plans the files of a base, and 4, which was uploaded before the base was made, does not: it is published later."""
    life = begin("changelog", 2)
    snapshots = life.opened.snapshots
    for _ in range(2):
        life.run("a")
        life.take()
    is_made, may_go_on = threading.Event(), threading.Event()

    def pause() -> None:
        is_made.set()
        may_go_on.wait(WAIT_S)

    failpoints.arm("keeper.rebase.before", pause)
    life.run("b")
    older = life.trigger(held=True)
    life.run("c")
    newer = life.trigger()
    assert older is not None
    assert newer is not None
    assert is_made.wait(WAIT_S)
    of_newer = eventually(lambda: snapshots._reports.get(newer), "4 is uploaded")
    may_go_on.set()
    following = eventually(lambda: snapshots._next_base, "the next base")
    life.gates.open(older)
    of_older = eventually(lambda: snapshots._reports.get(older), "3 is uploaded")
    assert of_older.info.planned == following.planned
    assert not of_newer.info.planned
    for checkpoint, report in ((older, of_older), (newer, of_newer)):
        life.coordinator.report("op", Partition(0), checkpoint, report.info)
        assert life.coordinator.advance() == checkpoint
        life.tell()
        snapshots._base_uploader.submit(int).result()
        assert not following.is_uploaded
    used = None
    while used is None or following.planned[0] not in used.paths():
        life.run("d")
        life.take()
        snapshots._base_uploader.submit(int).result()
        used = life.coordinator.confirmed
    assert following.is_uploaded


@pytest.mark.parametrize("seed", range(3))
def test_a_base_is_uploaded_when_no_older_checkpoint_can_let_go_of_it(begin: Callable[..., Life], seed: int) -> None:
    """Whatever is published first, each published checkpoint has all files of a base that is there and not used yet."""
    rng = random.Random(seed)
    life = begin("changelog", 3)
    beside: set[str] = set()
    for _ in range(25):
        life.run(*rng.sample("abcdef", 3))
        life.trigger(held=rng.random() < 0.7)
        while life.coordinator.in_flight and rng.random() < 0.5:
            life.deliver(rng.choice(life.coordinator.in_flight))
            life.gates.open_all(but=life.coordinator.in_flight)
        life.tell()
        life.opened.snapshots._base_uploader.submit(int).result()
        confirmed = life.coordinator.confirmed
        following = life.opened.snapshots._next_base
        if following is not None and following.is_uploaded:
            beside.update(ref.path for ref in following.files.values())
            assert {ref.path for ref in following.files.values()} <= confirmed.paths() & stored(life.jobdir)
    assert beside


@pytest.mark.parametrize("mode", [*MODES, "filesystem"])
@pytest.mark.parametrize("seed", seeds([0, 1], range(2, 30)))
def test_any_order_of_uploads_failures_and_restores(begin: Callable[..., Life], mode: str, seed: int) -> None:
    """With up to three in flight. Whatever is restored has exactly what was counted when it was triggered."""
    rng = random.Random(f"{mode} {seed}")
    most = rng.randint(1, 3)
    life = begin(mode, most) if mode in MODES else begin("incremental", most, mode)
    for _ in range(25 if seed < 2 else 80):
        if rng.random() < 0.1:
            failpoints.arm(rng.choice(["keeper.rebase.upload", "keeper.rebase.uploaded", "upload.file"]), lambda: 1 / 0)
        is_writing = threading.Event()
        if rng.random() < 0.3:
            # The writer lags behind: two frozen layers wait for it.
            life.opened.snapshots._writer.submit(is_writing.wait, WAIT_S)
            life.run("a", "j")
            life.trigger(held=True)
        life.run(*rng.sample("abcdefghij", rng.randint(1, 5)))
        life.trigger(held=True)
        is_writing.set()
        while life.coordinator.in_flight and rng.random() < 0.6:
            checkpoint = rng.choice(life.coordinator.in_flight)
            if rng.random() < 0.15:
                life.coordinator.fail(checkpoint, "another partition failed")
                life.coordinator.advance()
            else:
                life.deliver(checkpoint)
            life.gates.open_all(but=life.coordinator.in_flight)
        if rng.random() < 0.5:
            life.opened.snapshots._base_uploader.submit(int).result()
        life.tell()
        failpoints.disarm_all()
        if rng.random() < 0.05:
            life.end()
            if rng.random() < 0.5:
                shutil.rmtree(life.root / "local")
            life.begin()
    assert len(life.shown) > 4
