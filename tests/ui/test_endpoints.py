"""What the server says of jobs that run, have ended, or are damaged, on real checkpoint directories."""

from __future__ import annotations

import json
import os
import shutil
import threading
import urllib.request
from pathlib import Path

import msgspec
import pytest
import uvicorn

from strandline.control import journal
from strandline.core.ids import CheckpointId
from strandline.keeper.paths import Places
from strandline.ui import jobs
from strandline.ui.app import Page
from strandline.ui.browse import Browser
from strandline.ui.jobs import Jobs
from strandline.ui.server import listen
from tests.cli.fabricate import FabricatedJob
from tests.cli.snapshots import Made
from tests.control.fake import RECENT, FakeRun
from tests.control.serving import Serve
from tests.control.talking import wait_until
from tests.ui.conftest import COOKIE, TOKEN, Open, only_job


def test_a_job_of_a_directory(page_of: Open, alerts: FabricatedJob) -> None:
    client = page_of(alerts.directory)
    job = only_job(client)
    assert (job["name"], job["state"], job["pid"]) == ("alerts", "", None)
    assert job["url"] == f"{alerts.directory.as_uri()}/alerts"
    past = client.get(f"/api/jobs/{job['id']}/past").json()
    first, second = past["checkpoints"]
    assert [(each["checkpoint"], each["epoch"], each["state"]) for each in (first, second)] == [
        (2, 20, "complete"), (3, 30, "complete"),
    ]  # fmt: skip
    assert second["parallelism"] == {"detect": 2}
    assert [(each["uid"], each["partition"], each["async_ms"]) for each in second["partitions"]] == [
        ("detect", 0, 40.0), ("detect", 1, 40.0),
    ]  # fmt: skip
    assert 0 < second["uploaded_bytes"] < second["total_bytes"]
    assert past["newest"]["sinks"] == [{"name": "out", "kind": "", "pending": 2}]
    assert past["newest"]["sources"] == ["clicks", "orders"]
    assert [each["generation"] for each in past["generations"]] == [1]


def test_the_picture_of_files_is_that_of_the_manifests(page_of: Open, alerts: FabricatedJob) -> None:
    client = page_of(alerts.directory)
    past = client.get(f"/api/jobs/{only_job(client)['id']}/past").json()
    by_name = {(each["name"], each["partition"]): each["in"] for each in past["files"] if each["uid"] == "detect"}
    # A file of checkpoint 1 is shared by both that are left; what the third brought is its own.
    assert by_name["0-1.sst", 0] == [2, 3]
    assert by_name["0-2.sst", 0] == [2, 3]
    assert by_name["1-3.sst", 1] == [3]
    assert past["files_left_out"] == 0
    on_disk = {path.stat().st_size for path in alerts.files()}
    assert {each["bytes"] for each in past["files"] if each["shared"]} <= on_disk


def test_the_folder_of_one_job_is_a_directory_too(page_of: Open, alerts: FabricatedJob) -> None:
    client = page_of(alerts.directory / "alerts")
    job = only_job(client)
    assert (job["name"], job["url"]) == ("alerts", f"{alerts.directory.as_uri()}/alerts")
    assert len(client.get(f"/api/jobs/{job['id']}/past").json()["checkpoints"]) == 2


def test_a_damaged_checkpoint_is_said_to_be(page_of: Open, alerts: FabricatedJob) -> None:
    alerts.path_of(CheckpointId(3), 0).unlink()
    (alerts.directory / "alerts/chk-2/_metadata").write_bytes(b"no manifest")
    client = page_of(alerts.directory)
    first, second = client.get(f"/api/jobs/{only_job(client)['id']}/past").json()["checkpoints"]
    assert (first["checkpoint"], first["state"]) == (2, "damaged")
    assert "chk-2/_metadata" in first["reason"]
    assert (second["checkpoint"], second["state"]) == (3, "damaged")
    assert "missing" in second["reason"]
    tables = client.get(f"/api/jobs/{only_job(client)['id']}/tables")
    assert tables.status_code in (404, 500)
    assert "chk-" in tables.json()["error"] or "checkpoint" in tables.json()["error"]


