"""A snapshot restored at any other parallelism and on any other backend holds the same entries, each where it belongs."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from strandline.api.states import Value
from strandline.core import failpoints
from strandline.core.errors import UnavailableError
from strandline.runtime.program import Program
from strandline.snapshot.savepoints.take import FORMS, Form
from tests.runtime.bench import KINDS, OPS, Everything, Model, program
from tests.runtime.rescaling import KEYS, Job
from tests.soak import examples


def plain(entries: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return what a canonical savepoint keeps as it is: lists come back in other chunks, as the answers show."""
    return {state: found for state, found in entries.items() if found and state != "history"}


MODES = st.sampled_from(["incremental", "changelog", "continuous"])
lives = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from(KINDS), MODES, st.sampled_from(["", "moved", *FORMS])),
    min_size=2,
    max_size=4,
)


@examples(6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=lives, seed=st.integers(0, 1000))
def test_lives_at_any_parallelism_and_on_any_backend(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, str, str, Any]], seed: int
) -> None:
    rng, model = random.Random(seed), Model()
    job = Job(tmp_path_factory.mktemp("rescale"))
    for parallelism, backend, job.mode, then in lives:
        job.start(parallelism, backend)
        for _ in range(2):
            # A key comes once an epoch: partitions answer in an order of their own.
            events = [(key, rng.choice(OPS), rng.randrange(5), rng.randrange(5)) for key in rng.sample(KEYS, 40)]
            wanted = {event[0]: repr(model.answer(*event)) for event in events}
            assert dict(job.run(events)) == wanted
            job.checkpoint()
        job.stop()
        if then == "moved":
            shutil.rmtree(job.root / "local")
        elif then:
            before = job.entries()
            job.go_through_savepoint(then)
            job.start(parallelism + 1, backend)
            job.checkpoint()
            job.stop()
            assert plain(job.entries()) == plain(before)
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


def test_a_kill_in_the_middle_of_a_table_leaves_nothing_behind(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.start(2, "filesystem")
    job.run([(key, "set_value", n, 0) for n, key in enumerate(KEYS)])
    job.checkpoint()
    job.stop()
    job.go_through_savepoint("canonical")
    ended = subprocess.run([sys.executable, "-m", "tests.runtime.killed", tmp_path, "moved-savepoint-1"], check=False)
    assert ended.returncode == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "local" / "op-0").iterdir()}
    job.start(1, "rocksdb")
    there = {path.name for path in (tmp_path / "local" / "op-0").iterdir()}
    assert (len(left), there) == (3, {"db-2"}), left
    job.stop()


class Lasting(Everything):
    """What Timed is, with a state that does not expire, and tells it."""

    short = Value("bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        yield {"k": ctx.key, "answer": str(self.short.value)}


class Upgraded(Job):
    """From its second start on, nothing expires."""

    def program(self, **run: Any) -> Program:
        return super().program(**run) if self.restore is None else program(Lasting(), **run)


@pytest.mark.parametrize("form", FORMS)
def test_a_savepoint_of_state_that_expires_is_restored_where_nothing_does_any_more(tmp_path: Path, form: Form) -> None:
    job = Upgraded(tmp_path)
    job.start(2, "rocksdb")
    job.run([("k", "set_value", 5, 0)])
    job.checkpoint()
    job.stop()
    job.go_through_savepoint(form)
    job.start(1, "rocksdb")
    assert job.run([("k", "set_value", 6, 0)]) == [("k", "5")]
    job.stop()
