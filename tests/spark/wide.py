"""A job whose epochs are in mid-stream for long, with operators that a test can have strike, and what it must give.

Rows are wide, files are many, and no operator is ordered: shuffled rows flow while they are read, block after block.
Two operators in a chain; what the first one gives is read three times, by two sinks and by the second. With a second
source, there is an operator on that, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import strandline as sl
from tests.spark import pipeline
from tests.spark.strikes import strike

SCHEMA = "seq bigint, user string, kind string"
_PAD = "array_join(transform(sequence(1, 40), i -> sha2(concat(seq, '-', i), 512)), '')"
_USERS = 12
_KINDS = 40
FILES = 4
"""In an epoch, each a block of its own in every shuffle."""
ROWS = 300
"""In a file: some 800 kB for each of two partitions, mostly more than fits between Spark and a keeper."""
_MANY = 1_000_000
REPORT = "report"
"""The kind of the events that a silent operator answers."""


class Counted(sl.KeyedProcess):
    """Counts by key, in whatever order events come."""

    seen = sl.Value("bigint", default=0)

    def __init__(self, strikes: str, uid: str, silent: bool) -> None:
        self._strikes = strikes
        self._uid = uid
        self._silent = silent

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        strike(self._strikes, self._uid, event.seq)
        self.seen.value += 1
        if self._silent and event.kind != REPORT:
            return
        yield {"key": ctx.key, "n": self.seen.value, "seq": event.seq, "kind": event.kind, "pad": event.pad}


OUTPUT = "key string, n bigint, seq bigint, kind string, pad string"


class Wide:
    """The job's input below a directory, and what its sinks must show.

    Silent, its operators give nothing before `report`. Then nobody reads in vain from a worker whose rows broke off, and
    Spark, which finds out only when it reads, leaves it alone: it may take what came for all there is.
    """

    def __init__(
        self, root: Path, seed: int, sources: Sequence[str] = ("a",), *, silent: bool = False, rows: int = ROWS
    ) -> None:
        self.root = root
        self._silent = silent
        self.rows = rows
        self.strikes = root / "strikes"
        self.strikes.mkdir(exist_ok=True)
        self.sources = sources
        self.seed = seed
        self.events: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        self._files = 0

    @property
    def uids(self) -> list[str]:
        """The operators."""
        return [*self.sources, *([] if self._silent else ["kinds"])]

    def add(self) -> dict[str, list[dict[str, Any]]]:
        """Add files, of an epoch or, after a restart, of a part of one, and return what is in them."""
        added: dict[str, list[dict[str, Any]]] = {name: [] for name in self.sources}
        for _ in range(FILES):
            for name in self.sources:
                events = self._events(name)
                self.events[name] += events
                added[name] += events
                pipeline.write_events(self.root / f"in-{name}", self._files, events)
            self._files += 1
        return added

    def report(self) -> None:
        """Have each key say what it has counted."""
        for name in self.sources:
            events = [{"seq": self._files * _MANY + i, "user": f"u{i}", "kind": REPORT} for i in range(_USERS)]
            self.events[name] += events
            pipeline.write_events(self.root / f"in-{name}", self._files, events)
        self._files += 1

    def _events(self, name: str) -> list[dict[str, Any]]:
        rng = random.Random(f"{self.seed}-{name}-{self._files}")
        return [
            {"seq": self._files * _MANY + i, "user": f"u{rng.randrange(_USERS)}", "kind": f"k{rng.randrange(_KINDS)}"}
            for i in range(self.rows)
        ]

    def build(self, spark: Any, local_dir: Path, parallelism: int = 2) -> sl.Job:
        """Return the job; `spark` must read each file in a task of its own: see `SESSION_CONF`."""
        outputs = []
        for name in self.sources:
            counted = self._source(spark, name).key_by("user").process(self._counted(name), output=OUTPUT, uid=name)
            outputs.append(counted.select("key", "n", "seq").to(self._sink(name)))
            if name == "a":
                outputs.append(counted.select("seq").to(self._sink("again")))
                kinds = counted.key_by("kind").process(self._counted("kinds"), output=OUTPUT, uid="kinds")
                outputs.append(kinds.select("key", "n", "seq").to(self._sink("kinds")))
        return sl.Job(
            "wide",
            sinks=outputs,
            checkpoints=sl.Checkpoints(self.root / "ck", every="500ms", retain=2),
            restart=sl.Restart(attempts=10, delay="50ms"),
            settings=sl.Settings(parallelism=parallelism, local_dir=local_dir, state_memory="128MB"),
        )

    def _source(self, spark: Any, name: str) -> sl.Stream:
        (self.root / f"in-{name}").mkdir(exist_ok=True)
        files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES).json(str(self.root / f"in-{name}"))
        return sl.stream(files, name=name).select_expr("*", f"{_PAD} as pad")

    def _counted(self, uid: str) -> Counted:
        return Counted(str(self.strikes), uid, self._silent)

    def _sink(self, name: str) -> sl.sinks.Sink:
        return sl.sinks.files(str(self.root / "out" / name), format="json", name=name)

    def given_up(self, local_dir: Path) -> int:
        """Return how often a keeper was left in the middle of an epoch."""
        logs = (local_dir / "logs" / "wide").glob("*.log")
        return sum(path.read_text().count("epoch given up at version") for path in logs)

    def is_complete(self) -> bool:
        """Whether each event of the sources is shown."""
        rows = [pipeline.read_json(self.root / "out" / name) for name in self.sources]
        return [len(found) for found in rows] == [len(self.events[name]) for name in self.sources]

    def check(self) -> None:
        """Assert that the sinks show each event once, and that the state has counted each once."""
        if self._silent:
            self._check_report()
            return
        keyed = dict.fromkeys(self.sources, "user") | {"kinds": "kind"}
        for name, column in keyed.items():
            events = self.events["a" if name == "kinds" else name]
            rows = pipeline.read_json(self.root / "out" / name)
            seen = Counter((row["key"], row["seq"]) for row in rows)
            _same(f"events that {name} shows", seen, Counter((e[column], e["seq"]) for e in events))
            per_key = Counter(e[column] for e in events)
            counts = Counter((key, n + 1) for key, times in per_key.items() for n in range(times))
            _same(f"counts of {name}", Counter((row["key"], row["n"]) for row in rows), counts)
        again = Counter(row["seq"] for row in pipeline.read_json(self.root / "out" / "again"))
        _same("events that are shown again", again, Counter(e["seq"] for e in self.events["a"]))

    def _check_report(self) -> None:
        for name in self.sources:
            rows = pipeline.read_json(self.root / "out" / name)
            wanted = Counter(Counter(e["user"] for e in self.events[name]).items())
            _same(f"what {name} has counted", Counter((row["key"], row["n"]) for row in rows), wanted)


def use_small_batches(put: Callable[[str, str], Any]) -> None:
    """Change what the exchange sets on its sessions: batches are far smaller than an epoch."""
    put("spark.sql.execution.arrow.maxRecordsPerBatch", "40")


SESSION_CONF = {"spark.sql.files.maxPartitionBytes": "1MB", "spark.sql.files.openCostInBytes": "1MB"}


def _same(what: str, seen: Counter[Any], wanted: Counter[Any]) -> None:
    assert not seen - wanted, f"{what}: too many: {list((seen - wanted).items())[:5]}"
    assert not wanted - seen, f"{what}: missing: {list((wanted - seen).items())[:5]}"
