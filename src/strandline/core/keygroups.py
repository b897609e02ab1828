"""Key groups, which assign keys to partitions. Flink's formulas, tested against shared vectors."""

from __future__ import annotations

from strandline.core.errors import ConfigurationError
from strandline.core.ids import KeyGroup, Partition

MIN_MAX_PARALLELISM = 128
MAX_MAX_PARALLELISM = 32768
BROADCAST_GROUP = 0xFFFF
"""The group of entries that are the same in all partitions. No key hashes to it."""
BROADCAST_GROUPS = range(BROADCAST_GROUP, BROADCAST_GROUP + 1)


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default: one and a half times the parallelism, rounded up to a power of two, within limits."""
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, MIN_MAX_PARALLELISM), MAX_MAX_PARALLELISM)


def partition_of(key_group: KeyGroup, max_parallelism: int, parallelism: int) -> Partition:
    """Return the partition that owns a key group."""
    return Partition(key_group * parallelism // max_parallelism)


def range_of(partition: Partition, max_parallelism: int, parallelism: int) -> range:
    """Return the key groups that a partition owns, at least one."""
    first = -(-partition * max_parallelism // parallelism)
    last = ((partition + 1) * max_parallelism - 1) // parallelism
    return range(first, last + 1)


def check_parallelism(uid: str, parallelism: int, max_parallelism: int) -> None:
    """Raise ConfigurationError for a parallelism that the key groups do not allow; `uid` is "" for that of a job."""
    of = f"operator '{uid}': " if uid else ""
    if not 1 <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise ConfigurationError(
            f"{of}max_parallelism is {max_parallelism}, expected 1 to {MAX_MAX_PARALLELISM}",
            hint="leave it out to get a default that fits the parallelism",
        )
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"{of}parallelism is {parallelism}, expected 1 to max_parallelism ({max_parallelism})",
            hint="lower the parallelism, or give a larger max_parallelism before the job's first start",
        )


def first_key(group: int) -> bytes:
    """Return the lowest key bytes that a key group can have."""
    return group.to_bytes(2, "big")


def group_of(key: bytes) -> int:
    """Return the key group of key bytes."""
    return int.from_bytes(key[:2], "big")
