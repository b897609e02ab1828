"""State of aggregates that one version of a program wrote, gone on with by the next, with other aggregates.

Against a model, on any backend, at any parallelism, with and without savepoints in between.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline import Global, Session, Tumbling, agg
from strandline.api.aggregates import Aggregate
from strandline.core.errors import CorruptionError
from strandline.core.ids import KeyGroup
from strandline.format.schemas import Schemas
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.state.panebytes import PaneCodec
from strandline.snapshot.savepoints.take import FORMS
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import parse_schema, parse_type
from strandline.types.hints import Hints
from strandline.types.murmur import key_group
from tests.runtime import test_aggregated_sessions as sessions
from tests.runtime.bench import KINDS, MAX_PARALLELISM
from tests.runtime.upgrading import Row, Upgrading
from tests.soak import examples

Values = list[int | None]


@dataclass(frozen=True)
class Known:
    """An aggregate, and what it is of the values of `v`; `w` is a quarter of them."""

    made: Aggregate
    of: Callable[[Values], Any]
    shares: str = ""
    """Which others it shares state with."""


def there(values: Values) -> list[int]:
    return [v for v in values if v is not None]


def or_none(function: Callable[[list[int]], Any]) -> Callable[[Values], Any]:
    return lambda values: function(there(values)) if there(values) else None


KNOWN: dict[str, Known] = {
    "n": Known(agg.count(), len),
    "vn": Known(agg.count("v"), lambda values: len(there(values))),
    "total": Known(agg.sum("v"), or_none(sum)),
    "mean": Known(agg.avg("w"), or_none(lambda got: sum(got) / len(got) / 4)),
    "lo": Known(agg.min("v"), or_none(min)),
    "spread": Known(agg.var_pop("w"), or_none(lambda got: statistics.pvariance(got) / 16)),
    "one": Known(agg.first("v"), lambda values: values[0] if values else None),
    "fin": Known(agg.last("v"), lambda values: values[-1] if values else None),
    "sure": Known(agg.first("v", ignore_nulls=True), or_none(lambda got: got[0])),
    "all": Known(agg.collect_list("v"), there),
    "some": Known(agg.collect_set("v"), lambda values: sorted(set(there(values))), "united"),
    "distinct": Known(agg.count_distinct("v"), lambda values: len(set(there(values))), "united"),
    "top": Known(agg.max_by("v", "w"), or_none(max)),
    "about": Known(agg.approx_count_distinct("v"), lambda values: len(set(there(values)))),
    "median": Known(agg.approx_percentile("v", 0.5), or_none(lambda got: sorted(got)[(len(got) - 1) // 2]), "kll"),
    "ends": Known(agg.approx_percentile("v", [0.0, 1.0]), or_none(lambda got: [min(got), max(got)]), "kll"),
}
Version = Mapping[str, bool]
"""Which aggregates a program has; True: by their second names."""
Event = tuple[int | None, int]
"""A value, and when it came."""


def name_of(which: str, second: bool) -> str:
    # Some of these change places among the others when they are sorted.
    return f"a {which}!" if second else which


def written(version: Version) -> dict[str, Aggregate]:
    """Return a version's aggregates, as a program has them that follows any other."""
    return {
        name_of(which, second): KNOWN[which].made.added().renamed(was=name_of(which, not second))
        for which, second in version.items()
    }


def dropped(before: Version, now: Version) -> list[str]:
    return [f"op.{name_of(which, second)}" for which, second in before.items() if which not in now]


