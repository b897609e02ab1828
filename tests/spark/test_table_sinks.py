"""Sinks of table formats, on trial without a JVM, and what is theirs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

import strandline as sl
from strandline.spark.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.spark import inprocess

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


def delta(path: Path, **options: Any) -> Trial:
    trial = Trial(
        SESSION, make=lambda: sl.sinks.delta(path, **options), visible=lambda: [row["n"] for row in delta_rows(path)]
    )
    trial.crashes = 8
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


def iceberg(path: Path, **options: Any) -> Trial:
    catalog = catalog_in(path)
    trial = Trial(
        SESSION,
        make=lambda: sl.sinks.iceberg(catalog, "results.numbers", **options),
        visible=lambda: [row["n"] for row in iceberg_rows(catalog)],
    )
    trial.crashes = 3
    return trial


@pytest.mark.parametrize("check", APPENDED, ids=name_of)
def test_iceberg(tmp_path: Path, check: Check) -> None:
    check(iceberg(tmp_path / "place"))


@pytest.mark.parametrize("check", MERGED, ids=name_of)
def test_iceberg_by_key(tmp_path: Path, check: Check) -> None:
    check(iceberg(tmp_path / "place", key="n"))


@pytest.mark.parametrize("check", APPENDED, ids=name_of)
def test_delta(tmp_path: Path, check: Check) -> None:
    check(delta(tmp_path / "table"))


@pytest.mark.parametrize("check", MERGED, ids=name_of)
def test_delta_by_key(tmp_path: Path, check: Check) -> None:
    check(delta(tmp_path / "table", key="n"))
