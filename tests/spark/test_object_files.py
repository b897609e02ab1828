"""The file sink in object storage, on trial without a JVM, and its formats as Spark and others read them."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.spark.sinks.conformance import Check, Promise, Trial, checks, name_of
from strandline.storage.remote import open_store
from tests.spark import inprocess

SESSION: Any = inprocess.Session()


def shown(url: str, options: dict[str, str]) -> dict[str, bytes]:
    """Return what is directly below a url."""
    store = open_store(url, options)
    return {info.path: store.get(info.path) for info in store.list("") if "/" not in info.path}


def trial_at(s3: Any) -> Trial:
    url = s3.url(f"files-{uuid.uuid4().hex[:8]}")

    def visible() -> list[int]:
        return [n for data in shown(url, s3.options).values() for n in pq.read_table(io.BytesIO(data))["n"].to_pylist()]

    def left() -> list[str]:
        return [info.path for info in open_store(url, s3.options).list("_strandline") if "/g" in info.path]

    trial = Trial(SESSION, lambda: sl.sinks.files(url, storage_options=s3.options), visible, left)
    trial.crashes = 4
    return trial


@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING, Promise.TAKES_BACK), ids=name_of)
def test_files_in_object_storage(s3: Any, check: Check) -> None:
    check(trial_at(s3))
