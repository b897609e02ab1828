"""Declarations: what a class declares, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.api.config import Checkpoints, Restart
from strandline.api.joins import Broadcast
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Aggregating, List, Map, Reducing, State, Value, declared_states
from strandline.api.uids import uid
from strandline.core.errors import ConfigurationError
from strandline.core.ids import Generation
from strandline.format.manifest import StateInfo
from strandline.plan.checks import check_process
from strandline.runtime.program import Program, state_infos
from strandline.spark.tables.source import Options
from strandline.storage.place import Place


class Base(KeyedProcess):
    seen = Value("BIGINT", default=0)
    gone = Value("int")
    other = Value("int")

    def on_event(self, event: Any, ctx: Any) -> None: ...


class Derived(Base):
    gone = None  # type: ignore[assignment]
    other = List("struct<a:int,b:array<string>>")  # type: ignore[assignment]
    by = Map("string", "double")
    top = Reducing("double", max)
    mean = Aggregating("struct<n: bigint>", create=lambda: (0,), add=lambda acc, x: acc)


def test_states_are_inherited_replaced_and_taken_away() -> None:
    assert list(declared_states(Base)) == ["seen", "gone", "other"]
    found = declared_states(Derived)
    assert {name: state.kind for name, state in found.items()} == {
        "seen": "value", "other": "list", "by": "map", "top": "reducing", "mean": "aggregating",
    }  # fmt: skip
    assert all(state.name == name for name, state in found.items())


def test_what_stands_in_a_manifest() -> None:
    infos = {info.name: info for info in state_infos(Derived())}
    assert infos["seen"] == StateInfo(name="seen", kind="value", value_type="bigint")
    assert infos["by"] == StateInfo(name="by", kind="map", value_type="double", key_type="string")
    assert infos["other"].kind == "list"
    assert infos["other"].value_type == state_infos(Derived())[1].value_type


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Map("string", ""), "Map: its type is ''"),
        (lambda: Map(str, "int"), "Map: its key type is <class 'str'>"),
        (lambda: List("int", was=5), "List: was is 5"),
        (lambda: Map("int", "int", renamed="a"), "Map: renamed is 'a', expected a dict by fields' paths"),
        (lambda: Reducing("int", max, renamed={"a": 1}), "Reducing: renamed is {'a': 1}"),
        (lambda: Broadcast("int", "int", fill=[("a", 1)]), "Broadcast: fill is [('a', 1)]"),
        (lambda: uid("new", was=""), "uid: was is ''"),
    ],
)
def test_a_declaration_without_a_type_is_refused_at_once(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in caught.value.message


class Custom(State):
    kind = "custom"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Map("nothing", "int"), "state 'it' of P: "),
        (Map("map<int,int>", "int"), "state 'it' of P: "),
        (Custom("int"), "state 'it' of P is a Custom, not a state that this release knows"),
        (Value("int", default=1 << 40), "state 'it' of P: "),
        (List("struct<a: int>", fill={"a": "x"}), "state 'it' of P: fill does not fit struct<a:int>"),
        (Value("int", was="it"), "state 'it' of P was 'it', and 'it' is declared too"),
    ],
)
def test_a_state_that_cannot_work_is_refused_before_the_job_runs(state: State, said: str) -> None:
    process = type("P", (KeyedProcess,), {"it": state})()
    with pytest.raises(ConfigurationError) as caught:
        state_infos(process)
    assert said in caught.value.message


def test_what_a_declaration_says_of_before_costs_nothing_now() -> None:
    hints: Any = {"was": "old", "renamed": {"b.c": "d"}, "fill": {"a": 1}}
    process = type("P", (KeyedProcess,), {"it": Value("struct<a: bigint, b: struct<c: int>>", **hints)})()
    (info,) = state_infos(process)
    assert info == StateInfo(name="it", kind="value", value_type="struct<a:bigint,b:struct<c:int>>")
    assert declared_states(process)["it"].was == "old"


def test_a_misspelt_word_is_no_hint() -> None:
    with pytest.raises(TypeError, match=r"Value\(\) got an unexpected keyword argument 'rename'"):
        Value("int", rename={})  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (len, "was given a builtin_function_or_method"),
        (KeyedBatchProcess(), "KeyedBatchProcess does not define on_batch"),
    ],
)
def test_what_is_no_process_function(process: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_process(process, "detect")
    assert "operator 'detect'" in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize("state", ["seen", "other", "by", "top", "mean"])
def test_state_outside_of_a_job_says_so(state: str) -> None:
    assert isinstance(getattr(Derived, state), State)
    with pytest.raises(ConfigurationError, match=f"state '{state}' was used outside of a running job"):
        getattr(Derived(), state)


def test_checkpoints() -> None:
    given = Checkpoints("/tmp/x", every="10s", timeout="1 min", min_pause="500ms", storage_options={"secret": "hush"})
    assert (given.interval_ms, given.timeout_ms, given.min_pause_ms) == (10_000, 60_000, 500)
    assert Checkpoints("/tmp/x").interval_ms is None
    assert Checkpoints("/tmp/x", every=0).interval_ms == 0
    assert "hush" not in repr(given)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"retain": "2"}, "retain is '2'"),
        ({"tolerable_failures": -1}, "tolerable_failures is -1"),
        ({"changelog": {"parts": 3}}, "changelog is {'parts': 3}, expected the limits of its log"),
        ({"tolerable_failures": "3"}, "tolerable_failures is '3'"),
        ({"timeout": "x"}, "checkpoints: timeout is 'x'"),
        ({"every": -1}, "checkpoints: every is -1"),
        ({"min_pause": -1}, "checkpoints: min_pause is -1"),
        ({"max_concurrent": 0}, "max_concurrent is 0, expected 1 to 8"),
        ({"max_concurrent": "2"}, "max_concurrent is '2'"),
        ({"standbys": -1}, "standbys is -1, expected 0 or 1"),
        ({"standbys": True}, "standbys is True"),
        ({"max_concurrent": 2, "min_pause": "1s"}, "with a pause after each checkpoint, no two are in flight"),
    ],
)
def test_checkpoints_that_cannot_work(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Checkpoints(**{"directory": "/tmp/x", **wrong})
    assert said in caught.value.message


def test_restarts_wait_longer_each_time() -> None:
    restart = Restart(delay="1s", max_delay="10s")
    assert [restart.delay_ms(n) for n in (1, 2, 3, 4, 5, 50)] == [1000, 2000, 4000, 8000, 10_000, 10_000]
    assert Restart.never().attempts == 0


def test_a_restart_that_cannot_work_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match="restart: max_delay is 'soon'"):
        Restart(max_delay="soon")


def test_what_is_shown_of_where_checkpoints_are_has_no_secrets() -> None:
    options = {"secret_access_key": "hidden-one"}
    shown = repr(Checkpoints("s3://id:hidden-two@bucket/ck", every="10s", storage_options=options))
    shown += repr(Place(url="https://x/ck?sig=hidden-three", options=options))
    shown += repr(Options("s3://id:hidden-four@bucket", "t", "", options))
    program = Program(
        name="Op", uid="op", job="job", generation=Generation(1), process=b"hidden-five", key_columns=[], input_schema="",
        output_schema="", parallelism=1, max_parallelism=1, backend="rocksdb", mode="full", store_url="s3://b",
        store_options=options, partition_memory_bytes=1, limit_bytes=1, lease_ms=1,
    )  # fmt: skip
    shown += repr(program)
    assert "hidden" not in shown
    assert "every='10s'" in shown
    assert "directory='s3://***@bucket/ck'" in shown
