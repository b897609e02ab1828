"""Autoscaler of a job whose parallelism follows the size of its cluster. It ignores changes that do not last."""

from __future__ import annotations

from collections import deque

from strandline.core.settings import FollowExecutors


class Autoscaler:
    """Decides a job's parallelism from observations of its cluster. The caller passes the time.

    If all observations of the last `follow.after_ms` exceed the parallelism, the job takes the least of them; if all
    are below it, the most. So the replacement of an executor within that time changes nothing, the job follows a
    cluster that grows for an hour step by step, and at least that time lies between two changes.
    """

    def __init__(self, follow: FollowExecutors) -> None:
        self._follow = follow
        self._since_ms: int | None = None
        self._observed: deque[tuple[int, int]] = deque()
        """Changes of the observed room: time and number of tasks."""

    def reset(self) -> None:
        """Forget all observations: the job has just changed, or could not change."""
        self._since_ms = None
        self._observed.clear()

    def observe(self, room: int, at_ms: int, now: int, most: int) -> int | None:
        """Record how many tasks the cluster runs at once; return the new parallelism, or None for no change.

        `now` is the current parallelism, `most` the maximum of the job's operators.
        """
        if room < 1:
            # Without executors, the job cannot change.
            self.reset()
            return None
        if self._since_ms is None:
            self._since_ms = at_ms
        wanted = min(self._follow.within(room), most)
        if not self._observed or self._observed[-1][1] != wanted:
            self._observed.append((at_ms, wanted))
        begin_ms = at_ms - self._follow.after_ms
        while len(self._observed) > 1 and self._observed[1][0] <= begin_ms:
            self._observed.popleft()
        if self._since_ms > begin_ms:
            return None
        numbers = [number for _, number in self._observed]
        if min(numbers) > now:
            return min(numbers)
        if max(numbers) < now:
            return max(numbers)
        return None
