"""What waits in sources, by Spark's log as it writes it: no session is needed to read that."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strandline.spark.sources import lag
from strandline.spark.sources.checks import Relation
from strandline.spark.sources.filechecks import FileSource
from strandline.spark.sources.lag import SourceLag, _LogFiles, _WaitingFiles, offsets_behind


@pytest.mark.parametrize(
    ("read_to", "latest", "behind"),
    [
        (5, 9, 4),
        (9, 5, 0),
        ({"clicks": {"0": 17, "1": 4}}, {"clicks": {"0": 20, "1": 4}}, 3),
        # A partition, or a topic, that has come since.
        ({"a": {"0": 1}}, {"a": {"0": 1, "1": 7}, "b": {"0": 2}}, 9),
        (None, {"a": {"0": 3}}, 3),
        ({"logOffset": 3}, None, None),
        ({"version": "x1"}, {"version": "x7"}, None),
        (True, False, None),
        ("3", "4", None),
        ({}, {}, None),
    ],
)
def test_offsets_between_two(read_to: Any, latest: Any, behind: int | None) -> None:
    assert offsets_behind(read_to, latest) == behind


class Spark:
    """A query's log, and the directory that it reads."""

    def __init__(self, root: Path) -> None:
        self.log, self.source = root / "log", root / "in dir"
        self.source.mkdir()
        for folder in ("offsets", "sources/0"):
            (self.log / folder).mkdir(parents=True)

    def write(self, name: str, size: int = 10, age_s: float = 0.0) -> Path:
        path = self.source / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def plan(self, batch: int, *names: str) -> None:
        """Log a batch that reads these files."""
        entries = [
            json.dumps({"path": (self.source / name).as_uri(), "timestamp": 1, "batchId": batch}) for name in names
        ]
        (self.log / "sources/0" / str(batch)).write_text("\n".join(["v1", *entries]))
        (self.log / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')

    def files(self, glob: str = "*") -> _WaitingFiles:
        relation = Relation("json", "x", True, {"pathglobfilter": glob})
        return _WaitingFiles(FileSource("", 0, relation, numbers=[0]), self.source, _LogFiles(self.log))


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def test_files_that_no_epoch_has_processed_wait(spark: Spark) -> None:
    files = spark.files()
    assert files.count(-1) == (0, 0, None)
    for name, size, age_s in (("a b.json", 10, 50), ("b.json", 20, 40), ("c.json", 40, 30), ("day=1/d.json", 80, 20)):
        spark.write(name, size, age_s)
    # Those that Spark passes over.
    for name in (".hidden", "_SUCCESS", "e._COPYING_", "deep/f.json", "_day=1x/g"):
        spark.write(name)
    (spark.source / "_day=1x" / "g").unlink()
    count, size_bytes, oldest_ms = files.count(-1)
    assert (count, size_bytes) == (4, 150)
    assert oldest_ms is not None
    assert 45_000 < time.time() * 1000 - oldest_ms < 60_000
    spark.plan(0, "a b.json")
    spark.plan(1, "b.json")
    # Planned is not processed.
    assert files.count(0)[:2] == (3, 140)
    assert files.count(1)[:2] == (2, 120)
    spark.plan(2, "c.json", "day=1/d.json")
    assert files.count(2) == (0, 0, None)
    # One that has gone since waits no more, and one that was read does not wait because it is there.
    spark.write("h.json").unlink()
    assert files.count(2) == (0, 0, None)


def test_a_compacted_log_is_read_and_only_what_is_new(spark: Spark) -> None:
    files = spark.files("*.json")
    for number in range(12):
        spark.write(f"{number}.json")
        spark.plan(number, f"{number}.json")
    spark.write("other.csv")
    assert files.count(8)[0] == 3
    log = spark.log / "sources/0"
    lines = [line for n in range(10) for line in (log / str(n)).read_text().splitlines()[1:]]
    (log / "9.compact").write_text("\n".join(["v1", *lines]))
    for number in range(10):
        (log / str(number)).unlink()
    assert files.count(11)[0] == 0
    assert spark.files().count(11)[0] == 1


class Query:
    """A query that answers when it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = threading.Event()
        self.may.set()
        self.broken = False

    @property
    def lastProgress(self) -> Any:
        self.asked += 1
        self.may.wait(10)
        if self.broken:
            raise RuntimeError("the query is gone")
        said = [{"description": "KafkaV2[orders]", "endOffset": {"o": {"0": 1}}, "latestOffset": {"o": {"0": 4}}}]
        return type("Progress", (), {"json": json.dumps({"sources": said})})


def looking(monkeypatch: pytest.MonkeyPatch) -> SourceLag:
    monkeypatch.setattr(lag, "numbered_relations", lambda df: [None])
    return SourceLag(None, None, ["orders"], [], Path("/nowhere"), lambda: 3)  # type: ignore[arg-type]


def test_a_source_with_offsets_is_as_far_behind_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    query: Any = Query()
    sources = looking(monkeypatch)
    (found,) = sources.look(query)
    assert (found.name, found.what, found.offsets_behind) == ("orders", "KafkaV2[orders]", 3)
    assert (found.read_to, found.latest) == ({"o": {"0": 1}}, {"o": {"0": 4}})
    assert found.files_behind is None
    # Whoever asks all the time is told the same for a moment.
    assert sources.look(query) == [found]
    assert query.asked == 1


def test_a_slow_or_broken_source_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_WAIT_S", 0.05)
    monkeypatch.setattr(lag, "_MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(lag, "_PAUSE_FACTOR", 0)
    query: Any = Query()
    sources = looking(monkeypatch)
    query.may.clear()
    assert sources.look(query) == []
    # Nobody looks a second time meanwhile.
    assert sources.look(query) == []
    assert query.asked == 1
    query.may.set()
    deadline = time.monotonic() + 10
    while not (found := sources.look(query)):
        assert time.monotonic() < deadline
    query.broken = True
    # What was known last.
    assert sources.look(query) == found
