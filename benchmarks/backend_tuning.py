"""What an incremental checkpoint of the RocksDB backend costs under several tunings: uploads, disk, reads.

One backend is loaded with random keys, then a share of them is overwritten before each of many checkpoints. Merging
may come to rest between checkpoints, as it does where they are seconds apart. One JSON object a line goes to standard
output, progress to standard error.

    python -m benchmarks.backend_tuning --keys 5000000 --checkpoints 20 chosen level10 blob
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from strandline.backends.base import LocalFile
from strandline.backends.options import DEFAULT_TUNING, MIB, MemoryBudget, Tuning
from strandline.backends.rocksdb import RocksDBBackend

STATE = "state"
NOISE = os.urandom(16 * MIB)


def _universal(trigger: int, ratio: int, space: int, width: int = 0, least: int = 2) -> Tuning:
    return replace(
        DEFAULT_TUNING,
        style="universal",
        merge_trigger=trigger,
        size_ratio=ratio,
        max_space_percent=space,
        max_merge_width=width,
        min_merge_width=least,
    )


TUNINGS = {
    "chosen": DEFAULT_TUNING,
    "rocksdb-universal": _universal(4, 1, 200),
    "level10": replace(DEFAULT_TUNING, style="level", merge_trigger=4, target_file_bytes=64 * MIB),
    "level10-l0x10": replace(DEFAULT_TUNING, style="level", merge_trigger=10, target_file_bytes=64 * MIB),
    "level40-l0x10": replace(
        DEFAULT_TUNING, style="level", merge_trigger=10, level_multiplier=40, target_file_bytes=16 * MIB
    ),
    "blob": replace(DEFAULT_TUNING, blob_min_bytes=64),
    "blob-gc-half": replace(DEFAULT_TUNING, blob_min_bytes=64, blob_gc_age=0.5, blob_gc_force=0.3),
}
for _trigger in (4, 6, 8, 10, 12, 16):
    for _ratio in (1, 10, 50, 100):
        for _space in (25, 50, 60, 80, 100):
            TUNINGS[f"u{_trigger}-r{_ratio}-s{_space}"] = _universal(_trigger, _ratio, _space)


@dataclass(frozen=True)
class Load:
    """The state and how it changes."""

    keys: int
    value_bytes: int
    share: float
    checkpoints: int
    memory: MemoryBudget

    def changes(self, indexes: Iterator[int] | range) -> Iterator[tuple[bytes, bytes]]:
        top = len(NOISE) - self.value_bytes
        for index in indexes:
            at = random.randrange(top)
            yield _key(index), NOISE[at : at + self.value_bytes]


def _key(index: int) -> bytes:
    """Return 10 bytes: key group, then a key whose order is not that of the load."""
    mixed = index * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 57).to_bytes(2, "big") + mixed.to_bytes(8, "big")


def _rest(backend: RocksDBBackend) -> None:
    """Wait until no merge runs and none is about to start."""
    quiet = 0
    while quiet < 3:
        time.sleep(0.02)
        quiet = 0 if backend.metrics()["running_merges_count"] else quiet + 1


def _fill(backend: RocksDBBackend, load: Load) -> None:
    step = 500_000
    for first in range(0, load.keys, step):
        backend.write({STATE: load.changes(range(first, min(first + step, load.keys)))})
        print(f"  loaded {first + step:,}", file=sys.stderr)


def _read_us(backend: RocksDBBackend, load: Load) -> float:
    """Return microseconds a key of reading 10,000 random keys, blocks cached as far as they fit."""
    times = []
    for _ in range(9):
        keys = [_key(random.randrange(load.keys)) for _ in range(10_000)]
        started = time.perf_counter()
        found = backend.get_many(STATE, keys)
        times.append((time.perf_counter() - started) / len(keys) * 1e6)
        assert None not in found
    return statistics.median(times[2:])


def measure(tuning: Tuning, load: Load, directory: Path) -> dict[str, float]:
    """Run one tuning and return its figures."""
    backend = RocksDBBackend(directory / "db", [STATE], memory=load.memory, tuning=tuning)
    _fill(backend, load)
    backend.persist({}, directory / "loaded")
    _rest(backend)  # what merging the load costs is not the price of an increment
    known = {file.name for file in backend.persist({}, directory / "first") if file.shared}
    for name in ("loaded", "first"):
        shutil.rmtree(directory / name)
    before = backend.metrics()
    delta_bytes = int(load.keys * load.share) * (10 + load.value_bytes)
    state_bytes = load.keys * (10 + load.value_bytes)
    shares, pauses, disk = [], [], []
    for number in range(load.checkpoints):
        changed = random.sample(range(load.keys), int(load.keys * load.share))
        backend.write({STATE: load.changes(iter(changed))})
        started = time.perf_counter()
        files = backend.persist({}, directory / "snapshot")
        pauses.append((time.perf_counter() - started) * 1000)
        shared = [file for file in files if file.shared]
        shares.append(_new_bytes(shared, known) / state_bytes * 100)
        disk.append(sum(file.size_bytes for file in shared) / state_bytes)
        known = {file.name for file in shared}
        shutil.rmtree(directory / "snapshot")
        _rest(backend)
        print(f"  checkpoint {number}: {shares[-1]:.1f} %, {len(shared)} files", file=sys.stderr)
    after = backend.metrics()
    written = sum(after[name] - before[name] for name in ("flush_written_bytes", "compaction_written_bytes"))
    figures = {
        "upload_mean_percent": statistics.mean(shares),
        "upload_median_percent": statistics.median(shares),
        "upload_max_percent": max(shares),
        "uploaded_per_byte_changed": statistics.mean(shares) * state_bytes / 100 / delta_bytes,
        "write_amplification": written / (delta_bytes * load.checkpoints),
        "space_amplification_max": max(disk),
        "pause_median_ms": statistics.median(pauses),
        "pause_max_ms": max(pauses),
        "table_readers_percent": after["table_readers_bytes"] / state_bytes * 100,
        "files": len(shared),
        "read_us": _read_us(backend, load),
    }
    backend.close()
    return figures


def _new_bytes(files: list[LocalFile], known: set[str]) -> int:
    return sum(file.size_bytes for file in files if file.name not in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tunings", nargs="*", default=["chosen"], choices=TUNINGS, metavar="tuning")
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.01, help="part of the keys overwritten before each checkpoint")
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--cache-mib", type=int, default=256)
    parser.add_argument("--buffer-mib", type=int, default=64)
    given = parser.parse_args()
    memory = MemoryBudget(given.cache_mib * MIB, given.buffer_mib * MIB)
    load = Load(given.keys, given.value_bytes, given.share, given.checkpoints, memory)
    for name in given.tunings:
        print(name, file=sys.stderr)
        random.seed(name + "1")
        with tempfile.TemporaryDirectory() as directory:
            figures = measure(TUNINGS[name], load, Path(directory))
        for metric, value in figures.items():
            line = {"benchmark": "backend_tuning", "subject": name, "metric": metric, "value": round(value, 3)}
            print(json.dumps({**line, "keys": load.keys, "checkpoints": load.checkpoints}), flush=True)
        print(json.dumps({"tuning": asdict(TUNINGS[name])}), file=sys.stderr)


if __name__ == "__main__":
    main()
