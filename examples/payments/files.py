"""Payments as a directory of numbered files, the way a streaming file source wants them.

A file appears under its name in one step, complete, and with a modification time later than the one before it: a source
that reads files in order of time reads them in order of number. The payments of one card are in order within a file
and from file to file; where several files meet in one epoch, `key_by("card", order_by="payment_id")` keeps that order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from os import utime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from examples.payments.generator import World, payments
from examples.payments.model import Payment

Format = Literal["json", "parquet"]

_ARROW = pa.schema(
    [
        ("payment_id", pa.int64()),
        ("account", pa.string()),
        ("card", pa.string()),
        ("merchant", pa.string()),
        ("country", pa.string()),
        ("amount_cents", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
_MTIME_STEP_NS = 10_000_000


def write_files(
    directory: Path | str,
    stream: Iterator[Payment],
    *,
    files: int,
    per_file: int,
    pace_s: float = 0.0,
    format: Format = "json",
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Path]:
    """Write the stream's next payments as `files` files and yield each path once it is visible.

    Numbering goes on after the files that are already there. A file starts `pace_s` seconds after the one before.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    there = list_files(directory)
    number = int(there[-1].stem.split("-")[1]) if there else 0
    mtime_ns = there[-1].stat().st_mtime_ns if there else 0
    due = time.monotonic()
    for count in range(files):
        if count and pace_s:
            due += pace_s
            sleep(max(0.0, due - time.monotonic()))
        rows = list(islice(stream, per_file))
        if not rows:
            return
        number += 1
        mtime_ns = max(time.time_ns(), mtime_ns + _MTIME_STEP_NS)
        yield _publish(path_of(directory, number, format), rows, mtime_ns)


def list_files(directory: Path | str) -> list[Path]:
    """Return the directory's payment files in order of their number."""
    found = [path for path in Path(directory).glob("payments-*") if path.suffix in (".json", ".parquet")]
    return sorted(found, key=lambda path: path.stem)


def path_of(directory: Path, number: int, format: Format = "json") -> Path:
    """Return the path of a file; the first one is number 1."""
    return directory / f"payments-{number:06d}.{format}"


def read_files(directory: Path | str) -> Iterator[Payment]:
    """Yield every payment in the directory, in the order in which they were written."""
    for path in list_files(directory):
        yield from read_file(path)


def read_file(path: Path) -> Iterator[Payment]:
    """Yield the payments of one file."""
    if path.suffix == ".parquet":
        for row in pq.read_table(path, schema=_ARROW).to_pylist():
            yield Payment(**row)
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Payment(**{**row, "ts": datetime.fromisoformat(row["ts"])})


def _publish(path: Path, rows: list[Payment], mtime_ns: int) -> Path:
    # File sources pass over names that start with a dot, and a rename within a directory is atomic.
    hidden = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=_ARROW), hidden)
    else:
        hidden.write_text("".join(_json_line(row) for row in rows), encoding="utf-8")
    utime(hidden, ns=(mtime_ns, mtime_ns))
    return hidden.rename(path)


def _json_line(payment: Payment) -> str:
    row: dict[str, Any] = payment._asdict()
    row["ts"] = payment.ts.isoformat(timespec="milliseconds")
    return json.dumps(row, separators=(",", ":")) + "\n"


def main() -> None:
    """Write payment files into a directory until enough are there or the process is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.payments.files", description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cards", type=int, default=2_000)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--per-file", type=int, default=5_000)
    parser.add_argument("--after", type=int, default=0, help="how many payments are there already, from other files")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds from one file to the next")
    parser.add_argument("--format", choices=("json", "parquet"), default="json")
    given = parser.parse_args()
    stream = islice(payments(World(seed=given.seed, cards=given.cards)), given.after, None)
    written = write_files(
        given.directory, stream, files=given.files, per_file=given.per_file, pace_s=given.pace, format=given.format
    )
    try:
        for path in written:
            print(path, flush=True)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
