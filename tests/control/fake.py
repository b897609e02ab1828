"""A run without Spark: what it is asked for happens when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from strandline.checkpoint.history import CheckpointStats, Phases, SinkStats
from strandline.control.profile import PartitionProfile, Profile
from strandline.control.recent import EpochStats, Interruption, OperatorTime, Recent
from strandline.control.status import (
    GraphNode,
    KeeperStatus,
    OperatorStatus,
    Savepoint,
    SourceStatus,
    StandbyStatus,
    State,
    Status,
)
from strandline.core.errors import CheckpointError
from strandline.core.heavykey import HeavyKey
from strandline.core.ids import CheckpointId, Epoch
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.keeper.lookups import FirstKeys, LookupResult, LookupTable, table_of, tables_of
from strandline.keeper.sampling import Samples
from strandline.runtime.reached import OriginStatus, WatermarkStatus
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.types.records import record_type

STATS = CheckpointStats(
    CheckpointId(7), "incremental", Epoch(12), "in_progress", 1_000, 2,
    phases=Phases(1250.0, 480.5, 95.0, 21.7), sinks=(SinkStats("out", 4.5, 1850.0), SinkStats("alerts", 130.0, 1977.2)),
)  # fmt: skip
HEAVY = HeavyKey({"card": "ann", "n": "7"}, 0.8, 0.02, 0)
KEEPER = KeeperStatus(
    "detect", 0, 4711, "here", 12, 3, 2, 1.5, 0.5, 0.0, {"keys": 9}, all_rows_in=900, all_rows_out=600, all_ms=4500.0,
    state_bytes=3 << 20, memory_bytes=64 << 20, recent_rows=900.0, heaviest_keys=[HEAVY],
)  # fmt: skip
OTHER = replace(
    KEEPER, partition=1, pid=4712, all_rows_in=100, state_bytes=None, memory_bytes=None, recent_rows=100.0,
    heaviest_keys=[],
)  # fmt: skip
PROFILE = Profile(
    "fraud",
    2.0,
    [
        PartitionProfile(
            "detect",
            0,
            Samples(2.0, 200, 20, 80, ["app.on_event", "app.score", "line 7"], [0, 1], [([0, 1, 2], 75), ([0], 25)]),
        ),
        PartitionProfile("detect", 1, Samples(2.0, 200, 200, 0, [], [], [])),
        PartitionProfile("top", 0, Samples(2.0, 200, 100, 0, ["app.rank", "app.on_event"], [], [([1, 0], 100)])),
    ],
)
STANDBYS = [
    StandbyStatus("detect", 0, "there", 7, 5 << 20, 6 << 20, 12.5),
    StandbyStatus("detect", 1),
]
FILES = SourceStatus(
    "clicks", "json files in /in", {"logOffset": 3}, files_behind=2, bytes_behind=2048, waiting_ms=5_000
)
KAFKA = SourceStatus("orders", "KafkaV2[Subscribe[orders]]", {"o": {"0": 5}}, {"o": {"0": 9}}, offsets_behind=4)
OPERATORS = [
    OperatorStatus("detect", "Detect", 2, 128, [replace(HEAVY, share=0.72, error=0.018)]),
    OperatorStatus("top", "Top", 1, 128),
]
ORIGINS = [
    OriginStatus("ann", "2026-01-01T00:00:00+00:00", 240_000),
    OriginStatus("cid", "2026-01-01T00:01:00+00:00", 900_000, idle=True),
    OriginStatus("bob", "2026-01-01T00:05:00+00:00", 0),
]
REACHED = WatermarkStatus("ts", "clicks", "2026-01-01T00:00:00+00:00", "ann", 3, 1, ORIGINS)
GRAPH = [
    GraphNode("source:clicks", "source", "clicks"),
    GraphNode("source:orders", "source", "orders"),
    GraphNode("operator:detect", "operator", "detect", "Detect", {"source:clicks": "", "source:orders": ""}),
    GraphNode("operator:top", "operator", "top", "Top", {"operator:detect": ""}),
    GraphNode("sink:out", "sink", "out", "file", {"operator:top": "", "operator:detect": "dead_letters"}),
]
RECENT = Recent(
    [STATS],
    [
        EpochStats(n, 1_700_000_000_000 + 1000 * n, 100 * n, 400.0, 80.0, 0.5, 7 if n == 12 else None, [
            OperatorTime("detect", 0, 210.0, 30.0, 150.0), OperatorTime("top", 0, 40.0, 5.0, 40.0),
        ])
        for n in (11, 12)
    ],
    [Interruption("failure", 1_700_000_000_000, 2_500, "it broke\nbadly", 5, 250)],
)  # fmt: skip

OPERATOR = OperatorInfo(
    uid="detect", backend="rocksdb", parallelism=2, max_parallelism=128, key_schema="card string, n bigint",
    states=[StateInfo(name="last", kind="value", value_type="struct<at: timestamp, sum: decimal(9,2)>")], partitions=[],
)  # fmt: skip
LAST = record_type(["at", "sum"])._make((datetime(2026, 1, 1, tzinfo=UTC), Decimal("7.50")))
STORED: dict[Any, Any] = {("ann", 7): LAST}
"""By key, what there is to look up in detect.last."""


class FakeRun:
    """Takes a checkpoint when `finish` is set, and stops at once; a checkpoint under way then fails."""

    def __init__(self, job: str = "alerts", state: State = "running") -> None:
        self.job = job
        self.state: State = state
        self.began = threading.Event()
        self.finish = threading.Event()
        self.stopped = threading.Event()
        self.asked: list[tuple[str, object]] = []
        self.on_stop: Callable[[], None] = lambda: None

    def glance(self) -> Status:
        return self.status()

    def status(self) -> Status:
        return Status(
            job=self.job, state=self.state, generation=3, restored_from=5, restarts=1, checkpoints={"completed": 2},
            last_checkpoint=STATS, last_failure="it broke\nbadly",
            last_failure_ms=1_700_000_000_000, epoch=12, watermarks=[REACHED], keepers=[KEEPER, OTHER],
            source_progress=[FILES, KAFKA], rows_in=1000, rows_per_s=2.5, uncovered_ms=3_000,
            parallelism=2, follows=True, operators=OPERATORS, standbys=STANDBYS, graph=GRAPH,
        )  # fmt: skip

    def recent(self) -> Recent:
        return RECENT

    def checkpoint(
        self, timeout: float | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        self.asked.append(("checkpoint", timeout))
        self.began.set()
        if progress is not None:
            progress(STATS)
        while not self.finish.wait(0.005):
            if self.stopped.is_set():
                raise CheckpointError("the checkpoint that was asked for was not taken: the run ended", checkpoint=7)
        return replace(STATS, status="completed", completed_ms=3_000, end_to_end_ms=2_000, total_bytes=2048)

    def savepoint(
        self,
        url: str | Path,
        *,
        format: str = "canonical",
        timeout: float | None = None,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> Savepoint:
        self.asked.append(("savepoint", (url, format, timeout)))
        if progress is not None:
            progress(SavepointProgress(rows=1000, done=1, partitions=2))
        return Savepoint(str(url), format, CheckpointId(7), Epoch(12), 2048, 1500)

    def rescale(self, parallelism: int | Mapping[str, int], *, timeout: float = 300.0) -> None:
        self.asked.append(("rescale", (parallelism, timeout)))

    def rollback(self, checkpoint: int, *, timeout: float = 300.0) -> None:
        self.asked.append(("rollback", (checkpoint, timeout)))

    def lookup_table(self, table: str) -> LookupTable:
        return table_of([OPERATOR], table)

    def lookup_tables(self) -> dict[str, LookupTable]:
        return tables_of([OPERATOR])

    def first_keys(self, table: str, most: int = 100, *, partition: int | None = None) -> FirstKeys:
        looked = self.lookup_table(table)
        looked.first_requests(most, partition, 0)
        keys = list(STORED)[:most]
        return FirstKeys(looked.name, Epoch(12), keys, [STORED[key] for key in keys], len(STORED) > most)

    def lookup(self, table: str, key: Any) -> LookupResult:
        looked = self.lookup_table(table)
        keys = key if isinstance(key, list) else [key]
        looked.requests(keys, 0)
        found = [STORED.get(each) for each in keys]
        return LookupResult(looked.name, Epoch(12), found if isinstance(key, list) else found[0])

    def profile(self, seconds: float = 5.0) -> Profile:
        self.asked.append(("profile", seconds))
        return PROFILE

    def stop(
        self,
        *,
        checkpoint: bool = False,
        savepoint: str | Path | None = None,
        drain: bool = False,
        format: str = "canonical",
        timeout: float = 60.0,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> None:
        how = (checkpoint, timeout) if savepoint is None else (savepoint, format, timeout)
        self.asked.append(("drain" if drain else "stop", how))
        self.state = "stopped"
        self.stopped.set()
        self.on_stop()
