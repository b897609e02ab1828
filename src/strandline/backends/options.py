"""The memory of a backend and the tuning of RocksDB. docs/design/0001-compaction.md justifies the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.core.errors import ConfigurationError

MIB = 1 << 20
LEAST_BYTES = 1 * MIB
"""The smallest size of a block cache, and of write buffers."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that one backend may use: for blocks that it has read, and for entries that it has not yet flushed."""

    block_cache_bytes: int
    write_buffer_bytes: int

    def __post_init__(self) -> None:
        for name in ("block_cache_bytes", "write_buffer_bytes"):
            if getattr(self, name) < LEAST_BYTES:
                raise ConfigurationError(
                    f"memory budget of a backend: {name} is {getattr(self, name)}, expected at least {LEAST_BYTES}",
                    hint="raise state_memory, or run fewer partitions on each machine",
                )

    @property
    def memtable_bytes(self) -> int:
        """The size at which a state's memtable is flushed: half the budget, so that one fills while one is flushed."""
        return self.write_buffer_bytes // 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """The layout and merging of files. Each figure trades uploads, reads and disk space against each other."""

    style: Literal["universal", "level"] = "universal"
    merge_trigger: int = 16
    """The number of sorted runs (files of level 0, then levels) from which on RocksDB considers a merge."""
    size_ratio: int = 10
    """Universal: a run joins a merge while it is at most this many percent larger than the newer runs together."""
    min_merge_width: int = 2
    max_merge_width: int = 0
    """Universal: the most runs in one merge; 0 is no limit."""
    max_space_percent: int = 80
    """Universal: garbage, in percent of the oldest run, at which everything is merged into one run."""
    level_multiplier: int = 10
    target_file_bytes: int = 128 * MIB
    blob_min_bytes: int = 0
    """Values of at least this size are stored in blob files; 0: none."""
    blob_gc_age: float = 0.25
    blob_gc_force: float = 1.0
    block_bytes: int = 4096
    bloom_bits: int = 10
    compression: Literal["none", "lz4"] = "lz4"


DEFAULT_TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Grouping:
    """The key prefixes of a state that is read group by group: keys with the same prefix are a group.

    The filters of files then contain the prefixes too. Without them, to find that a group has no entry takes a read of
    every file.
    """

    size_bytes: int
    """The length of the prefix in the filters; a group with a shorter prefix is read without filters."""
    exact: bool
    """True: the prefix of each group has this size."""