@dataclass
class Model:
    """What must come out; of an aggregate that was added, of what came later."""

    version: Version
    since: dict[str, int] = field(default_factory=dict)
    now: int = 0

    def upgrade(self, version: Version) -> None:
        stays = {which: since for which, since in self.since.items() if which in version}
        began = {}
        for which in version:
            mates = [since for other, since in stays.items() if KNOWN[other].shares == KNOWN[which].shares != ""]
            began[which] = stays.get(which, mates[0] if mates else self.now)
        self.version, self.since = version, began

    def results(self, values: Sequence[Event]) -> dict[str, Any]:
        return {
            name_of(which, second): KNOWN[which].of([v for v, came in values if came >= self.since[which]])
            for which, second in self.version.items()
        }

    def stamped(self, rows: Sequence[Row]) -> list[tuple[str, int, Event]]:
        stamped: list[tuple[str, int, Event]] = []
        for k, t, v in rows:
            self.now += 1
            stamped.append((k, t, (v, self.now)))
        self.now += 1
        return stamped

    def epoch(self, rows: Sequence[Row], watermark: int) -> list[dict[str, Any]]:
        return [self.row(k, values) for k, values in self.given(self.stamped(rows), watermark)]

    def row(self, k: Any, values: Sequence[Event]) -> dict[str, Any]:
        return {"k": k, **self.results(values)}

    def given(self, rows: Any, watermark: int) -> list[tuple[Any, Sequence[Event]]]:
        raise NotImplementedError


@dataclass
class Running(Model):
    values: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def given(self, rows: Any, watermark: int) -> list[tuple[Any, Sequence[Event]]]:
        for k, _, v in rows:
            self.values[k].append(v)
        return [(k, self.values[k]) for k in {k for k, _, _ in rows}]


@dataclass
class Counted(Running):
    def given(self, rows: Any, watermark: int) -> list[tuple[Any, Sequence[Event]]]:
        found = []
        for k, _, v in rows:
            self.values[k].append(v)
            if len(self.values[k]) == 3:
                found.append((k, self.values.pop(k)))
        return found


@dataclass
class Windows(Model):
    values: dict[tuple[str, int], list[Event]] = field(default_factory=lambda: defaultdict(list))

    def given(self, rows: Any, watermark: int) -> list[tuple[Any, Sequence[Event]]]:
        over = [at for at in self.values if at[1] + 10 <= watermark]
        found = [(at, self.values.pop(at)) for at in over]
        for k, t, v in rows:
            if t - t % 10 + 10 > watermark:
                self.values[k, t - t % 10].append(v)
        return found

    def row(self, k: Any, values: Sequence[Event]) -> dict[str, Any]:
        return {"k": k[0], "window_start": k[1], "window_end": k[1] + 10, **self.results(values)}


@dataclass
class Sessions(Model):
    inner: sessions.Model = field(default_factory=sessions.Model)

    def epoch(self, rows: Sequence[Row], watermark: int) -> list[dict[str, Any]]:
        self.inner._row = self._row  # type: ignore[method-assign, assignment]
        return self.inner.epoch(self.stamped(rows), watermark, 0)  # type: ignore[arg-type, return-value]

    def _row(self, k: str, session: sessions.Open) -> dict[str, Any]:
        return {"k": k, "window_start": session.start, "window_end": session.end, **self.results(session.values)}


WINDOWS: dict[str, tuple[Any, type[Model]]] = {
    "running": (None, Running),
    "counted": (Global(count=3), Counted),
    "windows": (Tumbling("10s"), Windows),
    "sessions": (Session(f"{sessions.GAP}s"), Sessions),
}
rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ä"]), st.integers(0, 40), st.none() | st.integers(-5, 5)), max_size=6
)
versions = st.dictionaries(st.sampled_from([*KNOWN]), st.booleans(), min_size=1, max_size=8)
upgrades = st.tuples(versions, st.integers(1, 2), st.sampled_from(KINDS), st.sampled_from([None, *FORMS]))
epochs = st.lists(st.tuples(rows, st.integers(0, 9), st.booleans()), min_size=1, max_size=3)