def test_a_folder_without_a_readable_manifest_is_a_problem_and_no_crash(page_of: Open, alerts: FabricatedJob) -> None:
    for path in (alerts.directory / "alerts").glob("chk-*/_metadata"):
        path.write_bytes(b"")
    client = page_of(alerts.directory)
    job = only_job(client)
    assert "none of its 2 manifests can be read" in job["problem"]
    past = client.get(f"/api/jobs/{job['id']}/past").json()
    assert {each["state"] for each in past["checkpoints"]} == {"damaged"}


def test_a_directory_that_goes_away_is_an_error_with_a_next_step(page_of: Open, alerts: FabricatedJob) -> None:
    client = page_of(alerts.directory)
    job = only_job(client)
    shutil.rmtree(alerts.directory)
    answer = client.get(f"/api/jobs/{job['id']}/past")
    assert answer.status_code == 404
    assert "not there" in answer.json()["error"]
    assert answer.json()["hint"]


def test_an_ended_and_a_killed_job(page_of: Open, alerts: FabricatedJob, local_dir: Path) -> None:
    places = Places(local_dir, alerts.directory.as_uri(), "alerts")
    places.make()
    record = journal.JournalEntry(
        job="alerts", directory=alerts.directory.as_uri(), pid=os.getpid(), born="1", since_ms=1_000, state="failed",
        at_ms=9_000, failure="it broke\nbadly", failure_ms=8_000,
    )  # fmt: skip
    journal.write(places, record)
    places.driver_log.write_text(
        "2026-01-01T00:00:00.000+00:00 7 INFO job 'alerts' is starting\n"
        "2026-01-01T00:00:01.000+00:00 7 ERROR it broke\n  badly\n"
    )
    # It is known from the journal, and with its directory it is the same job.
    for client in (page_of(), page_of("alerts"), page_of(alerts.directory)):
        job = only_job(client)
        assert (job["state"], job["failure"], job["ended_ms"]) == ("failed", "it broke\nbadly", 9_000)
        assert len(client.get(f"/api/jobs/{job['id']}/past").json()["checkpoints"]) == 2
        assert client.get(f"/api/jobs/{job['id']}/log").json() == [
            {"at": "2026-01-01T00:00:00.000+00:00", "pid": 7, "level": "INFO", "text": "job 'alerts' is starting"},
            {"at": "2026-01-01T00:00:01.000+00:00", "pid": 7, "level": "ERROR", "text": "it broke\nbadly"},
        ]
        refused = client.post(f"/api/jobs/{job['id']}/actions/checkpoint", content=b"{}")
        assert (refused.status_code, refused.json()["error"]) == (400, "job 'alerts' does not run here")
    assert page_of("others").get("/api/jobs").json()["jobs"] == []
    journal.write(places, msgspec.structs.replace(record, state="running"))
    job = only_job(page_of())
    assert (job["state"], job["ended_ms"]) == ("killed", None)


def test_a_log_has_nothing_of_a_namesake_with_another_directory(
    page_of: Open, alerts: FabricatedJob, local_dir: Path
) -> None:
    places = Places(local_dir, "", "alerts")
    places.logs.mkdir(parents=True)
    for pid, directory in ((7, "file:///elsewhere"), (8, alerts.directory.as_uri())):
        event = {"schema": 1, "job": "alerts", "directory": directory, "pid": pid, "event": "state", "state": "running"}
        with places.event_log.open("a") as file:
            file.write(json.dumps(event) + "\n")
    places.driver_log.write_text("".join(f"2026-01-01T00:00:00.000+00:00 {pid} INFO of {pid}\n" for pid in (7, 8, 9)))
    client = page_of(alerts.directory)
    log = client.get(f"/api/jobs/{only_job(client)['id']}/log").json()
    # Of process 9 there is no event any more: it may be of this job.
    assert [each["text"] for each in log] == ["of 8", "of 9"]


