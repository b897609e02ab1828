"""Which lines of a failure are named: those of the user's own code, or none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

import strandline as sl
from strandline.core.errors import ConfigurationError, SinkError
from strandline.core.ids import Epoch
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.base.task_errors import SEAL
from strandline.spark.sinks.sink_errors import ForEach, name_error


def lines_of(code: str, filename: str) -> str:
    """Return the error of a sink whose failure comes out of a file."""
    function: dict[str, Callable[[], Any]] = {}
    exec(compile(code, filename, "exec"), {}, function)
    with pytest.raises(ValueError) as caught:
        function["fail"]()
    # As if called by Strandline: this file is left out.
    return str(name_error(caught.value.with_traceback(caught.tb.tb_next), "out"))


FAIL = "def fail():\n    raise ValueError('no')\n"
PARSE = "def fail():\n    import json; json.loads('{')\n"


@pytest.mark.parametrize(("code", "line"), [(FAIL, 2), (PARSE, 2)])
def test_the_users_line_is_named_not_that_of_a_library(code: str, line: int) -> None:
    said = lines_of(code, "/home/me/sinks.py")
    assert f"/home/me/sinks.py, line {line}, in fail" in said
    assert "json" not in said.replace("JSONDecodeError", "").replace("json.loads", "")
    assert f"packages/mine/sinks.py, line {line}" in lines_of(code, "/x/site-packages/mine/sinks.py")


@pytest.mark.parametrize("library", ["psycopg", "pyiceberg/catalog", "deltalake"])
def test_nothing_is_named_where_only_libraries_are(library: str) -> None:
    said = lines_of(FAIL, f"{Path(sys.prefix)}/lib/python3/site-packages/{library}/it.py")
    assert ", line " not in said


def each(function: Any) -> BaseException:
    """Return what becomes of an error of a function for each row."""
    with pytest.raises(RuntimeError) as caught:
        ForEach(SEAL, "out", function)([Row(n=1)])
    return unwrap_error(caught.value)


def test_what_a_function_gives_and_nobody_runs_is_refused(monkeypatch: Any) -> None:
    def generator(*row: Any) -> Any:
        yield row

    said = each(generator)
    assert isinstance(said, ConfigurationError)
    assert said.message == "sink 'out': its function generator gave a generator, which has not run: it did nothing"
    monkeypatch.setattr("strandline.spark.sinks.simple.restored_settings", nullcontext)
    rows: Any = SimpleNamespace(sparkSession=None)
    with pytest.raises(ConfigurationError, match="gave a generator"):
        sl.sinks.foreach_batch(generator).write(rows, Epoch(1))


class Request(Coroutine[Any, Any, None]):
    """What a client gives to be awaited, as aiohttp does."""

    def __await__(self) -> Any:
        raise NotImplementedError

    send = throw = __await__  # type: ignore[assignment]

    def close(self) -> None:
        pass


async def asks(row: Any) -> Any:
    yield row


@pytest.mark.parametrize("function", [lambda row: map(print, [row]), lambda row: Request(), lambda row: asks(row)])
def test_so_is_what_nobody_runs_and_is_neither_a_coroutine_nor_a_generator(function: Any) -> None:
    assert isinstance(each(function), ConfigurationError)


def test_a_rust_librarys_panic_is_the_functions() -> None:
    class PanicException(BaseException):
        """As PyO3 derives it."""

    def panic(row: Row) -> None:
        raise PanicException("index out of bounds")

    said = each(panic)
    assert isinstance(said, SinkError)
    assert "its function panic raised on the row Row(n=1): RuntimeError: PanicException: index" in said.message
    assert "in panic: raise PanicException" in said.message
