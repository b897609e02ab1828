"""Spark's part in a program, played in this process: each input file is an epoch of a harness, its rows are a sink's.

What a program says is what runs on Spark: its streams, its operators, its files, and how it ends. Only that Spark and
a harness give the same is not seen here, but in tests/spark/test_both_engines.py.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.plan.graph import SourceNode, sources_of
from strandline.testing import Harness, events
from strandline.types.datatypes import parse_schema

Row = dict[str, Any]


class Session:
    """Stands in for a session of which only the reader of streams is used."""

    @property
    def readStream(self) -> Reader:
        return Reader()

    def stop(self) -> None:
        """There is nothing to end."""


class Reader:
    """Stands in for Spark's reader of JSON files, one an epoch."""

    def __init__(self, schema: str = "") -> None:
        self._schema = schema

    def schema(self, schema: str) -> Reader:
        return Reader(schema)

    def option(self, name: str, value: Any) -> Reader:
        assert (name, value) == ("maxFilesPerTrigger", 1)
        return self

    def json(self, path: str) -> Files:
        return Files(self._schema, Path(path))


class Files:
    """Stands in for what Spark reads of a directory: the rows of each file, oldest first."""

    def __init__(self, schema: str, directory: Path) -> None:
        self.schema = schema
        self._times = [field.name for field in parse_schema(schema).fields if field.type.ddl == "timestamp"]
        self._directory = directory

    def epochs(self) -> list[list[Row]]:
        """Return the rows in another order within each epoch, as none is promised."""
        paths = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        epochs = [[self._row(line) for line in path.read_text().splitlines()] for path in paths]
        return [random.Random(len(rows)).sample(rows, len(rows)) for rows in epochs]

    def _row(self, line: str) -> Row:
        row = json.loads(line)
        return row | {name: dt.datetime.fromisoformat(row[name]) for name in self._times}


class Played:
    """Stands in for a job that processes what is there and ends."""

    def __init__(
        self,
        name: str,
        *,
        sinks: Sequence[Any],
        checkpoints: sl.Checkpoints,
        trigger: str,
        drain: bool = False,
    ) -> None:
        assert trigger == "available-now"
        self._outputs, self._drain = sinks, drain

    def start(self, session: Session) -> Played:
        for output in self._outputs:
            with Harness(output.stream, parallelism=2) as harness:
                self._run(harness, sources_of(output.stream._node))
                _write(output.sink, harness.output)
        return self

    def _run(self, harness: Harness, sources: Sequence[SourceNode]) -> None:
        for files in zip_longest(*(_files[source].epochs() for source in sources), fillvalue=()):
            if len(sources) == 1:
                harness.push(*files[0])
            else:
                harness.push(**{source.name: rows for source, rows in zip(sources, files, strict=True)})
        harness.tick()
        if self._drain:
            harness.advance_to_end()

    def await_termination(self, timeout: float | None = None) -> bool:
        return True


_files: WeakKeyDictionary[SourceNode, Files] = WeakKeyDictionary()
"""What a stream begins with."""


def _write(sink: Any, rows: Sequence[Any]) -> None:
    """Write rows as Spark does: into JSON without what is null."""
    directory = Path(sink.path)
    directory.mkdir(parents=True)
    given = [{name: value for name, value in row._asdict().items() if value is not None} for row in rows]
    if sink.format == "parquet":
        pq.write_table(pa.Table.from_pylist(given), directory / "part-0.parquet")
    else:
        (directory / "part-0.json").write_text("".join(json.dumps(row, default=_text) + "\n" for row in given))


def _text(value: dt.datetime) -> str:
    return value.isoformat()


def play(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have programs run in this process."""

    def stream(files: Files, name: str | None = None) -> sl.Stream:
        made = events(files.schema, name)
        (source,) = sources_of(made._node)
        _files[source] = files
        return made

    monkeypatch.setattr(sl, "session", lambda name: Session())
    monkeypatch.setattr(sl, "stream", stream)
    monkeypatch.setattr(sl, "Job", Played)
