"""State that cannot be read: no fault of the function that asks for it, nor of its event."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.api.badrecords import FAIL, OnError
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Map, Value
from strandline.core.errors import CorruptionError, UnavailableError, UserCodeError
from tests.runtime.bench import Bench, batch_of

EVENTS = "k string, at bigint"


class Panic(BaseException):
    """As a library written in Rust raises it."""


def failing(
    function: Any, raised: BaseException, root: Path, monkeypatch: pytest.MonkeyPatch, on_error: OnError = FAIL
) -> Bench:
    """Return a bench of a function whose backend raises this for whatever is read, after one event for which it did not."""

    class Failing:
        def get(self, keys: object) -> None:
            raise raised

    output = "k string, said string, n int"
    bench = Bench("rocksdb", root, function(), input_schema=EVENTS, output_schema=output, on_error=on_error)
    bench.apply([event("x")])
    monkeypatch.setattr(bench.backend, "_family", lambda state: Failing())
    return bench


def event(key: str) -> pa.RecordBatch:
    return batch_of([(key, 0)], EVENTS)


class ReadingMaps(KeyedProcess):
    by = Map("bigint", "bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, "", self.by.get(event.at, 0)


class ReadingValues(KeyedBatchProcess):
    value = Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.value.get_many(ctx.keys)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Exception("IO error: too bad"), UnavailableError),
        (Exception("Corruption: block checksum mismatch"), CorruptionError),
        (Panic("no"), Panic),
    ],
    ids=["away", "damaged", "panic"],
)
@pytest.mark.parametrize(
    ("reading", "on_error"), [(ReadingMaps, FAIL), (ReadingMaps, OnError("skip")), (ReadingValues, FAIL)]
)
def test_a_backend_that_fails_is_no_fault_of_the_function(
    reading: type[Any], on_error: OnError, raised: BaseException, expected: type, tmp_path: Path, monkeypatch: Any
) -> None:
    """The job is restarted, as where the state is read before the call: its checkpoint is whole."""
    bench = failing(reading, raised, tmp_path, monkeypatch, on_error)
    with pytest.raises(expected):
        bench.apply([event("y")])
    assert bench.task.failed_events == 0


class PassingOver(KeyedProcess):
    """Gives an answer though it could not read: such a function knows no better."""

    by = Map("bigint", "bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        try:
            found = self.by.get(event.at, 0)
        except Exception:
            found = -1
        yield ctx.key, "", found


class RaisingItsOwn(KeyedProcess):
    by = Map("bigint", "bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        try:
            yield ctx.key, "", self.by.get(event.at, 0)
        except Exception:
            raise ValueError("no such customer") from None


class FailingLater(KeyedProcess):
    """Fails at what it has made of the error."""

    by = Map("bigint", "bigint")

    def on_event(self, event: Any, ctx: Any) -> Any:
        found: Any = None
        with suppress(Exception):
            found = self.by.get(event.at, 0)
        yield ctx.key, "", found + 1


@pytest.mark.parametrize("function", [PassingOver, RaisingItsOwn, FailingLater])
@pytest.mark.parametrize("on_error", [FAIL, OnError("skip")])
def test_what_a_function_makes_of_state_that_cannot_be_read_counts_for_nothing(
    function: type[Any], on_error: OnError, tmp_path: Path, monkeypatch: Any
) -> None:
    bench = failing(function, Exception("IO error: too bad"), tmp_path, monkeypatch, on_error)
    with pytest.raises(UnavailableError, match="too bad"):
        bench.apply([event("y")])


def test_where_memory_runs_out_while_state_is_read_the_hint_says_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    bench = failing(ReadingMaps, MemoryError(), tmp_path, monkeypatch)
    with pytest.raises(UserCodeError) as caught:
        bench.apply([event("y")])
    assert "the keeper ran out of memory" in caught.value.hint
