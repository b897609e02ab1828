"""Process that exports partitions of a snapshot as canonical files, with a lower priority than the job.

    python -m strandline.snapshot.savepoints.export

It reads an `ExportPart` from its standard input and answers on its standard output, a line of JSON each: the number of
rows so far, and at last the files or a failure; then it reads the next one. An empty line or the end of its input ends
it.
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
    """A request to export one partition of one operator."""

    source: Place
    target: Place
    operator: OperatorInfo
    """The operator with this partition alone."""
    scratch: str = ""
    """An existing local directory for this part."""
    local_copy: str = ""
    now_us: int | None = None
    watermark_us: int | None = None
    """The clock and the event time of the snapshot: rows that had expired by then are left out."""


@decodable
class Files(msgspec.Struct, frozen=True, kw_only=True, tag="files"):
    """The result of a part, by state: files of the savepoint, and pieces to join with those of other parts."""

    files: dict[str, list[TableFile]]
    pieces: dict[str, list[TableFile]]


@decodable
class RowsWritten(msgspec.Struct, frozen=True, kw_only=True, tag="rows"):
    """The number of rows written so far."""

    rows: int


@decodable
class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The failure of an export."""

    failure: Failure


Answer = Files | RowsWritten | Failed


def export(part: ExportPart, report: Callable[[int], None] = lambda rows: None) -> Files:
    """Fetch a part's files, write its rows, and upload them. `report` gets the number of rows so far.

    Raises as `fetch`, `RowCodec.decode` and storage do; the caller discards uploaded files then.
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
            writer = TableWriter(codec.file_schema, groups, part.operator.max_parallelism, scratch, on_file=uploads.put)
            for batch in codec.decode_groups(reader.scan(state.name, groups)):
                writer.write(batch)
                rows += batch.num_rows
                report(rows)
            files[state.name], pieces[state.name] = ([one.table for one in local] for local in writer.finish())
    hit("savepoint.part.written")
    return Files(files=files, pieces=pieces)


def _groups_of(part: ExportPart, state: StateInfo) -> range:
    """Return the key groups of a state that this part writes: partition 0 writes broadcast state."""
    (info,) = part.operator.partitions
    if state.kind == "broadcast":
        return BROADCAST_GROUPS if info.index == 0 else range(0)
    return range(info.first_key_group, info.last_key_group + 1)


def main() -> None:
    """Export the parts that standard input names."""
    arm_from_environment()
    # Exit in an orderly way, since a kill would leave partial uploads.
    signal.signal(signal.SIGTERM, _stop)
    _lower_priority()
    # Rows are no garbage, and to search them would double the time.
    gc.disable()
    gc.freeze()
    requests = _Requests()
    requests.start()
    answers = sys.stdout.buffer

    def send(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    try:
        while line := requests.lines.get():
            send(_answer(line, lambda rows: send(RowsWritten(rows=rows))))
            gc.collect()
    except BrokenPipeError:
        # The parent closed the pipe: the reader thread ends this process.
        requests.join()


def _lower_priority() -> None:
    """Lower the priority of this process."""
    os.nice(_NICE)
    # Linux may compare priorities within a session only, so that this process needs a session with a low one.
    with contextlib.suppress(OSError):
        os.setsid()
        _SESSION_NICE.write_text(str(_NICE))


def _stop(*_: object) -> None:
    sys.exit(1)


def _export(part: ExportPart, report: Callable[[int], None]) -> Files:
    try:
        return export(part, report)
    except Exception as error:
        refuse_full_disk(error, Path(part.scratch))
        raise


def _answer(line: bytes, report: Callable[[int], None]) -> Answer:
    try:
        return _export(msgspec.json.decode(line, type=ExportPart), report)
    except StrandlineError as error:
        return Failed(failure=to_failure(error))
    except Exception as error:
        return Failed(failure=to_failure(StrandlineError(f"{type(error).__name__}: {error}")))


class _Requests(threading.Thread):
    """Reads requests, a line each, and at last an empty one. An end without it means that the parent was killed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def run(self) -> None:
        line = rest = b""
        # Not `sys.stdin`: this thread would hold its lock for ever, and Python would abort at exit.
        while some := os.read(0, _READ_BYTES):
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                self.lines.put(line)
                if not line:
                    return
        # The parent cannot remove it any more.
        with contextlib.suppress(msgspec.MsgspecError, OSError):
            scratch = Path(msgspec.json.decode(line, type=ExportPart).scratch)
            shutil.rmtree(scratch, ignore_errors=True)
            remove_if_abandoned(scratch.parent)
        os._exit(1)


if __name__ == "__main__":
    main()
