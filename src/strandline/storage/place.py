"""Where a folder is, as data: what one process tells another, which opens it there."""

from __future__ import annotations

import os
import time
from functools import lru_cache

import msgspec

from strandline.core.failure import without_credentials
from strandline.storage.base import ObjectStore
from strandline.storage.remote import is_remote, open_store
from strandline.storage.retrying import RetryingStore

_ASKED_FOR = ("AWS_", "AZURE_", "GOOGLE_")
"""How variables begin in which clients of storage look for credentials."""
_KEPT_S = 600.0
"""How long at most: a file with credentials may be another one by then."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of a store. Options may hold secrets: it is sent, and never written to disk."""

    url: str
    """Of the store."""
    path: str = ""
    options: dict[str, str] = {}
    fsync: bool = True

    def __repr__(self) -> str:
        return f"Place(url={without_credentials(self.url)!r}, path={self.path!r})"

    def store(self) -> ObjectStore:
        """Return the store that the folder is in; a client of remote storage is kept, with its connections."""
        if not is_remote(self.url):
            return RetryingStore(open_store(self.url, self.options, fsync=self.fsync))
        # Another thread, the user's perhaps, may take one away meanwhile.
        environment = ((name, os.environ.get(name)) for name in os.environ if name.startswith(_ASKED_FOR))
        return _client(
            self.url, frozenset(self.options.items()), frozenset(environment), os.getpid(), time.monotonic() // _KEPT_S
        )


@lru_cache(maxsize=16)
def _client(
    url: str, options: frozenset[tuple[str, str]], environment: object, process: int, term: float
) -> ObjectStore:
    return RetryingStore(open_store(url, dict(options)))
