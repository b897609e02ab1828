"""RocksDB's options for a memory budget and a tuning."""

from __future__ import annotations

import resource

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    ReadOptions,
    SliceTransform,
    UniversalCompactOptions,
    WriteBufferManager,
    WriteOptions,
)

from strandline.backends.options import MIB, Grouping, MemoryBudget, Tuning

_GROUP_FILTER_SHARE = 0.02
"""The share of a memtable's size that its Bloom filter of groups takes."""


def family_options(
    cache: Cache, buffers: WriteBufferManager, memory: MemoryBudget, tuning: Tuning, grouping: Grouping | None = None
) -> Options:
    """Return the options of a column family, or of the database, without statistics."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 * MIB)
    options.set_manifest_preallocation_size(64 << 10)
    options.set_max_manifest_file_size(1 * MIB)
    options.set_max_open_files(_open_files())
    options.set_skip_stats_update_on_db_open(True)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(memory.memtable_bytes)
    options.set_max_write_buffer_number(4)
    options.set_compression_type(getattr(DBCompressionType, tuning.compression)())
    options.set_block_based_table_factory(_table_options(cache, tuning))
    _set_compaction(options, tuning)
    if tuning.blob_min_bytes:
        _set_blobs(options, tuning)
    if grouping is not None:
        options.set_prefix_extractor(SliceTransform.create_max_len_prefix(grouping.size_bytes))
        options.set_memtable_prefix_bloom_ratio(_GROUP_FILTER_SHARE)
    return options


def set_log(options: Options) -> None:
    """Have RocksDB repeat whole logs alone: by default it leaves out the end of a damaged one."""
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())


def write_options() -> WriteOptions:
    """Return the options of writes: without RocksDB's log; failing in place of a stall, which would hold the GIL."""
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010  an attribute, though its type stub says method
    options.no_slowdown = True
    return options


def group_read_options() -> ReadOptions:
    """Return the options of an iterator that reads one group after another; all groups have prefixes of one size."""
    reading = ReadOptions()
    reading.set_prefix_same_as_start(True)
    return reading


def prefix_read_options(prefix: bytes, grouping: Grouping | None) -> ReadOptions:
    """Return the options of an iterator over a prefix's keys, with Bloom filters if it has a whole group."""
    reading = ReadOptions()
    reading.set_total_order_seek(grouping is None or len(prefix) < grouping.size_bytes)
    end = end_of_prefix(prefix)
    if end is not None:
        reading.set_iterate_upper_bound(end)
    return reading


def end_of_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all that begin with `prefix`, or None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _table_options(cache: Cache, tuning: Tuning) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(tuning.block_bytes)
    table.set_bloom_filter(tuning.bloom_bits, False)
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    return table


def _set_compaction(options: Options, tuning: Tuning) -> None:
    options.set_level_zero_file_num_compaction_trigger(tuning.merge_trigger)
    options.set_level_zero_slowdown_writes_trigger(tuning.merge_trigger * 2 + 20)
    options.set_level_zero_stop_writes_trigger(tuning.merge_trigger * 3 + 40)
    options.set_target_file_size_base(tuning.target_file_bytes)
    if tuning.style == "level":
        options.set_compaction_style(DBCompactionStyle.level())
        options.set_max_bytes_for_level_multiplier(float(tuning.level_multiplier))
        return
    universal = UniversalCompactOptions()
    universal.size_ratio = tuning.size_ratio
    universal.min_merge_width = tuning.min_merge_width
    if tuning.max_merge_width:
        universal.max_merge_width = tuning.max_merge_width
    universal.max_size_amplification_percent = tuning.max_space_percent
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(universal)


def _set_blobs(options: Options, tuning: Tuning) -> None:
    options.set_enable_blob_files(True)
    options.set_min_blob_size(tuning.blob_min_bytes)
    options.set_blob_file_size(tuning.target_file_bytes)
    options.set_blob_compression_type(getattr(DBCompressionType, tuning.compression)())
    options.set_enable_blob_gc(True)
    options.set_blob_gc_age_cutoff(tuning.blob_gc_age)
    options.set_blob_gc_force_threshold(tuning.blob_gc_force)


def _open_files() -> int:
    """Return how many files RocksDB may keep open: all (-1, the fastest) if the limit of the process allows it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY or soft >= 1 << 16 else max(soft // 4, 64)
