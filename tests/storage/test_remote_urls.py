"""How remote storage is called: without secrets, and the same for the same place."""

from __future__ import annotations

import pytest

from strandline.storage.remote import open_store

AZURE = {"account_name": "account", "account_key": "c2VjcmV0"}


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("s3a://bucket/a/", {"region": "eu-central-1"}, "s3://bucket/a"),
        ("s3://key:secret@bucket/a", {"region": "eu-central-1"}, "s3://bucket/a"),
        ("abfs://container@account.dfs.core.windows.net/a", AZURE, "abfss://container@account.dfs.core.windows.net/a"),
        ("memory://", {}, "memory://"),
    ],
)
def test_a_store_that_is_opened_at_its_own_url_is_the_same(url: str, options: dict[str, str], shown: str) -> None:
    """Keepers are told nothing else."""
    assert open_store(url, options).url == open_store(shown, options).url == shown
