"""Each change of a key, by a page that runs a real job's program: steps, refusals, a cancel, and kills that leave nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from strandline.ui.changes import Changes
from strandline.ui.jobs import Jobs
from tests.cli.conftest import environment
from tests.ui.conftest import Open, only_job
from tests.ui.showing import begin

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import os
import sys
from datetime import timedelta
from pathlib import Path

import strandline as sl
from tests.replay.programs import read, write

ROOT, LOCAL_DIR = Path(sys.argv[1]), sys.argv[2]


class Seen(sl.KeyedProcess):
    total = sl.Value("bigint", default=0, ttl=sl.TTL("1 day"))
    names = sl.Map("string", "bigint")

    def on_event(self, event, ctx):
        print("a line of the program's own")
        # Past Python's standard output, as a library of C code writes.
        os.write(1, b'{"progress": {"done": 7}}\\n{"call": "on_event", "before": 1, "after": 2}\\n')
        if self.total.value:
            ctx.timers.delete_processing(ctx.now + timedelta(hours=1))
        self.total.value = self.total.value + event.amount
        self.names[event.name] = self.total.value
        if event.amount > 4:
            ctx.timers.set_processing(ctx.now + timedelta(hours=1))
            ctx.emit("large", {"shop": ctx.key[0], "amount": event.amount})
        if event.amount % 2:
            yield {"shop": ctx.key[0], "total": self.total.value}

    def on_timer(self, timer, ctx):
        self.names.clear()


spark = sl.session("tests")
rows = sl.stream(read(spark, ROOT, "shop string, till int, name string, amount long"))
seen = rows.key_by("shop", "till").process(
    Seen(), "shop string, total bigint", uid="seen", sides={"large": "shop string, amount bigint"}
)
counts = rows.key_by("shop").agg(amount=sl.agg.sum("amount"), uid="counts")
job = sl.Job(
    "tills",
    sinks=[seen.to(sl.sinks.noop()), seen.side("large").to(sl.sinks.noop()), counts.to(sl.sinks.noop())],
    checkpoints=sl.Checkpoints(ROOT / "ck", every=None, retain=10),
    settings=sl.Settings(parallelism=2, local_dir=LOCAL_DIR, state_memory="128MB"),
)
run = job.start(spark)
run.process_all_available()
for number in range(4):
    shops = [("a,b", 1), ("a", 1), ("b", number)]
    write(ROOT / "in", f"{number}.json", [
        {"shop": shop, "till": till, "name": f"n{number}", "amount": number + 2} for shop, till in shops
    ])
    run.process_all_available()
    run.checkpoint()
run.stop()
spark.stop()
"""
KEY = {"operator": "seen", "key": ["a,b", "1"]}


@dataclass
class Tills:
    """A job that has ended, with the program that ran it."""

    root: Path
    local_dir: Path
    program: Path


@pytest.fixture(scope="module")
def tills(tmp_path_factory: pytest.TempPathFactory) -> Tills:
    root, local_dir = tmp_path_factory.mktemp("tills"), tmp_path_factory.mktemp("l")
    program = root / "tills.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(root), str(local_dir)]
    subprocess.run(command, env=environment(), cwd=root, check=True, timeout=300)
    return Tills(root, local_dir, program)


@dataclass
class Asking:
    """What a browser asks of the job."""

    client: TestClient

    def __post_init__(self) -> None:
        self.path = f"/api/jobs/{only_job(self.client)['id']}"

    def key(self, **key: Any) -> dict[str, Any]:
        found = self.client.post(f"{self.path}/key", json={**KEY, **key})
        assert found.status_code == 200, found.json()
        return dict(found.json())

    def begin(self, start: int, **key: Any) -> Any:
        return self.client.post(f"{self.path}/changes", json={**KEY, "start": start, **key})

    def look(self) -> dict[str, Any]:
        return dict(self.client.get(f"{self.path}/changes").json()["run"])

    def outcome(self) -> dict[str, Any]:
        return wait_for(self.look, lambda run: run["state"] != "running")


