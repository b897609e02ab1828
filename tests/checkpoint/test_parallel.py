"""Work beside its user: what fails is heard, and nothing is begun or still under way once the user is through."""

from __future__ import annotations

import threading

import pytest

from strandline.checkpoint import parallel
from strandline.checkpoint.parallel import BackgroundWork


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
