"""Records of epochs: what a replay needs to give each of them the same rows and times again."""

from __future__ import annotations

import zlib

import msgspec

from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId, Epoch, Generation
from strandline.format.frame import RecordFormat, frame, unframe

_MAGIC = b"SLEPOCH1"
_VERSION = 1


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of one epoch, as far as the driver decides it."""

    epoch: Epoch
    batch: int = -1
    """Spark's batch of the sources; -1: an epoch without rows."""
    now_us: int = 0
    """The clock when it began."""
    watermark_us: int | None = None
    fired_us: int | None = None
    """The watermark of the epoch before, up to which timers have fired."""
    offsets: str = ""
    """Spark's log of the sources' offsets at the end of the batch; "" without a batch, or if it is unknown."""
    reduced: dict[str, bool] = {}
    """The aggregations, by uid, whose rows Spark aggregated before it sent them; whether those of each task alone."""
    parallelism: dict[str, int] = {}
    """Of the operators, by uid."""


class EpochRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Records of consecutive epochs."""

    tasks: int
    """Spark's default number of tasks, by which it divides files."""
    epochs: list[EpochRecord]


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run in an error: the epochs since its last checkpoint, up to the one that failed."""

    generation: Generation
    checkpoint: CheckpointId | None
    """The last checkpoint of the run, or the one that it began with; None if there was none."""
    created_ms: int
    failure: str
    """The error, without values of rows."""
    failed: Epoch
    """The epoch that failed."""
    epochs: bytes
    """Packed, as in a manifest."""
    files: dict[str, bytes]
    """Files of Spark's log of the sources that are newer than the checkpoint: the steps of file sources."""


_records = msgspec.json.Decoder(EpochRecords)


def pack_epochs(records: EpochRecords) -> bytes:
    """Return records as they are stored: compressed and framed."""
    return frame(_MAGIC, _VERSION, zlib.compress(msgspec.json.encode(records)))


def unpack_epochs(data: bytes, where: str) -> EpochRecords:
    """Read packed records; raise CorruptionError naming `where`."""
    payload = unframe(data, _MAGIC, _VERSION, where)
    try:
        return _records.decode(zlib.decompress(payload))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptionError(f"{where}: the records of epochs cannot be read: {error}") from error


FAILED_RUN = RecordFormat(b"SLFAILE1", 1, FailedRun, "the record of a failed run")
