"""Views whose texts change between two starts of a job: what goes on from a savepoint, what is computed anew, and what is refused."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.spark.job.checking import check_upgrade

pytestmark = pytest.mark.spark
SCHEMA = "id bigint, shop string, amount bigint, at timestamp"
Row = tuple[int, str, int, str]
OLD = {
    "totals": "SELECT shop, count(*) AS n, max(amount) AS m FROM orders GROUP BY shop",
    "numbers": "SELECT n, count(*) AS shops FROM totals GROUP BY n",
    "hours": "SELECT date_format(window.start, 'HH') AS h, shop, count(*) AS n, max(amount) AS m FROM clicks "
    "GROUP BY window(at, '1 hour'), shop",
    "medians": "SELECT shop, percentile(amount, 0.5) AS median FROM orders GROUP BY shop",
    "large": "SELECT shop, count(*) AS n, sum(amount) AS total FROM orders WHERE amount > 3 GROUP BY shop",
    "gone": "SELECT id % 3 AS k, count(*) AS n FROM orders GROUP BY id % 3",
}
NEW = {
    **OLD,
    "same": OLD["totals"],
    "totals": "SELECT shop, sum(amount) AS total, count(*) AS n FROM orders GROUP BY shop",
    "hours": "SELECT date_format(window.start, 'HH') AS h, shop, sum(amount) AS total, count(*) AS n, "
    "count(amount) AS amounts FROM clicks GROUP BY window(at, '1 hour'), shop",
    "medians": "SELECT shop, percentile(amount, 1) AS most, collect_set(amount) AS amounts FROM orders GROUP BY shop",
    "large": "SELECT shop, count(*) AS n, sum(amount * 10) AS total FROM orders WHERE amount > 4 GROUP BY shop",
}
del NEW["gone"]
UIDS = {"large": "large"}
FIRST: list[Row] = [(1, "a", 10, "10:05"), (2, "a", 20, "10:10"), (3, "b", 5, "10:15"), (4, "c", 5, "10:20")]
SECOND: list[Row] = [(5, "a", 7, "10:30"), (6, "b", 4, "12:00")]


@dataclass
class Versions:
    """Versions of a program over the same files, each as a job of its own."""

    spark: Any
    root: Path
    local_dir: Path
    given: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    """The changes of each view in the newest job, each with its weight last."""

    def write(self, rows: list[Row]) -> None:
        (self.root / "in").mkdir(exist_ok=True)
        lines = [
            json.dumps({"id": key, "shop": shop, "amount": amount, "at": f"2026-01-01T{at}:00Z"})
            for key, shop, amount, at in rows
        ]
        (self.root / "in" / f"{rows[0][0]:04}.json").write_text("\n".join(lines))

    def views(self, texts: dict[str, str], uids: dict[str, str] | None = None) -> dict[str, sl.View]:
        orders = sl.files_source(self.root / "in", schema=SCHEMA, format="json", name="orders", spark=self.spark)
        tables: dict[str, Any] = {"orders": orders, "clicks": orders.watermark("at", delay="0s")}
        views = {}
        for name, text in texts.items():
            used = {each: rows for each, rows in tables.items() if re.search(rf"\b{each}\b", text)}
            views[name] = tables[name] = sl.sql(text, uid=(uids or {}).get(name, ""), **used)
        return views

    def job(self, views: dict[str, sl.View], name: str, **more: Any) -> sl.Job:
        self.given.clear()
        sinks = [self._gathered(each, view) for each, view in views.items()]
        return sl.Job(
            name, sinks=sinks, checkpoints=sl.Checkpoints(self.root / "checkpoints"), restart=sl.Restart.never(),
            settings=sl.Settings(parallelism=2, local_dir=self.local_dir), **more,
        )  # fmt: skip

    def _gathered(self, name: str, view: sl.View) -> Any:
        def write(df: Any, epoch: int) -> None:
            self.given[name] += [tuple(row) for row in df.collect()]

        return view.changes().to(sl.sinks.foreach_batch(write, name=name))

    def run_first(self) -> str:
        """Run the old version over the first rows; return the url of its savepoint."""
        self.write(FIRST)
        savepoint = str(self.root / "savepoint")
        with self.job(self.views(OLD, UIDS), "old").start(self.spark) as run:
            run.process_all_available()
            run.stop(savepoint=savepoint)
        return savepoint


@pytest.fixture
def versions(spark: Any, tmp_path: Path, local_dir: Path) -> Versions:
    return Versions(spark, tmp_path, local_dir)


def uid_of(view: sl.View) -> str:
    return view._relation.parts[-1].uid


@pytest.mark.long
def test_a_program_goes_on_with_other_queries(versions: Versions) -> None:
    savepoint = versions.run_first()
    assert sorted(versions.given["numbers"]) == [(1, 2, 1), (2, 1, 1)]
    assert sorted(versions.given["large"]) == [("a", 2, 30, 1), ("b", 1, 5, 1), ("c", 1, 5, 1)]

    views = versions.views(NEW, UIDS)
    from_now = [uid_of(views[name]) for name in ("totals", "hours")]
    refused = check_upgrade(versions.job(views, "new"), savepoint)
    assert len(refused.refusals) == 4, refused.refusals
    assert {*refused.upgrade.from_now} == {*from_now}
    (gone,) = refused.upgrade.drop
    assert gone.startswith("totals-")

    versions.write(SECOND)
    job = versions.job(views, "new", trigger="available-now")
    job.start(versions.spark, restore=savepoint, from_now=from_now, drop=[gone]).await_termination()
    given = versions.given
    # Counts go on, what is new has the rows since then: no row of shop b, whose number is right, had come before.
    assert sorted(given["totals"], key=repr) == [
        ("a", 7, 3, 1), ("a", None, 2, -1), ("b", 4, 2, 1), ("b", None, 1, -1),
    ]  # fmt: skip
    # Two operators go on from one.
    assert sorted(given["same"]) == [("a", 2, 20, -1), ("a", 3, 20, 1), ("b", 1, 5, -1), ("b", 2, 5, 1)]
    # What reads a view goes on when that gets another column.
    assert sorted(given["numbers"]) == [(1, 1, 1), (1, 2, -1), (3, 1, 1)]
    # Open windows have what came before, and of what is new what came since.
    assert sorted(given["hours"], key=repr) == [
        ("10", "a", 7, 3, 1, 1),
        ("10", "b", None, 1, 0, 1),
        ("10", "c", None, 1, 0, 1),
    ]
    # Of all rows, those that came before, too, of all keys.
    medians = {shop: (most, sorted(amounts), weight) for shop, most, amounts, weight in given["medians"]}
    assert len(given["medians"]) == 3
    assert medians == {"a": (20.0, [7, 10, 20], 1), "b": (5.0, [4, 5], 1), "c": (5.0, [5], 1)}
    # The user has said that it is the same.
    assert sorted(given["large"]) == [("a", 2, 30, -1), ("a", 3, 100, 1)]


@pytest.mark.long
def test_what_is_refused(versions: Versions) -> None:
    savepoint = versions.run_first()

    def refusals(uids: dict[str, str] = UIDS, **texts: str) -> tuple[str, ...]:
        job = versions.job(versions.views({**OLD, **texts}, uids), "new")
        return check_upgrade(job, savepoint, from_now=[each.uid for each in job._plan.pipeline.operators]).refusals

    assert refusals() == ()
    # The same, written otherwise.
    assert refusals(totals="SELECT max(amount) AS most, count(*) AS n, shop FROM orders o GROUP BY o.shop") == ()
    # Rows of the view may be taken back, and the sum would lack those that it had before.
    (taken_back,) = refusals(numbers="SELECT n, count(*) AS shops, sum(n) AS s FROM totals GROUP BY n")
    assert "rows may be taken back that came before it" in taken_back
    # A new view of a view that goes on.
    (unread,) = refusals(more="SELECT n % 2 AS odd, count(*) AS shops FROM totals GROUP BY n % 2")
    assert "it is new, and rows that 'totals-" in unread
    # An average has a number of its own, unless it has state.
    (average,) = refusals(
        large="SELECT shop, count(*) AS n, avg(amount) AS total FROM orders WHERE amount > 3 GROUP BY shop"
    )
    assert "it is avg, was sum: give it another name" in average
    (key,) = refusals(large="SELECT id, count(*) AS n, sum(amount) AS total FROM orders GROUP BY id")
    assert "operator 'large': its key is" in key
    # Without the uid, it is another operator, and state would be left behind.
    (left,) = refusals(uids={}, large=NEW["large"])
    assert "no operator with uid 'large', which has state" in left


def test_uids_are_for_one_operator_with_state(versions: Versions) -> None:
    versions.write(FIRST)
    for text in (
        "SELECT shop FROM orders",
        "SELECT shop FROM orders GROUP BY shop UNION ALL SELECT shop FROM orders",
        "SELECT shop, (SELECT count(*) FROM orders) AS n FROM orders ",
        "SELECT a.id FROM orders a LEFT JOIN orders b ON a.shop = b.shop AND a.amount < b.amount",
    ):
        with pytest.raises(ConfigurationError, match="uid 'x' is for"):
            versions.views({"x": text}, {"x": "x"})
    for text in (
        "SELECT shop, 2 * n AS n FROM (SELECT shop, count(DISTINCT id) AS n FROM orders GROUP BY shop) WHERE n > 1",
        "SELECT a.id FROM orders a JOIN orders b ON a.shop = b.shop AND a.amount < b.amount",
        "SELECT id FROM orders ORDER BY amount LIMIT 3",
        "SELECT id, sum(amount) OVER (PARTITION BY shop ORDER BY id) AS s FROM orders ",
    ):
        (view,) = versions.views({"x": text}, {"x": "x"}).values()
        assert uid_of(view) == "x", view.explain()
    # Whatever a view with a uid means, those that read it stay the same.
    below = "SELECT n, count(*) AS shops FROM x GROUP BY n"
    uids = [
        uid_of(versions.views({"x": text, "below": below}, {"x": "x"})["below"])
        for text in (OLD["totals"], f"{OLD['large']}", OLD["totals"])
    ]
    assert len({*uids}) == 1


def test_meanings(versions: Versions) -> None:
    """An aggregation's uid begins with what its groups are, whatever is computed of them."""
    versions.write(FIRST)

    def group(text: str) -> str:
        (view,) = versions.views({"x": text}).values()
        return uid_of(view).rpartition("-")[0]

    for one, other in (
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop", "SELECT shop, max(amount + id) AS n FROM orders GROUP BY shop"),
        ("SELECT shop, id, count(*) AS n FROM orders GROUP BY shop, id", "SELECT id, sum(amount) AS n FROM orders GROUP BY id, shop"),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY ROLLUP (shop, id)", "SELECT id, sum(amount) AS n FROM orders GROUP BY ROLLUP (shop, id)"),
        ("SELECT shop, count(*) AS n FROM orders LATERAL VIEW explode(array(1, id)) t AS e GROUP BY shop",
         "SELECT shop, max(amount) AS n FROM orders LATERAL VIEW explode(array(1, id)) t AS e GROUP BY shop"),
    ):  # fmt: skip
        assert group(one) == group(other)
    for one, other in (
        ("SELECT count(*) AS n FROM orders WHERE amount > 3", "SELECT count(*) AS n FROM orders WHERE amount > 4"),
        ("SELECT count(*) AS n FROM orders GROUP BY shop", "SELECT count(*) AS n FROM orders GROUP BY id"),
        ("SELECT a.shop, count(*) AS n FROM orders a JOIN orders b USING (id) GROUP BY a.shop",
         "SELECT b.shop, count(*) AS n FROM orders a JOIN orders b USING (id) GROUP BY b.shop"),
    ):  # fmt: skip
        assert group(one) != group(other)
