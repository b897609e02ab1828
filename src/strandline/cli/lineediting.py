"""Line editing of the SQL shell: completion of words, and a history that outlives the shell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_HISTORY = 1000
"""The lines that are kept."""


@contextlib.contextmanager
def line_editing(words: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Complete words with the tab key, and keep what was typed in a file of the user's cache."""
    try:
        import readline
    except ImportError:  # Python can be built without it.
        yield
        return
    file = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strandline" / "sql_history"

    def complete(text: str, state: int) -> str | None:
        matches = sorted({word for word in words() if word.lower().startswith(text.lower())})
        return matches[state] if state < len(matches) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n()=,;'\"`")
    # macOS has libedit in its place.
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_history_length(_HISTORY)
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
            file.chmod(0o600)
