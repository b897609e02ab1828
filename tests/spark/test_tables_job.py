"""One job into a Delta table, an Iceberg table and object storage: the same rows in each, whatever broke."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import strandline as sl
from strandline.core import failpoints
from strandline.storage.remote import open_store
from tests.seaweed import Seaweed
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_a_job_into_tables_and_object_storage(spark: Any, s3: Seaweed, case: Case, tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/warehouse"}
    delta, files, users = s3.url(f"{uuid4()}/delta"), s3.url(f"{uuid4()}/files"), []

    def job() -> sl.Job:
        rows = sl.stream(small.source(spark, case.root / "in")).key_by("user")
        counted = rows.process(Count(), output=small.OUTPUT, uid="count")
        return sl.Job(
            "small",
            sinks=[
                counted.to(sl.sinks.delta(delta, storage_options=s3.options, name="delta")),
                counted.to(sl.sinks.iceberg(catalog, "counts.latest", key="user", name="iceberg")),
                counted.to(sl.sinks.files(files, format="json", storage_options=s3.options, name="files")),
            ],
            checkpoints=sl.Checkpoints(case.root / "ck"),
            restart=sl.Restart(attempts=3, delay="10ms"),
            settings=sl.Settings(parallelism=2, local_dir=case.local_dir),
        )

    def add(number: int) -> None:
        rows = [(f"u{n % 5}", "k", 1.0) for n in range(number * 3, number * 3 + 7)]
        users.extend(user for user, *_ in rows)
        small.write_rows(case.root / "in", number, rows)

    def lose() -> None:
        raise OSError("the connection is gone")

    add(0)
    with job().start(spark) as run:
        settle(run)
        # The table has the rows, and nobody is told.
        failpoints.arm("sink.table_committed", lose)
        add(1)
        assert settle(run).restarts == 0
    add(2)
    with job().start(spark) as run:
        assert settle(run).restored_from
        (first, second) = run.status().sinks[:2]
        assert (first.name, first.waiting_rows, second.waiting_rows) == ("delta", 0, 0)

    wanted = small.counted(users)
    table = DeltaTable(delta, storage_options=s3.options).to_pyarrow_table()
    assert Counter(_pairs(table)) == wanted
    store = open_store(files, s3.options)
    shown = [store.get(info.path) for info in store.list("") if "/" not in info.path]
    lines = [json.loads(line) for data in shown for line in io.BytesIO(data)]
    assert Counter((line["user"], line["n"]) for line in lines) == wanted
    latest = load_catalog(**catalog).load_table("counts.latest").scan().to_arrow()
    assert dict(_pairs(latest)) == Counter(users)


def _pairs(table: Any) -> list[tuple[str, int]]:
    return [(row["user"], row["n"]) for row in table.select(["user", "n"]).to_pylist()]
