"""Work beside its user: what fails is heard, and nothing is begun or still under way once the user is through."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from strandline.checkpoint import parallel
from strandline.checkpoint.parallel import BackgroundWork, in_parallel


def test_all_is_done_when_it_is_left() -> None:
    done: list[int] = []
    with BackgroundWork(done.append) as work:
        for item in range(100):
            work.put(item)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("failing", [0, 50, 99])
def test_what_fails_is_heard_at_the_latest_when_it_is_left(failing: int) -> None:
    def fail(item: int) -> None:
        if item == failing:
            raise ValueError(item)

    def put_all() -> None:
        with BackgroundWork(fail) as work:
            for item in range(100):
                work.put(item)

    with pytest.raises(ValueError, match=f"^{failing}$"):
        put_all()


def test_few_wait_and_what_waits_is_not_begun_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_THREADS", 2)
    monkeypatch.setattr(parallel, "_WAITING", 4)
    go_on, begun, ended = threading.Event(), [], []

    def wait(item: int) -> None:
        begun.append(item)
        assert go_on.wait(30)
        ended.append(item)

    def put_all() -> None:
        with BackgroundWork(wait) as work:
            for item in range(4):
                work.put(item)
            threading.Timer(0.05, go_on.set).start()
            raise KeyError("something else")

    with pytest.raises(KeyError, match="something else"):
        put_all()
    assert sorted(begun) == sorted(ended)
    assert len(begun) <= 2

    go_on.clear()
    put: list[int] = []

    def put_more() -> None:
        with BackgroundWork(wait) as work:
            for item in range(6):
                work.put(item)
                put.append(item)

    thread = threading.Thread(target=put_more)
    thread.start()
    while len(put) < 4:
        thread.join(0.01)
    thread.join(0.1)
    # The fifth waits for the first.
    assert put == [0, 1, 2, 3]
    go_on.set()
    thread.join(30)
    assert sorted(ended[-6:]) == list(range(6))


def test_items_are_done_at_the_same_time_and_their_results_are_in_order() -> None:
    together = threading.Barrier(4)

    def meet(item: int) -> int:
        together.wait(30)
        return -item

    assert in_parallel(meet, range(8)) == [-item for item in range(8)]
    assert in_parallel(str, []) == []


def test_nothing_is_begun_after_an_error_and_what_runs_ends_before_it_is_raised() -> None:
    begun, ended = [], []

    def fail(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise ValueError(item)
        time.sleep(0.05)
        ended.append(item)

    with pytest.raises(ValueError, match=r"^3$"):
        in_parallel(fail, range(100))
    assert sorted([*ended, 3]) == sorted(begun)
    assert len(begun) < 10


@pytest.mark.parametrize("error", [None, RuntimeError, MemoryError])
def test_no_helper_is_waited_for_that_does_not_begin(
    error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that lacks memory ends before it has begun, and then Thread.start() never returns."""

    def end_at_once(*_: Any) -> None:
        if error is not None:
            raise error

    def never_return(_: Any) -> None:
        pytest.fail("a checkpoint would wait for ever")

    monkeypatch.setattr("_thread.start_new_thread", end_at_once)
    monkeypatch.setattr(threading.Thread, "start", never_return)
    assert in_parallel(abs, [-1, -2, -3]) == [1, 2, 3]
