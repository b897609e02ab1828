"""Events of OpenLineage: the start and the end of a job's run, with the datasets that it reads and writes."""

from __future__ import annotations

import json
import logging
import os
import urllib.request
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from strandline.core.datasets import Dataset
from strandline.core.failure import without_credentials
from strandline.core.ids import unique_name
from strandline.core.version import VERSION

log = logging.getLogger(__name__)

EventType = Literal["START", "COMPLETE", "FAIL"]
_TIMEOUT_S = 5.0
_PRODUCER = f"urn:x-strandline:{VERSION}"
_SPEC = "https://openlineage.io/spec"
_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_ENGINE = f"{_SPEC}/facets/1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet"
_ERROR = f"{_SPEC}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_JOB_TYPE = f"{_SPEC}/facets/2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
_PATH = "/api/v1/lineage"
_KEY_VARIABLE = "OPENLINEAGE_API_KEY"


@dataclass(frozen=True)
class LineageRun:
    """One run of a job: from its start to its end, with all restarts."""

    namespace: str
    job: str
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]
    id: str = field(default_factory=lambda: str(uuid.UUID(hex=unique_name(), version=4)))

    def event(self, kind: EventType, at_ms: int, failure: str = "") -> dict[str, Any]:
        """Return an event of the run, for JSON."""
        facets = {"processing_engine": _facet(_ENGINE, name="strandline", version=VERSION)}
        if failure:
            facets["errorMessage"] = _facet(_ERROR, message=failure, programmingLanguage="PYTHON")
        job_type = _facet(_JOB_TYPE, processingType="STREAMING", integration="STRANDLINE", jobType="JOB")
        return {
            "eventType": kind,
            "eventTime": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "run": {"runId": self.id, "facets": facets},
            "job": {"namespace": self.namespace, "name": self.job, "facets": {"jobType": job_type}},
            "inputs": _datasets(self.inputs),
            "outputs": _datasets(self.outputs),
            "producer": _PRODUCER,
            "schemaURL": _EVENT,
        }


def emit(place: str | Path, event: dict[str, Any]) -> bool:
    """Append an event to a file, or post it to a server. Never fails: return whether it was taken, else warn.

    A server gets the key in the environment variable OPENLINEAGE_API_KEY, if there is one.
    """
    data = json.dumps(event).encode()
    try:
        if "://" in str(place):
            _post(str(place), data)
        else:
            with open(place, "ab") as file:
                file.write(data + b"\n")
    except (OSError, ValueError, HTTPException) as error:
        where = without_credentials(str(place))
        log.warning("an event of OpenLineage was not taken by %s: %s", where, error)
        return False
    return True


def _post(url: str, data: bytes) -> None:
    address = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}{_PATH}"
    headers = {"content-type": "application/json"}
    if key := os.environ.get(_KEY_VARIABLE):
        headers["authorization"] = f"Bearer {key}"
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=_TIMEOUT_S):
        pass


def _facet(schema: str, **values: str) -> dict[str, str]:
    return {"_producer": _PRODUCER, "_schemaURL": schema, **values}


def _datasets(datasets: Iterable[Dataset]) -> list[dict[str, Any]]:
    return [{**asdict(each), "facets": {}} for each in sorted(set(datasets))]
