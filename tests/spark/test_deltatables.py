"""Delta tables that are deleted and created again while a job reads them, in Spark's log as Delta 4.4.0 writes it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from py4j.protocol import Py4JError

from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.spark.sources import deltatables, identity
from strandline.spark.sources.deltatables import DeltaTable, DeltaTables
from strandline.spark.sources.identity import IdentityChecks

BATCH = 7
TABLE = DeltaTable("source 'a', Delta table '/data/t'", "/data/t", 1, None)


def files(table_id: str | None) -> Mapping[str, bytes]:
    """Return Spark's log of a query that reads Kafka and then the table."""
    offset = {
        "sourceVersion": 1,
        "reservoirId": table_id,
        "reservoirVersion": 3,
        "index": -1,
        "isStartingVersion": False,
    }
    line = "-" if table_id is None else json.dumps(offset)
    return {f"offsets/{BATCH}": f'v1\n{{}}\n{{"topic":{{"0":1}}}}\n{line}'.encode()}


class Table:
    """Stands for Delta: the answers that it gives of the table's id, the last one for ever."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, _: Any, __: DeltaTable) -> str:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def check(
    monkeypatch: pytest.MonkeyPatch, table: Table, known: str | None = "old", begun: str | None = None
) -> IdentityChecks:
    """Wait for the check of a checkpoint, in a run that began with an offset in the table `begun`."""
    monkeypatch.setattr(deltatables, "_current_id", table)
    monkeypatch.setattr(identity, "_RETRY_S", 0.01)
    spark: Any = None
    checks, until = IdentityChecks([DeltaTables(spark, [TABLE], files(begun), BATCH).compare]), time.monotonic() + 20
    while not checks.check(BATCH, files(known)):
        assert time.monotonic() < until
        time.sleep(0.002)
    return checks


def test_no_checkpoint_has_rows_of_a_table_that_was_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta compares ids only when a query starts, and reads on at the old table's version in the new one."""
    with pytest.raises(ConflictError, match=r"source 'a', Delta table '/data/t'.*its id was old, and is new"):
        check(monkeypatch, Table("new"))


def test_a_run_that_began_in_the_table_before_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart would begin there again, and Delta refuses the position only once it looks for more rows."""
    with pytest.raises(ConfigurationError, match="its id was old, and is new"):
        check(monkeypatch, Table("new"), begun="old")


def test_the_table_is_looked_at_once_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("old")
    checks = check(monkeypatch, table)
    assert checks.check(BATCH, files("old"))
    assert table.asked == 1


def test_a_checkpoint_waits_while_the_table_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(UnavailableError("away"), UnavailableError("away"), "old")
    check(monkeypatch, table)
    assert table.asked == 3
    with pytest.raises(ConflictError):
        check(monkeypatch, Table(UnavailableError("away"), "new"))


def test_a_table_without_an_offset_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("new")
    check(monkeypatch, table, known=None)
    assert table.asked == 0


def test_a_release_of_delta_that_gives_no_id_stops_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check(monkeypatch, Table(Py4JError("py4j.Py4JException: Method forTableWithSnapshot([]) does not exist")))
    assert "this release of Delta does not give the table's id" in caplog.text
