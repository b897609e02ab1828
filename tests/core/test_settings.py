"""Durations, sizes and the settings that users write."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.settings import Settings, parse_duration_ms, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500), ("10s", 10_000), ("2 min", 120_000), ("2m", 120_000), ("1h", 3_600_000), ("1 d", 86_400_000),
        (" 1.5 Seconds ", 1500), ("0s", 0), ("3 hours", 10_800_000), ("1 minute", 60_000), ("2 days", 172_800_000),
        (0, 0), ("1.001s", 1001),
        (dt.timedelta(minutes=2), 120_000), (dt.timedelta(milliseconds=1.5), 2),
    ],
)  # fmt: skip
def test_durations(text: Any, ms: int) -> None:
    assert parse_duration_ms(text, "it") == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "10 parsecs",
        "1s 2ms",
        -1,
        None,
        True,
        "1e3s",
        float("nan"),
        float("inf"),
        "9" * 400 + "s",
    ],
)
def test_what_is_no_duration_is_refused_by_name(text: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^the lease is .*, expected a duration") as caught:
        parse_duration_ms(text, "the lease")
    assert repr(text) in caught.value.message
    assert "10s" in caught.value.hint


@pytest.mark.parametrize("number", [10, 0.25])
def test_a_number_is_no_duration(number: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^it is {number}, expected a duration with its unit") as caught:
        parse_duration_ms(number, "it")
    assert f"'{number}s' or '{number}ms'" in caught.value.hint


@pytest.mark.parametrize(("negative", "text"), [("-1s", "'-1s'"), (dt.timedelta(seconds=-90), "-90 s")])
def test_a_negative_duration_is_refused_as_it_is_written(negative: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^it is {text}, expected 0 or more"):
        parse_duration_ms(negative, "it")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512 << 20), ("4 GB", 4 << 30), ("1tb", 1 << 40), ("10 KiB", 10 << 10), ("7", 7), ("7b", 7), (1, 1),
        ("1.5k", 1536), ("2g", 2 << 30),
    ],
)  # fmt: skip
def test_sizes(text: Any, size: int) -> None:
    assert parse_size_bytes(text, "it") == size


@pytest.mark.parametrize("text", ["", "0", 0, -1, "-5MB", "MB", "5 PB", None, True, 1.5, "5MBs"])
def test_what_is_no_size_is_refused_by_name(text: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^state_memory is .*, expected a size"):
        parse_size_bytes(text, "state_memory")


def test_defaults() -> None:
    settings = Settings()
    assert settings.backend == "rocksdb"
    assert settings.parallelism is None
    assert settings.state_memory_bytes > 1 << 20
    assert settings.memory_backend_limit_bytes == 10 << 20
    assert settings.keeper_lease_ms == 600_000
    assert settings.fsync is True


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"backend": "heap"}, "backend is 'heap', expected one of memory, filesystem, rocksdb"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"parallelism": "4"}, "parallelism is '4'"),
        ({"max_parallelism": 0}, "max_parallelism is 0, expected a positive number"),
        ({"max_parallelism": 1 << 16}, "max_parallelism is 65536, expected 1 to 32768"),
        ({"parallelism": 8, "max_parallelism": 4}, "parallelism is 8, expected 1 to max_parallelism (4)"),
        ({"state_memory": "lots"}, "state_memory is 'lots'"),
        ({"memory_backend_limit": "-1"}, "memory_backend_limit is '-1'"),
        ({"keeper_lease": "soon"}, "keeper_lease is 'soon'"),
        ({"fsync": "no"}, "fsync is 'no', expected True or False"),
    ],
)
def test_a_wrong_setting_fails_where_it_is_written(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**wrong)
    assert said in caught.value.message


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().backend = "memory"  # type: ignore[misc]
