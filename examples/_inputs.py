"""Small inputs for the examples: rows as a few JSON files, complete before any program reads them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def write_json(directory: Path, rows: Sequence[dict[str, Any]], files: int = 3) -> None:
    """Write rows as JSON files that a file source reads in this order."""
    directory.mkdir(parents=True)
    each = -(-len(rows) // files)
    for number in range(files):
        path = directory / f"{number:03d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[number * each : (number + 1) * each]))
        # A file source reads files by age, and these may all be made within one tick of the clock.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def in_temporary_directory(example: Callable[[Path], None]) -> None:
    """Run an example in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="strandline-example-") as directory:
        example(Path(directory))
