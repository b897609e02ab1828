"""What a program may change about expiry and sources and still go on from its checkpoint. Needs no Spark session."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET, structs

import strandline as sl
from strandline.core.errors import IncompatibleStateError
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, SinkInfo, SourceInfo, StateInfo
from strandline.plan.windows import fold as fold_of
from strandline.plan.windows import operator_of
from strandline.runtime.operators.joins import IntervalJoin, JoinColumns, WindowJoin
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.program import state_infos
from strandline.spark.job.compat import check_compatible
from strandline.spark.sinks.base import kind_of
from strandline.types.datatypes import parse_schema
from tests.runtime.aggregating import COUNTS, process_of


def declared(ttl: sl.TTL | None) -> list[StateInfo]:
    class Function(sl.KeyedProcess):
        seen = sl.Value("bigint", ttl=ttl)

    return state_infos(Function())


def go_on(before: list[StateInfo], now: list[StateInfo]) -> None:
    operator: dict[str, Any] = {"uid": "op", "key_schema": "k int", "max_parallelism": 128, "parallelism": 1}
    of_views: dict[str, Any] = {"group": "", "changed_by": (), "computed_of": ()}
    stored = OperatorInfo(**operator, backend="rocksdb", states=before, partitions=[])
    program: Any = SimpleNamespace(**operator, **of_views, states=now, was="", declared={}, aggregated=None)
    check_compatible(made([stored]), [program], {}, [])


def made(operators: list[OperatorInfo], source: SourceInfo | None = None) -> Manifest:
    return Manifest(
        job="job",
        generation=1,
        checkpoint=1,
        epoch=1,
        mode="full",
        created_ms=0,
        engine_version="0",
        life="0",
        operators=operators,
        source=source,
    )


def read_on(before: list[str] | None, now: list[str]) -> None:
    """Go on with sources of these names; before, there were those: none if one without a name."""
    blob = FileRef(name="source", size=0, sha256="")
    check_compatible(made([], SourceInfo(batch=1, blob=blob, names=before or UNSET)), [], {}, now)


TTLS = [None, sl.TTL("1h"), sl.TTL("2h", refresh="read"), sl.TTL("1h", time="event")]


@pytest.mark.parametrize("before", TTLS, ids=str)
@pytest.mark.parametrize("now", TTLS, ids=str)
def test_a_ttl_may_change(before: sl.TTL | None, now: sl.TTL | None) -> None:
    go_on(declared(before), declared(now))


def windowed(kind: Any) -> list[StateInfo]:
    fold = fold_of("n bigint", 0, max, max, "x")
    return state_infos(operator_of(kind, fold.contents, Rules()))


def aggregated(kind: Any) -> list[StateInfo]:
    return state_infos(process_of(kind, COUNTS, Rules()))


def joined(kind: Any) -> list[StateInfo]:
    row = parse_schema("k int, v int")
    return state_infos(WindowJoin(JoinColumns(row, row), kind))


@pytest.mark.parametrize("made_of", [windowed, aggregated, joined])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (sl.Tumbling("10s"), sl.Tumbling("60s")),
        (sl.Tumbling("10s"), sl.Tumbling("10s", offset="5s")),
        (sl.Sliding("10s", every="5s"), sl.Sliding("10s", every="2s")),
        (sl.Global(count=10), sl.Global(count=5)),
    ],
)
def test_windows_may_not_be_cut_otherwise(made_of: Any, before: Any, now: Any) -> None:
    if made_of is joined and isinstance(before, sl.Global):
        return
    go_on(made_of(before), made_of(before))
    with pytest.raises(IncompatibleStateError, match=r"operator 'op': the windows of state '\w+' are .*, were .*"):
        go_on(made_of(before), made_of(now))
    # A checkpoint of an earlier release does not say how they were cut.
    go_on([structs.replace(state, windows=UNSET) for state in made_of(before)], made_of(now))


def test_an_interval_may_not_be_another() -> None:
    row = parse_schema("k int, v int")
    bounds = [(0, "inner"), (-5000, "inner"), (0, "left")]
    made = [state_infos(IntervalJoin(JoinColumns(row, row), lower, 5000, how)) for lower, how in bounds]  # type: ignore[arg-type]
    go_on(made[0], made[0])
    for other, said in ((made[1], "-5 ms to 5 ms apart, inner"), (made[2], "0 ms to 5 ms apart, left")):
        with pytest.raises(IncompatibleStateError, match=f"of state 'left' are {said}, were 0 ms to 5 ms apart, inner"):
            go_on(made[0], other)


@pytest.mark.parametrize("kind", [sl.Session("1s"), sl.Tumbling("1s")])
def test_windows_follow_the_events_or_the_clock_for_good(kind: Any) -> None:
    made = [state_infos(process_of(kind, COUNTS, Rules(processing=processing))) for processing in (False, True)]
    with pytest.raises(IncompatibleStateError, match="by the clock, were"):
        go_on(made[0], made[1])


def test_windows_that_may_be_cut_otherwise() -> None:
    for made_of in (windowed, aggregated):
        go_on(made_of(sl.Session("10s")), made_of(sl.Session("20s")))
        go_on(made_of(sl.Tumbling("10s")), made_of(sl.Sliding("10000 ms", every="10s", offset="20s")))


def test_another_max_parallelism_is_told_how() -> None:
    stored = OperatorInfo(
        uid="the op",
        backend="rocksdb",
        parallelism=1,
        max_parallelism=128,
        key_schema="k int",
        states=[],
        partitions=[],
    )
    program: Any = SimpleNamespace(
        uid="new",
        key_schema="k int",
        max_parallelism=512,
        parallelism=1,
        states=[],
        was="the op",
        declared={},
        aggregated=None,
        group="",
        changed_by=(),
        computed_of=(),
    )
    with pytest.raises(IncompatibleStateError, match="operator 'new': max_parallelism is 512, was 128") as caught:
        check_compatible(made([stored]), [program], {}, [], url="/a b/c")
    command = "`strandline state patch '/a b/c' NEW_SAVEPOINT --max-parallelism 'the op=512'`, and restore that"
    assert command in caught.value.hint


OUT: dict[str, Any] = {"out": sl.sinks.memory(name="out")}


def test_what_sinks_have_pending_is_no_affair_of_a_fork() -> None:
    manifest = structs.replace(
        made([]), sinks=[SinkInfo(name="gone", pending=["x"]), SinkInfo(name="empty", pending=[])]
    )
    with pytest.raises(IncompatibleStateError, match="no sink named 'gone', and the checkpoint lists rows") as caught:
        check_compatible(manifest, [], OUT, [])
    assert len(caught.value.differences) == 1
    assert 'drop=["gone"]' in str(caught.value)
    check_compatible(manifest, [], OUT, [], ["gone"])
    check_compatible(manifest, [], OUT, [], fork=True)


def stored(sink: Any, name: str, *pending: str) -> SinkInfo:
    return SinkInfo(name=name, pending=list(pending), kind=kind_of(sink), destination=sink.destination or UNSET)


class Results(sl.sinks.Target):
    """A target that does not say what it is."""

    def claim(self, writer: sl.sinks.Writer) -> None:
        raise NotImplementedError

    def connect(self, writer: sl.sinks.Writer, lane: int) -> sl.sinks.Connection:
        raise NotImplementedError


def test_a_sink_without_a_name_is_not_taken_for_another(tmp_path: Path) -> None:
    one, two = (sl.sinks.sqlite(tmp_path / "1.db", table, create=True) for table in ("t", "u"))
    manifest = structs.replace(made([]), sinks=[stored(one, "sqlite-0")])
    check_compatible(manifest, [], {"sqlite-0": one}, [])
    said = (
        f"its rows went to table t of {tmp_path}/1.db, and now go to table u of {tmp_path}/1.db: give name='sqlite-0'"
    )
    with pytest.raises(IncompatibleStateError, match=re.escape(said)):
        check_compatible(manifest, [], {"sqlite-0": two, "sqlite-1": one}, [])
    named = sl.sinks.sqlite(tmp_path / "1.db", "u", name="sqlite-0")
    check_compatible(manifest, [], {"sqlite-0": named}, [])
    check_compatible(manifest, [], {"sqlite-0": two}, [], ["sqlite-0"])
    check_compatible(manifest, [], {"sqlite-0": two}, [], fork=True)


def test_a_sink_without_a_name_is_the_same_when_brokers_are_added() -> None:
    before, now, other = (
        sl.sinks.kafka(servers, topic) for servers, topic in (("a:1", "t"), ("a:1,b:1", "t"), ("a:1", "u"))
    )
    manifest = structs.replace(made([]), sinks=[stored(before, "kafka-0", "x")])
    check_compatible(manifest, [], {"kafka-0": now}, [])
    with pytest.raises(IncompatibleStateError, match="rows went to topic t of Kafka, and now go to topic u of Kafka"):
        check_compatible(manifest, [], {"kafka-0": other}, [])


def test_a_sink_without_name_and_destination_keeps_its_place(tmp_path: Path) -> None:
    sink = sl.sinks.Transactional(Results())
    manifest = structs.replace(made([]), sinks=[stored(sink, "transactional-0", "x")])
    check_compatible(manifest, [], {"transactional-0": sink}, [])
    with pytest.raises(IncompatibleStateError, match=r"there are other sinks now.* give name='transactional-0'"):
        check_compatible(manifest, [], {"transactional-0": sink, "transactional-1": sink}, [])


def test_a_sink_of_another_kind_does_not_get_what_waits(tmp_path: Path) -> None:
    sink = sl.sinks.sqlite(tmp_path / "1.db", "t", name="out")
    manifest = structs.replace(made([]), sinks=[stored(sink, "out", "x")])
    said = "the sink 'out' is of kind memory, and the checkpoint lists rows that one of kind sqlite is to show"
    with pytest.raises(IncompatibleStateError, match=said):
        check_compatible(manifest, [], OUT, [])
    check_compatible(manifest, [], OUT, [], ["out"])
    check_compatible(structs.replace(made([]), sinks=[stored(sink, "out")]), [], OUT, [])


@pytest.mark.parametrize(
    ("before", "now"), [(None, []), (None, ["a"]), (["a"], []), (["a"], ["a"]), (["a", "b"], ["a", "b"])]
)
def test_sources_that_fit(before: list[str] | None, now: list[str]) -> None:
    read_on(before, now)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (["a"], ["b"], ["has no source named 'a'; it reads b", "'b' is new; the checkpoint knows a"]),
        (["a", "b"], ["a"], ["has no source named 'b'; it reads a"]),
        (["a"], ["a", "b"], ["'b' is new; the checkpoint knows a"]),
        (
            ["a", "b"],
            [],
            ["has no source named 'a'; it reads one source without a name", "has no source named 'b'; it reads"],
        ),
        (None, ["a", "b"], ["'a' is new; the checkpoint knows one source without a name", "'b' is new;"]),
    ],
)
def test_sources_that_do_not_fit(before: list[str] | None, now: list[str], found: list[str]) -> None:
    with pytest.raises(IncompatibleStateError, match="a source is found by its name in stream") as caught:
        read_on(before, now)
    assert len(caught.value.fields["differences"]) == len(found)
    assert all(said in difference for said, difference in zip(found, caught.value.fields["differences"], strict=True))


def test_what_was_never_read_may_change() -> None:
    check_compatible(made([]), [], {}, ["a", "b"])
