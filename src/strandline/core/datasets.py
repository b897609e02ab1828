"""Names of datasets, as OpenLineage has them: the same in every system that reads or writes one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_BUCKETS = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs"}
_AZURE = ("abfs", "abfss", "az", "azure", "adl")


@dataclass(frozen=True, order=True)
class Dataset:
    """A dataset that a job reads or writes."""

    namespace: str
    """The system that has it, such as "s3://bucket"."""
    name: str
    """Its name there."""

    @classmethod
    def at(cls, place: str) -> Dataset:
        """Return the dataset at a path or url, without the credentials that the url may have."""
        parts = urlsplit(place) if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", place) else None
        if parts is None or parts.scheme == "file":
            return cls("file", str(Path(unquote(parts.path) if parts else place).absolute()))
        path = unquote(parts.path)
        if parts.scheme in _BUCKETS:
            return cls(f"{_BUCKETS[parts.scheme]}://{parts.hostname or ''}", path.strip("/") or "/")
        if parts.scheme in _AZURE:
            # Before the @ is a container, and no user.
            return cls(f"{parts.scheme}://{parts.netloc}", path.strip("/") or "/")
        host = parts.netloc.rpartition("@")[2]
        return cls(f"{parts.scheme}://{host}", path.rstrip("/") or "/")

    @classmethod
    def topic(cls, servers: str, topic: str) -> Dataset:
        """Return a topic of Kafka; of several servers, the first one stands for the cluster."""
        return cls(f"kafka://{servers.partition(',')[0].strip()}", topic)
