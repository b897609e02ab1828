"""The past of a job as storage has it: its checkpoints, the files that each references, its generations."""

from __future__ import annotations

from typing import Any

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.check import judge
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, SinkInfo, size_of

_MOST_FILES = 400
"""Rows of the picture of files; the largest."""


def read_past(jobdir: JobDirectory) -> dict[str, Any]:
    """Return what a job's folder says of it, without reading a byte of state."""
    catalog = read_catalog(jobdir)
    checkpoints = [_checkpoint(catalog, number, manifest) for number, manifest in catalog.manifests.items()]
    checkpoints += [
        {
            "checkpoint": number, "state": "damaged", "reason": reason,
            "created_ms": catalog.objects[manifest_path(number)].modified_ms,
        }
        for number, reason in catalog.damaged.items()
    ]  # fmt: skip
    live = catalog.live
    newest = live[max(live)] if live else None
    return {
        "url": jobdir.url,
        "checkpoints": sorted(checkpoints, key=lambda each: each["checkpoint"]),
        "newest": _newest(newest) if newest else None,
        **_files(live),
        "generations": [_generation(catalog, number) for number in sorted(catalog.chain.bases)],
        "damaged_records": list(catalog.chain.damaged.values()),
    }


def _checkpoint(catalog: Catalog, number: CheckpointId, manifest: Manifest) -> dict[str, Any]:
    state, reason = judge(catalog, number, manifest)
    return {
        "checkpoint": number, "state": state, "reason": reason, "epoch": manifest.epoch, "mode": manifest.mode,
        "generation": manifest.generation, "triggered_ms": manifest.triggered_ms, "created_ms": manifest.created_ms,
        "duration_ms": manifest.duration_ms, "uploaded_bytes": manifest.uploaded_bytes,
        "total_bytes": manifest.total_bytes, "files": len(manifest.stored()), "totals": manifest.totals or {},
        "parallelism": {operator.uid: operator.parallelism for operator in manifest.operators},
        "partitions": [
            {
                "uid": operator.uid, "partition": part.index, "sync_ms": part.sync_ms, "async_ms": part.async_ms,
                "uploaded_bytes": part.uploaded_bytes, "bytes": size_of(part.files), "files": len(part.files),
            }
            for operator in manifest.operators
            for part in operator.partitions
        ],
    }  # fmt: skip


def _newest(manifest: Manifest) -> dict[str, Any]:
    return {
        "checkpoint": manifest.checkpoint, "engine": manifest.engine_version,
        "operators": [_operator(operator) for operator in manifest.operators],
        "sources": (manifest.source.names or [""]) if manifest.source else [],
        "sinks": [_sink(sink) for sink in manifest.sinks],
        "watermarks": manifest.watermarks,
    }  # fmt: skip


def _sink(sink: SinkInfo) -> dict[str, Any]:
    return {"name": sink.name, "kind": sink.kind or "", "pending": len(sink.pending)}


def _operator(operator: OperatorInfo) -> dict[str, Any]:
    files = [file for part in operator.partitions for file in part.files]
    return {
        "uid": operator.uid, "backend": operator.backend, "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism, "key_schema": operator.key_schema, "bytes": size_of(files),
        "states": [{"name": state.name, "kind": state.kind} for state in operator.states],
    }  # fmt: skip


def _files(live: dict[CheckpointId, Manifest]) -> dict[str, Any]:
    """Return the files that checkpoints reference, in the order in which they came, and which checkpoints do."""
    files: dict[str, dict[str, Any]] = {}
    for number, manifest in live.items():
        for uid, partition, file in _stored(manifest):
            entry = files.setdefault(file.path, {
                "name": file.name, "uid": uid, "partition": partition, "bytes": file.size, "shared": file.shared,
                "in": [],
            })  # fmt: skip
            if number not in entry["in"]:
                entry["in"].append(number)
    kept = sorted(files.values(), key=lambda each: -each["bytes"])[:_MOST_FILES]
    left_out = len(files) - len(kept)
    order = {id(each): at for at, each in enumerate(files.values())}
    return {
        "files": sorted(kept, key=lambda each: order[id(each)]),
        "files_left_out": left_out,
        "files_bytes": sum(each["bytes"] for each in files.values()),
    }


def _stored(manifest: Manifest) -> list[tuple[str, int | None, FileRef]]:
    files: list[tuple[str, int | None, FileRef]] = [
        (operator.uid, part.index, file)
        for operator in manifest.operators
        for part in operator.partitions
        for file in part.files
    ]
    files += [("", None, file) for file in (manifest.source.files() if manifest.source else [])]
    return [each for each in files if each[2].inline is None]


def _generation(catalog: Catalog, number: int) -> dict[str, Any]:
    base = next(base for generation, base in catalog.chain.bases.items() if generation == number)
    foreign = base.foreign
    return {
        "generation": number, "checkpoint": base.checkpoint, "restored": foreign.url if foreign else "",
        "job": foreign.job if foreign else "",
    }  # fmt: skip