def wait_for(look: Callable[[], Any], is_wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 300
    while not is_wanted(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where processes have their temporary directories: a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as path:
        monkeypatch.setenv("TMPDIR", path)
        yield Path(path)


def left_in(scratch: Path) -> list[str]:
    return [path.name for path in scratch.glob("strandline-h-*")]


@pytest.fixture
def asking(page_of: Open, tills: Tills, scratch: Path) -> Iterator[Asking]:
    yield Asking(page_of(tills.root / "ck", values=True, of=tills.local_dir))
    assert left_in(scratch) == []
    assert [*tills.root.glob("ck/tills/pins/*/_metadata")] == []


def test_each_change_of_a_key(asking: Asking, tills: Tills) -> None:
    found = asking.key()
    plan = found["changes"]
    assert (plan["program"], plan["why_not"], plan["has_changed"]) == (str(tills.program), "", False)
    expected = f"strandline history --from CHECKPOINT --local-dir {tills.local_dir} tills seen '[\"a,b\", 1]'"
    assert plan["command"] == expected
    assert {table["table"]: table["ttl"] for table in found["tables"]}["seen.total"] == "processing"
    began = asking.begin(1)
    assert (began.status_code, began.json()["run"]["state"]) == (200, "running")
    again = asking.begin(1)
    assert (again.status_code, "another history is" in again.json()["error"]) == (503, True)
    run = asking.outcome()
    assert (run["state"], run["error"], run["start"], run["total"], run["done"]) == ("done", "", 1, 3, 3)
    # Not the key of shop a, till b,1, which reads alike: its amounts are not in the totals.
    assert [step["events"][0] for step in run["steps"]] == [
        [["shop", "a,b"], ["till", "1"], ["name", f"n{n}"], ["amount", f"{n + 2}"]] for n in (1, 2, 3)
    ]
    first, _, last = run["steps"]
    assert {(each["path"], each["before"], each["after"]) for each in first["parts"]["shown"] if each["change"]} == {
        ("total", "2", "5"), ("names.n1", None, "5"),
    }  # fmt: skip
    assert [row["fields"] for row in first["rows"]] == [[["shop", "a,b"], ["total", "5"]]]
    assert [each["change"] for each in last["timers"]] == ["deleted", "set"]
    assert [row["side"] for row in last["rows"]] == ["", "large"]
    assert last["rows"][1]["fields"] == [["shop", "a,b"], ["amount", "5"]]


def test_each_change_of_a_built_in_operator(asking: Asking) -> None:
    asking.begin(1, operator="counts", key=["a,b"], to=3)
    run = asking.outcome()
    assert (run["state"], run["error"]) == ("done", "")
    assert [[event[-1] for event in step["events"]] for step in run["steps"]] == [[["amount", "3"]], [["amount", "4"]]]
    assert [step["rows"][0]["fields"][-1] for step in run["steps"]] == [["amount", "5"], ["amount", "9"]]


def test_a_cancel_ends_it_and_another_may_begin(asking: Asking, scratch: Path) -> None:
    asking.begin(1)
    wait_for(lambda: left_in(scratch), bool)
    cancelled = asking.client.post(f"{asking.path}/changes/cancel", json={}).json()["run"]
    assert (cancelled["state"], cancelled["steps"], left_in(scratch)) == ("cancelled", [], [])
    assert asking.begin(1).status_code == 200
    asking.client.post(f"{asking.path}/changes/cancel", json={})


def test_what_fails_says_why(asking: Asking, tills: Tills) -> None:
    gone = asking.begin(99)
    assert (gone.status_code, "chk-99" in gone.json()["error"]) == (404, True)
    assert asking.begin(1, operator="nobody").status_code == 404
    asking.begin(4)
    run = asking.outcome()
    assert (run["state"], "no epoch after epoch" in run["error"]) == ("failed", True)
    assert "Checkpoints(retain=2)" in run["hint"]
    (job,) = Jobs(tills.local_dir, [str(tills.root / "ck")]).all()
    short = Changes(tills.local_dir, {}, may_run=True, limit_s=0.6)
    short.start(job, "seen", ["a,b", "1"], 1)
    run = wait_for(lambda: short.look(job), lambda run: run["state"] != "running")
    assert (run["state"], run["error"]) == ("failed", "it was ended after 0.01 minutes")


def test_who_may_not_run_a_program_is_told_how(page_of: Open, tills: Tills) -> None:
    place = tills.root / "ck"
    reader = Asking(page_of(place, values=True, read_only=True, of=tills.local_dir))
    assert reader.key()["changes"]["why_not"] == "the page is read-only, and runs no program"
    refused = reader.begin(1)
    assert (refused.status_code, "read-only" in refused.json()["error"]) == (400, True)
    assert f"strandline history --from 1 --local-dir {tills.local_dir} tills seen" in refused.json()["hint"]
    blind = Asking(page_of(place, of=tills.local_dir))
    assert blind.begin(1).json()["error"] == "keys and values are hidden"
    elsewhere = Asking(page_of(place, values=True))
    plan = elsewhere.key()["changes"]
    assert "is not known here" in plan["why_not"]
    assert plan["command"] == "strandline history --from CHECKPOINT PROGRAM seen '[\"a,b\", 1]' -- ARGUMENTS"
    hidden = tills.program.rename(tills.root / "hidden.py")
    moved = Asking(page_of(place, values=True, of=tills.local_dir))
    assert "is not there any more" in moved.key()["changes"]["why_not"]
    hidden.rename(tills.program)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_server(tills: Tills, scratch: Path, number: signal.Signals) -> None:
    page = begin(
        "strandline.cli.main", "ui", tills.root / "ck", "--local-dir", tills.local_dir, "--port", 0, "--values",
        "shown", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert page.stdout is not None
    with page.stdout:
        base, _, token = page.stdout.readline().strip().partition("/?token=")
        cookie = f"strandline-{base.rpartition(':')[2]}={token}"

        def ask(path: str, body: object = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"{base}/api/jobs{path}", data, {"cookie": cookie, "origin": base})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)

        (job,) = ask("")["jobs"]
        ask(f"/{job['id']}/changes", {**KEY, "start": 1})
        # Spark runs, too.
        processes = wait_for(lambda: of(scratch), lambda found: any("java" in each for each in found.values()))
        os.kill(page.pid, number)
        page.wait(60)
    wait_for(lambda: [*left_in(scratch), *of(scratch)], lambda found: not found)
    assert len(processes) >= 2


def of(scratch: Path) -> dict[int, str]:
    """The processes that have this directory for temporary files, and their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={scratch}/".encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_text()
        except OSError:
            continue
    return found
