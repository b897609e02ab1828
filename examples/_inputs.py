"""What the examples share: inputs, a few JSON files that are complete before a program reads them, and printing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def write_json(directory: Path, rows: Sequence[dict[str, Any]], files: int = 2) -> None:
    """Write rows as JSON files that a file source reads in this order."""
    directory.mkdir(parents=True)
    each = -(-len(rows) // files)
    for number in range(files):
        path = directory / f"{number:03d}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[number * each : (number + 1) * each]))
        # A file source reads files by age, and these may all be made within one tick of the clock.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read_json(directory: Path) -> list[dict[str, Any]]:
    """Return the rows that a job has shown in a directory of JSON files, in the order of the epochs."""
    return [json.loads(line) for path in sorted(directory.glob("part-*")) for line in path.read_text().splitlines()]


def show(directory: Path, *columns: str, at_most: int = 12) -> None:
    """Print what a job has shown, or some columns of it."""
    rows = read_json(directory)
    for row in rows[:at_most]:
        print("  ".join(f"{name}={row.get(name)}" for name in columns or row))
    print(f"… {len(rows)} rows" if len(rows) > at_most else f"{len(rows)} rows")


def in_temporary_directory(example: Callable[[Path], None]) -> None:
    """Run an example in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="strandline-example-") as directory:
        example(Path(directory))
