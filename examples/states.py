"""Every kind of state in one function: value, list, map, reducing, aggregating.

python -m examples.states
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, write_json

OUTPUT = (
    "n bigint, machine string, since string, last3 array<double>, faults map<string, int>, highest double, mean double"
)


class Machine(sl.KeyedProcess):
    """Keyed by machine: a row with something from every state for each reading."""

    # One value a key; with a struct, several. Reads give a named tuple, and a tuple or dict can be assigned.
    status = sl.Value("struct<name: string, since: timestamp>")
    # A list a key. Appending reads nothing, however long it is.
    recent = sl.List("double")
    # A dict a key. Each entry is stored, read and written on its own.
    faults = sl.Map("string", "int")
    # One value a key: what `max` makes of everything that was added.
    highest = sl.Reducing("double", max)
    # An accumulator a key, and a result computed from it.
    mean = sl.Aggregating(
        "struct<count: bigint, total: double>",
        create=lambda: (0, 0.0),
        add=lambda acc, x: (acc[0] + 1, acc[1] + x),
        result=lambda acc: acc[1] / acc[0],
    )

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        if not self.status.exists() or self.status.value.name != event.status:
            self.status.value = (event.status, event.ts)
        if event.status == "serviced":
            self.faults.clear()
        elif event.status != "ok":
            self.faults[event.status] = self.faults.get(event.status, 0) + 1
        self.recent.append(event.heat)
        if len(self.recent) > 3:
            self.recent.set(self.recent[-3:])
        self.highest.add(event.heat)
        self.mean.add(event.heat)
        yield {
            "n": event.n,
            "machine": ctx.key,
            "since": self.status.value.since.isoformat(),
            "last3": self.recent.get(),
            "faults": dict(self.faults),
            "highest": self.highest.value,
            "mean": self.mean.result(),
        }


def readings() -> list[dict[str, Any]]:
    rng = random.Random(4)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    states = ["ok", "ok", "hot", "jammed", "serviced"]
    return [
        {
            "n": n,
            "machine": f"m{rng.randrange(6)}",
            "status": rng.choice(states),
            "heat": round(rng.uniform(20, 90), 1),
            "ts": (start + timedelta(minutes=n)).isoformat(),
        }
        for n in range(240)
    ]


def build(spark: Any, home: Path) -> sl.Job:
    schema = "n bigint, machine string, status string, heat double, ts timestamp"
    df = spark.readStream.schema(schema).json(str(home / "in"))
    rows = (
        sl.stream(df)
        .key_by("machine", order_by="n")  # without order_by, the order within an epoch is the shuffle's
        .process(Machine(), output=OUTPUT, uid="machine")
    )
    return sl.Job(
        "states",
        sinks=[rows.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def main(home: Path) -> None:
    write_json(home / "in", readings())
    spark = sl.session("states")
    build(spark, home).start(spark).await_termination()
    spark.read.schema(OUTPUT).json(str(home / "out")).orderBy("n").show(10, truncate=False)
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