def comparable(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return rows in an order of their own, with floats as what they about are, and sets in order."""
    found = []
    for row in rows:
        plain = {name: sorted(value) if "some" in name else value for name, value in row.items()}
        found.append([(n, round(v, 6) + 0.0 if isinstance(v, float) else v) for n, v in sorted(plain.items())])
    return sorted(found, key=repr)


@pytest.mark.parametrize("which", WINDOWS)
@examples(8)
@given(first=versions, lives=st.lists(st.tuples(epochs, upgrades), min_size=1, max_size=2), last=epochs)
def test_upgrades_against_the_model(
    tmp_path_factory: pytest.TempPathFactory, which: str, first: Version, lives: Any, last: Any
) -> None:
    window, kind = WINDOWS[which]
    with pytest.MonkeyPatch.context() as patch:
        # Sketches, of so few values exact ones.
        patch.setattr(sketches, "_HELD", 2)
        job, model = Upgrading(tmp_path_factory.mktemp("upgrades"), window), kind(first)
        model.upgrade(first)
        job.upgrade(written(first), 2, "rocksdb")
        watermark = 0

        def live(some: Any) -> None:
            nonlocal watermark
            for given_rows, step, evicting in some:
                watermark += step
                found = job.epoch_of(given_rows, watermark)
                assert comparable(found) == comparable(model.epoch(given_rows, watermark))
                if evicting:
                    job.evict()

        for some, (version, parallelism, backend, form) in lives:
            live(some)
            job.checkpoint()
            job.stop()
            if form:
                job.go_through_savepoint(form)
            found = job.upgrade(written(version), parallelism, backend, *dropped(model.version, version))
            assert {c.action for c in found.changes} <= {"kept", "migrated", "renamed", "new", "dropped"}
            model.upgrade(version)
        live(last)
        watermark += 100
        assert comparable(job.epoch_of([], watermark)) == comparable(model.epoch([], watermark))
        job.stop()


def ids_of(entries: Sequence[tuple[bytes, bytes]]) -> list[int]:
    return [value[1] for key, value in entries if key[2:10] != bytes(8)]


def test_panes_stay_as_they_were_written_until_they_go(tmp_path: Path) -> None:
    """An upgrade writes nothing anew; what is looked up and what a savepoint holds is of the new schema all the same."""
    job = Upgrading(tmp_path, Tumbling("10s"))
    job.upgrade({"n": agg.count(), "lo": agg.min("v")}, 1, "rocksdb")
    job.epoch_of([("a", 1, 5), ("b", 2, 6)], 0)
    job.checkpoint()
    job.stop()
    now = {"all": agg.collect_list("v").added(), "n": agg.count(), "one": agg.first("v").added()}
    job.upgrade(now, 1, "rocksdb", "op.lo")
    job.epoch_of([("a", 3, 7)], 0)
    (opened,) = job.opened
    key = opened.partition.task.store.keys.codec.encode(group_of_key("a"), "a")
    ((found,),) = opened.partition.task.store.kept("panes", [key])
    names = ("all_collect_list_0", "n_count_0", "one_first_0", "one_first_1")
    assert found[1].to_pylist() == [dict(zip([f"__strandline_{n}" for n in names], ([7], 2, 7, True), strict=True))]
    job.checkpoint()
    job.stop()
    assert ids_of(job.entries()["panes"]) == [0, 0, 1]
    # The same program, at another parallelism.
    found_now = job.upgrade(now, 2, "rocksdb", "op.lo")
    assert {change.action for change in found_now.changes} == {"kept"}
    shown = job.epoch_of([], 10)
    assert comparable(shown) == comparable([
        {"k": "a", "window_start": 0, "window_end": 10, "all": [7], "n": 2, "one": 7},
        {"k": "b", "window_start": 0, "window_end": 10, "all": [], "n": 1, "one": None},
    ])  # fmt: skip
    job.checkpoint()
    job.stop()
    assert ids_of(job.entries()["panes"]) == []


def test_an_entry_of_aggregates_that_nobody_knows_is_damage() -> None:
    kind = parse_schema("k string, n bigint")
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": 1}], arrow_schema(kind))
    newer = PaneCodec("panes", kind, Schemas(schema_id=2)).pack(rows)
    older = Schemas().followed_by(parse_schema("k string"), kind, Hints(fill={"n": 0}))
    codec = PaneCodec("panes", kind, older)
    assert codec.read(PaneCodec("panes", kind, Schemas(schema_id=1)).pack(rows)).equals(rows)
    assert codec.read(b"\0\0" + rows.select(["k"]).serialize().to_pybytes()).to_pylist() == [{"k": "a", "n": 0}]
    with pytest.raises(CorruptionError, match="an entry begins with 0002, expected 0001 or 0000"):
        codec.read(newer)


def group_of_key(key: str) -> KeyGroup:
    return key_group((key,), [parse_type("string")], MAX_PARALLELISM)
