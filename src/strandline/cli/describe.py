"""One snapshot in full: as data for programs, and as tables for people."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text

from strandline.cli.output import Table, console
from strandline.core.keygroups import BROADCAST_GROUP
from strandline.core.texts import duration_text, moment_text, size_text, time_text
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, PartitionInfo, SourceInfo, StateInfo, TableFile


def as_data(manifest: Manifest) -> dict[str, Any]:
    """Return a snapshot's manifest as data for JSON, without the bytes of its inline files."""
    return {
        **({"savepoint": manifest.savepoint} if manifest.savepoint else {}),
        **_named(manifest, "job", "checkpoint", "generation", "epoch", "mode", "created_ms", "triggered_ms"),
        **_named(manifest, "duration_ms", "engine_version", "total_bytes", "uploaded_bytes", "watermarks"),
        "operators": [_operator(operator) for operator in manifest.operators],
        "source": None if manifest.source is None else _source(manifest.source),
        "sinks": [
            {"name": sink.name, "pending": len(sink.pending), "committables": sink.pending} for sink in manifest.sinks
        ],
    }


def _named(record: msgspec.Struct, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _operator(operator: OperatorInfo) -> dict[str, Any]:
    tables = operator.tables or {}
    return {
        **_named(operator, "uid", "backend", "parallelism", "max_parallelism", "key_schema"),
        "states": [
            _named(state, "name", "kind", "value_type", "key_type", "schema_id")
            | ({"ttl": msgspec.to_builtins(state.ttl)} if state.ttl else {})
            | ({"aggregates": msgspec.to_builtins(state.aggregates)} if state.aggregates else {})
            for state in operator.states
        ],
        "partitions": [_partition(partition) for partition in operator.partitions],
        **({"tables": {state: [_table(file) for file in files] for state, files in tables.items()}} if tables else {}),
    }


def _table(file: TableFile) -> dict[str, Any]:
    return {**_named(file, "first_key_group", "last_key_group", "rows"), "file": _file(file.file)}


def _partition(partition: PartitionInfo) -> dict[str, Any]:
    return {
        "partition": partition.index,
        **_named(partition, "first_key_group", "last_key_group"),
        "total_bytes": _bytes(partition.files),
        **_named(partition, "uploaded_bytes", "sync_ms", "async_ms"),
        "files": [_file(file) for file in partition.files],
    }


def _file(file: FileRef) -> dict[str, Any]:
    where = {"inline": True} if file.inline is not None else {"path": file.path, "shared": file.shared}
    return {"name": file.name, "size_bytes": file.size, "sha256": file.sha256, **where}


def _source(source: SourceInfo) -> dict[str, Any]:
    return {
        "batch": source.batch,
        "names": source.names or [],
        "total_bytes": _bytes(source.files()),
        "blob": _file(source.blob),
        "large": [
            {"name": large.name, "segments": len(large.segments), "size_bytes": sum(s.size for s in large.segments)}
            for large in source.large
        ],
    }


def _bytes(files: list[FileRef]) -> int:
    return sum(file.size for file in files)


def print_tables(manifest: Manifest, url: str) -> None:
    """Print a snapshot as tables."""
    facts = Table("checkpoint", str(manifest.checkpoint))
    for name, value in (
        ("snapshot", url),
        *([("savepoint", manifest.savepoint)] if manifest.savepoint else []),
        ("job", manifest.job),
        ("generation", manifest.generation),
        ("epoch", manifest.epoch),
        ("mode", manifest.mode),
        ("taken", time_text(manifest.created_ms)),
        ("duration", duration_text(manifest.duration_ms)),
        ("size", size_text(manifest.total_bytes)),
        ("increment", size_text(manifest.uploaded_bytes)),
        ("engine", manifest.engine_version),
        ("source progress", _source_text(manifest.source)),
        *((_watermark_name(name), moment_text(at_us)) for name, at_us in manifest.watermarks.items()),
    ):
        facts.add(name, value)
    facts.print()
    for operator in manifest.operators:
        title = (
            f"operator {operator.uid}: backend {operator.backend}, key {operator.key_schema}, "
            f"parallelism {operator.parallelism} (at most {operator.max_parallelism})"
        )
        console().print(Text(title))
        _states_table(operator.states).print()
        (_tables_table(operator) if operator.tables else _partitions_table(operator)).print()
    if manifest.sinks:
        output = Table("sink", "pending commits", right=("pending commits",))
        for sink in manifest.sinks:
            output.add(sink.name, len(sink.pending))
        output.print()


def _watermark_name(name: str) -> str:
    """Return the title of one of the manifest's times: the watermark, or the newest event of `{source}/{origin}`."""
    source, slash, origin = name.partition("/")
    if not slash:
        return name
    return f"newest event of source {source}, {origin}" if origin else f"newest event of source {source}"


def _source_text(source: SourceInfo | None) -> str:
    if source is None:
        return "none"
    names = f" of {', '.join(source.names)}" if source.names else ""
    return f"{size_text(_bytes(source.files()))}{names}, after batch {source.batch}"


def _states_table(states: list[StateInfo]) -> Table:
    output = Table("state", "kind", "type")
    for state in states:
        kind = f"{state.key_type} → {state.value_type}" if state.key_type else state.value_type or state.kind
        if state.ttl:
            kind += f", expires {duration_text(state.ttl.duration_ms)} after each {state.ttl.refresh}"
        output.add(state.name, state.kind, kind)
    return output


def _tables_table(operator: OperatorInfo) -> Table:
    output = Table("table", "key groups", "files", "rows", "size", right=("files", "rows", "size"))
    for state, files in (operator.tables or {}).items():
        groups = f"{files[0].first_key_group}-{files[-1].last_key_group}"
        every = "-" if files[0].first_key_group == BROADCAST_GROUP else groups
        size_bytes = _bytes([file.file for file in files])
        output.add(state, every, len(files), sum(file.rows for file in files), size_text(size_bytes))
    return output


def _partitions_table(operator: OperatorInfo) -> Table:
    numbers = ("files", "size", "increment", "sync", "async")
    output = Table("partition", "key groups", *numbers, right=("partition", *numbers))
    for partition in sorted(operator.partitions, key=lambda partition: partition.index):
        output.add(
            partition.index,
            f"{partition.first_key_group}-{partition.last_key_group}",
            len(partition.files),
            size_text(_bytes(partition.files)),
            size_text(partition.uploaded_bytes),
            duration_text(partition.sync_ms),
            duration_text(partition.async_ms),
        )
    return output
