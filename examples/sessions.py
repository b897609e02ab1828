"""Cut each user's clicks into sessions: a pause of more than ten minutes begins a new one.

python -m examples.sessions
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import strandline as sl
from examples._inputs import in_temporary_directory, show, write_json

Row = dict[str, Any]
GAP = timedelta(minutes=10)


def summary(user: str, window: Any, events: list[Any]) -> Iterator[Row]:
    """One row for each session; the key's columns and the window's bounds come by themselves."""
    in_order = sorted(events, key=lambda event: event.at)
    yield {"clicks": len(events), "entry": in_order[0].page, "exit": in_order[-1].page}


def clicks() -> list[Row]:
    rng, at, rows = random.Random(2), datetime(2026, 1, 1, tzinfo=UTC), []
    for _ in range(150):
        at += timedelta(seconds=rng.randrange(1, 240))
        rows.append({"user": f"user-{rng.randrange(5)}", "page": f"/{rng.randrange(9)}", "at": at.isoformat()})
    return rows


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("user string, page string, at timestamp").option("maxFilesPerTrigger", 1)
    sessions = (
        sl.stream(df.json(str(home / "in")))
        .watermark("at", delay="1 min")  # which column is the time, and how late an event may come
        .key_by("user")
        .window(sl.Session("10 min"))
        .process(summary, output="clicks int, entry string, exit string", uid="sessions")
    )
    return sl.Job(
        "sessions",
        sinks=[sessions.to(sl.sinks.files(str(home / "out"), format="json"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
        drain=True,  # nothing comes any more: sessions that are open end, too
    )


def expected(rows: list[Row]) -> Iterator[Row]:
    """What must come of it, in plain Python: but for the sessions' bounds."""
    sessions: dict[str, list[list[Row]]] = defaultdict(list)
    for row in rows:
        of_user = sessions[row["user"]]
        if not of_user or datetime.fromisoformat(row["at"]) - datetime.fromisoformat(of_user[-1][-1]["at"]) > GAP:
            of_user.append([])
        of_user[-1].append(row)
    for user, of_user in sessions.items():
        for one in of_user:
            yield {"user": user, "clicks": len(one), "entry": one[0]["page"], "exit": one[-1]["page"]}


def main(home: Path) -> None:
    write_json(home / "in", clicks())
    spark = sl.session("sessions")
    build(spark, home).start(spark).await_termination()
    show(home / "out")
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
