"""Partitions of a snapshot made into canonical files: in a process of its own, which gives way to the job's.

    python -m strandline.snapshot.savepoints.export

It reads an `ExportPart` from its standard input and answers on its standard output, a line of JSON each: how many rows
it has written, and at last which files it wrote or what failed; then it reads the next one. An empty line or the end of
its input ends it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from strandline.backends.reading import file_kind, open_reader
from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.restore import fetch
from strandline.core.decoding import decodable
from strandline.core.errors import StrandlineError
from strandline.core.failpoints import arm_from_environment, hit
from strandline.core.failure import Failure, to_failure
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.scratch import refuse_full_disk, remove_if_abandoned
from strandline.format.manifest import OperatorInfo, StateInfo, TableFile
from strandline.snapshot.rows.codecs import has_rows, rows_of
from strandline.snapshot.savepoints.savepoint import uploading
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.storage.place import Place

_NICE = 19
_READ_BYTES = 64 << 10
NO_MORE = b"\n"
_SESSION_NICE = Path("/proc/self/autogroup")


@decodable
class ExportPart(msgspec.Struct, frozen=True, kw_only=True):
    """What to export: one partition of one operator."""

    source: Place
    target: Place
    operator: OperatorInfo
    """With this partition alone."""
    scratch: str = ""
    """A local directory of its own, which is there."""
    local_copy: str = ""
    now_us: int | None = None
    watermark_us: int | None = None
    """How far the clock and event time had come: what has expired by then is left out."""


@decodable
class Files(msgspec.Struct, frozen=True, kw_only=True, tag="files"):
    """What came of a part, by state: files of the savepoint, and pieces, to be joined with those of the other parts."""

    files: dict[str, list[TableFile]]
    pieces: dict[str, list[TableFile]]


@decodable
class RowsWritten(msgspec.Struct, frozen=True, kw_only=True, tag="rows"):
    """How many rows have been written so far."""

    rows: int


@decodable
class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Why nothing comes of it."""

    failure: Failure


Answer = Files | RowsWritten | Failed


def export(part: ExportPart, wrote: Callable[[int], None] = lambda rows: None) -> Files:
    """Fetch a part's files, write its rows, and upload them. `wrote` hears of the rows now and then.

    Raises as `fetch`, `RowCodec.decode` and storage do; what was uploaded then is the savepoint's to discard.
    """
    (info,) = part.operator.partitions
    scratch, target = Path(part.scratch), folder_at(part.target)
    fetched = scratch / "fetched"
    fetch(folder_at(part.source), info.files, fetched, Path(part.local_copy) if part.local_copy else None)
    hit("savepoint.part.fetched")
    reader = open_reader(file_kind(part.operator.backend), fetched)
    files, pieces, rows = {}, {}, 0
    with contextlib.closing(reader), uploading(target) as uploads:
        for state in filter(has_rows, part.operator.states):
            groups = _groups_of(part, state)
            if not groups:
                continue
            codec = rows_of(part.operator, state, now_us=part.now_us, watermark_us=part.watermark_us)
            writer = TableWriter(codec.file_schema, groups, part.operator.max_parallelism, scratch, made=uploads.put)
            for batch in codec.decode_groups(reader.scan(state.name, groups)):
                writer.write(batch)
                rows += batch.num_rows
                wrote(rows)
            files[state.name], pieces[state.name] = ([one.table for one in made] for made in writer.finish())
    hit("savepoint.part.written")
    return Files(files=files, pieces=pieces)


def _groups_of(part: ExportPart, state: StateInfo) -> range:
    """Return the key groups of a state that are this part's to write: of what all partitions have, the first one's."""
    (info,) = part.operator.partitions
    if state.kind == "broadcast":
        return BROADCAST_GROUPS if info.index == 0 else range(0)
    return range(info.first_key_group, info.last_key_group + 1)


def main() -> None:
    """Export the parts that standard input says."""
    arm_from_environment()
    # What is being uploaded then is whole, or gone: a writer that is killed leaves a part of it.
    signal.signal(signal.SIGTERM, _stop)
    _give_way()
    # Rows are no garbage, and there are so many of them that looking for it takes as long as they do.
    gc.disable()
    gc.freeze()
    asked = _Asked()
    asked.start()
    answers = sys.stdout.buffer

    def say(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    try:
        while line := asked.lines.get():
            say(_answer(line, lambda rows: say(RowsWritten(rows=rows))))
            gc.collect()
    except BrokenPipeError:
        # Nobody listens any more.
        asked.join()


def _give_way() -> None:
    """Leave the processors to whoever wants them."""
    os.nice(_NICE)
    # Linux may weigh sessions against each other, and processes only within one: keepers have sessions of their own.
    with contextlib.suppress(OSError):
        os.setsid()
        _SESSION_NICE.write_text(str(_NICE))


def _stop(*_: object) -> None:
    sys.exit(1)


def _export(part: ExportPart, wrote: Callable[[int], None]) -> Files:
    try:
        return export(part, wrote)
    except Exception as error:
        refuse_full_disk(error, Path(part.scratch))
        raise


def _answer(line: bytes, wrote: Callable[[int], None]) -> Answer:
    try:
        return _export(msgspec.json.decode(line, type=ExportPart), wrote)
    except StrandlineError as error:
        return Failed(failure=to_failure(error))
    except Exception as error:
        return Failed(failure=to_failure(StrandlineError(f"{type(error).__name__}: {error}")))


class _Asked(threading.Thread):
    """Hears what is asked for, a line each, and at last an empty one. Who does not say that much was killed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def run(self) -> None:
        line = rest = b""
        # Not through `sys.stdin`: its lock, held for ever, would have Python abort at its end.
        while some := os.read(0, _READ_BYTES):
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                self.lines.put(line)
                if not line:
                    return
        # Nobody else takes it away any more.
        with contextlib.suppress(msgspec.MsgspecError, OSError):
            scratch = Path(msgspec.json.decode(line, type=ExportPart).scratch)
            shutil.rmtree(scratch, ignore_errors=True)
            remove_if_abandoned(scratch.parent)
        os._exit(1)


if __name__ == "__main__":
    main()
