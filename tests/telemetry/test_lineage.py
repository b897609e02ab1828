"""Events of OpenLineage, read by the classes that OpenLineage generates from its schema."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import attr
import pytest
from openlineage.client import event_v2
from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run
from openlineage.client.naming import dataset as naming
from openlineage.client.serde import Serde

from strandline.core.datasets import Dataset
from strandline.telemetry.lineage import LineageRun, emit
from tests.telemetry.collecting import collecting

RUN = LineageRun(
    "shop", "alerts", (Dataset("kafka://broker:9092", "orders"), Dataset("file", "/in")), (Dataset("s3://b", "out"),)
)


def parsed(event: dict[str, Any]) -> event_v2.RunEvent:
    """Return an event as the schema has it: unknown and missing fields, and wrong kinds of facets, are errors."""
    facets = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
        "errorMessage": error_message_run.ErrorMessageRunFacet,
        "jobType": job_type_job.JobTypeJobFacet,
    }

    def facet(name: str, given: dict[str, Any]) -> Any:
        values = dict(given)
        made = facets[name](**{k: v for k, v in values.items() if not k.startswith("_")}, producer=values["_producer"])
        _check_version(values["_schemaURL"], made._schemaURL)
        return made

    event = json.loads(json.dumps(event))
    run, job = event.pop("run"), event.pop("job")
    _check_version(event.pop("schemaURL"), event_v2.RunEvent._get_schema())
    return event_v2.RunEvent(
        run=event_v2.Run(run["runId"], {name: facet(name, value) for name, value in run["facets"].items()}),
        job=event_v2.Job(job["namespace"], job["name"], {n: facet(n, value) for n, value in job["facets"].items()}),
        eventType=event_v2.RunState(event.pop("eventType")),
        inputs=[event_v2.InputDataset(**each) for each in event.pop("inputs")],
        outputs=[event_v2.OutputDataset(**each) for each in event.pop("outputs")],
        **event,
    )


def _check_version(ours: str, theirs: str) -> None:
    """Compare the address of a schema with that of the library, which may have a newer version of the same facet."""
    assert ours.partition("#")[2] == theirs.partition("#")[2]
    assert ours.rpartition("/")[2] == theirs.rpartition("/")[2]


@pytest.mark.parametrize(("kind", "failure"), [("START", ""), ("COMPLETE", ""), ("FAIL", "a keeper died")])
def test_an_event_is_one_of_openlineages(kind: Any, failure: str) -> None:
    event = RUN.event(kind, 1_767_225_600_000, failure)
    read = parsed(event)
    assert read.eventTime == "2026-01-01T00:00:00.000+00:00"
    assert (read.run.runId, read.job.namespace, read.job.name) == (RUN.id, "shop", "alerts")
    assert [(each.namespace, each.name) for each in read.inputs] == [("file", "/in"), ("kafka://broker:9092", "orders")]
    assert [(each.namespace, each.name) for each in read.outputs] == [("s3://b", "out")]
    assert ("errorMessage" in read.run.facets) == bool(failure)
    # What the library writes of it is what we wrote, but for versions of facets.
    again = json.loads(Serde.to_json(read))
    assert again["eventType"] == event["eventType"]
    assert again["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert attr.asdict(read.inputs[0])["name"] == "/in"


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("/data/in", naming.LocalFileSystem("/data/in")),
        ("file:///data/in%20put", naming.LocalFileSystem("/data/in put")),
        ("s3a://user:secret@bucket/a/b/", naming.S3("bucket", "a/b")),
        ("s3://bucket/a?signature=secret", naming.S3("bucket", "a")),
        ("gs://bucket/a", naming.GCS("bucket", "a")),
        ("abfss://box@account.dfs.core.windows.net/a/b", naming.ABFSS("box", "account", "a/b")),
        ("hdfs://name:8020/a/b", naming.HDFS("name", "8020", "/a/b")),
    ],
)
def test_a_dataset_has_the_name_that_others_give_it(place: str, named: Any) -> None:
    assert Dataset.at(place) == Dataset(named.get_namespace(), named.get_name())


def test_a_topic_has_the_name_that_others_give_it() -> None:
    named = naming.Kafka("one", "9092", "orders")
    assert Dataset.topic("one:9092,two:9092", "orders") == Dataset(named.get_namespace(), named.get_name())


def test_events_are_appended_to_a_file(tmp_path: Path) -> None:
    place = tmp_path / "lineage.jsonl"
    assert emit(place, RUN.event("START", 0))
    assert emit(str(place), RUN.event("COMPLETE", 1))
    assert [parsed(json.loads(line)).eventType.value for line in place.read_text().splitlines()] == [
        "START", "COMPLETE",
    ]  # fmt: skip


def test_events_are_posted_to_a_server_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k-1")
    with collecting() as kept:
        assert emit(kept.url, RUN.event("START", 0))
        assert emit(f"{kept.url}/other", RUN.event("COMPLETE", 0))
        assert [event["eventType"] for event in kept.json("/api/v1/lineage")] == ["START"]
        assert len(kept.json("/other")) == 1
        headers = kept.requests[0][1]
        assert (headers["authorization"], headers["content-type"]) == ("Bearer k-1", "application/json")


def test_a_server_that_refuses_is_a_warning_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "k-1")
    with collecting() as kept, caplog.at_level(logging.WARNING):
        kept.code = 500
        assert not emit(kept.url.replace("//", "//user:secret@"), RUN.event("START", 0))
        assert not emit("/no/such/directory/lineage.jsonl", RUN.event("START", 0))
    assert "secret" not in caplog.text
    assert "k-1" not in caplog.text
    assert caplog.text.count("was not taken") == 2
