"""Deletes rows of an Iceberg table by their values, as Flink does; pyiceberg cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_value(table: Any, keys: list[int]) -> None:
    """Commit an equality delete of rows with these keys in the first column."""
    path = f"{table.location()}/data/{uuid4()}-deletes.parquet"
    column = pa.field("k", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(
        pa.table({"k": pa.array(keys, pa.int64())}, schema=pa.schema([column])), path.removeprefix("file://")
    )
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES, file_path=path, file_format="PARQUET", partition=Record(),
        record_count=len(keys), file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size, equality_ids=[1],
        _table_format_version=2,
    )  # fmt: skip
    file.spec_id = table.spec().spec_id

    class Producer(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            output = self._io.new_output(f"{table.location()}/metadata/{uuid4()}-m0.avro")
            with _Deletes(table.spec(), table.schema(), output, self._snapshot_id, "deflate") as writer:
                added = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, sequence_number=None,
                    file_sequence_number=None, data_file=file,
                )  # fmt: skip
                writer.add_entry(added)
            return [writer.to_manifest_file(), *self._existing_manifests()]

    transaction = table.transaction()
    Producer(operation=Operation.APPEND, transaction=transaction, io=table.io, snapshot_properties={}).commit()
    transaction.commit_transaction()
