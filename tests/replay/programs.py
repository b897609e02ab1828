"""Jobs whose epochs the tests replay: each fails, or not, at an event that its input names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import strandline as sl


class Total(sl.KeyedProcess):
    """Adds amounts up; fails on a negative one."""

    total = sl.Value("bigint", default=0)
    seen = sl.List("bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        before = self.total.value
        if event.amount < 0:
            raise ValueError(f"a negative amount after {before}")
        self.total.value = before + event.amount
        self.seen.append(event.amount)
        yield ctx.key, self.total.value


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write an input file, in one step."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / name)


def read(spark: Any, root: Path, schema: str, name: str = "in", files: int = 1) -> Any:
    """Return the stream of an input folder, a file for each epoch."""
    (root / name).mkdir(exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).json(str(root / name))


def job_of(root: Path, local_dir: Path, *outputs: Any, **checkpoints: Any) -> sl.Job:
    """Return a job that takes checkpoints on request, and is not restarted."""
    return sl.Job(
        "replayed",
        sinks=list(outputs),
        checkpoints=sl.Checkpoints(root / "ck", **{"every": None, "retain": 10, **checkpoints}),
        restart=sl.Restart.never(),
        settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB"),
    )


def totals(spark: Any, root: Path, local_dir: Path, process: sl.KeyedProcess | None = None) -> sl.Job:
    """Return the job that adds up amounts by card."""
    rows = sl.stream(read(spark, root, "card string, amount long")).where("amount is not null").key_by("card")
    added = rows.process(process or Total(), "card string, total bigint", uid="totals")
    return job_of(root, local_dir, added.to(sl.sinks.files(root / "out", format="json", name="rows")))
