"""A pipeline with two keyed operators and every kind of state, and what it must give: a plain-Python oracle."""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import strandline as sl

EVENT_SCHEMA = "seq bigint, user string, kind string, v bigint"


class Profile(sl.KeyedProcess):
    """Keyed by user: one row an event, with something from every state."""

    seen = sl.Value("bigint", default=0)
    last = sl.Value("struct<kind: string, v: bigint>")
    history = sl.List("bigint")
    by_kind = sl.Map("string", "bigint")
    highest = sl.Reducing("bigint", max)
    mean = sl.Aggregating(
        "struct<n: bigint, total: double>",
        create=lambda: (0, 0.0),
        add=lambda acc, v: (acc[0] + 1, acc[1] + v),
        result=lambda acc: acc[1] / acc[0],
    )

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        before = self.last.value
        self.seen.value += 1
        self.last.value = (event.kind, event.v)
        self.history.append(event.v)
        self.by_kind[event.kind] = self.by_kind.get(event.kind, 0) + 1
        self.highest.add(event.v)
        self.mean.add(event.v)
        if self.seen.value % 7 == 0:
            self.history.set(self.history.get()[-3:])
        yield {
            "user": ctx.key,
            "n": self.seen.value,
            "before": before.kind if before else None,
            "history": sum(self.history.get()[-3:]),
            "kinds": len(self.by_kind),
            "kind": event.kind,
            "of_kind": self.by_kind[event.kind],
            "highest": self.highest.value,
            "mean": self.mean.result(),
        }


PROFILE_OUTPUT = "user string, n bigint, before string, history bigint, kinds int, kind string, of_kind bigint, highest bigint, mean double"


class PerKind(sl.KeyedProcess):
    """Keyed by kind, behind Profile: counts, in whatever order rows come."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (ctx.key, self.seen.value)


def oracle(events: Iterable[dict[str, Any]]) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """Return the rows that both operators must give for these events, each as often as it must appear."""
    profiles: Counter[tuple[Any, ...]] = Counter()
    kinds: Counter[tuple[Any, ...]] = Counter()
    seen: Counter[str] = Counter()
    per_kind: Counter[str] = Counter()
    of_kind: dict[str, Counter[str]] = defaultdict(Counter)
    values: dict[str, list[int]] = defaultdict(list)
    last: dict[str, str] = {}
    for e in events:
        user, kind, v = e["user"], e["kind"], e["v"]
        seen[user] += 1
        of_kind[user][kind] += 1
        values[user].append(v)
        mean = sum(values[user]) / len(values[user])
        profiles[
            user, seen[user], last.get(user), sum(values[user][-3:]), len(of_kind[user]), kind, of_kind[user][kind],
            max(values[user]), mean,
        ] += 1  # fmt: skip
        last[user] = kind
        per_kind[kind] += 1
        kinds[kind, per_kind[kind]] += 1
    return profiles, kinds


def events_of(seed: int, file: int, rows: int = 60, users: int = 25) -> list[dict[str, Any]]:
    """Return the events of one input file, always the same for a seed."""
    rng = random.Random(f"{seed}-{file}")
    return [
        {
            "seq": file * 1_000_000 + i,
            "user": f"u{rng.randrange(users)}",
            "kind": rng.choice("abcd"),
            "v": rng.randrange(1000),
        }
        for i in range(rows)
    ]


def write_file(directory: Path, seed: int, file: int, rows: int = 60) -> list[dict[str, Any]]:
    """Add one input file atomically and return its events."""
    events = events_of(seed, file, rows)
    write_events(directory, file, events)
    return events


def write_events(directory: Path, file: int, events: list[dict[str, Any]]) -> None:
    """Add these events as one input file, atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{file:05d}.json"
    hidden.write_text("".join(json.dumps(e) + "\n" for e in events))
    # The file source reads files by age: without this, files made in one millisecond come in any order.
    os.utime(hidden, (1_700_000_000 + file, 1_700_000_000 + file))
    hidden.rename(directory / f"{file:05d}.json")


def build(
    spark: Any, source: Path, out: Path, name: str = "pipeline", kinds_parallelism: int | None = None,
    short: bool = False, **kwargs: Any,
) -> sl.Job:  # fmt: skip
    """Return the job: both operators, or the first alone, each into a file sink of its own."""
    df = spark.readStream.schema(EVENT_SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    # Ordered, because after a restart the file source may give two files to one epoch.
    users = sl.stream(df).key_by("user", order_by="seq")
    profiles = users.process(Profile(), output=PROFILE_OUTPUT, uid="profile")
    sinks = [profiles.to(sl.sinks.files(str(out / "profiles"), format="json"))]
    if short:
        return sl.Job(name, sinks=sinks, **kwargs)
    kinds = profiles.key_by("kind").process(
        PerKind(), output="kind string, n bigint", uid="per-kind", parallelism=kinds_parallelism
    )
    sinks.append(kinds.to(sl.sinks.files(str(out / "kinds"), format="json")))
    return sl.Job(name, sinks=sinks, **kwargs)


def visible(out: Path) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
    """Return what a reader of both sinks sees."""
    names = [part.split()[0] for part in PROFILE_OUTPUT.split(", ")]
    profiles = Counter(tuple(row.get(name) for name in names) for row in read_json(out / "profiles"))
    kinds = Counter((row["kind"], row["n"]) for row in read_json(out / "kinds"))
    return profiles, kinds


def read_json(directory: Path) -> list[dict[str, Any]]:
    """Read the files that a reader of a directory would."""
    if not directory.exists():
        return []
    files = [f for f in sorted(directory.iterdir()) if f.is_file() and not f.name.startswith(("_", "."))]
    return [row for file in files for row in _rows_of(file)]


_known: dict[Path, tuple[tuple[int, ...], list[dict[str, Any]]]] = {}
"""What files held, and which they were then: those who look on do so all the time."""


def _rows_of(file: Path) -> list[dict[str, Any]]:
    found = file.stat()
    identity = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if _known.get(file, (None,))[0] != identity:
        _known[file] = identity, [json.loads(line) for line in file.read_text().splitlines()]
    return _known[file][1]
