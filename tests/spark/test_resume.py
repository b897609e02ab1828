"""A keeper that dies while the job has local logs: another goes on with its state, and nothing else is restarted."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.backends.rocksdb import RocksDBBackend
from tests.spark import small
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark


def pids(run: sl.Run) -> set[int]:
    return {keeper.pid for keeper in run.status().keepers}


def wait_for_the_logs(case: Case, run: sl.Run) -> None:
    """Wait until the local log of each keeper has the last epoch: one that dies before that restarts the job."""

    def have_all() -> bool:
        marks = [int.from_bytes(path.read_bytes()[:8], "little") for path in case.local_dir.rglob("db-*-live/mark")]
        return marks == [run.status().epoch] * 2

    eventually(have_all, "the logs have the last epoch", 30)


@pytest.mark.parametrize("mode", ["changelog", "incremental"])
def test_a_keeper_that_dies_between_epochs_is_replaced_alone(spark: Any, case: Case, mode: Any) -> None:
    sink = sl.sinks.memory()
    users = [str(n) for n in range(50)]
    stream = sl.stream(small.source(spark, case.root / "in"))
    checkpoints = sl.Checkpoints(case.root / "ck", mode=mode, local_log=True)
    job = small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=checkpoints)
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [(user, "a", 1) for user in users])
        settle(run)
        for file in range(1, 4):
            # No checkpoint has what came since: it is in the local log alone.
            small.write_rows(case.root / "in", file, [(user, "a", 1) for user in users])
            run.process_all_available()
            wait_for_the_logs(case, run)
            before = pids(run)
            dead = min(before)
            os.kill(dead, signal.SIGKILL)
            eventually(lambda dead=dead: dead not in pids(run), "another keeper", 10)
            assert len(pids(run) & before) == 1
        small.write_rows(case.root / "in", 4, [(user, "a", 1) for user in users])
        settle(run)
        status = run.status()
        assert (status.restarts, status.replaced_keepers) == (0, 3)
        assert small.rows_of(sink) == small.counted(users * 5)


class Dying(sl.KeyedProcess):
    """Counts the events of a key, and ends its process at some: the first time, or each time."""

    count = sl.Value("bigint", default=0)

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        note = Path(self.notes) / f"{event.user}-{event.v}"
        if event.kind == "always" or (event.kind == "once" and not note.exists()):
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.count.value += 1
        yield ctx.key, self.count.value


def test_an_epoch_in_which_a_keeper_dies_comes_again(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    users = [str(n) for n in range(50)]
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(
        stream, case.root, case.local_dir, sink=sink, process=Dying(str(case.root)),
        checkpoints=sl.Checkpoints(case.root / "ck", every="300ms", mode="changelog"),
    )  # fmt: skip
    with job.start(spark) as run:
        for file in range(5):
            # In the middle of an epoch.
            rows = [(user, "once" if file and user == str(7 * file) else "a", file) for user in users]
            small.write_rows(case.root / "in", file, rows)
            run.process_all_available()
            wait_for_the_logs(case, run)
        settle(run)
        assert run.status().replaced_keepers == 4
        assert small.rows_of(sink) == small.counted(users * 5)
        # One that dies again in the same epoch is not replaced any more, and this job is not restarted.
        small.write_rows(case.root / "in", 5, [("1", "always", 1)])
        with pytest.raises(sl.errors.KeeperError, match="died"):
            run.await_termination(60)
        assert run.status().replaced_keepers == 5


class Last(sl.KeyedProcess):
    """Keeps the token that came last, and ends its process once, late in an epoch."""

    last = sl.Value("string")

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        note = Path(self.notes) / "died"
        if event.v == 1 and event.user == "7" and not note.exists():
            note.touch()
            # The other partition has applied the epoch meanwhile.
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        self.last.value = event.token
        yield ctx.key, event.token, event.v


class Stamping(sl.KeyedProcess):
    """Gives each event a token, another one each time, and writes to its log so late that the epoch is not in it."""

    token = sl.Value("string")

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        (Path(self.notes) / f"pid-{os.getpid()}").touch()
        if event.v == 1 and not (Path(self.notes) / "died").exists():
            RocksDBBackend.write = lambda backend, changes: time.sleep(60)  # type: ignore[method-assign]
        self.token.value = uuid.uuid4().hex
        yield ctx.key, int(event.user) % 7, self.token.value, event.v


class Ending(sl.KeyedProcess):
    """Keeps tokens, and ends the processes of the operator before it, and its own, once."""

    tokens = sl.Map("string", "string")

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        note = Path(self.notes) / "died"
        if event.v == 1 and ctx.key == 3 and not note.exists():
            note.touch()
            time.sleep(1)
            for path in Path(self.notes).glob("pid-*"):
                os.kill(int(path.name[4:]), signal.SIGKILL)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        self.tokens[event.user] = event.token
        yield event.user, event.token, event.v


TOKENS = "user string, token string, v bigint"


def check_tokens(spark: Any, case: Case, outputs: Sequence[Any], mode: Any, one: Any, two: Any) -> sl.Status:
    """Run two epochs; return the status, after both sinks have shown the same tokens."""
    job = sl.Job(
        "small", sinks=outputs, checkpoints=sl.Checkpoints(case.root / "ck", mode=mode, local_log=True),
        settings=sl.Settings(parallelism=2, local_dir=case.local_dir, state_memory="128MB"),
        restart=sl.Restart(attempts=5, delay="10ms"),
    )  # fmt: skip
    users = [str(n) for n in range(50)]
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [(user, "a", 0) for user in users])
        settle(run)
        small.write_rows(case.root / "in", 1, [(user, "a", 1) for user in users])
        status = settle(run)
    shown = [{(row.user, row.v): row.token for row in sink.rows} for sink in (one, two)]
    assert len(one.rows) == len(two.rows) == len(shown[0]) == 100
    assert shown[0] == shown[1]
    return status


def test_what_functions_gave_at_the_first_try_stays(spark: Any, case: Case) -> None:
    """A sink shows what a function gave, and the state has it: both have the same of two tries."""
    one, two = sl.sinks.memory(name="one"), sl.sinks.memory(name="two")
    stream = sl.stream(small.source(spark, case.root / "in"))
    stamped = stream.map(
        lambda event: {"user": event.user, "v": event.v, "token": uuid.uuid4().hex},
        output="user string, v bigint, token string",
    )
    last = stamped.key_by("user").process(Last(str(case.root)), output=TOKENS, uid="last")
    status = check_tokens(spark, case, [last.to(two), stamped.to(one)], "changelog", one, two)
    assert (status.restarts, status.replaced_keepers) == (0, 1)


def test_output_that_was_used_is_not_computed_again(spark: Any, case: Case) -> None:
    """A keeper dies before its log has an epoch whose output the next operator has applied: the job goes back."""
    one, two = sl.sinks.memory(name="one"), sl.sinks.memory(name="two")
    stream = sl.stream(small.source(spark, case.root / "in"))
    output = "user string, shard bigint, token string, v bigint"
    first = stream.key_by("user").process(Stamping(str(case.root)), output=output, uid="first")
    second = first.key_by("shard").process(Ending(str(case.root)), output=TOKENS, uid="second")
    status = check_tokens(spark, case, [first.to(one), second.to(two)], "incremental", one, two)
    assert status.restarts == 1
