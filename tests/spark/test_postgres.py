"""Rows into PostgreSQL: a real server that is killed, is away, hangs, refuses; what it holds then, read by its own client."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.spark.sinks import transactional
from strandline.spark.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.postgres import Server
from tests.spark import inprocess


@pytest.fixture
def dsn(postgresql: Server) -> str:
    return postgresql.database()


def numbers_of(server: Server, dsn: str) -> list[int]:
    with server.connect(dsn) as db:
        return [n for (n,) in db.execute("select n from results")]


def trial_of(server: Server, dsn: str, session: Any = None, **given: Any) -> Trial:
    with server.connect(dsn) as db:
        db.execute("create table results (n bigint" + (" primary key)" if "key" in given else ")"))
    return Trial(
        session or inprocess.Session(),
        make=lambda: sl.sinks.postgres(dsn, "results", **given),
        visible=lambda: numbers_of(server, dsn),
    )


KINDS = {"appended": {}, "by key": {"key": "n"}}


# A driver that dies leaves its connections open, and its process closes them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("small_bytes", [0, 4 << 20], ids=["by tasks", "by the driver"])
@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING), ids=name_of)
def test_conformance(
    postgresql: Server, dsn: str, monkeypatch: pytest.MonkeyPatch, check: Check, given: Any, small_bytes: int
) -> None:
    monkeypatch.setattr(transactional, "_SMALL_BYTES", small_bytes)
    trial = trial_of(postgresql, dsn, **given)
    trial.crashes = 3
    check(trial)
