"""The page of jobs with checkpoints in a bucket, of a real server on loopback: one that runs here, and one of elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import strandline as sl
from tests.cli.conftest import environment
from tests.seaweed import Seaweed
from tests.spark import small
from tests.spark.harness import Case, eventually, settle

pytestmark = [pytest.mark.spark, pytest.mark.long]


@dataclass
class Page:
    """A page of `strandline ui`, as its browser reaches it."""

    base: str
    cookie: str

    def ask(self, path: str, body: object = None) -> Any:
        """Return what a path answers; with a body, to a POST."""
        headers = {"cookie": self.cookie, "origin": self.base.rstrip("/")}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def event(self, job: str) -> Any:
        """Return the first event of a job."""
        request = urllib.request.Request(f"{self.base}api/jobs/{job}/events", headers={"cookie": self.cookie})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.readline().removeprefix(b"data: "))


def ui(*arguments: object, options: dict[str, str]) -> subprocess.Popen[str]:
    given = [text for name, value in options.items() for text in ("--option", f"{name}={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", "ui", "--port", "0", *map(str, arguments), *given],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def bucket(s3: Seaweed) -> str:
    return s3.url(f"{uuid4()}/check points")


@pytest.fixture
def page(s3: Seaweed, bucket: str, case: Case) -> Iterator[Page]:
    process = ui(bucket, "--values", "shown", "--local-dir", case.local_dir, options=s3.options)
    assert process.stdout is not None
    base, _, token = process.stdout.readline().strip().partition("?token=")
    assert token, process.communicate()
    yield Page(base, f"strandline-{base.rstrip('/').rpartition(':')[2]}={token}")
    process.terminate()
    try:
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Traceback" not in said


def job(spark: Any, s3: Seaweed, case: Case, directory: str, local_dir: Path | None = None) -> sl.Job:
    checkpoints = sl.Checkpoints(directory, retain=3, storage_options=s3.options)
    stream = sl.stream(small.source(spark, case.root / "in"))
    return small.job(stream, case.root, local_dir or case.local_dir, checkpoints=checkpoints)


def test_jobs_in_a_bucket_are_shown_while_they_run_and_afterwards(
    spark: Any, s3: Seaweed, bucket: str, case: Case, page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case.add(1)
    # A short name: sockets lie below.
    with job(spark, s3, case, f"{bucket}/elsewhere", tmp_path_factory.mktemp("far")).start(spark) as run:
        settle(run)
        run.checkpoint()
    # Spaces of a url may be written in two ways.
    with job(spark, s3, case, f"{bucket}/my shop").start(spark) as run:
        settle(run)
        first = run.checkpoint().checkpoint
        case.add(1)
        settle(run)
        eventually(lambda: len(page.ask("api/jobs")["jobs"]) == 2, "both are listed")
        here, there = page.ask("api/jobs")["jobs"]
        assert (here["name"], here["state"], here["url"].rpartition("/")[2]) == ("small", "running", "small")
        assert (there["name"], there["state"], there["url"].split("/")[-2]) == ("small", "", "elsewhere")
        second = page.ask(f"api/jobs/{here['id']}/actions/checkpoint", {})
        assert second["status"] == "completed"
        assert page.event(here["id"])["status"]["checkpoints"]["completed"] >= 2
        at = f"api/jobs/{here['id']}"
        difference = page.ask(f"{at}/difference", {"before": first, "after": second["checkpoint"]})
        users = Counter(event["user"] for event in case.events)
        (state,) = difference["states"]
        assert (state["rows_after"], state["added"]) == (len(users), len(users) - state["rows_before"])
        user, count = users.most_common(1)[0]
        (table,) = page.ask(f"{at}/key", {"operator": "count", "key": [user]})["tables"]
        assert (table["now"]["value"], table["at"][-1]["rows"][0][-1]) == (str(count), str(count))
    eventually(
        lambda: {each["state"] for each in page.ask("api/jobs")["jobs"]} == {"", "stopped"}, "the page knows of the end"
    )
    here, there = sorted(page.ask("api/jobs")["jobs"], key=lambda each: each["state"], reverse=True)
    assert (here["state"], there["state"]) == ("stopped", "")
    for each, directory, rows in ((here, "my%20shop", len(users)), (there, "elsewhere", state["rows_before"])):
        at = f"api/jobs/{each['id']}"
        past = page.ask(f"{at}/past")
        assert past["url"].endswith(f"/{directory}/small")
        assert {one["state"] for one in past["checkpoints"]} == {"complete"}
        assert past["files"]
        assert page.ask(f"{at}/tables")["tables"][0]["table"] == "count.seen"
        assert len(page.ask(f"{at}/rows?table=count.seen")["rows"]) == rows
        counted = page.ask(f"{at}/query", {"sql": "SELECT count(*) AS n, sum(value) AS events FROM count.seen"})
        assert counted["rows"][0][0] == str(rows)
    # What drivers leave on their machine is that of the job of this one, and not of its namesake.
    assert page.ask(f"api/jobs/{here['id']}/history")["steps"][-1]["last"] == 2
    assert page.ask(f"api/jobs/{there['id']}/history")["steps"] == []
    assert "s3://" in page.ask(f"api/jobs/{here['id']}/log")[0]["text"]
    secret = s3.options["secret_access_key"]
    assert secret not in json.dumps([page.ask("api/jobs"), page.ask(f"api/jobs/{here['id']}/log")])


def test_storage_that_hangs_holds_up_neither_the_page_nor_its_end(
    spark: Any, s3: Seaweed, bucket: str, case: Case, page: Page
) -> None:
    case.add(1)
    with job(spark, s3, case, f"{bucket}/shop").start(spark) as run:
        settle(run)
        run.checkpoint()
        eventually(lambda: len(page.ask("api/jobs")["jobs"]) == 1, "the job is known")
        s3.pause()
        try:
            eventually(lambda: page.ask("api/jobs")["problem"], "the page says it")
            answer = page.ask("api/jobs")
            (known,) = answer["jobs"]
            assert (known["state"], answer["problem"]) == ("running", "their storage does not answer")
            # The driver answers, as before.
            assert page.event(known["id"])["status"]["state"] == "running"
        finally:
            s3.resume()
        eventually(lambda: not page.ask("api/jobs")["problem"], "it is listed again")


def test_a_bucket_that_cannot_be_listed_is_an_error_before_anything_is_served(s3: Seaweed, bucket: str) -> None:
    wrong = {**s3.options, "secret_access_key": "a-wrong-secret"}
    process = ui(bucket, options=wrong)
    out, said = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in said
    assert "a-wrong-secret" not in said
    assert bucket.partition("/check")[0] in said
