"""When a job's parallelism follows the room that its cluster has: not each change, and never for a moment's."""

from __future__ import annotations

from collections import deque

from strandline.core.settings import FollowExecutors


class Following:
    """Decides from looks at a cluster. Time is what its caller says.

    For as long as `follow.after_ms`, all looks must have found more room than the job takes, and then it takes the
    least that was found; or all less, and then the most. So an executor that is replaced in that time changes nothing,
    a cluster that grows for an hour is followed all the while, and a change is followed by none for as long.
    """

    def __init__(self, follow: FollowExecutors) -> None:
        self._follow = follow
        self._since_ms: int | None = None
        self._found: deque[tuple[int, int]] = deque()
        """What was found, each from when on: changes alone."""

    def begin_anew(self) -> None:
        """Forget what was found: the job has just been changed, or could not be."""
        self._since_ms = None
        self._found.clear()

    def look(self, room: int, at_ms: int, now: int, most: int) -> int | None:
        """Take in how many tasks the cluster runs at once; return what the job is to go on with, if it has to change.

        `now` is what it has, `most` what its operators may have.
        """
        if room < 1:
            # Nothing runs: neither does the job, and it cannot be changed.
            self.begin_anew()
            return None
        if self._since_ms is None:
            self._since_ms = at_ms
        wanted = min(self._follow.within(room), most)
        if not self._found or self._found[-1][1] != wanted:
            self._found.append((at_ms, wanted))
        begin_ms = at_ms - self._follow.after_ms
        while len(self._found) > 1 and self._found[1][0] <= begin_ms:
            self._found.popleft()
        if self._since_ms > begin_ms:
            return None
        numbers = [number for _, number in self._found]
        if min(numbers) > now:
            return min(numbers)
        if max(numbers) < now:
            return max(numbers)
        return None
