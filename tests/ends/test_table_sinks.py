"""Sinks of table formats, on trial without a JVM, and what is theirs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

import strandline as sl
from strandline.core.ids import Epoch
from strandline.testing.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.ends import inprocess
from tests.soak import soaking

APPENDED = checks(Promise.EXACTLY_ONCE, Promise.LASTING, Promise.TAKES_BACK)
MERGED = checks(Promise.EXACTLY_ONCE, Promise.LASTING)
SESSION: Any = inprocess.Session()


def delta_rows(path: Path | str, **options: Any) -> list[dict[str, Any]]:
    try:
        table = DeltaTable(str(path), **options)
    except Exception:
        return []
    rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return rows


def delta(path: Path, crashes: int, **options: Any) -> Trial:
    trial = Trial(
        SESSION,
        make=lambda: sl.sinks.delta(path, **options),
        visible=lambda: [row["n"] for row in delta_rows(path)],
        left=lambda: list(path.glob("_strandline/*/g*/*")),
    )
    trial.crashes = crashes
    return trial


def catalog_in(path: Path) -> dict[str, str]:
    path.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def iceberg_rows(catalog: dict[str, str]) -> list[dict[str, Any]]:
    try:
        table = load_catalog(**catalog).load_table("results.numbers")
    except (NoSuchTableError, NoSuchNamespaceError):
        return []
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


def iceberg(path: Path, crashes: int, **options: Any) -> Trial:
    catalog = catalog_in(path)
    trial = Trial(
        SESSION,
        make=lambda: sl.sinks.iceberg(catalog, "results.numbers", **options),
        visible=lambda: [row["n"] for row in iceberg_rows(catalog)],
        left=lambda: list(path.glob("warehouse/*/*/data/_strandline/*/g*/*")),
    )
    trial.crashes = crashes
    return trial


LASTING = {check for check in APPENDED if "crash" in name_of(check) or "older" in name_of(check)}
"""What is tried of each kind; the others run the same lines with Delta, and all of it in soak tests."""


def some(many: list[Check]) -> list[Any]:
    return [pytest.param(c, marks=() if c in LASTING else pytest.mark.soak, id=name_of(c)) for c in many]


MANY = pytest.mark.parametrize("crashes", [3, *soaking([15])])


@MANY
@pytest.mark.parametrize("check", APPENDED, ids=name_of)
def test_delta(tmp_path: Path, check: Check, crashes: int) -> None:
    check(delta(tmp_path / "table", crashes))


@MANY
@pytest.mark.parametrize("check", some(MERGED))
def test_delta_by_key(tmp_path: Path, check: Check, crashes: int) -> None:
    check(delta(tmp_path / "table", crashes, key="n"))


@MANY
@pytest.mark.parametrize("check", some(APPENDED))
def test_iceberg(tmp_path: Path, check: Check, crashes: int) -> None:
    check(iceberg(tmp_path / "place", crashes))


@MANY
@pytest.mark.parametrize("check", some(MERGED))
def test_iceberg_by_key(tmp_path: Path, check: Check, crashes: int) -> None:
    check(iceberg(tmp_path / "place", crashes, key="n"))


@pytest.mark.parametrize("kind", [delta, iceberg])
def test_a_rollback_behind_a_rename_takes_rows_back_under_the_old_name_too(tmp_path: Path, kind: Any) -> None:
    trial: Trial = kind(tmp_path / "table", 3)
    before = trial.start()
    first, second = trial.stage(before, 1), trial.stage(before, 2)
    before.commit(first)
    before.commit(second)
    named = trial.open(name="named")
    named.recover([], Epoch(2), fresh=False)
    named.commit(trial.stage(named, 3))
    trial.expect(1, 2, 3)
    for _ in range(2):
        named = trial.open(name="named", gone=["out"])
        named.recover([], Epoch(1), fresh=False)
        trial.expect(1)
    named.commit(trial.stage(named, 2, version=1))
    trial.expect(1, (2, 1))
    # And back to the name that it had.
    before = trial.open(gone=["named"])
    before.recover(first, Epoch(1), fresh=False)
    trial.expect(1)
    before.commit(trial.stage(before, 2, version=2))
    trial.expect(1, (2, 2))