def test_a_directory_that_cannot_be_listed_any_more_keeps_its_jobs(
    page_of: Open, alerts: FabricatedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = page_of(alerts.directory)
    job = only_job(client)
    monkeypatch.setattr(jobs, "_LIST_S", 0.0)
    monkeypatch.setattr(jobs, "_FIND_S", 0.0)
    hidden = alerts.directory.with_name("hidden")
    alerts.directory.rename(hidden)
    answer = client.get("/api/jobs").json()
    assert answer["jobs"] == [job]
    assert "expected a directory" in answer["problem"]
    hidden.rename(alerts.directory)
    assert client.get("/api/jobs").json()["problem"] == ""


def test_a_list_of_a_large_bucket_is_no_problem_until_it_takes_too_long(
    alerts: FabricatedJob, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Jobs(local_dir, (str(alerts.directory),))
    known = found.all()
    for name in ("_LIST_S", "_FIND_S", "_LIST_WAIT_S"):
        monkeypatch.setattr(jobs, name, 0.0)
    answers = threading.Event()
    monkeypatch.setattr(found, "_list", lambda: answers.wait(20) and known)
    try:
        assert found.all() == known
        assert found.problem == ""
        monkeypatch.setattr(jobs, "_SILENT_S", 0.0)
        assert found.problem == "their storage does not answer"
    finally:
        answers.set()
    found._listing.join()
    assert found.problem == ""


def test_a_running_job_does_what_it_is_asked_for(page_of: Open, serve: Serve) -> None:
    run = FakeRun()
    serve(run, url="file:///ck")
    client = page_of("alerts")
    job = only_job(client)
    assert (job["name"], job["state"], job["pid"], job["url"]) == (
        "alerts",
        "running",
        os.getpid(),
        "file:///ck/alerts",
    )

    def act(name: str, **arguments: object) -> tuple[int, dict[str, object]]:
        answer = client.post(f"/api/jobs/{job['id']}/actions/{name}", json=arguments)
        return answer.status_code, answer.json()

    run.finish.set()
    code, stats = act("checkpoint")
    assert (code, stats["checkpoint"], stats["status"]) == (200, 7, "completed")
    assert act("savepoint", url="/somewhere")[1]["url"] == "/somewhere"
    assert act("rescale", parallelism=3)[0] == 200
    assert act("rollback", checkpoint=5)[0] == 200
    assert act("stop", checkpoint=True) == (200, {"job": "alerts", "state": "stopped"})
    assert [name for name, _ in run.asked] == ["checkpoint", "savepoint", "rescale", "rollback", "stop"]
    assert act("lookup", table="x", keys=["y"])[0] == 404
    code, refusal = act("rescale", parallelism="three")
    assert code == 400
    assert "the arguments of 'rescale' are wrong" in str(refusal["error"])


def test_a_read_only_page_changes_nothing(page_of: Open, serve: Serve) -> None:
    run = FakeRun()
    serve(run)
    client = page_of(read_only=True)
    assert client.get("/api/jobs").json()["read_only"] is True
    answer = client.post(f"/api/jobs/{only_job(client)['id']}/actions/stop", json={})
    assert (answer.status_code, answer.json()["error"]) == (400, "the page is read-only")
    assert run.asked == []


def test_the_same_is_not_asked_for_twice_at_once(page_of: Open, serve: Serve) -> None:
    run = FakeRun()
    serve(run)
    client = page_of()
    path = f"/api/jobs/{only_job(client)['id']}/actions/checkpoint"
    first: list[int] = []
    waiting = threading.Thread(target=lambda: first.append(client.post(path, json={}).status_code))
    waiting.start()
    wait_until(run.began.is_set)
    again = client.post(path, json={})
    assert (again.status_code, again.json()["error"]) == (400, "job 'alerts' is working on 'checkpoint' already")
    run.finish.set()
    waiting.join(10)
    assert first == [200]


def test_values_are_hidden_unless_the_page_is_started_for_them(page_of: Open, snapshots: Made) -> None:
    client = page_of(snapshots.checkpoints[0].parents[1])
    job = only_job(client)["id"]
    tables = client.get(f"/api/jobs/{job}/tables").json()
    assert tables["checkpoint"] == 2
    assert tables["tables"][0]["columns"]
    name = tables["tables"][0]["table"]
    uid = tables["tables"][0]["operator"]
    for answer in (
        client.get(f"/api/jobs/{job}/rows?table={name}"),
        client.post(f"/api/jobs/{job}/query", json={"sql": "SELECT 1"}),
        client.post(f"/api/jobs/{job}/key", json={"operator": uid, "key": ["k"]}),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, "keys and values are hidden")
        assert "--values shown" in answer.json()["hint"]


def test_rows_sql_and_one_key_of_real_state(page_of: Open, snapshots: Made) -> None:
    client = page_of(snapshots.checkpoints[0].parents[1], values=True)
    job = only_job(client)["id"]
    tables = client.get(f"/api/jobs/{job}/tables").json()
    uid = tables["tables"][0]["operator"]
    name = next(each["table"] for each in tables["tables"] if each["kind"] == "value")
    rows = client.get(f"/api/jobs/{job}/rows?table={name}").json()
    columns = [each["name"] for each in rows["columns"]]
    assert columns[0] == "key_group"
    assert 0 < len(rows["rows"]) <= 200
    answer = client.post(f"/api/jobs/{job}/query", json={"sql": f"SELECT count(*) AS n FROM {name}"}).json()
    assert answer["columns"] == [{"name": "n", "type": "int64", "is_number": True, "is_time": False}]
    older = client.get(f"/api/jobs/{job}/rows?table={name}&checkpoint=1").json()
    assert (older["checkpoint"], rows["checkpoint"]) == (1, 2)
    bad = client.post(f"/api/jobs/{job}/query", json={"sql": "DROP TABLE x"})
    assert bad.status_code == 400
    assert "expected one SELECT" in bad.json()["error"] or "the query failed" in bad.json()["error"]
    key_columns = tables["keys"][uid]
    key = [rows["rows"][0][columns.index(each["name"])] for each in key_columns]
    history = client.post(f"/api/jobs/{job}/key", json={"operator": uid, "key": key}).json()
    value = next(each for each in history["tables"] if each["table"] == name)
    assert [each["checkpoint"] for each in value["at"]] == [1, 2]
    assert rows["rows"][0] in value["at"][1]["rows"]
    assert client.get(f"/api/jobs/{job}/rows?table=nope").status_code == 404
    assert client.get(f"/api/jobs/{job}/rows?table={name}&checkpoint=../x").status_code == 400
    nobody = client.post(f"/api/jobs/{job}/key", json={"operator": "nobody", "key": ["x"]})
    assert "has an operator 'nobody'" in nobody.json()["error"]


def test_the_state_that_a_running_job_has_now(page_of: Open, serve: Serve) -> None:
    run = FakeRun()
    serve(run, url="file:///ck")
    hidden = page_of("alerts")
    path = f"/api/jobs/{only_job(hidden)['id']}"
    now = {"checkpoint": "now", "table": "detect.last"}
    (table,) = hidden.get(f"{path}/tables", params=now).json()["tables"]
    columns = {"card": "string", "n": "bigint"}
    assert table == {"table": "detect.last", "kind": "value", "partitions": 2, "columns": columns}
    refused = hidden.get(f"{path}/rows", params=now)
    assert (refused.status_code, refused.json()["error"]) == (400, "keys and values are hidden")

    client = page_of("alerts", values=True)
    value = '{"at": "2026-01-01T00:00:00+00:00", "sum": "7.50"}'
    rows = client.get(f"{path}/rows", params=now).json()
    assert [each["name"] for each in rows["columns"]] == ["card", "n", "value"]
    assert (rows["rows"], rows["epoch"], rows["has_more"]) == ([["ann", "7", value]], 12, False)
    assert client.get(f"{path}/rows", params={**now, "partition": "1"}).json() == rows
    found = client.get(f"{path}/rows", params={**now, "key": ["ann", "7"]}).json()
    assert (found["rows"], found["epoch"]) == (rows["rows"], 12)
    assert client.get(f"{path}/rows", params={**now, "key": ["bob", "7"]}).json()["rows"] == []
    for asked, said in (
        ({"partition": "2"}, "operator 'detect' has no partition 2"),
        ({"partition": "-1"}, "'-1' is no number of a partition"),
        ({"table": "detect.first"}, "there is no table 'detect.first' in this job"),
        ({"table": "detect.first", "key": ["x"]}, "there is no table 'detect.first' in this job"),
        ({"key": ["ann"]}, "table 'detect.last': a key has the columns card, n, not 1"),
        ({"key": ["ann", "x"]}, "table 'detect.last': a key's n is a bigint as JSON, not 'x'"),
    ):
        refused = client.get(f"{path}/rows", params={**now, **asked})
        assert (refused.status_code in (400, 404), refused.json()["error"]) == (True, said)


def test_a_job_that_does_not_run_has_no_state_now(page_of: Open, alerts: FabricatedJob) -> None:
    client = page_of(alerts.directory, values=True)
    path = f"/api/jobs/{only_job(client)['id']}"
    for name in ("tables", "rows"):
        refused = client.get(f"{path}/{name}?checkpoint=now&table=detect.last")
        assert refused.json()["error"] == "job 'alerts' does not run here"


def test_the_difference_of_two_checkpoints(page_of: Open, snapshots: Made) -> None:
    for values in (False, True):
        client = page_of(snapshots.checkpoints[0].parents[1], values=values)
        job = only_job(client)["id"]
        path = f"/api/jobs/{job}/difference"
        found = client.post(path, json={"before": 1, "after": 2}).json()
        states = {each["state"]: each for each in found["states"]}
        assert {name for name, each in states.items() if not each["equal"]} == {"value", "history", "short"}
        value = states["value"]
        assert (value["added"], value["changed"], value["removed"], value["rows_before"]) == (0, 30, 0, 60)
        # Without leave, there are no keys and no values, only their numbers.
        assert len(value["keys"]) == (30 if values else 0)
    assert value["keys"][0]["change"] == "changed"
    assert (value["keys"][0]["before"], value["keys"][0]["after"]) == ('{"value": 1}', '{"value": 2}')
    with_itself = client.post(path, json={"before": 2, "after": 2, "job": job, "sample": 0.1}).json()
    assert all(each["equal"] for each in with_itself["states"])
    assert 0 < with_itself["groups_read"] < with_itself["groups"]
    for body, code, said in (
        ({"before": 1, "after": 9}, 404, "chk-9"),
        ({"before": 1, "after": 2, "sample": 0}, 400, "a part of 0 of the keys was asked for"),
        ({"before": 1, "after": 2, "job": "nobody"}, 404, "there is no such job"),
        ({"before": "../x", "after": 2}, 400, "this is no such request"),
    ):
        refused = client.post(path, json=body)
        assert (refused.status_code, said in refused.json()["error"]) == (code, True), refused.json()


@pytest.mark.parametrize("body", [b"", b"{", b'{"sql": 7}', b'{"sql": "SELECT 1", "more": 1}'])
def test_rubbish_is_refused(page_of: Open, snapshots: Made, body: bytes) -> None:
    client = page_of(snapshots.checkpoints[0].parents[1], values=True)
    answer = client.post(f"/api/jobs/{only_job(client)['id']}/query", content=body)
    assert (answer.status_code, "this is no such request" in answer.json()["error"]) == (400, True)


def test_events_come_each_second_and_tell_what_is_new(serve: Serve, local_dir: Path) -> None:
    """With a real server: a test client waits for the end of an answer, and this one has none."""
    serve(FakeRun(), url="file:///ck")
    page = Page(Jobs(local_dir), Browser({}, False))
    with listen(0) as sock:
        server = uvicorn.Server(uvicorn.Config(page.app(TOKEN, COOKIE), log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([sock],))
        thread.start()
        try:
            at = f"http://127.0.0.1:{sock.getsockname()[1]}"
            cookie = {"cookie": f"{COOKIE}={TOKEN}"}
            job = only_job_at(at, cookie)
            request = urllib.request.Request(f"{at}/api/jobs/{job}/events", headers=cookie)
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                first, second = (read_event(answer) for _ in range(2))
            request = urllib.request.Request(f"{at}/api/jobs/unknown/events", headers=cookie)
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert read_event(answer)["error"] == "there is no such job any more"
        finally:
            server.should_exit = True
            thread.join(20)
    assert first["status"]["job"] == "alerts"
    assert [each["epoch"] for each in first["epochs"]] == [11, 12]
    assert len(first["interruptions"]) == len(RECENT.interruptions)
    assert (first["anew"], second["anew"], second["epochs"]) == (True, False, [])
    # The one in progress comes again, until it has ended.
    assert [each["checkpoint"] for each in second["checkpoints"]] == [7]


def only_job_at(at: str, headers: dict[str, str]) -> str:
    with urllib.request.urlopen(urllib.request.Request(f"{at}/api/jobs", headers=headers), timeout=20) as answer:
        (job,) = json.load(answer)["jobs"]
        return str(job["id"])


def read_event(answer: object) -> dict[str, object]:
    line = answer.readline()  # type: ignore[attr-defined]
    assert answer.readline() == b"\n"  # type: ignore[attr-defined]
    return json.loads(line.removeprefix(b"data: "))  # type: ignore[no-any-return]
