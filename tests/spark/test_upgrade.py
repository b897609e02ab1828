"""A job that goes on with another version of its program: what the old one stored is read, renamed, migrated."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

import strandline as sl
from strandline.format.manifest import OlderSchema
from tests.spark import small
from tests.spark.functions import Count, CountMore
from tests.spark.harness import Case, settle
from tests.spark.test_restore import manifests

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("before", "now"),
    [(("rocksdb", 2), ("rocksdb", 2)), (("rocksdb", 2), ("rocksdb", 3)), (("filesystem", 3), ("rocksdb", 2))],
)
def test_a_job_goes_on_with_another_type_name_and_uid(
    spark: Any, case: Case, before: tuple[str, int], now: tuple[str, int]
) -> None:
    """Also at another parallelism and on another backend at once."""
    stream = sl.stream(small.source(spark, case.root / "in"))
    shown: Counter[tuple[Any, ...]] = Counter()

    def go_on(process: Any, uid: str, how: tuple[str, int], kills: int = 0) -> None:
        sink = sl.sinks.memory()
        job = small.job(
            stream, case.root, case.local_dir, sink=sink, process=process, uid=uid, settings={"backend": how[0], "parallelism": how[1]},
            restart=sl.Restart(attempts=5, delay="50ms"),
        )  # fmt: skip
        case.add(1)
        with job.start(spark) as run:
            settle(run)
            for _ in range(kills):
                os.kill(run.status().keepers[0].pid, signal.SIGKILL)
                case.add(1)
                settle(run)
        shown.update(small.rows_of(sink))
        assert shown == small.counted([event["user"] for event in case.events])

    go_on(Count(), "count", before)
    wider = sl.uid("more", was="count")
    # The second attempt goes on from a checkpoint of the old program or of the new one: it fits both.
    go_on(CountMore(), wider, now, kills=1)
    (operator,) = max(manifests(case.root / "ck" / "small").items())[1].operators
    assert operator.uid == "more"
    states = {state.name: (state.schema_id, state.older) for state in operator.states}
    assert states["count"] == (1, {0: OlderSchema(value_type="bigint")})
    assert states["last"][0] == 0
    go_on(CountMore(), wider, now)
    with pytest.raises(sl.errors.IncompatibleStateError, match="the state 'count' is not declared any more") as caught:
        go_on(Count(), "more", now)
    assert 'write drop=["more.count", "more.last"]' in caught.value.hint
