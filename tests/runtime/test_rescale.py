"""A snapshot restored at any other parallelism and on any other backend holds the same entries, each where it belongs."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.api.states import TTL, Value
from strandline.backends.reading import file_kind, open_reader
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import fetch
from strandline.core import failpoints
from strandline.core.errors import UnavailableError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.keygroups import group_of, partition_of, range_of
from strandline.format.manifest import PartitionInfo
from strandline.keeper import opening
from strandline.runtime.program import Restore
from strandline.runtime.task.task import EpochTimes
from strandline.storage.remote import open_store
from tests.runtime.bench import KINDS, MAX_PARALLELISM, OPS, Event, Everything, Model, batch_of, program
from tests.runtime.clients import eventually

NOW_US = 1_700_000_000_000_000
KEYS = [f"k{n}" for n in range(60)]


class Timed(Everything):
    """Everything, with a timer for each key, and a state that expires."""

    short = Value("bigint", ttl=TTL("1h"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set_processing(ctx.now + dt.timedelta(days=1))
        self.short.value = event.a
        yield from super().on_event(event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        pass


class Job:
    """All partitions of one operator, restored again and again from their own snapshots."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.epoch = 0
        self.generation = 0
        self.restore: Restore | None = None
        self.opened: list[opening.Opened] = []

    def start(self, parallelism: int, backend: str) -> None:
        self.generation += 1
        wanted = program(
            Timed(), store_url=f"file://{self.root}/storage", backend=backend, parallelism=parallelism,
            generation=self.generation, restore=self.restore,
        )  # fmt: skip
        self.parallelism = parallelism
        for index in range(parallelism):
            directory = self.root / "local" / f"op-{index}"
            self.opened.append(opening.open_partition(wanted, Partition(index), directory))

    def run(self, events: Sequence[Event]) -> list[tuple[Any, ...]]:
        """Process an epoch; return the answers."""
        self.epoch += 1
        batch, found = batch_of(events), []
        groups = batch.column(0).to_pylist()
        for index, opened in enumerate(self.opened):
            mine = [partition_of(group, MAX_PARALLELISM, self.parallelism) == index for group in groups]
            batches = [batch.filter(pa.array(mine, pa.bool_()))]
            for output in opened.partition.run(Epoch(self.epoch), EpochTimes(now_us=NOW_US), batches):
                found += [tuple(row.values()) for row in output.to_pylist()]
            opened.partition.commit()
        return found

    def checkpoint(self) -> None:
        parts: list[PartitionInfo] = []
        for opened in self.opened:
            opened.snapshots.trigger(CheckpointId(self.generation))
            (report,) = eventually(opened.snapshots.reports, "a report")
            assert report.info is not None, report.failure
            parts.append(report.info)
            opened.snapshots.heed(CheckpointId(self.generation), None)
        backend = self.opened[0].program.backend
        self.restore = Restore(
            checkpoint=CheckpointId(self.generation), epoch=Epoch(self.epoch), backend=backend, parts=parts
        )

    def stop(self) -> None:
        for opened in self.opened:
            opened.snapshots.close()
            opened.partition.task.close()
            opened.snapshots._backend.close()
        self.opened = []

    def entries(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Return all that the newest snapshot holds, by state; each partition's within its key groups."""
        assert self.restore is not None
        store = JobDirectory(open_store(f"file://{self.root}/storage"), "job")
        found: dict[str, list[tuple[bytes, bytes]]] = {}
        for part in self.restore.parts:
            fetch(store, part.files, self.root / "look")
            reader = open_reader(file_kind(self.restore.backend), self.root / "look")
            groups = range_of(part.index, MAX_PARALLELISM, self.parallelism)
            for state in reader.states:
                entries = list(reader.scan(state, range(MAX_PARALLELISM)))
                assert all(group_of(key) in groups for key, _ in entries)
                found.setdefault(state, []).extend(entries)
            reader.close()
            shutil.rmtree(self.root / "look")
        return found


lives = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(KINDS), st.booleans()), min_size=2, max_size=4)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=lives, seed=st.integers(0, 1000))
def test_lives_at_any_parallelism_and_on_any_backend(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, str, bool]], seed: int
) -> None:
    rng, model = random.Random(seed), Model()
    job = Job(tmp_path_factory.mktemp("rescale"))
    for parallelism, backend, moved in lives:
        job.start(parallelism, backend)
        for _ in range(2):
            # A key comes once an epoch: partitions answer in an order of their own.
            events = [(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in rng.sample(KEYS, 40)]
            wanted = {event[0]: repr(model.answer(*event)) for event in events}
            assert dict(job.run(events)) == wanted
        job.checkpoint()
        job.stop()
        if moved:
            shutil.rmtree(job.root / "local")
    before = job.entries()
    assert before["timers.processing"]
    assert before["ttl.processing"]
    job.start(rng.randint(1, 7), rng.choice(KINDS))
    job.run([])
    job.checkpoint()
    job.stop()
    assert job.entries() == before
    shutil.rmtree(job.root)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 1), (3, 2)])
def test_a_kill_in_the_middle_of_rescaling_leaves_nothing_behind(tmp_path: Path, before: int, after: int) -> None:
    job, model = Job(tmp_path), Model()
    job.start(before, "rocksdb")
    events = [(key, "set_value", n, 0) for n, key in enumerate(KEYS)]
    for event in events:
        model.answer(*event)
    job.run(events)
    job.checkpoint()
    job.stop()
    for place in ("keeper.restore.before", "keeper.restore.after", "keeper.restore.part"):

        def fail() -> None:
            raise UnavailableError("struck")

        failpoints.arm(place, fail)
        try:
            job.start(after, "rocksdb")
        except UnavailableError:
            pass
        else:
            assert place == "keeper.restore.part", "parts are read only where several become one"
            assert after > before
        failpoints.disarm_all()
        job.stop()
    job.start(after, "rocksdb")
    assert dict(job.run([(key, "read", 0, 0) for key in KEYS])) == {
        key: repr(model.answer(key, "read", 0, 0)) for key in KEYS
    }
    assert not list((tmp_path / "local").glob("*/*-part-*"))
    job.stop()
