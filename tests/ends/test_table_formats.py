"""Sinks of table formats on what stands for all of them: statistics, object storage, and the page of the docs."""

from __future__ import annotations

import datetime
import json
import re
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    DateType,
    StringType,
    StructField,
    StructType,
)

import strandline as sl
from strandline.core.errors import (
    AccessError,
    ConfigurationError,
)
from strandline.ends.tables.datafiles import statistics_of
from strandline.testing.sinks.conformance import (
    Promise,
    Trial,
    checks,
    lives_and_sinks_share_a_place,
    name_of,
)
from tests.ends.tableplaces import NAMES, SESSION, Place, stage, tried
from tests.lossy import Proxy
from tests.pages import run_page

# -- statistics, by which readers leave files out

VALUES = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "s": (pa.string(), st.text(max_size=80)),
    "d": (pa.date32(), st.dates()),
    "t": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    "u": (pa.timestamp("us"), st.datetimes()),
}

ROWS = st.lists(st.fixed_dictionaries({name: st.none() | kind for name, (_, kind) in VALUES.items()}), max_size=8)


@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_statistics_hold_every_value(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=3)
    said = json.loads(statistics_of(out.getvalue().to_pybytes()))
    assert said["numRecords"] == len(rows)
    for name, nulls in said["nullCount"].items():
        assert nulls == sum(row[name] is None for row in rows)
        for row in rows:
            if row[name] is None or name not in said["minValues"]:
                continue
            low, high = (_value(name, said[end][name]) for end in ("minValues", "maxValues"))
            assert low <= row[name] <= high


def _value(name: str, said: Any) -> Any:
    if name == "d":
        return datetime.date.fromisoformat(said)
    return datetime.datetime.fromisoformat(said) if name in "tu" else said


# -- in object storage


# That lives share a place, `test_delta` shows with a directory: it is a matter of paths.
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=name_of(check), marks=pytest.mark.soak if check is lives_and_sinks_share_a_place else ())
        for check in checks(Promise.LASTING, Promise.TAKES_BACK)[-3:]
    ],
)
def test_delta_in_object_storage(s3: Any, check: Any) -> None:
    url = s3.url(f"delta-{uuid.uuid4().hex[:8]}")

    def visible() -> list[int]:
        numbers: list[int] = DeltaTable(url, storage_options=s3.options).to_pyarrow_table()["n"].to_pylist()
        return numbers

    trial = Trial(SESSION, lambda: sl.sinks.delta(url, storage_options=s3.options), visible)
    trial.crashes = 2
    check(trial)


def test_the_driver_does_not_stand_still_while_storage_answers(s3: Any) -> None:
    """The proxy is a thread of this process: a library that holds Python's lock would wait for it in vain."""
    proxy = Proxy(int(s3.options["endpoint"].rpartition(":")[2]))
    options = {**s3.options, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    url = s3.url(f"delta-{uuid.uuid4().hex[:8]}")
    trial = Trial(SESSION, lambda: sl.sinks.delta(url, storage_options=options), list)
    sink = trial.start()
    started = time.monotonic()
    assert not sink.commit(trial.stage(sink, 1))
    assert not sink.commit(trial.stage(sink, 2))
    assert time.monotonic() - started < 30
    proxy.close()


def test_iceberg_in_object_storage(s3: Any, tmp_path: Path) -> None:
    place = Place("iceberg", tmp_path / "place")
    place.catalog |= {
        "warehouse": s3.url("warehouse"),
        "s3.endpoint": s3.options["endpoint"],
        "s3.access-key-id": s3.options["access_key_id"],
        "s3.secret-access-key": s3.options["secret_access_key"],
        "s3.region": "us-east-1",
    }
    sink = place.start()
    first = stage(sink, 1, [(1, "a")])
    sink.commit(first)
    sink = place.start(first, 1, key="k")
    sink.commit(stage(sink, 2, [(1, "b")]))
    assert place.pairs() == [(1, "b")]


def test_wrong_credentials_are_told_without_them(s3: Any) -> None:
    options = {**s3.options, "secret_access_key": "not-the-right-secret"}
    with pytest.raises(AccessError, match=r"access was refused") as refused:
        tried(sl.sinks.delta(s3.url("secret"), storage_options=options), NAMES)
    assert not any(part in str(refused.value) for part in ("not-the-right", s3.options["access_key_id"]))
    assert "not-the-right" not in repr(vars(refused.value))


def test_the_page_of_tables(tmp_path: Path) -> None:
    edit = lambda code: re.sub(r'(")tables/|(///)/?tables/', rf"\1\2{tmp_path}/", code)  # noqa: E731
    made = run_page("tables.md", 1, edit)
    schema = StructType([*NAMES.fields, StructField("shop", StringType()), StructField("day", DateType())])
    tried(made["orders"], schema)
    tried(made["totals"], schema)
    with pytest.raises(ConfigurationError, match="key names column 'order_id'"):
        tried(made["latest"], schema)
    assert made["raw"].format == "json"
    assert not list(tmp_path.rglob("*.parquet"))
