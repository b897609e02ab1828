"""Which lines of a failure are named: those of the user's own code, or none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.spark.sinks.blame import named


def lines_of(code: str, filename: str) -> str:
    """Return the error of a sink whose failure comes out of a file."""
    function: dict[str, Callable[[], Any]] = {}
    exec(compile(code, filename, "exec"), {}, function)
    with pytest.raises(ValueError) as caught:
        function["fail"]()
    # As if called by Strandline: this file is left out.
    return str(named(caught.value.with_traceback(caught.tb.tb_next), "out"))


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
