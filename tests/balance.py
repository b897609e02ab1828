"""Which of pytest-xdist's processes gets which files: those that need a JVM come to as few as keep the machine busy.

A JVM is slow for its first hundred epochs, and each process has one of its own. So the last of three or more processes
runs files that need no session of its own, as long as there are any.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling

_ROOT = Path(__file__).parent.parent
_ASKS = re.compile(r"\bspark: Any\b|def test_\w+\((?:[^()]*,)?\s*spark\b")


class FewSessions(LoadFileScheduling):  # type: ignore[misc]
    """A file runs in one process; one of the processes gets those that need no session first."""

    def _assign_work_unit(self, node: Any) -> None:
        if len(self.nodes) > 2 and node is self.nodes[-1]:
            without = next((scope for scope in self.workqueue if not needs_session(scope)), None)
            if without is not None:
                self.workqueue.move_to_end(without, last=False)
        super()._assign_work_unit(node)


@cache
def needs_session(file: str) -> bool:
    """Whether tests of a file ask for the process' session."""
    return _ASKS.search((_ROOT / file).read_text()) is not None
