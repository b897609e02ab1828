"""A small job with state of many kinds, as every form of snapshot."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from strandline.backends.heap import HEAP_FILE
from strandline.core.ids import Partition
from strandline.core.keygroups import BROADCAST_GROUP, BROADCAST_GROUPS, group_of
from strandline.format.heapfile import write_heap
from strandline.format.manifest import MANIFEST, FileRef, Manifest, OperatorInfo, PartitionInfo, TableFile
from strandline.snapshot.rows.parquet import Cut, named_schema
from strandline.snapshot.savepoints.tablewriter import TableWriter
from strandline.snapshot.savepoints.take import Form, take_savepoint
from strandline.storage.place import Place
from tests.checkpoint.helpers import manifest
from tests.runtime.rescaling import KEYS, Job
from tests.snapshot.exporting import exporting_here

UPDATES = ("set_value", "set_pair", "add_tag", "append", "extend", "put", "reduce", "average")


def checkpoint_of(root: Path, backend: str = "rocksdb", parallelism: int = 2) -> Path:
    """Run a job for two epochs, and return the folder of its only checkpoint."""
    job = Job(root)
    job.start(parallelism, backend)
    for epoch in range(2):
        job.run([(key, op, n, epoch) for n, key in enumerate(KEYS) for op in UPDATES])
    job.checkpoint()
    job.stop()
    return publish(root / "storage/job", job.manifest())


def publish(folder: Path, found: Manifest) -> Path:
    """Make files that are there a checkpoint."""
    made = folder / f"chk-{found.checkpoint}"
    made.mkdir(parents=True, exist_ok=True)
    (made / "_metadata").write_bytes(MANIFEST.encode(found))
    return made


def savepoint_of(checkpoint: Path, form: Form) -> Path:
    """Take a savepoint of a checkpoint, beside its job."""
    found = MANIFEST.decode((checkpoint / "_metadata").read_bytes(), str(checkpoint))
    root = checkpoint.parents[2]
    source = Place(url=root.as_uri(), path="storage/job")
    with exporting_here():
        take_savepoint(found, source, Place(url=root.as_uri(), path=form), form)
    return root / form


def savepoint_of_rows(root: Path, operator: OperatorInfo, state: str, rows: pa.RecordBatch) -> Path:
    """Write a canonical savepoint of one state, of many small files and row groups."""
    (root / "data").mkdir(parents=True)
    is_broadcast = rows.num_rows and rows.column(0).null_count
    groups = BROADCAST_GROUPS if is_broadcast else range(operator.max_parallelism)
    writer = TableWriter(
        named_schema(rows.schema, operator.uid, state), groups, operator.max_parallelism, root / "data", Cut(200, 2)
    )
    writer.write(rows)
    files: list[TableFile] = [file.table for file in writer.finish()[0]]
    stored = replace(operator, partitions=[], tables={state: files} if files else {})
    made = replace(manifest(3), operators=[stored], savepoint="canonical", source=None)
    (root / "_metadata").write_bytes(MANIFEST.encode(made))
    return root


def checkpoint_of_entries(root: Path, operator: OperatorInfo, state: str, entries: list[tuple[bytes, bytes]]) -> Path:
    """Publish a checkpoint of two partitions, whose files are in the manifest."""
    parts = []
    for index, groups in enumerate((range(64), range(64, operator.max_parallelism))):
        parts.append(partition_of_entries(index, groups, {state: entries}))
    stored = replace(operator, backend="memory", parallelism=2, partitions=parts)
    return publish(root, replace(manifest(3), operators=[stored], source=None))


def partition_of_entries(index: int, groups: range, entries: Mapping[str, list[tuple[bytes, bytes]]]) -> PartitionInfo:
    """What a partition has of these entries, by state, its file in the manifest."""
    file = BytesIO()
    # What belongs to no key group is in each.
    own = {
        state: [entry for entry in some if group_of(entry[0]) in groups or group_of(entry[0]) == BROADCAST_GROUP]
        for state, some in sorted(entries.items())
    }
    write_heap(file, own.items())
    data = file.getvalue()
    ref = FileRef(name=HEAP_FILE, size=len(data), sha256=hashlib.sha256(data).hexdigest(), inline=data)
    return PartitionInfo(
        index=Partition(index), first_key_group=groups.start, last_key_group=groups.stop - 1, files=[ref]
    )
