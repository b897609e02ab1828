"""What every sink must do, run against each of ours and the one of docs/sinks.md, as far as each promises it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.spark.sinks import transactional
from strandline.testing.sinks.conformance import (
    Check,
    Promise,
    Trial,
    checks,
    commits_come_from_another_thread,
    it_runs_and_closes,
    name_of,
)
from tests.ends import filesinks, inprocess
from tests.ends.filesinks import NEED_SPARK, frame
from tests.pages import run_page
from tests.soak import soaking

EXACT = (Promise.EXACTLY_ONCE, Promise.TAKES_BACK)

NO_SPARK: Any = None

Make = Callable[[Any, Path], Trial]
Kinds = dict[str, tuple[Make, tuple[Promise, ...]]]


def files(path: Path, visibility: Any = "checkpoint") -> Trial:
    return Trial(
        NO_SPARK,
        make=lambda: sl.sinks.files(f"file:{path}", format="json", visibility=visibility),
        visible=lambda: filesinks.visible(path).elements(),
        left=lambda: list(path.glob("_strandline/*/g*/*")),
    )


def memory(visibility: Any = "checkpoint") -> Trial:
    sink = sl.sinks.memory(visibility=visibility)
    return Trial(NO_SPARK, make=lambda: sink, visible=lambda: sink.rows)


def foreach(spark: Any, path: Path) -> Trial:
    path.mkdir()

    def keep(row: Any) -> None:
        (path / f"{row.n}-{uuid.uuid4()}").touch()

    return Trial(
        spark,
        make=lambda: sl.sinks.foreach(keep),
        visible=lambda: [int(file.name.partition("-")[0]) for file in path.iterdir()],
    )


def foreach_batch(spark: Any, path: Path) -> Trial:
    seen: list[int] = []
    return Trial(
        spark,
        make=lambda: sl.sinks.foreach_batch(lambda df, epoch: seen.extend(row.n for row in df.collect())),
        visible=lambda: seen,
    )


def parquet(spark: Any, path: Path) -> Trial:
    def visible() -> list[int]:
        return [n for file in filesinks.shown_files(path) for n in pq.read_table(file)["n"].to_pylist()]

    return Trial(spark, make=lambda: sl.sinks.files(str(path)), visible=visible)


def page(spark: Any, path: Path) -> Trial:
    trial: Trial = run_page("sinks.md", 2)["trial_of"](spark, path)
    return trial


WITHOUT_SPARK: Kinds = {
    "files": (lambda _, path: files(path), (*EXACT, Promise.LASTING)),
    "files, visible at once": (lambda _, path: files(path, "epoch"), (Promise.SEEN,)),
    "memory": (lambda _, path: memory(), EXACT),
    "memory, visible at once": (lambda _, path: memory("epoch"), (Promise.SEEN,)),
}
WITH_SPARK: Kinds = {
    "files": (parquet, (Promise.SEEN,)),
    "foreach": (foreach, (Promise.SEEN,)),
    "foreach_batch": (foreach_batch, (Promise.SEEN,)),
    "noop": (lambda spark, path: Trial(spark, make=sl.sinks.noop), ()),
    "of the page": (page, (Promise.SEEN,)),
}


RUN_WITHOUT_SPARK = {
    ("files", it_runs_and_closes), ("files", commits_come_from_another_thread),
    *(("of the page", check) for check in checks(Promise.SEEN) if check not in NEED_SPARK),
}  # fmt: skip
"""With Spark, these run the same lines of the sink as `test_a_sink_on_the_driver` and `test_a_target` do."""


def cases(kinds: Kinds) -> list[Any]:
    def marks(kind: str, check: Check) -> Any:
        return pytest.mark.soak if kinds is WITH_SPARK and (kind, check) in RUN_WITHOUT_SPARK else ()

    return [
        pytest.param(make, check, id=f"{kind}-{check.__name__}", marks=marks(kind, check))
        for kind, (make, promises) in kinds.items()
        for check in checks(*promises)
        if kinds is WITH_SPARK or check not in NEED_SPARK
    ]


# Of files, `test_file_sink_durable.py` crashes at whatever is done to them.
@pytest.mark.parametrize("crashes", [20, *soaking([60])])
@pytest.mark.parametrize(("make", "check"), cases(WITHOUT_SPARK))
def test_a_sink_on_the_driver(tmp_path: Path, make: Make, check: Check, crashes: int) -> None:
    trial = make(None, tmp_path / "place")
    trial.frame, trial.crashes = frame, crashes
    check(trial)


@pytest.mark.parametrize("small_bytes", [0, 4 << 20], ids=["by tasks", "by the driver"])
@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING), ids=name_of)
def test_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check, small_bytes: int) -> None:
    """That of the page, at every line of the sink and of what it has tasks do."""
    monkeypatch.setattr(transactional, "_SMALL_BYTES", small_bytes)
    trial = page(inprocess.Session(), tmp_path / "place")
    trial.crashes = 25
    check(trial)


@pytest.mark.spark
@pytest.mark.parametrize(("make", "check"), cases(WITH_SPARK))
def test_a_sink(spark: Any, tmp_path: Path, make: Make, check: Check) -> None:
    check(make(spark, tmp_path / "place"))


@pytest.mark.spark
@pytest.mark.parametrize("check", checks(Promise.SEEN), ids=name_of)
def test_the_console_shows_every_row(spark: Any, capsys: Any, check: Check) -> None:
    printed: list[str] = []

    def visible() -> list[int]:
        printed.extend(capsys.readouterr().out.splitlines())
        return [int(line.partition("=")[2]) for line in printed if line.startswith("  ")]

    check(Trial(spark, make=sl.sinks.console, visible=visible))
