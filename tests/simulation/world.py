"""Virtual time, and actors that take turns: a seed decides everything, and no two actors run at once.

An actor is a thread that runs only while it holds the turn, and gives it back whenever it sleeps, as each call of the
storage lets it do. So two drivers' calls of the storage mix in any order, and each order can be repeated.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from itertools import count


class Killed(BaseException):
    """An actor was killed: raised in it by everything that takes time."""


class World:
    """The clock, what happens next, and a trace of what has happened."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trace: deque[str] = deque(maxlen=40)
        self.violation: BaseException | None = None
        self._now_ms = self._start_ms = 1_700_000_000_000.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = threading.Semaphore(0)
        self.current: Actor | None = None
        self.actors: list[Actor] = []

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        return self._now_ms

    @property
    def passed_s(self) -> float:
        return (self._now_ms - self._start_ms) / 1000

    def at(self, after_ms: float, act: Callable[[], None]) -> None:
        """Let something happen after a time."""
        heapq.heappush(self._events, (self._now_ms + after_ms, next(self._order), act))

    def note(self, text: str) -> None:
        who = self.current.name if self.current else "-"
        self.trace.append(f"{self.passed_s:12.3f} s  {who:10} {text}")

    def run(self, until_s: float) -> None:
        """Let time pass. Raises the first error of an actor."""
        while self._events and self.violation is None and self.passed_s <= until_s:
            self._now_ms, _, act = heapq.heappop(self._events)
            act()
        if self.violation is not None:
            raise self.violation

    def resume(self, actor: Actor) -> None:
        """Give an actor the turn until it sleeps or ends."""
        self.current = actor
        actor.turn.release()
        self._turn.acquire()
        self.current = None

    def sleep(self, ms: float) -> None:
        """Let time pass for the actor that has the turn; others run meanwhile. Raises Killed."""
        actor = self.current
        if actor is None:
            return
        if not actor.killed:
            self.at(ms, lambda: self.resume(actor))
            self._turn.release()
            actor.turn.acquire()
        if actor.killed:
            raise Killed

    def kill_all(self) -> None:
        """End every actor, so that no thread is left."""
        for actor in self.actors:
            actor.killed = True
            if not actor.ended:
                self.resume(actor)

    def end(self, error: BaseException | None) -> None:
        """End the actor that has the turn."""
        self.violation = self.violation or error
        self._turn.release()


class Actor:
    """A thread of the simulation."""

    def __init__(self, world: World, name: str, act: Callable[[], None]) -> None:
        self.name, self.killed, self.ended = name, False, False
        self.turn = threading.Semaphore(0)
        self._world, self._act = world, act
        world.actors = [*(each for each in world.actors if not each.ended), self]
        threading.Thread(target=self._run, name="test-actor", daemon=True).start()
        world.at(0, lambda: world.resume(self))

    def _run(self) -> None:
        self.turn.acquire()
        error: BaseException | None = None
        try:
            self._act()
        except Killed:
            pass
        except BaseException as caught:
            error = caught
        self.ended = True
        self._world.end(error)
