"""What Strandline exports, and that importing it costs little and does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import strandline

PUBLIC = [
    "Aggregating", "BatchContext", "Broadcast", "Changelog", "Checkpoints", "Context", "Continuous", "Early", "FollowExecutors", "Global", "Job", "KafkaLog",
    "KeyedBatchProcess", "KeyedBroadcastProcess", "KeyedCoProcess", "KeyedProcess", "KeyedStream", "List", "Map", "OnError",
    "OperatorOptions", "Reducing", "Restart", "Retry", "Run", "Session", "Settings", "Sliding", "Status", "Stream", "TTL", "Table", "Telemetry", "Timer", "Tumbling",
    "Value", "View", "Window", "WindowedStream", "agg", "errors", "files_source", "kafka", "session", "sinks", "spark_settings", "sql", "state", "stream",
    "table", "uid",
]  # fmt: skip


def test_the_public_names() -> None:
    """Whoever changes this list changes what users build on: say so in CHANGELOG.md."""
    assert strandline.__all__ == PUBLIC
    assert dir(strandline) == PUBLIC
    assert strandline.__version__


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there_and_documented(name: str) -> None:
    assert getattr(strandline, name).__doc__


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'strandline' has no attribute 'Nothing'"):
        _ = strandline.Nothing


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_strandline_does_not_import_spark() -> None:
    heavy = (
        "{m.partition('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'pandas', 'rocksdict', 'obstore', 'typer'}"
    )
    assert _run(f"import sys, strandline; from strandline import *  # noqa\nprint(1)") == "1"  # noqa: F541
    assert _run(f"import sys, strandline\nprint({heavy} or 'nothing')") == "nothing"


def test_a_keeper_does_not_import_spark() -> None:
    code = "import sys, strandline.keeper.process\nprint([m for m in sys.modules if m.startswith(('pyspark', 'py4j'))])"
    assert _run(code) == "[]"


def test_importing_starts_nothing() -> None:
    code = (
        "import os, sys, threading\nbefore = dict(os.environ)\nimport strandline.keeper.process\n"
        "print(threading.active_count(), dict(os.environ) == before)"
    )
    assert _run(code) == "1 True"
