from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import ConfigurationError
from strandline.core.urls import check_local_path, check_url


@pytest.mark.parametrize("url", ["s3:/b/x", "GS:/b", "dbfs:/x", "hdfs:/x", "data:/x", "abfss:///x"])
def test_one_slash_is_no_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is neither a url"):
        check_url(url)


@pytest.mark.parametrize("url", ["s3://b/x#blue", "file:///x/a?b", "file:/x#", "gs://b/x?key=word"])
def test_a_url_of_a_folder_has_no_more_behind_its_path(url: str) -> None:
    with pytest.raises(ConfigurationError, match="a url of a folder ends where a '\\?' or '#' begins") as caught:
        check_url(url)
    assert "word" not in str(caught.value)
    assert check_url(url, hadoop=True) == url


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/x",
        "/x#blue",
        "x?",
        "/s3:/b",
        "./s3:/b",
        "file:/x",
        "file:///x",
        "a b",
        "2026:01",
        "x/y:/z",
        ":memory:",
        "memory://",
        "",
    ],
)
def test_paths_and_urls_stay_as_they_are(url: str) -> None:
    assert check_url(url) == check_url(url, hadoop=True) == url


def test_the_hint_says_what_was_meant() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_url(Path("s3://bucket/x"))
    assert "write 's3://bucket/x'; pathlib.Path makes one slash of two" in caught.value.hint
    with pytest.raises(ConfigurationError) as caught:
        check_url("dbfs:/x")
    assert "the url of the cloud storage behind it" in caught.value.hint


def test_no_credentials_are_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_url("s3:/key:word@bucket/x?signature=1")
    assert "word" not in str(caught.value)
    assert "signature" not in str(caught.value)
    assert "write 's3://***@bucket/x'" in caught.value.hint


def test_spark_has_file_systems_with_one_slash() -> None:
    assert [check_url(url, hadoop=True) for url in ("dbfs:/x", "hdfs:/x")] == ["dbfs:/x", "hdfs:/x"]
    with pytest.raises(ConfigurationError, match="s3a:/b"):
        check_url("s3a:/b", hadoop=True)


def test_a_url_is_no_local_path() -> None:
    check_local_path("local_dir", "/x:/y")
    for url in ("s3://b/x", "dbfs:/x"):
        with pytest.raises(ConfigurationError, match=f"local_dir is '{url}', expected a path of this machine"):
            check_local_path("local_dir", url)
