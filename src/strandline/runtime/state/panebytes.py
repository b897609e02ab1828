"""The bytes of panes: `key group ‖ pane end ‖ epoch` → Arrow columns, and the mark of each key group.

See docs/format.md.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from strandline.core.errors import CorruptionError

MARK_END = -(1 << 63)
"""Where a pane's end would be, this says that the entry is a mark: the time up to which windows were given."""

_KEY = struct.Struct(">HQQ")
_NUMBER = struct.Struct(">q")
_BIAS = 1 << 63
_HEAD = b"\0\0"


def key_of(group: int, end_us: int, epoch: int) -> bytes:
    """Return the key of one key group's changes to a pane."""
    return _KEY.pack(group, end_us + _BIAS, epoch)


def prefix_of(group: int, end_us: int) -> bytes:
    """Return what the keys of all of one key group's changes to a pane begin with."""
    return key_of(group, end_us, 0)[:10]


def parts_of(key: bytes) -> tuple[int, int, int]:
    """Return the key group, the pane's end and the epoch."""
    group, end, epoch = _KEY.unpack(key)
    return group, end - _BIAS, epoch


def pack_mark(mark_us: int) -> bytes:
    """Return the value of a mark."""
    return _HEAD + _NUMBER.pack(mark_us)


def read_mark(value: bytes) -> int:
    """Return the time that a mark says."""
    return int(_NUMBER.unpack(value[2:])[0])


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Return the value of an entry that holds these rows."""
    return _HEAD + bytes(batch.serialize().to_pybytes())


def read_batch(name: str, value: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows that an entry of the state `name` holds; raise CorruptionError if it holds none."""
    if value[:2] != _HEAD:
        raise CorruptionError(
            f"state '{name}': an entry begins with {value[:2].hex()}, expected {_HEAD.hex()}",
            hint="it was written by a newer release, or damaged",
        )
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(value[2:]), schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptionError(f"state '{name}': an entry of {len(value)} bytes cannot be read: {error}") from error
