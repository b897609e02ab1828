"""The location of a folder in a store, as data that one process sends and another opens."""

from __future__ import annotations

import os
import time
from functools import lru_cache

import msgspec

from strandline.core.failure import without_credentials
from strandline.storage.base import ObjectStore
from strandline.storage.remote import is_remote, open_store
from strandline.storage.retrying import RetryingStore

_CREDENTIAL_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes of the variables in which clients of storage look for credentials."""
_CLIENT_LIFE_S = 600.0
"""The longest time that a client is cached: a file with credentials may change in the meantime."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of a store. It is sent, but never written to disk, since options may hold secrets."""

    url: str
    """The store's url."""
    path: str = ""
    options: dict[str, str] = {}
    fsync: bool = True

    def __repr__(self) -> str:
        return f"Place(url={without_credentials(self.url)!r}, path={self.path!r})"

    def store(self) -> ObjectStore:
        """Return the store that the folder is in; clients of remote storage are cached, with their connections."""
        if not is_remote(self.url):
            return RetryingStore(open_store(self.url, self.options, fsync=self.fsync))
        # Another thread, perhaps the user's, may delete a variable meanwhile.
        environment = ((name, os.environ.get(name)) for name in os.environ if name.startswith(_CREDENTIAL_PREFIXES))
        term = time.monotonic() // _CLIENT_LIFE_S
        return _client(self.url, frozenset(self.options.items()), frozenset(environment), os.getpid(), term)


@lru_cache(maxsize=16)
def _client(
    url: str, options: frozenset[tuple[str, str]], environment: object, process: int, term: float
) -> ObjectStore:
    return RetryingStore(open_store(url, dict(options)))
