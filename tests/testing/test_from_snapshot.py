"""A harness that begins with a snapshot of a job: what it restores, refuses, and leaves alone."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import strandline as sl
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, IncompatibleStateError, NotFoundError
from strandline.core.ids import Partition
from strandline.core.settings import BackendName
from strandline.core.times import END_US
from strandline.plan.upgrade import Migration
from strandline.replay.recorded import find_origin
from strandline.snapshot.savepoints.take import Form
from strandline.storage.remote import open_store
from strandline.testing import Harness, events, from_snapshot
from strandline.testing.stored import StoredState, save
from strandline.types.scalars import timestamp_to_us
from tests.runtime.bench import ANSWERS, EVENTS
from tests.runtime.rescaling import KEYS, NOW_US, Timed
from tests.snapshot.helpers import tree
from tests.snapshot.stateful import checkpoint_of, savepoint_of

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
CARDS = {"schema": "card string, amount bigint, ts timestamp", "key": "card", "event_time": "ts", "uid": "totals"}
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)


class Total(sl.KeyedProcess):
    """Adds amounts up, and says the sum ten seconds after the first one."""

    total = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        if not self.total.value:
            ctx.timers.set(ctx.timestamp + dt.timedelta(seconds=10))
        self.total.value += event.amount
        yield ctx.key, self.total.value, ctx.is_late

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, self.total.value, False


class Wide(Total):
    total = sl.Value("bigint", default=0)


class Narrow(Total):
    total = sl.Value("string", default="")


OUTPUT = "card string, total bigint, late boolean"


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


def saved(folder: Path, harness: Harness, **watermarks: int) -> Path:
    """Write the state of a harness as the savepoint of a job."""
    run = harness._run
    parts = list(run._partitions.values())
    backend = run._backend
    infos = [each.operator.info(backend) for each in parts]
    files = {info.uid: each.snapshot() for info, each in zip(infos, parts, strict=True)}
    times = harness._times.stored() | watermarks
    save("job", harness._epoch, infos, files, folder, now_us=timestamp_to_us(harness.now), watermarks=times)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """Two partitions of totals, after an epoch with the watermark at the fifth second."""
    with Harness(Total(), **CARDS, output=OUTPUT, parallelism=2, backend="rocksdb") as h:
        h.advance_clock("1h")
        h.push(("a", 5, at(3)), ("b", 7, at(9)))
        h.advance_watermark(at(5))
        return saved(tmp_path / "savepoint", h)


def test_state_timers_and_times_go_on(savepoint: Path) -> None:
    with from_snapshot(savepoint, Total(), **CARDS, output=OUTPUT) as h:
        assert (h.epoch, h.watermark, h.now) == (3, at(5), START + dt.timedelta(hours=1))
        assert (h.state("a"), h.timers("b")) == ({"total": 5}, [at(19)])
        assert sorted(h.push(("a", 1, at(4)), ("c", 1, at(8)))) == [("a", 6, True), ("c", 1, False)]
        assert h.advance_watermark(at(15)) == [("a", 6, False)]
        h.crash()
        assert (h.state("a"), h.state("c"), h.watermark, h.output) == ({"total": 5}, {"total": 0}, at(5), [])
        h.push(("c", 1, at(8)))
        later = h.snapshot()
        h.push(("c", 1, at(8)))
        h.crash()
        assert h.state("c") == {"total": 1}
        h.restore(None)
        assert h.state("c") == {"total": 0}
        h.restore(later)
        assert h.state("c") == {"total": 1}


def test_the_check_of_an_upgrade_is_made(savepoint: Path) -> None:
    with from_snapshot(savepoint, Wide(), **CARDS, output=OUTPUT, parallelism=3, backend="memory") as h:
        assert h.push(("b", 2**40, at(6))) == [("b", 2**40 + 7, False)]
        h.crash()
        assert h.state("b") == {"total": 7}
    with pytest.raises(IncompatibleStateError, match="the type of state 'total' is string, was int"):
        from_snapshot(savepoint, Narrow(), **CARDS, output=OUTPUT)

    class Forgets(sl.KeyedProcess):
        def on_event(self, event: Any, ctx: Any) -> Any:
            yield ctx.key, 0, False

    with pytest.raises(IncompatibleStateError, match="the state 'total' is not declared any more"):
        from_snapshot(savepoint, Forgets(), **CARDS, output=OUTPUT)
    drop = ["totals.total", "totals.timers.event", "totals.timers.processing"]
    with from_snapshot(savepoint, Forgets(), **CARDS, output=OUTPUT, drop=drop) as h:
        assert h.push(("a", 1, at(6))) == [("a", 0, False)]
    with pytest.raises(NotFoundError, match="no operator 'sums' in the snapshot, which has totals"):
        from_snapshot(savepoint, Total(), **{**CARDS, "uid": "sums"}, output=OUTPUT)


def test_a_whole_pipeline_must_have_all_operators(tmp_path: Path) -> None:
    def sums() -> sl.KeyedStream:
        return events("card string, amount int, ts timestamp").watermark("ts").key_by("card")

    tens = sums().window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="tens")
    with Harness(tens.key_by("card").agg(most=sl.agg.max("amount"), uid="most")) as h:
        h.push(("a", 1, at(3)), ("a", 2, at(12)))
        h.tick()
        path = saved(tmp_path / "both", h)
        expected = h.advance_watermark(at(30))
    tens = sums().window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="tens")
    with pytest.raises(IncompatibleStateError, match="the program has no operator with uid 'most'"):
        from_snapshot(path, tens)
    with from_snapshot(path, tens.key_by("card").agg(most=sl.agg.max("amount"), uid="most")) as h:
        assert h.state("a", "tens") == {"results": [("a", at(10), at(20), 2)]}
        assert h.advance_watermark(at(30)) == expected == [("a", 2)]


def test_operators_behind_a_function_have_their_state(tmp_path: Path) -> None:
    chain = {"key": "card", "output": OUTPUT.replace(", late boolean", ""), "uid": "sums"}

    class Sum(sl.KeyedProcess):
        sum = sl.Value("bigint", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.sum.value += event.total
            yield ctx.key, self.sum.value

    with Harness(Total(), **CARDS, output=OUTPUT).then(Sum(), **chain) as h:
        h.push(("a", 5, at(1)))
        path = saved(tmp_path / "chain", h)
    with from_snapshot(path, Total(), **CARDS, output=OUTPUT).then(Sum(), **chain) as h:
        assert h.push(("a", 1, at(1))) == [("a", 11)]
        h.crash()
        assert h.push(("a", 1, at(1))) == [("a", 11)]


def test_a_drained_job_is_reopened(tmp_path: Path) -> None:
    with Harness(Total(), **CARDS, output=OUTPUT) as h:
        h.push(("a", 5, at(1)))
        path = saved(tmp_path / "drained", h, watermark=END_US)
    with pytest.raises(ConfigurationError, match="job 'job' was drained"):
        from_snapshot(path, Total(), **CARDS, output=OUTPUT)
    with from_snapshot(path, Total(), **CARDS, output=OUTPUT, reopen=True) as h:
        assert h.push(("a", 1, at(1))) == [("a", 6, False)]


@pytest.mark.parametrize("form", ["checkpoint", "canonical", "native"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_snapshots_of_jobs_are_only_read(tmp_path: Path, form: Form | str, backend: BackendName) -> None:
    """A checkpoint in its job's folder, where a reader could write pins, and savepoints of it."""
    path = checkpoint_of(tmp_path, backend)
    if form != "checkpoint":
        path = savepoint_of(path, form)  # type: ignore[arg-type]
    (tmp_path / "storage/job/generations").mkdir(exist_ok=True)
    before = tree(tmp_path)
    with from_snapshot(path, Timed(), schema=EVENTS, key="k", output=ANSWERS, uid="op") as h:
        states = [h.state(key) for key in KEYS]
        assert len({str(state) for state in states}) > 1
        assert h.now == dt.datetime.fromtimestamp(NOW_US / 1e6, dt.UTC)
        h.advance_clock("2h")
        h.crash()
        assert [h.state(key) for key in KEYS] == states
    assert tree(tmp_path) == before


def test_a_restore_has_the_options_of_its_storage(tmp_path: Path) -> None:
    """A replay of a job whose storage has credentials in its options could not read the state."""
    url, options = str(checkpoint_of(tmp_path)), {"region": "eu-north-1"}
    jobdir = JobDirectory(open_store(str(tmp_path / "storage")), "job")
    origin = find_origin(jobdir, url, options)
    assert origin.manifest is not None
    operator: Any = SimpleNamespace(uid="op", migration=Migration(origin.manifest.operators[0]))
    for restoring in (origin.restoring([operator]), StoredState.open(url, options).restoring([operator])):
        program: Any = SimpleNamespace(uid="op")
        restore = restoring(program, Partition(0), tmp_path / "database")
        assert restore is not None
        assert restore.restore.place is not None
        assert restore.restore.place.options == options


def test_a_checkpoint_that_its_job_deletes_meanwhile(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path)
    stored = StoredState.open(path)
    for file in (tmp_path / "storage/job").rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(NotFoundError, match="the snapshot was deleted while it was read"):
        Harness(Timed(), schema=EVENTS, key="k", output=ANSWERS, uid="op", stored=stored)
