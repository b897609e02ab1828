"""Samples of a thread's stacks: what is counted, as which function, and that nothing goes on afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from strandline.keeper import sampling
from strandline.keeper.sampling import Sampler, Samples


@contextmanager
def working(work: Callable[[threading.Event], object]) -> Iterator[Sampler]:
    """Have a thread work in one function until the end of the block; yield the sampler that it has made."""
    over, made, begun = threading.Event(), [], threading.Event()

    def run() -> None:
        made.append(Sampler())
        begun.set()
        work(over)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        yield made[0]
    finally:
        over.set()
        thread.join()


def outer(over: threading.Event) -> None:
    while not over.is_set():
        inner(20_000)


def inner(count: int) -> int:
    return sum(n * n for n in range(count))


def taken(sampler: Sampler, least: int) -> Samples:
    """Take at least so many samples."""
    samples = Samples(0, 0, 0, 0, [], [], [])
    while samples.count < least:
        sampler.begin(60)
        time.sleep(0.3)
        samples = sampler.take() or samples
    return samples


def test_functions_are_counted_where_they_are() -> None:
    with working(outer) as sampler:
        samples = taken(sampler, 5)
    stacks = [([samples.names[at] for at in positions], count) for positions, count in samples.stacks]
    assert sum(count for _, count in stacks) == samples.count
    assert (samples.idle, samples.waiting) == (0, 0)
    within: Counter[str] = Counter()
    for stack, count in stacks:
        within.update(dict.fromkeys(stack, count))
    # A generator's frame may be seen just before Python has linked it with its caller's.
    assert within[f"{__name__}.outer"] > samples.count / 2
    assert within[f"{__name__}.inner"] > samples.count / 2
    deepest = {stack[-1] for stack, _ in stacks}
    assert all(name.startswith("line ") for name in deepest), deepest
    own = {samples.names[at] for at in samples.program}
    assert {f"{__name__}.outer", f"{__name__}.inner"} <= own
    assert not any(name.startswith(("line ", "threading.")) for name in own)
    assert any(stack[-2].startswith(f"{__name__}.inner") for stack, _ in stacks)


def test_samples_end_by_themselves_and_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LONGEST_S", 0.05)
    with working(outer) as sampler:
        assert sampler.take() is None
        sampler.begin(60)
        while any(thread.name == "strandline-samples" for thread in threading.enumerate()):
            time.sleep(0.01)
        samples = sampler.take()
        assert samples.seconds > 0.04
        assert sampler.take() is None
        sampler.begin(60)
        sampler.begin(60)
        assert [thread.name for thread in threading.enumerate()].count("strandline-samples") == 1
        sampler.take()
    assert not any(thread.name == "strandline-samples" for thread in threading.enumerate())


def deep(over: threading.Event, levels: int) -> None:
    if levels:
        deep(over, levels - 1)
    else:
        over.wait()


def test_deep_and_many_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with working(lambda over: deep(over, 400)) as sampler:
        samples = taken(sampler, 3)
    assert max(len(positions) for positions, _ in samples.stacks) == sampling._DEEPEST
    monkeypatch.setattr(sampling, "_MOST_STACKS", 1)
    with working(outer) as sampler:
        sampler.begin(60)
        while sampler._running is None or len(sampler._running._stacks) < 2:
            time.sleep(0.01)
        samples = sampler.take() or samples
    assert len(samples.stacks) == 2
    assert sampling._LEFT_OFF in samples.names


class Held:
    """A value that tells when it is gone."""

    gone = False

    def __del__(self) -> None:
        Held.gone = True


def test_a_sample_keeps_no_value_alive() -> None:
    def hold(over: threading.Event) -> None:
        held = Held()
        over.wait()
        del held

    with working(hold) as sampler:
        taken(sampler, 3)
        sampler.begin(60)
        time.sleep(0.1)
    assert Held.gone
    sampler.take()
    assert sys.getswitchinterval() > 0
