"""Where a folder is, as data: what one process tells another, which opens it there."""

from __future__ import annotations

import msgspec

from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of a store. Options may hold secrets: it is sent, and never written to disk."""

    url: str
    """Of the store."""
    path: str = ""
    options: dict[str, str] = {}
    fsync: bool = True

    def store(self) -> ObjectStore:
        """Open the store that the folder is in."""
        return RetryingStore(open_store(self.url, self.options, fsync=self.fsync))
